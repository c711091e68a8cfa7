//! Attention in bf16 on the matrix unit: as in f32, but scores are made and values weighed in blocks.
//!
//! The weights of a block of keys are rounded to bf16 in the order of rows, which the matrix unit reads as
//! they lie. Maxima, sums and the result stay in f32.

use super::super::rows::part_mut;
use super::{Heads, PARALLEL_PRODUCTS};
use crate::Matrix;
use crate::isa::multiversion;
use crate::kernels::Machine;
use crate::map::exp;
use crate::matrix::{self, BLOCK, Factor, LeftRows, Outer, Panels, Rows, STEP_BYTES, Sums, TILE};
use crate::real::{Real, nearest};
use crate::vector::{Vector, on_vectors};
use half::bf16;
use halimede_compute::{Arguments, Step};
use halimede_tensor::{DType, View};

/// Numbers of bf16 that a step multiplies.
const STEP: usize = bf16::STEP;
/// Queries of a task.
const QUERIES: usize = 2 * BLOCK;
/// Keys of a block: its scores take 64 KiB.
const KEYS: usize = 256;
/// Bytes from one row of weights to the next: not a multiple of the caches' period.
const WEIGHTS_PITCH: usize = KEYS * size_of::<bf16>() + STEP_BYTES;

pub(super) struct TiledStep {
    heads: Heads,
    dtype: DType,
    matrix: Matrix,
    machine: Machine,
    /// Of the steps in the tiles of queries, and in the rows of weights.
    offsets: (Vec<usize>, Vec<usize>),
}

/// One thread's memory.
#[repr(C, align(64))]
struct Scratch {
    scores: [f32; QUERIES * KEYS],
    weights: [u8; QUERIES * WEIGHTS_PITCH],
    maxima: [f32; QUERIES],
    sums: [f32; QUERIES],
    blocks: [Sums; 2],
}

impl TiledStep {
    /// Whether heads are not so deep that scores would be summed in several passes.
    pub fn takes(heads: &Heads) -> bool {
        matrix::passes(heads.depth.div_ceil(STEP)) == 1
    }

    /// `dtype` is that of the operands and of the result.
    pub fn new(heads: Heads, dtype: DType, matrix: Matrix, machine: Machine) -> TiledStep {
        let steps = heads.depth.div_ceil(STEP);
        let offsets = |count: usize, bytes: usize| (0..count).map(|step| step * bytes).collect();
        let offsets = (offsets(steps, TILE * STEP_BYTES), offsets(KEYS / STEP, STEP_BYTES));
        TiledStep { heads, dtype, matrix, machine, offsets }
    }

    /// Numbers of the packed keys of a head.
    fn keys_len(&self) -> usize {
        self.heads.keys.div_ceil(BLOCK) * matrix::panel_len::<bf16>(self.heads.depth)
    }

    /// Numbers of the packed values of a head.
    fn values_len(&self) -> usize {
        self.heads.width.div_ceil(BLOCK) * matrix::panel_len::<bf16>(self.heads.keys)
    }

    fn shared_bytes(&self) -> usize {
        let heads = self.heads.batch * self.heads.groups;
        heads * (self.keys_len() + self.values_len()) * size_of::<bf16>()
    }

    /// Columns of the result, in whole blocks.
    fn columns(&self) -> usize {
        self.heads.width.next_multiple_of(BLOCK)
    }

    fn queries_len(&self) -> usize {
        matrix::tiles_len::<bf16>(QUERIES, self.heads.depth)
    }

    /// Scratch, the result of the task's queries, the queries in tiles.
    fn thread_bytes(&self) -> usize {
        size_of::<Scratch>() + QUERIES * self.columns() * size_of::<f32>() + self.queries_len() * size_of::<bf16>()
    }

    pub fn workspace(&self) -> usize {
        self.shared_bytes() + self.thread_bytes() * self.machine.pool.threads()
    }

    /// The packed keys and values of a head, by pointer: threads write different ones.
    fn packed(&self, arguments: &Arguments<'_>, head: usize) -> (*mut bf16, *mut bf16) {
        let start = arguments.workspace.as_ptr().cast::<bf16>();
        let keys = start.wrapping_add(head * (self.keys_len() + self.values_len()));
        (keys, keys.wrapping_add(self.keys_len()))
    }
}

impl Step for TiledStep {
    fn run(&self, arguments: &Arguments<'_>) {
        assert!(arguments.workspace.len() >= self.workspace());
        let small = self.heads.products() < PARALLEL_PRODUCTS;
        let each = |parts: usize, task: &(dyn Fn(usize) + Sync)| match small {
            true => (0..parts).for_each(task),
            false => self.machine.pool.run(parts, task),
        };
        each(self.heads.batch * self.heads.groups, &|head| match self.dtype {
            DType::Bf16 => self.pack::<bf16>(arguments, head),
            _ => self.pack::<f32>(arguments, head),
        });
        let blocks = self.heads.queries.div_ceil(QUERIES);
        let tasks = self.heads.batch * self.heads.heads * blocks;
        let threads = if small { 1 } else { self.machine.pool.threads() };
        self.machine.pool.run_tasks(threads, tasks, &|thread, task| {
            let (head, first) = (task / blocks, task % blocks * QUERIES);
            match self.dtype {
                DType::Bf16 => self.run_block::<bf16>(arguments, thread, head, first),
                _ => self.run_block::<f32>(arguments, thread, head, first),
            }
        });
    }
}

