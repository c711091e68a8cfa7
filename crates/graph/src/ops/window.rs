//! Where the windows of convolutions and pooling lie along one axis.

use super::Padding;
use crate::{Dim, OpError};
use std::ops::Range;

/// The windows along one spatial axis of known size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Axis {
    /// Elements of the input.
    pub(crate) size: usize,
    /// Taps of a window.
    pub(crate) kernel: usize,
    /// Step from window to window.
    pub(crate) stride: usize,
    /// Distance between taps.
    pub(crate) dilation: usize,
    /// Border before and after; negative removes.
    pub(crate) before: i64,
    /// See `before`.
    pub(crate) after: i64,
    /// Number of windows.
    pub windows: usize,
}

impl Axis {
    /// The windows of axis `axis` of `axes` spatial ones.
    pub(crate) fn new(
        size: usize,
        kernel: usize,
        stride: usize,
        dilation: usize,
        padding: &Padding,
        (axis, axes): (usize, usize),
        ceil_mode: bool,
    ) -> Result<Axis, OpError> {
        let extent = extent(kernel, stride, dilation)?;
        let (size_i, stride_i) = (size as i64, stride as i64);
        let (before, after, windows) = match padding {
            Padding::Explicit(pads) => {
                let (before, after) = explicit(pads, axis, axes)?;
                let room = size_i.saturating_add(before).saturating_add(after) - extent;
                let mut windows = match ceil_mode {
                    _ if room < 0 => {
                        if size == 0 {
                            0
                        } else {
                            -1
                        }
                    }
                    true => (room.saturating_add(stride_i - 1)).div_euclid(stride_i) + 1,
                    false => room.div_euclid(stride_i) + 1,
                };
                // A window that starts behind the input would see nothing but border.
                if ceil_mode && (windows - 1).saturating_mul(stride_i) >= size_i.saturating_add(before) {
                    windows -= 1;
                }
                (before, after, windows)
            }
            same => {
                let windows = (size_i + stride_i - 1) / stride_i;
                let total = ((windows - 1) * stride_i + extent - size_i).max(0);
                let before = if *same == Padding::SameUpper { total / 2 } else { total - total / 2 };
                (before, total - before, windows)
            }
        };
        let windows = usize::try_from(windows).map_err(|_| {
            OpError::invalid(format!(
                "a window of {extent} does not fit {size} elements with a border of {before} and {after}"
            ))
        })?;
        Ok(Axis { size, kernel, stride, dilation, before, after, windows })
    }

    /// What some windows see of the input, and how far the first begins before that, in its border. `None` where they see
    /// nothing but border, or begin behind the first element that one of them sees.
    pub fn seen(&self, windows: Range<usize>) -> Option<(Range<usize>, usize)> {
        let first = (windows.start * self.stride) as i64 - self.before;
        let last = (windows.end.checked_sub(1)? * self.stride + (self.kernel.checked_sub(1)?) * self.dilation) as i64;
        let size = self.size as i64;
        let (from, to) = (first.clamp(0, size), (last + 1 - self.before).clamp(0, size));
        let above = usize::try_from(from - first).ok()?;
        (from < to).then_some((from as usize..to as usize, above))
    }

    /// Elements that two neighbouring windows both reach over.
    pub fn shared(&self) -> usize {
        ((self.kernel.max(1) - 1) * self.dilation + 1).saturating_sub(self.stride)
    }

    /// The position of a tap of a window in the input; `None` in the border.
    pub(crate) fn position(&self, window: usize, tap: usize) -> Option<usize> {
        let position = (window * self.stride + tap * self.dilation) as i64 - self.before;
        usize::try_from(position).ok().filter(|&position| position < self.size)
    }

    /// Whether a tap of a window lies within the input and its border.
    pub(crate) fn within_border(&self, window: usize, tap: usize) -> bool {
        ((window * self.stride + tap * self.dilation) as i64) < self.size as i64 + self.before + self.after
    }
}

/// The number of windows along an axis whose size may be a symbol.
pub(crate) fn windows(
    size: &Dim,
    kernel: usize,
    stride: usize,
    dilation: usize,
    padding: &Padding,
    at: (usize, usize),
    ceil_mode: bool,
) -> Result<Dim, OpError> {
    if let Some(size) = size.size() {
        return Ok(Dim::from(Axis::new(size, kernel, stride, dilation, padding, at, ceil_mode)?.windows));
    }
    let extent = extent(kernel, stride, dilation)?;
    match padding {
        // Whether the last window is dropped depends on the size.
        Padding::Explicit(_) if ceil_mode => Ok(Dim::unknown()),
        Padding::Explicit(pads) => {
            let (before, after) = explicit(pads, at.0, at.1)?;
            let room = size.clone() + Dim::from(before.saturating_add(after) - extent);
            Ok(room.floor_div(&Dim::from(stride)) + Dim::from(1))
        }
        Padding::SameUpper | Padding::SameLower => Ok(size.ceil_div(&Dim::from(stride))),
    }
}

