//! Convolutions on data whose channels lie last: products of pixels by channels.
//!
//! A pixel of the output is a row of the left operand. What it sees lies in memory in runs: all taps of
//! one row of the kernel and all their channels, since neighbouring pixels are neighbours in memory. So
//! nothing is packed but the weights, in panels whose rows follow those runs. Blocks of the image that
//! touch its border are copied first, with the border's zeros.
//!
//! ```text
//! for each block of pixels                            a task
//!     copy what it sees, where that has a border
//!     for each panel of output channels
//!         for each piece of DEPTH of the runs
//!             for each tile of pixels
//!                 sums += pixels · panel              micro-kernel, which also finishes and stores
//!                                                     the sums where it can
//!         epilogue, store                             where it cannot
//! ```

use super::finish::Finish;
use super::window::Window;
use crate::gemm::{self, Ahead, End, Micro, Product};
use crate::kernels::Machine;
use crate::kernels::epilogue::{Common, Epilogue};
use crate::kernels::packed::{PackedWeights, f32_bytes, number};
use crate::map::Register;
use crate::pool::own_bytes;
use crate::prefetch;
use halimede_compute::packed::Packer;
use halimede_compute::{Arguments, Step};
use halimede_tensor::{Tensor, View};
use std::ops::Range;
use std::sync::Arc;

/// Rows of a panel that are multiplied at once: with the widest panel 64 KiB, which the second-level
/// cache holds beside the pixels.
const DEPTH: usize = 512;
/// Runs that are multiplied at once, at most.
const RUNS_TOGETHER: usize = 16;
/// Pixels of a block: their sums for one panel are 24 KiB.
const PIXELS: usize = 192;
/// Pixels of a block that is cut smaller for the sake of threads, at least: the weights are read again for
/// each.
const LEAST_PIXELS: usize = 96;
/// Blocks for a thread from which on one more of them than others have does not matter.
const MANY_BLOCKS: usize = 16;

/// Weights in panels per group, `[taps, channels]` deep.
pub(super) struct Panels {
    /// Of the weights as the model has them.
    pub shape: Vec<usize>,
    elements: PackedWeights,
}

/// Where weights lie in the model's tensor: element (group, row, channel, tap) at
/// `group·group_stride + row·row_stride + channel·channel_stride + taps[tap]`.
pub(super) struct Lying<'a> {
    pub groups: usize,
    pub rows: usize,
    pub channels: usize,
    pub group_stride: usize,
    pub row_stride: usize,
    pub channel_stride: usize,
    pub taps: &'a [usize],
    /// Taps in a row of the kernel.
    pub row: usize,
    /// Pixels from one of them to the next.
    pub apart: usize,
}

impl<'a> Lying<'a> {
    /// All weights `[M, C/groups, ...]` of a convolution that is not transposed.
    pub fn plain(
        (outputs, channels): (usize, usize),
        groups: usize,
        taps: &'a [usize],
        (row, apart): (usize, usize),
    ) -> Lying<'a> {
        let (rows, row_stride) = (outputs / groups, channels * taps.len());
        let (group_stride, channel_stride) = (rows * row_stride, taps.len());
        Lying { groups, rows, channels, group_stride, row_stride, channel_stride, taps, row, apart }
    }

    /// Packs the rows of a group from `first` on, at most `nr`, into a panel: the numbers of `bytes`, aligned or not.
    fn pack_panel(&self, bytes: &[u8], group: usize, first: usize, nr: usize, panel: &mut [f32]) {
        /// Channels that are packed of one row after the other: their lines of the panel stay in the first-level cache.
        const BLOCK: usize = 16;
        for channels in (0..self.channels).step_by(BLOCK) {
            for (lane, row) in (first..self.rows.min(first + nr)).enumerate() {
                for channel in channels..self.channels.min(channels + BLOCK) {
                    let from = group * self.group_stride + row * self.row_stride + channel * self.channel_stride;
                    for (index, tap) in self.taps.iter().enumerate() {
                        panel[(index * self.channels + channel) * nr + lane] = number(bytes, from + tap);
                    }
                }
            }
        }
    }
}

