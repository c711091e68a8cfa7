//! Convolutions on the matrix unit, on data whose channels lie last.
//!
//! A task copies what its rows of the output see, as factors and with a border, so that for every tap
//! the pixels of the output lie at one distance in the copy: the pixel below and to the right is an offset.
//! With a stride of `s` the copy has `s·s` planes, each holding every `s`-th pixel of every `s`-th row. A tap
//! then costs nothing but an address, and the columns of the border are computed and thrown away:
//!
//! ```text
//! copy (stride 1, border 1)          row of the product = place in the copy
//!   . . . . . .                        tap (0, 0): from the first place on
//!   . a b c d .                        tap (0, 1): one pixel later
//!   . e f g h .                        tap (1, 0): one row of the copy later
//!   . . . . . .
//! ```
//!
//! Where data are blocked and have that border themselves, or nothing beyond them is seen, they are what is multiplied: nothing is
//! copied, and a task is as large as if it were. Of every second pixel the rows of a tile lie two places apart; each row of the output then
//! begins a tile.
//!
//! Where the unit reads whole tiles, each step of channels has places of its own, one cache line each: the rows of a tile follow
//! each other and lie in neighbouring sets of the first-level cache. With all channels of a pixel in one place they would lie a kilobyte
//! or so apart, in a few sets, and displace each other.
//!
//! Blocks of 32 rows take the columns of the border along, or, where that is less, what fills the last tile of each row of the output: if
//! its width, as a multiple of 16, is less than that of the copy, as with 32 pixels and a border.
//!
//! Where there are few channels, a step of the matrix unit would be mostly padding. Then a place of the copy has what a
//! pixel of the output sees of one row of the data: the pixels of several taps lie together there, and each row of the
//! kernel is one tap. Every place begins with a step, so that no row of a tile crosses a cache line:
//!
//! ```text
//!   . . abc def ghi jkl            three channels, kernel 3 wide, stride 2
//!   ..abcdef | defghijkl | ...     places of the first row
//! ```
//!
//! Units that read rows one by one, wherever they begin, need no places: what a pixel sees begins in the row of the copy itself, and
//! what its neighbour sees overlaps it. Where the last group is half of the neighbour's, that is multiplied by zero, so that a task
//! whose data are not all finite has places after all.

mod copy;
mod target;

use super::cuts::tasks_of_rows;
use super::phases::Parts;
use super::pixels::Lying;
use super::window::Window;
use crate::Isa;
use crate::kernels::Machine;
use crate::kernels::cuts::{Shares, are_even, rows_cut};
use crate::kernels::lines::{Lines, Raster};
use crate::kernels::tiled::{Finish, KeptColumns, Product, TiledWeights, thread_bytes, thread_part};
use crate::kernels::tuning::{Order, Pack};
use crate::matrix::{self, BLOCK, Below, FEW_BLOCKS, Factor, MatrixUnit, Rows, STEP_BYTES, TILE, step};
use crate::real::Converts;
use copy::{Copy, Form, are_finite, copy_lines, spread};
use half::bf16;
use halimede_compute::layout::{Grid, LINE_BYTES, Layout, Layouts, rows_apart};
use halimede_compute::packed::Packer;
use halimede_compute::{Arguments, Prepared, Step};
use halimede_graph::ops::Conv;
use halimede_tensor::{Element, Tensor, View};
use std::marker::PhantomData;
use std::ops::Range;
use target::{PanelPlace, Pixels, Target};

/// Bytes of the copy that a task keeps in the second-level cache, which has 512 KiB to 1 MiB, and 2 MiB on machines with AMX.
const COPY_BYTES: usize = 512 << 10;
const COPY_BYTES_OF_AMX: usize = 768 << 10;
/// Rows of the product of one task whose sums are kept: for a group of panels these take as much again.
const TASK_ROWS: usize = 1024;

