//! Into how many tasks rows are cut, so that threads have as much to do.

/// Tasks of each thread, of which one more or less makes little difference.
pub(super) const TASKS_OF_THREAD: usize = 4;

/// Into how many parts each of so many images, or matrices, is cut that have so many rows, if it is to be cut into that many at least: so that
/// all `takers` have as many of them, or many.
pub(super) fn rows_cut(images: usize, rows: usize, least: usize, takers: usize) -> usize {
    if rows == 0 {
        return 0;
    }
    // Parts of as many rows each, but for the last.
    let made = |cut: usize| images * rows.div_ceil(rows.div_ceil(cut));
    let least = least.max(takers.div_ceil(images.max(1))).clamp(1, rows);
    if made(least) >= TASKS_OF_THREAD * takers {
        return least;
    }
    (least..=rows.min(least + takers)).find(|&cut| made(cut).is_multiple_of(takers)).unwrap_or(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_get_as_many_rows_each() {
        // Parts that are made of so many images of so many rows, cut into so many at least for so many threads.
        let made = |images: usize, rows: usize, least, threads| {
            images * rows.div_ceil(rows.div_ceil(rows_cut(images, rows, least, threads)))
        };
        assert_eq!([made(1, 28, 1, 1), made(8, 28, 3, 1)], [1, 24], "one thread takes all as it is");
        assert_eq!(made(1, 56, 3, 2), 4, "three parts are one too many for one of two threads");
        assert_eq!(made(1, 14, 5, 2), 5, "six would be five of three rows each, too");
        assert_eq!([made(8, 56, 1, 2), made(3, 56, 1, 2), made(1, 28, 3, 2)], [8, 6, 4]);
        assert_eq!(rows_cut(1, 448, 9, 2), 9, "there are many");
        assert_eq!([rows_cut(1, 3, 1, 16), rows_cut(0, 7, 1, 2), rows_cut(2, 0, 1, 2)], [3, 2, 0]);
    }
}
