//! Products of few rows with weights of few bits: bound by reading the weights, not by what is computed.
//!
//! ```text
//! the rows in whole lines for each group, and what they sum up to     some KiB
//! for each task                                                       some panels
//!     for each panel
//!         sums = rows · panel                                         grouped::multiply
//!         epilogue, store
//! ```

use super::layout::Layout;
use crate::grouped::{self, GroupedWeights, LINE, Rows};
use crate::kernels::Machine;
use crate::kernels::tiled::{Finish, Piece};
use crate::map::Register;
use crate::matrix::BLOCK;
use crate::real::{Real, nearest};
use halimede_compute::{Arguments, Prepared, Step};
use std::marker::PhantomData;
use std::sync::Arc;

/// More rows make unpacking the weights for them worth its while.
pub(super) const ROWS_MAX: usize = 15;
/// Panels of a task: enough that starting it costs nothing beside them.
const TASK_PANELS: usize = 4;

/// Rows of `L` by weights in groups.
pub(super) struct GroupedStep<L> {
    layout: Layout,
    weights: Arc<GroupedWeights>,
    finish: Finish,
    machine: Machine,
    /// Rows are rounded to bf16 before they are multiplied.
    rounds: bool,
    operand: PhantomData<L>,
}

impl<L: Real> GroupedStep<L> {
    pub fn prepared(
        layout: Layout,
        weights: Arc<GroupedWeights>,
        finish: Finish,
        machine: Machine,
        rounds: bool,
    ) -> Prepared {
        let step = GroupedStep::<L> { layout, weights, finish, machine, rounds, operand: PhantomData };
        let workspace = step.shared_bytes() + step.thread_bytes() * step.machine.threads();
        Prepared { step: Box::new(step), workspace }
    }

    fn row_len(&self) -> usize {
        Rows::len(&self.weights.grouping)
    }

    /// Numbers of the rows, and sums of their groups.
    fn shared_lens(&self) -> (usize, usize) {
        let sums = self.layout.m * self.weights.grouping.groups();
        (self.layout.m * self.row_len(), sums)
    }

    fn shared_bytes(&self) -> usize {
        let (numbers, sums) = self.shared_lens();
        ((numbers + sums) * size_of::<f32>()).next_multiple_of(64)
    }

    /// Per thread: registers of the epilogue, then sums of a panel.
    fn thread_bytes(&self) -> usize {
        self.finish.registers_bytes() + self.layout.m * size_of::<[f32; BLOCK]>()
    }

    /// Writes the rows of a batch in the order of the weights.
    ///
    /// # Safety
    /// The operand can be read from `left` on as the layout says.
    unsafe fn arrange(&self, left: *const L, numbers: &mut [f32], sums: &mut [f32]) {
        let (grouping, operand) = (&self.weights.grouping, self.layout.left);
        let group_len = grouping.lines() * LINE;
        let rows = numbers.chunks_exact_mut(self.row_len().max(1)).zip(sums.chunks_exact_mut(grouping.groups().max(1)));
        for (m, (numbers, sums)) in rows.enumerate() {
            let row = left.wrapping_add(m * operand.free);
            for (g, (numbers, sum)) in numbers.chunks_exact_mut(group_len).zip(sums).enumerate() {
                let first = g * grouping.group;
                let count = grouping.group.min(grouping.k - first);
                for (at, number) in numbers[..count].iter_mut().enumerate() {
                    // SAFETY: row m has this element.
                    let x = unsafe { row.add((first + at) * operand.k).read() }.widen();
                    *number = if self.rounds { nearest(x).widen() } else { x };
                }
                numbers[count..].fill(0.0);
                *sum = numbers.iter().sum();
            }
        }
    }
}

/// An address that the threads of one run share.
struct Shared(*mut u8);
// SAFETY: each thread uses a part of its own.
unsafe impl Sync for Shared {}

impl<L: Real> Step for GroupedStep<L> {
    fn run(&self, arguments: &Arguments<'_>) {
        if arguments.outputs[0].is_empty() {
            return;
        }
        let (machine, layout, grouping) = (&self.machine, &self.layout, &self.weights.grouping);
        assert!(arguments.workspace.len() >= self.shared_bytes() + self.thread_bytes() * machine.threads());
        let operand = arguments.inputs[0].map_or(std::ptr::null(), |view| view.as_ptr().cast::<L>().cast_const());
        let workspace = arguments.workspace.as_ptr();
        // SAFETY: the workspace has these parts, which do not overlap, and is aligned for numbers.
        let (numbers, sums, threads) = unsafe {
            let (numbers, sums) = self.shared_lens();
            let start = workspace.cast::<f32>();
            (
                std::slice::from_raw_parts_mut(start, numbers),
                std::slice::from_raw_parts_mut(start.add(numbers), sums),
                Shared(workspace.add(self.shared_bytes())),
            )
        };
        let tasks = grouping.panels().div_ceil(TASK_PANELS);
        for batch in 0..layout.batches() {
            let (left, _, out) = layout.batch(batch);
            // SAFETY: the layout's offsets stay inside the operand.
            unsafe { self.arrange(operand.wrapping_add(left), numbers, sums) };
            let rows = Rows { numbers, sums, count: layout.m };
            let threads = &threads;
            machine.pool.run_tasks(machine.threads().min(tasks), tasks, &|thread, task| {
                // SAFETY: each thread has its own part of the workspace, in which any bytes are numbers.
                let (registers, to) = unsafe {
                    let start = threads.0.add(thread * self.thread_bytes());
                    let registers = self.finish.registers_bytes();
                    (
                        std::slice::from_raw_parts_mut(start.cast(), registers / size_of::<Register>()),
                        std::slice::from_raw_parts_mut(start.add(registers).cast(), layout.m),
                    )
                };
                for panel in task * TASK_PANELS..grouping.panels().min((task + 1) * TASK_PANELS) {
                    self.run_panel(arguments, panel, rows, out, to, registers);
                }
            });
        }
    }
}

impl<L: Real> GroupedStep<L> {
    fn run_panel(
        &self,
        arguments: &Arguments<'_>,
        panel: usize,
        rows: Rows<'_>,
        out: usize,
        to: &mut [[f32; BLOCK]],
        registers: &mut [Register],
    ) {
        grouped::multiply(self.machine.isa, &self.weights, panel, rows, to);
        let (layout, column) = (&self.layout, panel * BLOCK);
        let piece = Piece {
            rows: layout.m,
            columns: BLOCK.min(layout.n - column),
            column,
            start: out + column,
            row: layout.out_row,
        };
        // SAFETY: the piece lies inside the output, and each panel has one of its own.
        unsafe { self.finish.store(arguments, piece, to.as_flattened_mut(), registers) };
    }
}