/// Whether a place takes several taps: where most of it would be padding. Taps of a row that lie `apart` pixels from each other have to be
/// neighbours: what lies between others would be multiplied by zeros, which only finite numbers bear.
fn in_strips<N>(channels: usize, taps: usize, apart: usize) -> bool {
    channels < step::<N>() / 2 && taps > 1 && apart == 1
}

/// The ways in which a copy of data, which may be factors, can lie: several where it has no strips, and whole steps of channels can be
/// copied.
pub(in crate::kernels) fn packs<F: Factor>(window: &Window, are_factors: bool) -> &'static [Pack] {
    // Data of another type become factors a row at a time, all channels of a pixel together.
    match are_factors && !in_strips::<F>(window.inputs, window.taps(), window.dilation[2]) {
        true => &[Pack::Pixels, Pack::Blocks],
        false => &[Pack::Pixels],
    }
}

/// The one of [`packs`] that a step takes where nothing is chosen: in blocks the rows of tiles do not displace each other.
pub(in crate::kernels) fn usual_pack<F: Factor>(window: &Window, matrix: MatrixUnit<F>, are_factors: bool) -> Pack {
    let has_blocks = packs::<F>(window, are_factors).contains(&Pack::Blocks);
    if has_blocks && !matrix.takes_lines() { Pack::Blocks } else { Pack::Pixels }
}

/// Whether only pixels of the output are computed, row by row: where the unit can do that, and rows are not so short that
/// the columns of the border cost less.
fn in_lines<F: Factor>(window: &Window, matrix: MatrixUnit<F>) -> bool {
    const ROW_LEAST: usize = 4;
    matrix.takes_lines() && window.out[2] >= ROW_LEAST
}

/// Numbers of what a pixel sees of one row of the data: so many taps.
fn strip(channels: usize, taps: usize) -> usize {
    taps.max(1) * channels
}

/// Channels of a group, in and out, from which on a block of the matrix unit is not mostly padding, where there are several groups.
const GROUP_LEAST: usize = 16;

/// Whether a convolution of several groups with the channels last has a product on the matrix unit for each.
pub(in crate::kernels) fn takes_groups(op: &Conv, weights: &[usize]) -> bool {
    let &[outputs, inputs, ..] = weights else { return false };
    let is_wide = inputs.min(outputs / op.groups.max(1)) >= GROUP_LEAST;
    is_wide && op.transposed.is_none() && outputs.is_multiple_of(op.groups)
}

/// Which channels of data and output a convolution is of: some of all that there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Channels {
    /// Of the data, and of the output.
    pub all: [usize; 2],
    pub first: [usize; 2],
}

impl Channels {
    /// Those of a group of a window.
    pub fn of_group(window: &Window, group: usize) -> Channels {
        let each = [window.inputs, window.rows];
        Channels { all: each.map(|count| window.groups * count), first: each.map(|count| group * count) }
    }
}

