//! Into which tasks rows are cut, so that threads have as much to do.

use std::ops::Range;

/// Tasks of each thread, of which one more or less makes little difference.
pub(super) const TASKS_OF_THREAD: usize = 4;

/// Rows that are cut into shares between units of so many: the numbers of units in them differ by one at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shares {
    rows: usize,
    unit: usize,
    pub count: usize,
}

impl Shares {
    /// So many shares, or as many as there are units.
    pub fn new(rows: usize, unit: usize, count: usize) -> Shares {
        let unit = unit.max(1);
        Shares { rows, unit, count: count.max(1).min(rows.div_ceil(unit)) }
    }

    /// Shares of so many rows, but for the last.
    pub fn of_rows(rows: usize, each: usize) -> Shares {
        Shares::new(rows, each, usize::MAX)
    }

    fn units(&self) -> usize {
        self.rows.div_ceil(self.unit)
    }

    /// Rows that a share has at most.
    pub fn most(&self) -> usize {
        self.units().div_ceil(self.count.max(1)) * self.unit
    }

    /// The rows of a share.
    pub fn range(&self, number: usize) -> Range<usize> {
        let [first, last] =
            [number, number + 1].map(|number| (number * self.units() / self.count * self.unit).min(self.rows));
        first..last
    }
}

/// Whether threads get as many of so many parts, or nearly: of fewer parts than threads they do not.
pub(super) fn are_even(parts: usize, threads: usize) -> bool {
    parts.is_multiple_of(threads) || parts >= TASKS_OF_THREAD * threads
}

/// Into how many parts each of so many images, or matrices, is cut that have so many rows, if it is to be cut into that many at least: so that
/// all `takers` have as many of them, or many.
pub(super) fn rows_cut(images: usize, rows: usize, least: usize, takers: usize) -> usize {
    if rows == 0 {
        return 0;
    }
    let least = least.max(takers.div_ceil(images.max(1))).clamp(1, rows);
    if images * least >= TASKS_OF_THREAD * takers {
        return least;
    }
    (least..=rows.min(least + takers)).find(|&cut| (images * cut).is_multiple_of(takers)).unwrap_or(least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn threads_get_as_many_rows_each() {
        assert_eq!([rows_cut(1, 28, 1, 1), rows_cut(8, 28, 3, 1)], [1, 3], "one thread takes all as it is");
        assert_eq!(rows_cut(1, 56, 3, 2), 4, "three parts are one too many for one of two threads");
        assert_eq!(rows_cut(1, 14, 5, 2), 6);
        assert_eq!([rows_cut(8, 56, 1, 2), rows_cut(3, 56, 1, 2), rows_cut(1, 28, 3, 2)], [1, 2, 4]);
        assert_eq!(rows_cut(1, 448, 9, 2), 9, "there are many");
        assert_eq!([rows_cut(1, 3, 1, 16), rows_cut(0, 7, 1, 2), rows_cut(2, 0, 1, 2)], [3, 2, 0]);
        // Of two threads each takes neighbouring parts first.
        let half = |rows, unit, count| Shares::new(rows, unit, count).range(count / 2).start;
        assert_eq!(
            [half(10, 1, 4), half(14, 1, 4), half(112, 1, 4), half(320, 32, 4)],
            [5, 7, 56, 160],
            "not 6, 8, 56, 192"
        );
    }

    proptest! {
        #[test]
        fn shares_are_all_rows_and_even(rows in 0usize..500, unit in 0usize..40, count in 0usize..40) {
            let shares = Shares::new(rows, unit, count);
            let ranges: Vec<_> = (0..shares.count).map(|number| shares.range(number)).collect();
            prop_assert_eq!(ranges.iter().map(|range| range.len()).sum::<usize>(), rows);
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(ranges.iter().all(|range| !range.is_empty() && range.len() <= shares.most()));
            prop_assert!(ranges.iter().all(|range| range.start.is_multiple_of(shares.unit)));
            let units: Vec<_> = ranges.iter().map(|range| range.len().div_ceil(shares.unit)).collect();
            prop_assert!(units.iter().all(|&units| units + 1 >= shares.most() / shares.unit));
        }
    }
}
