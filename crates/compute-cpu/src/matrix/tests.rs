use super::*;
use crate::Isa;
use half::bf16;

fn kinds() -> Vec<Matrix> {
    let kinds = Matrix::available();
    let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
    println!("matrix units here: {names:?}");
    [Matrix::PORTABLE].into_iter().chain(kinds).collect()
}

/// Small integers, so that every order of summation gives the same sum.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7 + seed * 13) % 11) as f32 - 5.0).collect()
}

#[test]
fn products_agree_with_the_definition() {
    let isa = Isa::detect();
    let sizes = [(1, 1, 1), (16, 32, 32), (17, 33, 31), (32, 64, 64), (33, 5, 513), (70, 130, 1100), (3, 40, 0)];
    for matrix in kinds() {
        for (m, n, k) in sizes {
            for transposed in [false, true] {
                let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
                let (a_strides, b_strides) = if transposed { ((1, m), (1, k)) } else { ((k, 1), (n, 1)) };
                let steps = k.div_ceil(STEP);
                // Garbage that would show wherever zeros are missing.
                let mut left = vec![bf16::NAN; tiles_len(m, k)];
                let mut right = vec![bf16::NAN; panel_len(k) * n.div_ceil(BLOCK)];
                let mut c = vec![f32::NAN; m * n];
                let mut sums = vec![Sums([f32::NAN; BLOCK * BLOCK]); sums_needed(m, steps)];
                // SAFETY: the operands have those sizes.
                unsafe {
                    let from = LeftRows { start: a.as_ptr(), row: a_strides.0, column: a_strides.1, rows: m, k };
                    pack_tiles(isa, from, &mut left);
                    let from = Panels { start: b.as_ptr(), row: b_strides.0, column: b_strides.1, n, k };
                    for (p, panel) in right.chunks_exact_mut(panel_len(k).max(1)).enumerate() {
                        pack_panel(isa, &from, p * BLOCK, panel);
                    }
                    let offsets: Vec<usize> = (0..steps).map(|step| step * TILE * STEP_BYTES).collect();
                    let rows = Rows {
                        start: left.as_ptr().cast(),
                        pitch: STEP_BYTES,
                        tile: steps * TILE * STEP_BYTES,
                        offsets: &offsets,
                        count: m,
                    };
                    multiply(
                        matrix,
                        &rows,
                        (0, n.div_ceil(BLOCK)),
                        &|p| right.as_ptr().add(p * panel_len(k)).cast(),
                        &mut sums,
                        &mut |sums, (row, p), (first, last)| {
                            for r in first..last {
                                for column in p * BLOCK..n.min((p + 1) * BLOCK) {
                                    c[(row + r) * n + column] = sums.0[r * BLOCK + column % BLOCK];
                                }
                            }
                        },
                    );
                }
                let at =
                    |values: &[f32], strides: (usize, usize), i: usize, j: usize| values[i * strides.0 + j * strides.1];
                for (index, &got) in c.iter().enumerate() {
                    let (i, j) = (index / n, index % n);
                    let want: f32 = (0..k).map(|p| at(&a, a_strides, i, p) * at(&b, b_strides, p, j)).sum();
                    assert_eq!(got, want, "{} {m}x{n}x{k} at ({i}, {j})", matrix.name());
                }
            }
        }
    }
}

#[test]
fn peaks_are_measured() {
    for matrix in Matrix::available() {
        println!("{}: {:.0} GFLOP/s", matrix.name(), matrix.peak() / 1e9);
        assert!(matrix.peak() > 0.0);
    }
    println!("fastest: {:?}", Matrix::fastest());
}
