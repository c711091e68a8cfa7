use super::channels::{channels_first, channels_last, to_channels_first, to_channels_last};
use super::inputs::{optional, required, typed};
use super::numeric::{Numbers, Ring, after_epilogue, apply_epilogue, product_type, read_left, read_right};
use super::window::{Axis, explicit, extent, per_axis, windows};
use super::{Factors, Facts, Map, TensorOp, Tensors, whole_weights};
use crate::{Dim, Dims, Fact, OpError};
use halimede_tensor::{Shape, Tensor};
use smallvec::{SmallVec, smallvec};
use std::borrow::Cow;

/// How the border of a convolution or pooling window is made.
#[derive(Debug, Clone, PartialEq)]
pub enum Padding {
    /// Elements added before each spatial axis, then after each, in ONNX's order.
    Explicit(SmallVec<[i64; 4]>),
    /// As many as give `ceil(size / stride)` outputs, the odd one after.
    SameUpper,
    /// As many as give `ceil(size / stride)` outputs, the odd one before.
    SameLower,
}

/// Convolution over any number of spatial axes (ONNX Conv, ConvTranspose).
///
/// Inputs: `x [N, C, ...]`, weights `[M, C/groups, ...]` (transposed: `[C, M/groups, ...]`), optionally
/// a bias `[M]` (for [`Factors::Integers`]: the data's zero point), then what the epilogue reads. Output:
/// `[N, M, ...]`. With `channels_last` data and output are `[N, ..., C]` and `[N, ..., M]`; weights lie as ever.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv {
    /// Step of the window per spatial axis.
    pub strides: SmallVec<[usize; 2]>,
    /// Distance between taps per spatial axis.
    pub dilations: SmallVec<[usize; 2]>,
    /// Border.
    pub padding: Padding,
    /// Groups of channels that do not see each other.
    pub groups: usize,
    /// For a transposed convolution.
    pub transposed: Option<Transposed>,
    /// Data and output have their channels last.
    pub channels_last: bool,
    /// What data and weights are multiplied as; `None`: as they are, weights, bias and result then being f32
    /// where the data is bf16, unless all are.
    pub multiply: Option<Factors>,
    /// Pointwise work on each result; its input 0 is the result, the others broadcast to it.
    pub epilogue: Option<Map>,
}

/// What only a transposed convolution has.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Transposed {
    /// Added to one side of the output per spatial axis; zeros where empty.
    pub output_padding: SmallVec<[usize; 2]>,
    /// The spatial output shape, which then decides the padding; empty where not given.
    pub output_shape: SmallVec<[usize; 2]>,
}

