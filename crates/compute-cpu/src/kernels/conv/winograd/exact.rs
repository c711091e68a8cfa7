//! Outputs of tiles with elements that the transforms would spread, by the definition.

use super::{Grid, LARGE};
use crate::kernels::conv::window::Window;
use crate::real::Real;
use std::ops::Range;

/// The outputs of some tiles of a row and of one panel of channels: element (row, column, channel) of a tile is at
/// `((row·tiles + tile)·m + column)·nr + channel`.
pub(super) struct Strip {
    pub tiles: Range<usize>,
    /// Channels that there are, of `nr`.
    pub wide: usize,
    pub nr: usize,
}

impl Strip {
    /// Computes again every tile in which a sum is not finite or as large as [`LARGE`]. That is rare, so plain loops do;
    /// where NaN fills whole images it is known without sums.
    ///
    /// `weights` gives `[nr, inputs, 3, 3]`, of the panel's channels; it is asked where a sum has to be made.
    pub fn correct<'w, T: Real>(
        &self,
        window: &Window,
        grid: &Grid,
        x: &[T],
        weights: impl Fn() -> &'w [f32],
        sums: &mut [f32],
    ) {
        let (m, count) = (grid.outputs, self.tiles.len());
        let depth = 9 * window.inputs;
        for (index, tile) in self.tiles.clone().enumerate() {
            let at = |row: usize, column: usize| ((row * count + index) * m + column) * self.nr;
            let outputs = || (0..m).flat_map(|row| (0..m).map(move |column| (row, column)));
            let is_tame = |(row, column)| sums[at(row, column)..][..self.nr].iter().all(|sum| sum.abs() < LARGE);
            if outputs().all(is_tame) {
                continue;
            }
            let place = grid.place(tile);
            for (row, column) in outputs() {
                let (y, across) = (place.row + row, place.column + column);
                if y >= window.out[1] || across >= window.out[2] {
                    continue;
                }
                let seen = seen(window, x, (place.image, y, across));
                let sums = &mut sums[at(row, column)..][..self.wide];
                // Whatever it is multiplied by.
                if seen.iter().flatten().any(|pixel| pixel.iter().any(|x| x.widen().is_nan())) {
                    sums.fill(f32::NAN);
                    continue;
                }
                for (sum, weights) in sums.iter_mut().zip(weights().chunks_exact(depth)) {
                    *sum = product(&seen, weights);
                }
            }
        }
    }
}

/// The pixels that an output sees, by tap; `None` in the border.
fn seen<'a, T>(window: &Window, x: &'a [T], (image, y, across): (usize, usize, usize)) -> [Option<&'a [T]>; 9] {
    let [_, height, width] = window.x;
    std::array::from_fn(|tap| {
        let (row, column) = (window.source(1, y, tap / 3)?, window.source(2, across, tap % 3)?);
        Some(&x[((image * height + row) * width + column) * window.inputs..][..window.inputs])
    })
}

/// One output channel, in f64: no sum on the way is infinite that is finite in the end.
fn product<T: Real>(seen: &[Option<&[T]>; 9], weights: &[f32]) -> f32 {
    let mut sums = [0f64; 9];
    for (tap, (sum, pixel)) in sums.iter_mut().zip(seen).enumerate() {
        let Some(pixel) = pixel else { continue };
        let weights = weights[tap..].iter().step_by(9);
        *sum = pixel.iter().zip(weights).map(|(x, &weight)| f64::from(x.widen()) * f64::from(weight)).sum();
    }
    sums.iter().sum::<f64>() as f32
}