impl Panels {
    /// Packs the weights `[M, C/groups, ...]` of a convolution.
    pub fn pack(tensor: &Tensor, groups: usize, micro: &Micro, packer: &Packer) -> Option<Panels> {
        let (&outputs, &channels) = (tensor.shape().first()?, tensor.shape().get(1)?);
        let taps: Vec<usize> = (0..tensor.shape()[2..].iter().product()).collect();
        let lying = Lying::plain((outputs, channels), groups, &taps, (taps.len(), 1));
        Panels::pack_from(tensor, &lying, micro, packer)
    }

    /// Packs what `lying` names of a tensor, which must lie inside it.
    pub fn pack_from(tensor: &Tensor, lying: &Lying<'_>, micro: &Micro, packer: &Packer) -> Option<Panels> {
        let bytes = f32_bytes(tensor)?;
        let Lying { rows, channels, taps, .. } = *lying;
        let depth = channels * taps.len();
        let group_len = gemm::panels_len(micro, rows, depth);
        let len = group_len * lying.groups;
        let elements = PackedWeights::new(packer, "panels of taps", len, |elements| {
            for (group, packed) in elements.chunks_exact_mut(group_len.max(1)).enumerate() {
                for (index, panel) in packed.chunks_exact_mut((depth * micro.nr).max(1)).enumerate() {
                    lying.pack_panel(bytes, group, index * micro.nr, micro.nr, panel);
                }
            }
        })?;
        Some(Panels { shape: tensor.shape().to_vec(), elements })
    }

    pub fn bytes(&self) -> usize {
        self.elements.bytes()
    }

    /// Whether the outputs of each of these groups fill all panels.
    pub fn is_whole(&self, groups: usize, micro: &Micro) -> bool {
        let outputs = self.shape.first().copied().unwrap_or(0);
        (outputs / groups.max(1)).is_multiple_of(micro.nr)
    }
}

/// A run of elements that a pixel sees, `depth` of them, from the place of its first tap on.
struct Run {
    /// Row and column of the first tap.
    y: usize,
    x: usize,
    /// Channel of the first element.
    channel: usize,
    depth: usize,
    /// Row of the panel.
    k: usize,
}

pub(super) struct PixelsStep {
    window: Window,
    panels: Arc<Panels>,
    has_bias: bool,
    epilogue: Option<Epilogue>,
    machine: Machine,
    micro: Micro,
    runs: Vec<Run>,
    /// Of them, those that are multiplied at once.
    together: Vec<Range<usize>>,
    blocks: Blocks,
    target: Target,
}

/// Which pixels of the output are written: all, or those of one phase of a transposed convolution.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    /// Height and width of the whole output.
    pub size: [usize; 2],
    /// The first row and column written.
    pub first: [usize; 2],
    /// Rows and columns from one to the next.
    pub step: [usize; 2],
}

impl Target {
    pub fn whole(window: &Window) -> Target {
        Target { size: [window.out[1], window.out[2]], first: [0; 2], step: [1; 2] }
    }

    /// Row and column of a pixel in the whole output.
    pub fn place(&self, row: usize, column: usize) -> [usize; 2] {
        [self.first[0] + row * self.step[0], self.first[1] + column * self.step[1]]
    }

    /// Where a pixel of an image lies among those of the whole output.
    pub fn pixel(&self, image: usize, row: usize, column: usize) -> usize {
        let [y, x] = self.place(row, column);
        (image * self.size[0] + y) * self.size[1] + x
    }
}

/// How the output is cut into tasks.
struct Blocks {
    /// Rows and columns of a block, at most.
    rows: usize,
    columns: usize,
    /// Number of blocks down and across an image.
    down: usize,
    across: usize,
    /// Ranges of panels that tasks of one block share.
    panel_parts: usize,
}

