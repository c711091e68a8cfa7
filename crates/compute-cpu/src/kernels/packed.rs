//! Memory of packed weights.

use halimede_tensor::{DType, Element, Tensor};
use std::marker::PhantomData;
use std::ops::Deref;

/// Weights in a kernel's own order, on cache lines of their own: a vector load that crossed two lines
/// would cost two.
pub(super) struct PackedWeights<T = f32>(Tensor, PhantomData<T>);

impl<T: Element> PackedWeights<T> {
    /// `None` where there is no memory for them: the weights are then read as they are.
    pub fn zeroed(len: usize) -> Option<PackedWeights<T>> {
        Some(PackedWeights(Tensor::zeros(T::DTYPE, &[len]).ok()?, PhantomData))
    }

    pub fn elements_mut(&mut self) -> &mut [T] {
        self.0.slice_mut().expect("made with this datatype and shared with nobody")
    }

    pub fn bytes(&self) -> usize {
        self.0.len() * size_of::<T>()
    }
}

impl<T: Element> Deref for PackedWeights<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.0.slice().expect("made with this datatype")
    }
}

/// The bytes of an f32 tensor where they lie, aligned or not.
pub(super) fn f32_bytes(tensor: &Tensor) -> Option<&[u8]> {
    if tensor.dtype() == DType::F32 { tensor.bytes().ok() } else { None }
}
