//! Shapes seen as rows: what reductions, softmax and normalisations share.

use crate::map::Register;
use halimede_tensor::View;
use smallvec::SmallVec;

/// A tensor as `[outer, length, inner]`, the middle axis being worked along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rows {
    pub outer: usize,
    pub length: usize,
    pub inner: usize,
}

impl Rows {
    /// Along one axis.
    pub fn along(shape: &[usize], axis: usize) -> Rows {
        Rows { outer: shape[..axis].iter().product(), length: shape[axis], inner: shape[axis + 1..].iter().product() }
    }

    /// Along axes that lie together, axes of size 1 aside; `None` where others lie between.
    pub fn along_all(shape: &[usize], axes: &[usize]) -> Option<Rows> {
        let marks: SmallVec<[(usize, bool); 6]> = shape
            .iter()
            .enumerate()
            .filter(|&(_, &size)| size != 1)
            .map(|(axis, &size)| (size, axes.contains(&axis)))
            .collect();
        let first = marks.iter().position(|mark| mark.1).unwrap_or(marks.len());
        let last = marks.iter().rposition(|mark| mark.1).map_or(first, |last| last + 1);
        let size = |part: &[(usize, bool)]| part.iter().map(|mark| mark.0).product();
        marks[first..last].iter().all(|mark| mark.1).then(|| Rows {
            outer: size(&marks[..first]),
            length: size(&marks[first..last]),
            inner: size(&marks[last..]),
        })
    }
}

/// The elements `first..first + count` of an output, for one of several threads.
///
/// # Safety
/// As [`View::slice_mut`] for those elements alone.
pub(super) unsafe fn part_mut<'a, T: halimede_tensor::Element>(
    view: View<'a>,
    first: usize,
    count: usize,
) -> &'a mut [T] {
    assert!((first + count) * size_of::<T>() <= view.len());
    // SAFETY: inside the view; the elements are the caller's alone.
    unsafe { std::slice::from_raw_parts_mut(view.as_ptr().cast::<T>().add(first), count) }
}

/// The registers of one of several threads, each having `bytes` of a workspace; none where `bytes` is 0.
///
/// # Safety
/// Each thread asks for its own number while the slice lives.
pub(super) unsafe fn registers_of<'a>(workspace: View<'a>, thread: usize, bytes: usize) -> &'a mut [Register] {
    if bytes == 0 {
        return &mut [];
    }
    assert!((thread + 1) * bytes <= workspace.len());
    // SAFETY: inside the workspace, which is aligned to 64 like a register; the part is the caller's.
    unsafe {
        let start = workspace.as_ptr().add(thread * bytes).cast::<Register>();
        std::slice::from_raw_parts_mut(start, bytes / size_of::<Register>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_of_size_one_do_not_separate() {
        assert_eq!(Rows::along_all(&[2, 3, 1, 4], &[1, 3]), Some(Rows { outer: 2, length: 12, inner: 1 }));
        assert_eq!(Rows::along_all(&[2, 3, 4], &[0, 2]), None);
        assert_eq!(Rows::along_all(&[2, 3, 4], &[]), Some(Rows { outer: 24, length: 1, inner: 1 }));
        assert_eq!(Rows::along(&[2, 3, 4], 1), Rows { outer: 2, length: 3, inner: 4 });
    }
}
