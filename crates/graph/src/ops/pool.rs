use super::Padding;
use super::channels::{channels_first, channels_last, to_channels_first, to_channels_last};
use super::inputs::{required, typed};
use super::window::{Axis, per_axis, windows};
use super::{Facts, TensorOp, Tensors};
use crate::{Dim, Dims, Fact, OpError};
use halimede_tensor::{DType, Shape, Tensor, element_count, strides};
use smallvec::{SmallVec, smallvec};

/// What a pooling window gives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PoolKind {
    /// The largest element, and as a second output its flat index in the input.
    Max {
        /// Indices count columns first (ONNX `storage_order`).
        column_major: bool,
    },
    /// The mean.
    Average {
        /// The border counts as zeros.
        count_include_pad: bool,
    },
    /// The p-norm.
    Lp {
        /// The p.
        p: i64,
    },
}

/// Windows over the spatial axes of `[N, C, ...]` (ONNX MaxPool, AveragePool, LpPool).
///
/// Inputs: x. Outputs: the result, and for Max with two outputs the i64 indices.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// What a window gives.
    pub kind: PoolKind,
    /// Window size per spatial axis; the whole axis where empty (ONNX Global*Pool).
    pub kernel: SmallVec<[usize; 2]>,
    /// Step of the window per spatial axis.
    pub strides: SmallVec<[usize; 2]>,
    /// Distance between taps per spatial axis.
    pub dilations: SmallVec<[usize; 2]>,
    /// Border.
    pub padding: Padding,
    /// Round the number of windows up.
    pub ceil_mode: bool,
    /// 1, or 2 with the indices.
    pub outputs: usize,
    /// Data and output have their channels last: `[N, ..., C]`. Not with indices.
    pub channels_last: bool,
}

impl TensorOp for Pool {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let x = required(inputs, 0)?;
        if self.channels_last {
            let plain = Pool { channels_last: false, outputs: 1, ..self.clone() };
            let shape = x.shape.as_ref().map(|shape| channels_first(shape));
            let result = plain.infer(&[Some(&typed(x.dtype, shape))])?.remove(0);
            let shape = result.shape.as_ref().map(|shape| channels_last(shape));
            return Ok(smallvec![typed(result.dtype, shape)]);
        }
        let shape = match &x.shape {
            None => None,
            Some(x) => {
                let axes = self.spatial(x.len())?;
                let mut shape: Dims = x[..2].into();
                for axis in 0..axes {
                    shape.push(match self.kernel.get(axis) {
                        None => Dim::from(1),
                        Some(&kernel) => {
                            let (stride, dilation) = (per_axis(&self.strides, axis), per_axis(&self.dilations, axis));
                            windows(
                                &x[2 + axis],
                                kernel,
                                stride,
                                dilation,
                                &self.padding,
                                (axis, axes),
                                self.ceil_mode,
                            )?
                        }
                    });
                }
                Some(shape)
            }
        };
        let mut facts: Facts = smallvec![typed(x.dtype, shape.clone())];
        if self.outputs > 1 {
            facts.push(typed(Some(DType::I64), shape));
        }
        Ok(facts)
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let x = required(inputs, 0)?;
        if self.channels_last {
            let plain = Pool { channels_last: false, outputs: 1, ..self.clone() };
            let result = plain.evaluate(&[Some(&to_channels_first(x)?)])?;
            return Ok(smallvec![to_channels_last(&result[0])?]);
        }
        let axes = self.spatial(x.rank())?;
        let spatial = &x.shape()[2..];
        let windows: Vec<Axis> =
            (0..axes).map(|axis| self.axis(spatial[axis], axis, axes)).collect::<Result<_, _>>()?;
        let out: Shape = windows.iter().map(|axis| axis.windows).collect();
        let shape: Shape = x.shape()[..2].iter().chain(&out).copied().collect();
        let planes = element_count(&x.shape()[..2])?;
        let plane_size = element_count(spatial)?;
        let views: Vec<Window> =
            indices(&out)?.map(|window| Window::new(&windows, &window)).collect::<Result<_, _>>()?;
        let mut results: Vec<f64> = Vec::with_capacity(planes * views.len());
        let mut places: Vec<i64> = Vec::with_capacity(planes * views.len());
        // Every type that pools has at most 32 bits or is f64, so f64 holds all values.
        let values = x.to_f64s()?;
        for plane in 0..planes {
            let values = &values[plane * plane_size..][..plane_size];
            for window in &views {
                let (value, place) = self.reduce(values, window);
                results.push(value);
                places.push((plane * plane_size + self.place(place, spatial)) as i64);
            }
        }
        let mut tensors: Tensors = smallvec![Tensor::from_f64s(x.dtype(), &shape, &results)?];
        if self.outputs > 1 {
            tensors.push(Tensor::from_slice(&shape, &places)?);
        }
        Ok(tensors)
    }
}

/// One window of a plane.
struct Window {
    /// Positions of its taps inside the input.
    taps: Vec<usize>,
    /// Number of taps inside the input and its border.
    within_border: usize,
}

impl Window {
    fn new(axes: &[Axis], window: &[usize]) -> Result<Window, OpError> {
        let kernel: Shape = axes.iter().map(|axis| axis.kernel).collect();
        let (mut taps, mut within_border) = (Vec::new(), 0);
        for tap in indices(&kernel)? {
            let mut each = axes.iter().zip(window.iter().zip(&tap));
            within_border += usize::from(each.clone().all(|(axis, (&window, &tap))| axis.within_border(window, tap)));
            let inside = |sum: usize, (axis, (&window, &tap)): (&Axis, (&usize, &usize))| {
                axis.position(window, tap).map(|at| sum * axis.size + at)
            };
            taps.extend(each.try_fold(0, inside));
        }
        Ok(Window { taps, within_border })
    }
}

