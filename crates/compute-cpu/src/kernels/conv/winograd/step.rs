//! The run of a Winograd convolution.

use super::ends::Ends;
use super::exact::Strip;
use super::transform::{Input, Output, Transforms};
use super::{Grid, Weights};
use crate::gemm::{Ahead, KC, Micro, Product};
use crate::kernels::Machine;
use crate::kernels::conv::window::Window;
use crate::kernels::tiled::{KeptColumns, Piece};
use crate::map::Register;
use crate::pool::own_bytes;
use crate::real::Real;
use halimede_compute::{Arguments, Prepared, Step};
use halimede_tensor::View;
use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

/// Transformed inputs and products of a block, in bytes: the second-level cache holds them beside the
/// weights of a point, which stream through.
const BLOCK_BYTES: usize = 512 << 10;
/// Tiles of a block at least, in rows of the micro-kernel: what is read of the weights for fewer takes
/// longer than their products.
const LEAST_GROUPS: usize = 4;
/// Floats of a cache line.
const LINE: usize = 16;

/// On data in such numbers.
pub(in crate::kernels::conv) struct WinogradStep<T> {
    window: Window,
    weights: Arc<Weights>,
    ends: Ends,
    machine: Machine,
    micro: Micro,
    transforms: Transforms<T>,
    grid: Grid,
    blocks: Blocks,
}

/// How tiles are cut into tasks.
#[derive(Debug, Clone, Copy)]
struct Blocks {
    /// Tiles of a block, at most.
    tiles: usize,
    count: usize,
    /// Where there are too few blocks for the threads: all of them share one set of transformed inputs,
    /// and so many tasks share the panels of a block.
    shared: Option<usize>,
}

/// Distances in a buffer `[points², tiles, channels]`, in floats. Both are an odd number of cache lines:
/// an even one would put what is written together into few sets of the cache.
#[derive(Debug, Clone, Copy)]
struct Layout {
    plane: usize,
    pitch: usize,
}

impl Layout {
    fn new(tiles: usize, channels: usize) -> Layout {
        let pitch = channels.div_ceil(LINE) | 1;
        Layout { plane: ((tiles * pitch) | 1) * LINE, pitch: pitch * LINE }
    }
}

impl Blocks {
    fn new(grid: &Grid, tile_bytes: usize, panels: usize, micro: &Micro, machine: &Machine) -> Blocks {
        let (threads, bytes) = (machine.threads(), machine.blocking.bytes.unwrap_or(BLOCK_BYTES));
        // An empty batch has no tiles, and one block of none.
        let even = |count: usize| grid.tiles.div_ceil(count.max(1)).max(1);
        let most = (bytes / tile_bytes.max(1)).max(LEAST_GROUPS * micro.mr);
        if threads == 1 || grid.tiles >= 2 * micro.mr * threads {
            // As many blocks for every thread.
            let tiles = even(grid.tiles.div_ceil(most).next_multiple_of(threads));
            return Blocks { tiles, count: grid.tiles.div_ceil(tiles), shared: None };
        }
        let tiles = even(grid.tiles.div_ceil(micro.mr));
        let count = grid.tiles.div_ceil(tiles);
        Blocks { tiles, count, shared: Some((2 * threads).div_ceil(count.max(1)).min(panels).max(1)) }
    }

    fn range(&self, block: usize, grid: &Grid) -> Range<usize> {
        block * self.tiles..((block + 1) * self.tiles).min(grid.tiles)
    }
}

/// One thread's part of the workspace.
struct Scratch<'a> {
    registers: &'a mut [Register],
    products: &'a mut [f32],
    /// Outputs of the tiles of a row.
    strip: &'a mut [f32],
}

impl<T: Real> WinogradStep<T> {
    pub fn new(window: Window, weights: Arc<Weights>, ends: Ends, machine: Machine, micro: Micro) -> WinogradStep<T> {
        let form = weights.form;
        let grid = Grid::new(&window, form);
        let tile_bytes = form.points() * form.points() * (window.inputs + window.rows) * size_of::<f32>();
        let panels = window.rows.div_ceil(micro.nr);
        let blocks = Blocks::new(&grid, tile_bytes, panels, &micro, &machine);
        let transforms = Transforms::new(machine.isa, form);
        WinogradStep { window, weights, ends, machine, micro, transforms, grid, blocks }
    }

    fn points(&self) -> usize {
        self.weights.form.points() * self.weights.form.points()
    }

    /// Of transformed inputs: of a block, or of all tiles.
    fn inputs_layout(&self) -> Layout {
        let tiles = if self.blocks.shared.is_some() { self.grid.tiles } else { self.blocks.tiles };
        Layout::new(tiles, self.window.inputs)
    }

    /// Of transformed inputs, and to the next thread's.
    fn inputs_len(&self) -> usize {
        own_bytes(self.points() * self.inputs_layout().plane * size_of::<f32>()) / size_of::<f32>()
    }

