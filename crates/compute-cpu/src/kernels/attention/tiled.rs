//! Attention in bf16 on the matrix unit: as in f32, but products are blocks of 32 queries and 32 keys.
//!
//! Scores stay in the blocks in which they are made. The weights of a block of keys are rounded to bf16 in the order
//! of rows, which the matrix unit reads as they lie. Maxima, sums and the result stay in f32.

use super::bounds::{self, longest_column, longest_row};
use super::weigh::{self, RowMasks, weigh, write_means};
use super::{Heads, PARALLEL_PRODUCTS};
use crate::Matrix;
use crate::kernels::Machine;
use crate::matrix::{self, Ahead, BLOCK, Begin, Block, Factor, Left, LeftRows, Panels, STEP_BYTES};
use crate::matrix::{Sums, TILE, Tiles};
use crate::pool::own_bytes;
use crate::prefetch::LINE;
use crate::real::{Numbers, Real};
use half::bf16;
use halimede_compute::{Arguments, Step};
use halimede_tensor::{DType, View};
use smallvec::SmallVec;

/// Numbers of bf16 that a step multiplies.
const STEP: usize = bf16::STEP;
/// Blocks of queries whose work is done in turns: what one stores is read when it has arrived.
const HALVES: usize = 2;
/// Queries of a task.
const QUERIES: usize = HALVES * BLOCK;
/// Keys of a block, at most: its scores take 128 KiB for each half, in the second-level cache. More of them at a time
/// are worth more than scores in the first.
const KEYS: usize = 1024;

pub(super) struct TiledStep {
    heads: Heads,
    dtype: DType,
    matrix: Matrix,
    machine: Machine,
    /// How queries lie, and where the steps of their tiles are.
    queries: Queries,
    /// Of the steps in the rows of weights.
    weights_offsets: Vec<usize>,
}

/// Where the matrix unit reads a block of queries.
struct Queries {
    /// Where they lie, if all of the block are there.
    in_place: Option<Vec<usize>>,
    /// Packed in tiles.
    packed: Vec<usize>,
}

/// The parts of a thread's memory.
struct Room<'a> {
    halves: [HalfRoom<'a>; HALVES],
    /// What a mask adds, where that does not lie ready.
    bias: &'a mut [f32],
}

/// Memory for a block of queries.
struct HalfRoom<'a> {
    scores: &'a mut [Sums],
    result: &'a mut [Sums],
    weights: &'a mut [bf16],
    /// The queries in tiles.
    tiles: &'a mut [bf16],
}

/// A block of queries under way.
struct Half<'a> {
    /// Its first query, and how many there are.
    first: usize,
    rows: usize,
    /// Keys up to the last that one of them sees.
    seen: usize,
    queries: Left<'a>,
    /// As [`weigh::Rows::bound`].
    bound: f32,
    scores: &'a mut [Sums],
    weights: &'a mut [bf16],
    /// Of each query so far.
    maxima: [f32; BLOCK],
    sums: [f32; BLOCK],
    result: &'a mut [Sums],
}

/// Packed keys and values of a head.
#[derive(Clone, Copy)]
struct Packed {
    keys: *mut bf16,
    values: *mut bf16,
    /// The square of the length of the longest key.
    longest: *mut f32,
}

/// Rows of operands that are read next, and may be far away: they are asked for beside products, some at a time.
#[derive(Default)]
struct Coming {
    /// The last ones come first.
    pieces: SmallVec<[ComingPiece; 4]>,
    /// Rows that are asked for beside a product.
    each: usize,
}

/// Rows, and bytes from one to the next. What is asked for of each are as many lines as a product has steps.
struct ComingPiece {
    start: *const u8,
    rows: usize,
    apart: usize,
}

impl Coming {
    /// What to ask for beside the next product.
    fn next(&mut self) -> Ahead {
        let Some(piece) = self.pieces.last_mut() else { return Ahead::NOTHING };
        let (start, lines, apart) = (piece.start, self.each.min(piece.rows), piece.apart);
        (piece.start, piece.rows) = (start.wrapping_add(lines * apart), piece.rows - lines);
        if piece.rows == 0 {
            self.pieces.pop();
        }
        Ahead { start, lines, apart, each: LINE }
    }
}

