//! Memory of packed weights.

use halimede_tensor::{DType, Tensor};
use std::ops::Deref;

/// f32 weights in a kernel's own order, on cache lines of their own: a vector load that crossed two
/// lines would cost two.
pub(super) struct PackedWeights(Tensor);

impl PackedWeights {
    /// `None` where there is no memory for them: the weights are then read as they are.
    pub fn zeroed(len: usize) -> Option<PackedWeights> {
        Tensor::zeros(DType::F32, &[len]).ok().map(PackedWeights)
    }

    pub fn elements_mut(&mut self) -> &mut [f32] {
        self.0.slice_mut().expect("made as f32 and shared with nobody")
    }

    pub fn bytes(&self) -> usize {
        self.0.len() * size_of::<f32>()
    }
}

impl Deref for PackedWeights {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        self.0.slice().expect("made as f32")
    }
}

/// The bytes of an f32 tensor where they lie, aligned or not.
pub(super) fn f32_bytes(tensor: &Tensor) -> Option<&[u8]> {
    if tensor.dtype() == DType::F32 { tensor.bytes().ok() } else { None }
}
