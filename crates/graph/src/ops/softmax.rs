use super::inputs::{check_axis, like, required};
use super::numeric::Split;
use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;
use smallvec::smallvec;

/// `exp(x - max) / Σ exp(x - max)` along an axis, or its logarithm. Inputs: x.
#[derive(Debug, Clone, PartialEq)]
pub struct Softmax {
    /// Axis, resolved to be non-negative.
    pub axis: usize,
    /// The logarithm (ONNX LogSoftmax).
    pub log: bool,
}

impl TensorOp for Softmax {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let x = required(inputs, 0)?;
        if let Some(rank) = x.rank() {
            check_axis(self.axis, rank)?;
        }
        Ok(smallvec![like(x)])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let x = required(inputs, 0)?;
        check_axis(self.axis, x.rank())?;
        let mut values = x.to_f64s()?;
        let Split { starts, steps } = Split::new(x.shape(), |axis| axis == self.axis)?;
        for start in starts {
            let max = steps.iter().map(|&s| values[start + s]).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = steps.iter().map(|&s| (values[start + s] - max).exp()).sum();
            for &step in &steps {
                let shifted = values[start + step] - max;
                values[start + step] = if self.log { shifted - sum.ln() } else { shifted.exp() / sum };
            }
        }
        Ok(smallvec![Tensor::from_f64s(x.dtype(), x.shape(), &values)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_sum_to_one() {
        let x = Tensor::from_slice(&[2, 2], &[0f32, 3f32.ln(), 1000.0, 1000.0]).unwrap();
        let run = |axis, log| Softmax { axis, log }.evaluate(&[Some(&x)]).unwrap()[0].slice::<f32>().unwrap().to_vec();
        assert_eq!(run(1, false), [0.25, 0.75, 0.5, 0.5]);
        assert_eq!(run(0, false), [0.0, 0.0, 1.0, 1.0]);
        let logs = [0.25f32, 0.75, 0.5, 0.5].map(f32::ln);
        assert!(run(1, true).iter().zip(logs).all(|(a, b)| (a - b).abs() < 1e-6));
        assert!(Softmax { axis: 2, log: false }.evaluate(&[Some(&x)]).is_err());
    }
}