impl TensorOp for Conv {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let (x, w) = (required(inputs, 0)?, required(inputs, 1)?);
        let shape = match (&x.shape, &w.shape) {
            (Some(x), Some(w)) if self.channels_last => {
                Some(channels_last(&self.shape(&channels_first::<_, Dims>(x), w)?))
            }
            (Some(x), Some(w)) => Some(self.shape(x, w)?),
            _ => None,
        };
        // In the place of a bias, products of integers have a zero point.
        let bias = optional(inputs, 2).filter(|_| self.multiply != Some(Factors::Integers));
        let channels =
            shape.as_ref().and_then(|shape: &Dims| shape[if self.channels_last { shape.len() - 1 } else { 1 }].size());
        if let (Some(biases), Some(channels)) = (bias.and_then(Fact::count), channels)
            && biases != channels
        {
            return Err(OpError::invalid(format!("{biases} biases for {channels} channels")));
        }
        let result = typed(product_type(self.multiply, x.dtype, w.dtype)?, shape);
        Ok(smallvec![after_epilogue(&self.epilogue, result, inputs.get(3..).unwrap_or_default())?])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let (x, w) = (required(inputs, 0)?, required(inputs, 1)?);
        if self.channels_last {
            return self.evaluate_channels_last(x, inputs);
        }
        let dims = |tensor: &Tensor| tensor.shape().iter().map(|&d| Dim::from(d)).collect::<Dims>();
        let shape: Option<Shape> = self.shape(&dims(x), &dims(w))?.iter().map(Dim::size).collect();
        let shape = shape.ok_or_else(|| OpError::invalid("a convolution of negative size"))?;
        let (bias, zero_point) = match self.multiply {
            Some(Factors::Integers) => (None, optional(inputs, 2)),
            _ => (optional(inputs, 2), None),
        };
        if let Some(bias) = bias.filter(|bias| bias.len() != shape[1]) {
            return Err(OpError::invalid(format!("{} biases for {} channels", bias.len(), shape[1])));
        }
        let taps = self.taps(x.shape(), w.shape(), &shape)?;
        let sums = Sums { x: x.shape(), w: w.shape(), out: &shape, groups: self.groups, taps: &taps };
        let transposed = self.transposed.is_some();
        let dtype = product_type(self.multiply, Some(x.dtype()), Some(w.dtype()))?.unwrap_or(x.dtype());
        let w = match self.multiply {
            Some(Factors::Integers) => whole_weights(w, 0)?,
            _ => Cow::Borrowed(w),
        };
        let (x, w) = (read_left(self.multiply, x, zero_point)?, read_right(self.multiply, &w)?);
        let numbers = match (x, w, bias.map(Numbers::read).transpose()?) {
            (Numbers::Float(x), Numbers::Float(w), None) => Numbers::Float(sums.run(&x, &w, None, transposed)),
            (Numbers::Float(x), Numbers::Float(w), Some(Numbers::Float(b))) => {
                Numbers::Float(sums.run(&x, &w, Some(&b), transposed))
            }
            (Numbers::Int(x), Numbers::Int(w), None) => Numbers::Int(sums.run(&x, &w, None, transposed)),
            (Numbers::Int(x), Numbers::Int(w), Some(Numbers::Int(b))) => {
                Numbers::Int(sums.run(&x, &w, Some(&b), transposed))
            }
            _ => return Err(OpError::invalid("data, weights and bias of a convolution differ in datatype")),
        };
        let result = numbers.write(dtype, &shape)?;
        Ok(smallvec![apply_epilogue(&self.epilogue, result, inputs.get(3..).unwrap_or_default())?])
    }
}

/// An element of the data, a tap of the weights and an element of the result that meet, as positions
/// within one channel.
struct Tap {
    x: usize,
    w: usize,
    out: usize,
}

struct Sums<'a> {
    x: &'a [usize],
    w: &'a [usize],
    out: &'a [usize],
    groups: usize,
    taps: &'a [Tap],
}

impl Sums<'_> {
    fn run<T: Ring>(&self, x: &[T], w: &[T], bias: Option<&[T]>, transposed: bool) -> Vec<T> {
        let size = |shape: &[usize]| shape[2..].iter().product::<usize>();
        let (x_size, w_size, out_size) = (size(self.x), size(self.w), size(self.out));
        let (x_channels, out_channels) = (self.x[1] / self.groups, self.out[1] / self.groups);
        let mut out = vec![T::ZERO; self.out.iter().product()];
        for n in 0..self.out[0] {
            for channel in 0..self.out[1] {
                let (group, within) = (channel / out_channels, channel % out_channels);
                let out = &mut out[(n * self.out[1] + channel) * out_size..][..out_size];
                if let Some(bias) = bias {
                    out.fill(bias[channel]);
                }
                for c in 0..x_channels {
                    let x_channel = group * x_channels + c;
                    // Weights lie by output channel, of a transposed convolution by input channel.
                    let plane = match transposed {
                        false => channel * self.w[1] + c,
                        true => x_channel * self.w[1] + within,
                    };
                    let (x, w) = (&x[(n * self.x[1] + x_channel) * x_size..], &w[plane * w_size..]);
                    for tap in self.taps {
                        out[tap.out] = out[tap.out].plus_product(x[tap.x], w[tap.w]);
                    }
                }
            }
        }
        out
    }
}

/// The widest of narrow groups.
const NARROW_MOST: usize = 16;

impl Conv {
    /// How many channels a group has, where there are several of as many inputs as outputs each and they are few: 1 (a depthwise convolution),
    /// 2, 4, 8 or 16. Products of matrices would be mostly padding; as vectors of neighbouring channels nothing is.
    pub fn narrow_groups(&self, weights: &[usize]) -> Option<usize> {
        // Weights of a transposed one begin with its inputs, which are as many.
        let &[channels, width, ..] = weights else { return None };
        let fits = self.groups > 1 && channels == width * self.groups;
        (fits && width.is_power_of_two() && width <= NARROW_MOST).then_some(width)
    }

