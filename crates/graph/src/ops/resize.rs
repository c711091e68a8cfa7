use super::inputs::{check_axis, integers, optional, required, shape as shape_of, typed};
use super::{Facts, TensorOp, Tensors};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{Shape, Tensor};
use smallvec::{SmallVec, smallvec};

/// How values between elements are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ResizeMode {
    /// The nearest element.
    Nearest(NearestRounding),
    /// Linear along each axis.
    Linear,
    /// Cubic along each axis.
    Cubic {
        /// ONNX `cubic_coeff_a`.
        coefficient: f32,
    },
}

/// Which element is nearest.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "named after ONNX's nearest_mode")]
pub enum NearestRounding {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
}

/// How an output coordinate becomes an input coordinate.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "named after ONNX's coordinate_transformation_mode")]
pub enum CoordinateTransform {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
    TfHalfPixelForNn,
    TfCropAndResize,
}

/// Resampling (ONNX Resize, Upsample). Inputs: x, optionally roi, optionally scales (f32), optionally
/// sizes (i64): exactly one of scales and sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Resize {
    /// How values are made.
    pub mode: ResizeMode,
    /// How coordinates are made.
    pub transform: CoordinateTransform,
    /// Low-pass when shrinking.
    pub antialias: bool,
    /// Weights outside the input are dropped.
    pub exclude_outside: bool,
    /// Value outside the input for `TfCropAndResize`.
    pub extrapolation_value: f32,
    /// Axes that roi, scales and sizes speak of; all where empty.
    pub axes: SmallVec<[usize; 4]>,
    /// ONNX `keep_aspect_ratio_policy`: stretch (0), not_larger (1), not_smaller (2).
    pub keep_aspect_ratio: u8,
}

impl Resize {
    /// Resampling without any of the rarer attributes.
    pub fn new(mode: ResizeMode, transform: CoordinateTransform) -> Resize {
        Resize {
            mode,
            transform,
            antialias: false,
            exclude_outside: false,
            extrapolation_value: 0.0,
            axes: SmallVec::new(),
            keep_aspect_ratio: 0,
        }
    }
}

impl TensorOp for Resize {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let x = required(inputs, 0)?;
        let Some(shape) = &x.shape else { return Ok(smallvec![typed(x.dtype, None)]) };
        let axes = self.axes(shape.len())?;
        let mut out = shape.clone();
        let scales = optional(inputs, 2).filter(|scales| scales.count() != Some(0));
        match (scales, optional(inputs, 3)) {
            (Some(scales), _) => {
                let factors = scales.constant.as_ref().map(Tensor::to_f32s).transpose()?;
                for (index, &axis) in axes.iter().enumerate() {
                    let factor = factors.as_ref().and_then(|factors| factors.get(index));
                    out[axis] = factor.map_or_else(Dim::unknown, |&factor| scaled(&shape[axis], factor));
                }
            }
            (None, Some(sizes)) if self.keep_aspect_ratio == 0 => {
                let sizes = sizes.dims();
                for (index, &axis) in axes.iter().enumerate() {
                    out[axis] = sizes.as_ref().and_then(|s| s.get(index).cloned()).unwrap_or_else(Dim::unknown);
                }
            }
            (None, Some(sizes)) => {
                let known = sizes.ints().zip(x.known_shape());
                let resolved = known.map(|(sizes, x)| self.sizes(&x, &axes, &sizes)).transpose()?;
                for (index, &axis) in axes.iter().enumerate() {
                    out[axis] = resolved.as_ref().map_or_else(Dim::unknown, |axes| Dim::from(axes[index].0));
                }
            }
            (None, None) => return Err(OpError::invalid("a Resize has neither scales nor sizes")),
        }
        Ok(smallvec![typed(x.dtype, Some(out))])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let x = required(inputs, 0)?;
        let scales = optional(inputs, 2).filter(|scales| !scales.is_empty()).map(Tensor::to_f32s).transpose()?;
        let sizes = optional(inputs, 3).map(integers).transpose()?;
        let roi = optional(inputs, 1).filter(|roi| !roi.is_empty()).map(Tensor::to_f64s).transpose()?;
        let (shape, samples) = self.samples(x.shape(), roi.as_deref(), scales.as_deref(), sizes.as_deref())?;
        if shape.contains(&0) {
            return Ok(smallvec![Tensor::zeros(x.dtype(), &shape)?]);
        }
        let values = x.to_f64s()?;
        Ok(smallvec![Tensor::from_f64s(x.dtype(), &shape, &self.interpolate(x.shape(), &shape, values, &samples))?])
    }
}

