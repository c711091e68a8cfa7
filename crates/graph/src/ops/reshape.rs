use super::inputs::{integers, product, required, typed};
use super::{Facts, TensorOp, Tensors};
use crate::{Dim, Dims, Fact, OpError};
use halimede_tensor::Tensor;
use smallvec::smallvec;

/// The same elements under another shape (ONNX Reshape; Squeeze, Unsqueeze and Flatten lower to it
/// where shapes are known). Inputs: data, shape (i64; one -1 is worked out, 0 copies the input's
/// dimension unless `allow_zero`).
#[derive(Debug, Clone, PartialEq)]
pub struct Reshape {
    /// A 0 in the shape is a size.
    pub allow_zero: bool,
}

impl TensorOp for Reshape {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let (data, target) = (required(inputs, 0)?, required(inputs, 1)?);
        let shape = match target.dims() {
            Some(target) => Some(self.resolve(data.shape.as_deref(), &target)?),
            // The shape's own shape says the rank.
            None => target.count().map(|rank| smallvec![Dim::unknown(); rank]),
        };
        Ok(smallvec![typed(data.dtype, shape).and_elements(data.dims())])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let (data, target) = (required(inputs, 0)?, required(inputs, 1)?);
        let from: Dims = data.shape().iter().map(|&d| Dim::from(d)).collect();
        let target: Vec<Dim> = integers(target)?.into_iter().map(Dim::from).collect();
        let shape = self.resolve(Some(&from), &target)?;
        let shape: Option<Vec<usize>> = shape.iter().map(Dim::size).collect();
        let shape = shape.ok_or_else(|| OpError::invalid(format!("{target:?} is no shape for {from:?}")))?;
        Ok(smallvec![data.reshaped(&shape)?])
    }
}

impl Reshape {
    /// The shape that `target` asks for.
    fn resolve(&self, from: Option<&[Dim]>, target: &[Dim]) -> Result<Dims, OpError> {
        let mut shape = Dims::new();
        let mut open = None;
        for (axis, dim) in target.iter().enumerate() {
            shape.push(match dim.known() {
                Some(-1) if open.replace(axis).is_some() => {
                    return Err(OpError::invalid(format!("the shape {target:?} has more than one -1")));
                }
                Some(-1) => Dim::from(1),
                Some(0) if !self.allow_zero => match from {
                    Some(from) => from.get(axis).cloned().ok_or_else(|| {
                        OpError::invalid(format!("the 0 at {axis} of {target:?} has no axis of {from:?} to copy"))
                    })?,
                    None => Dim::unknown(),
                },
                Some(size) if size < 0 => return Err(OpError::invalid(format!("{target:?} is no shape"))),
                _ => dim.clone(),
            });
        }
        let Some(from) = from else {
            if let Some(axis) = open {
                shape[axis] = Dim::unknown();
            }
            return Ok(shape);
        };
        let (count, rest) = (product(from), product(&shape));
        let mismatch = || OpError::invalid(format!("a tensor of shape {from:?} cannot take the shape {target:?}"));
        match (open, count.known(), rest.known()) {
            (Some(axis), Some(count), Some(rest)) if rest != 0 && count % rest == 0 => {
                shape[axis] = Dim::from(count / rest);
            }
            // 0 elements: any size would do where others are 0; ONNX Runtime and NumPy say 0.
            (Some(axis), Some(0), Some(0)) => shape[axis] = Dim::from(0),
            (Some(_), Some(_), Some(_)) => return Err(mismatch()),
            (Some(axis), ..) => shape[axis] = self.open_size(from, &shape, axis),
            (None, Some(count), Some(rest)) if count != rest => return Err(mismatch()),
            _ => {}
        }
        Ok(shape)
    }

    /// The quotient of the products, factor by factor, so that sums cancel as well.
    fn open_size(&self, from: &[Dim], shape: &[Dim], open: usize) -> Dim {
        let mut from: Vec<Dim> = from.to_vec();
        let mut rest: Vec<Dim> = Vec::new();
        for (_, dim) in shape.iter().enumerate().filter(|(axis, _)| *axis != open) {
            match from.iter().position(|f| f == dim && !f.is_unknown()) {
                Some(found) => drop(from.swap_remove(found)),
                None => rest.push(dim.clone()),
            }
        }
        product(&from).floor_div(&product(&rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use halimede_tensor::DType;

    fn infer(from: &[Dim], target: &[Dim]) -> Result<Dims, OpError> {
        let data = Fact::tensor(DType::F32, from.iter().cloned());
        let target = Fact::tensor(DType::I64, [Dim::from(target.len())]).and_elements(Some(target.to_vec()));
        Ok(Reshape { allow_zero: false }.infer(&[Some(&data), Some(&target)])?.remove(0).shape.unwrap())
    }

    #[test]
    fn open_sizes_follow_symbols() {
        let (n, s) = (Dim::symbol("n"), Dim::symbol("s"));
        let k = Dim::from;
        let heads = infer(&[n.clone(), s.clone(), k(768)], &[k(0), k(0), k(12), k(-1)]).unwrap();
        assert_eq!(heads[..], [n.clone(), s.clone(), k(12), k(64)]);
        let flat = infer(&[n.clone(), s.clone() + k(1), k(4)], &[k(-1), s.clone() + k(1)]).unwrap();
        assert_eq!(flat[..], [n.clone() * k(4), s.clone() + k(1)]);
        let ratio = infer(&[n.clone(), k(6)], &[k(-1), k(4)]).unwrap();
        assert_eq!(ratio[0].evaluate(&|_| Some(2)), k(3));
    }

    #[test]
    fn wrong_shapes_are_refused() {
        let k = Dim::from;
        for (from, to) in [(&[k(6)][..], &[k(4)][..]), (&[k(6)], &[k(-1), k(4)]), (&[k(6)], &[k(-1), k(-1)])] {
            assert!(infer(from, to).is_err(), "{from:?} {to:?}");
        }
        assert!(infer(&[k(6)], &[k(6), k(0)]).is_err());
        assert!(infer(&[k(6)], &[k(-2)]).is_err());
        assert_eq!(infer(&[k(0), k(2)], &[k(-1), k(2)]).unwrap()[..], [k(0), k(2)]);
        assert_eq!(infer(&[k(0), k(2)], &[k(0), k(-1)]).unwrap()[..], [k(0), k(0)]);
    }

    #[test]
    fn zero_is_a_size_where_allowed() {
        let data = Tensor::zeros(DType::F32, &[3, 0]).unwrap();
        let target = Tensor::from_slice(&[2], &[0i64, 5]).unwrap();
        let out = Reshape { allow_zero: true }.evaluate(&[Some(&data), Some(&target)]).unwrap().remove(0);
        assert_eq!(out.shape(), [0, 5]);
    }

    #[test]
    fn elements_pass() {
        let n = Dim::symbol("n");
        let vector = Fact::tensor(DType::I64, [Dim::from(1)]).and_elements(Some(vec![n.clone()]));
        let target = Fact::constant(Tensor::from_slice::<i64>(&[0], &[]).unwrap());
        let scalar = Reshape { allow_zero: false }.infer(&[Some(&vector), Some(&target)]).unwrap().remove(0);
        assert_eq!((scalar.rank(), scalar.dims()), (Some(0), Some(vec![n])));
    }
}
