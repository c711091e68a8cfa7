//! Products on the matrix unit.
//!
//! ```text
//! for each block of rows
//!     for each range of panels               a task
//!         pack the rows as tiles             once for each thread; they stay in its second-level cache
//!         for each panel of the right operand
//!             sums = rows · panel            matrix::multiply
//!             epilogue, store
//! ```

use super::Right;
use super::layout::{Layout, Operand};
use crate::gemm::CACHE_PERIOD;
use crate::grouped::GroupedWeights;
use crate::kernels::Machine;
use crate::kernels::cuts::{Shares, TASKS_OF_THREAD, are_even, rows_cut};
use crate::kernels::lines::fill_up;
use crate::kernels::tiled::{Finish, Finishing, KeptColumns, Piece, Product, TiledWeights, thread_bytes, thread_part};
use crate::kernels::tuning::{Order, Pack};
use crate::matrix::{
    self, BLOCK, Begin, Ends, Factor, Later, LeftRows, MatrixUnit, Panels, Rows, Runs, STEP_BYTES, STRIP, Sink, Sums,
    TILE,
};
use crate::real::Converts;
use halimede_compute::{Arguments, Prepared, Step, Tasks};
use halimede_tensor::{DType, View};
use smallvec::{SmallVec, smallvec};
use std::marker::PhantomData;
use std::ops::Range;

/// Bytes of packed rows that a task keeps in the second-level cache. With 1.3 MiB a product took longer, though machines with AMX have 2
/// (`docs/benchmarks/gaps-m.md#weights-near-and-vectors-alone`).
const TASK_BYTES: usize = 1 << 20;
/// Rows of a task, at most, but for those of few steps: beyond that a panel is read often enough already.
const TASK_ROWS: usize = 512;
/// Bytes of a task's rows up to which it may have more of them, where any number is ended at once: to begin a task takes as long as some
/// rows.
const SHORT_BYTES: usize = 128 << 10;
/// Bytes of weights that all threads read where each has rows of its own: what a thread has written it reads again from its own caches,
/// as rows of a convolution's images above all.
const SMALL_BYTES: usize = 512 << 10;
/// What says which rows a thread has packed, on a cache line of its own.
const MARK_BYTES: usize = 64;
/// No rows are packed yet.
const NO_ROWS: usize = usize::MAX;

/// Products of factors `F` that are read from operands of `L` and `R`.
pub(in crate::kernels) struct TiledStep<F: Product, L, R> {
    layout: Layout,
    right: Right<TiledWeights<F::Right>>,
    finish: Finish<F>,
    machine: Machine,
    matrix: MatrixUnit<F>,
    /// Of the steps within a tile.
    offsets: Vec<usize>,
    /// Groups of each step that count.
    depths: Vec<u8>,
    panels: usize,
    /// Rows of the tasks.
    shares: Shares,
    /// Ranges of panels that tasks of the same rows share.
    panel_parts: usize,
    packing: Packing,
    operands: PhantomData<(L, R)>,
}

impl<F: Product, L: Converts<F>, R: Converts<F::Right>> TiledStep<F, L, R> {
    pub fn new(
        layout: Layout,
        right: impl Into<Right<TiledWeights<F::Right>>>,
        finish: Finish<F>,
        machine: Machine,
        matrix: MatrixUnit<F>,
    ) -> TiledStep<F, L, R> {
        let steps = layout.k.div_ceil(F::STEP);
        let packing = Packing::of(&layout, matrix, L::DTYPE == F::DTYPE, machine.blocking.pack);
        let step_bytes = match layout.left_lines {
            Some(apart) => apart * size_of::<F>(),
            None if matches!(packing, Packing::Tiles) => TILE * STEP_BYTES,
            None => STEP_BYTES,
        };
        let offsets = (0..steps).map(|step| step * step_bytes).collect();
        let depths = matrix::depths::<F>(layout.k, 1);
        let panels = layout.n.div_ceil(BLOCK);
        let threads = machine.threads();
        let usual = || {
            let is_in_place = matrix.ends_rows(BLOCK) && matches!(packing, Packing::None);
            let by_rows = is_in_place && takes_rows((layout.m, layout.n, layout.k * size_of::<F>()), threads);
            // Strips that read rows where they lie may begin anywhere: threads have as many rows, 25 and 24 of an image of 7 x 7.
            let unit = match (is_in_place, threads) {
                (true, 1) => STRIP,
                (true, _) => 1,
                (false, _) => BLOCK,
            };
            let cut = Cut { held: held_rows(matrix, steps), unit, shared: if by_rows { threads } else { 1 } };
            tasks_of_rows((layout.m, layout.batches(), layout.n), cut, threads)
        };
        let shares = machine.blocking.rows.map_or_else(usual, |rows| Shares::of_rows(layout.m, rows));
        let panel_parts = parts_of_panels(layout.batches() * shares.count, panels, threads);
        TiledStep {
            layout,
            right: right.into(),
            finish,
            machine,
            matrix,
            offsets,
            depths,
            panels,
            shares,
            panel_parts,
            packing,
            operands: PhantomData,
        }
    }