    /// Of the products of a block with a task's panels.
    fn products_layout(&self) -> Layout {
        let panels = self.window.rows.div_ceil(self.micro.nr).div_ceil(self.blocks.shared.unwrap_or(1));
        Layout::new(self.blocks.tiles, panels * self.micro.nr)
    }

    fn products_len(&self) -> usize {
        self.points() * self.products_layout().plane
    }

    fn strip_len(&self) -> usize {
        let tiles = self.blocks.tiles.min(self.grid.across);
        (tiles * self.grid.outputs * self.grid.outputs * self.micro.nr).next_multiple_of(LINE)
    }

    fn thread_bytes(&self) -> usize {
        own_bytes(self.ends.registers_bytes() + (self.products_len() + self.strip_len()) * size_of::<f32>())
    }

    pub fn prepared(self) -> Prepared {
        let workspace = self.workspace();
        Prepared { step: Box::new(self), workspace }
    }

    /// Transformed inputs, of every thread or of all together, then what each thread has for itself.
    fn workspace(&self) -> usize {
        let threads = self.machine.threads();
        let inputs = if self.blocks.shared.is_some() { 1 } else { threads };
        inputs * self.inputs_len() * size_of::<f32>() + threads * self.thread_bytes()
    }
}

impl<T: Real> Step for WinogradStep<T> {
    fn run(&self, arguments: &Arguments<'_>) {
        if arguments.outputs[0].is_empty() {
            return;
        }
        assert!(arguments.workspace.len() >= self.workspace());
        let (blocks, grid, pool) = (&self.blocks, &self.grid, &self.machine.pool);
        let threads = self.machine.threads();
        let panels = self.window.rows.div_ceil(self.micro.nr);
        let inputs = arguments.workspace.as_ptr().cast::<f32>() as usize;
        let inputs_of = |thread: usize| (inputs as *mut f32).wrapping_add(thread * self.inputs_len());
        if let Some(parts) = blocks.shared {
            pool.run(blocks.count, &|block| {
                let tiles = blocks.range(block, grid);
                // SAFETY: the tiles of this block, which no other task writes.
                unsafe {
                    self.transform(arguments, tiles.clone(), inputs_of(0).add(tiles.start * self.inputs_layout().pitch))
                };
            });
            pool.run_tasks(threads, blocks.count * parts, &|thread, task| {
                let (tiles, part) = (blocks.range(task / parts, grid), task % parts);
                // SAFETY: written above; each thread has its scratch.
                unsafe {
                    let inputs = inputs_of(0).add(tiles.start * self.inputs_layout().pitch);
                    let panels = panels * part / parts..panels * (part + 1) / parts;
                    self.multiply(arguments, tiles, inputs, panels, self.scratch(arguments, 1, thread));
                }
            });
            return;
        }
        pool.run_tasks(threads, blocks.count, &|thread, block| {
            let tiles = blocks.range(block, grid);
            // SAFETY: each thread has its inputs and its scratch.
            unsafe {
                self.transform(arguments, tiles.clone(), inputs_of(thread));
                let scratch = self.scratch(arguments, threads, thread);
                self.multiply(arguments, tiles, inputs_of(thread), 0..panels, scratch);
            }
        });
    }
}

