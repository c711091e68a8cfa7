use crate::TensorError;
use smallvec::SmallVec;

/// Dimensions, outermost first. A scalar has none.
pub type Shape = SmallVec<[usize; 6]>;

/// Number of elements of a shape; an error where the product overflows.
pub fn element_count(shape: &[usize]) -> Result<usize, TensorError> {
    if shape.contains(&0) {
        return Ok(0);
    }
    shape
        .iter()
        .try_fold(1usize, |count, &dim| count.checked_mul(dim))
        .filter(|&count| count <= isize::MAX as usize / 16)
        .ok_or_else(|| TensorError::TooLarge(shape.into()))
}

/// Row-major strides in elements. Nothing lies at those of a shape without elements, which may be too large to count.
pub fn strides(shape: &[usize]) -> SmallVec<[usize; 6]> {
    let mut strides: SmallVec<[usize; 6]> = SmallVec::from_elem(1, shape.len());
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis].max(1));
    }
    strides
}

/// The shape that two shapes broadcast to, by NumPy's rule.
pub fn broadcast(a: &[usize], b: &[usize]) -> Result<Shape, TensorError> {
    let rank = a.len().max(b.len());
    let at = |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    (0..rank)
        .map(|axis| match (at(a, axis), at(b, axis)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(TensorError::Broadcast(a.into(), b.into())),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_are_row_major() {
        assert_eq!(strides(&[2, 3, 4]).as_slice(), [12, 4, 1]);
        assert!(strides(&[]).is_empty());
        assert_eq!(strides(&[1 << 40, 1 << 40, 1 << 40, 0])[1..], [1 << 40, 1, 1]);
    }

    #[test]
    fn counts_refuse_overflow() {
        assert_eq!(element_count(&[]), Ok(1));
        assert_eq!(element_count(&[0, usize::MAX, usize::MAX]), Ok(0));
        assert!(element_count(&[1 << 40, 1 << 40]).is_err());
    }

    #[test]
    fn broadcasting_follows_numpy() {
        assert_eq!(broadcast(&[3, 1], &[4]).unwrap().as_slice(), [3, 4]);
        assert_eq!(broadcast(&[], &[2, 0]).unwrap().as_slice(), [2, 0]);
        assert!(broadcast(&[2], &[3]).is_err());
    }
}
