use super::inputs::{integers, required, typed};
use super::{Facts, TensorOp, Tensors};
use crate::{Dim, Fact, OpError};
use halimede_tensor::Tensor;
use smallvec::smallvec;

/// `start, start + delta, …` below `limit` (ONNX Range). Inputs: start, limit, delta, scalars of one
/// datatype.
#[derive(Debug, Clone, PartialEq)]
pub struct Range;

impl TensorOp for Range {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let dtype = required(inputs, 0)?.dtype;
        let scalar = |index| Ok::<_, OpError>(required(inputs, index)?.dims().and_then(|mut dims| dims.pop()));
        let (size, elements) = match (scalar(0)?, scalar(1)?, scalar(2)?) {
            (Some(start), Some(limit), Some(delta)) => {
                let span = limit - start.clone();
                let size = match (span.known(), delta.known()) {
                    (_, Some(0)) => return Err(OpError::invalid("the delta of a Range is 0")),
                    (Some(span), Some(delta)) => Dim::from(count(span, delta)?),
                    (None, Some(delta)) if delta < 0 => (-span).ceil_div(&Dim::from(-delta)),
                    _ => span.ceil_div(&delta),
                };
                let elements = size
                    .size()
                    .filter(|&size| size <= 64)
                    .map(|size| (0..size).map(|i| start.clone() + Dim::from(i) * delta.clone()).collect());
                (size, elements)
            }
            // Numbers of other datatypes are no expressions, but they may be known.
            _ => {
                match [required(inputs, 0)?, required(inputs, 1)?, required(inputs, 2)?].map(|f| f.constant.as_ref()) {
                    [Some(start), Some(limit), Some(delta)] => (Dim::from(self.count(start, limit, delta)?), None),
                    _ => (Dim::unknown(), None),
                }
            }
        };
        Ok(smallvec![typed(dtype, Some(smallvec![size])).and_elements(elements)])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let (start, limit, delta) = (required(inputs, 0)?, required(inputs, 1)?, required(inputs, 2)?);
        let dtype = start.dtype();
        let count = self.count(start, limit, delta)?;
        // Refused here where there is no room, before the numbers are made.
        Tensor::zeros(dtype, &[count])?;
        if dtype.is_integer() {
            let (start, delta) = (integers(start)?[0], integers(delta)?[0]);
            let values: Vec<i64> = (0..count as i64).map(|i| start.wrapping_add(i.wrapping_mul(delta))).collect();
            return Ok(smallvec![Tensor::from_i64s(dtype, &[count], &values)?]);
        }
        let (start, delta) = (start.to_f64s()?[0], delta.to_f64s()?[0]);
        let values: Vec<f64> = (0..count).map(|i| start + i as f64 * delta).collect();
        Ok(smallvec![Tensor::from_f64s(dtype, &[count], &values)?])
    }
}

impl Range {
    fn count(&self, start: &Tensor, limit: &Tensor, delta: &Tensor) -> Result<usize, OpError> {
        if start.len() != 1 || limit.len() != 1 || delta.len() != 1 {
            return Err(OpError::invalid("start, limit and delta of a Range should be scalars"));
        }
        if start.dtype().is_integer() {
            let (start, limit, delta) = (integers(start)?[0], integers(limit)?[0], integers(delta)?[0]);
            return count(limit.saturating_sub(start), delta);
        }
        let (start, limit, delta) = (start.to_f64s()?[0], limit.to_f64s()?[0], delta.to_f64s()?[0]);
        let count = ((limit - start) / delta).ceil().max(0.0);
        if !count.is_finite() || count > 1e15 {
            return Err(OpError::invalid(format!("a Range from {start} to {limit} by {delta} does not end")));
        }
        Ok(count as usize)
    }
}

/// Number of steps of `delta` within `span`, rounded up.
fn count(span: i64, delta: i64) -> Result<usize, OpError> {
    if delta == 0 {
        return Err(OpError::invalid("the delta of a Range is 0"));
    }
    let (span, delta) = if delta < 0 { (-i128::from(span), -i128::from(delta)) } else { (span.into(), delta.into()) };
    let count = (span + delta - 1).div_euclid(delta).max(0);
    usize::try_from(count).map_err(|_| OpError::invalid("a Range is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_and_down() {
        let run = |v: [i32; 3]| {
            let t = v.map(Tensor::scalar);
            Range.evaluate(&[Some(&t[0]), Some(&t[1]), Some(&t[2])]).map(|t| t[0].slice::<i32>().unwrap().to_vec())
        };
        assert_eq!(run([1, 5, 2]).unwrap(), [1, 3]);
        assert_eq!(run([10, 4, -2]).unwrap(), [10, 8, 6]);
        assert_eq!(run([5, 1, 1]).unwrap(), []);
        assert!(run([0, 1, 0]).is_err());
        let floats = [1.0f32, 2.0, 0.375].map(Tensor::scalar);
        let out = Range.evaluate(&[Some(&floats[0]), Some(&floats[1]), Some(&floats[2])]).unwrap().remove(0);
        assert_eq!(out.slice::<f32>().unwrap(), [1.0, 1.375, 1.75]);
        let wild = [0i64, i64::MAX, 1].map(Tensor::scalar);
        assert!(Range.evaluate(&[Some(&wild[0]), Some(&wild[1]), Some(&wild[2])]).is_err());
    }

    #[test]
    fn a_symbol_is_a_size() {
        let n = Dim::symbol("n");
        let scalar = |dim: Dim| Fact::tensor(halimede_tensor::DType::I64, []).and_elements(Some(vec![dim]));
        let (zero, end, one) = (scalar(Dim::from(0)), scalar(n.clone()), scalar(Dim::from(1)));
        let fact = Range.infer(&[Some(&zero), Some(&end), Some(&one)]).unwrap().remove(0);
        assert_eq!(fact.shape.unwrap()[..], [n]);
    }
}
