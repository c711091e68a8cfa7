//! Into which tasks a convolution is cut, so that threads have as much to do.

use super::window::Window;
use crate::matrix::{BLOCK, Factor, MatrixUnit};

/// Tasks of each thread, of which one more or less makes little difference.
const TASKS_OF_THREAD: usize = 4;

/// Rows of the output of a task, near so many and at most as many as are given: of tiles without a border as many as fill whole blocks, where
/// that leaves enough tasks for all threads.
pub(super) fn whole_blocks<F: Factor>(
    rows: usize,
    most: usize,
    (window, matrix, threads): (&Window, MatrixUnit<F>, usize),
) -> usize {
    let (height, width) = (window.out[1], window.out[2]);
    let whole = BLOCK >> width.trailing_zeros().min(BLOCK.trailing_zeros());
    if matrix.takes_lines() || !window.is_pointwise() || rows >= height {
        return rows;
    }
    let even = match rows.next_multiple_of(whole) {
        more if more <= most.min(height) => more,
        more if more > whole => more - whole,
        _ => return rows,
    };
    if threads == 1 || height.div_ceil(even) >= TASKS_OF_THREAD * threads { even } else { rows }
}

/// Into how many parts each of so many images is cut that have so many rows, if it is to be cut into that many at least: so that all `takers`
/// have as many of them, or many.
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
    use crate::kernels::conv::window::tests::window;
    use crate::matrix::Matrix;
    use half::bf16;

    #[test]
    fn tasks_of_pixels_end_with_whole_blocks() {
        let rows = |size, kernel, rows, most, threads| {
            whole_blocks::<bf16>(rows, most, (&window(size, kernel), Matrix::PORTABLE, threads))
        };
        assert_eq!(rows([56, 7], 1, 28, 40, 1), 32);
        assert_eq!(rows([112, 14], 1, 23, 30, 1), 16, "as many as there is room for");
        assert_eq!(rows([56, 56], 1, 19, 27, 1), 20);
        assert_eq!(rows([14, 14], 1, 14, 50, 1), 14, "all that there is");
        assert_eq!(rows([14, 14], 1, 7, 7, 1), 7, "less than fills blocks");
        assert_eq!(rows([56, 56], 3, 19, 27, 1), 19, "columns of the border are computed, too");
        assert_eq!(
            [rows([28, 28], 1, 14, 28, 2), rows([800, 28], 1, 27, 28, 2)],
            [14, 24],
            "two threads have as much to do"
        );
        for (width, some, most, threads) in
            (1..40).flat_map(|width| [(width, 9, 12, 1), (width, 33, 33, 1), (width, 8, 60, 3)])
        {
            let found = rows([64, width], 1, some, most, threads);
            assert!((1..=most).contains(&found), "{found} of {most} rows of {width}");
        }
    }

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