    fn steps(&self) -> usize {
        self.offsets.len()
    }

    /// Numbers of a packed right operand; 0 where it is packed already.
    fn right_len(&self) -> usize {
        match self.right {
            Right::Packed(_) => 0,
            _ => self.panels * matrix::panel_len::<F::Right>(self.layout.k),
        }
    }

    fn right_bytes(&self) -> usize {
        (self.right_len() * self.layout.right_batches() * size_of::<F>()).next_multiple_of(64)
    }

    fn tiles_len(&self) -> usize {
        match self.packing {
            Packing::None if self.has_last_line() => TILE * self.layout.left.free,
            Packing::None => 0,
            Packing::Lines(pitch) => self.task_rows() * pitch,
            Packing::Tiles => matrix::tiles_len::<F>(self.task_rows(), self.layout.k),
        }
    }

    /// Whether the last rows that are read where they lie are no whole tile, and so are copied: behind blocked ones there is
    /// something to read.
    fn has_last_line(&self) -> bool {
        let is_followed = self.layout.left_lines.is_some();
        !self.matrix.takes_lines() && !self.layout.m.is_multiple_of(TILE) && !is_followed
    }

    fn sums(&self) -> usize {
        let at_once = self.machine.blocking.order == Some(Order::Rows);
        let rows = self.task_rows();
        matrix::sums_needed(self.matrix, rows.div_ceil(self.block(rows)), self.steps(), at_once)
    }

    /// Rows of a block, of so many.
    fn block(&self, rows: usize) -> usize {
        let in_lines = self.matrix.takes_lines() && !matches!(self.packing, Packing::Tiles);
        if in_lines { matrix::block_rows(rows) } else { BLOCK }
    }

    /// The left operand where `count` rows lie so many numbers apart.
    fn rows(&self, start: *const F, pitch: usize, count: usize) -> Rows<'_> {
        let pitch = pitch * size_of::<F>();
        let line = if self.matrix.takes_lines() { count } else { TILE };
        let tiles = Rows::tiles(start.cast(), &self.offsets, count);
        Rows { pitch, line, line_bytes: line * pitch, depths: &self.depths, block: self.block(count), ..tiles }
    }

    fn thread_bytes(&self) -> usize {
        thread_bytes::<F>(self.finish.registers_bytes(), self.tiles_len(), self.sums())
    }

    fn workspace_bytes(&self) -> usize {
        self.right_bytes() + (MARK_BYTES + self.thread_bytes()) * self.machine.threads()
    }

    /// Rows of a task, at most.
    fn task_rows(&self) -> usize {
        self.shares.most()
    }

    fn shared(&self, arguments: &Arguments<'_>) -> Shared<F, L, R> {
        assert!(arguments.workspace.len() >= self.workspace_bytes());
        let operand =
            |index: usize| arguments.inputs[index].map_or(std::ptr::null(), |view| view.as_ptr().cast_const());
        let (left, right) = if self.layout.swapped { (1, 0) } else { (0, 1) };
        let workspace = arguments.workspace.as_ptr();
        Shared {
            left: operand(left).cast(),
            right: operand(right).cast(),
            packed: workspace.cast(),
            // SAFETY: inside the workspace, whose length was checked, as below.
            marks: unsafe { workspace.add(self.right_bytes()) },
            // SAFETY: behind a mark for each thread.
            threads: unsafe { workspace.add(self.right_bytes() + MARK_BYTES * self.machine.threads()) },
        }
    }

    pub fn prepared(self) -> Prepared {
        let workspace = self.workspace_bytes();
        Prepared { step: Box::new(self), workspace }
    }
}

