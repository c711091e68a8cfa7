//! Products of few rows with weights of few bits: bound by reading the weights, not by what is computed.
//!
//! ```text
//! the rows in whole lines for each group, and as digits               some KiB
//! for each task                                                       some panels
//!     for each panel
//!         sums = rows · panel                                         Digits::multiply, or grouped::multiply
//!         epilogue, store
//! ```

use super::layout::Layout;
use crate::grouped::{self, DIGITS, DigitGroup, DigitRows, Digits, GroupedWeights, LINE, Rows};
use crate::kernels::Machine;
use crate::kernels::tiled::{Finish, Finishing, KeptColumns, Piece};
use crate::map::Register;
use crate::matrix::BLOCK;
use crate::pool::own_bytes;
use crate::real::{Real, nearest};
use half::bf16;
use halimede_compute::{Arguments, Prepared, Step};
use std::marker::PhantomData;
use std::sync::Arc;

/// More rows make unpacking the weights for them worth its while.
pub(super) const ROWS_MAX: usize = 15;
/// Panels of a task, where there are threads to share them: enough that starting it costs little beside them.
const TASK_PANELS: usize = 4;

/// Rows of `L` by weights in groups.
pub(super) struct GroupedStep<L> {
    layout: Layout,
    weights: Arc<GroupedWeights>,
    finish: Finish,
    machine: Machine,
    /// Rows are rounded to bf16 before they are multiplied.
    rounds: bool,
    digits: Option<Digits>,
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
        let digits = Digits::new(machine.isa, &weights.grouping, rounds);
        let step = GroupedStep::<L> { layout, weights, finish, machine, rounds, digits, operand: PhantomData };
        let workspace = step.shared_bytes() + step.thread_bytes() * step.machine.threads();
        Prepared { step: Box::new(step), workspace }
    }

    fn row_len(&self) -> usize {
        Rows::len(&self.weights.grouping)
    }

    /// Numbers of the rows, sums of their groups, lines of digits, and what groups of these have in common.
    fn shared_lens(&self) -> [usize; 4] {
        let (numbers, groups) = (self.layout.m * self.row_len(), self.layout.m * self.weights.grouping.groups());
        match self.digits {
            Some(_) => [numbers, groups, numbers / LINE, groups],
            None => [numbers, groups, 0, 0],
        }
    }

    fn shared_bytes(&self) -> usize {
        let [numbers, sums, digits, groups] = self.shared_lens();
        let floats = (numbers + sums) * size_of::<f32>() + groups * size_of::<DigitGroup>();
        (floats + digits * size_of::<[[i8; LINE]; DIGITS]>()).next_multiple_of(64)
    }

    /// Per thread: registers of the epilogue, then sums of a panel.
    fn thread_bytes(&self) -> usize {
        own_bytes(self.finish.registers_bytes() + self.layout.m * size_of::<[f32; BLOCK]>())
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
                let (there, beyond) = numbers.split_at_mut(grouping.group.min(grouping.k - first));
                let from = row.wrapping_add(first * operand.k);
                if operand.k == 1 {
                    // SAFETY: row m has these elements, of which nobody writes one.
                    L::widen_all(self.machine.isa, unsafe { std::slice::from_raw_parts(from, there.len()) }, there);
                } else {
                    for (at, number) in there.iter_mut().enumerate() {
                        // SAFETY: as above.
                        *number = unsafe { from.add(at * operand.k).read() }.widen();
                    }
                }
                if self.rounds {
                    there.iter_mut().for_each(|number| *number = nearest(*number).widen());
                }
                beyond.fill(0.0);
                let lanes = numbers.as_chunks::<LINE>().0.iter();
                let lanes = lanes.fold([0f32; LINE], |sums, line| std::array::from_fn(|at| sums[at] + line[at]));
                *sum = lanes.iter().sum();
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
        let (numbers, sums, groups, digits, threads) = unsafe {
            let [numbers, sums, digits, groups] = self.shared_lens();
            let start = workspace.cast::<f32>();
            let groups_start = start.add(numbers + sums).cast::<DigitGroup>();
            (
                std::slice::from_raw_parts_mut(start, numbers),
                std::slice::from_raw_parts_mut(start.add(numbers), sums),
                std::slice::from_raw_parts_mut(groups_start, groups),
                std::slice::from_raw_parts_mut(groups_start.add(groups).cast(), digits),
                Shared(workspace.add(self.shared_bytes())),
            )
        };
        let task_panels = if machine.threads() == 1 { grouping.panels().max(1) } else { TASK_PANELS };
        let tasks = grouping.panels().div_ceil(task_panels);
        for batch in 0..layout.batches() {
            let (left, _, out) = layout.batch(batch);
            // SAFETY: the layout's offsets stay inside the operand.
            unsafe { self.arrange(operand.wrapping_add(left), numbers, sums) };
            let rows = Rows { numbers, sums, count: layout.m };
            let mut fits = true;
            if let Some(unit) = self.digits {
                unit.write(self.machine.isa, rows, grouping, digits, groups, &mut fits);
            }
            let digit_rows = DigitRows { digits: &*digits, groups: &*groups };
            let digits = self.digits.filter(|_| fits).map(|unit| (unit, digit_rows));
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
                let mut columns = KeptColumns::new();
                let mut finishing = self.finish.begin(arguments, registers, &mut columns);
                for panel in task * task_panels..grouping.panels().min((task + 1) * task_panels) {
                    self.run_panel(&mut finishing, panel, (rows, digits), out, to);
                }
            });
        }
    }
}

impl<L: Real> GroupedStep<L> {
    fn run_panel(
        &self,
        finishing: &mut Finishing<'_, bf16>,
        panel: usize,
        (rows, digits): (Rows<'_>, Option<(Digits, DigitRows<'_>)>),
        out: usize,
        to: &mut [[f32; BLOCK]],
    ) {
        match digits {
            Some((unit, digits)) => unit.multiply(&self.weights, panel, digits, to),
            None => grouped::multiply(self.machine.isa, &self.weights, panel, rows, to),
        }
        let (layout, column) = (&self.layout, panel * BLOCK);
        let piece = Piece {
            rows: layout.m,
            columns: BLOCK.min(layout.n - column),
            column,
            start: out + column,
            row: layout.out_row,
            has_room: false,
        };
        // SAFETY: the piece lies inside the output, and each panel has one of its own.
        unsafe { finishing.store(piece, to.as_flattened_mut()) };
    }
}