/// One axis: its size, the factor it is resized by, and the part that is cropped, from 0 to 1.
struct Line {
    size: usize,
    scale: f64,
    part: Option<(f64, f64)>,
}

/// Which elements along an axis make a new one, and how much of each; none outside a cropped image.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Places along the axis with their weights.
    pub weights: Vec<(usize, f64)>,
    /// Whether it lies outside a cropped image.
    pub outside: bool,
}

/// Largest size to which an axis is resampled: two gigabytes of samples.
const SAMPLES_MAX: usize = 1 << 24;

impl Sample {
    fn exactly(at: usize) -> Sample {
        Sample { weights: vec![(at, 1.0)], outside: false }
    }
}

impl Resize {
    /// The output's shape, and along each axis what each new element is made of, nothing where the output has
    /// no elements. A roi, one of scales and sizes as in the operator's inputs.
    pub fn samples(
        &self,
        x: &[usize],
        roi: Option<&[f64]>,
        scales: Option<&[f32]>,
        sizes: Option<&[i64]>,
    ) -> Result<(Shape, Vec<Vec<Sample>>), OpError> {
        let axes = self.axes(x.len())?;
        let targets: Vec<(usize, f64)> = match (scales, sizes) {
            (Some(scales), _) => {
                if scales.len() != axes.len() || scales.iter().any(|&s| !(s > 0.0 && s.is_finite())) {
                    return Err(OpError::invalid(format!("scales {scales:?} for {} axes", axes.len())));
                }
                let size = |axis: usize, scale: f32| (x[axis] as f32 * scale) as usize;
                axes.iter().zip(scales).map(|(&axis, &scale)| (size(axis, scale), f64::from(scale))).collect()
            }
            (None, Some(sizes)) => self.sizes(x, &axes, sizes)?,
            (None, None) => return Err(OpError::invalid("a Resize has neither scales nor sizes")),
        };
        let crop = self.transform == CoordinateTransform::TfCropAndResize;
        let roi = roi.filter(|_| crop);
        if crop && roi.is_none_or(|roi| roi.len() != 2 * axes.len()) {
            return Err(OpError::invalid("tf_crop_and_resize needs a roi of two numbers per axis"));
        }
        let lines = x.iter().enumerate().map(|(axis, &size)| {
            let index = axes.iter().position(|&other| other == axis);
            let (target, scale) = index.map_or((size, 1.0), |index| targets[index]);
            let part = index.and_then(|i| roi.map(|roi| (roi[i], roi[axes.len() + i])));
            (Line { size, scale, part }, target)
        });
        let lines: Vec<(Line, usize)> = lines.collect();
        if lines.iter().any(|(line, target)| line.size == 0 && *target > 0) {
            return Err(OpError::invalid("an axis of size 0 cannot be made larger"));
        }
        let shape: Shape = lines.iter().map(|&(_, target)| target).collect();
        // One axis may be endless where another has no elements.
        if shape.contains(&0) {
            return Ok((shape, Vec::new()));
        }
        if let Some(target) = shape.iter().find(|&&target| target > SAMPLES_MAX) {
            return Err(OpError::invalid(format!("an axis of {target} elements; at most {SAMPLES_MAX} are resampled")));
        }
        let along = |(line, target): &(Line, usize)| {
            let whole = line.part.is_none() && line.size == *target && line.scale == 1.0;
            (0..*target).map(|at| if whole { Sample::exactly(at) } else { self.sample(line, at) }).collect()
        };
        let samples = lines.iter().map(along).collect();
        Ok((shape, samples))
    }

    fn axes(&self, rank: usize) -> Result<Vec<usize>, OpError> {
        if self.axes.is_empty() {
            return Ok((0..rank).collect());
        }
        self.axes.iter().map(|&axis| check_axis(axis, rank).map(|()| axis)).collect()
    }