/// Whether each thread has rows of its own, of `m` rows by `n` columns of so many bytes: it reads what it has written itself, but all
/// columns. Where these are many more than rows they take longer than rows that another thread has written, if they can be shared evenly.
fn takes_rows((m, n, depth_bytes): (usize, usize, usize), threads: usize) -> bool {
    let is_even = are_even(n.div_ceil(BLOCK), threads);
    n * depth_bytes <= SMALL_BYTES && m >= 2 * STRIP * threads && (n <= 2 * m || !is_even)
}

/// Blocks of rows that the work is cut into before ranges of panels are. Each thread packs the rows of a block, and reads its
/// share of the panels for each block: with `b` blocks, a thread packs `m / b` rows and reads `n · b / threads` columns,
/// which take about as long each, and the sum is least where they are equal.
fn row_blocks(m: usize, n: usize, threads: usize) -> usize {
    let even = ((m * threads) as f64 / n.max(1) as f64).sqrt().round() as usize;
    even.clamp(1, threads)
}

/// Rows that a task has at most, for a product of so many steps.
fn held_rows<F: Factor>(matrix: MatrixUnit<F>, steps: usize) -> usize {
    let of_bytes = |bytes: usize| bytes / (steps.max(1) * STEP_BYTES);
    let most = if matrix.ends_rows(BLOCK) { TASK_ROWS.max(of_bytes(SHORT_BYTES)) } else { TASK_ROWS };
    of_bytes(TASK_BYTES).min(most)
}

/// How rows may be cut into tasks.
#[derive(Clone, Copy)]
struct Cut {
    /// Rows that a task has at most, as [`held_rows`].
    held: usize,
    /// Tasks have a multiple of so many rows, but for the last.
    unit: usize,
    /// Tasks of all matrices together, at least, where they have rows enough.
    shared: usize,
}

/// The tasks of so many matrices of `m` rows: threads have as much to do each, and no task is left with a few rows, for which it would read
/// all panels once more.
fn tasks_of_rows((m, matrices, n): (usize, usize, usize), Cut { held, unit, shared }: Cut, threads: usize) -> Shares {
    let units = m.div_ceil(unit);
    let shared = row_blocks(m * matrices, n, threads).max(shared).div_ceil(matrices.max(1));
    let least = units.div_ceil((held / unit).max(1)).max(shared).min(units);
    // What fewer tasks than threads do is cut by panels, and what would have to be cut far smaller, too.
    let even = if matrices * least < threads { least } else { rows_cut(matrices, units, least, threads) };
    Shares::new(m, unit, if even <= 2 * least { even } else { least })
}

/// Into how many ranges of panels so many tasks are cut, if they are not many already: two for each thread even the work out, or as few more
/// as give all of them as many, where these are not twice as many.
fn parts_of_panels(tasks: usize, panels: usize, threads: usize) -> usize {
    let tasks = tasks.max(1);
    if threads == 1 || tasks >= TASKS_OF_THREAD * threads {
        return 1;
    }
    let least = (2 * threads).div_ceil(tasks).min(panels).max(1);
    let even = (least..=panels.min(2 * least)).find(|parts| (tasks * parts).is_multiple_of(threads));
    even.unwrap_or(least)
}

/// How a task's rows of the left operand are made ready.
#[derive(Debug, Clone, Copy)]
enum Packing {
    /// They are read where they lie.
    None,
    /// Row by row, so many numbers apart.
    Lines(usize),
    Tiles,
}

