use super::inputs::{check_axis, optional, required, typed};
use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use half::{bf16, f16};
use halimede_tensor::{CastOptions, DType, Tensor};
use smallvec::smallvec;

/// `saturate(round_half_even(x / scale) + zero_point)` (ONNX QuantizeLinear).
///
/// Inputs: x, scale, optionally zero point. Scale of one element, or one per index of `axis`, or with
/// `block` above 0 one per block of `axis`.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantize {
    /// Datatype of the output.
    pub to: DType,
    /// Axis of the scales, resolved to be non-negative.
    pub axis: usize,
    /// Elements of `axis` that share a scale; 0 for none.
    pub block: usize,
    /// For 8-bit floats: out of range becomes the largest finite value.
    pub saturate: bool,
    /// The division is done in this datatype where given (ONNX `precision`).
    pub precision: Option<DType>,
}

/// `(x - zero_point) · scale` (ONNX DequantizeLinear). Inputs: x, scale, optionally zero point.
#[derive(Debug, Clone, PartialEq)]
pub struct Dequantize {
    /// Datatype of the output; the scale's where `None`.
    pub to: Option<DType>,
    /// Axis of the scales, resolved to be non-negative.
    pub axis: usize,
    /// Elements of `axis` that share a scale; 0 for none.
    pub block: usize,
}

impl TensorOp for Quantize {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Ok(smallvec![typed(Some(self.to), required(inputs, 0)?.shape.clone())])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let (x, scale, zero) = (required(inputs, 0)?, required(inputs, 1)?, optional(inputs, 2));
        let places = places(x.shape(), scale, self.axis, self.block)?;
        let zeros = zero_points(zero, scale)?;
        let precision = self.precision.unwrap_or(if x.dtype().is_float() { x.dtype() } else { scale.dtype() });
        let (values, scales) = (x.to_f32s()?, scale.to_f32s()?);
        let quotient = |(&x, &place): (&f32, &usize)| round_to(x / scales[place], precision);
        let quotients = values.iter().zip(&places).map(quotient);
        if self.to.is_float() {
            let quotients: Vec<f32> = quotients.collect();
            let options = CastOptions { saturate: self.saturate, ..CastOptions::default() };
            return Ok(smallvec![Tensor::from_slice(x.shape(), &quotients)?.cast(self.to, options)?]);
        }
        let (low, high) = range(self.to)?;
        let whole: Vec<i64> = quotients
            .zip(&places)
            .map(|(q, &place)| ((q.round_ties_even() as i64).saturating_add(zeros[place])).clamp(low, high))
            .collect();
        Ok(smallvec![Tensor::from_i64s(self.to, x.shape(), &whole)?])
    }
}

impl TensorOp for Dequantize {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let (x, scale) = (required(inputs, 0)?, required(inputs, 1)?);
        Ok(smallvec![typed(self.to.or(scale.dtype), x.shape.clone())])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let (x, scale, zero) = (required(inputs, 0)?, required(inputs, 1)?, optional(inputs, 2));
        let places = places(x.shape(), scale, self.axis, self.block)?;
        let scales = scale.to_f32s()?;
        let values: Vec<f32> = if x.dtype().is_float() {
            // The zero point of a float is 0.
            x.to_f32s()?.iter().zip(&places).map(|(&x, &place)| x * scales[place]).collect()
        } else {
            let zeros = zero_points(zero, scale)?;
            let value = |(&x, &place): (&i64, &usize)| (x - zeros[place]) as f32 * scales[place];
            x.to_i64s()?.iter().zip(&places).map(value).collect()
        };
        Ok(smallvec![Tensor::from_f32s(self.to.unwrap_or(scale.dtype()), x.shape(), &values)?])
    }
}

/// Per element of `x` the place of its scale.
fn places(x: &[usize], scale: &Tensor, axis: usize, block: usize) -> Result<Vec<usize>, OpError> {
    let count = halimede_tensor::element_count(x)?;
    if block == 0 && scale.len() == 1 {
        return Ok(vec![0; count]);
    }
    check_axis(axis, x.len())?;
    let wrong = || OpError::invalid(format!("scales of shape {:?} for axis {axis} of {x:?}", scale.shape()));
    let inner: usize = x[axis + 1..].iter().product();
    if block == 0 {
        if scale.rank() != 1 || scale.len() != x[axis] {
            return Err(wrong());
        }
        return Ok((0..count).map(|at| at / inner % x[axis]).collect());
    }
    let mut expected = x.to_vec();
    expected[axis] = x[axis].div_ceil(block);
    if scale.shape() != expected {
        return Err(wrong());
    }
    let place = |at: usize| (at / inner / x[axis] * expected[axis] + at / inner % x[axis] / block) * inner + at % inner;
    Ok((0..count).map(place).collect())
}