impl TiledStep {
    /// Whether there is something to multiply, and heads are not so deep that scores would be summed in several
    /// passes.
    pub fn takes(heads: &Heads) -> bool {
        heads.depth > 0 && heads.width > 0 && heads.depth.div_ceil(STEP) <= matrix::PASS_STEPS
    }

    /// `dtype` is that of the operands and of the result.
    pub fn new(heads: Heads, dtype: DType, matrix: Matrix, machine: Machine) -> TiledStep {
        let offsets = |count: usize, bytes: usize| (0..count).map(|step| step * bytes).collect::<Vec<_>>();
        let steps = heads.depth.div_ceil(STEP);
        let reads_in_place = dtype == DType::Bf16 && heads.depth.is_multiple_of(STEP);
        let queries = Queries {
            in_place: reads_in_place.then(|| offsets(steps, STEP_BYTES)),
            packed: offsets(steps, TILE * STEP_BYTES),
        };
        TiledStep { heads, dtype, matrix, machine, queries, weights_offsets: offsets(KEYS / STEP, STEP_BYTES) }
    }

    /// Numbers of the packed keys of a head.
    fn keys_len(&self) -> usize {
        self.heads.keys.div_ceil(BLOCK) * matrix::panel_len::<bf16>(self.heads.depth)
    }

    /// Numbers of the packed values of a head.
    fn values_len(&self) -> usize {
        self.heads.width.div_ceil(BLOCK) * matrix::panel_len::<bf16>(self.heads.keys)
    }

    fn packed_bytes(&self) -> usize {
        own_bytes((self.keys_len() + self.values_len()) * size_of::<bf16>() + size_of::<f32>())
    }

    fn key_heads(&self) -> usize {
        self.heads.batch * self.heads.groups
    }

    fn threads(&self) -> usize {
        if self.heads.products() < PARALLEL_PRODUCTS { 1 } else { self.machine.pool.threads() }
    }

    /// Whether a thread packs the keys of a head and multiplies all its queries by them, while they are near: where
    /// that keeps all threads busy.
    fn is_by_heads(&self) -> bool {
        self.threads() == 1 || self.key_heads() >= 4 * self.threads()
    }

    /// Heads whose keys and values are packed at a time.
    fn packed_heads(&self) -> usize {
        if self.is_by_heads() { self.threads() } else { self.key_heads() }
    }

    fn result_blocks(&self) -> usize {
        self.heads.width.div_ceil(BLOCK)
    }

    /// Keys of a block.
    fn columns(&self) -> usize {
        self.heads.keys.next_multiple_of(BLOCK).min(KEYS)
    }

    /// Numbers from one row of weights to the next: in bytes not a multiple of the caches' period.
    fn weights_pitch(&self) -> usize {
        self.columns() + STEP
    }

    fn tiles_len(&self) -> usize {
        matrix::tiles_len::<bf16>(BLOCK, self.heads.depth)
    }

    /// Numbers of what is added to scores, where that does not lie ready.
    fn bias_len(&self) -> usize {
        let is_made = self.heads.mask.as_ref().is_some_and(|mask| !mask.has_lines());
        if is_made { BLOCK * self.columns() } else { 0 }
    }

    fn half_bytes(&self) -> usize {
        let sums = self.columns() / BLOCK + self.result_blocks();
        sums * size_of::<Sums>() + (BLOCK * self.weights_pitch() + self.tiles_len()) * size_of::<bf16>()
    }

    fn thread_bytes(&self) -> usize {
        own_bytes(HALVES * self.half_bytes() + self.bias_len() * size_of::<f32>())
    }

    pub fn workspace(&self) -> usize {
        self.packed_heads() * self.packed_bytes() + self.threads() * self.thread_bytes()
    }

