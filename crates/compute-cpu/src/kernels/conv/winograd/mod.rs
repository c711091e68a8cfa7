//! Convolutions of 3 x 3 with fewer multiplications: Winograd's F(m x m, 3 x 3), channels last.
//!
//! A tile of `m x m` outputs takes `(m + 2)²` multiplications per pair of channels where the definition
//! takes `9·m²`. The weights are transformed once, when a model is loaded; tiles of the input just
//! before they are multiplied ([`transform`] has the formulas). Per point of the transform there is one
//! product, `[tiles, inputs] · [inputs, outputs]`.
//!
//! ```text
//! for each block of tiles                             what it becomes stays in the second-level cache
//!     transform the block's inputs
//!     for each point
//!         for each panel of output channels
//!             products of the tiles and the panel     micro-kernel
//!     for each panel
//!         transform the products, add the bias, epilogue, store
//! ```
//!
//! [`Form::choose`] says where that is faster than multiplying pixels as they are.
//!
//! Every output of a tile is made from every element that the tile sees. One that is infinite, NaN or very large would
//! so spread to outputs whose own windows do not hold it: tiles with such outputs are computed again by the definition
//! ([`exact`]).

mod ends;
mod exact;
mod step;
#[cfg(test)]
mod tests;
mod transform;

use super::window::Window;
use crate::gemm::{self, Micro};
use crate::kernels::packed::{PackedWeights, f32_bytes, number};
use crate::unit::Winograd;
pub(super) use ends::Ends;
use halimede_compute::packed::Packer;
use halimede_graph::ops::{Conv, Factors};
use halimede_tensor::Tensor;
pub(super) use step::WinogradStep;

/// Outputs of this size (their squares are infinite) and above are not left to the transforms: with what is subtracted
/// and added again on the way, the elements that they come from cover those beside them. It is far above what
/// networks compute with, and far enough below the largest f32 for the transforms of everything smaller.
const LARGE: f32 = 1.844_674_4e19;

/// Whether weights may be transformed: a sum of them is no larger than an f32 may be.
pub(super) fn may_transform(weights: &Tensor) -> bool {
    let Some(bytes) = f32_bytes(weights) else { return false };
    bytes.chunks_exact(size_of::<f32>()).enumerate().all(|(index, _)| number(bytes, index).abs() < LARGE)
}

/// F(m x m, 3 x 3), by m.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::kernels) enum Form {
    F2,
    F4,
    F6,
}

impl Form {
    /// The form for the weights `[outputs, inputs, 3, 3]` and an image of `height x width` outputs, where
    /// one is faster than none. Unknown sizes are `None`.
    pub fn choose(policy: Winograd, op: &Conv, weights: &[usize], image: Option<[usize; 3]>) -> Option<Form> {
        let ones = |sizes: &[usize]| sizes.iter().all(|&size| size == 1);
        let fits =
            op.channels_last && op.transposed.is_none() && op.groups <= 1 && op.multiply != Some(Factors::Integers);
        let [outputs, inputs, 3, 3] = *weights else { return None };
        if !fits || !ones(&op.strides) || !ones(&op.dilations) {
            return None;
        }
        match policy {
            Winograd::Never => None,
            Winograd::F2 => Some(Form::F2),
            Winograd::F4 => Some(Form::F4),
            Winograd::F6 => Some(Form::F6),
            Winograd::WherePays if op.multiply == Some(Factors::Bf16) => pays_beside_bf16(outputs, inputs, image?),
            Winograd::WherePays => pays(outputs, inputs, image?),
        }
    }

