//! Attention in f32 on vector instructions.

use super::super::rows::part_mut;
use super::{Heads, PARALLEL_PRODUCTS};
use crate::gemm::{self, Copies, Left, Micro, Target};
use crate::isa::multiversion;
use crate::kernels::Machine;
use crate::kernels::softmax::{exp_and_sum, larger, max_of};
use crate::map::exp;
use crate::pool::own_bytes;
use halimede_compute::{Arguments, Step};
use halimede_tensor::View;

/// Queries in a block; a multiple of every micro-kernel's rows.
const QUERIES: usize = 48;
/// Keys in a block: the scores of a block take 48 KiB. A multiple of every micro-kernel's columns.
const KEYS: usize = 256;

pub(super) struct VectorStep {
    pub heads: Heads,
    pub micro: Micro,
    pub machine: Machine,
}

impl VectorStep {
    fn packed_keys(&self) -> usize {
        gemm::panels_len(&self.micro, self.heads.keys, self.heads.depth)
    }

    fn packed_values(&self) -> usize {
        gemm::panels_len(&self.micro, self.heads.width, self.heads.keys)
    }

    pub fn workspace(&self) -> usize {
        self.shared_bytes() + self.thread_bytes() * self.machine.pool.threads()
    }

    /// Packed keys and values of every key head.
    fn shared_bytes(&self) -> usize {
        let floats = self.heads.batch * self.heads.groups * (self.packed_keys() + self.packed_values());
        (floats * size_of::<f32>()).next_multiple_of(64)
    }

    /// Scores, queries, block result, sums and maxima, scratch of the driver.
    fn thread_bytes(&self) -> usize {
        let floats = QUERIES * (KEYS + self.heads.depth + self.heads.width + 2) + gemm::scratch_len(&self.micro);
        own_bytes(floats * size_of::<f32>())
    }
}

impl Step for VectorStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let view = |index: usize| arguments.inputs.get(index).copied().flatten().unwrap_or(View::empty());
        assert!(arguments.workspace.len() >= self.workspace());
        // SAFETY: inputs are not written during the step.
        let (k, v) = unsafe { (view(1).slice::<f32>(), view(2).slice::<f32>()) };
        let packed_len = self.packed_keys() + self.packed_values();
        let workspace = Shared(arguments.workspace.as_ptr());
        let workspace = &workspace;
        let small = self.heads.products() < PARALLEL_PRODUCTS;
        let each = |parts: usize, task: &(dyn Fn(usize) + Sync)| match small {
            true => (0..parts).for_each(task),
            false => self.machine.pool.run(parts, task),
        };
        each(self.heads.batch * self.heads.groups, &|head| {
            // SAFETY: each part packs its own head; operands have those sizes.
            unsafe {
                let start = workspace.0.cast::<f32>().add(head * packed_len);
                let packed = std::slice::from_raw_parts_mut(start, packed_len);
                let (keys, values) = packed.split_at_mut(self.packed_keys());
                let Heads { keys: count, depth, width, lines, .. } = &self.heads;
                let k = &k[self.heads.at(1, head, 0)..][..self.heads.span(1, *count, *depth)];
                let v = &v[self.heads.at(2, head, 0)..][..self.heads.span(2, *count, *width)];
                gemm::pack_columns(&self.micro, k.as_ptr(), (1, lines[1].token), (*count, *depth), keys);
                gemm::pack_columns(&self.micro, v.as_ptr(), (lines[2].token, 1), (*width, *count), values);
            }
        });
        let blocks = self.heads.queries.div_ceil(QUERIES);
        let tasks = self.heads.batch * self.heads.heads * blocks;
        let threads = if small { 1 } else { self.machine.pool.threads() };
        self.machine.pool.run_tasks(threads, tasks, &|thread, task| {
            // SAFETY: behind the packed operands each thread has its own part.
            let scratch = unsafe {
                let start = workspace.0.add(self.shared_bytes() + thread * self.thread_bytes());
                std::slice::from_raw_parts_mut(start.cast::<f32>(), self.thread_bytes() / size_of::<f32>())
            };
            self.run_block(arguments, workspace, scratch, task / blocks, task % blocks * QUERIES);
        });
    }
}

/// The workspace's address, shared by threads that use disjoint parts.
struct Shared(*mut u8);
// SAFETY: see the type's text.
unsafe impl Sync for Shared {}

