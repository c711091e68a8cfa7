//! Memory that kernels write through views, and that becomes a buffer without a copy.

use crate::buffer::{Heap, SMALL};
use crate::{Buffer, Element, Tensor, TensorError};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// A block of zeroed memory, aligned to 64, handed out in views that may be written.
///
/// Views borrow the block but do not exclude each other: whoever turns a view into a slice promises
/// that nobody writes what he reads (see [`View::slice`]). Safe code reads a block only through
/// `&mut self`, when no view can be left.
pub struct Block {
    heap: Heap,
    len: usize,
}

impl Block {
    /// A block of `len` bytes. Large ones cost no memory until they are touched.
    pub fn new(len: usize) -> Result<Block, TensorError> {
        Ok(Block { heap: Heap::zeroed(len)?, len })
    }

    /// The same for a block that stays for long: from some MiB on it lies in large pages.
    pub fn lasting(len: usize) -> Result<Block, TensorError> {
        if len <= SMALL { Block::new(len) } else { Ok(Block { heap: Heap::lasting(len)?, len }) }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes `offset..offset + len`, to be written or read by a kernel.
    ///
    /// # Panics
    /// Where that lies outside the block: a plan with such an offset is a bug.
    pub fn view(&self, offset: usize, len: usize) -> View<'_> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "view outside its block");
        // SAFETY: `offset <= self.len`, inside or one past the allocation.
        let start = unsafe { self.heap.start().add(offset) };
        View { start, len, block: PhantomData }
    }

    /// The bytes. `&mut` because it proves that no view is left.
    pub fn bytes(&mut self) -> &[u8] {
        // SAFETY: initialised (zeroed) memory of that length, and the exclusive borrow rules out views.
        unsafe { std::slice::from_raw_parts(self.heap.start().as_ptr(), self.len) }
    }

    /// The bytes for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.heap.start().as_ptr(), self.len) }
    }

    /// The block as a buffer, without a copy.
    pub fn into_buffer(self) -> Buffer {
        Buffer::from_heap(self.heap, self.len)
    }
}

/// Bytes that a kernel reads or writes during one step.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    start: NonNull<u8>,
    len: usize,
    block: PhantomData<&'a [u8]>,
}

// SAFETY: a view is a pointer and a length; the duties of `slice` and `slice_mut` cover other threads.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    /// A view of no bytes.
    pub fn empty() -> View<'static> {
        View { start: NonNull::<u64>::dangling().cast(), len: 0, block: PhantomData }
    }

    /// Number of bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The bytes `offset..offset + len` of these.
    ///
    /// # Panics
    /// Where that lies outside: a bug of the kernel.
    pub fn part(self, offset: usize, len: usize) -> View<'a> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "part outside its view");
        // SAFETY: `offset <= self.len`, inside or one past the view.
        View { start: unsafe { self.start.add(offset) }, len, block: PhantomData }
    }

    /// The first byte. Writing through it is subject to the duties of [`View::slice_mut`].
    pub fn as_ptr(self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The elements for reading.
    ///
    /// # Safety
    /// Nobody writes these bytes while the slice lives.
    ///
    /// # Panics
    /// Where the bytes are not aligned for `T` or no whole number of elements: a bug of the plan.
    pub unsafe fn slice<T: Element>(self) -> &'a [T] {
        // SAFETY: the block that `'a` borrows holds initialised bytes here; the caller excludes writers.
        bytemuck::cast_slice(unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) })
    }

    /// The elements for writing.
    ///
    /// # Safety
    /// The view was made for writing (an output or workspace, never an input or a constant), and nobody
    /// else reads or writes these bytes while the slice lives.
    ///
    /// # Panics
    /// As [`View::slice`].
    pub unsafe fn slice_mut<T: Element>(self) -> &'a mut [T] {
        // SAFETY: as in `slice`; the caller excludes everybody else.
        bytemuck::cast_slice_mut(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }
}

impl Tensor {
    /// The bytes aligned for the datatype, for reading only; an error for a String tensor.
    pub fn view(&self) -> Result<View<'_>, TensorError> {
        let bytes = &**self.buffer()?;
        Ok(View { start: NonNull::from(bytes).cast(), len: bytes.len(), block: PhantomData })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn a_block_becomes_a_tensor_without_a_copy() {
        let block = Block::new(16).unwrap();
        let (low, high) = (block.view(0, 8), block.view(8, 8));
        // SAFETY: disjoint views of a block that nobody else uses.
        let (a, b) = unsafe { (low.slice_mut::<f32>(), high.slice_mut::<f32>()) };
        a.fill(1.0);
        b.fill(2.0);
        let start = low.as_ptr();
        let tensor = Tensor::from_buffer(DType::F32, &[4], block.into_buffer()).unwrap();
        assert_eq!(tensor.slice::<f32>().unwrap(), [1.0, 1.0, 2.0, 2.0]);
        assert_eq!(tensor.view().unwrap().as_ptr(), start);
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn views_stay_inside() {
        Block::new(8).unwrap().view(usize::MAX, 2);
    }
}
