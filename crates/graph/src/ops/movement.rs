//! Moving elements without looking at them: the same code for every datatype, strings included.

use crate::OpError;
use halimede_tensor::{DType, Tensor, element_count};
use smallvec::SmallVec;

/// Positions of the elements of a strided view in row-major order of its shape.
#[derive(Debug, Clone)]
pub(crate) struct Offsets {
    shape: SmallVec<[usize; 6]>,
    strides: SmallVec<[isize; 6]>,
    index: SmallVec<[usize; 6]>,
    offset: isize,
    left: usize,
}

impl Offsets {
    /// The view of `shape` whose element `i` lies at `start + Σ i[axis] · strides[axis]`.
    pub(crate) fn new(shape: &[usize], start: isize, strides: &[isize]) -> Result<Offsets, OpError> {
        let left = element_count(shape)?;
        let index = SmallVec::from_elem(0, shape.len());
        Ok(Offsets { shape: shape.into(), strides: strides.into(), index, offset: start, left })
    }

    /// A tensor of shape `from` broadcast to `to`.
    pub(crate) fn broadcast(from: &[usize], to: &[usize]) -> Result<Offsets, OpError> {
        Offsets::new(to, 0, &broadcast_strides(from, to))
    }
}

impl Iterator for Offsets {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let offset = self.offset as usize;
        for axis in (0..self.shape.len()).rev() {
            self.index[axis] += 1;
            self.offset += self.strides[axis];
            if self.index[axis] < self.shape[axis] {
                break;
            }
            self.offset -= self.strides[axis] * self.shape[axis] as isize;
            self.index[axis] = 0;
        }
        Some(offset)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Offsets {}

/// Row-major strides, signed, so that views can run backwards.
pub(crate) fn strides(shape: &[usize]) -> SmallVec<[isize; 6]> {
    halimede_tensor::strides(shape).into_iter().map(|stride| stride as isize).collect()
}

/// Strides that read a tensor of shape `from` under the shape `to` that it broadcasts to.
pub(crate) fn broadcast_strides(from: &[usize], to: &[usize]) -> SmallVec<[isize; 6]> {
    let missing = to.len() - from.len();
    let own = strides(from);
    (0..to.len())
        .map(|axis| match axis.checked_sub(missing) {
            Some(axis) if from[axis] != 1 => own[axis],
            _ => 0,
        })
        .collect()
}

/// The tensor of `shape` whose elements are those of `data` at `positions`.
pub(crate) fn take(data: &Tensor, shape: &[usize], positions: impl Iterator<Item = usize>) -> Result<Tensor, OpError> {
    take_or(data, None, shape, positions.map(Some))
}

/// The tensor of `shape` whose elements are those of `data` at `positions`, and the one element of
/// `fill` (zero or the empty string without) where there is no position.
pub(crate) fn take_or(
    data: &Tensor,
    fill: Option<&Tensor>,
    shape: &[usize],
    positions: impl Iterator<Item = Option<usize>>,
) -> Result<Tensor, OpError> {
    if let Some(fill) = fill.filter(|fill| fill.dtype() != data.dtype() || fill.len() != 1) {
        let (dtype, actual, len) = (data.dtype(), fill.dtype(), fill.len());
        return Err(OpError::invalid(format!("the fill value should be one {dtype}, got {len} of {actual}")));
    }
    // Of rows without elements there may be very many.
    if shape.contains(&0) {
        return Ok(Tensor::zeros(data.dtype(), shape)?);
    }
    if data.dtype() == DType::String {
        let from = data.strings()?;
        let fill = fill.map(|fill| fill.strings().map(|v| v[0].clone())).transpose()?.unwrap_or_default();
        let to = positions.map(|p| p.map_or_else(|| fill.clone(), |p| from[p].clone())).collect();
        return Ok(Tensor::from_strings(shape, to)?);
    }
    let mut out = Tensor::zeros(data.dtype(), shape)?;
    let fill = fill.map(Tensor::bytes).transpose()?;
    let (from, to) = (data.bytes()?, out.bytes_mut()?);
    match data.dtype().size() {
        1 => copy::<1>(from, fill, to, positions),
        2 => copy::<2>(from, fill, to, positions),
        4 => copy::<4>(from, fill, to, positions),
        8 => copy::<8>(from, fill, to, positions),
        _ => copy::<16>(from, fill, to, positions),
    }
    Ok(out)
}

/// [`take_or`] for elements of `SIZE` bytes.
fn copy<const SIZE: usize>(
    from: &[u8],
    fill: Option<&[u8]>,
    to: &mut [u8],
    positions: impl Iterator<Item = Option<usize>>,
) {
    let (from, to) = (from.as_chunks::<SIZE>().0, to.as_chunks_mut::<SIZE>().0);
    let fill = fill.and_then(|fill| fill.first_chunk()).copied().unwrap_or([0; SIZE]);
    for (to, position) in to.iter_mut().zip(positions) {
        *to = position.map_or(fill, |position| from[position]);
    }
}

/// Writes the elements of `data` to `positions` of `out`, in order; both of one datatype.
pub(crate) fn put(out: &mut Tensor, data: &Tensor, positions: impl Iterator<Item = usize>) -> Result<(), OpError> {
    if data.dtype() == DType::String {
        let mut strings = out.strings()?.to_vec();
        for (position, string) in positions.zip(data.strings()?) {
            strings[position] = string.clone();
        }
        *out = Tensor::from_strings(out.shape(), strings)?;
        return Ok(());
    }
    let size = data.dtype().size();
    if out.dtype() != data.dtype() {
        return Err(OpError::invalid(format!("cannot write {} into {}", data.dtype(), out.dtype())));
    }
    let from = data.bytes()?;
    let to = out.bytes_mut()?;
    for (position, element) in positions.zip(from.chunks_exact(size)) {
        to[position * size..][..size].copy_from_slice(element);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_run_in_any_direction() {
        let all = |shape: &[usize], start, strides: &[isize]| {
            Offsets::new(shape, start, strides).unwrap().collect::<Vec<_>>()
        };
        assert_eq!(all(&[2, 3], 0, &[1, 2]), [0, 2, 4, 1, 3, 5]);
        assert_eq!(all(&[3], 2, &[-1]), [2, 1, 0]);
        assert_eq!(all(&[], 0, &[]), [0]);
        assert_eq!(all(&[2, 0], 0, &[1, 1]), [] as [usize; 0]);
        assert_eq!(Offsets::broadcast(&[2, 1], &[2, 2, 2]).unwrap().collect::<Vec<_>>(), [0, 0, 1, 1, 0, 0, 1, 1]);
    }

    #[test]
    fn every_element_size_and_strings_move_alike() {
        for dtype in DType::ALL {
            let data = match dtype {
                DType::String => Tensor::from_strings(&[2], vec![b"a".to_vec(), b"b".to_vec()]).unwrap(),
                _ => {
                    let bytes: Vec<u8> = (0..2 * dtype.size() as u8).collect();
                    Tensor::from_buffer(dtype, &[2], halimede_tensor::Buffer::copied(&bytes).unwrap()).unwrap()
                }
            };
            let swapped = take(&data, &[2], [1, 0].into_iter()).unwrap();
            let again = take(&swapped, &[2], [1, 0].into_iter()).unwrap();
            assert_eq!(again, data, "{dtype}");
            let mut written = take_or(&data, None, &[2], [None, None].into_iter()).unwrap();
            assert_eq!(written, Tensor::zeros(dtype, &[2]).unwrap(), "{dtype}");
            put(&mut written, &swapped, [1, 0].into_iter()).unwrap();
            assert_eq!(written, data, "{dtype}");
        }
    }

    #[test]
    fn a_fill_value_must_have_the_datatype() {
        let data = Tensor::scalar(1i32);
        let filled = take_or(&data, Some(&Tensor::scalar(7i32)), &[2], [None, Some(0)].into_iter()).unwrap();
        assert_eq!(filled, Tensor::from_slice(&[2], &[7i32, 1]).unwrap());
        assert!(take_or(&data, Some(&Tensor::scalar(7i64)), &[1], [None].into_iter()).is_err());
    }
}