    /// The packed keys and values of a head, by pointer: threads write different ones.
    fn packed(&self, arguments: &Arguments<'_>, place: usize) -> Packed {
        let keys = arguments.workspace.as_ptr().wrapping_add(place * self.packed_bytes()).cast::<bf16>();
        let values = keys.wrapping_add(self.keys_len());
        Packed { keys, values, longest: values.wrapping_add(self.values_len()).cast() }
    }

    /// A thread's memory.
    ///
    /// # Safety
    /// Each thread asks for its own, once at a time.
    unsafe fn room<'a>(&self, arguments: &Arguments<'a>, thread: usize) -> Room<'a> {
        let start = self.packed_heads() * self.packed_bytes() + thread * self.thread_bytes();
        let start = arguments.workspace.as_ptr().wrapping_add(start);
        // SAFETY: the caller's promise; the workspace is as long, and any bytes are numbers.
        unsafe {
            Room {
                halves: std::array::from_fn(|half| {
                    let scores = start.add(half * self.half_bytes()).cast::<Sums>();
                    let result = scores.add(self.columns() / BLOCK);
                    let weights = result.add(self.result_blocks()).cast::<bf16>();
                    let tiles = weights.add(BLOCK * self.weights_pitch());
                    HalfRoom {
                        scores: std::slice::from_raw_parts_mut(scores, self.columns() / BLOCK),
                        result: std::slice::from_raw_parts_mut(result, self.result_blocks()),
                        weights: std::slice::from_raw_parts_mut(weights, BLOCK * self.weights_pitch()),
                        tiles: std::slice::from_raw_parts_mut(tiles, self.tiles_len()),
                    }
                }),
                bias: std::slice::from_raw_parts_mut(start.add(HALVES * self.half_bytes()).cast(), self.bias_len()),
            }
        }
    }
}

impl Step for TiledStep {
    fn run(&self, arguments: &Arguments<'_>) {
        assert!(arguments.workspace.len() >= self.workspace());
        match self.dtype {
            DType::Bf16 => self.run_of::<bf16>(arguments),
            _ => self.run_of::<f32>(arguments),
        }
    }
}

impl TiledStep {
    fn run_of<T: Real>(&self, arguments: &Arguments<'_>) {
        let (pool, threads) = (&self.machine.pool, self.threads());
        let blocks = self.heads.queries.div_ceil(QUERIES);
        if self.is_by_heads() {
            return pool.run_tasks(threads, self.key_heads(), &|thread, head| {
                let (tiles, packed) = (self.matrix.enter(), self.packed(arguments, thread));
                self.pack::<T>(arguments, head, packed);
                // Tasks are given out in order.
                let mut coming = self.coming::<T>(arguments, head + threads);
                for head in self.heads.query_heads(head) {
                    for block in 0..blocks {
                        self.block::<T>(arguments, &tiles, thread, packed, (head, block), &mut coming);
                    }
                }
            });
        }
        pool.run_tasks(threads, self.key_heads(), &|_, head| {
            self.pack::<T>(arguments, head, self.packed(arguments, head));
        });
        pool.run_tasks(threads, self.heads.batch * self.heads.heads * blocks, &|thread, task| {
            let (head, block) = (task / blocks, task % blocks);
            let packed = self.packed(arguments, self.heads.key_head(head));
            let mut coming = Coming::default();
            self.block::<T>(arguments, &self.matrix.enter(), thread, packed, (head, block), &mut coming);
        });
    }