impl Packing {
    /// As was chosen where that is possible, else as is best.
    fn of<F: Factor>(layout: &Layout, matrix: MatrixUnit<F>, are_factors: bool, chosen: Option<Pack>) -> Packing {
        // Blocked rows are read where they lie.
        let is_possible =
            |pack: &Pack| layout.left_lines.is_none() && packs(layout, matrix, are_factors).contains(pack);
        match chosen.filter(is_possible) {
            Some(Pack::None) => Packing::None,
            Some(Pack::Rows) => Packing::lines::<F>(layout),
            Some(Pack::Tiles) => Packing::Tiles,
            _ => Packing::usual(layout, matrix, are_factors),
        }
    }

    /// Factors are read where they lie wherever their rows do not evict each other: by tiles in whole steps, where
    /// rows follow each other closely, a few rows at a time in whole groups.
    fn usual<F: Factor>(layout: &Layout, matrix: MatrixUnit<F>, are_factors: bool) -> Packing {
        let row = layout.left.free;
        if layout.left_lines.is_some() {
            return Packing::None;
        }
        let possible = packs(layout, matrix, are_factors);
        let do_collide = (row * size_of::<F>()).is_multiple_of(CACHE_PERIOD);
        let is_near = matrix.takes_lines() || row <= 2 * layout.k;
        if possible.contains(&Pack::None) && is_near && !do_collide {
            return Packing::None;
        }
        if possible.contains(&Pack::Rows) { Packing::lines::<F>(layout) } else { Packing::Tiles }
    }

    fn pack(self) -> Pack {
        match self {
            Packing::None => Pack::None,
            Packing::Lines(_) => Pack::Rows,
            Packing::Tiles => Pack::Tiles,
        }
    }

    /// Row by row, so far apart that they do not evict each other.
    fn lines<F: Factor>(layout: &Layout) -> Packing {
        let pitch = layout.k.next_multiple_of(F::STEP);
        Packing::Lines(pitch + if (pitch * size_of::<F>()).is_multiple_of(CACHE_PERIOD) { F::STEP } else { 0 })
    }
}

/// The ways in which rows of a left operand that is not blocked can be made ready.
pub(in crate::kernels) fn packs<F: Factor>(
    layout: &Layout,
    matrix: MatrixUnit<F>,
    are_factors: bool,
) -> SmallVec<[Pack; 3]> {
    let Operand { free: row, k: column } = layout.left;
    let mut packs = smallvec![Pack::Tiles];
    if column != 1 || layout.k == 0 {
        return packs;
    }
    // Tiles are read in whole steps, lines in whole groups.
    let is_whole = match matrix.takes_lines() {
        true => layout.k.is_multiple_of(F::GROUP),
        false => layout.k.is_multiple_of(F::STEP) && row.is_multiple_of(F::STEP) && row >= layout.k,
    };
    if matrix.takes_lines() {
        packs.push(Pack::Rows);
    }
    if are_factors && is_whole {
        packs.push(Pack::None);
    }
    packs
}

/// The one of [`packs`] that a step takes where nothing is chosen.
pub(in crate::kernels) fn usual_pack<F: Factor>(layout: &Layout, matrix: MatrixUnit<F>, are_factors: bool) -> Pack {
    Packing::usual(layout, matrix, are_factors).pack()
}

/// Addresses that the threads of one run share.
struct Shared<F: Factor, L, R> {
    left: *const L,
    right: *const R,
    packed: *mut F::Right,
    /// For each thread the rows that it has packed: their batch and block.
    marks: *mut u8,
    threads: *mut u8,
}

// SAFETY: threads read the operands and write disjoint parts of the output and of the workspace.
unsafe impl<F: Factor, L, R> Sync for Shared<F, L, R> {}

impl<F: Factor, L, R> Shared<F, L, R> {
    fn mark(&self, thread: usize) -> *mut usize {
        self.marks.wrapping_add(thread * MARK_BYTES).cast()
    }
}

impl<F: Product, L: Converts<F>, R: Converts<F::Right>> Step for TiledStep<F, L, R> {
    fn run(&self, arguments: &Arguments<'_>) {
        self.begin(arguments);
        let (count, threads) = (self.count(), self.threads());
        self.machine.pool.run_tasks(threads, count, &|thread, task| Tasks::run_task(self, arguments, thread, task));
    }

    fn tasks(&self) -> Option<&dyn Tasks> {
        Some(self)
    }
}

