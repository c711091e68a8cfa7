use super::inputs::{required, typed};
use super::movement::{Offsets, strides, take};
use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::{Shape, Tensor};
use smallvec::{SmallVec, smallvec};

/// Reorders axes: output axis `i` is input axis `perm[i]`. Inputs: data.
#[derive(Debug, Clone, PartialEq)]
pub struct Transpose {
    /// The order.
    pub perm: SmallVec<[usize; 6]>,
}

impl TensorOp for Transpose {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let data = required(inputs, 0)?;
        let Some(shape) = &data.shape else {
            return Ok(smallvec![typed(data.dtype, Some(smallvec![crate::Dim::unknown(); self.perm.len()]))]);
        };
        self.check(shape.len())?;
        let shape = self.perm.iter().map(|&axis| shape[axis].clone()).collect();
        let elements = data.dims().filter(|_| self.perm.len() <= 1);
        Ok(smallvec![typed(data.dtype, Some(shape)).and_elements(elements)])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let data = required(inputs, 0)?;
        self.check(data.rank())?;
        let own = strides(data.shape());
        let shape: Shape = self.perm.iter().map(|&axis| data.shape()[axis]).collect();
        let strides: SmallVec<[isize; 6]> = self.perm.iter().map(|&axis| own[axis]).collect();
        Ok(smallvec![take(data, &shape, Offsets::new(&shape, 0, &strides)?)?])
    }
}

impl Transpose {
    fn check(&self, rank: usize) -> Result<(), OpError> {
        let mut sorted = self.perm.clone();
        sorted.sort_unstable();
        if sorted.iter().copied().eq(0..rank) {
            return Ok(());
        }
        Err(OpError::invalid(format!("perm {:?} is no order of the {rank} axes of the data", self.perm)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dim;
    use halimede_tensor::DType;

    #[test]
    fn axes_change_places() {
        let data = Tensor::from_slice(&[2, 3], &[1u8, 2, 3, 4, 5, 6]).unwrap();
        let transpose = Transpose { perm: smallvec![1, 0] };
        let out = transpose.evaluate(&[Some(&data)]).unwrap().remove(0);
        assert_eq!(out, Tensor::from_slice(&[3, 2], &[1u8, 4, 2, 5, 3, 6]).unwrap());
        let n = Dim::symbol("n");
        let fact = transpose.infer(&[Some(&Fact::tensor(DType::U8, [n.clone(), Dim::from(3)]))]).unwrap().remove(0);
        assert_eq!(fact.shape.unwrap()[..], [Dim::from(3), n]);
        assert!(Transpose { perm: smallvec![0, 0] }.evaluate(&[Some(&data)]).is_err());
    }
}
