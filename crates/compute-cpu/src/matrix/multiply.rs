//! Products of any size as blocks.
//!
//! ```text
//! for each panel, or group of panels of few steps     its sums stay in the second-level cache
//!     for each pass of some steps                     a pass of a panel fills 36 KiB of the first, or 64 of both
//!         for each 32 rows or less, or many           stream from the second-level cache
//!             sums += rows · panel
//!             after the last pass: store, while the sums are in the first-level cache, or beside the next block's steps
//! ```
//!
//! Tiles read the rows of a block once for a group of panels, of which all together are a pass: beyond the first panel
//! they come from the first-level cache.
//!
//! So weights are read in the order in which they lie in memory: that is worth more than reading the rows of a pass
//! again while they are near.
//!
//! Where the result lies beyond that cache, the rows are the outer loop, if one pass is enough and the panels, being
//! less than the rows, stay in the cache: they stream from there just as well, and whole rows of the result are
//! written while their lines are near. Results that the cache holds gain nothing by that.
//!
//! So they are on tiles where a block of rows is read many times, as taps of a convolution see neighbours, and the first-level
//! cache holds what all steps see of it, but not beside a pass of a panel: then that is what stays there, the panels stream past
//! it from the second-level cache, and no sums are kept between passes.

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::{
    Ahead, BLOCK, Begin, Block, Ends, Factor, GROUP_BYTES, Later, Left, Lines, MatrixUnit, PANEL_STEP_BYTES, Pending,
    STEP_BYTES, Streamed, Sums, TILE, Tiles,
};
use crate::prefetch::LINE;
use std::ops::Range;

/// Steps of a pass on tiles, whose panels have to come from the first-level cache; so many are one pass on every unit.
pub(crate) const PASS_STEPS: usize = 18;
/// Steps of panels that share a pass on tiles: with the rows of a block they leave room in the first-level cache.
const DEPTH_OF_FEW: usize = 10;
/// Blocks of rows whose panels come from the second-level cache for all of them, on tiles.
pub(crate) const FEW_BLOCKS: usize = 2;
/// Bytes of the first-level cache of every machine that has tiles.
const FIRST_CACHE: usize = 48 << 10;
/// Steps of a pass on vectors, which read a line of a panel no more often than the second-level cache gives one.
const DEPTH_OF_VECTORS: usize = 32;
/// Bytes of panels up to which rows may be the outer loop.
const PANELS_BYTES: usize = 512 << 10;
/// Bytes of what a block of rows sees that stay in the first-level cache while panels stream past.
const STAYING_BYTES: usize = 40 << 10;
/// Bytes of panels that stream from the second-level cache past every block of rows.
const STREAMING_BYTES: usize = 768 << 10;
/// Bytes of rows that are multiplied by a panel together where rows are the outer loop: they stay in the first-level cache.
const TOGETHER_BYTES: usize = 24 << 10;
/// Blocks of rows that are multiplied together, at most.
const TOGETHER_MOST: usize = 32;
/// Cache lines of a step of a panel.
const STEP_LINES: usize = PANEL_STEP_BYTES / LINE;

/// The left operand: step `s` of row `r` is the 64 bytes at
/// `start + r / line·line_bytes + r % line·pitch + offsets[s]`.
///
/// Lines have [`TILE`] rows, all of whose bytes can be read, whole or not, unless the unit takes lines of any length
/// ([`MatrixUnit::takes_lines`]). With [`Rows::runs`] of `n` lines, `run_bytes` apart, row `r` of line `l` is at
/// `start + l / n·run_bytes + l % n·line_bytes + r·pitch`; units that take lines do not look at them.
///
/// There may be several groups of so many rows, each `apart` bytes behind the one before. Their blocks are numbered on:
/// a group begins with a multiple of [`Rows::block`].
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub start: *const u8,
    pub pitch: usize,
    pub line: usize,
    pub line_bytes: usize,
    /// Lines of [`TILE`] rows that lie `line_bytes` apart, as many as here, and bytes from such a run to the next.
    pub runs: Option<(usize, usize)>,
    pub offsets: &'a [usize],
    /// As [`Left::depths`], of every step.
    pub depths: &'a [u8],
    pub count: usize,
    pub groups: usize,
    pub apart: usize,
    /// Rows of a block, at most [`BLOCK`], and exactly so many where lines are tiles.
    pub block: usize,
    pub seen: Seen,
    /// Whether [`Seen::stays`].
    pub stays: bool,
    pub below: Option<Below>,
    /// A copy of the last line, as far apart as the others, where rows behind `count` cannot be read.
    pub last_line: Option<*const u8>,
}

