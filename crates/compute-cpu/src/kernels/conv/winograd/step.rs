//! The run of a Winograd convolution.

use super::ends::{Ending, Ends};
use super::exact::Strip;
use super::multiply::{FLOATS, Layout, Multiply};
use super::transform::{Input, Output, Transforms};
use super::{Grid, Weights};
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
pub(in crate::kernels) const BLOCK_BYTES: usize = 512 << 10;
/// Tiles of a block at least, as many times what is multiplied together: what is read of the weights for fewer takes
/// longer than their products.
const LEAST_GROUPS: usize = 4;

/// On data in such numbers, multiplied by something.
pub(super) struct WinogradStep<T, M: Multiply> {
    window: Window,
    weights: Arc<Weights<M::Number>>,
    ends: Ends,
    machine: Machine,
    by: M,
    transforms: Transforms<T, M::Number>,
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

impl Blocks {
    fn new(grid: &Grid, tile_bytes: usize, (panels, together): (usize, usize), machine: &Machine) -> Blocks {
        let (threads, bytes) = (machine.threads(), machine.blocking.bytes.unwrap_or(BLOCK_BYTES));
        // An empty batch has no tiles, and one block of none.
        let even = |count: usize| grid.tiles.div_ceil(count.max(1)).max(1);
        let most = (bytes / tile_bytes.max(1)).max(LEAST_GROUPS * together);
        if threads == 1 || grid.tiles >= 2 * together * threads {
            // As many blocks for every thread.
            let tiles = even(grid.tiles.div_ceil(most).next_multiple_of(threads));
            return Blocks { tiles, count: grid.tiles.div_ceil(tiles), shared: None };
        }
        let tiles = even(grid.tiles.div_ceil(together));
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

impl<T: Real, M: Multiply> WinogradStep<T, M> {
    pub fn new(
        window: Window,
        weights: Arc<Weights<M::Number>>,
        ends: Ends,
        machine: Machine,
        by: M,
    ) -> WinogradStep<T, M> {
        let form = weights.form;
        let grid = Grid::new(&window, form);
        let panels = window.rows.div_ceil(by.columns());
        let point_bytes =
            by.depth(window.inputs) * size_of::<M::Number>() + by.turns(panels) * by.columns() * size_of::<f32>();
        let tile_bytes = form.points() * form.points() * point_bytes;
        let blocks = Blocks::new(&grid, tile_bytes, (panels, by.together()), &machine);
        let transforms = Transforms::new(machine.isa, form);
        WinogradStep { window, weights, ends, machine, by, transforms, grid, blocks }
    }

    fn points(&self) -> usize {
        self.weights.form.points() * self.weights.form.points()
    }

    /// Of transformed inputs: of a block, or of all tiles. And numbers behind them.
    fn inputs_layout(&self) -> (Layout, usize) {
        let tiles = if self.blocks.shared.is_some() { self.grid.tiles } else { self.blocks.tiles };
        self.by.inputs(tiles, self.window.inputs)
    }

    /// Bytes of transformed inputs, and to the next thread's.
    fn inputs_bytes(&self) -> usize {
        let (layout, behind) = self.inputs_layout();
        own_bytes((self.points() * layout.plane + behind) * size_of::<M::Number>())
    }

    /// Panels of a task whose products are there at a time.
    fn turns(&self) -> usize {
        let panels = self.window.rows.div_ceil(self.by.columns());
        self.by.turns(panels.div_ceil(self.blocks.shared.unwrap_or(1)))
    }

    /// Of the products of a block with such panels.
    fn products_layout(&self) -> Layout {
        self.by.products(self.blocks.tiles, self.turns())
    }

    fn products_len(&self) -> usize {
        self.points() * self.products_layout().plane
    }

    fn strip_len(&self) -> usize {
        let tiles = self.blocks.tiles.min(self.grid.across);
        (tiles * self.grid.outputs * self.grid.outputs * self.by.columns()).next_multiple_of(FLOATS)
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
        inputs * self.inputs_bytes() + threads * self.thread_bytes()
    }
}

impl<T: Real, M: Multiply> Step for WinogradStep<T, M> {
    fn run(&self, arguments: &Arguments<'_>) {
        if arguments.outputs[0].is_empty() {
            return;
        }
        assert!(arguments.workspace.len() >= self.workspace());
        let (blocks, grid, pool) = (&self.blocks, &self.grid, &self.machine.pool);
        let threads = self.machine.threads();
        let panels = self.window.rows.div_ceil(self.by.columns());
        let inputs = arguments.workspace.as_ptr() as usize;
        let inputs_of =
            |thread: usize| (inputs as *mut u8).wrapping_add(thread * self.inputs_bytes()).cast::<M::Number>();
        if let Some(parts) = blocks.shared {
            let pitch = self.inputs_layout().0.pitch;
            pool.run(blocks.count, &|block| {
                let tiles = blocks.range(block, grid);
                // SAFETY: the tiles of this block, which no other task writes.
                unsafe { self.transform(arguments, tiles.clone(), inputs_of(0).add(tiles.start * pitch)) };
            });
            pool.run_tasks(threads, blocks.count * parts, &|thread, task| {
                let (tiles, part) = (blocks.range(task / parts, grid), task % parts);
                // SAFETY: written above; each thread has its scratch.
                unsafe {
                    let inputs = inputs_of(0).add(tiles.start * pitch);
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

impl<T: Real, M: Multiply> WinogradStep<T, M> {
    /// # Safety
    /// Each thread asks for its own number while the scratch lives; `inputs` sets of transformed inputs
    /// come first in the workspace.
    unsafe fn scratch<'a>(&self, arguments: &Arguments<'a>, inputs: usize, thread: usize) -> Scratch<'a> {
        // SAFETY: inside the workspace, which `run` has checked; the part is the caller's.
        unsafe {
            let start = arguments.workspace.as_ptr().add(inputs * self.inputs_bytes());
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
    unsafe fn transform(&self, arguments: &Arguments<'_>, tiles: Range<usize>, to: *mut M::Number) {
        let (Layout { plane, pitch }, _) = self.inputs_layout();
        let view = arguments.inputs[0].unwrap_or(View::empty());
        // SAFETY: inputs are not written during the step; else the caller's promise.
        unsafe {
            let x = view.slice::<T>();
            let (window, grid, depth) = (&self.window, &self.grid, self.by.depth(self.window.inputs));
            self.transforms.input(&Input { window, grid, x, tiles, to, plane, pitch, depth });
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
        inputs: *const M::Number,
        panels: Range<usize>,
        scratch: Scratch<'_>,
    ) {
        let (window, nr, points) = (&self.window, self.by.columns(), self.points());
        let ((from, _), to) = (self.inputs_layout(), self.products_layout());
        let len = self.by.depth(window.inputs) * nr;
        let weights_of = |(point, p): (usize, usize)| &self.weights.elements[(p * points + point) * len..][..len];
        let turns = panels.clone().step_by(self.turns().max(1)).map(|p| p..panels.end.min(p + self.turns()));
        let pairs_of = |turn: Range<usize>| (0..points).flat_map(move |point| turn.clone().map(move |p| (point, p)));
        let mut coming = turns.clone().flat_map(pairs_of).skip(1);
        let mut columns = KeptColumns::new();
        let mut ending = self.ends.begin(arguments, scratch.registers, &mut columns, (self.machine.isa, nr));
        for turn in turns {
            for (point, p) in pairs_of(turn.clone()) {
                let next = coming.next().unwrap_or((0, panels.start));
                // SAFETY: the tiles of this point, in both buffers.
                unsafe {
                    let left = (inputs.add(point * from.plane), from.pitch);
                    let products = scratch.products[point * to.plane + (p - turn.start) * nr..].as_mut_ptr();
                    let weights = (weights_of((point, p)), weights_of(next));
                    self.by.multiply(left, tiles.len(), window.inputs, weights, (products, to.pitch));
                }
            }
            for p in turn.clone() {
                let from = &scratch.products[(p - turn.start) * nr..];
                // SAFETY: they have been written; else the caller's promise.
                unsafe { self.end(arguments, &tiles, p, from, scratch.strip, &mut ending) };
            }
        }
    }

    /// Transforms the products of some tiles with a panel, and ends its outputs.
    ///
    /// # Safety
    /// As [`WinogradStep::multiply`].
    unsafe fn end(
        &self,
        arguments: &Arguments<'_>,
        tiles: &Range<usize>,
        p: usize,
        products: &[f32],
        strip: &mut [f32],
        ending: &mut Ending<'_>,
    ) {
        let (window, nr, to) = (&self.window, self.by.columns(), self.products_layout());
        let original = OnceCell::new();
        let (channel, wide) = (p * nr, nr.min(window.rows - p * nr));
        let mut first = tiles.start;
        while first < tiles.end {
            // The tiles of one row.
            let last = tiles.end.min(first - first % self.grid.across + self.grid.across);
            let m = self.grid.outputs;
            let job = Output {
                from: products[(first - tiles.start) * to.pitch..].as_ptr(),
                plane: to.plane,
                pitch: to.pitch,
                nr,
                tiles: last - first,
                to: strip.as_mut_ptr(),
            };
            // SAFETY: the products of these tiles; the strip holds a row of a block's tiles.
            let is_tame = unsafe { self.transforms.output(&job) };
            if !is_tame {
                let outputs = Strip { tiles: first..last, wide, nr };
                let weights = || &original.get_or_init(|| self.weights.original(p, window.inputs, &self.by))[..];
                let x = arguments.inputs.first().copied().flatten().unwrap_or(View::empty());
                // SAFETY: inputs are not written during the step.
                outputs.correct(window, &self.grid, unsafe { x.slice::<T>() }, weights, strip);
            }
            let (place, row_len) = (self.grid.place(first), (last - first) * m * nr);
            let columns = ((last - first) * m).min(window.out[2] - place.column);
            for row in 0..m.min(window.out[1] - place.row) {
                let sums = &mut strip[row * row_len..][..columns * nr];
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
