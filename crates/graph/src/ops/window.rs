//! Where the windows of convolutions and pooling lie along one axis.

use super::Padding;
use crate::{Dim, OpError};

/// The windows along one spatial axis of known size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Axis {
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
    pub(crate) windows: usize,
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