impl<F: Product, L: Converts<F>, R: Converts<F::Right>> Tasks for TiledStep<F, L, R> {
    fn count(&self) -> usize {
        self.layout.batches() * self.shares.count * self.panel_parts
    }

    fn threads(&self) -> usize {
        self.machine.threads()
    }

    fn sharing(&self) -> Option<String> {
        // What a thread packed, in which form, and where its parts lie.
        let lens = (self.threads(), self.shares, self.finish.registers_bytes(), self.tiles_len(), self.sums());
        let left = (&self.layout.left, self.layout.m, self.layout.k, L::DTYPE);
        matches!(self.right, Right::Packed(_)).then(|| format!("{left:?} {:?} {lens:?}", self.packing))
    }

    fn begin(&self, arguments: &Arguments<'_>) {
        if arguments.outputs[0].is_empty() {
            return;
        }
        let shared = self.shared(arguments);
        for thread in 0..self.machine.threads() {
            // SAFETY: the workspace has so many marks, and no thread runs yet.
            unsafe { shared.mark(thread).write(NO_ROWS) };
        }
        let parts = self.layout.right_batches() * self.panels;
        match &self.right {
            Right::Packed(_) => {}
            Right::Grouped(weights) => self.machine.pool.run(parts, &|part| self.unpack_right(weights, &shared, part)),
            Right::Operand => self.machine.pool.run(parts, &|part| self.pack_right(&shared, part)),
        }
    }

    fn run_task(&self, arguments: &Arguments<'_>, thread: usize, task: usize) {
        if arguments.outputs[0].is_empty() {
            return;
        }
        assert!(thread < self.machine.threads());
        let ((rest, part), row_tasks) = ((task / self.panel_parts, task % self.panel_parts), self.shares.count);
        self.run_block(arguments, &self.shared(arguments), thread, rest / row_tasks, rest % row_tasks, part);
    }
}

impl<F: Product, L: Converts<F>, R: Converts<F::Right>> TiledStep<F, L, R> {
    /// Packs one panel of the right operand of one batch.
    fn pack_right(&self, shared: &Shared<F, L, R>, part: usize) {
        let (layout, len) = (&self.layout, matrix::panel_len::<F::Right>(self.layout.k));
        let (batch, p) = (part / self.panels, part % self.panels);
        let start = shared.right.wrapping_add(layout.right_offset(batch));
        let from = Panels { start, row: layout.right.k, column: layout.right.free, n: layout.n, k: layout.k };
        // SAFETY: the strides stay inside the operand; each part has a panel of its own in the workspace.
        unsafe {
            let panel = std::slice::from_raw_parts_mut(shared.packed.add(part * len), len);
            matrix::pack_panel::<F::Right, R>(self.machine.isa, &from, p * BLOCK, panel);
        }
    }

    /// Unpacks one panel of weights in groups, a step at a time. Then `R` is f32.
    fn unpack_right(&self, weights: &GroupedWeights, shared: &Shared<F, L, R>, part: usize) {
        assert_eq!(R::DTYPE, DType::F32);
        let len = matrix::panel_len::<F::Right>(self.layout.k);
        // SAFETY: each part has a panel of its own in the workspace.
        let panel = unsafe { std::slice::from_raw_parts_mut(shared.packed.add(part * len), len) };
        let mut rows = [[0f32; BLOCK]; STEP_BYTES];
        for (step, panel) in panel.chunks_exact_mut(matrix::panel_len::<F::Right>(1)).enumerate() {
            let rows = &mut rows[..F::STEP];
            weights.unpack(self.machine.isa, part, step * F::STEP, rows);
            let from = Panels { start: rows.as_ptr().cast::<R>(), row: BLOCK, column: 1, n: BLOCK, k: F::STEP };
            // SAFETY: a step of rows of 32 numbers, which are of R.
            unsafe { matrix::pack_panel::<F::Right, R>(self.machine.isa, &from, 0, panel) };
        }
    }

