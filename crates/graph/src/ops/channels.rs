//! Channels as axis 1, as ONNX has them, and as the last axis, as processors like them.

use super::{TensorOp, Transpose};
use crate::OpError;
use halimede_tensor::Tensor;
use smallvec::SmallVec;

/// Where each axis of a channels-last tensor lies in the usual order: `[0, 2, ..., 1]`.
pub(crate) fn last_from_first(rank: usize) -> SmallVec<[usize; 6]> {
    std::iter::once(0).chain(2..rank).chain((rank > 1).then_some(1)).collect()
}

/// Where each axis of the usual order lies in a channels-last tensor: `[0, rank - 1, 1, ...]`.
pub(crate) fn first_from_last(rank: usize) -> SmallVec<[usize; 6]> {
    std::iter::once(0).chain((rank > 1).then(|| rank - 1)).chain(1..rank.max(2) - 1).collect()
}

/// Dimensions of a channels-last tensor in the usual order.
pub fn channels_first<D: Clone, C: FromIterator<D>>(dims: &[D]) -> C {
    first_from_last(dims.len()).iter().filter_map(|&axis| dims.get(axis).cloned()).collect()
}

/// Dimensions in the usual order with the channels last.
pub fn channels_last<D: Clone, C: FromIterator<D>>(dims: &[D]) -> C {
    last_from_first(dims.len()).iter().filter_map(|&axis| dims.get(axis).cloned()).collect()
}

pub(crate) fn to_channels_first(tensor: &Tensor) -> Result<Tensor, OpError> {
    Ok(Transpose { perm: first_from_last(tensor.rank()) }.evaluate(&[Some(tensor)])?.remove(0))
}

pub(crate) fn to_channels_last(tensor: &Tensor) -> Result<Tensor, OpError> {
    Ok(Transpose { perm: last_from_first(tensor.rank()) }.evaluate(&[Some(tensor)])?.remove(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        assert_eq!(last_from_first(4).as_slice(), [0, 2, 3, 1]);
        assert_eq!(first_from_last(4).as_slice(), [0, 3, 1, 2]);
        for rank in 1..6 {
            let dims: Vec<usize> = (0..rank).collect();
            assert_eq!(channels_first::<_, Vec<_>>(&channels_last::<_, Vec<_>>(&dims)), dims);
        }
    }
}
