//! Lists of attributes as constants.

use crate::{Builder, OpError, ValueId};
use halimede_tensor::Tensor;

/// A list as a constant along the features.
pub fn per_feature(b: &mut Builder, list: &[f32]) -> Result<ValueId, OpError> {
    Ok(b.constant(Tensor::from_slice(&[list.len()], list)?))
}
