//! Products of f32 by a library that multiplies whole matrices where they lie.
//!
//! ```text
//! for each batch, block of rows and part of the columns     a task
//!     C = A · B                                             the library
//!     epilogue, on C where it lies
//! ```

use super::Layout;
use crate::Blas;
use crate::blas::{Lying, Sizes};
use crate::kernels::Machine;
use crate::kernels::epilogue::Epilogue;
use crate::map::Register;
use crate::pool::own_bytes;
use halimede_compute::{Arguments, Prepared, Step};

/// Rows of A that one task takes: the library reads B again for each.
pub(super) const TASK_ROWS: usize = 512;
/// Columns of B that one task takes at least, where there are fewer tasks than threads.
const LEAST_COLUMNS: usize = 64;

/// Has a library's product computed in tasks on all threads: `run` takes a thread, a batch, and the rows and columns of its part.
pub(super) fn in_parts(
    machine: &Machine,
    layout: &Layout,
    run: impl Fn(usize, usize, (usize, usize), (usize, usize)) + Sync,
) {
    let Layout { m, n, .. } = *layout;
    let (threads, blocks) = (machine.threads(), m.div_ceil(TASK_ROWS));
    let row_tasks = layout.batches() * blocks;
    let parts = threads.div_ceil(row_tasks.max(1)).min(n.div_ceil(LEAST_COLUMNS)).max(1);
    let columns = n.div_ceil(parts).next_multiple_of(LEAST_COLUMNS);
    let column_tasks = n.div_ceil(columns);
    let tasks = row_tasks * column_tasks;
    machine.pool.run_tasks(threads.min(tasks), tasks, &|thread, task| {
        let (rest, part) = (task / column_tasks, task % column_tasks);
        let rows = (rest % blocks * TASK_ROWS, m.min((rest % blocks + 1) * TASK_ROWS));
        run(thread, rest / blocks, rows, (part * columns, n.min((part + 1) * columns)));
    });
}

pub(super) struct BlasStep {
    pub layout: Layout,
    /// How both operands lie.
    pub operands: [Lying; 2],
    pub epilogue: Option<Epilogue>,
    pub machine: Machine,
    pub blas: Blas,
}

/// Addresses that the threads of one run share.
struct Shared {
    left: *const f32,
    right: *const f32,
    output: *mut f32,
    threads: *mut u8,
}

// SAFETY: threads read the operands and write disjoint parts of the output and of the workspace.
unsafe impl Sync for Shared {}

impl BlasStep {
    /// How the operands of a product lie, where the library takes such.
    pub fn operands(layout: &Layout) -> Option<[Lying; 2]> {
        let Layout { m, n, k, left, right, out_row, .. } = *layout;
        let operands = [Lying::new((m, k), (left.free, left.k))?, Lying::new((k, n), (right.k, right.free))?];
        Blas::takes(Sizes { m, n, k }, operands[0], operands[1], out_row).then_some(operands)
    }

    pub fn prepared(self) -> Prepared {
        let workspace = self.thread_bytes() * self.machine.threads();
        Prepared { step: Box::new(self), workspace }
    }

    /// Registers of the epilogue on one thread.
    fn registers(&self) -> usize {
        self.epilogue.as_ref().map_or(0, Epilogue::registers)
    }

    fn thread_bytes(&self) -> usize {
        own_bytes(self.registers() * size_of::<Register>())
    }
}

impl Step for BlasStep {
    fn run(&self, arguments: &Arguments<'_>) {
        if arguments.outputs[0].is_empty() {
            return;
        }
        let operand =
            |index: usize| arguments.inputs[index].map_or(std::ptr::null(), |view| view.as_ptr().cast::<f32>());
        let (left, right) = if self.layout.swapped { (operand(1), operand(0)) } else { (operand(0), operand(1)) };
        let output = arguments.outputs[0].as_ptr().cast::<f32>();
        let shared = Shared { left, right, output, threads: arguments.workspace.as_ptr() };
        assert!(arguments.workspace.len() >= self.thread_bytes() * self.machine.threads());
        in_parts(&self.machine, &self.layout, |thread, batch, rows, columns| {
            self.run_task(arguments, &shared, thread, batch, rows, columns);
        });
    }
}

impl BlasStep {
    fn run_task(
        &self,
        arguments: &Arguments<'_>,
        shared: &Shared,
        thread: usize,
        batch: usize,
        (m0, m1): (usize, usize),
        (n0, n1): (usize, usize),
    ) {
        let Layout { k, left, right, out_row, .. } = self.layout;
        let (left_offset, right_batch, out_offset) = self.layout.batch(batch);
        let right_offset = self.layout.right_offset(right_batch);
        let (sizes, start) = (Sizes { m: m1 - m0, n: n1 - n0, k }, out_offset + m0 * out_row + n0);
        // SAFETY: offsets and strides stay inside operands and output; tasks have disjoint parts of C, and each thread
        // its own registers.
        unsafe {
            let a = shared.left.wrapping_add(left_offset + m0 * left.free);
            let b = shared.right.wrapping_add(right_offset + n0 * right.free);
            let c = shared.output.add(start);
            self.blas.multiply(sizes, (a, self.operands[0]), (b, self.operands[1]), (c, out_row));
            if let Some(epilogue) = &self.epilogue {
                let registers = shared.threads.add(thread * self.thread_bytes()).cast::<Register>();
                let registers = std::slice::from_raw_parts_mut(registers, self.registers());
                let extra = arguments.inputs.get(2..).unwrap_or_default();
                epilogue.apply_to_output(extra, shared.output, (sizes.m, sizes.n), (start, out_row), registers);
            }
        }
    }
}