    /// Per axis the size and the factor that `sizes` ask for.
    fn sizes(&self, x: &[usize], axes: &[usize], sizes: &[i64]) -> Result<Vec<(usize, f64)>, OpError> {
        if sizes.len() != axes.len() {
            return Err(OpError::invalid(format!("sizes {sizes:?} for {} axes", axes.len())));
        }
        let sizes = shape_of(sizes)?;
        let ratio = |(&axis, &size): (&usize, &usize)| size as f64 / x[axis].max(1) as f64;
        let ratios: Vec<f64> = axes.iter().zip(&sizes).map(ratio).collect();
        let common = match self.keep_aspect_ratio {
            0 => return Ok(sizes.into_iter().zip(ratios).collect()),
            1 => ratios.iter().copied().fold(f64::INFINITY, f64::min),
            _ => ratios.iter().copied().fold(0.0, f64::max),
        };
        Ok(axes.iter().map(|&axis| ((common * x[axis] as f64 + 0.5).floor() as usize, common)).collect())
    }

    /// Where in the old axis the new element `at` lies.
    fn coordinate(&self, line: &Line, at: usize) -> f64 {
        let (at, size, scale) = (at as f64, line.size as f64, line.scale);
        let resized = scale * size;
        match self.transform {
            CoordinateTransform::HalfPixel => (at + 0.5) / scale - 0.5,
            CoordinateTransform::HalfPixelSymmetric => {
                // Sizes that were asked for come out of their ratio as whole numbers, but for rounding.
                let nearest = resized.round();
                let is_whole = (resized - nearest).abs() <= 1e-9 * nearest;
                let adjustment = if is_whole { nearest } else { resized.floor() } / resized;
                size / 2.0 * (1.0 - adjustment) + (at + 0.5) / scale - 0.5
            }
            CoordinateTransform::PytorchHalfPixel if resized <= 1.0 => 0.0,
            CoordinateTransform::PytorchHalfPixel => (at + 0.5) / scale - 0.5,
            CoordinateTransform::AlignCorners if resized == 1.0 => 0.0,
            CoordinateTransform::AlignCorners => at * (size - 1.0) / (resized - 1.0),
            CoordinateTransform::Asymmetric => at / scale,
            CoordinateTransform::TfHalfPixelForNn => (at + 0.5) / scale,
            CoordinateTransform::TfCropAndResize => {
                let (start, end) = line.part.unwrap_or((0.0, 1.0));
                match resized > 1.0 {
                    true => start * (size - 1.0) + at * (end - start) * (size - 1.0) / (resized - 1.0),
                    false => 0.5 * (start + end) * (size - 1.0),
                }
            }
        }
    }

    fn sample(&self, line: &Line, at: usize) -> Sample {
        let x = self.coordinate(line, at);
        let last = line.size as i64 - 1;
        if line.part.is_some() && !(0.0..=last as f64).contains(&x) {
            return Sample { weights: Vec::new(), outside: true };
        }
        let clamp = |index: i64| index.clamp(0, last.max(0)) as usize;
        let kernel: &dyn Fn(f64) -> f64 = match self.mode {
            ResizeMode::Nearest(rounding) => {
                let nearest = match rounding {
                    NearestRounding::RoundPreferFloor => (x - 0.5).ceil(),
                    NearestRounding::RoundPreferCeil => (x + 0.5).floor(),
                    NearestRounding::Floor => x.floor(),
                    NearestRounding::Ceil => x.ceil(),
                };
                return Sample::exactly(clamp(nearest as i64));
            }
            ResizeMode::Linear => &|t: f64| (1.0 - t.abs()).max(0.0),
            ResizeMode::Cubic { coefficient } => &move |t| cubic(t, f64::from(coefficient)),
        };
        let reach = if self.mode == ResizeMode::Linear { 1.0 } else { 2.0 };
        // Shrinking with a low-pass widens the kernel over as many elements as fall into one.
        let squeeze = if self.antialias { line.scale.min(1.0) } else { 1.0 };
        let (first, end) = ((x - reach / squeeze).floor() as i64, (x + reach / squeeze).ceil() as i64);
        let taps = (first..=end).map(|tap| (tap, kernel((tap as f64 - x) * squeeze)));
        let mut weights: Vec<(usize, f64)> = taps
            .filter(|&(tap, weight)| weight != 0.0 && (!self.exclude_outside || (0..=last).contains(&tap)))
            .map(|(tap, weight)| (clamp(tap), weight))
            .collect();
        if self.antialias || self.exclude_outside {
            let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
            weights.iter_mut().for_each(|(_, weight)| *weight /= sum);
        }
        Sample { weights, outside: false }
    }