/// A part of the output that one task computes.
struct Place {
    image: usize,
    group: usize,
    rows: (usize, usize),
    columns: (usize, usize),
    panels: (usize, usize),
}

/// Where the data of a block lies: element (y, x, channel) at `start + y·row + x·pixel + channel`.
#[derive(Clone, Copy)]
struct Source {
    start: *const f32,
    row: usize,
    pixel: usize,
    /// Whether this is a copy, which lies in the caches.
    is_copy: bool,
}

impl PixelsStep {
    pub fn new(
        mut window: Window,
        target: Option<Target>,
        panels: Arc<Panels>,
        has_bias: bool,
        epilogue: Option<Epilogue>,
        machine: Machine,
        micro: Micro,
    ) -> PixelsStep {
        if window.is_pointwise() && target.is_none() {
            // Every pixel of every image is a row of one product.
            let pixels = window.batch * window.pixels();
            (window.batch, window.x, window.out) = (1, [1, 1, pixels], [1, 1, pixels]);
        }
        let depth = machine.blocking.depth.unwrap_or(DEPTH);
        let (blocks, runs) = (Blocks::new(&window, &machine, micro.nr), runs(&window, depth));
        let together = together(&runs, depth);
        let target = target.unwrap_or_else(|| Target::whole(&window));
        PixelsStep { window, panels, has_bias, epilogue, machine, micro, runs, together, blocks, target }
    }

    fn registers_bytes(&self) -> usize {
        self.epilogue.as_ref().map_or(0, |epilogue| epilogue.registers() * size_of::<Register>())
    }

    fn sums_len(&self) -> usize {
        self.blocks.rows * self.blocks.columns * self.micro.nr
    }

    /// Rows and columns of the data that a block sees.
    fn seen(&self, rows: usize, columns: usize) -> (usize, usize) {
        let window = &self.window;
        let extent = |axis: usize, count: usize| {
            (count - 1) * window.stride[axis] + (window.kernel[axis].max(1) - 1) * window.dilation[axis] + 1
        };
        (extent(1, rows.max(1)), extent(2, columns.max(1)))
    }

    fn border_len(&self) -> usize {
        let (rows, columns) = self.seen(self.blocks.rows, self.blocks.columns);
        (rows * columns * self.window.inputs).next_multiple_of(16)
    }

    /// Per thread: registers of the epilogue, sums, a block with its border.
    fn thread_bytes(&self) -> usize {
        let floats = self.sums_len().next_multiple_of(16) + self.border_len();
        own_bytes(self.registers_bytes() + floats * size_of::<f32>())
    }

    pub fn workspace(&self) -> usize {
        self.thread_bytes() * self.machine.threads()
    }

    fn all_panels(&self) -> usize {
        self.window.rows.div_ceil(self.micro.nr)
    }
}

impl Blocks {
    fn new(window: &Window, machine: &Machine, nr: usize) -> Blocks {
        let (threads, pixels) = (machine.threads(), machine.blocking.pixels.unwrap_or(PIXELS));
        let [_, height, width] = window.out;
        let images = window.batch * window.groups;
        let mut across = width.div_ceil(pixels).max(1);
        let mut down = height.div_ceil((pixels / width.div_ceil(across).max(1)).max(1)).max(1);
        // As many blocks for every thread; where there are many they even out by themselves.
        let blocks = images * down * across;
        let even = blocks.next_multiple_of(threads);
        if blocks < MANY_BLOCKS * threads && even > 0 && images * height * width / even >= LEAST_PIXELS {
            match height {
                1 => across = even.div_ceil(images),
                _ => down = even.div_ceil(images * across),
            }
        }
        let columns = width.div_ceil(across).max(1);
        let rows = height.div_ceil(down).max(1);
        let (down, across) = (height.div_ceil(rows), width.div_ceil(columns));
        let tasks = images * down * across;
        let panels = window.rows.div_ceil(nr);
        // Two tasks a thread even the work out; each reads its pixels again.
        let panel_parts = if threads == 1 { 1 } else { (2 * threads).div_ceil(tasks.max(1)).min(panels).max(1) };
        Blocks { rows, columns, down, across, panel_parts }
    }
}