/// Packs those weights of one group of a convolution that `lying` names, tap after tap.
pub(super) fn pack<N: Element, T: Converts<N>>(
    place: (Isa, &Packer),
    tensor: &Tensor,
    lying: &Lying<'_>,
    group: usize,
) -> Option<TiledWeights<N>> {
    if tensor.dtype() != T::DTYPE {
        return None;
    }
    let (start, shape) = (tensor.bytes().ok()?.as_ptr().cast::<T>(), tensor.shape());
    let Lying { rows, channels, row_stride, channel_stride, taps, .. } = *lying;
    // A phase of a transposed convolution may have no taps.
    let last = (rows.max(1) - 1) * row_stride + (channels.max(1) - 1) * channel_stride;
    let first = group * lying.group_stride;
    if taps.iter().any(|tap| first + last + tap >= tensor.len()) {
        return None;
    }
    let start = start.wrapping_add(first);
    if in_strips::<N>(channels, taps.len(), lying.apart) {
        let strip = strip(channels, lying.row).next_multiple_of(step::<N>());
        let depth = taps.len().div_ceil(lying.row.max(1)) * strip;
        let mut strips = vec![T::zeroed(); rows * depth];
        for (row, (tap, from)) in (0..rows).flat_map(|row| taps.iter().enumerate().map(move |tap| (row, tap))) {
            let (down, across) = (tap / lying.row, tap % lying.row);
            let to = row * depth + down * strip + across * channels;
            for (channel, number) in strips[to..][..channels].iter_mut().enumerate() {
                // SAFETY: inside the tensor (just checked), whose bytes may lie anywhere in a file.
                *number = unsafe { start.add(row * row_stride + channel * channel_stride + from).read_unaligned() };
            }
        }
        let lines: Vec<usize> = (0..depth).step_by(strip.max(1)).collect();
        // SAFETY: a row-major matrix of these numbers.
        return unsafe { TiledWeights::pack(place, strips.as_ptr(), shape, &lines, (1, depth), (rows, strip)) };
    }
    // SAFETY: the last number lies inside (just checked).
    unsafe { TiledWeights::pack(place, start, shape, taps, (channel_stride, row_stride), (rows, channels)) }
}

/// Whether what neighbouring pixels of the output see can be multiplied where it lies in blocks: neighbouring pixels, or ones with others
/// between them, of which each row of the output begins a tile. That is worth it where several taps see them and its last tile is nearly
/// full, for else a copy has fewer.
pub(super) fn is_seen_in_place(window: &Window) -> bool {
    let [_, down, across] = window.stride;
    let copied = window.out[2] + (window.kernel[2].max(1) - 1) * window.dilation[2] / across.max(1);
    let in_tiles = window.out[2].next_multiple_of(TILE);
    window.is_dense() || (across > 1 && down > 0 && window.taps() > 1 && 6 * in_tiles <= 7 * copied)
}

/// Whether the last tiles of what is seen in place end in the memory of the data, which have some behind the last pixel. Where these
/// are some rows of a whole image, they may be its last.
fn ends_in(window: &Window, grid: &Grid, whole: &Grid) -> bool {
    if window.is_dense() || window.batch == 0 || window.out.contains(&0) {
        return true;
    }
    let last = |axis: usize, pixel: usize| {
        let reach = (window.kernel[axis].max(1) - 1) * window.dilation[axis];
        (pixel * window.stride[axis] + reach) as isize - window.before[axis]
    };
    let behind = (window.out[2].next_multiple_of(TILE) - 1) * window.stride[2];
    let end = grid.pixel(window.batch - 1, last(1, window.out[1] - 1), last(2, 0)) + behind;
    let (rows, of_whole) = (grid.rows(window.batch), whole.rows(window.batch));
    end + (of_whole - rows) < rows_apart(of_whole)
}

/// A convolution of factors `F` that are read from data of `T`.
pub(super) struct TiledConvStep<F: Product, T> {
    window: Window,
    /// Several where they see the same pixels of the data.
    parts: Parts<TiledWeights<F::Right>>,
    finish: Finish<F>,
    machine: Machine,
    matrix: MatrixUnit<F>,
    copy: Copy,
    /// The same for data that are not all finite, where that makes a difference.
    apart: Option<Copy>,
    /// Rows of the product from one row of the output to the next.
    across: usize,
    strips: bool,
    /// As [`Rows::stays`].
    stays: bool,
    /// Tasks down an image.
    down: Shares,
    /// Images of the tasks, where one is not cut.
    images: Shares,
    panel_parts: usize,
    /// Where pixels of the data and of the output lie.
    from: Raster,
    to: Raster,
    /// Where the first of its channels lies in a pixel of the data, and which of the output's it is.
    first_channels: [usize; 2],
    /// Whether the data are multiplied where they are.
    in_place: bool,
    data: PhantomData<T>,
}