impl<'a> Rows<'a> {
    /// One group of rows in packed tiles that have one step each.
    pub fn tiles(start: *const u8, offsets: &'a [usize], count: usize) -> Rows<'a> {
        let (pitch, line_bytes) = (STEP_BYTES, TILE * STEP_BYTES);
        Rows {
            start,
            pitch,
            line: TILE,
            line_bytes,
            runs: None,
            offsets,
            depths: &[],
            count,
            groups: 1,
            apart: 0,
            block: BLOCK,
            seen: Seen::default(),
            stays: false,
            below: None,
            last_line: None,
        }
    }

    /// What the row of blocks below a block reads and this one does not, for a product of so many steps.
    fn below(&self, pair: usize, each: usize, steps: usize) -> Ahead {
        let Some(Below { down, planes, apart }) = self.below else { return Ahead::NOTHING };
        let (group, own) = (pair / each, pair % each);
        let start = group * self.apart + self.line_start(own * self.block / TILE) + down;
        let start = self.start.wrapping_add(start);
        // Each line of each plane once, or every second one, which brings its neighbour.
        let often = BLOCK.div_ceil(steps);
        match planes {
            1 => Ahead { start, lines: often, apart: steps * LINE, each: LINE },
            _ => Ahead { start, lines: planes, apart, each: often * LINE },
        }
    }

    /// Where a line begins, from the first one on.
    fn line_start(&self, line: usize) -> usize {
        match self.runs {
            Some((lines, bytes)) => line / lines * bytes + line % lines * self.line_bytes,
            None => line * self.line_bytes,
        }
    }
}

/// Rows that neighbouring blocks share, where they lie in memory that is not near.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Below {
    /// Bytes from the first row of a block to the first that it does not read and the one below it does.
    pub down: usize,
    /// Pieces of each row, and bytes from one to the next.
    pub planes: usize,
    pub apart: usize,
}

/// Bytes that steps read of a block of rows, where they read most of them several times; 0 where they do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The steps of a pass.
    pub pass: usize,
    /// All steps.
    pub whole: usize,
}

impl Seen {
    /// Whether what the steps of a pass see is near from then on, beside a pass of a panel.
    fn fits_beside(self, steps: usize) -> bool {
        self.pass > 0 && self.pass + steps.min(PASS_STEPS) * PANEL_STEP_BYTES <= FIRST_CACHE
    }

    /// Whether it is best to leave all that a block sees in the first-level cache while panels of so many steps stream past.
    pub fn stays<F: Factor>(self, matrix: MatrixUnit<F>, steps: usize, panels: usize) -> bool {
        let are_near = panels > 1 && panels * steps * PANEL_STEP_BYTES <= STREAMING_BYTES;
        let is_held = self.whole > 0 && self.whole <= STAYING_BYTES && steps > DEPTH_OF_FEW;
        !matrix.takes_lines() && are_near && is_held && !self.fits_beside(steps)
    }
}

/// The order of the steps of a sum over `taps` pieces of so many steps each: some steps of every piece, then the next
/// ones of every piece. Given are a piece and a range of its steps.
///
/// Neighbouring taps of a convolution see nearly the same pixels. In this order a pass, which is what is multiplied
/// by all rows before anything else, has few channels of all taps, so that what one tap has read is near for the others.
pub(crate) fn order(steps: usize, taps: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let together = (PASS_STEPS / taps.max(1)).max(1);
    let parts = (0..steps).step_by(together).map(move |from| from..steps.min(from + together));
    parts.flat_map(move |part| (0..taps).map(move |tap| (tap, part.clone())))
}

