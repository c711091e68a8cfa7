use crate::ops::{Call, Facts};
use crate::{Fact, OpError};

/// The shape rule of a call of which only that is known: its outputs have the first input's datatype.
pub fn same_dtype(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let dtype = inputs.iter().flatten().find_map(|fact| fact.dtype);
    Ok(call.outputs.iter().map(|_| Fact::of_dtype(dtype)).collect())
}
