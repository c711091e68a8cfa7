use super::Map;
use super::inputs::{check_axis, like, optional, required};
use super::movement::Offsets;
use super::numeric::{after_epilogue, apply_epilogue};
use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::{DType, Shape, Tensor, element_count};
use smallvec::smallvec;

/// Over what a normalisation takes its statistics.
#[derive(Debug, Clone, PartialEq)]
pub enum NormKind {
    /// Mean and variance over `axis` and every axis after it (ONNX LayerNormalization). Scale and
    /// bias broadcast to those axes.
    Layer {
        /// First axis, resolved to be non-negative.
        axis: usize,
    },
    /// Mean square over `axis` and every axis after it (ONNX RMSNormalization); no bias.
    Rms {
        /// First axis, resolved to be non-negative.
        axis: usize,
    },
    /// Mean and variance over groups of channels of `[N, C, ...]` (ONNX GroupNormalization, opset 21).
    /// Scale and bias are `[C]`.
    Group {
        /// Number of groups.
        groups: usize,
    },
    /// Each channel by itself (ONNX InstanceNormalization). Scale and bias are `[C]`.
    Instance,
}

/// `(x - mean) / sqrt(variance + epsilon) · scale + bias`, statistics in f32 or wider.
///
/// Inputs: x, optionally scale, optionally bias, then what the epilogue reads. Outputs: the result, and where
/// `quantize` says so, the same in U8.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// Over what.
    pub kind: NormKind,
    /// Added to the variance.
    pub epsilon: f32,
    /// Pointwise work on each result; its input 0 is the result, the others broadcast to it.
    pub epilogue: Option<Map>,
    /// Scale and zero point of a second output, `saturate(round(result / scale) + zero point)`.
    pub quantize: Option<(f32, u8)>,
}

impl TensorOp for Norm {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let x = required(inputs, 0)?;
        if let Some(shape) = x.known_shape() {
            self.groups(&shape)?;
        }
        let result = after_epilogue(&self.epilogue, like(x), inputs.get(3..).unwrap_or_default())?;
        let quantized = self.quantize.map(|_| Fact { dtype: Some(DType::U8), ..result.clone() });
        Ok([result].into_iter().chain(quantized).collect())
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let x = required(inputs, 0)?;
        let group = element_count(x.shape())? / self.groups(x.shape())?.max(1);
        let mut values = x.to_f64s()?;
        for group in values.chunks_mut(group.max(1)) {
            let count = group.len() as f64;
            let mean = match self.kind {
                NormKind::Rms { .. } => 0.0,
                _ => group.iter().sum::<f64>() / count,
            };
            let variance = group.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
            let factor = 1.0 / (variance + f64::from(self.epsilon)).sqrt();
            group.iter_mut().for_each(|v| *v = (*v - mean) * factor);
        }
        for (index, combine) in [(1, (|v, s| v * s) as fn(f64, f64) -> f64), (2, |v, b| v + b)] {
            let Some(parameter) = optional(inputs, index) else { continue };
            let positions = Offsets::broadcast(&self.parameter_shape(parameter, x.shape())?, x.shape())?;
            let parameter = parameter.to_f64s()?;
            for (value, position) in values.iter_mut().zip(positions) {
                *value = combine(*value, parameter[position]);
            }
        }
        let result = Tensor::from_f64s(x.dtype(), x.shape(), &values)?;
        let result = apply_epilogue(&self.epilogue, result, inputs.get(3..).unwrap_or_default())?;
        let Some((scale, zero)) = self.quantize else { return Ok(smallvec![result]) };
        let steps = |number: f64| ((number / f64::from(scale)).round_ties_even() + f64::from(zero)).clamp(0.0, 255.0);
        let bytes: Vec<u8> = result.to_f64s()?.into_iter().map(|number| steps(number) as u8).collect();
        let quantized = Tensor::from_slice(result.shape(), &bytes)?;
        Ok(smallvec![result, quantized])
    }
}

impl Norm {
    /// Number of runs of elements that share their statistics; they lie one after the other.
    fn groups(&self, shape: &[usize]) -> Result<usize, OpError> {
        let outer = match self.kind {
            NormKind::Layer { axis } | NormKind::Rms { axis } => {
                check_axis(axis, shape.len())?;
                return Ok(element_count(&shape[..axis])?);
            }
            _ if shape.len() < 2 => {
                return Err(OpError::invalid(format!("{shape:?} has no batch and channel axes")));
            }
            NormKind::Instance => [shape[0], shape[1]],
            NormKind::Group { groups } if groups == 0 || !shape[1].is_multiple_of(groups) => {
                return Err(OpError::invalid(format!("{} channels in {groups} groups", shape[1])));
            }
            NormKind::Group { groups } => [shape[0], groups],
        };
        Ok(element_count(&outer)?)
    }