    fn pack_left(&self, shared: &Shared<F, L, R>, offset: usize, (m0, m1): (usize, usize), packed: &mut [F]) {
        let (Operand { free: row, k: column }, k) = (self.layout.left, self.layout.k);
        let (start, isa) = (shared.left.wrapping_add(offset + m0 * row), self.machine.isa);
        // SAFETY: the strides stay inside the operand.
        unsafe {
            let (first, pitch) = match self.packing {
                // The rows of the last line, as far apart as the others.
                Packing::None => ((m1 - m0) / TILE * TILE, row),
                Packing::Lines(pitch) => (0, pitch),
                Packing::Tiles => {
                    let from = LeftRows { start, row, column, rows: m1 - m0, k };
                    return matrix::pack_tiles::<F, L>(isa, from, packed);
                }
            };
            for (r, line) in (first..m1 - m0).zip(packed.chunks_exact_mut(pitch)) {
                L::convert_all(isa, std::slice::from_raw_parts(start.add(r * row), k), &mut line[..k]);
                line[k..k.next_multiple_of(F::GROUP)].fill(F::zeroed());
            }
        }
    }

    fn run_block(
        &self,
        arguments: &Arguments<'_>,
        shared: &Shared<F, L, R>,
        thread: usize,
        batch: usize,
        share: usize,
        part: usize,
    ) {
        let layout = &self.layout;
        let (left_offset, right_batch, out_offset) = layout.batch(batch);
        let Range { start: m0, end: m1 } = self.shares.range(share);
        // SAFETY: each thread has its own part of the workspace.
        let (registers, tiles, sums) = unsafe {
            let start = shared.threads.add(thread * self.thread_bytes());
            thread_part(start, self.finish.registers_bytes(), self.tiles_len(), self.sums())
        };
        let mut pack = || {
            let (mark, block) = (shared.mark(thread), batch * self.shares.count + share);
            // SAFETY: each thread has its own mark, which was written before.
            if unsafe { mark.read() } != block {
                self.pack_left(shared, left_offset, (m0, m1), tiles);
                // SAFETY: as above.
                unsafe { mark.write(block) };
            }
            tiles.as_ptr()
        };
        let left = match self.packing {
            Packing::None => {
                let start = shared.left.wrapping_add(left_offset + m0 * layout.left.free);
                let copies_last = self.has_last_line() && !(m1 - m0).is_multiple_of(TILE);
                let last_line = copies_last.then(|| pack().cast());
                Rows { last_line, ..self.rows(start.cast(), layout.left.free, m1 - m0) }
            }
            Packing::Lines(pitch) => self.rows(pack(), pitch, m1 - m0),
            Packing::Tiles => {
                let tiles = Rows::tiles(pack().cast(), &self.offsets, m1 - m0);
                Rows { line_bytes: self.steps() * TILE * STEP_BYTES, depths: &self.depths, ..tiles }
            }
        };
        let packed = right_batch * self.panels * matrix::panel_len::<F::Right>(layout.k);
        let panel = |p: usize| match &self.right {
            Right::Packed(weights) => weights.panel(p),
            _ => {
                let start = shared.packed.wrapping_add(packed + p * matrix::panel_len::<F::Right>(layout.k));
                (start.cast_const().cast(), BLOCK.min(layout.n - p * BLOCK))
            }
        };
        let panels = (self.panels * part / self.panel_parts, self.panels * (part + 1) / self.panel_parts);
        // SAFETY: tiles and panels have as many steps; tasks have disjoint parts of the output.
        unsafe {
            let outer = self.finish.outer(self.machine.blocking.order, arguments);
            let mut columns = KeptColumns::new();
            let finishing = self.finish.begin(arguments, registers, &mut columns).biased();
            let start = out_offset + m0 * layout.out_row;
            let filled = layout.is_filled_up().then_some((arguments.outputs[0], self.finish.output_bytes()));
            let mut target = Target { finishing, start, layout, filled, later: None };
            matrix::multiply(self.matrix, &left, panels, &panel, outer, sums, &mut target);
        }
    }
}

/// Where the blocks of a task go.
struct Target<'a, F: Product> {
    finishing: Finishing<'a, F>,
    /// Place of the task's first row in the output.
    start: usize,
    layout: &'a Layout,
    /// Where rows end with zeros that fill up their lines: the output, and the bytes of a number.
    filled: Option<(View<'a>, usize)>,
    /// A piece whose lines are to be filled up when it has been ended.
    later: Option<Piece>,
}

