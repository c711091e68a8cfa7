use super::inputs::{broadcast, integers, required, shape, typed};
use super::movement::{Offsets, take};
use super::{Facts, TensorOp, Tensors};
use crate::{Dim, Fact, OpError};
use halimede_tensor::Tensor;
use smallvec::smallvec;

/// Broadcasts to a shape by NumPy's rule, both ways (ONNX Expand). Inputs: data, shape (i64).
#[derive(Debug, Clone, PartialEq)]
pub struct Expand;

impl TensorOp for Expand {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let (data, target) = (required(inputs, 0)?, required(inputs, 1)?);
        let shape = match (&data.shape, target.dims()) {
            (Some(shape), Some(target)) => Some(broadcast(shape, &target)?),
            (Some(shape), None) => target.count().map(|rank| smallvec![Dim::unknown(); rank.max(shape.len())]),
            _ => None,
        };
        let output = typed(data.dtype, shape);
        let elements = match (data.dims().as_deref(), output.count()) {
            (Some([one]), Some(count)) if count <= 64 => Some(vec![one.clone(); count]),
            _ => None,
        };
        Ok(smallvec![output.and_elements(elements)])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let (data, target) = (required(inputs, 0)?, required(inputs, 1)?);
        let shape = halimede_tensor::broadcast(data.shape(), &shape(&integers(target)?)?)?;
        Ok(smallvec![take(data, &shape, Offsets::broadcast(data.shape(), &shape)?)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use halimede_tensor::DType;

    #[test]
    fn both_ways() {
        let data = Tensor::from_slice(&[3, 1], &[1i8, 2, 3]).unwrap();
        let target = Tensor::from_slice(&[3], &[2i64, 1, 2]).unwrap();
        let out = Expand.evaluate(&[Some(&data), Some(&target)]).unwrap().remove(0);
        let expected = Tensor::from_slice(&[2, 3, 2], &[1i8, 1, 2, 2, 3, 3, 1, 1, 2, 2, 3, 3]).unwrap();
        assert_eq!(out, expected);
        let wrong = Tensor::from_slice(&[1], &[4i64]).unwrap();
        assert!(Expand.evaluate(&[Some(&Tensor::zeros(DType::F32, &[3]).unwrap()), Some(&wrong)]).is_err());
    }

    #[test]
    fn sizes_repeat() {
        let n = Dim::symbol("n");
        let one = Fact::tensor(DType::I64, [Dim::from(1)]).and_elements(Some(vec![n.clone()]));
        let target = Fact::constant(Tensor::from_slice(&[1], &[2i64]).unwrap());
        assert_eq!(Expand.infer(&[Some(&one), Some(&target)]).unwrap()[0].dims(), Some(vec![n.clone(), n]));
    }
}