impl<F: Product, T: Converts<F>> TiledConvStep<F, T> {
    /// `window` is of one group, with those channels.
    pub fn new(
        (window, channels): (Window, Channels),
        parts: Parts<TiledWeights<F::Right>>,
        finish: Finish<F>,
        machine: Machine,
        matrix: MatrixUnit<F>,
        layouts: &Layouts,
    ) -> TiledConvStep<F, T> {
        // Parts of an output have all of its pixels among them.
        let mut size = parts.first().map_or([0; 2], |(target, _)| target.size);
        let mut window = window;
        let are_next = layouts.input(0).border() == 0 && layouts.output.border() == 0;
        // Pixels of a phase of a transposed convolution have others between them.
        let is_whole = parts.len() == 1 && parts.iter().all(|(target, _)| target.step == [1; 2]);
        if are_next && is_whole && window.is_pointwise() && window.out[0] == 1 {
            // Images of 7 x 7 pixels would each end with half a block.
            window = window.of_one_image();
            size = [window.out[1], window.out[2]];
        }
        let raster = |layout, [height, width]: [usize; 2], channels, bytes| {
            Raster::of(layout, window.batch, [height, width], channels, bytes)
        };
        let Channels { all, first } = channels;
        let from = raster(layouts.input(0), [window.x[1], window.x[2]], all[0], size_of::<T>());
        let to = raster(layouts.output, size, all[1], finish.output_bytes());
        let [from, to] = Raster::of_bands([(from, layouts.input(0)), (to, layouts.output)], layouts.band);
        let strips = in_strips::<F>(window.inputs, window.taps(), window.dilation[2]);
        let (are_factors, usual) = (T::DTYPE == F::DTYPE, usual_pack(&window, matrix, T::DTYPE == F::DTYPE));
        let possible = packs::<F>(&window, are_factors);
        let pack = machine.blocking.pack.filter(|pack| possible.contains(pack)).unwrap_or(usual);
        let whole = layouts.band.map_or(from.grid, |band| Grid { size: [band.heights[0], window.x[2]], ..from.grid });
        let is_there =
            is_seen_in_place(&window) && window.border() <= from.grid.border && ends_in(&window, &from.grid, &whole);
        let in_place = usual == Pack::Blocks && layouts.input(0) != Layout::RowMajor && is_there;
        let form = match in_place {
            true => Form::InPlace {
                line: from.grid.line(),
                apart: from.lines.apart * size_of::<F>(),
                image: from.grid.image() * STEP_BYTES,
            },
            false if pack == Pack::Blocks => Form::Blocks,
            false => Form::Pixels,
        };
        let overlap = in_lines(&window, matrix);
        let copy_of = |rows| match strips {
            true => Copy::of_strips::<F>(&window, rows, overlap),
            false => Copy::of_taps::<F>(&window, rows, form),
        };
        let across_of = |copy: &Copy| match matrix.takes_lines() {
            true if in_lines(&window, matrix) => window.out[2],
            true => copy.width,
            // Tiles of a row of the output, where they are fewer than with the columns of the border.
            false => window.out[2].next_multiple_of(TILE).min(copy.width),
        };
        let height = window.out[1].max(1);
        let panels = parts.len() * window.rows.div_ceil(BLOCK);
        let order = machine.blocking.order;
        let stays = |copy: &Copy| order != Some(Order::Panels) && copy.seen.stays(matrix, copy.offsets.len(), panels);
        let at_once = |copy: &Copy| order == Some(Order::Rows) || stays(copy);
        let copy_bytes = if matrix.is_amx() { COPY_BYTES_OF_AMX } else { COPY_BYTES };
        let fits = |rows: usize| {
            let copy = copy_of(rows);
            // Lower tasks copy more rows twice; sums that are not kept take no room.
            let has_sums = matrix.takes_lines() || matrix::keeps_sums(matrix, copy.offsets.len(), at_once(&copy));
            let most = if has_sums { TASK_ROWS } else { usize::MAX };
            copy.bytes <= copy_bytes && copy.count(rows, across_of(&copy), &window) <= most
        };
        let threads = machine.threads();
        let usual = || (1..=height).take_while(|&rows| fits(rows)).last().unwrap_or(1);
        let most = machine.blocking.rows.unwrap_or_else(usual);
        // Of so few pixels in all each thread would read all weights for next to nothing: it takes some of the columns instead.
        let pixels = window.batch * window.pixels();
        let by_columns = pixels <= FEW_BLOCKS * BLOCK && are_even(panels, threads);
        // Two tasks a thread even the work out. What is copied is so for each range of panels: there they are of rows, if not too few.
        let wanted = if threads == 1 { 1 } else { 2 * threads };
        let takers = if in_place || pixels < wanted * FEW_BLOCKS * BLOCK { threads } else { wanted };
        let down = match height.div_ceil(most) {
            // Whole images while there are enough of them, else their parts.
            1 if by_columns || window.batch >= threads => 1,
            down if by_columns => down,
            down => rows_cut(window.batch, height, down, takers),
        };
        let down = tasks_of_rows(down, most, (&window, matrix, threads));
        let copy = copy_of(down.most().max(1));
        // Half a group of a neighbour is multiplied by zero.
        let is_shared = strips && overlap && !strip(window.inputs, window.kernel[2]).is_multiple_of(F::GROUP);
        let apart = (is_shared && F::DTYPE.is_float()).then(|| Copy::of_strips::<F>(&window, copy.rows, false));
        let across = across_of(&copy);
        // Small images go together: the weights are read once for them.
        let together = (copy_bytes / copy.bytes.max(1)).min(TASK_ROWS / copy.count(copy.rows, across, &window).max(1));
        let groups = window.batch.div_ceil(if down.count == 1 { together.max(1) } else { 1 });
        let groups = if by_columns { groups } else { rows_cut(1, window.batch, groups, threads) };
        let images = Shares::new(window.batch, 1, groups);
        let tasks = images.count * down.count;
        let stays = stays(&copy);
        let panel_parts = wanted.div_ceil(tasks.max(1)).min(panels).max(1);
        TiledConvStep {
            window,
            parts,
            finish,
            machine,
            matrix,
            copy,
            apart,
            across,
            strips,
            stays,
            down,
            images,
            panel_parts,
            from,
            to,
            first_channels: [from.lines.column(first[0]), first[1]],
            in_place,
            data: PhantomData,
        }
    }

