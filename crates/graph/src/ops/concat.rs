use super::inputs::{check_axis, required, typed};
use super::{Facts, TensorOp, Tensors};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{DType, Shape, Tensor, element_count};
use smallvec::smallvec;

/// Joins tensors along one axis. Inputs: one or more of the same rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Concat {
    /// Axis, resolved to be non-negative.
    pub axis: usize,
}

impl TensorOp for Concat {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let facts: Vec<&Fact> = (0..inputs.len().max(1)).map(|i| required(inputs, i)).collect::<Result<_, _>>()?;
        let dtype = facts.iter().find_map(|fact| fact.dtype);
        let Some(first) = facts.iter().find_map(|fact| fact.shape.as_ref()) else {
            return Ok(smallvec![typed(dtype, None)]);
        };
        check_axis(self.axis, first.len())?;
        let mut shape = first.clone();
        shape[self.axis] = Dim::from(0);
        for fact in &facts {
            let Some(part) = &fact.shape else {
                shape[self.axis] = Dim::unknown();
                continue;
            };
            if part.len() != shape.len() || (fact.dtype.is_some() && fact.dtype != dtype) {
                return Err(self.mismatch(&facts));
            }
            for (axis, dim) in part.iter().enumerate() {
                if axis == self.axis {
                    shape[axis] = shape[axis].clone() + dim.clone();
                } else {
                    // The same size in every input: a number says most.
                    shape[axis] = match (shape[axis].known(), dim.known()) {
                        (Some(a), Some(b)) if a != b => return Err(self.mismatch(&facts)),
                        (None, Some(_)) => dim.clone(),
                        _ => shape[axis].clone(),
                    };
                }
            }
        }
        let elements: Option<Vec<Vec<Dim>>> = facts.iter().map(|fact| fact.dims()).collect();
        let elements = elements.filter(|_| shape.len() == 1).map(|parts| parts.concat());
        Ok(smallvec![typed(dtype, Some(shape)).and_elements(elements)])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let parts: Vec<&Tensor> = (0..inputs.len().max(1)).map(|i| required(inputs, i)).collect::<Result<_, _>>()?;
        let facts: Vec<Fact> = parts.iter().map(|part| shape_of(part)).collect();
        let facts: Vec<Option<&Fact>> = facts.iter().map(Some).collect();
        let shape: Shape = self.infer(&facts)?[0].known_shape().unwrap_or_default();
        let outer = element_count(&shape[..self.axis])?;
        // Elements of each part that lie together under one index of the outer axes.
        let runs: Vec<usize> = parts.iter().map(|p| p.shape()[self.axis..].iter().product()).collect();
        if parts[0].dtype() == DType::String {
            let mut strings = Vec::with_capacity(element_count(&shape)?);
            for index in 0..outer {
                for (part, &run) in parts.iter().zip(&runs) {
                    strings.extend_from_slice(&part.strings()?[index * run..][..run]);
                }
            }
            return Ok(smallvec![Tensor::from_strings(&shape, strings)?]);
        }
        let mut out = Tensor::zeros(parts[0].dtype(), &shape)?;
        let size = out.dtype().size();
        let mut rest = out.bytes_mut()?;
        for index in 0..outer {
            for (part, &run) in parts.iter().zip(&runs) {
                let (to, after) = rest.split_at_mut(run * size);
                to.copy_from_slice(&part.bytes()?[index * run * size..][..run * size]);
                rest = after;
            }
        }
        Ok(smallvec![out])
    }
}

fn shape_of(tensor: &Tensor) -> Fact {
    Fact::tensor(tensor.dtype(), tensor.shape().iter().map(|&d| Dim::from(d)))
}

impl Concat {
    fn mismatch(&self, facts: &[&Fact]) -> OpError {
        let parts: Vec<String> = facts
            .iter()
            .map(|f| match (&f.dtype, &f.shape) {
                (Some(dtype), Some(shape)) => format!("{dtype}{shape:?}"),
                _ => "?".to_owned(),
            })
            .collect();
        OpError::invalid(format!("cannot join {} along axis {}", parts.join(", "), self.axis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(axis: usize, parts: &[Tensor]) -> Result<Tensor, OpError> {
        Ok(Concat { axis }.evaluate(&parts.iter().map(Some).collect::<Vec<_>>())?.remove(0))
    }

    #[test]
    fn parts_of_different_sizes() {
        let a = Tensor::from_slice(&[2, 1], &[1i16, 2]).unwrap();
        let b = Tensor::from_slice(&[2, 2], &[3i16, 4, 5, 6]).unwrap();
        let empty = Tensor::zeros(DType::I16, &[2, 0]).unwrap();
        let joined = Tensor::from_slice(&[2, 3], &[1i16, 3, 4, 2, 5, 6]).unwrap();
        assert_eq!(run(1, &[a.clone(), empty, b.clone()]).unwrap(), joined);
        assert!(run(0, &[a.clone(), b]).is_err());
        assert!(run(1, &[a, Tensor::zeros(DType::I32, &[2, 1]).unwrap()]).is_err());
    }

    #[test]
    fn strings_join() {
        let part = |text: &str| Tensor::from_strings(&[1], vec![text.into()]).unwrap();
        assert_eq!(run(0, &[part("a"), part("b")]).unwrap().strings().unwrap(), [b"a".to_vec(), b"b".to_vec()]);
    }

    #[test]
    fn sizes_join() {
        let n = Dim::symbol("n");
        let vector = |dims: Vec<Dim>| Fact::tensor(DType::I64, [Dim::from(dims.len())]).and_elements(Some(dims));
        let (a, b) = (vector(vec![n.clone()]), vector(vec![Dim::from(-1), Dim::from(3)]));
        let fact = Concat { axis: 0 }.infer(&[Some(&a), Some(&b)]).unwrap().remove(0);
        assert_eq!(fact.dims(), Some(vec![n, Dim::from(-1), Dim::from(3)]));
    }
}