/// [`Rows::depths`] of `taps` pieces of `k` numbers, each padded to whole steps, in [`order`].
pub(crate) fn depths<F: Factor>(k: usize, taps: usize) -> Vec<u8> {
    let groups = STEP_BYTES / GROUP_BYTES;
    let depth = |step: usize| (k - step * F::STEP).div_ceil(F::GROUP).min(groups) as u8;
    order(k.div_ceil(F::STEP), taps).flat_map(|(_, steps)| steps.map(depth)).collect()
}

/// How many rows of a block are best for so many rows in lines of this length: the blocks' strips, of at most [`STRIP`]
/// rows, then are even, and none crosses a line.
pub(crate) fn block_rows(line: usize) -> usize {
    if line <= BLOCK {
        return BLOCK / line.max(1) * line.max(1);
    }
    let strip = line.div_ceil(line.div_ceil(STRIP));
    BLOCK / strip * strip
}

/// Rows of a strip of a block, at most, where the unit takes lines.
pub(crate) const STRIP: usize = 8;

/// What the outer loop of a product goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outer {
    Panels,
    /// Rows, where one pass is enough and the panels stay near: for results beyond the second-level cache.
    RowsOfNearPanels,
    /// Rows in any case, each block of which meets all steps of a panel at once.
    Rows,
}

/// How many [`Sums`] a product of so many blocks of rows and `steps` steps needs as scratch; `at_once` as in [`keeps_sums`].
pub(crate) fn sums_needed<F: Factor>(matrix: MatrixUnit<F>, blocks: usize, steps: usize, at_once: bool) -> usize {
    FINISHED + if keeps_sums(matrix, steps, at_once) { blocks } else { 0 }
}

/// Whether sums over so many steps are kept between passes. They are not where a block of rows meets all steps of a panel
/// `at_once`: where rows stay, or are the outer loop in any case.
pub(crate) fn keeps_sums<F: Factor>(matrix: MatrixUnit<F>, steps: usize, at_once: bool) -> bool {
    !at_once && passes(matrix, steps) > 1
}

/// Panels whose blocks take turns, at most.
pub(crate) const TURNS: usize = 8;

/// Finished blocks that exist at a time.
const FINISHED: usize = 1;

/// Passes over so many steps.
fn passes<F: Factor>(matrix: MatrixUnit<F>, steps: usize) -> usize {
    // A few steps more still are one pass on vectors: keeping sums costs more than what leaves the cache.
    let (depth, most) = match matrix.takes_lines() {
        true => (DEPTH_OF_VECTORS, DEPTH_OF_VECTORS + DEPTH_OF_VECTORS / 8),
        false => (PASS_STEPS, PASS_STEPS),
    };
    if steps <= most { 1 } else { steps.div_ceil(depth) }
}

/// Panels of so many steps that share a pass.
fn together<F: Factor>(matrix: MatrixUnit<F>, steps: usize) -> usize {
    if matrix.takes_lines() { 1 } else { (DEPTH_OF_FEW / steps.max(1)).clamp(1, TURNS) }
}

/// What takes finished sums. A block is known by its first row and its panel, both numbered.
pub(crate) trait Sink<S> {
    /// Whether sums begin with something: asked once, for a product where they do not.
    fn begins(&self) -> bool;

    /// What the sums of a panel begin with, which is valid until those of [`TURNS`] more are asked for.
    fn begin(&mut self, panel: usize) -> Begin<S>;

    /// Stores the sums of the first so many rows of a block.
    fn store(&mut self, sums: &mut Sums<S>, block: (usize, usize), rows: usize);

    /// What ends so many rows from a block's first on, which are those of several blocks where it [`Sink::takes_turns`], if that can be
    /// done in registers: then they are not stored. It is valid until the next call.
    fn ends(&mut self, block: (usize, usize), rows: usize) -> Option<&Ends>;

    /// What ends the first so many rows of a block, if that can be done beside the steps of the next one: then they are not
    /// stored. It is valid until it is asked for again, or sums are stored.
    fn ends_later(&mut self, block: (usize, usize), rows: usize) -> Option<&Later>;

    /// Whether [`Sink::ends_in_turn`], and [`Sink::ends`] of the rows of several blocks, may give something for so many rows, which are
    /// all from the first on: they belong together.
    fn takes_turns(&self, _rows: usize) -> bool {
        false
    }