    fn sums(&self) -> usize {
        let images = self.images.most();
        let left = self.left(&self.copy, std::ptr::null(), self.copy.rows, images);
        let blocks = images * left.count.div_ceil(left.block);
        let at_once = self.stays || self.machine.blocking.order == Some(Order::Rows);
        matrix::sums_needed(self.matrix, blocks, self.copy.offsets.len(), at_once)
    }

    /// The left operand for so many rows of the output of some images, whose copies, or what is seen of them, begin with the pointer.
    fn left<'a>(&'a self, copy: &'a Copy, copies: *const u8, rows: usize, images: usize) -> Rows<'a> {
        let (across, stays) = (self.across, self.stays);
        let count = copy.count(rows, across, &self.window);
        let (line, line_bytes) = match self.matrix.takes_lines() {
            true if across < copy.width => (across, copy.row_bytes),
            // All in one.
            true => (count.max(1), 0),
            false => (TILE, TILE * copy.pitch),
        };
        let is_in_runs = !self.matrix.takes_lines() && across < copy.width;
        let runs = is_in_runs.then_some((across / TILE, copy.row_bytes));
        let block = if self.matrix.takes_lines() { matrix::block_rows(line) } else { BLOCK };
        let (pitch, apart) = (copy.pitch, copy.image);
        let down = ((copy.below + 1) * copy.width).max(BLOCK) * copy.pitch;
        // With pixels between them rows share few, or none.
        let shares = self.in_place && self.window.is_dense();
        let below = shares.then_some(Below { down, planes: copy.blocks, apart: copy.apart });
        let tiles = Rows::tiles(copies, &copy.offsets, count);
        Rows {
            pitch,
            line,
            line_bytes,
            runs,
            depths: &copy.depths,
            groups: images,
            apart,
            block,
            seen: copy.seen,
            stays,
            below,
            ..tiles
        }
    }

