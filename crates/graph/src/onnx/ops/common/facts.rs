use crate::ops::{Call, Facts};
use crate::{Fact, OpError};
use halimede_tensor::DType;
use smallvec::smallvec;

/// The shape rule of a call of which only that is known: its outputs have the first input's datatype.
pub fn same_dtype(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let dtype = inputs.iter().flatten().find_map(|fact| fact.dtype);
    Ok(call.outputs.iter().map(|_| Fact::of_dtype(dtype)).collect())
}

/// The shape rule of a call that has the shape of its first input and the datatype that the attribute
/// `dtype` names, or else the input's.
pub fn infer_like(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let [Some(like), ..] = inputs else { return Ok(Facts::new()) };
    let dtype = match (call.attributes.int("dtype")?, like.dtype) {
        (None, dtype) => dtype,
        (Some(_), dtype) => Some(super::dtype_or(call, dtype.unwrap_or(DType::F32))?),
    };
    Ok(smallvec![Fact { dtype, shape: like.shape.clone(), ..Fact::default() }])
}
