use crate::{Dim, Dims, OpError};

/// The position in a tensor of shape `operand` of the element that stands at `flat` of the broadcast
/// `shape`.
pub fn broadcast_index(mut flat: usize, shape: &[usize], operand: &[usize]) -> usize {
    let (mut index, mut stride) = (0, 1);
    for axis in (0..shape.len()).rev() {
        let at = flat % shape[axis];
        flat /= shape[axis];
        if let Some(own) = (axis + operand.len()).checked_sub(shape.len()) {
            index += if operand[own] == 1 { 0 } else { at * stride };
            stride *= operand[own];
        }
    }
    index
}

/// The dimensions that two shapes broadcast to.
pub fn broadcast_dims(a: &[Dim], b: &[Dim]) -> Result<Dims, OpError> {
    let rank = a.len().max(b.len());
    let at =
        |dims: &[Dim], axis: usize| (axis + dims.len()).checked_sub(rank).map_or(Dim::from(1), |i| dims[i].clone());
    (0..rank)
        .map(|axis| at(a, axis).broadcast(&at(b, axis)))
        .collect::<Option<_>>()
        .ok_or_else(|| OpError::invalid(format!("the shapes {a:?} and {b:?} do not broadcast")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_follow_the_broadcast() {
        let positions: Vec<_> = (0..6).map(|flat| broadcast_index(flat, &[2, 3], &[2, 1])).collect();
        assert_eq!(positions, [0, 0, 0, 1, 1, 1]);
        assert_eq!(broadcast_index(5, &[2, 3], &[3]), 2);
        assert_eq!(broadcast_index(5, &[2, 3], &[]), 0);
    }
}