/// The runs of a window in pieces of `most` elements, in the order of the panels' rows.
fn runs(window: &Window, most: usize) -> Vec<Run> {
    let (channels, width) = (window.inputs, window.kernel[2]);
    // The taps of a row are one run where nothing lies between them.
    let whole_rows = window.groups == 1 && (window.dilation[2] == 1 || width == 1);
    let (per_row, depth) = if whole_rows { (1, width * channels) } else { (width, channels) };
    let mut runs = Vec::new();
    for (y, x) in (0..window.kernel[1]).flat_map(|y| (0..per_row).map(move |x| (y, x))) {
        let first = (y * width + x) * channels;
        for from in (0..depth).step_by(most) {
            runs.push(Run {
                y: y * window.dilation[1],
                x: x * window.dilation[2],
                channel: from,
                depth: most.min(depth - from),
                k: first + from,
            });
        }
    }
    runs
}

/// Ranges of runs that are multiplied at once, as many as have no more than `most` elements.
fn together(runs: &[Run], most: usize) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for index in 0..runs.len() {
        match ranges.last_mut() {
            Some(range)
                if range.len() < RUNS_TOGETHER
                    && runs[range.start..=index].iter().map(|run| run.depth).sum::<usize>() <= most =>
            {
                range.end = index + 1;
            }
            _ => ranges.push(index..index + 1),
        }
    }
    ranges
}

impl Step for PixelsStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let blocks = &self.blocks;
        let tasks = self.window.batch * self.window.groups * blocks.down * blocks.across * blocks.panel_parts;
        if arguments.outputs[0].is_empty() {
            return;
        }
        let threads = self.machine.threads().min(tasks);
        assert!(arguments.workspace.len() >= threads * self.thread_bytes());
        self.machine.pool.run_tasks(threads, tasks, &|thread, task| {
            self.run_task(arguments, thread, self.place(task));
        });
    }
}

impl PixelsStep {
    fn place(&self, task: usize) -> Place {
        let blocks = &self.blocks;
        let (rest, part) = (task / blocks.panel_parts, task % blocks.panel_parts);
        let (rest, across) = (rest / blocks.across, rest % blocks.across);
        let (rest, down) = (rest / blocks.down, rest % blocks.down);
        let panels = self.all_panels();
        let range = |index: usize, size: usize, end: usize| (index * size, ((index + 1) * size).min(end));
        Place {
            image: rest / self.window.groups,
            group: rest % self.window.groups,
            rows: range(down, blocks.rows, self.window.out[1]),
            columns: range(across, blocks.columns, self.window.out[2]),
            panels: (panels * part / blocks.panel_parts, panels * (part + 1) / blocks.panel_parts),
        }
    }