impl TiledStep {
    /// Packs keys and values of one head.
    fn pack<T: Real>(&self, arguments: &Arguments<'_>, head: usize) {
        let Heads { keys, depth, width, .. } = self.heads;
        let operand = |index: usize| arguments.inputs[index].unwrap_or(View::empty());
        let (packed_keys, packed_values) = self.packed(arguments, head);
        let isa = self.machine.isa;
        // SAFETY: inputs are not written during the step; each part packs a head of its own, whose operands
        // have those sizes.
        unsafe {
            let k = operand(1).slice::<T>()[head * keys * depth..][..keys * depth].as_ptr();
            let v = operand(2).slice::<T>()[head * keys * width..][..keys * width].as_ptr();
            let transposed = Panels { start: k, row: 1, column: depth, n: keys, k: depth };
            let plain = Panels { start: v, row: width, column: 1, n: width, k: keys };
            let panels = std::slice::from_raw_parts_mut(packed_keys, self.keys_len());
            for (index, panel) in panels.chunks_exact_mut(matrix::panel_len::<bf16>(depth).max(1)).enumerate() {
                matrix::pack_panel::<bf16, T>(isa, &transposed, index * BLOCK, panel);
            }
            let panels = std::slice::from_raw_parts_mut(packed_values, self.values_len());
            for (index, panel) in panels.chunks_exact_mut(matrix::panel_len::<bf16>(keys).max(1)).enumerate() {
                matrix::pack_panel::<bf16, T>(isa, &plain, index * BLOCK, panel);
            }
        }
    }

    /// One block of queries of one head.
    fn run_block<T: Real>(&self, arguments: &Arguments<'_>, thread: usize, head: usize, first: usize) {
        let Heads { queries, keys, depth, width, .. } = self.heads;
        let (isa, columns) = (self.machine.isa, self.columns());
        let rows = QUERIES.min(queries - first);
        let (packed_keys, packed_values) = self.packed(arguments, self.heads.key_head(head));
        // SAFETY: each thread has its own part of the workspace, in which any bytes are numbers; inputs are
        // not written during the step; the task's rows of the output are its alone.
        let (scratch, result, tiles, q, out) = unsafe {
            let start = arguments.workspace.as_ptr().add(self.shared_bytes() + thread * self.thread_bytes());
            let result = start.add(size_of::<Scratch>()).cast::<f32>();
            let tiles = result.add(QUERIES * columns).cast::<bf16>();
            let q = arguments.inputs[0].unwrap_or(View::empty()).slice::<T>();
            (
                &mut *start.cast::<Scratch>(),
                std::slice::from_raw_parts_mut(result, QUERIES * columns),
                std::slice::from_raw_parts_mut(tiles, self.queries_len()),
                &q[(head * queries + first) * depth..][..rows * depth],
                part_mut::<T>(arguments.outputs[0], (head * queries + first) * width, rows * width),
            )
        };
        let Scratch { scores, weights, maxima, sums, blocks } = scratch;
        maxima.fill(f32::NEG_INFINITY);
        sums.fill(0.0);
        result.fill(0.0);
        // SAFETY: `rows` rows of `depth` numbers.
        unsafe {
            let from = LeftRows { start: q.as_ptr(), row: depth, column: 1, rows, k: depth };
            matrix::pack_tiles::<bf16, T>(isa, from, tiles);
        }
        let steps = depth.div_ceil(STEP);
        let left = Rows {
            start: tiles.as_ptr().cast(),
            pitch: STEP_BYTES,
            tile: steps * TILE * STEP_BYTES,
            offsets: &self.offsets.0,
            count: rows,
            groups: 1,
            apart: 0,
        };
        let seen = self.heads.seen(first, rows);
        for start in (0..seen).step_by(KEYS) {
            let count = KEYS.min(seen - start);
            let panel = |p: usize| packed_keys.wrapping_add(p * matrix::panel_len::<bf16>(depth)).cast_const().cast();
            let range = (start / BLOCK, (start + count).div_ceil(BLOCK));
            // SAFETY: queries and keys have as many steps.
            unsafe {
                let room = &mut blocks[..];
                matrix::multiply(
                    self.matrix,
                    &left,
                    range,
                    &panel,
                    Outer::Panels,
                    room,
                    &mut |sums, (row, p), (from, to)| {
                        let at = p * BLOCK - start;
                        for (r, sums) in sums.0.chunks_exact(BLOCK).enumerate().take(to).skip(from) {
                            let line = &mut scores[(row + r) * KEYS + at..];
                            // As arrays: a call for so few numbers would take longer.
                            if let (Some(line), Some(sums)) = (line.first_chunk_mut::<BLOCK>(), sums.first_chunk()) {
                                *line = *sums;
                            }
                        }
                    },
                );
            }
            let padded = count.next_multiple_of(STEP);
            for row in 0..rows {
                let line = &mut scores[row * KEYS..][..count];
                let plain = self.heads.is_plain();
                if !plain {
                    self.heads.mask_line(isa, arguments, line, head, first + row, start);
                }
                let weights: &mut [bf16] = bytemuck::cast_slice_mut(&mut weights[row * WEIGHTS_PITCH..][..2 * padded]);
                weights[count..].fill(bf16::ZERO);
                let scale = if plain { self.heads.scale } else { 1.0 };
                let state = (&mut maxima[row], &mut sums[row]);
                weigh_row(isa, line, scale, &mut weights[..count], state, &mut result[row * columns..][..columns]);
            }
            let left = Rows {
                start: weights.as_ptr(),
                pitch: WEIGHTS_PITCH,
                tile: TILE * WEIGHTS_PITCH,
                offsets: &self.offsets.1[..padded / STEP],
                count: rows,
                groups: 1,
                apart: 0,
            };
            let first_step = start / STEP * BLOCK * STEP;
            let panel = |p: usize| {
                packed_values.wrapping_add(p * matrix::panel_len::<bf16>(keys) + first_step).cast_const().cast()
            };
            // SAFETY: weights have 64 rows of that pitch; the values' panels have the steps of these keys.
            unsafe {
                let room = &mut blocks[..];
                matrix::multiply(
                    self.matrix,
                    &left,
                    (0, columns / BLOCK),
                    &panel,
                    Outer::Panels,
                    room,
                    &mut |sums, (row, p), (from, to)| {
                        let result = &mut result[row * columns + p * BLOCK..];
                        add_rows(isa, sums, (from, to), result, columns);
                    },
                );
            }
        }
        for (row, line) in out.chunks_exact_mut(width.max(1)).enumerate() {
            // A query that sees no key gives zeros.
            let factor = if sums[row] > 0.0 || sums[row].is_nan() { 1.0 / sums[row] } else { 0.0 };
            let result = &mut result[row * columns..][..width];
            result.iter_mut().for_each(|element| *element *= factor);
            T::narrow_all(isa, result, line);
        }
    }
}