    /// The same of so many rows of a panel, from one on, which are the rows of several blocks: each is ended with how many of them
    /// come before it. It is known by a number below [`TURNS`], and valid until that is given again.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "as above"))]
    fn ends_in_turn(&mut self, _block: (usize, usize), _rows: usize, _number: usize) -> Option<Later> {
        None
    }

    /// All that it knew an end for has been ended.
    fn done(&mut self) {}
}

/// Multiplies `left` by the panels `p0..p1`, panel `p` and its columns being `panel(p)`, and gives each finished block to the
/// sink. Where that knows what ends a block later, tiles multiply the next one meanwhile.
///
/// # Safety
/// `left` can be read as [`Rows`] says, in whole tiles; each panel holds as many steps as `left`.
pub(crate) unsafe fn multiply<F: Factor>(
    matrix: MatrixUnit<F>,
    left: &Rows<'_>,
    (p0, p1): (usize, usize),
    panel: &dyn Fn(usize) -> (*const u8, usize),
    outer: Outer,
    sums: &mut [Sums<F::Sum>],
    sink: &mut dyn Sink<F::Sum>,
) {
    let steps = left.offsets.len();
    let each = left.count.div_ceil(left.block);
    let pairs = left.groups * each;
    // What a block of rows reads of a panel is read again by few others, or none: keeping sums would cost more.
    let is_read_again = pairs > if matrix.takes_lines() { 1 } else { FEW_BLOCKS };
    let passes = if is_read_again && outer != Outer::Rows { passes(matrix, steps) } else { 1 };
    let [finished, kept @ ..] = sums else { return debug_assert!(false, "too few sums") };
    let group = if passes == 1 { together(matrix, steps).min(p1 - p0).max(1) } else { 1 };
    let streamed = match left.stays {
        true => Streamed::Panel,
        false if group == 1 && !left.seen.fits_beside(steps) => Streamed::Left,
        false => Streamed::Neither,
    };
    let begins = sink.begins();
    // Rows that vectors end in registers need no sums, so that there may be any number of them.
    let may_be_many = passes == 1 && steps > 0 && left.groups == 1 && left.below.is_none();
    let are_many = may_be_many && matrix.ends_rows(BLOCK) && sink.takes_turns(left.count);
    let mut product = Running {
        pending: std::ptr::null(),
        are_in_tiles: false,
        tiles: matrix.enter(),
        left,
        each,
        streamed,
        panels: LastPanel::new(panel),
        finished,
        begins,
        begin: (usize::MAX, Begin::ZERO),
        sink,
    };
    let lines = if matrix.few_rows_come(left.count * left.groups) { 0 } else { STEP_LINES.div_ceil(pairs.max(1)) };
    // SAFETY: the caller's promise, for every block below.
    unsafe {
        if left.stays {
            for (pair, p) in (0..pairs).flat_map(|pair| (p0..p1).map(move |p| (pair, p))) {
                let ahead = match pair {
                    // The first rows meet panels that may lie in memory.
                    0 if p + 1 < p1 => {
                        Ahead { start: panel(p + 1).0, lines: STEP_LINES, apart: steps * LINE, each: LINE }
                    }
                    _ if p == p0 => left.below(pair, each, steps),
                    _ => Ahead::NOTHING,
                };
                product.block((pair, p), (0, steps), None, None, &ahead);
            }
            return product.end();
        }
        let are_near = p1 - p0 <= pairs && (p1 - p0) * steps * PANEL_STEP_BYTES <= PANELS_BYTES;
        if outer == Outer::Rows || outer == Outer::RowsOfNearPanels && passes == 1 && are_near {
            // The next rows, where they lie as in memory: packed ones are near. Of blocked rows each step lies elsewhere.
            let is_row_major = left.pitch > steps.saturating_sub(1) * STEP_BYTES;
            let in_order = left.line_bytes == left.line * left.pitch && left.groups == 1 && is_row_major;
            let bytes = if in_order { left.block * left.pitch } else { 0 };
            let visits = ((p1 - p0) * steps).max(1);
            let lines = (bytes / LINE).div_ceil(visits);
            let ahead_of_many = |pairs: Range<usize>, p: usize| {
                let start = left.start.wrapping_add(pairs.end * bytes + (p - p0) * steps * LINE);
                Ahead { start, lines: lines * pairs.len(), apart: visits * LINE, each: LINE }
            };
            let ahead_of = |pair: usize, p: usize| match left.below {
                Some(_) if p == p0 => left.below(pair, each, steps),
                _ => ahead_of_many(pair..pair + 1, p),
            };
            let held = TOGETHER_BYTES / (left.block * steps.max(1) * STEP_BYTES);
            let many = if are_many { held.clamp(1, TOGETHER_MOST) } else { 1 };
            let mut first = p0;
            while first < p1 {
                let turns = product.in_turns(first..p1.min(first + TURNS), ahead_of);
                // What takes no turns goes together with what is left.
                let until = if turns.pairs > 0 && turns.panels == TURNS { first + TURNS } else { p1 };
                for (pair, p) in (0..pairs).step_by(many).flat_map(|pair| (first..until).map(move |p| (pair, p))) {
                    let some = pair..pairs.min(pair + many);
                    if some.len() > 1 && product.many(some.clone(), p, &ahead_of_many(some.clone(), p)) {
                        continue;
                    }
                    for pair in some.filter(|&pair| !turns.include(pair, p - first)) {
                        product.block((pair, p), (0, steps), None, None, &ahead_of(pair, p));
                    }
                }
                first = until;
            }
            return product.end();
        }
        let mut coming_panels = LastPanel::new(panel);
        let many = if are_many { TOGETHER_MOST } else { 1 };
        for (first, pass) in (p0..p1).step_by(group).flat_map(|p| (0..passes).map(move |pass| (p, pass))) {
            let (from, to, last) = (steps * pass / passes, steps * (pass + 1) / passes, pass + 1 == passes);
            let until = p1.min(first + group);
            let turns = match passes {
                1 => product.in_turns(first..until, |pair, p| {
                    let start = panel((p + group).min(p1 - 1)).0.wrapping_add(pair * steps * LINE);
                    match left.below {
                        Some(_) if p == p0 => left.below(pair, each, steps),
                        _ => Ahead { start, lines, apart: pairs * steps * LINE, each: LINE },
                    }
                }),
                _ => Done::NONE,
            };
            for (pair, p) in (0..pairs).step_by(many).flat_map(|pair| (first..until).map(move |p| (pair, p))) {
                // What comes after this pass of this panel.
                let (next_panel, next_step) = if last { ((p + group).min(p1 - 1), 0) } else { (p, to) };
                let coming = coming_panels.get(next_panel).0.wrapping_add(next_step * PANEL_STEP_BYTES);
                let some = pair..pairs.min(pair + many);
                if some.len() > 1 {
                    let start = coming.wrapping_add(pair * steps * lines * LINE);
                    let ahead = Ahead { start, lines: lines * some.len(), apart: steps * LINE, each: LINE };
                    if product.many(some.clone(), p, &ahead) {
                        continue;
                    }
                }
                for pair in some.filter(|&pair| !turns.include(pair, p - first)) {
                    let so_far = (pass > 0).then(|| &raw const kept[pair]);
                    let to_sums = if last { None } else { Some(&raw mut kept[pair]) };
                    let start = coming.wrapping_add(pair * (to - from) * LINE);
                    let ahead = match left.below {
                        Some(_) if p == p0 && passes == 1 => left.below(pair, each, steps),
                        _ => Ahead { start, lines, apart: pairs * (to - from) * LINE, each: LINE },
                    };
                    product.block((pair, p), (from, to), so_far, to_sums, &ahead);
                }
            }
        }
        product.end();
    }
}