    /// Axes in the order in which they are resampled: those that shrink first, so that nothing between is larger
    /// than both input and output.
    pub fn order(from: &[usize], to: &[usize]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..from.len()).collect();
        order.sort_by_key(|&axis| to[axis] > from[axis]);
        order
    }

    /// One axis after the other.
    fn interpolate(&self, from: &[usize], to: &[usize], mut values: Vec<f64>, samples: &[Vec<Sample>]) -> Vec<f64> {
        let mut shape = from.to_vec();
        for axis in Resize::order(from, to) {
            let samples = &samples[axis];
            let inner: usize = shape[axis + 1..].iter().product();
            let outer: usize = shape[..axis].iter().product();
            let size = shape[axis];
            let mut resized = Vec::with_capacity(outer * samples.len() * inner);
            for o in 0..outer {
                for sample in samples {
                    for i in 0..inner {
                        let term = |&(at, weight): &(usize, f64)| values[(o * size + at) * inner + i] * weight;
                        resized.push(sample.weights.iter().map(term).sum::<f64>());
                    }
                }
            }
            values = resized;
            shape[axis] = samples.len();
        }
        if samples.iter().flatten().any(|sample| sample.outside) {
            let strides = halimede_tensor::strides(to);
            for (flat, value) in values.iter_mut().enumerate() {
                let outside = |axis: usize| samples[axis][flat / strides[axis] % to[axis]].outside;
                if (0..to.len()).any(outside) {
                    *value = self.extrapolation_value.into();
                }
            }
        }
        values
    }
}

/// The cubic convolution kernel.
fn cubic(t: f64, a: f64) -> f64 {
    match t.abs() {
        t if t <= 1.0 => ((a + 2.0) * t - (a + 3.0)) * t * t + 1.0,
        t if t < 2.0 => ((a * t - 5.0 * a) * t + 8.0 * a) * t - 4.0 * a,
        _ => 0.0,
    }
}

