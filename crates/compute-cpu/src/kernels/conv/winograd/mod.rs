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
//!     for each turn of panels of output channels      in f32 all of them are one, in bf16 each by itself
//!         for each point
//!             for each panel of the turn
//!                 products of the tiles and the panel     micro-kernel, or blocks of the matrix unit
//!         for each panel of the turn
//!             transform the products, add the bias, epilogue, store
//! ```
//!
//! Products are of f32, or, where factors may be of bf16 anyway, of transforms that are rounded to it ([`multiply`]).
//! [`Form::choose`] says where that is faster than multiplying pixels as they are.
//!
//! Every output of a tile is made from every element that the tile sees. One that is infinite, NaN or very large would
//! so spread to outputs whose own windows do not hold it: tiles with such outputs are computed again by the definition
//! ([`exact`]).

mod ends;
mod exact;
mod multiply;
mod step;
#[cfg(test)]
mod tests;
mod transform;

use super::window::Window;
use crate::gemm::Micro;
use crate::kernels::Machine;
use crate::kernels::packed::{PackedWeights, f32_bytes, number};
use crate::matrix;
use crate::real::Real;
use crate::unit::Winograd;
use crate::{Isa, Matrix};
pub(super) use ends::Ends;
use half::bf16;
use halimede_compute::Prepared;
use halimede_compute::packed::Packer;
use halimede_graph::OpError;
use halimede_graph::ops::{Conv, Factors};
use halimede_tensor::{DType, Tensor};
use multiply::{Multiply, OfBf16};
use std::sync::Arc;
pub(in crate::kernels) use step::BLOCK_BYTES;
use step::WinogradStep;

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
    /// [`Form::F2`] with transforms that are rounded to bf16 and multiplied on the matrix unit.
    F2OfBf16,
    F4,
    F6,
}