    /// The forms that such a convolution may be told to take, smallest first: those inside of the error budget
    /// whose weights are not too large. `None` where the policy leaves no choice.
    pub fn allowed(policy: Winograd, op: &Conv, weights: &[usize]) -> Option<&'static [Form]> {
        if policy != Winograd::WherePays {
            return None;
        }
        Some(match *weights {
            [outputs, inputs, ..] if Form::choose(Winograd::F4, op, weights, None).is_some() => {
                if is_small(outputs, inputs) { &[Form::F2, Form::F4] } else { &[Form::F2] }
            }
            _ => &[],
        })
    }

    /// Outputs of a tile along an axis.
    pub fn outputs(self) -> usize {
        match self {
            Form::F2 => 2,
            Form::F4 => 4,
            Form::F6 => 6,
        }
    }

    /// Points of the transform along an axis.
    pub fn points(self) -> usize {
        self.outputs() + 2
    }

    /// Tiles of `[batch, height, width]` outputs.
    fn tiles(self, [batch, height, width]: [usize; 3]) -> usize {
        batch * height.div_ceil(self.outputs()) * width.div_ceil(self.outputs())
    }

    /// How many times fewer multiplications there are, with what lies beyond the border.
    fn saved(self, image: [usize; 3]) -> f64 {
        let made = self.points() * self.points() * self.tiles(image);
        (9 * image.iter().product::<usize>()) as f64 / made.max(1) as f64
    }

    /// The name in listings.
    pub fn name(self) -> &'static str {
        match self {
            Form::F2 => "F(2x2, 3x3)",
            Form::F4 => "F(4x4, 3x3)",
            Form::F6 => "F(6x6, 3x3)",
        }
    }
}

/// The form that was measured to be faster than none for such a layer, by the rule that
/// `docs/benchmarks/winograd.md` draws from the measurements. F(6x6, 3x3) is outside of the error budget.
fn pays(outputs: usize, inputs: usize, image: [usize; 3]) -> Option<Form> {
    let (channels, weights) = (outputs.min(inputs), outputs * inputs);
    let (is_small, tiles) = (is_small(outputs, inputs), Form::F4.tiles(image));
    // Each of the transformed weights is read for every block of tiles, so there have to be many for one: fewer where
    // sums are long enough to hide the transforms, and weights too few for four times as much memory to matter.
    let is_enough = tiles >= 24 || (tiles >= 16 && channels >= 32 && weights <= 128 * 128);
    if channels >= 16 && is_small && is_enough && Form::F4.saved(image) >= 2.0 {
        return Some(Form::F4);
    }
    // Large weights come from memory, where those of the form take 1.8 times as long.
    let (channels_least, tiles_least) = if is_small { (64, 16) } else { (128, 32) };
    let pays = channels >= channels_least && Form::F2.tiles(image) >= tiles_least && Form::F2.saved(image) >= 1.7;
    pays.then_some(Form::F2)
}

/// The form in f32 that was measured to be faster than products of bf16 on vectors, which are twice as fast as those of
/// f32: where `F(4x4, 3x3)` saves nearly all that it can, and sums are long enough to hide its transforms.
fn pays_beside_bf16(outputs: usize, inputs: usize, image: [usize; 3]) -> Option<Form> {
    let pays = outputs.min(inputs) >= 64 && is_small(outputs, inputs);
    (pays && Form::F4.tiles(image) >= 24 && Form::F4.saved(image) >= 3.0).then_some(Form::F4)
}

/// Whether the weights are few enough to be held four times.
fn is_small(outputs: usize, inputs: usize) -> bool {
    outputs * inputs <= 256 * 256
}

/// Transformed weights.
pub(super) struct Weights {
    /// Of the weights as the model has them.
    pub shape: Vec<usize>,
    pub form: Form,
    /// In panels of output channels, each `[points², inputs]` deep.
    pub elements: PackedWeights,
}