    /// Numbers of the copies.
    fn copied(&self) -> usize {
        let bytes = self.apart.as_ref().map_or(0, |apart| apart.bytes).max(self.copy.bytes);
        if self.in_place { 0 } else { self.images.most() * bytes / size_of::<F>() }
    }

    /// Numbers of a line of which strips are made, with what is read behind the last.
    fn line(&self) -> usize {
        let window = &self.window;
        let strip = strip(window.inputs, window.kernel[2]);
        let len = (window.out[2].max(1) - 1) * window.stride[2] * window.inputs + strip;
        if self.strips { (len + F::STEP).next_multiple_of(F::STEP) } else { 0 }
    }

    fn numbers(&self) -> usize {
        self.copied() + self.line()
    }

    fn thread_bytes(&self) -> usize {
        thread_bytes::<F>(self.finish.registers_bytes(), self.numbers(), self.sums())
    }

    fn workspace(&self) -> usize {
        self.thread_bytes() * self.machine.threads()
    }

    pub fn prepared(self) -> Prepared {
        let workspace = self.workspace();
        Prepared { step: Box::new(self), workspace }
    }
}

impl<F: Product, T: Converts<F>> Step for TiledConvStep<F, T> {
    fn run(&self, arguments: &Arguments<'_>) {
        if arguments.outputs[0].is_empty() {
            return;
        }
        assert!(arguments.workspace.len() >= self.workspace());
        let tasks = self.images.count * self.down.count * self.panel_parts;
        self.machine.pool.run_tasks(self.machine.threads(), tasks, &|thread, task| {
            let (rest, part) = (task / self.panel_parts, task % self.panel_parts);
            let images = self.images.range(rest / self.down.count);
            self.run_task(arguments, thread, (images.start, images.end), rest % self.down.count, part);
        });
    }
}

