//! Small integer inputs that kernels read when they run.

use halimede_compute::TensorDesc;
use halimede_graph::OpError;
use halimede_tensor::{DType, View};

/// An i32 or i64 input as numbers.
#[derive(Clone, Copy)]
pub(super) struct Integers<'a> {
    view: View<'a>,
    wide: bool,
}

impl<'a> Integers<'a> {
    pub fn new(view: View<'a>, wide: bool) -> Integers<'a> {
        Integers { view, wide }
    }

    pub fn len(self) -> usize {
        self.view.len() / if self.wide { 8 } else { 4 }
    }

    /// # Panics
    /// Past the end.
    pub fn at(self, index: usize) -> i64 {
        // SAFETY: an input; nobody writes it while the step runs.
        unsafe { if self.wide { self.view.slice::<i64>()[index] } else { self.view.slice::<i32>()[index].into() } }
    }

    pub fn iter(self) -> impl Iterator<Item = i64> + 'a {
        (0..self.len()).map(move |index| self.at(index))
    }
}

/// Whether an integer input is i64 (or i32); other integers have no kernel.
pub(super) fn is_wide(desc: &TensorDesc) -> Result<bool, OpError> {
    match desc.dtype {
        DType::I64 => Ok(true),
        DType::I32 => Ok(false),
        other => Err(OpError::unsupported(format!("integers of {other}"))),
    }
}

/// The description of an input that must be there.
pub(super) fn desc(inputs: &[Option<TensorDesc>], index: usize) -> Result<&TensorDesc, OpError> {
    let input = inputs.get(index).and_then(Option::as_ref);
    input.ok_or_else(|| OpError::invalid(format!("input {index} is missing")))
}

/// An index that may count from the end, as a position; an error names what it lies outside of.
pub(super) fn position(index: i64, size: usize) -> Result<usize, OpError> {
    let from_start = if index < 0 { index.saturating_add(size as i64) } else { index };
    usize::try_from(from_start)
        .ok()
        .filter(|&position| position < size)
        .ok_or_else(|| OpError::invalid(format!("index {index} lies outside an axis of size {size}")))
}