/// `floor(size · factor)`.
fn scaled(size: &Dim, factor: f32) -> Dim {
    let whole = |v: f32| v >= 1.0 && v.fract() == 0.0 && v < 1e6;
    match size.size() {
        Some(size) => Dim::from((size as f32 * factor) as usize),
        None if whole(factor) => size.clone() * Dim::from(factor as i64),
        None if whole(1.0 / factor) => size.floor_div(&Dim::from((1.0 / factor) as i64)),
        None => Dim::unknown(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use halimede_tensor::DType;

    fn resize(mode: ResizeMode, transform: CoordinateTransform) -> Resize {
        Resize {
            mode,
            transform,
            antialias: false,
            exclude_outside: false,
            extrapolation_value: 10.0,
            axes: smallvec![],
            keep_aspect_ratio: 0,
        }
    }

    fn run(op: &Resize, x: &[f32], roi: Option<&[f32]>, scale: Option<f32>, size: Option<i64>) -> Vec<f32> {
        let x = Tensor::from_slice(&[x.len()], x).unwrap();
        let roi = roi.map(|roi| Tensor::from_slice(&[2], roi).unwrap());
        let scale = scale.map(|scale| Tensor::from_slice(&[1], &[scale]).unwrap());
        let size = size.map(|size| Tensor::from_slice(&[1], &[size]).unwrap());
        let inputs = [Some(&x), roi.as_ref(), scale.as_ref(), size.as_ref()];
        let out = op.evaluate(&inputs).unwrap().remove(0);
        let facts: Vec<Option<Fact>> = inputs.iter().map(|t| t.map(|t| Fact::constant(t.clone()))).collect();
        let facts: Vec<Option<&Fact>> = facts.iter().map(Option::as_ref).collect();
        assert_eq!(op.infer(&facts).unwrap()[0].known_shape().unwrap()[..], *out.shape());
        out.slice::<f32>().unwrap().to_vec()
    }

    #[test]
    fn nearest() {
        let op = |rounding| resize(ResizeMode::Nearest(rounding), CoordinateTransform::HalfPixel);
        assert_eq!(
            run(&op(NearestRounding::RoundPreferFloor), &[1.0, 2.0], None, Some(2.0), None),
            [1.0, 1.0, 2.0, 2.0]
        );
        assert_eq!(run(&op(NearestRounding::Ceil), &[1.0, 2.0], None, None, Some(4)), [1.0, 2.0, 2.0, 2.0]);
    }

    #[test]
    fn linear() {
        let half = resize(ResizeMode::Linear, CoordinateTransform::HalfPixel);
        assert_eq!(run(&half, &[1.0, 3.0], None, Some(2.0), None), [1.0, 1.5, 2.5, 3.0]);
        let corners = resize(ResizeMode::Linear, CoordinateTransform::AlignCorners);
        assert_eq!(run(&corners, &[1.0, 3.0], None, None, Some(3)), [1.0, 2.0, 3.0]);
        let smooth = Resize { antialias: true, ..half };
        assert_eq!(run(&smooth, &[0.0, 0.0, 8.0, 8.0], None, Some(0.5), None), [1.0, 7.0]);
    }

    #[test]
    fn sizes_are_whole_numbers() {
        let op = resize(ResizeMode::Linear, CoordinateTransform::HalfPixelSymmetric);
        let x: Vec<f32> = (0..7).map(|number| number as f32).collect();
        // 61 / 7 · 7 is a little less than 61. By the definition: 4.5 · 7 / 61 - 0.5.
        let out = run(&op, &x, None, None, Some(61));
        assert!((out[4] - 0.016_393_4).abs() < 1e-5, "{out:?}");
    }

    #[test]
    fn cubic_keeps_constants() {
        let op = resize(ResizeMode::Cubic { coefficient: -0.75 }, CoordinateTransform::HalfPixel);
        for exclude_outside in [false, true] {
            for scale in [0.5, 2.0] {
                let op = Resize { exclude_outside, antialias: scale < 1.0, ..op.clone() };
                let out = run(&op, &[2.0; 6], None, Some(scale), None);
                assert!(out.iter().all(|v| (v - 2.0).abs() < 1e-6), "{out:?}");
            }
        }
    }

    #[test]
    fn a_crop_reaches_outside() {
        let op = resize(ResizeMode::Linear, CoordinateTransform::TfCropAndResize);
        let out = run(&op, &[1.0, 2.0, 3.0], Some(&[0.5, 1.5]), None, Some(3));
        assert_eq!(out, [2.0, 3.0, 10.0]);
    }

    #[test]
    fn aspect_ratios() {
        let x = Tensor::zeros(DType::F32, &[2, 4]).unwrap();
        let sizes = Tensor::from_slice(&[2], &[4i64, 4]).unwrap();
        let shape = |keep_aspect_ratio| {
            let op = Resize { keep_aspect_ratio, ..resize(ResizeMode::Linear, CoordinateTransform::HalfPixel) };
            op.evaluate(&[Some(&x), None, None, Some(&sizes)]).unwrap()[0].shape().to_vec()
        };
        assert_eq!([shape(0), shape(1), shape(2)], [[4, 4], [2, 4], [4, 8]]);
    }

    #[test]
    fn endless_axes() {
        let op = resize(ResizeMode::Linear, CoordinateTransform::HalfPixel);
        let scaled = |x: &[usize], scales: [f32; 2]| {
            let (x, scales) = (Tensor::zeros(DType::F32, x).unwrap(), Tensor::from_slice(&[2], &scales).unwrap());
            op.evaluate(&[Some(&x), None, Some(&scales), None]).map(|out| out[0].shape().to_vec())
        };
        assert_eq!(scaled(&[1, 1], [1e30, 0.5]).unwrap(), [usize::MAX, 0], "no elements");
        assert!(scaled(&[1, 1], [1e30, 1.0]).is_err());
        // Resampled in the order of the axes, it would take 2^32 elements in between.
        assert_eq!(scaled(&[1, 1 << 16], [65536.0, 1.0 / 65536.0]).unwrap(), [1 << 16, 1]);
    }

    #[test]
    fn symbols() {
        let n = Dim::symbol("n");
        assert_eq!(scaled(&n, 2.0), n.clone() * Dim::from(2));
        assert_eq!(scaled(&n, 0.5), n.floor_div(&Dim::from(2)));
        assert!(scaled(&n, 1.5).is_unknown());
    }
}
