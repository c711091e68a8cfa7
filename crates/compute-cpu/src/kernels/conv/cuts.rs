//! Into which tasks a convolution is cut, so that threads have as much to do.

use super::window::Window;
use crate::kernels::cuts::{Shares, TASKS_OF_THREAD};
use crate::matrix::{BLOCK, Factor, MatrixUnit};

/// The output in so many tasks of rows, or about as many of at most as many rows as are given: of tiles without a border between rows that
/// whole blocks end with, where that leaves enough tasks for all threads.
pub(super) fn tasks_of_rows<F: Factor>(
    tasks: usize,
    most: usize,
    (window, matrix, threads): (&Window, MatrixUnit<F>, usize),
) -> Shares {
    let (height, width) = (window.out[1], window.out[2]);
    let whole = BLOCK >> width.trailing_zeros().min(BLOCK.trailing_zeros());
    let even = Shares::new(height, 1, tasks);
    let rows = even.most();
    if matrix.takes_lines() || rows >= height {
        return even;
    }
    if !window.is_pointwise() {
        // Rows that differ by one end with more half blocks, which several threads alone gain something for.
        return if threads == 1 { Shares::of_rows(height, rows) } else { even };
    }
    let in_blocks = match rows.next_multiple_of(whole) {
        more if more <= most.min(height) => more,
        more if more > whole => more - whole,
        _ => return even,
    };
    let blocks = Shares::new(height, whole, height.div_ceil(in_blocks));
    if threads == 1 || blocks.count >= TASKS_OF_THREAD * threads { blocks } else { even }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::conv::window::tests::window;
    use crate::matrix::Matrix;
    use half::bf16;

    #[test]
    fn tasks_of_pixels_end_with_whole_blocks() {
        let rows = |size: [usize; 2], kernel, rows, most, threads| {
            let tasks = size[0].div_ceil(rows);
            tasks_of_rows::<bf16>(tasks, most, (&window(size, kernel), Matrix::PORTABLE, threads)).most()
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
}