impl Form {
    /// The form for the weights `[outputs, inputs, 3, 3]` and an image of `height x width` outputs, where
    /// one is faster than none. Unknown sizes are `None`.
    pub fn choose(policy: Winograd, op: &Conv, weights: &[usize], image: Option<[usize; 3]>) -> Option<Form> {
        let ones = |sizes: &[usize]| sizes.iter().all(|&size| size == 1);
        let fits = op.channels_last && op.transposed.is_none() && op.groups <= 1;
        let fits = fits && matches!(op.multiply, None | Some(Factors::Bf16));
        let [outputs, inputs, 3, 3] = *weights else { return None };
        if !fits || !ones(&op.strides) || !ones(&op.dilations) || outputs == 0 || inputs == 0 {
            return None;
        }
        match (policy, op.multiply) {
            (Winograd::WherePays, Some(_)) => pays_in_bf16(outputs, inputs, image?),
            (Winograd::F2OfBf16, Some(_)) => Some(Form::F2OfBf16),
            (Winograd::WherePays, None) => pays(outputs, inputs, image?),
            (Winograd::F2, None) => Some(Form::F2),
            (Winograd::F4, None) => Some(Form::F4),
            (Winograd::F6, None) => Some(Form::F6),
            _ => None,
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

    /// Whether a convolution of bf16 takes a form where nothing is chosen, if it may be told to. `None` where there is no choice: other units
    /// than vectors lose by it.
    pub fn choice(op: &Conv, weights: &[usize], image: [usize; 3], machine: &Machine) -> Option<bool> {
        let choose = |policy| Form::choose(policy, op, weights, Some(image)).is_some();
        let is_offered = machine.winograd == Winograd::WherePays
            && machine.matrix.is_some_and(Matrix::gains_by_winograd)
            && choose(Winograd::F2OfBf16);
        is_offered.then(|| choose(Winograd::WherePays))
    }

    /// Outputs of a tile along an axis.
    pub fn outputs(self) -> usize {
        match self {
            Form::F2 | Form::F2OfBf16 => 2,
            Form::F4 => 4,
            Form::F6 => 6,
        }
    }

    /// Points of the transform along an axis.
    pub fn points(self) -> usize {
        self.outputs() + 2
    }

    /// Tiles of `[batch, height, width]` outputs.
    pub fn tiles(self, [batch, height, width]: [usize; 3]) -> usize {
        batch * height.div_ceil(self.outputs()) * width.div_ceil(self.outputs())
    }

    /// How many times fewer multiplications there are, with what lies beyond the border.
    pub fn saved(self, image: [usize; 3]) -> f64 {
        let made = self.points() * self.points() * self.tiles(image);
        (9 * image.iter().product::<usize>()) as f64 / made.max(1) as f64
    }

    /// What packed weights are known by.
    fn layout(self) -> &'static str {
        match self {
            Form::F2OfBf16 => "F(2x2, 3x3) of bf16",
            _ => self.name(),
        }
    }

    /// The name in listings.
    pub fn name(self) -> &'static str {
        match self {
            Form::F2 | Form::F2OfBf16 => "F(2x2, 3x3)",
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

/// The form that was measured to be faster than products of bf16 on vectors, by the rule of the same document.
fn pays_in_bf16(outputs: usize, inputs: usize, image: [usize; 3]) -> Option<Form> {
    let form = Form::F2OfBf16;
    let (least, most) = (outputs.min(inputs), outputs.max(inputs));
    // Sums of fewer products do not hide the transforms.
    let is_deep = least >= 64 || (least >= 32 && most >= 64);
    // What is read for each tile's products is 1.8 times as much.
    let is_enough = form.tiles(image) >= if is_small(outputs, inputs) { 9 } else { 32 };
    // Rows are multiplied in whole steps, and by whole panels, of which pixels as they are need a half or three quarters at the end.
    let filled = inputs as f64 / inputs.next_multiple_of(matrix::step::<bf16>()) as f64;
    let panels = outputs.next_multiple_of(matrix::BLOCK);
    let needed = match outputs % matrix::BLOCK {
        1..=16 => panels - 16,
        17..=24 => panels - 8,
        _ => panels,
    };
    let saved = form.saved(image) * filled * needed as f64 / panels as f64;
    (is_deep && is_enough && saved >= if least >= 128 { 1.7 } else { 2.0 }).then_some(form)
}

/// Whether the weights are few enough to be held four times.
fn is_small(outputs: usize, inputs: usize) -> bool {
    outputs * inputs <= 256 * 256
}

/// Transformed weights of either kind.
#[derive(Clone)]
pub(super) enum Transformed {
    /// Multiplied in f32.
    Floats(Arc<Weights<f32>>),
    /// Multiplied in bf16.
    Rounded(Arc<Weights<bf16>>),
}

impl Transformed {
    /// Transforms the weights `[outputs, inputs, 3, 3]`, in f64. `None` where there is no memory for them, or no unit.
    pub fn pack(
        tensor: &Tensor,
        form: Form,
        (machine, micro): (&Machine, &Micro),
        packer: &Packer,
    ) -> Option<Transformed> {
        let pack = (machine.isa, packer);
        Some(match form {
            Form::F2OfBf16 => {
                let by = OfBf16::new(machine.matrix?, *tensor.shape().get(1)?);
                Transformed::Rounded(Arc::new(Weights::pack(tensor, form, &by, pack)?))
            }
            _ => Transformed::Floats(Arc::new(Weights::pack(tensor, form, micro, pack)?)),
        })
    }

    /// Of the weights as the model has them.
    pub fn shape(&self) -> &[usize] {
        match self {
            Transformed::Floats(weights) => &weights.shape,
            Transformed::Rounded(weights) => &weights.shape,
        }
    }

    pub fn form(&self) -> Form {
        match self {
            Transformed::Floats(weights) => weights.form,
            Transformed::Rounded(weights) => weights.form,
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Transformed::Floats(weights) => weights.elements.bytes(),
            Transformed::Rounded(weights) => weights.elements.bytes(),
        }
    }

    /// A step on data of a type.
    pub fn prepare(
        &self,
        window: Window,
        data: DType,
        ends: Ends,
        machine: Machine,
        micro: Micro,
    ) -> Result<Prepared, OpError> {
        let unsupported = || OpError::unsupported(format!("Winograd's algorithm on {data}"));
        Ok(match (self, data) {
            (Transformed::Floats(weights), DType::F32) => {
                WinogradStep::<f32, Micro>::new(window, weights.clone(), ends, machine, micro).prepared()
            }
            (Transformed::Rounded(weights), _) => {
                let by = OfBf16::new(machine.matrix.ok_or_else(unsupported)?, window.inputs);
                match data {
                    DType::F32 => WinogradStep::<f32, _>::new(window, weights.clone(), ends, machine, by).prepared(),
                    DType::Bf16 => WinogradStep::<bf16, _>::new(window, weights.clone(), ends, machine, by).prepared(),
                    _ => return Err(unsupported()),
                }
            }
            _ => return Err(unsupported()),
        })
    }
}

/// Transformed weights.
pub(super) struct Weights<N> {
    /// Of the weights as the model has them.
    shape: Vec<usize>,
    form: Form,
    /// In panels of output channels, each of which has one for every point.
    elements: PackedWeights<N>,
}

impl<N: Real> Weights<N> {
    fn pack(
        tensor: &Tensor,
        form: Form,
        by: &impl Multiply<Number = N>,
        (isa, packer): (Isa, &Packer),
    ) -> Option<Weights<N>> {
        let (bytes, shape) = (f32_bytes(tensor)?, tensor.shape());
        let [outputs, inputs, 3, 3] = *shape else { return None };
        let (points, columns) = (form.points(), by.columns());
        let factors = transform::weight_factors(form.outputs() / 2);
        let panel_len = by.depth(inputs) * columns;
        let len = outputs.div_ceil(columns) * points * points * panel_len;
        let elements = PackedWeights::new(packer, form.layout(), len, |elements| {
            let mut taps = [[0f64; LANES]; 9];
            let mut transformed = vec![vec![[0f32; LANES]; inputs]; points * points];
            for (index, panels) in elements.chunks_exact_mut((points * points * panel_len).max(1)).enumerate() {
                let first = index * columns;
                let lanes = columns.min(outputs - first);
                for input in 0..inputs {
                    for (lane, tap) in (0..lanes).flat_map(|lane| (0..9).map(move |tap| (lane, tap))) {
                        taps[tap][lane] = f64::from(number(bytes, ((first + lane) * inputs + input) * 9 + tap));
                    }
                    for (row, down) in factors.iter().enumerate() {
                        let half = [0, 1, 2].map(|tap| sum(down, [&taps[tap], &taps[3 + tap], &taps[6 + tap]]));
                        for (column, across) in factors.iter().enumerate() {
                            let weights = sum(across, [&half[0], &half[1], &half[2]]);
                            transformed[row * points + column][input] = weights.map(|weight| weight as f32);
                        }
                    }
                }
                for (panel, weights) in panels.chunks_exact_mut(panel_len.max(1)).zip(&transformed) {
                    by.pack(isa, weights, lanes, panel);
                }
            }
        })?;
        Some(Weights { shape: shape.to_vec(), form, elements })
    }

    /// Weights of a panel as the model has them, `[lanes, inputs, 9]`, out of the transformed ones: nobody holds both. What is
    /// lost in the rounding of others beside the largest of a filter is 0.
    fn original<M: Multiply<Number = N>>(&self, panel: usize, inputs: usize, by: &M) -> Vec<f32> {
        let (points, columns) = (self.form.points(), by.columns());
        let backward = transform::weight_inverse(self.form.outputs() / 2);
        let len = by.depth(inputs) * columns;
        let transformed = &self.elements[panel * points * points * len..];
        let mut taps = vec![0f32; columns * inputs * 9];
        for (index, taps) in taps.chunks_exact_mut(9).enumerate() {
            let (lane, input) = (index / inputs, index % inputs);
            let at = |row, column| by.weight(&transformed[(row * points + column) * len..][..len], input, lane);
            let found: [f64; 9] = std::array::from_fn(|tap| {
                let (down, across) = (&backward[tap / 3], &backward[tap % 3]);
                let row = |row| (0..points).map(|column| across[column] * at(row, column)).sum::<f64>();
                (0..points).map(|index| down[index] * row(index)).sum()
            });
            let largest = found.iter().fold(0f64, |largest, tap| largest.max(tap.abs()));
            for (tap, found) in taps.iter_mut().zip(found) {
                *tap = if found.abs() < M::ROUNDING * largest { 0.0 } else { found as f32 };
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