impl VectorStep {
    /// One block of queries of one head.
    fn run_block(&self, arguments: &Arguments<'_>, shared: &Shared, scratch: &mut [f32], head: usize, first: usize) {
        let micro = &self.micro;
        let rows = QUERIES.min(self.heads.queries - first);
        let key_head = self.heads.key_head(head);
        let (scores, rest) = scratch.split_at_mut(QUERIES * KEYS);
        let (queries, rest) = rest.split_at_mut(QUERIES * self.heads.depth);
        let (result, rest) = rest.split_at_mut(QUERIES * self.heads.width);
        let (maxima, rest) = rest.split_at_mut(QUERIES);
        let (sums, driver) = rest.split_at_mut(QUERIES);
        maxima.fill(f32::NEG_INFINITY);
        sums.fill(0.0);
        // SAFETY: packed before this loop began; inputs are not written during the step.
        let (packed, q) = unsafe {
            let packed = shared.0.cast::<f32>().add(key_head * (self.packed_keys() + self.packed_values()));
            let q = arguments.inputs[0].unwrap_or(View::empty()).slice::<f32>();
            (packed, &q[self.heads.at(0, head, first)..][..self.heads.span(0, rows, self.heads.depth)])
        };
        // SAFETY: the output's lines of these queries are this task's alone, and each is asked for once at a time.
        let out = |row: usize| unsafe {
            part_mut::<f32>(arguments.outputs[0], self.heads.at(3, head, first + row), self.heads.width)
        };
        (0..rows).for_each(|row| out(row).fill(0.0));
        // Scaled queries give scaled scores.
        let Heads { depth, scale, .. } = self.heads;
        for (row, query) in queries.chunks_exact_mut(depth.max(1)).enumerate().take(rows) {
            let from = &q[row * self.heads.lines[0].token..][..depth];
            query.iter_mut().zip(from).for_each(|(scaled, number)| *scaled = number * scale);
        }
        let seen = self.heads.seen(first, rows);
        for start in (0..seen).step_by(KEYS) {
            let count = KEYS.min(seen - start);
            let panels = (start / micro.nr, (start + count).div_ceil(micro.nr));
            // SAFETY: the operands have those sizes; scores hold QUERIES x KEYS elements, the columns of
            // this block beginning at 0 (the driver counts them from the first key).
            unsafe {
                gemm::multiply(
                    micro,
                    Left::Strided { start: queries.as_ptr(), row: depth, column: 1, copies: Copies::WherePays },
                    (0, rows),
                    panels,
                    (self.heads.keys, self.heads.depth),
                    &|p, k| packed.add((p * self.heads.depth + k) * micro.nr),
                    None,
                    Target { start: scores.as_mut_ptr().wrapping_sub(start), row: KEYS },
                    driver,
                    None,
                );
            }
            for row in 0..rows {
                let line = &mut scores[row * KEYS..row * KEYS + count];
                let isa = self.machine.isa;
                self.heads.bend_scores(isa, line);
                self.heads.mask_line(isa, arguments, line, head, first + row, start);
                line[self.heads.visible(first + row, start, count)..].fill(f32::NEG_INFINITY);
                online_row(isa, line, &mut maxima[row], &mut sums[row], out(row));
            }
            let values = packed.wrapping_add(self.packed_keys());
            // SAFETY: as above; the block's values are rows start..start + count of the packed panels.
            unsafe {
                gemm::multiply(
                    micro,
                    Left::Strided { start: scores.as_ptr(), row: KEYS, column: 1, copies: Copies::WherePays },
                    (0, rows),
                    (0, self.heads.width.div_ceil(micro.nr)),
                    (self.heads.width, count),
                    &|p, k| values.add((p * self.heads.keys + start + k) * micro.nr),
                    None,
                    Target { start: result.as_mut_ptr(), row: self.heads.width },
                    driver,
                    None,
                );
            }
            for (row, part) in result.chunks_exact(self.heads.width.max(1)).enumerate().take(rows) {
                out(row).iter_mut().zip(part).for_each(|(out, part)| *out += part);
            }
        }
        for row in 0..rows {
            // A query that sees no key gives zeros.
            let factor = if sums[row] > 0.0 || sums[row].is_nan() { 1.0 / sums[row] } else { 0.0 };
            out(row).iter_mut().for_each(|element| *element *= factor);
        }
    }
}

multiversion! {
    /// Turns a line of scores into weights against the running maximum, and rescales what was summed.
    fn online_row(line: &mut [f32], max: &mut f32, sum: &mut f32, out: &mut [f32]) = online
}

#[inline(always)]
fn online(line: &mut [f32], max: &mut f32, sum: &mut f32, out: &mut [f32]) {
    // NaN where a score is.
    let most = larger(*max, max_of(line));
    if most == f32::NEG_INFINITY {
        line.fill(0.0);
        return;
    }
    let factor = exp(*max - most);
    *sum = *sum * factor + exp_and_sum(line, most);
    if factor != 1.0 {
        out.iter_mut().for_each(|element| *element *= factor);
    }
    *max = most;
}