/// Whether there may be ends in registers for so many columns: all of them, a half or, of floats, three quarters.
fn is_ended(columns: usize) -> bool {
    [BLOCK, BLOCK / 2, BLOCK / 4 * 3].contains(&columns)
}

/// Where panels are, and how many columns they have: most blocks ask for the one that was asked for last.
struct LastPanel<'a> {
    of: &'a dyn Fn(usize) -> (*const u8, usize),
    last: (usize, (*const u8, usize)),
}

impl<'a> LastPanel<'a> {
    fn new(of: &'a dyn Fn(usize) -> (*const u8, usize)) -> LastPanel<'a> {
        LastPanel { of, last: (usize::MAX, (std::ptr::null(), 0)) }
    }

    #[inline]
    fn get(&mut self, panel: usize) -> (*const u8, usize) {
        if self.last.0 != panel {
            self.last = (panel, (self.of)(panel));
        }
        self.last.1
    }
}

/// What has been multiplied in turns: the first panels of some, for the first blocks of rows.
#[derive(Clone, Copy)]
struct Done {
    pairs: usize,
    panels: usize,
}

impl Done {
    const NONE: Done = Done { pairs: 0, panels: 0 };

    /// Whether a block is among it, by the number of its panel.
    fn include(self, pair: usize, panel: usize) -> bool {
        pair < self.pairs && panel < self.panels
    }
}

/// A product under way.
struct Running<'a, 'b, F: Factor> {
    tiles: Tiles<F>,
    left: &'a Rows<'a>,
    /// Blocks of a group of rows.
    each: usize,
    streamed: Streamed,
    panels: LastPanel<'a>,
    /// Sums that are stored next.
    finished: &'a mut Sums<F::Sum>,
    /// As [`Sink::begins`].
    begins: bool,
    /// The panel that was asked for last, and what its sums begin with.
    begin: (usize, Begin<F::Sum>),
    sink: &'b mut dyn Sink<F::Sum>,
    /// What ends the block before, whose sums are in `finished`, beside the next steps; null where it has been ended.
    pending: *const Later,
    /// Those of the lower tiles' rows are still there.
    are_in_tiles: bool,
}

impl<F: Factor> Running<'_, '_, F> {
    /// What is still to be ended.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn take_pending(&mut self) -> Option<Pending> {
        let ends = std::mem::replace(&mut self.pending, std::ptr::null());
        let sums = (&raw mut *self.finished).cast();
        let are_in_tiles = std::mem::replace(&mut self.are_in_tiles, false);
        (!ends.is_null()).then_some(Pending { ends, sums, are_in_tiles, row: 0 })
    }