    /// The definition for channels last: moved to where they usually are and back.
    fn evaluate_channels_last(&self, x: &Tensor, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let plain = Conv { channels_last: false, epilogue: None, ..self.clone() };
        let x = to_channels_first(x)?;
        let result = plain.evaluate(&[Some(&x), optional(inputs, 1), optional(inputs, 2)])?;
        let result = to_channels_last(&result[0])?;
        Ok(smallvec![apply_epilogue(&self.epilogue, result, inputs.get(3..).unwrap_or_default())?])
    }

    fn shape(&self, x: &[Dim], w: &[Dim]) -> Result<Dims, OpError> {
        if x.len() < 2 || w.len() != x.len() || self.groups == 0 {
            let groups = self.groups;
            return Err(OpError::invalid(format!("a convolution of data {x:?} with weights {w:?} in {groups} groups")));
        }
        let (axes, groups) = (x.len() - 2, Dim::from(self.groups));
        let channels = if self.transposed.is_some() { w[0].clone() } else { w[1].clone() * groups.clone() };
        let outputs = if self.transposed.is_some() { w[1].clone() * groups } else { w[0].clone() };
        let divides = |dim: &Dim| dim.known().is_none_or(|count| count % self.groups as i64 == 0);
        let same = match (channels.known(), x[1].known()) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        };
        if !same || !divides(&channels) || !divides(&outputs) {
            let groups = self.groups;
            return Err(OpError::invalid(format!("weights of shape {w:?} in {groups} groups for data of shape {x:?}")));
        }
        let mut shape: Dims = smallvec![x[0].clone(), outputs];
        for axis in 0..axes {
            let (size, kernel) = (&x[2 + axis], w[2 + axis].size());
            shape.push(match (kernel, &self.transposed) {
                (None, _) => Dim::unknown(),
                (Some(kernel), None) => {
                    let (stride, dilation) = (per_axis(&self.strides, axis), per_axis(&self.dilations, axis));
                    windows(size, kernel, stride, dilation, &self.padding, (axis, axes), false)?
                }
                (Some(kernel), Some(transposed)) => self.transposed_axis(transposed, size, kernel, (axis, axes))?.0,
            });
        }
        Ok(shape)
    }

    /// The windows along a spatial axis, of so many, that has this size, of a kernel of this size; for convolutions that
    /// are not transposed.
    pub fn axis(&self, size: usize, kernel: usize, (axis, axes): (usize, usize)) -> Result<Axis, OpError> {
        let (stride, dilation) = (per_axis(&self.strides, axis), per_axis(&self.dilations, axis));
        Axis::new(size, kernel, stride, dilation, &self.padding, (axis, axes), false)
    }

    /// The size of an axis of a transposed convolution, and the border before it.
    fn transposed_axis(
        &self,
        transposed: &Transposed,
        size: &Dim,
        kernel: usize,
        (axis, axes): (usize, usize),
    ) -> Result<(Dim, Dim), OpError> {
        let (stride, dilation) = (per_axis(&self.strides, axis), per_axis(&self.dilations, axis));
        let extra = transposed.output_padding.get(axis).copied().unwrap_or(0);
        let reach = Dim::from(extent(kernel, stride, dilation)?) + Dim::from(extra) - Dim::from(stride);
        let full = size.clone() * Dim::from(stride) + reach;
        let wanted = match (&self.padding, transposed.output_shape.get(axis)) {
            (_, Some(&wanted)) => Dim::from(wanted),
            (Padding::Explicit(pads), None) => {
                let (before, after) = explicit(pads, axis, axes)?;
                let size = full - Dim::from(before) - Dim::from(after);
                if size.known().is_some_and(|size| size < 0) {
                    return Err(OpError::invalid(format!("pads {pads:?} remove the whole of an axis")));
                }
                return Ok((size, Dim::from(before)));
            }
            (_, None) => size.clone() * Dim::from(stride),
        };
        let total = (full - wanted.clone()).maximum(&Dim::from(0));
        let half = total.floor_div(&Dim::from(2));
        let before = if self.padding == Padding::SameUpper { half } else { total - half };
        Ok((wanted, before))
    }

    /// Everything that meets within a channel.
    fn taps(&self, x: &[usize], w: &[usize], out: &[usize]) -> Result<Vec<Tap>, OpError> {
        let axes = x.len() - 2;
        // Per axis (data, tap, result), then the product of the axes.
        let mut taps = vec![Tap { x: 0, w: 0, out: 0 }];
        for axis in 0..axes {
            let (size, kernel, results) = (x[2 + axis], w[2 + axis], out[2 + axis]);
            let (stride, dilation) = (per_axis(&self.strides, axis), per_axis(&self.dilations, axis));
            let mut meet = Vec::new();
            if let Some(transposed) = &self.transposed {
                let before = self.transposed_axis(transposed, &Dim::from(size), kernel, (axis, axes))?.1;
                let before = before.known().unwrap_or(0);
                for (at, tap) in (0..size).flat_map(|at| (0..kernel).map(move |tap| (at, tap))) {
                    let result = (at * stride + tap * dilation) as i64 - before;
                    if (0..results as i64).contains(&result) {
                        meet.push((at, tap, result as usize));
                    }
                }
            } else {
                let windows = self.axis(size, kernel, (axis, axes))?;
                for (window, tap) in (0..results).flat_map(|window| (0..kernel).map(move |tap| (window, tap))) {
                    if let Some(at) = windows.position(window, tap) {
                        meet.push((at, tap, window));
                    }
                }
            }
            let join = |outer: &Tap, &(at, tap, result): &(usize, usize, usize)| Tap {
                x: outer.x * size + at,
                w: outer.w * kernel + tap,
                out: outer.out * results + result,
            };
            taps = taps.iter().flat_map(|outer| meet.iter().map(move |inner| join(outer, inner))).collect();
        }
        Ok(taps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use halimede_tensor::DType;

    fn conv() -> Conv {
        Conv {
            strides: smallvec![1],
            dilations: smallvec![1],
            padding: Padding::Explicit(smallvec![0, 0]),
            groups: 1,
            transposed: None,
            channels_last: false,
            multiply: None,
            epilogue: None,
        }
    }

    #[test]
    fn as_many_biases_as_channels() {
        let infer = |channels_last: bool, x: &[usize], biases: usize| {
            let fact = |shape: &[usize]| Fact::tensor(DType::F32, shape.iter().map(|&size| Dim::from(size)));
            let facts = [fact(x), fact(&[5, 2, 1]), fact(&[biases])];
            Conv { channels_last, ..conv() }.infer(&facts.iter().map(Some).collect::<Vec<_>>())
        };
        assert!(infer(false, &[1, 2, 3], 5).is_ok() && infer(true, &[1, 3, 2], 5).is_ok());
        for wrong in [infer(false, &[1, 2, 3], 3), infer(true, &[1, 3, 2], 2)] {
            assert!(wrong.unwrap_err().to_string().contains("biases for 5 channels"));
        }
    }

    fn run(op: &Conv, x: &[f32], x_shape: &[usize], w: &[f32], w_shape: &[usize], bias: Option<&[f32]>) -> Tensor {
        let (x, w) = (Tensor::from_slice(x_shape, x).unwrap(), Tensor::from_slice(w_shape, w).unwrap());
        let bias = bias.map(|bias| Tensor::from_slice(&[bias.len()], bias).unwrap());
        let out = op.evaluate(&[Some(&x), Some(&w), bias.as_ref()]).unwrap().remove(0);
        let fact = |t: &Tensor| Fact::tensor(t.dtype(), t.shape().iter().map(|&d| Dim::from(d)));
        let inferred = op.infer(&[Some(&fact(&x)), Some(&fact(&w))]).unwrap().remove(0);
        assert_eq!(inferred.known_shape().unwrap()[..], *out.shape());
        out
    }

    #[test]
    fn one_axis() {
        let x = [1.0, 2.0, 3.0, 4.0];
        let plain = run(&conv(), &x, &[1, 1, 4], &[1.0, -1.0], &[1, 1, 2], Some(&[10.0]));
        assert_eq!(plain.slice::<f32>().unwrap(), [9.0, 9.0, 9.0]);
        let same = Conv { padding: Padding::SameUpper, strides: smallvec![2], ..conv() };
        assert_eq!(run(&same, &x, &[1, 1, 4], &[1.0, 1.0, 1.0], &[1, 1, 3], None).slice::<f32>().unwrap(), [6.0, 7.0]);
        let dilated = Conv { dilations: smallvec![2], padding: Padding::Explicit(smallvec![1, 1]), ..conv() };
        assert_eq!(
            run(&dilated, &x, &[1, 1, 4], &[1.0, 1.0], &[1, 1, 2], None).slice::<f32>().unwrap(),
            [2.0, 4.0, 6.0, 3.0]
        );
    }

    #[test]
    fn groups_do_not_mix() {
        let grouped = Conv { groups: 2, ..conv() };
        let out = run(&grouped, &[1.0, 2.0], &[1, 2, 1], &[10.0, 100.0], &[2, 1, 1], None);
        assert_eq!(out.slice::<f32>().unwrap(), [10.0, 200.0]);
    }

    #[test]
    fn two_axes() {
        let op = Conv { strides: smallvec![1, 1], padding: Padding::Explicit(smallvec![0, 0, 0, 1]), ..conv() };
        let out = run(&op, &[1.0, 2.0, 3.0, 4.0], &[1, 1, 2, 2], &[1.0, 1.0, 1.0, 0.0], &[1, 1, 2, 2], None);
        assert_eq!(out, Tensor::from_slice(&[1, 1, 1, 2], &[6f32, 6.0]).unwrap());
    }

    #[test]
    fn channels_last_are_the_same_numbers() {
        let op = Conv { channels_last: true, ..conv() };
        // Two channels of three places, then two results of two channels.
        let x = [1.0, 10.0, 2.0, 20.0, 3.0, 30.0];
        let w = [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, -1.0];
        let out = run(&op, &x, &[1, 3, 2], &w, &[2, 2, 2], Some(&[0.0, 5.0]));
        assert_eq!(out, Tensor::from_slice(&[1, 2, 2], &[3f32, -5.0, 5.0, -5.0]).unwrap());
    }

    #[test]
    fn the_border_of_integers_is_their_zero_point() {
        let op = Conv { padding: Padding::Explicit(smallvec![1, 0]), multiply: Some(Factors::Integers), ..conv() };
        let x = Tensor::from_slice(&[1, 1, 2], &[10u8, 12]).unwrap();
        let w = Tensor::from_slice(&[1, 1, 2], &[1i8, -1]).unwrap();
        let out = op.evaluate(&[Some(&x), Some(&w), Some(&Tensor::scalar(7u8))]).unwrap().remove(0);
        assert_eq!(out, Tensor::from_slice(&[1, 1, 2], &[-3i32, -2]).unwrap());
    }

    #[test]
    fn transposed() {
        let op = Conv { strides: smallvec![2], transposed: Some(Transposed::default()), ..conv() };
        let out = run(&op, &[1.0, 2.0], &[1, 1, 2], &[1.0, 10.0, 100.0], &[1, 1, 3], None);
        assert_eq!(out.slice::<f32>().unwrap(), [1.0, 10.0, 102.0, 20.0, 200.0]);
        let shaped =
            Conv { transposed: Some(Transposed { output_shape: smallvec![4], ..Transposed::default() }), ..op.clone() };
        let out = run(&shaped, &[1.0, 2.0], &[1, 1, 2], &[1.0, 10.0, 100.0], &[1, 1, 3], None);
        assert_eq!(out.slice::<f32>().unwrap(), [10.0, 102.0, 20.0, 200.0]);
        let two_channels = Conv { groups: 2, transposed: Some(Transposed::default()), ..conv() };
        let out = run(&two_channels, &[1.0, 2.0], &[1, 2, 1], &[1.0, 2.0, 3.0, 4.0], &[2, 2, 1], None);
        assert_eq!(out.slice::<f32>().unwrap(), [1.0, 2.0, 6.0, 8.0]);
    }

    #[test]
    fn wrong_shapes_are_refused() {
        let fact = |shape: &[usize]| Fact::tensor(DType::F32, shape.iter().map(|&d| Dim::from(d)));
        for (x, w) in
            [(&[1, 2, 4][..], &[1, 1, 2][..]), (&[1, 1, 1], &[1, 1, 2]), (&[1, 1, 4], &[1, 1, 0]), (&[4], &[1])]
        {
            assert!(conv().infer(&[Some(&fact(x)), Some(&fact(w))]).is_err(), "{x:?} {w:?}");
        }
    }
}