fn zero_points(zero: Option<&Tensor>, scale: &Tensor) -> Result<Vec<i64>, OpError> {
    match zero {
        None => Ok(vec![0; scale.len()]),
        Some(zero) if zero.len() == scale.len() => Ok(zero.to_i64s()?),
        Some(zero) => Err(OpError::invalid(format!("{} zero points for {} scales", zero.len(), scale.len()))),
    }
}

fn round_to(x: f32, dtype: DType) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(x).to_f32(),
        DType::Bf16 => bf16::from_f32(x).to_f32(),
        _ => x,
    }
}

fn range(dtype: DType) -> Result<(i64, i64), OpError> {
    let bits = dtype.bits() as u32;
    match dtype.is_integer() && bits <= 32 {
        true if dtype.is_signed_integer() => Ok((-1 << (bits - 1), (1 << (bits - 1)) - 1)),
        true => Ok((0, (1 << bits) - 1)),
        false => Err(OpError::invalid(format!("quantisation to {dtype}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantize(to: DType, block: usize, x: &[f32], shape: &[usize], scale: &Tensor, zero: Option<&Tensor>) -> Tensor {
        let x = Tensor::from_slice(shape, x).unwrap();
        let op = Quantize { to, axis: 1.min(shape.len() - 1), block, saturate: true, precision: None };
        op.evaluate(&[Some(&x), Some(scale), zero]).unwrap().remove(0)
    }

    #[test]
    fn integers_round_to_even_and_saturate() {
        let (scale, zero) = (Tensor::scalar(2f32), Tensor::scalar(128u8));
        let out = quantize(DType::U8, 0, &[0.0, 1.0, 3.0, -1000.0, 1000.0], &[5], &scale, Some(&zero));
        assert_eq!(out.slice::<u8>().unwrap(), [128, 128, 130, 0, 255]);
        let narrow = quantize(DType::I4, 0, &[-100.0, 3.0, 100.0], &[3], &scale, None);
        assert_eq!(narrow.slice::<i8>().unwrap(), [-8, 2, 7]);
    }

    #[test]
    fn scales_per_axis_and_per_block() {
        let scale = Tensor::from_slice(&[2], &[1f32, 10.0]).unwrap();
        let out = quantize(DType::I8, 0, &[10.0, 10.0, 20.0, 20.0], &[2, 2], &scale, None);
        assert_eq!(out.slice::<i8>().unwrap(), [10, 1, 20, 2]);
        let scale = Tensor::from_slice(&[1, 2], &[1f32, 10.0]).unwrap();
        let out = quantize(DType::I8, 2, &[10.0, 20.0, 30.0], &[1, 3], &scale, None);
        assert_eq!(out.slice::<i8>().unwrap(), [10, 20, 3]);
    }

    #[test]
    fn floats_come_back() {
        let scale = Tensor::scalar(2f32);
        let e4m3 = quantize(DType::F8E4M3Fn, 0, &[4.0, 1e9], &[2], &scale, None);
        let back = Dequantize { to: None, axis: 0, block: 0 }.evaluate(&[Some(&e4m3), Some(&scale)]).unwrap().remove(0);
        assert_eq!(back.slice::<f32>().unwrap(), [4.0, 896.0]);
        let x = Tensor::from_slice(&[2], &[0u8, 130]).unwrap();
        let op = Dequantize { to: Some(DType::F16), axis: 0, block: 0 };
        let out = op.evaluate(&[Some(&x), Some(&scale), Some(&Tensor::scalar(128u8))]).unwrap().remove(0);
        assert_eq!((out.dtype(), out.to_f32s().unwrap()), (DType::F16, vec![-256.0, 4.0]));
        let wrong = Tensor::from_slice(&[3], &[1f32, 1.0, 1.0]).unwrap();
        assert!(op.evaluate(&[Some(&x), Some(&wrong)]).is_err());
    }
}