impl<F: Product, T: Converts<F>> TiledConvStep<F, T> {
    fn run_task(&self, arguments: &Arguments<'_>, thread: usize, images: (usize, usize), down: usize, part: usize) {
        let (window, mut copy) = (&self.window, &self.copy);
        let rows = self.down.range(down);
        let (first, rows) = (rows.start, rows.len());
        // SAFETY: each thread has its own part of the workspace.
        let (registers, numbers, sums) = unsafe {
            let start = arguments.workspace.as_ptr().add(thread * self.thread_bytes());
            thread_part(start, self.finish.registers_bytes(), self.numbers(), self.sums())
        };
        let data = arguments.inputs[0].unwrap_or(View::empty());
        // SAFETY: inputs are not written during the step.
        let data = unsafe { data.slice::<T>() };
        let copies: *const u8 = if self.in_place {
            let [y, x] = [(first * window.stride[1]) as isize - window.before[1], -window.before[2]];
            data[self.from.start(images.0, y, x)..].as_ptr().cast()
        } else {
            let border = self.finish.border(arguments);
            let (copies, line) = numbers.split_at_mut(self.copied());
            let mut fill = |copy: &Copy| {
                let each = copies.chunks_exact_mut((copy.bytes / size_of::<F>()).max(1));
                (images.0..images.1).zip(each).fold(true, |is_as_meant, (image, copied)| {
                    self.fill((copy, copied), data, image, (first, rows), border, line) && is_as_meant
                })
            };
            if !fill(copy)
                && let Some(apart) = &self.apart
            {
                fill(apart);
                copy = apart;
            }
            copies.as_ptr().cast()
        };
        if down == 0 && part == 0 && self.to.grid.border > 0 {
            let lines = 0..window.rows / self.to.lines.len;
            // SAFETY: the task of an image's first rows alone does that; who has a border takes bf16.
            (images.0..images.1).for_each(|image| unsafe {
                self.to.clear_border::<bf16>(arguments.outputs[0], image, lines.clone());
            });
        }
        let left = self.left(copy, copies, rows, images.1 - images.0);
        // Rows of the product from one image to the next.
        let apart = left.count.next_multiple_of(left.block).max(1);
        let (across, width, columns, first_column) = (self.across, window.out[2], window.rows, self.first_channels[1]);
        let pixels = Pixels { across, width, columns, first_column, to: self.to };
        let in_one_row = match self.parts.as_slice() {
            [(target, _)] if pixels.are_in_one_row(target.step) => {
                let [y, x] = target.place(first, 0).map(|place| place as isize);
                Some(pixels.to.grid.pixel(images.0, y, x))
            }
            _ => None,
        };
        // Of each part.
        let each = window.rows.div_ceil(BLOCK);
        let panels = self.parts.len() * each;
        let range = (panels * part / self.panel_parts, panels * (part + 1) / self.panel_parts);
        let mut columns = KeptColumns::new();
        let finishing = self.finish.begin(arguments, registers, &mut columns).biased();
        let (parts, image) = (&self.parts, images.0);
        let mut target =
            Target { finishing, parts, each, image, apart, first, pixels, in_one_row, panel: PanelPlace::NONE };
        // SAFETY: the copy, or the data with their border and what is behind them, hold whole tiles for every offset.
        unsafe {
            matrix::multiply(
                self.matrix,
                &left,
                range,
                &|p| self.parts[p / each].1.panel(p % each),
                self.finish.outer(self.machine.blocking.order, arguments),
                sums,
                &mut target,
            );
        }
    }

    /// Makes a copy for `rows` rows of the output from `first` on. Returns whether it may be multiplied: places that share half a
    /// group only where that is finite.
    fn fill(
        &self,
        (copy, numbers): (&Copy, &mut [F]),
        data: &[T],
        image: usize,
        (first, rows): (usize, usize),
        border: F,
        strip: &mut [F],
    ) -> bool {
        let window = &self.window;
        let lines = self.from.lines;
        let row_bytes = copy.row_bytes;
        let must_be_finite = self.apart.is_some() && copy.overlaps;
        let mut may_be_multiplied = true;
        for &([y, x], start) in &copy.planes {
            let span = self.span(x);
            for row in 0..rows + copy.below {
                let source = ((first + row) * window.stride[1] + y) as isize - window.before[1];
                let source = usize::try_from(source).ok().filter(|&row| row < window.x[1]);
                let source =
                    source.map(|row| &data[self.from.start(image, row as isize, 0) + self.first_channels[0]..]);
                for block in 0..copy.blocks {
                    let to = (start + block * copy.apart + row * row_bytes) / size_of::<F>();
                    let to = &mut numbers[to..][..row_bytes / size_of::<F>()];
                    match source {
                        None => to.fill(border),
                        Some(source) if copy.overlaps => self.fill_row(source, border, to),
                        Some(source) if self.strips => self.fill_strips(source, border, strip, (to, copy.pitch)),
                        Some(source) => self.fill_line(source, lines, (&span, block), border, to),
                    }
                }
            }
            if must_be_finite {
                let filled = start / size_of::<F>()..(start + (rows + copy.below) * row_bytes) / size_of::<F>();
                may_be_multiplied &= are_finite(self.machine.isa, &numbers[filled]);
            }
        }
        may_be_multiplied
    }