    fn run_task(&self, arguments: &Arguments<'_>, thread: usize, place: Place) {
        let (window, micro) = (&self.window, &self.micro);
        let view = |index: usize| arguments.inputs.get(index).copied().flatten().unwrap_or(View::empty());
        // SAFETY: inputs are not written during the step; the thread's part of the workspace is its own.
        let (x, bias, registers, sums, border) = unsafe {
            let start = arguments.workspace.as_ptr().add(thread * self.thread_bytes());
            let floats = start.add(self.registers_bytes()).cast::<f32>();
            (
                view(0).slice::<f32>(),
                if self.has_bias { view(2).slice::<f32>() } else { &[] },
                std::slice::from_raw_parts_mut(
                    start.cast::<Register>(),
                    self.registers_bytes() / size_of::<Register>(),
                ),
                std::slice::from_raw_parts_mut(floats, self.sums_len()),
                std::slice::from_raw_parts_mut(floats.add(self.sums_len().next_multiple_of(16)), self.border_len()),
            )
        };
        let source = self.source(x, &place, border);
        let (rows, columns) = (place.rows.1 - place.rows.0, place.columns.1 - place.columns.0);
        let depth = window.depth();
        let group = gemm::panels_len(micro, window.rows, depth) * place.group;
        let tiles = columns.div_ceil(micro.mr);
        // Row and columns of a tile of the block.
        let tile_at = |number: usize| {
            let (row, tile) = (number / tiles, number % tiles);
            (row, columns * tile / tiles, columns * (tile + 1) / tiles)
        };
        // Where what a pixel of the block sees begins.
        let pixel_at =
            |row: usize, column: usize| row * window.stride[1] * source.row + column * window.stride[2] * source.pixel;
        let output = arguments.outputs[0].as_ptr().cast::<f32>();
        let residual = self.epilogue.as_ref().and_then(Epilogue::common).and_then(|common| common.residual);
        let residual = residual.map(|residual| view(3 + residual.input).as_ptr().cast::<f32>());
        let extra = arguments.inputs.get(3..).unwrap_or_default();
        let channels = window.groups * window.rows;
        let apart = self.target.step[1] * channels;
        for p in place.panels.0..place.panels.1 {
            let panel = &self.panels.elements[group + p * depth * micro.nr..][..depth * micro.nr];
            let channel = place.group * window.rows + p * micro.nr;
            let wide = micro.nr.min(window.rows - p * micro.nr);
            let bias = bias.get(channel..channel + wide).unwrap_or_default();
            let finish = Finish { bias, epilogue: self.epilogue.as_ref(), extra, isa: self.machine.isa, nr: micro.nr };
            let end = self.end(bias, wide);
            if self.runs.is_empty() {
                sums.fill(0.0);
            }
            // Where the sums of pixel (row, column) of the block go: elements from the output's start.
            let start = |row: usize, column: usize| {
                self.target.pixel(place.image, place.rows.0 + row, place.columns.0 + column) * channels + channel
            };
            for range in &self.together {
                let (is_first, is_last) = (range.start == 0, range.end == self.runs.len());
                let mut places = [(0, 0); RUNS_TOGETHER];
                for (place, run) in places.iter_mut().zip(&self.runs[range.clone()]) {
                    *place = (run.y * source.row + run.x * source.pixel + run.channel, run.depth);
                }
                let runs = &places[..range.len()];
                let (k, depth) = (self.runs[range.start].k, runs.iter().map(|run| run.1).sum());
                // The panel's next rows, or the next panel, come while these are multiplied.
                let next = panel.as_ptr().wrapping_add((k + depth) * micro.nr);
                for number in 0..rows * tiles {
                    let (row, first, last) = tile_at(number);
                    if is_last {
                        // What the tile is added to and written to comes while it is computed.
                        for column in first..last {
                            let at = start(row, column);
                            ask_for(output.wrapping_add(at), wide);
                            residual.inspect(|residual| ask_for(residual.wrapping_add(at), wide));
                        }
                    }
                    let mut ahead = Ahead::share(next, depth * micro.nr, (number, rows * tiles), depth);
                    // The first panel is the first to read pixels: those of the next tile come meanwhile.
                    if is_first && p == place.panels.0 && number + 1 < rows * tiles && !source.is_copy {
                        let (row, first, last) = tile_at(number + 1);
                        let pixels = source.start.wrapping_add(pixel_at(row, first));
                        ahead = ahead.and(pixels, (last - first) * window.stride[2] * source.pixel, depth);
                    }
                    // SAFETY: the pixels of a tile and their runs lie inside the block; sums of the tile inside the
                    // block's sums; the panel is as deep as all runs together. What is written at the end are channels
                    // of pixels that this task alone writes; a residual has the output's elements.
                    unsafe {
                        let a = (source.start.add(pixel_at(row, first)), window.stride[2] * source.pixel, 1);
                        let b = panel.as_ptr().add(k * micro.nr);
                        let tile = (sums.as_mut_ptr().add((row * columns + first) * micro.nr), micro.nr);
                        let mut product = Product { ahead, ..Product::new(runs, a, b, tile) };
                        if !is_first {
                            product.sums = (tile.0.cast_const(), tile.1);
                        }
                        if let Some(end) = end.filter(|_| is_last) {
                            let at = start(row, first);
                            product.c = (output.add(at), apart);
                            let residual = residual.map_or(std::ptr::null(), |residual| residual.add(at));
                            product.end = Some(End { residual, ..end });
                        }
                        micro.tile(last - first, &product);
                    }
                }
            }
            if end.is_some() && !self.runs.is_empty() {
                continue;
            }
            for row in 0..rows {
                let sums = &mut sums[row * columns * micro.nr..(row + 1) * columns * micro.nr];
                let start = start(row, 0);
                // SAFETY: this task alone writes these channels of these pixels, which lie inside.
                unsafe {
                    finish.store(sums, (columns, wide), start, output.add(start), apart, registers);
                }
            }
        }
    }