impl<T: Real> WinogradStep<T> {
    /// # Safety
    /// Each thread asks for its own number while the scratch lives; `inputs` sets of transformed inputs
    /// come first in the workspace.
    unsafe fn scratch<'a>(&self, arguments: &Arguments<'a>, inputs: usize, thread: usize) -> Scratch<'a> {
        // SAFETY: inside the workspace, which `run` has checked; the part is the caller's.
        unsafe {
            let start = arguments.workspace.as_ptr().add(inputs * self.inputs_len() * size_of::<f32>());
            let start = start.add(thread * self.thread_bytes());
            let products = start.add(self.ends.registers_bytes()).cast::<f32>();
            let registers = self.ends.registers_bytes() / size_of::<Register>();
            Scratch {
                registers: std::slice::from_raw_parts_mut(start.cast::<Register>(), registers),
                products: std::slice::from_raw_parts_mut(products, self.products_len()),
                strip: std::slice::from_raw_parts_mut(products.add(self.products_len()), self.strip_len()),
            }
        }
    }

    /// Transforms the inputs of some tiles.
    ///
    /// # Safety
    /// `to` has room for them in the layout of the inputs, which nobody else touches.
    unsafe fn transform(&self, arguments: &Arguments<'_>, tiles: Range<usize>, to: *mut f32) {
        let Layout { plane, pitch } = self.inputs_layout();
        let view = arguments.inputs[0].unwrap_or(View::empty());
        // SAFETY: inputs are not written during the step; else the caller's promise.
        unsafe {
            let x = view.slice::<T>();
            self.transforms.input(&Input { window: &self.window, grid: &self.grid, x, tiles, to, plane, pitch });
        }
    }

    /// Multiplies transformed inputs of some tiles by panels of weights, and finishes their outputs.
    ///
    /// # Safety
    /// `inputs` holds those tiles; nobody else touches their outputs of those panels.
    unsafe fn multiply(
        &self,
        arguments: &Arguments<'_>,
        tiles: Range<usize>,
        inputs: *const f32,
        panels: Range<usize>,
        scratch: Scratch<'_>,
    ) {
        let (window, nr, points) = (&self.window, self.micro.nr, self.points());
        let (from, to) = (self.inputs_layout(), self.products_layout());
        let depth = window.inputs * nr;
        let weights_of = |point: usize, p: usize| &self.weights.elements[(p * points + point) * depth..][..depth];
        for (point, p) in (0..points).flat_map(|point| panels.clone().map(move |p| (point, p))) {
            let next = match () {
                _ if p + 1 < panels.end => weights_of(point, p + 1),
                _ if point + 1 < points => weights_of(point + 1, panels.start),
                _ => weights_of(0, panels.start),
            };
            // SAFETY: the tiles of this point, in both buffers.
            unsafe {
                let left = (inputs.add(point * from.plane), from.pitch);
                let products = scratch.products[point * to.plane + (p - panels.start) * nr..].as_mut_ptr();
                self.products(left, tiles.len(), (weights_of(point, p), next), (products, to.pitch));
            }
        }
        let mut columns = KeptColumns::new();
        let mut ending = self.ends.begin(arguments, scratch.registers, &mut columns, (self.machine.isa, nr));
        for p in panels.clone() {
            let original = OnceCell::new();
            let (channel, wide) = (p * nr, nr.min(window.rows - p * nr));
            let mut first = tiles.start;
            while first < tiles.end {
                // The tiles of one row.
                let last = tiles.end.min(first - first % self.grid.across + self.grid.across);
                let m = self.grid.outputs;
                let job = Output {
                    from: scratch.products[(first - tiles.start) * to.pitch + (p - panels.start) * nr..].as_ptr(),
                    plane: to.plane,
                    pitch: to.pitch,
                    nr,
                    tiles: last - first,
                    to: scratch.strip.as_mut_ptr(),
                };
                // SAFETY: the products of these tiles; the strip holds a row of a block's tiles.
                let is_tame = unsafe { self.transforms.output(&job) };
                if !is_tame {
                    let strip = Strip { tiles: first..last, wide, nr };
                    let weights = || &original.get_or_init(|| self.weights.original(p, window.inputs, nr))[..];
                    let x = arguments.inputs.first().copied().flatten().unwrap_or(View::empty());
                    // SAFETY: inputs are not written during the step.
                    strip.correct(window, &self.grid, unsafe { x.slice::<T>() }, weights, scratch.strip);
                }
                let (place, row_len) = (self.grid.place(first), (last - first) * m * nr);
                let columns = ((last - first) * m).min(window.out[2] - place.column);
                for row in 0..m.min(window.out[1] - place.row) {
                    let sums = &mut scratch.strip[row * row_len..][..columns * nr];
                    let y = place.image * window.out[1] + place.row + row;
                    let start = (y * window.out[2] + place.column) * window.rows + channel;
                    let (rows, row) = (columns, window.rows);
                    let piece = Piece { rows, columns: wide, column: channel, start, row, has_room: false };
                    // SAFETY: this task alone writes these channels of these pixels, which lie inside.
                    unsafe { ending.store(piece, sums) };
                }
                first = last;
            }
        }
    }

    /// The product of one point and one panel: `[tiles, inputs] · [inputs, nr]`, while the weights that
    /// follow come.
    ///
    /// # Safety
    /// `left` (start, distance of rows) holds the tiles; `products` (the same) has room for them.
    unsafe fn products(
        &self,
        left: (*const f32, usize),
        tiles: usize,
        (weights, next): (&[f32], &[f32]),
        products: (*mut f32, usize),
    ) {
        let (micro, inputs) = (&self.micro, self.window.inputs);
        let groups = tiles.div_ceil(micro.mr);
        let mut depth = 0;
        loop {
            let length = KC.min(inputs - depth);
            for group in 0..groups {
                let (first, last) = (tiles * group / groups, tiles * (group + 1) / groups);
                let (next, len) = (next.as_ptr().wrapping_add(depth * micro.nr), length * micro.nr);
                // SAFETY: the caller's promise; the panel is `inputs` deep.
                unsafe {
                    let a = (left.0.add(first * left.1 + depth), left.1, 1);
                    let (b, c) = (weights.as_ptr().add(depth * micro.nr), products.0.add(first * products.1));
                    let sums = if depth == 0 { (std::ptr::null(), 0) } else { (c.cast_const(), products.1) };
                    let ahead = Ahead::share(next, len, (group, groups), length);
                    micro.tile(
                        last - first,
                        &Product { sums, ahead, ..Product::new(&[(0, length)], a, b, (c, products.1)) },
                    );
                }
            }
            depth += length;
            if depth >= inputs {
                return;
            }
        }
    }
}