    /// The shape under which scale or bias broadcasts to `x`.
    fn parameter_shape(&self, parameter: &Tensor, x: &[usize]) -> Result<Shape, OpError> {
        let shape: Shape = match self.kind {
            NormKind::Layer { .. } | NormKind::Rms { .. } => parameter.shape().into(),
            // One per channel.
            _ => (1..x.len()).map(|axis| if axis == 1 { parameter.len() } else { 1 }).collect(),
        };
        match halimede_tensor::broadcast(&shape, x) {
            Ok(joint) if joint[..] == *x => Ok(shape),
            _ => Err(OpError::invalid(format!("scale or bias of shape {:?} for data of {x:?}", parameter.shape()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(kind: NormKind, x: &[f32], shape: &[usize], scale: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let x = Tensor::from_slice(shape, x).unwrap();
        let scale = Tensor::from_slice(&[scale.len()], scale).unwrap();
        let bias = bias.map(|bias| Tensor::from_slice(&[bias.len()], bias).unwrap());
        let op = Norm { kind, epsilon: 0.0, epilogue: None, quantize: None };
        op.evaluate(&[Some(&x), Some(&scale), bias.as_ref()]).unwrap()[0].slice::<f32>().unwrap().to_vec()
    }

    #[test]
    fn every_kind() {
        let x = [1.0, 3.0, 2.0, 6.0];
        assert_eq!(
            run(NormKind::Layer { axis: 1 }, &x, &[2, 2], &[1.0, 2.0], Some(&[0.0, 1.0])),
            [-1.0, 3.0, -1.0, 3.0]
        );
        let rms = run(NormKind::Rms { axis: 1 }, &[3.0, 4.0], &[1, 2], &[1.0, 1.0], None);
        assert_eq!(rms, [3.0 / 12.5f32.sqrt(), 4.0 / 12.5f32.sqrt()]);
        assert_eq!(run(NormKind::Instance, &x, &[1, 2, 2], &[1.0, 10.0], Some(&[0.0, 5.0])), [-1.0, 1.0, -5.0, 15.0]);
        let group =
            run(NormKind::Group { groups: 1 }, &[1.0, 1.0, 3.0, 3.0], &[1, 2, 2], &[1.0, 2.0], Some(&[0.0, 0.0]));
        assert_eq!(group, [-1.0, -1.0, 2.0, 2.0]);
    }

    #[test]
    fn a_second_output_is_quantised() {
        let kind = NormKind::Layer { axis: 1 };
        let op = Norm { kind, epsilon: 0.0, epilogue: None, quantize: Some((0.5, 100)) };
        let x = Tensor::from_slice(&[1, 3], &[-1f32, 0.0, 1.0]).unwrap();
        let made = op.evaluate(&[Some(&x)]).unwrap();
        // ±sqrt(3/2) in steps of a half.
        assert_eq!(made[1].slice::<u8>().unwrap(), [98, 100, 102]);
        assert_eq!(
            op.infer(&[Some(&Fact::tensor(DType::F32, [1, 3].map(Into::into)))]).unwrap()[1].dtype,
            Some(DType::U8)
        );
    }

    #[test]
    fn wrong_shapes_are_refused() {
        let op = |kind| Norm { kind, epsilon: 0.0, epilogue: None, quantize: None };
        let x = Tensor::zeros(DType::F32, &[1, 3]).unwrap();
        assert!(op(NormKind::Group { groups: 2 }).evaluate(&[Some(&x)]).is_err());
        assert!(op(NormKind::Layer { axis: 2 }).evaluate(&[Some(&x)]).is_err());
        let scale = Tensor::zeros(DType::F32, &[2]).unwrap();
        assert!(op(NormKind::Layer { axis: 1 }).evaluate(&[Some(&x), Some(&scale)]).is_err());
        let empty = Tensor::zeros(DType::F32, &[0, 3]).unwrap();
        assert_eq!(op(NormKind::Layer { axis: 1 }).evaluate(&[Some(&empty)]).unwrap()[0].shape(), [0, 3]);
    }
}