/// Elements from the first to the last tap of a window.
pub(crate) fn extent(kernel: usize, stride: usize, dilation: usize) -> Result<i64, OpError> {
    let in_range = |v: usize| (1..=i32::MAX as usize).contains(&v);
    match in_range(kernel) && in_range(stride) && in_range(dilation) {
        true => Ok((kernel as i64 - 1) * dilation as i64 + 1),
        false => Err(OpError::invalid(format!("a window of {kernel} taps, stride {stride}, dilation {dilation}"))),
    }
}

/// The border before and after an axis.
pub(crate) fn explicit(pads: &[i64], axis: usize, axes: usize) -> Result<(i64, i64), OpError> {
    let near = |v: i64| v.unsigned_abs() <= i32::MAX as u64;
    match pads.len() == 2 * axes && pads.iter().all(|&v| near(v)) {
        true => Ok((pads[axis], pads[axes + axis])),
        false => Err(OpError::invalid(format!("pads {pads:?} for {axes} spatial axes"))),
    }
}

/// The value of a per-axis attribute that is 1 where it is not given.
pub(crate) fn per_axis(list: &[usize], axis: usize) -> usize {
    list.get(axis).copied().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    fn axis(size: usize, kernel: usize, stride: usize, padding: Padding, ceil: bool) -> Axis {
        Axis::new(size, kernel, stride, 1, &padding, (0, 1), ceil).unwrap()
    }

    #[test]
    fn windows_see_rows_and_a_border() {
        let three = axis(7, 3, 1, Padding::Explicit(smallvec![1, 1]), false);
        assert_eq!([three.seen(0..1), three.seen(0..7)], [Some((0..2, 1)), Some((0..7, 1))]);
        assert_eq!([three.seen(3..5), three.seen(6..7)], [Some((2..6, 0)), Some((5..7, 0))]);
        assert_eq!(three.seen(3..3), Some((2..4, 0)), "what the next window would begin with");
        let every_second = axis(8, 3, 2, Padding::SameUpper, false);
        assert_eq!([every_second.seen(0..2), every_second.seen(3..4)], [Some((0..5, 0)), Some((6..8, 0))]);
        let far = axis(4, 1, 1, Padding::Explicit(smallvec![3, 0]), false);
        assert_eq!([far.seen(0..3), far.seen(2..4)], [None, Some((0..1, 1))]);
        assert_eq!([three.shared(), every_second.shared(), far.shared()], [2, 1, 0]);
    }

    #[test]
    fn number_of_windows() {
        let pads = |before, after| Padding::Explicit(smallvec![before, after]);
        assert_eq!(axis(7, 3, 2, pads(1, 1), false).windows, 4);
        assert_eq!(axis(4, 3, 2, pads(0, 0), false).windows, 1);
        assert_eq!(axis(4, 3, 2, pads(0, 0), true).windows, 2);
        // The second window would start in the border behind.
        assert_eq!(axis(2, 1, 2, pads(0, 1), true).windows, 1);
        assert_eq!(
            (axis(5, 2, 2, Padding::SameUpper, false).before, axis(5, 2, 2, Padding::SameLower, false).before),
            (0, 1)
        );
        assert!(Axis::new(1, 5, 1, 1, &pads(0, 0), (0, 1), false).is_err());
        assert!(Axis::new(1, 1, 0, 1, &pads(0, 0), (0, 1), false).is_err());
    }

    #[test]
    fn symbols_agree_with_numbers() {
        let n = Dim::symbol("n");
        for padding in [Padding::Explicit(smallvec![1, 0]), Padding::SameLower] {
            let symbolic = windows(&n, 3, 2, 2, &padding, (0, 1), false).unwrap();
            for size in 5..9 {
                let exact = Axis::new(size, 3, 2, 2, &padding, (0, 1), false).unwrap().windows;
                assert_eq!(symbolic.evaluate(&|_| Some(size as i64)), Dim::from(exact));
            }
        }
    }
}