impl Weights {
    /// Transforms the weights `[outputs, inputs, 3, 3]`, in f64.
    pub fn pack(tensor: &Tensor, form: Form, micro: &Micro, packer: &Packer) -> Option<Weights> {
        let (bytes, shape) = (f32_bytes(tensor)?, tensor.shape());
        let [outputs, inputs, 3, 3] = *shape else { return None };
        let points = form.points();
        let factors = transform::weight_factors(form.outputs() / 2);
        let depth = points * points * inputs;
        let len = gemm::panels_len(micro, outputs, depth);
        let elements = PackedWeights::new(packer, form.name(), len, |elements| {
            let mut taps = [[0f64; LANES]; 9];
            for (index, panel) in elements.chunks_exact_mut((depth * micro.nr).max(1)).enumerate() {
                let first = index * micro.nr;
                let lanes = micro.nr.min(outputs - first);
                for input in 0..inputs {
                    for (lane, tap) in (0..lanes).flat_map(|lane| (0..9).map(move |tap| (lane, tap))) {
                        taps[tap][lane] = f64::from(number(bytes, ((first + lane) * inputs + input) * 9 + tap));
                    }
                    for (row, down) in factors.iter().enumerate() {
                        let half = [0, 1, 2].map(|tap| sum(down, [&taps[tap], &taps[3 + tap], &taps[6 + tap]]));
                        for (column, across) in factors.iter().enumerate() {
                            let line = &mut panel[((row * points + column) * inputs + input) * micro.nr..][..lanes];
                            let weights = sum(across, [&half[0], &half[1], &half[2]]);
                            line.iter_mut().zip(&weights).for_each(|(to, weight)| *to = *weight as f32);
                        }
                    }
                }
            }
        })?;
        Some(Weights { shape: shape.to_vec(), form, elements })
    }
}

impl Weights {
    /// Weights of a panel as the model has them, `[lanes, inputs, 9]`, out of the transformed ones: nobody holds both. What is
    /// below a millionth of the largest of a filter is 0, or lost in the rounding of the others.
    fn original(&self, panel: usize, inputs: usize, nr: usize) -> Vec<f32> {
        const ROUNDING: f64 = 1e-6;
        let points = self.form.points();
        let backward = transform::weight_inverse(self.form.outputs() / 2);
        let transformed = &self.elements[panel * points * points * inputs * nr..];
        let mut taps = vec![0f32; nr * inputs * 9];
        for (index, taps) in taps.chunks_exact_mut(9).enumerate() {
            let (lane, input) = (index / inputs, index % inputs);
            let at = |row, column| f64::from(transformed[((row * points + column) * inputs + input) * nr + lane]);
            let found: [f64; 9] = std::array::from_fn(|tap| {
                let (down, across) = (&backward[tap / 3], &backward[tap % 3]);
                let row = |row| (0..points).map(|column| across[column] * at(row, column)).sum::<f64>();
                (0..points).map(|index| down[index] * row(index)).sum()
            });
            let largest = found.iter().fold(0f64, |largest, tap| largest.max(tap.abs()));
            for (tap, found) in taps.iter_mut().zip(found) {
                *tap = if found.abs() < ROUNDING * largest { 0.0 } else { found as f32 };
            }
        }
        taps
    }
}

/// Output channels that are transformed together: those of the widest panel.
const LANES: usize = 32;

/// A sum of three weighted rows.
fn sum(weights: &[f64; 3], rows: [&[f64; LANES]; 3]) -> [f64; LANES] {
    std::array::from_fn(|lane| weights[0] * rows[0][lane] + weights[1] * rows[1][lane] + weights[2] * rows[2][lane])
}

/// How the output is cut into tiles. They are numbered along rows, then down, then by image.
#[derive(Debug, Clone, Copy)]
struct Grid {
    /// Outputs of a tile along an axis.
    outputs: usize,
    down: usize,
    across: usize,
    tiles: usize,
}

/// Where a tile begins in the output.
struct Place {
    image: usize,
    row: usize,
    column: usize,
}

impl Grid {
    fn new(window: &Window, form: Form) -> Grid {
        let outputs = form.outputs();
        let (down, across) = (window.out[1].div_ceil(outputs), window.out[2].div_ceil(outputs));
        Grid { outputs, down, across, tiles: window.batch * down * across }
    }

    fn place(&self, tile: usize) -> Place {
        let (rest, column) = (tile / self.across, tile % self.across);
        Place { image: rest / self.down, row: rest % self.down * self.outputs, column: column * self.outputs }
    }
}
