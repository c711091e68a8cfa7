//! Memory of packed weights.

use halimede_compute::packed::Packer;
use halimede_tensor::{DType, Element, Tensor};
use std::marker::PhantomData;
use std::ops::Deref;

/// Weights in a kernel's own order, on cache lines of their own: a vector load that crossed two lines
/// would cost two.
pub(super) struct PackedWeights<T = f32>(Tensor, PhantomData<T>);

impl<T: Element> PackedWeights<T> {
    /// `len` elements from `packer`, which has them from `pack` or a file. `None` where there is no memory for them:
    /// the weights are then read as they are.
    pub fn new(packer: &Packer, layout: &str, len: usize, pack: impl FnOnce(&mut [T])) -> Option<PackedWeights<T>> {
        Some(PackedWeights(packer.pack(layout, len, pack).ok()?, PhantomData))
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

/// The number at `index` of those bytes.
pub(super) fn number(bytes: &[u8], index: usize) -> f32 {
    let at = index * size_of::<f32>();
    f32::from_ne_bytes(bytes[at..at + size_of::<f32>()].try_into().expect("four bytes"))
}