    /// What every pixel of a row of the output sees of a row of the data, which becomes a line of factors with a border
    /// first.
    fn fill_strips(&self, source: &[T], border: F, line: &mut [F], (places, pitch): (&mut [F], usize)) {
        let window = &self.window;
        self.fill_row(source, border, line);
        let (across, strip) = (window.stride[2] * window.inputs, strip(window.inputs, window.kernel[2]));
        let bytes = size_of::<F>();
        let (line, places) = (bytemuck::cast_slice(line), bytemuck::cast_slice_mut(places));
        spread(self.machine.isa, line, (across * bytes, strip * bytes), places, pitch);
    }

    /// What a row of the output sees of a row of the data, as factors with a border.
    fn fill_row(&self, source: &[T], border: F, line: &mut [F]) {
        let window = &self.window;
        let strip = strip(window.inputs, window.kernel[2]);
        let across = window.stride[2] * window.inputs;
        let pixels = (((window.out[2] - 1) * across + strip) / window.inputs) as isize;
        let from = window.before[2].clamp(0, pixels);
        let to = (window.x[2] as isize + window.before[2]).clamp(from, pixels);
        let first = (from - window.before[2]).max(0) as usize * window.inputs;
        let (from, to) = (from as usize * window.inputs, to as usize * window.inputs);
        line[..from].fill(border);
        line[to..].fill(border);
        if from < to {
            T::convert_all(self.machine.isa, &source[first..][..to - from], &mut line[from..to]);
        }
    }

    /// What of a row of a plane lies inside the data, where the plane has columns of this remainder.
    fn span(&self, remainder: usize) -> Span {
        let (window, width) = (&self.window, self.copy.width);
        let stride = window.stride[2] as isize;
        let shift = remainder as isize - window.before[2];
        let from = (-shift).max(0).div_euclid(stride) + isize::from((-shift).max(0).rem_euclid(stride) != 0);
        let to = (window.x[2] as isize - shift + stride - 1).div_euclid(stride);
        let from = (from as usize).min(width);
        let places = from..(to.max(0) as usize).clamp(from, width);
        Span { places, first: (from as isize * stride + shift) as usize }
    }

    /// One row of a block of a plane: every stride-th pixel of a row of the data.
    fn fill_line(&self, source: &[T], lines: Lines, (span, block): (&Span, usize), border: F, line: &mut [F]) {
        let (window, isa) = (&self.window, self.machine.isa);
        let place = self.copy.pitch / size_of::<F>();
        let (channel, channels) = (block * place, (window.inputs - block * place).min(place));
        let Span { places: Range { start: from, end: to }, first } = *span;
        line[..from * place].fill(border);
        line[to * place..].fill(border);
        if from == to {
            return;
        }
        let line = &mut line[from * place..to * place];
        let source = &source[first * lines.row + lines.column(channel)..];
        if window.stride[2] == 1 && lines.row == place && channels == place {
            return T::convert_all(isa, &source[..line.len()], line);
        }
        let (bytes, pixel) = (size_of::<T>(), window.stride[2] * lines.row);
        if T::DTYPE == F::DTYPE && (channels * bytes).is_multiple_of(LINE_BYTES) {
            // A row-major pixel has its lines next to each other.
            let apart = if lines.len * bytes == LINE_BYTES { lines.apart * bytes } else { LINE_BYTES };
            let (source, line) = (bytemuck::cast_slice(source), bytemuck::cast_slice_mut(line));
            return copy_lines(
                isa,
                source,
                (pixel * bytes, apart),
                line,
                (place * bytes, channels * bytes / LINE_BYTES),
            );
        }
        let len = lines.len.min(channels);
        for (index, to) in line.chunks_exact_mut(place).enumerate() {
            for (number, to) in to[..channels].chunks_exact_mut(len).enumerate() {
                T::convert_all(isa, &source[index * pixel + number * lines.apart..][..len], to);
            }
            to[channels..].fill(F::zeroed());
        }
    }
}

/// Places of a row of the copy that lie inside the data, and the pixel of the first of them.
struct Span {
    places: Range<usize>,
    first: usize,
}
