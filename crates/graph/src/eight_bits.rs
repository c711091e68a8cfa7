//! Numbers of 8 bits for floats: which steps they count, for activations and for weights.
//!
//! Jacob et al., *Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference*,
//! 2018, section 2.1.

use halimede_tensor::{Tensor, TensorError};

/// The largest magnitude of a weight: as many numbers on either side of 0.
const WEIGHT_MAX: f32 = 127.0;

/// Added and taken off again, it leaves a float of less than 2²² rounded to the nearest whole number, halves to
/// even, in vectors of every instruction set.
const WHOLE: f32 = 12_582_912.0;

/// The values that an activation takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The smallest, 0 at most: zero has a number of its own, which padding needs.
    pub min: f32,
    /// The largest, 0 at least.
    pub max: f32,
}

impl Range {
    /// The range of nothing.
    pub const EMPTY: Range = Range { min: 0.0, max: 0.0 };

    /// The range of these values and more. Infinities and NaNs are none.
    pub fn with(self, values: &[f32]) -> Range {
        let finite = values.iter().filter(|value| value.is_finite());
        finite.fold(self, |Range { min, max }, &value| Range { min: min.min(value), max: max.max(value) })
    }

    /// A range that reaches so many times as far on either side.
    pub fn widened(self, factor: f32) -> Range {
        Range { min: (self.min * factor).max(f32::MIN), max: (self.max * factor).min(f32::MAX) }
    }

    /// The scale and zero point of U8 that cover it.
    pub(crate) fn steps(self) -> (f32, u8) {
        let Range { min, max } = self;
        let steps = f32::from(u8::MAX);
        // As differences of floats of one size, halves cannot overflow.
        let scale = if max > min { max / steps - min / steps } else { 1.0 };
        let scale = if scale.is_normal() { scale } else { f32::MIN_POSITIVE };
        (scale, (-min / scale).round_ties_even().clamp(0.0, steps) as u8)
    }
}

/// The scale of the weights of each index of `axis`, by the largest of them.
pub(crate) fn column_scales(weights: &Tensor, axis: usize) -> Result<Vec<f32>, TensorError> {
    let columns = weights.shape().get(axis).copied().unwrap_or(0);
    let mut largest = vec![0f32; columns];
    let raise = |largest: &mut f32, value: f32| *largest = largest.max(value.abs());
    each(&weights.elements::<f32>()?, weights.shape(), axis, |values, column| match column {
        Some(column) => values.iter().for_each(|&value| raise(&mut largest[column], value)),
        None => largest.iter_mut().zip(values).for_each(|(largest, &value)| raise(largest, value)),
    });
    let scale = |max: &f32| if (max / WEIGHT_MAX).is_normal() { max / WEIGHT_MAX } else { 1.0 };
    Ok(largest.iter().map(scale).collect())
}

/// Weights as I8, counted in the scales of [`column_scales`].
pub(crate) fn in_steps(weights: &Tensor, axis: usize, scales: &[f32]) -> Result<Tensor, TensorError> {
    let mut whole: Vec<i8> = Vec::with_capacity(weights.len());
    let round = |value: f32, scale: f32| ((value / scale + WHOLE) - WHOLE).clamp(-WEIGHT_MAX, WEIGHT_MAX) as i8;
    each(&weights.elements::<f32>()?, weights.shape(), axis, |values, column| match column {
        Some(column) => whole.extend(values.iter().map(|&value| round(value, scales[column]))),
        None => whole.extend(values.iter().zip(scales).map(|(&value, &scale)| round(value, scale))),
    });
    Tensor::from_slice(weights.shape(), &whole)
}

/// Visits the elements in order: those of one index of `axis`, or where that is the last one each of them.
fn each(values: &[f32], shape: &[usize], axis: usize, mut visit: impl FnMut(&[f32], Option<usize>)) {
    let Some(&columns) = shape.get(axis) else { return };
    let inner: usize = shape[axis + 1..].iter().product();
    for row in values.chunks_exact((columns * inner).max(1)) {
        match inner {
            1 => visit(row, None),
            _ => row.chunks_exact(inner).enumerate().for_each(|(column, values)| visit(values, Some(column))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_zero_and_what_is_finite() {
        let range = Range::EMPTY.with(&[1.0, 3.0, f32::INFINITY, f32::NAN]);
        assert_eq!(range, Range { min: 0.0, max: 3.0 });
        assert_eq!(range.with(&[-2.0, 1.0]), Range { min: -2.0, max: 3.0 });
        assert_eq!(Range { min: -2.0, max: f32::MAX }.widened(2.0), Range { min: -4.0, max: f32::MAX });
    }

    #[test]
    fn steps_cover_a_range() {
        assert_eq!(Range { min: -1.0, max: 254.0 }.steps(), (1.0, 1));
        assert_eq!(Range { min: 0.0, max: 0.0 }.steps(), (1.0, 0));
        let (scale, zero) = Range { min: f32::MIN, max: f32::MAX }.steps();
        assert!(scale.is_finite() && (127..=128).contains(&zero));
        let (scale, _) = Range { min: 0.0, max: 1e-40 }.steps();
        assert!(scale.is_normal());
    }

    #[test]
    fn weights_count_steps_of_their_column() {
        let weights = Tensor::from_slice(&[2, 2], &[127f32, -12.7, 63.6, 0.05]).unwrap();
        for (axis, scales, whole) in
            [(1, [1.0, 12.7f32 / 127.0], [127i8, -127, 64, 0]), (0, [1.0, 63.6f32 / 127.0], [127, -13, 127, 0])]
        {
            assert_eq!(column_scales(&weights, axis).unwrap(), scales);
            let expected = Tensor::from_slice(&[2, 2], &whole).unwrap();
            assert_eq!(in_steps(&weights, axis, &scales).unwrap(), expected, "axis {axis}");
        }
        let zeros = Tensor::zeros(halimede_tensor::DType::F32, &[3, 1]).unwrap();
        assert_eq!(column_scales(&zeros, 0).unwrap(), [1.0; 3]);
    }
}