/// Every index of a shape, in row-major order.
fn indices(shape: &[usize]) -> Result<impl Iterator<Item = Shape> + use<>, OpError> {
    let (count, shape, strides) = (element_count(shape)?, Shape::from(shape), strides(shape));
    let index = move |flat: usize| shape.iter().zip(&strides).map(|(&size, &stride)| flat / stride % size).collect();
    Ok((0..count).map(index))
}

impl Pool {
    fn spatial(&self, rank: usize) -> Result<usize, OpError> {
        let axes = rank.checked_sub(2).ok_or_else(|| OpError::invalid("pooling needs batch and channel axes"))?;
        match self.kernel.is_empty() || self.kernel.len() == axes {
            true => Ok(axes),
            false => Err(OpError::invalid(format!("a window of {} axes over {axes}", self.kernel.len()))),
        }
    }

    /// The windows along a spatial axis, of so many, that has this size.
    pub fn axis(&self, size: usize, axis: usize, axes: usize) -> Result<Axis, OpError> {
        let (stride, dilation) = (per_axis(&self.strides, axis), per_axis(&self.dilations, axis));
        match self.kernel.get(axis) {
            // The whole axis in one window.
            None => Ok(Axis { size, kernel: size, stride: 1, dilation: 1, before: 0, after: 0, windows: 1 }),
            Some(&kernel) => Axis::new(size, kernel, stride, dilation, &self.padding, (axis, axes), self.ceil_mode),
        }
    }

    /// A window's result, and where the largest element lies.
    fn reduce(&self, values: &[f64], window: &Window) -> (f64, usize) {
        let taps = || window.taps.iter().map(|&tap| values[tap]);
        match self.kind {
            PoolKind::Max { .. } => {
                let mut best = (f64::NEG_INFINITY, window.taps.first().copied().unwrap_or(0));
                for &tap in &window.taps {
                    if values[tap] > best.0 || values[tap].is_nan() {
                        best = (values[tap], tap);
                    }
                }
                best
            }
            PoolKind::Average { count_include_pad } => {
                let count = if count_include_pad { window.within_border } else { window.taps.len() };
                (taps().sum::<f64>() / count as f64, 0)
            }
            PoolKind::Lp { p } => (taps().map(|v| v.abs().powf(p as f64)).sum::<f64>().powf(1.0 / p as f64), 0),
        }
    }

    /// A position within a plane, counted columns first where asked.
    fn place(&self, flat: usize, spatial: &[usize]) -> usize {
        if !matches!(self.kind, PoolKind::Max { column_major: true }) {
            return flat;
        }
        let strides = strides(spatial);
        let index = spatial.iter().zip(&strides).map(|(&size, &stride)| flat / stride % size.max(1));
        let (mut place, mut stride) = (0, 1);
        for (at, &size) in index.zip(spatial) {
            place += at * stride;
            stride *= size;
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(kind: PoolKind, kernel: &[usize]) -> Pool {
        Pool {
            kind,
            kernel: kernel.into(),
            strides: smallvec![],
            dilations: smallvec![],
            padding: Padding::Explicit(smallvec![0; 2 * kernel.len()]),
            ceil_mode: false,
            outputs: 1,
            channels_last: false,
        }
    }

    fn run(op: &Pool, x: &[f32], shape: &[usize]) -> Vec<f32> {
        let x = Tensor::from_slice(shape, x).unwrap();
        let out = op.evaluate(&[Some(&x)]).unwrap();
        let fact = Fact::tensor(x.dtype(), shape.iter().map(|&d| Dim::from(d)));
        assert_eq!(op.infer(&[Some(&fact)]).unwrap()[0].known_shape().unwrap()[..], *out[0].shape());
        out[0].slice::<f32>().unwrap().to_vec()
    }

    #[test]
    fn kinds() {
        let x = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(run(&pool(PoolKind::Max { column_major: false }, &[2]), &x, &[1, 1, 4]), [2.0, 3.0, 4.0]);
        assert_eq!(run(&pool(PoolKind::Average { count_include_pad: false }, &[]), &x, &[1, 2, 2]), [1.5, 3.5]);
        assert_eq!(run(&pool(PoolKind::Lp { p: 2 }, &[2]), &[3.0, 4.0], &[1, 1, 2]), [5.0]);
    }

    #[test]
    fn what_the_border_counts() {
        let x = [1.0, 2.0, 3.0];
        let padded = |count_include_pad| Pool {
            padding: Padding::Explicit(smallvec![1, 1]),
            ..pool(PoolKind::Average { count_include_pad }, &[3])
        };
        assert_eq!(run(&padded(false), &x, &[1, 1, 3]), [1.5, 2.0, 2.5]);
        assert_eq!(run(&padded(true), &x, &[1, 1, 3]), [1.0, 2.0, 5.0 / 3.0]);
        // The last window reaches past the border: what lies there does not count.
        let ceil = Pool {
            ceil_mode: true,
            strides: smallvec![2],
            ..pool(PoolKind::Average { count_include_pad: true }, &[2])
        };
        assert_eq!(run(&ceil, &x, &[1, 1, 3]), [1.5, 3.0]);
    }

    #[test]
    fn places_of_the_largest() {
        let x = Tensor::from_slice(&[1, 2, 2, 2], &[1f32, 2.0, 9.0, 4.0, 5.0, 8.0, 7.0, 6.0]).unwrap();
        let places = |column_major| {
            let op = Pool { outputs: 2, ..pool(PoolKind::Max { column_major }, &[2, 2]) };
            op.evaluate(&[Some(&x)]).unwrap()[1].slice::<i64>().unwrap().to_vec()
        };
        assert_eq!([places(false), places(true)], [[2, 5], [1, 6]]);
    }
}