multiversion! {
    /// Adds rows of a block to rows that lie `apart`.
    fn add_rows(sums: &Sums, rows: (usize, usize), result: &mut [f32], apart: usize) = add_each_row
}

#[inline(always)]
fn add_each_row(sums: &Sums, (from, to): (usize, usize), result: &mut [f32], apart: usize) {
    for row in from..to {
        let sums = sums.0[row * BLOCK..].first_chunk::<BLOCK>();
        if let (Some(result), Some(sums)) = (result[row * apart..].first_chunk_mut::<BLOCK>(), sums) {
            for column in 0..BLOCK {
                result[column] += sums[column];
            }
        }
    }
}

on_vectors! {
    /// Turns a line of scores, still to be scaled, into weights against the running maximum and sum, and
    /// rescales what was summed.
    fn weigh_row(
        line: &[f32],
        scale: f32,
        weights: &mut [bf16],
        state: (&mut f32, &mut f32),
        result: &mut [f32],
    ) = weigh
}

/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn weigh<V: Vector>(
    line: &[f32],
    scale: f32,
    weights: &mut [bf16],
    (max, sum): (&mut f32, &mut f32),
    result: &mut [f32],
) {
    assert_eq!(line.len(), weights.len());
    let whole = line.len() - line.len() % V::LANES;
    // SAFETY: the caller's promise; registers lie inside the line and its weights.
    unsafe {
        // A NaN may be passed over: it shows in the sum.
        let (mut larger, factor_of_all) = (*max, V::splat(scale));
        let mut most = V::splat(larger);
        for at in (0..whole).step_by(V::LANES) {
            most = V::load(line.as_ptr().add(at)).times(factor_of_all).at_least(most);
        }
        larger = larger.max(most.largest_lane());
        for &number in &line[whole..] {
            larger = larger.max(number * scale);
        }
        if larger == f32::NEG_INFINITY {
            weights.fill(bf16::ZERO);
            return;
        }
        let less = V::splat(-larger);
        let mut total = V::splat(0.0);
        for at in (0..whole).step_by(V::LANES) {
            let weight = less.plus_product(V::load(line.as_ptr().add(at)), factor_of_all).exp_near();
            total = total.plus(weight);
            weight.narrow(weights.as_mut_ptr().add(at));
        }
        let mut added = total.sum_of_lanes();
        for (&score, weight) in line[whole..].iter().zip(&mut weights[whole..]) {
            let number = exp(score.mul_add(scale, -larger));
            added += number;
            *weight = nearest(number);
        }
        // Before the first key the sum and what was summed are 0.
        if *max < larger && *max > f32::NEG_INFINITY {
            let factor = exp(*max - larger);
            *sum *= factor;
            for element in result {
                *element *= factor;
            }
        }
        *sum += added;
        *max = larger;
    }
}