    /// What a thread reads of a head whose keys it packs, if there is one.
    fn coming<T: Real>(&self, arguments: &Arguments<'_>, head: usize) -> Coming {
        let Heads { queries, keys, depth, width, lines, .. } = &self.heads;
        if head >= self.key_heads() {
            return Coming::default();
        }
        let heads = self.heads.query_heads(head);
        let products = heads.len() * queries.div_ceil(BLOCK) * keys.div_ceil(BLOCK);
        let steps = depth.div_ceil(STEP);
        let queries = heads.map(|head| (0, head, *queries, *depth));
        let mut pieces: SmallVec<[ComingPiece; 4]> = SmallVec::new();
        for (operand, head, rows, columns) in queries.chain([(2, head, *keys, *width), (1, head, *keys, *depth)]) {
            let Some(view) = arguments.inputs[operand] else { continue };
            let start = view.as_ptr().cast_const().wrapping_add(self.heads.at(operand, head, 0) * size_of::<T>());
            let (bytes, apart) = (columns * size_of::<T>(), lines[operand].token * size_of::<T>());
            let starts = (0..bytes).step_by(steps * LINE).map(|at| start.wrapping_add(at));
            pieces.extend(starts.map(|start| ComingPiece { start, rows, apart }));
        }
        let rows: usize = pieces.iter().map(|piece| piece.rows).sum();
        // Of what is causal about half is multiplied.
        let products = if self.heads.causal.is_some() { products / 2 } else { products };
        pieces.retain(|piece| piece.rows > 0);
        Coming { pieces, each: rows.div_ceil(products.max(1)) }
    }

    /// Packs keys and values of one head.
    fn pack<T: Real>(&self, arguments: &Arguments<'_>, head: usize, packed: Packed) {
        let Heads { keys, depth, width, lines, .. } = &self.heads;
        let isa = self.machine.isa;
        let operand = |index: usize| arguments.inputs[index].unwrap_or(View::empty());
        // SAFETY: inputs are not written during the step; nobody else packs into the same place.
        unsafe {
            let k = &operand(1).slice::<T>()[self.heads.at(1, head, 0)..][..self.heads.span(1, *keys, *depth)];
            let v = &operand(2).slice::<T>()[self.heads.at(2, head, 0)..][..self.heads.span(2, *keys, *width)];
            let transposed = Panels { start: k.as_ptr(), row: 1, column: lines[1].token, n: *keys, k: *depth };
            let plain = Panels { start: v.as_ptr(), row: lines[2].token, column: 1, n: *width, k: *keys };
            let panels = std::slice::from_raw_parts_mut(packed.keys, self.keys_len());
            for (index, panel) in panels.chunks_exact_mut(matrix::panel_len::<bf16>(*depth).max(1)).enumerate() {
                matrix::pack_panel::<bf16, T>(isa, &transposed, index * BLOCK, panel);
            }
            if self.is_bounded() {
                let panel_len = matrix::panel_len::<bf16>(*depth);
                longest_column(isa, bounds::Columns { panels, panel_len, square: &mut *packed.longest });
            }
            let panels = std::slice::from_raw_parts_mut(packed.values, self.values_len());
            for (index, panel) in panels.chunks_exact_mut(matrix::panel_len::<bf16>(*keys).max(1)).enumerate() {
                matrix::pack_panel::<bf16, T>(isa, &plain, index * BLOCK, panel);
            }
        }
    }

    /// Whether products alone say how large scores are: a mask of numbers is added to them.
    fn is_bounded(&self) -> bool {
        self.heads.mask.as_ref().is_none_or(|mask| mask.boolean && mask.has_lines())
    }

    /// How large scores of these queries are at most; infinite where that is not known.
    ///
    /// # Safety
    /// The keys were packed, and there are as many queries.
    unsafe fn bound(&self, queries: &Left<'_>, rows: usize, packed: Packed) -> f32 {
        if !self.is_bounded() {
            return f32::INFINITY;
        }
        let mut longest = 0.0;
        longest_row(self.machine.isa, bounds::Rows { left: queries, count: rows, square: &mut longest });
        // SAFETY: it was written when the keys were packed.
        self.heads.scale.abs() * longest.sqrt() * unsafe { *packed.longest }.sqrt()
    }