    /// Nothing ever is.
    #[cfg(not(target_arch = "x86_64"))]
    fn take_pending(&mut self) -> Option<Pending> {
        None
    }

    /// Ends the product.
    ///
    /// # Safety
    /// As [`multiply`].
    unsafe fn end(mut self) {
        // SAFETY: the caller's promise.
        unsafe { self.end_pending() };
        self.sink.done();
    }

    /// Ends what is left.
    ///
    /// # Safety
    /// As [`multiply`].
    #[inline]
    unsafe fn end_pending(&mut self) {
        #[cfg(target_arch = "x86_64")]
        if let Some(pending) = self.take_pending() {
            // SAFETY: the caller's promise; what ends rows is valid until it is asked for again.
            unsafe {
                if pending.are_in_tiles {
                    self.tiles.write_lower(pending.sums.cast());
                }
                ((*pending.ends).beside.alone)(&pending);
            }
        }
    }

    /// Multiplies all steps of some panels in turns, block after block of rows, as far as the sink knows for all blocks of a panel at once
    /// how they are ended: nothing is asked for each of them, and little to be done around its steps. `ahead` says what is asked for with a
    /// block of several steps. Blocks are multiplied as [`Running::block`] does.
    ///
    /// # Safety
    /// As [`multiply`].
    #[cfg(target_arch = "x86_64")]
    unsafe fn in_turns(&mut self, panels: Range<usize>, ahead: impl Fn(usize, usize) -> Ahead) -> Done {
        let left = self.left;
        let steps = left.offsets.len();
        let whole = left.count / BLOCK - usize::from(left.last_line.is_some() && left.count.is_multiple_of(BLOCK));
        let is_plain = left.groups == 1 && left.block == BLOCK && left.line == TILE && steps > 0;
        let can_end = self.tiles.matrix.ends_beside(BLOCK) && self.sink.takes_turns(whole * BLOCK);
        if !is_plain || whole < 2 || !can_end {
            return Done::NONE;
        }
        /// A panel, and how its blocks begin and end.
        struct Turn<S> {
            panel: *const u8,
            columns: usize,
            begin: Begin<S>,
            later: Later,
        }
        // What is still to be ended is told no longer when more is asked.
        // SAFETY: the caller's promise.
        unsafe { self.end_pending() };
        let mut turns: [Option<Turn<F::Sum>>; TURNS] = [const { None }; TURNS];
        let mut count = 0;
        for (turn, p) in turns.iter_mut().zip(panels.clone()) {
            let Some(later) = self.sink.ends_in_turn((0, p), whole * BLOCK, count) else { break };
            let begin = if self.begins { self.sink.begin(p) } else { Begin::ZERO };
            let (panel, columns) = self.panels.get(p);
            *turn = Some(Turn { panel, columns, begin, later });
            count += 1;
        }
        // SAFETY: the caller's promise, for every block; the sums are ended before others take their place.
        unsafe {
            let sums = (&raw mut *self.finished).cast();
            if let (1, None, Some(first)) = (steps, left.runs, &turns[0]) {
                // Around a single step everything counts.
                let one =
                    |turn: &Turn<F::Sum>| amx::Turn { panel: turn.panel, begin: turn.begin.bits(), later: turn.later };
                let ones: [amx::Turn; TURNS] =
                    std::array::from_fn(|number| one(turns[number].as_ref().unwrap_or(first)));
                (first.later.beside.one_in_turns)(&amx::InTurns {
                    start: left.start.wrapping_add(left.offsets[0]),
                    lower: left.line_bytes,
                    next: 2 * left.line_bytes,
                    pitch: left.pitch,
                    blocks: whole,
                    turns: &ones[..count],
                    sums,
                });
                return Done { pairs: whole, panels: count };
            }
            let mut pending: Option<Pending> = None;
            for pair in 0..whole {
                let line = pair * (BLOCK / TILE);
                let tiles = [line, line + 1].map(|line| left.start.wrapping_add(left.line_start(line)));
                for (number, turn) in turns.iter().map_while(Option::as_ref).enumerate() {
                    let leaves_lower = steps == 1 && pending.is_some();
                    let ahead = ahead(pair, panels.start + number);
                    self.tiles.block(&Block {
                        left: Left {
                            tiles,
                            pitch: left.pitch,
                            offsets: left.offsets,
                            depths: left.depths,
                            lines: Lines { first: 0, rows: left.line, apart: left.line_bytes },
                            streamed: self.streamed,
                        },
                        panel: turn.panel,
                        columns: turn.columns,
                        rows: BLOCK,
                        begin: turn.begin,
                        to: &raw mut *self.finished,
                        ends: None,
                        pending: pending.as_ref(),
                        leaves_lower,
                        ahead: &ahead,
                    });
                    let (ends, row) = (&raw const turn.later, pair * BLOCK);
                    pending = Some(Pending { ends, sums, are_in_tiles: leaves_lower, row });
                }
            }
            if let Some(pending) = pending {
                if pending.are_in_tiles {
                    self.tiles.write_lower(self.finished);
                }
                ((*pending.ends).beside.alone)(&pending);
            }
        }
        Done { pairs: whole, panels: count }
    }

