//! What it would take to convert a value from one layout to the other: row-major, in blocks of a line.
//!
//! ```console
//! $ cargo run --release -p halimede-compute-cpu --example conversion -- [ROUNDS]
//! ```
//!
//! No plan converts: `docs/benchmarks/layouts.md` holds these costs against what products gain by reading blocks. A line of 64 bytes
//! is copied at a time, which is as few instructions as there can be; *warm* is one value again and again, *cold* has 16 MiB read
//! between runs. Printed are medians of processor time on one thread.

#![allow(clippy::unwrap_used, reason = "a measurement; it ends with what failed")]

use halimede_compute::layout::{LINE_BYTES, rows_apart};
use halimede_platform::cpu_time;
use std::hint::black_box;

/// Rows (pixels of an image, tokens of a text) and columns (channels) of values of ResNet-50 and BERT-base.
const VALUES: &[[usize; 2]] = &[
    [3136, 64],
    [3136, 256],
    [784, 128],
    [784, 512],
    [196, 256],
    [196, 1024],
    [49, 512],
    [49, 2048],
    [128, 768],
    [128, 3072],
    [1024, 768],
    [1024, 3072],
];

type Line = [u8; LINE_BYTES];

/// Copies every line of `from`, row-major with so many lines in a row, to where it lies in blocks.
fn to_blocks(from: &[Line], lines: usize, to: &mut [Line]) {
    let apart = rows_apart(from.len() / lines);
    for (number, row) in from.chunks_exact(lines).enumerate() {
        for (line, from) in row.iter().enumerate() {
            to[line * apart + number] = *from;
        }
    }
}

fn to_rows(from: &[Line], lines: usize, to: &mut [Line]) {
    let apart = rows_apart(to.len() / lines);
    for (number, row) in to.chunks_exact_mut(lines).enumerate() {
        for (line, to) in row.iter_mut().enumerate() {
            *to = from[line * apart + number];
        }
    }
}

/// The median of so many runs, in microseconds; each behind `between`.
fn median(rounds: usize, mut between: impl FnMut(), mut run: impl FnMut()) -> f64 {
    let mut times: Vec<_> = (0..rounds)
        .map(|_| {
            between();
            let start = cpu_time::process().unwrap();
            run();
            cpu_time::process().unwrap() - start
        })
        .collect();
    times.sort();
    times[rounds / 2].as_secs_f64() * 1e6
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(41, |text| text.parse().expect("a number of rounds")).max(1);
    let evictor = vec![1u8; 16 << 20];
    let evict = || {
        black_box(evictor.iter().step_by(LINE_BYTES).map(|&byte| u64::from(byte)).sum::<u64>());
    };
    println!("| bf16 value | KiB | to blocks, warm µs | cold µs | back, warm µs | cold µs |");
    println!("|---|---|---|---|---|---|");
    for &[rows, columns] in VALUES {
        let lines = columns * 2 / LINE_BYTES;
        let mut row_major: Vec<Line> = vec![[1; LINE_BYTES]; rows * lines];
        let mut blocked: Vec<Line> = vec![[0; LINE_BYTES]; lines * rows_apart(rows)];
        let there = [0, 1].map(|cold| {
            let between = || {
                if cold == 1 {
                    evict()
                }
            };
            median(rounds, between, || to_blocks(black_box(&row_major), lines, black_box(&mut blocked)))
        });
        let back = [0, 1].map(|cold| {
            let between = || {
                if cold == 1 {
                    evict()
                }
            };
            median(rounds, between, || to_rows(black_box(&blocked), lines, black_box(&mut row_major)))
        });
        let kib = rows * columns * 2 / 1024;
        println!(
            "| {rows} x {columns} | {kib} | {:.1} | {:.1} | {:.1} | {:.1} |",
            there[0], there[1], back[0], back[1]
        );
    }
}