    /// One block of queries of one head.
    fn block<T: Real>(
        &self,
        arguments: &Arguments<'_>,
        tiles: &Tiles<bf16>,
        thread: usize,
        packed: Packed,
        (head, block): (usize, usize),
        coming: &mut Coming,
    ) {
        let heads = &self.heads;
        // SAFETY: the thread is this one, which computes one block at a time.
        let Room { halves, bias } = unsafe { self.room(arguments, thread) };
        let firsts = (block * QUERIES..heads.queries).step_by(BLOCK);
        let mut halves: SmallVec<[Half<'_>; HALVES]> = firsts
            .zip(halves)
            .map(|(first, HalfRoom { scores, result, weights, tiles })| {
                let rows = BLOCK.min(heads.queries - first);
                let queries = self.queries::<T>(arguments, (head, first, rows), tiles);
                let (maxima, sums) = ([f32::NEG_INFINITY; BLOCK], [0.0; BLOCK]);
                // SAFETY: the head was packed.
                let bound = unsafe { self.bound(&queries, rows, packed) };
                let seen = heads.seen(first, rows);
                Half { first, rows, seen, queries, bound, scores, weights, maxima, sums, result }
            })
            .collect();
        let seen = halves.iter().map(|half| half.seen).max().unwrap_or(0);
        for start in (0..seen).step_by(KEYS) {
            for index in 0..KEYS.min(seen - start).div_ceil(BLOCK) {
                let first = start + index * BLOCK;
                let panel = packed.keys.wrapping_add(first / BLOCK * matrix::panel_len::<bf16>(heads.depth));
                for half in halves.iter_mut().filter(|half| first < half.seen) {
                    let sums = &mut half.scores[index];
                    // SAFETY: queries and keys have as many steps.
                    unsafe { multiply(tiles, half.queries, panel, half.rows, false, sums, &coming.next()) };
                }
            }
            for half in halves.iter_mut().filter(|half| start < half.seen) {
                self.weigh(arguments, half, head, start, bias);
            }
            for index in 0..self.result_blocks() {
                let panel = index * matrix::panel_len::<bf16>(heads.keys) + start * BLOCK;
                let panel = packed.values.wrapping_add(panel);
                for half in halves.iter_mut().filter(|half| start < half.seen) {
                    let weights: *const u8 = half.weights.as_ptr().cast();
                    let pitch = self.weights_pitch() * size_of::<bf16>();
                    let offsets = &self.weights_offsets[..KEYS.min(half.seen - start).div_ceil(STEP)];
                    let left = Left::of_tiles([weights, weights.wrapping_add(TILE * pitch)], pitch, offsets);
                    // SAFETY: weights have 32 rows of that pitch; the values' panels have the steps of these keys.
                    unsafe {
                        multiply(tiles, left, panel, half.rows, start > 0, &mut half.result[index], &Ahead::NOTHING)
                    };
                }
            }
        }
        for Half { first, rows, seen, sums, result, .. } in halves {
            if seen == 0 {
                result.fill(Sums::default());
            }
            let span = heads.span(3, rows, heads.width);
            let to = Numbers::of(arguments.outputs[0], self.dtype, heads.at(3, head, first), span);
            let (width, pitch) = (heads.width, heads.lines[3].token);
            let results = weigh::Results { count: rows, blocks: result, width, sums: &sums, to, pitch };
            write_means(self.machine.isa, results);
        }
    }

    /// Makes weights of a block's scores for the keys from `start` on.
    fn weigh(&self, arguments: &Arguments<'_>, half: &mut Half<'_>, head: usize, start: usize, bias: &mut [f32]) {
        let heads = &self.heads;
        let Half { first, rows, seen, bound, scores, weights, maxima, sums, result, .. } = half;
        let columns = KEYS.min(*seen - start);
        let scores = &mut scores[..columns.div_ceil(BLOCK)];
        let mut scale = heads.scale;
        let keeps_order = scale > 0.0;
        if heads.softcap > 0.0 || !keeps_order {
            scores.iter_mut().for_each(|block| heads.scale_scores(self.machine.isa, &mut block.0));
            scale = 1.0;
        }
        let mask = self.row_masks(arguments, bias, (head, *first, *rows), (start, columns));
        let seen = match heads.causal {
            Some(offset) => (*first as isize + offset + 1 - start as isize, 1),
            None => (columns as isize, 0),
        };
        let rows = weigh::Rows {
            count: *rows,
            scores,
            seen,
            columns,
            scale,
            bound: *bound,
            mask,
            weights,
            weights_pitch: self.weights_pitch(),
            maxima,
            sums,
            result: if start == 0 { &mut [] } else { result },
        };
        weigh(self.machine.isa, rows);
    }

    /// Queries `first..first + rows` as the matrix unit reads them: where they lie if that is possible, or packed.
    fn queries<'a, T: Real>(
        &'a self,
        arguments: &Arguments<'a>,
        (head, first, rows): (usize, usize, usize),
        packed: &'a mut [bf16],
    ) -> Left<'a> {
        let pitch = self.heads.lines[0].token;
        // SAFETY: inputs are not written during the step.
        let q = unsafe { arguments.inputs[0].unwrap_or(View::empty()).slice::<T>() };
        let q = &q[self.heads.at(0, head, first)..][..self.heads.span(0, rows, self.heads.depth)];
        match &self.queries.in_place {
            Some(offsets) if rows.is_multiple_of(TILE) => {
                let upper: *const u8 = q.as_ptr().cast();
                let lower = if rows > TILE { upper.wrapping_add(TILE * pitch * size_of::<T>()) } else { upper };
                Left::of_tiles([upper, lower], pitch * size_of::<T>(), offsets)
            }
            _ => {
                let from = LeftRows { start: q.as_ptr(), row: pitch, column: 1, rows, k: self.heads.depth };
                // SAFETY: `rows` rows of `depth` numbers.
                unsafe { matrix::pack_tiles::<bf16, T>(self.machine.isa, from, packed) };
                let upper: *const u8 = packed.as_ptr().cast();
                let offsets = &self.queries.packed;
                let lower = upper.wrapping_add(offsets.len() * TILE * STEP_BYTES);
                Left::of_tiles([upper, lower], STEP_BYTES, offsets)
            }
        }
    }

    /// The mask of queries `first..first + rows` and keys `start..start + count`: as it lies, or what it adds, made in
    /// `room`.
    fn row_masks<'a>(
        &self,
        arguments: &Arguments<'a>,
        room: &'a mut [f32],
        (head, first, rows): (usize, usize, usize),
        (start, count): (usize, usize),
    ) -> RowMasks<'a> {
        let (Some(mask), Some(view)) = (&self.heads.mask, arguments.inputs.get(3).copied().flatten()) else {
            return RowMasks::None;
        };
        let pitch = mask.strides[2];
        let lines = if pitch == 0 { 1 } else { rows };
        if mask.has_lines() {
            let begin = mask.at(&self.heads, head, first, start);
            let range = begin..begin + (lines - 1) * pitch + count;
            // SAFETY: inputs are not written during the step.
            return unsafe {
                match mask.boolean {
                    true => RowMasks::Shown(&view.slice::<u8>()[range], pitch),
                    false => RowMasks::Bias(&view.slice::<f32>()[range], pitch),
                }
            };
        }
        for (row, line) in room.chunks_exact_mut(self.columns()).enumerate().take(lines) {
            let line = &mut line[..count];
            line.fill(0.0);
            self.heads.mask_line(self.machine.isa, arguments, line, head, first + row, start);
        }
        RowMasks::Bias(room, if pitch == 0 { 0 } else { self.columns() })
    }
}

/// One block: `sums = left · panel`, or on top of what they are.
///
/// # Safety
/// As [`Tiles::block`].
unsafe fn multiply(
    tiles: &Tiles<bf16>,
    left: Left<'_>,
    panel: *mut bf16,
    rows: usize,
    on_top: bool,
    sums: &mut Sums,
    ahead: &Ahead,
) {
    let panel: *const u8 = panel.cast_const().cast();
    let to: *mut Sums = sums;
    let begin = if on_top { Begin::sums(to) } else { Begin::ZERO };
    // SAFETY: the caller's promise.
    unsafe {
        let (ends, pending, leaves_lower) = (None, None, false);
        tiles.block(&Block { left, panel, columns: BLOCK, rows, begin, to, ends, pending, leaves_lower, ahead })
    };
}