    /// No unit here ends rows beside steps.
    ///
    /// # Safety
    /// None is needed.
    #[cfg(not(target_arch = "x86_64"))]
    unsafe fn in_turns(&mut self, _: Range<usize>, _: impl Fn(usize, usize) -> Ahead) -> Done {
        Done::NONE
    }

    /// What the sums of a panel begin with.
    #[inline(always)]
    fn begin_of(&mut self, p: usize) -> Begin<F::Sum> {
        if !self.begins {
            return Begin::ZERO;
        }
        if self.begin.0 != p {
            self.begin = (p, self.sink.begin(p));
        }
        self.begin.1
    }

    /// Multiplies the rows of some blocks, of which there is one group, by all steps of a panel, where they are all ended in
    /// registers: without, nothing is done.
    ///
    /// # Safety
    /// As [`multiply`].
    unsafe fn many(&mut self, pairs: Range<usize>, p: usize, ahead: &Ahead) -> bool {
        let left = self.left;
        let first = pairs.start * left.block;
        let rows = (pairs.end * left.block).min(left.count) - first;
        let (panel, columns) = self.panels.get(p);
        if !is_ended(columns) {
            return false;
        }
        let begin = self.begin_of(p);
        let Some(ends) = self.sink.ends((first, p), rows) else { return false };
        let (line, place) = (first / left.line, first % left.line);
        let start = left.start.wrapping_add(place * left.pitch + left.line_start(line));
        let block = Block {
            left: Left {
                tiles: [start; 2],
                pitch: left.pitch,
                offsets: left.offsets,
                depths: left.depths,
                lines: Lines { first: place, rows: left.line, apart: left.line_bytes },
                streamed: self.streamed,
            },
            panel,
            columns,
            rows,
            begin,
            to: &raw mut *self.finished,
            ends: Some(ends),
            pending: None,
            leaves_lower: false,
            ahead,
        };
        // SAFETY: the caller's promise for the rows of these blocks; the panel has those steps.
        unsafe { self.tiles.block(&block) };
        true
    }

