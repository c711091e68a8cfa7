//! What multiplies transformed inputs by transformed weights.
//!
//! ```text
//!            inputs                     outputs of a panel
//!  tile 0    ████████              ██  ██  ██
//!  tile 1    ████████       by     ██  ██  ██    one behind the other, of every point
//!  ...                             ..  ..  ..
//! ```

use crate::Isa;
use crate::gemm::{Ahead, KC, Micro, Product};
use crate::matrix::{
    self, BLOCK, Begin, Block, Left, Lines, Matrix, PANEL_STEP_BYTES, Panels, STEP_BYTES, STRIP, Streamed, TILE,
};
use crate::prefetch::LINE;
use crate::real::Real;
use half::bf16;
use std::ops::Range;

/// Floats of a cache line.
pub(super) const FLOATS: usize = LINE / size_of::<f32>();

/// Distances in a buffer `[points², tiles, channels]`, in numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub plane: usize,
    pub pitch: usize,
}

impl Layout {
    /// Both are an odd number of cache lines of so many numbers: an even one would put what is written together into few
    /// sets of the cache.
    fn apart(tiles: usize, channels: usize, line: usize) -> Layout {
        let pitch = channels.div_ceil(line) | 1;
        Layout { plane: ((tiles * pitch) | 1) * line, pitch: pitch * line }
    }
}

/// Multiplies what the transforms make of tiles and of weights.
pub(in crate::kernels::conv) trait Multiply: Send + Sync + 'static {
    /// What that is kept in.
    type Number: Real;

    /// What is lost of a weight as that is rounded, beside the largest of its filter.
    const ROUNDING: f64;

    /// Output channels of a panel, at most [`super::LANES`].
    fn columns(&self) -> usize;

    /// Tiles that are multiplied together at best.
    fn together(&self) -> usize;

    /// Numbers of a row of so many inputs, and rows of a panel. Those beyond the inputs are 0.
    fn depth(&self, inputs: usize) -> usize;

    /// Panels that are multiplied by a point's inputs before those of the next point, of so many.
    fn turns(&self, panels: usize) -> usize;

    /// How transformed inputs of so many tiles lie, and numbers beyond those of all points that may be read.
    fn inputs(&self, tiles: usize, inputs: usize) -> (Layout, usize);

    /// How products of so many tiles with so many panels lie, in floats.
    fn products(&self, tiles: usize, panels: usize) -> Layout;

    /// Packs the panel of a point: `weights` are `[inputs, LANES]`, of which so many columns count.
    fn pack(&self, isa: Isa, weights: &[[f32; super::LANES]], columns: usize, panel: &mut [Self::Number]);

    /// The weight of an input and a column of a panel of a point.
    fn weight(&self, panel: &[Self::Number], input: usize, column: usize) -> f64;

    /// The product of the inputs of a point and one panel, `[tiles, inputs] · [inputs, columns]`, while the weights that
    /// follow come.
    ///
    /// # Safety
    /// `left` (start, distance of rows) holds the tiles as [`Multiply::inputs`] says; `products` (the same) has room for them
    /// as [`Multiply::products`] says.
    unsafe fn multiply(
        &self,
        left: (*const Self::Number, usize),
        tiles: usize,
        inputs: usize,
        panels: (&[Self::Number], &[Self::Number]),
        products: (*mut f32, usize),
    );
}

/// In f32.
impl Multiply for Micro {
    type Number = f32;

    const ROUNDING: f64 = 1e-6;

    fn columns(&self) -> usize {
        self.nr
    }

    fn together(&self) -> usize {
        self.mr
    }

    fn depth(&self, inputs: usize) -> usize {
        inputs
    }

    /// What they have of rows in common is near.
    fn turns(&self, panels: usize) -> usize {
        panels
    }

    fn inputs(&self, tiles: usize, inputs: usize) -> (Layout, usize) {
        (Layout::apart(tiles, inputs, FLOATS), 0)
    }

    fn products(&self, tiles: usize, panels: usize) -> Layout {
        Layout::apart(tiles, panels * self.nr, FLOATS)
    }

    fn pack(&self, _: Isa, weights: &[[f32; super::LANES]], columns: usize, panel: &mut [f32]) {
        for (line, weights) in panel.chunks_exact_mut(self.nr).zip(weights) {
            line[..columns].copy_from_slice(&weights[..columns]);
        }
    }

    fn weight(&self, panel: &[f32], input: usize, column: usize) -> f64 {
        f64::from(panel[input * self.nr + column])
    }

