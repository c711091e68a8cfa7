//! What happens to sums of neighbouring pixels before they are written, channels last.

use crate::Isa;
use crate::kernels::ending::{Ending, add_bias};
use crate::kernels::epilogue::Epilogue;
use crate::map::Register;
use crate::real::Numbers;
use halimede_tensor::View;

/// Bias and epilogue of a convolution for one panel of channels.
pub(super) struct Finish<'a> {
    /// Of the panel's channels; empty where there is none.
    pub bias: &'a [f32],
    pub epilogue: Option<&'a Epilogue>,
    /// The inputs that follow the operator's own.
    pub extra: &'a [Option<View<'a>>],
    pub isa: Isa,
    /// Distance of pixels in the sums.
    pub nr: usize,
}

impl Finish<'_> {
    /// Adds the bias to the sums of pixels of a row, applies the epilogue and writes them. `start` is the
    /// place of the first in the output.
    ///
    /// # Safety
    /// `target` is valid for `columns` pixels `apart` elements apart with `wide` elements each.
    pub unsafe fn store(
        &self,
        sums: &mut [f32],
        (columns, wide): (usize, usize),
        start: usize,
        target: *mut f32,
        apart: usize,
        registers: &mut [Register],
    ) {
        let sums = &mut sums[..columns * self.nr];
        let mut ending = Ending::new((columns, wide), self.nr, self.bias, Numbers::F32(target), apart);
        if let Some(epilogue) = self.epilogue {
            match epilogue.common().filter(|common| common.bias.is_none()) {
                Some(common) => ending.follow(common, self.extra, start),
                None => {
                    add_bias(self.isa, sums, self.nr, self.bias);
                    ending.bias = &[];
                    epilogue.apply(self.extra, sums, self.nr, (columns, wide), (start, apart), registers);
                }
            }
        }
        // SAFETY: the caller's promise; the residual has the output's elements.
        unsafe { ending.run(self.isa, sums) };
    }
}