    /// Multiplies 32 rows by a range of steps of a panel, on top of `so_far`; the sums are kept in `to`, or stored.
    ///
    /// # Safety
    /// As [`multiply`]; the sums are valid.
    #[inline(always)]
    unsafe fn block(
        &mut self,
        (pair, p): (usize, usize),
        (from, until): (usize, usize),
        so_far: Option<*const Sums<F::Sum>>,
        to: Option<*mut Sums<F::Sum>>,
        ahead: &Ahead,
    ) {
        let Running { left, each, .. } = self;
        let (group, own) = if left.groups == 1 { (0, pair) } else { (pair / *each, pair % *each) };
        let first = own * left.block;
        let rows = left.block.min(left.count - first);
        let may_be_beside = from < until && self.tiles.matrix.ends_beside(rows);
        // Of a single step half of the sums are left in tiles.
        let is_one = may_be_beside && until - from == 1 && to.is_none();
        if !may_be_beside || self.are_in_tiles && !is_one {
            // SAFETY: the caller's promise.
            unsafe { self.end_pending() };
        }
        let beside = self.take_pending();
        let leaves_lower = is_one && beside.is_some();
        let begin = match so_far {
            Some(sums) => Begin::sums(sums),
            None => self.begin_of(p),
        };
        let Running { tiles, left, streamed, panels, finished, sink, pending, are_in_tiles, .. } = self;
        // A division by something known is none.
        let (line, place) = match left.line {
            TILE => (first / TILE, first % TILE),
            line => (first / line, first % line),
        };
        let (panel, columns) = panels.get(p);
        let in_registers = to.is_none() && from < until && is_ended(columns) && tiles.matrix.ends_rows(rows);
        let ends = if in_registers { sink.ends((pair * left.block, p), rows) } else { None };
        let are_ended = ends.is_some();
        let lines = Lines { first: place, rows: left.line, apart: left.line_bytes };
        // SAFETY: the caller's promise for the rows of this block; the panel has those steps.
        unsafe {
            let start = left.start.add(group * left.apart + place * left.pitch);
            let mut upper = start.add(left.line_start(line));
            let mut lower = if rows > TILE { start.wrapping_add(left.line_start(line + 1)) } else { upper };
            if let Some(last) = left.last_line
                && first + rows == left.count
            {
                *(if rows > TILE { &mut lower } else { &mut upper }) = last;
            }
            let depths = left.depths.get(from..until).unwrap_or_default();
            let block = Block {
                left: Left {
                    tiles: [upper, lower],
                    pitch: left.pitch,
                    offsets: &left.offsets[from..until],
                    depths,
                    lines,
                    streamed: *streamed,
                },
                panel: panel.add(from * PANEL_STEP_BYTES),
                columns,
                rows,
                begin,
                to: to.unwrap_or(&raw mut **finished),
                ends,
                pending: beside.as_ref(),
                leaves_lower,
                ahead,
            };
            tiles.block(&block);
        }
        if to.is_some() || are_ended {
            return;
        }
        if tiles.matrix.is_amx()
            && from < until
            && let Some(later) = sink.ends_later((pair * left.block, p), rows)
        {
            (*pending, *are_in_tiles) = (later, leaves_lower);
            return;
        }
        if leaves_lower {
            // SAFETY: it has just done so.
            unsafe { tiles.write_lower(*finished) };
        }
        sink.store(finished, (pair * left.block, p), rows);
    }
}