    unsafe fn multiply(
        &self,
        left: (*const f32, usize),
        tiles: usize,
        inputs: usize,
        (weights, next): (&[f32], &[f32]),
        products: (*mut f32, usize),
    ) {
        let groups = tiles.div_ceil(self.mr);
        let mut depth = 0;
        loop {
            let length = KC.min(inputs - depth);
            for group in 0..groups {
                let (first, last) = (tiles * group / groups, tiles * (group + 1) / groups);
                let (next, len) = (next.as_ptr().wrapping_add(depth * self.nr), length * self.nr);
                // SAFETY: the caller's promise; the panel is `inputs` deep.
                unsafe {
                    let a = (left.0.add(first * left.1 + depth), left.1, 1);
                    let (b, c) = (weights.as_ptr().add(depth * self.nr), products.0.add(first * products.1));
                    let sums = if depth == 0 { (std::ptr::null(), 0) } else { (c.cast_const(), products.1) };
                    let ahead = Ahead::share(next, len, (group, groups), length);
                    self.tile(
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

/// In bf16, with sums in f32, which lie as those of the matrix unit's blocks do: [`BLOCK`] apart.
pub(in crate::kernels::conv) struct OfBf16 {
    unit: Matrix,
    /// Where the steps of a row begin, in bytes.
    offsets: Box<[usize]>,
}

impl OfBf16 {
    /// Of so many inputs.
    pub fn new(unit: Matrix, inputs: usize) -> OfBf16 {
        let steps = inputs.div_ceil(matrix::step::<bf16>());
        OfBf16 { unit, offsets: (0..steps).map(|step| step * STEP_BYTES).collect() }
    }
}

impl Multiply for OfBf16 {
    type Number = bf16;

    /// A tap in the middle comes back out of four transforms, each rounded by up to 2⁻⁹ of sums of nine taps.
    const ROUNDING: f64 = 9.0 / 512.0;

    fn columns(&self) -> usize {
        BLOCK
    }

    fn together(&self) -> usize {
        if self.unit.takes_lines() { STRIP } else { TILE }
    }

    fn depth(&self, inputs: usize) -> usize {
        inputs.next_multiple_of(matrix::step::<bf16>())
    }

    /// Panels are few beside what lies between: all points of one are read from the second-level cache, and what becomes
    /// of them is transformed while it is there.
    fn turns(&self, _: usize) -> usize {
        1
    }

    fn inputs(&self, tiles: usize, inputs: usize) -> (Layout, usize) {
        let pitch = self.depth(inputs);
        let line = matrix::step::<bf16>();
        // An odd number of lines to the next point, as in `Layout::apart`; rows follow each other, for all of one is read at once.
        let layout = Layout { plane: ((tiles * pitch / line) | 1) * line, pitch };
        // Whole blocks of the last point.
        (layout, BLOCK * pitch)
    }

    fn products(&self, tiles: usize, _: usize) -> Layout {
        // Units may write a whole block from any strip's first row on. A line more, so that points begin in different sets of
        // the cache.
        Layout { plane: (tiles + BLOCK) * BLOCK + FLOATS, pitch: BLOCK }
    }

    fn pack(&self, isa: Isa, weights: &[[f32; super::LANES]], columns: usize, panel: &mut [bf16]) {
        let start = weights.as_flattened().as_ptr();
        let from = Panels { start, row: super::LANES, column: 1, n: columns, k: weights.len() };
        // SAFETY: those are its rows and columns, and the panel is as many steps deep.
        unsafe { matrix::pack_panel::<bf16, f32>(isa, &from, 0, panel) };
    }

    fn weight(&self, panel: &[bf16], input: usize, column: usize) -> f64 {
        let group = matrix::group::<bf16>();
        panel[input / group * group * BLOCK + column * group + input % group].to_f64()
    }

    unsafe fn multiply(
        &self,
        (left, pitch): (*const bf16, usize),
        tiles: usize,
        inputs: usize,
        (weights, next): (&[bf16], &[bf16]),
        (products, _): (*mut f32, usize),
    ) {
        debug_assert_eq!(inputs.div_ceil(matrix::step::<bf16>()), self.offsets.len());
        let steps = self.offsets.len();
        let unit = self.unit.enter();
        let pitch = pitch * size_of::<bf16>();
        // Strips as even as they can be, and blocks of whole ones.
        let strips = tiles.div_ceil(self.together());
        let blocks = strips.div_ceil(BLOCK / self.together());
        let first_of = |block: usize| tiles * (strips * block / blocks) / strips;
        // Each block asks for its share of the panel that follows.
        let lines = (PANEL_STEP_BYTES / LINE).div_ceil(blocks.max(1));
        for block in 0..blocks {
            let Range { start: first, end: last } = first_of(block)..first_of(block + 1);
            let start = next.as_ptr().cast::<u8>().wrapping_add(block * lines * steps * LINE);
            let ahead = matrix::Ahead { start, lines, apart: steps * LINE, each: LINE };
            // SAFETY: the caller's promise: rows of whole blocks can be read, and sums of them written.
            unsafe {
                let rows = left.cast::<u8>().add(first * pitch);
                let left = Left {
                    tiles: [rows, rows.wrapping_add(TILE * pitch)],
                    pitch,
                    offsets: &self.offsets,
                    depths: &[],
                    lines: Lines { first: 0, rows: BLOCK, apart: 0 },
                    streamed: Streamed::Neither,
                };
                unit.block(&Block {
                    left,
                    panel: weights.as_ptr().cast(),
                    columns: BLOCK,
                    rows: last - first,
                    begin: Begin::ZERO,
                    to: products.add(first * BLOCK).cast(),
                    ends: None,
                    pending: None,
                    leaves_lower: false,
                    ahead: &ahead,
                });
            }
        }
    }
}
