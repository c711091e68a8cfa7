//! Products of f16 by a library that multiplies whole matrices of them.
//!
//! ```text
//! unpack the weights as rows of f16
//! for each batch, block of rows and part of the columns     a task
//!     round the rows
//!     C = A · B                                             the library
//!     epilogue, on C where it lies
//! ```

use super::blas::{TASK_ROWS, in_parts};
use super::layout::{Layout, Operand};
use crate::blas::Sizes;
use crate::bnns::Bnns;
use crate::kernels::Machine;
use crate::kernels::epilogue::Epilogue;
use crate::kernels::tiled::TiledWeights;
use crate::map::Register;
use crate::matrix::BLOCK;
use crate::pool::own_bytes;
use crate::real::Converts;
use half::f16;
use halimede_compute::{Arguments, Prepared, Step};
use std::sync::Arc;

/// Rows of weights that are unpacked at a time: they stay in the first-level cache until they are stored.
const UNPACKED_ROWS: usize = 64;

/// Rows of f32, of one number at least, by constant weights.
pub(super) struct BnnsStep {
    pub layout: Layout,
    pub weights: Arc<TiledWeights<f16>>,
    pub epilogue: Option<Epilogue>,
    pub machine: Machine,
    pub bnns: Bnns,
}

/// Addresses that the threads of one run share.
struct Shared {
    left: *const f32,
    right: *mut f16,
    output: *mut f32,
    threads: *mut u8,
}

// SAFETY: threads read the operands and write disjoint parts of the output and of the workspace.
unsafe impl Sync for Shared {}

impl BnnsStep {
    pub fn prepared(self) -> Prepared {
        let workspace = self.right_bytes() + self.thread_bytes() * self.machine.threads();
        Prepared { step: Box::new(self), workspace }
    }

    fn right_bytes(&self) -> usize {
        (self.layout.n * self.layout.k * size_of::<f16>()).next_multiple_of(64)
    }

    /// Registers of the epilogue on one thread.
    fn registers(&self) -> usize {
        self.epilogue.as_ref().map_or(0, Epilogue::registers)
    }

    /// Numbers of the rows of a task.
    fn rows_len(&self) -> usize {
        TASK_ROWS.min(self.layout.m) * self.layout.k
    }

    /// Per thread: registers, then rows.
    fn thread_bytes(&self) -> usize {
        own_bytes(self.registers() * size_of::<Register>() + self.rows_len() * size_of::<f16>())
    }

    fn unpack(&self, shared: &Shared) {
        let Layout { n, k, .. } = self.layout;
        self.machine.pool.run(n.div_ceil(BLOCK), &|panel| {
            let (mut lines, columns) = ([[f16::ZERO; BLOCK]; UNPACKED_ROWS], BLOCK.min(n - panel * BLOCK));
            for first in (0..k).step_by(UNPACKED_ROWS) {
                let lines = &mut lines[..UNPACKED_ROWS.min(k - first)];
                self.weights.rows(panel, first, lines);
                for (row, line) in (first..).zip(lines) {
                    // SAFETY: the workspace begins with so many rows; each panel has columns of its own.
                    unsafe {
                        let to = shared.right.add(row * n + panel * BLOCK);
                        to.copy_from_nonoverlapping(line.as_ptr(), columns);
                    }
                }
            }
        });
    }

    fn run_task(
        &self,
        arguments: &Arguments<'_>,
        shared: &Shared,
        thread: usize,
        batch: usize,
        (m0, m1): (usize, usize),
        (n0, n1): (usize, usize),
    ) {
        let Layout { n, k, out_row, left: Operand { free, k: apart }, .. } = self.layout;
        let (left_offset, _, out_offset) = self.layout.batch(batch);
        let (sizes, start) = (Sizes { m: m1 - m0, n: n1 - n0, k }, out_offset + m0 * out_row + n0);
        // SAFETY: offsets and strides stay inside operands, output and workspace; tasks have disjoint parts of C, and
        // each thread its own registers and rows.
        unsafe {
            let own = shared.threads.add(thread * self.thread_bytes());
            let registers = std::slice::from_raw_parts_mut(own.cast::<Register>(), self.registers());
            let rows = own.add(size_of_val(registers)).cast::<f16>();
            for (row, to) in (m0..m1).zip(std::slice::from_raw_parts_mut(rows, sizes.m * k).chunks_exact_mut(k)) {
                let from = shared.left.wrapping_add(left_offset + row * free);
                match apart {
                    1 => f32::convert_all(self.machine.isa, std::slice::from_raw_parts(from, k), to),
                    _ => to.iter_mut().enumerate().for_each(|(p, to)| *to = from.add(p * apart).read().convert()),
                }
            }
            let b = shared.right.wrapping_add(n0).cast_const();
            self.bnns.multiply(sizes, (rows, k), (b, n), (shared.output.add(start), out_row));
            if let Some(epilogue) = &self.epilogue {
                let extra = arguments.inputs.get(2..).unwrap_or_default();
                epilogue.apply_to_output(extra, shared.output, (sizes.m, sizes.n), (start, out_row), registers);
            }
        }
    }
}

impl Step for BnnsStep {
    fn run(&self, arguments: &Arguments<'_>) {
        if arguments.outputs[0].is_empty() {
            return;
        }
        let left = arguments.inputs[usize::from(self.layout.swapped)];
        let left = left.map_or(std::ptr::null(), |view| view.as_ptr().cast::<f32>().cast_const());
        let threads = self.machine.threads();
        assert!(arguments.workspace.len() >= self.right_bytes() + self.thread_bytes() * threads);
        let workspace = arguments.workspace.as_ptr();
        // SAFETY: inside the workspace, behind the right operand.
        let own = unsafe { workspace.add(self.right_bytes()) };
        let output = arguments.outputs[0].as_ptr().cast::<f32>();
        let shared = Shared { left, right: workspace.cast(), output, threads: own };
        self.unpack(&shared);
        in_parts(&self.machine, &self.layout, |thread, batch, rows, columns| {
            self.run_task(arguments, &shared, thread, batch, rows, columns);
        });
    }
}