    /// What a micro-kernel does with sums of a panel of `wide` channels before it writes them; `None` where that is
    /// more than it can. The residual is missing.
    fn end(&self, bias: &[f32], wide: usize) -> Option<End> {
        let common = self.epilogue.as_ref().map_or(Some(&Common::NONE), Epilogue::common)?;
        let bias = if bias.is_empty() { std::ptr::null() } else { bias.as_ptr() };
        let plain = wide == self.micro.nr && common.bias.is_none() && common.is_plain();
        plain.then_some(End { bias, residual: std::ptr::null(), low: common.low, high: common.high })
    }

    /// The data of a block: where it lies, or copied with its border where it has one.
    fn source(&self, x: &[f32], place: &Place, border: &mut [f32]) -> Source {
        let window = &self.window;
        let channels = window.groups * window.inputs;
        let [_, height, width] = window.x;
        let image = &x[place.image * height * width * channels..][..height * width * channels];
        let seen = self.seen(place.rows.1 - place.rows.0, place.columns.1 - place.columns.0);
        let first = |axis: usize, out: usize| (out * window.stride[axis]) as isize - window.before[axis];
        let (top, left) = (first(1, place.rows.0), first(2, place.columns.0));
        let inside = |from: isize, count: usize, size: usize| from >= 0 && from as usize + count <= size;
        let group = place.group * window.inputs;
        if inside(top, seen.0, height) && inside(left, seen.1, width) {
            let at = (top as usize * width + left as usize) * channels + group;
            return Source { start: image[at..].as_ptr(), row: width * channels, pixel: channels, is_copy: false };
        }
        let row_len = seen.1 * window.inputs;
        for (index, line) in border.chunks_exact_mut(row_len).take(seen.0).enumerate() {
            let Some(y) = usize::try_from(top + index as isize).ok().filter(|&y| y < height) else {
                line.fill(0.0);
                continue;
            };
            // Columns of the block that lie inside the image.
            let from = (-left).clamp(0, seen.1 as isize) as usize;
            let to = (width as isize - left).clamp(from as isize, seen.1 as isize) as usize;
            line[..from * window.inputs].fill(0.0);
            line[to * window.inputs..].fill(0.0);
            let (line, start) = (&mut line[from * window.inputs..to * window.inputs], y * width);
            if from == to {
                continue;
            }
            let start = (start + (from as isize + left) as usize) * channels + group;
            if window.groups == 1 {
                line.copy_from_slice(&image[start..start + line.len()]);
                continue;
            }
            for (pixel, line) in line.chunks_exact_mut(window.inputs).enumerate() {
                line.copy_from_slice(&image[start + pixel * channels..][..window.inputs]);
            }
        }
        Source { start: border.as_ptr(), row: row_len, pixel: window.inputs, is_copy: true }
    }
}

/// Asks for the lines of `len` elements from `start` on, which need not be readable.
#[inline(always)]
fn ask_for(start: *const f32, len: usize) {
    for element in (0..len).step_by(prefetch::LINE / size_of::<f32>()) {
        prefetch::to_first_level(start.wrapping_add(element));
    }
}