impl<F: Product> Target<'_, F> {
    fn piece(&self, (row, p): (usize, usize), rows: usize) -> Piece {
        let (column, layout) = (p * BLOCK, self.layout);
        let start = self.start + row * layout.out_row + layout.out_column(column);
        let (columns, has_room) = (BLOCK.min(layout.n - column), self.filled.is_some());
        Piece { rows, columns, column, start, row: layout.out_row, has_room }
    }

    /// Fills up the lines of a piece, if it is the last of its rows.
    #[inline(always)]
    fn fill_up(&self, piece: &Piece) {
        if let Some((output, bytes)) = self.filled
            && piece.column + piece.columns == self.layout.n
        {
            // SAFETY: tasks have disjoint rows of the output, or columns: one of them the last.
            unsafe { fill_up(output, (piece.start + piece.columns) * bytes, piece.rows) };
        }
    }

    /// The same of the last piece that was ended later, if there is one: it has been by now.
    #[inline(always)]
    fn fill_up_last(&mut self) {
        if let Some(piece) = self.later.take() {
            self.fill_up(&piece);
        }
    }
}

impl<F: Product> Sink<F::Sum> for Target<'_, F> {
    fn begins(&self) -> bool {
        self.finishing.begins()
    }

    fn begin(&mut self, panel: usize) -> Begin<F::Sum> {
        let column = panel * BLOCK;
        self.finishing.begin_of(column..self.layout.n.min(column + BLOCK))
    }

    fn store(&mut self, sums: &mut Sums<F::Sum>, block: (usize, usize), rows: usize) {
        self.fill_up_last();
        let piece = self.piece(block, rows);
        // SAFETY: tasks have disjoint parts of the output.
        unsafe { self.finishing.store(piece, &mut sums.0) };
        // Behind that, which may write into what is filled up.
        self.fill_up(&piece);
    }

    fn ends(&mut self, block: (usize, usize), rows: usize) -> Option<&Ends> {
        if !self.finishing.may_end() {
            return None;
        }
        let piece = self.piece(block, rows);
        // Whole blocks, halves and three quarters alone are ended so, who write no more than that.
        self.fill_up(&piece);
        // SAFETY: as above.
        unsafe { self.finishing.ends(piece) }
    }

    fn ends_later(&mut self, block: (usize, usize), rows: usize) -> Option<&Later> {
        if !self.finishing.may_end() {
            return None;
        }
        self.fill_up_last();
        let piece = self.piece(block, rows);
        self.later = self.filled.map(|_| piece);
        // SAFETY: as above.
        unsafe { self.finishing.ends_later(piece, Runs::one(rows)) }
    }

    fn takes_turns(&self, _: usize) -> bool {
        self.finishing.may_end()
    }

    fn ends_in_turn(&mut self, block: (usize, usize), rows: usize, number: usize) -> Option<Later> {
        let piece = Piece { rows, ..self.piece(block, rows) };
        // Lines that are filled up are so behind each block.
        let is_filled = self.filled.is_some() && piece.column + piece.columns == self.layout.n;
        if piece.columns != BLOCK || is_filled {
            return None;
        }
        self.fill_up_last();
        // SAFETY: as above.
        unsafe { self.finishing.ends_in_turn(piece, number) }
    }

    fn done(&mut self) {
        self.fill_up_last();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_are_shared_and_many_are_split() {
        assert_eq!(row_blocks(128, 768, 1), 1);
        assert_eq!(
            row_blocks(128, 768, 2),
            1,
            "reading all panels twice would take longer than packing all rows twice"
        );
        assert_eq!(row_blocks(4096, 768, 2), 2);
        assert_eq!(row_blocks(128, 768, 16), 2);
        assert_eq!([row_blocks(0, 0, 3), row_blocks(1 << 20, 1, 3)], [1, 3]);
    }

    #[test]
    fn threads_have_their_own_rows_where_columns_are_few() {
        let of_two = |m: usize, n: usize, depth: usize| takes_rows((m, n, 2 * depth), 2);
        assert!(of_two(196, 384, 64) && of_two(3136, 64, 256), "images that are large beside their weights");
        assert!(!of_two(49, 960, 160) && !of_two(49, 192, 1152) && !of_two(196, 1024, 256));
        assert!(of_two(49, 160, 960), "five panels would be two for one thread and three for the other");
        assert!(!of_two(784, 512, 1024) && !of_two(16, 16, 16), "much to read, and next to nothing");
    }

    /// Of whole blocks.
    fn whole(held: usize) -> Cut {
        Cut { held, unit: BLOCK, shared: 1 }
    }

    #[test]
    fn tasks_have_as_many_rows_each() {
        let rows_of = |size, cut, threads| {
            let tasks = tasks_of_rows(size, cut, threads);
            (0..tasks.count).map(|task| tasks.range(task).len()).collect::<Vec<_>>()
        };
        assert_eq!(rows_of((128, 1, 768), whole(256), 2), [128], "threads take panels of few rows");
        assert_eq!(rows_of((197, 1, 768), whole(256), 2), [197], "all of them");
        assert_eq!(rows_of((197, 1, 768), whole(170), 1), [96, 101], "no task of 37 behind one of 160");
        assert_eq!(rows_of((512, 1, 768), whole(170), 1), [128; 4]);
        assert_eq!(rows_of((1024, 1, 768), whole(170), 2), [128; 8], "eight tasks, not seven");
        assert_eq!(rows_of((4096, 1, 768), whole(TASK_ROWS), 1), [TASK_ROWS; 4096 / TASK_ROWS]);
        assert_eq!(rows_of((128, 12, 64), whole(TASK_ROWS), 2), [128], "matrices are many already");
        assert_eq!(rows_of((512, 17, 512), whole(TASK_ROWS), 16), [512], "sixteen times as many would be too small");
        assert_eq!(rows_of((128, 3, 64), whole(TASK_ROWS), 2), [64; 2], "six tasks, not three");
        assert_eq!([rows_of((0, 1, 5), whole(64), 2), rows_of((1, 0, 0), whole(0), 3)], [vec![], vec![1]]);
        for (m, held, threads) in (1..700).step_by(7).flat_map(|m| [(m, 96, 1), (m, 170, 2), (m, TASK_ROWS, 16)]) {
            let tasks = tasks_of_rows((m, 1, 768), whole(held), threads);
            assert!(tasks.most() <= held.max(BLOCK), "{tasks:?}");
            assert!((0..tasks.count).all(|task| tasks.range(task).start.is_multiple_of(BLOCK)), "tiles are whole");
        }
        let anywhere = |held: usize, shared: usize| Cut { held, unit: 1, shared };
        assert_eq!(rows_of((197, 1, 768), anywhere(170, 1), 2), [98, 99], "not 128 and 69");
        assert_eq!(rows_of((196, 1, 384), anywhere(TASK_ROWS, 2), 2), [98; 2], "of an image, each thread has its rows");
        assert_eq!(rows_of((49, 1, 960), anywhere(TASK_ROWS, 2), 2), [24, 25], "not four strips and two with a row");
        let strips = Cut { held: 170, unit: STRIP, shared: 1 };
        assert_eq!(rows_of((197, 1, 768), strips, 1), [96, 101], "one thread has whole strips");
    }

    #[test]
    fn panels_are_shared_evenly() {
        assert_eq!([parts_of_panels(1, 24, 1), parts_of_panels(1, 24, 2), parts_of_panels(2, 24, 2)], [1, 4, 2]);
        assert_eq!(parts_of_panels(3, 24, 4), 4, "twelve tasks, not nine");
        assert_eq!(parts_of_panels(7, 24, 2), 2, "fourteen");
        assert_eq!([parts_of_panels(1, 3, 16), parts_of_panels(0, 0, 2)], [3, 1]);
        assert_eq!([parts_of_panels(65, 32, 16), parts_of_panels(13, 24, 2)], [1, 1], "many already");
        assert_eq!([parts_of_panels(9, 24, 16), parts_of_panels(13, 7, 8)], [4, 2], "16 and 8 would be too many");
    }
}
