//! Images that go through several steps in bands of rows.
//!
//! A result that the caches near a core do not hold is written to memory and read again from there, though the next step may
//! need but some rows of it for a row of its own. A run of such steps takes an image through all of them in bands instead:
//!
//! ```text
//! for each band of the last step's rows
//!     for each step of the run
//!         step(rows that the following ones need for the band and that are not there yet)
//! ```
//!
//! No row is computed twice. What a step of the next band sees of the rows at hand, as a window of three rows does of two, is
//! kept: it moves to the front, and the next rows are written behind it, where those before them were:
//!
//! ```text
//! a large value within the run     ░░ kept  ████ made     the same few rows for every band, always near
//! ```
//!
//! Values lie as they would as a whole, so that kernels differ in how many rows they see alone ([`Band`]); what is read and written
//! outside of the run, and what is small, lies at its own place.

use super::{Draft, Memory, Place};
use crate::layout::{Band, Grid, LINE_BYTES, Layout, Layouts, TILE, rows_apart};
use crate::plan::layouts::layouts_of;
use crate::plan::slices::NEAR_BYTES;
use crate::program::{Code, Program};
use crate::{Prepared, TensorDesc};
use halimede_graph::ops::{Axis, PoolKind};
use halimede_graph::{Op, ValueId};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use std::str::FromStr;

/// Bytes of a value that is read from afar by the step behind the one that makes it.
const FAR_BYTES: usize = 1 << 20;
/// Bytes of all that a band reads and writes, weights among it, for each thread: half of what the caches near a core hold.
const BAND_BYTES: usize = NEAR_BYTES / 2;
/// What it costs to run a step once more, in bytes that could have been moved meanwhile: about a microsecond.
const STEP_BYTES: usize = 24 << 10;
/// How many times as long a byte takes that moves to the front as one that is read from afar.
const MOVE: usize = 2;
/// Bytes of what the steps of a run make for each other, at most.
const ROOM_MOST: usize = 64 << 20;
/// Steps of a run, at most.
const STEPS_MOST: usize = 12;
/// Bands of an image, at most: of more, smaller ones it was slower than as a whole (`docs/benchmarks/gaps-m.md`).
const BANDS_MOST: usize = 8;
/// Pixels of a band for each thread, at least.
const PIXELS_LEAST: usize = 128;
/// Rows of an image, which are the axis behind that of the images.
const ROWS: usize = 1;

/// Which images go through several steps in bands of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BandsOf {
    /// Those whose values the caches near a core would not hold as a whole.
    #[default]
    WherePays,
    /// None. This and the following are for measurements and tests.
    None,
    /// All that can, in bands of so many rows.
    Rows(usize),
}

impl FromStr for BandsOf {
    type Err = UnknownBands;

    fn from_str(name: &str) -> Result<BandsOf, UnknownBands> {
        match (name, name.parse()) {
            ("where-pays", _) => Ok(BandsOf::WherePays),
            ("none", _) => Ok(BandsOf::None),
            (_, Ok(rows)) if rows > 0 => Ok(BandsOf::Rows(rows)),
            _ => Err(UnknownBands(name.to_owned())),
        }
    }
}

/// What is no choice of bands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no choice of bands: it is where-pays, none or a number of rows")]
pub struct UnknownBands(String);

/// Steps that take an image in bands.
pub(crate) struct Bands {
    pub steps: Range<usize>,
    pub turns: Vec<Turn>,
}

/// What is done next.
#[derive(Debug)]
pub(crate) enum Turn {
    /// A step runs, as a whole or on a slice of a batch.
    Step(usize),
    /// A step makes a band.
    Band(BandOfStep),
    /// Rows of a value move to its front.
    Keep(Kept),
}

impl Turn {
    /// The step that it belongs to.
    pub fn step(&self) -> usize {
        match self {
            Turn::Step(step) => *step,
            Turn::Band(band) => band.step,
            Turn::Keep(kept) => kept.step,
        }
    }
}

/// Of a step that makes some rows.
#[derive(Debug)]
pub(crate) struct BandOfStep {
    pub step: usize,
    /// Which of the forms in which it was prepared.
    pub form: usize,
    /// Of inputs, then of outputs: the bytes of these rows, where they are some of a value's.
    pub parts: SmallVec<[Option<Part>; 6]>,
    /// Whether the output is a value that the caches near a core do not hold.
    pub is_far: bool,
    /// Whether it is the first of its image.
    pub is_first: bool,
}

/// Some bytes of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub offset: usize,
    pub bytes: usize,
}

/// Pieces of a value, each of which moves to its front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept {
    pub value: usize,
    pub pieces: usize,
    /// From one to the next.
    pub apart: usize,
    /// Of each piece.
    pub from: usize,
    pub bytes: usize,
    /// The step that writes behind them next.
    pub step: usize,
}

/// A step that can make some rows of its output alone.
#[derive(Clone)]
struct Rows {
    /// Its windows along the rows of the first input.
    axis: Axis,
    /// Inputs that are images: which and what value. The first has windows, of the others rows are those of the output.
    images: SmallVec<[(usize, usize); 2]>,
    output: usize,
    weights: usize,
    /// Rows that the windows of two neighbouring rows share, where what they see is copied before it is multiplied.
    copied: usize,
    /// The input whose memory the output would take if it were made as a whole, and nobody read that input afterwards.
    replaced: Option<usize>,
    /// How many slices its batch is cut into, each an image.
    slices: usize,
}

impl Rows {
    /// What rows of the output see of an input.
    fn seen(&self, input: usize, rows: Range<usize>) -> Option<Range<usize>> {
        if input > 0 { Some(rows) } else { Some(self.axis.seen(rows)?.0) }
    }
}

/// A value as bands see it.
#[derive(Clone, Copy, Default)]
struct Image {
    height: usize,
    width: usize,
    /// From one row to the next.
    row_bytes: usize,
    bytes: usize,
    /// The last step that reads it; none where somebody reads it who knows no bands.
    last: Option<usize>,
}

/// Which rows each step of a run makes in each band.
struct Schedule {
    /// By step, then band: rows made up to its end.
    ends: Vec<Vec<usize>>,
    /// The same of the output, where only some of its rows have a place: the first that has one.
    firsts: Vec<Option<Vec<usize>>>,
    /// What is saved, in bytes read from afar.
    saved: isize,
}

impl Memory {
    /// Decides which steps take their images in bands, and prepares them for those. Layouts are known already, and nothing has taken
    /// the memory of something else.
    pub(super) fn band(&self, program: &Program, drafts: &mut [Draft]) -> Vec<Bands> {
        let choice = program.kernels().bands();
        if choice == BandsOf::None {
            return Vec::new();
        }
        // Nothing is prepared where nothing is far.
        let is_far = |draft: &Draft| {
            let outputs = program.graph().nodes[draft.node].outputs.iter();
            let bytes = |output: &ValueId| self.layouts[output.index()].bytes(&self.desc(*output)?);
            outputs.filter_map(bytes).any(|bytes| bytes >= FAR_BYTES)
        };
        if choice == BandsOf::WherePays && !drafts.iter().any(is_far) {
            return Vec::new();
        }
        let mut are_shared = vec![false; self.roots.len()];
        for value in (0..self.roots.len()).filter(|&value| self.roots[value] != value) {
            (are_shared[value], are_shared[self.root(value)]) = (true, true);
        }
        let threads = program.kernels().threads();
        let steps: Vec<Option<Rows>> = drafts.iter().map(|draft| self.rows(program, draft, &are_shared)).collect();
        let images = self.images(program, drafts, &steps);
        let mut all = Vec::new();
        let mut from = 0;
        while from < steps.len() {
            let Some(first) = &steps[from] else {
                from += 1;
                continue;
            };
            let same = steps[from..].iter().map_while(|step| step.as_ref().filter(|step| step.slices == first.slices));
            let run: Vec<Rows> = same.cloned().collect();
            for (part, schedule) in choose(&run, from, &images, (choice, threads)) {
                let steps = from + part.start..from + part.end;
                if let Some(bands) =
                    self.banded(program, &mut drafts[steps.clone()], &run[part], (steps, schedule), &images)
                {
                    all.push(bands);
                }
            }
            from += run.len();
        }
        all
    }

    /// How a step makes rows, where it can. Of values that have other names, by which their rows may be others, none are made or read.
    fn rows(&self, program: &Program, draft: &Draft, are_shared: &[bool]) -> Option<Rows> {
        draft.prepared.as_ref()?;
        let Code::Kernel(kernel) = &program.codes()[draft.node] else { return None };
        let node = &program.graph().nodes[draft.node];
        let (inputs, outputs) = self.described(program, draft)?;
        let ([output], [id]) = (outputs.as_slice(), node.outputs.as_slice()) else { return None };
        let is_image = |desc: &TensorDesc| desc.shape.len() == 4 && desc.shape[0] == 1 && !desc.is_empty();
        let x = inputs.first()?.as_ref().filter(|x| is_image(x) && is_image(output))?;
        let axis = match &node.op {
            Op::Conv(op) if op.channels_last && op.transposed.is_none() => {
                let size = *inputs.get(1)?.as_ref().filter(|weights| weights.shape.len() == 4)?.shape.get(2)?;
                op.axis(x.shape[ROWS], size, (0, 2)).ok()?
            }
            Op::Pool(op) if op.channels_last && !op.kernel.is_empty() && matches!(op.kind, PoolKind::Max { .. }) => {
                op.axis(x.shape[ROWS], 0, 2).ok()?
            }
            _ => return None,
        };
        let height = output.shape[ROWS];
        let mut images: SmallVec<[(usize, usize); 2]> = smallvec![];
        for (index, (value, desc)) in node.inputs.iter().zip(&inputs).enumerate() {
            let (Some(value), Some(desc)) = (value, desc) else { continue };
            let place = self.places[self.root(value.index())];
            let is_known = matches!(place, Place::Constant(_)) || draft.consumed.contains(&index);
            if index == 1 && !is_known {
                return None;
            }
            // From the last axis on, as operands are broadcast.
            let rows = desc.shape.len().checked_sub(3).map_or(1, |axis| desc.shape[axis]);
            match index == 0 || rows > 1 && !(is_known && index < 3) {
                false => {}
                true if is_image(desc) && !is_known && (index == 0 || rows == height) => {
                    images.push((index, value.index()));
                }
                true => return None,
            }
        }
        let lies_well = |value: usize| {
            let (layout, desc) = (self.layouts[value], self.descs[value].as_ref());
            let place = self.places[self.root(value)];
            let row = desc.map_or(1, |desc| desc.shape[2..].iter().product::<usize>() * desc.dtype.size());
            match place {
                _ if are_shared[value] => false,
                Place::Input(_) => true,
                Place::Nothing => layout != Layout::RowMajor || row.is_multiple_of(LINE_BYTES),
                _ => false,
            }
        };
        let operands = images.iter().map(|image| image.1).chain([id.index()]);
        if axis.windows != height || height < 2 || images.first()?.0 != 0 || !{ operands }.all(lies_well) {
            return None;
        }
        let slices = draft.sliced.as_ref().map_or(1, |(slices, _)| *slices);
        let is_copied = match &node.op {
            // An estimate: what wide groups see is copied, too.
            Op::Conv(op) => op.groups == 1 && self.layouts[images[0].1].border() == 0,
            _ => false,
        };
        let copied = if is_copied { axis.shared() } else { 0 };
        let is_replaced = |input: usize| kernel.in_place().contains(&(input, 0));
        let replaced = images.iter().find(|image| is_replaced(image.0)).map(|image| image.1);
        let (output, weights) = (id.index(), kernel.packed_bytes());
        let rows = Rows { axis, images, output, weights, copied, replaced, slices };
        // Whether its kernel can is known when it does.
        self.form(program, draft, &rows, 0..height).map(|_| rows)
    }

    /// A step that makes these rows.
    fn form(&self, program: &Program, draft: &Draft, rows: &Rows, made: Range<usize>) -> Option<Prepared> {
        let Code::Kernel(kernel) = &program.codes()[draft.node] else { return None };
        let (mut inputs, mut outputs) = self.described(program, draft)?;
        let (seen, above) = rows.axis.seen(made.clone())?;
        let height = outputs[0].shape[ROWS];
        let heights = [inputs[0].as_ref()?.shape[ROWS], height];
        for (index, _) in &rows.images {
            let len = if *index == 0 { seen.len() } else { made.len() };
            inputs[*index].as_mut()?.shape[ROWS] = len;
        }
        outputs[0].shape[ROWS] = made.len();
        let band = Band { heights, above, edges: [made.start == 0, made.end == height] };
        let layouts = layouts_of(&program.graph().nodes[draft.node], &self.layouts);
        kernel.prepare_laid_out(&inputs, &outputs, &Layouts { band: Some(band), ..layouts }).ok()
    }

    /// By value, those that steps in bands read or write.
    fn images(&self, program: &Program, drafts: &[Draft], steps: &[Option<Rows>]) -> Vec<Image> {
        let graph = program.graph();
        let mut images = vec![Image::default(); self.roots.len()];
        // Somebody reads them who knows no bands.
        let mut are_read = vec![false; self.roots.len()];
        graph.outputs.iter().for_each(|output| are_read[output.index()] = true);
        for (position, draft) in drafts.iter().enumerate() {
            let knows_bands = |value: usize| {
                let images = steps[position].iter().flat_map(|step| &step.images);
                images.filter(|image| image.1 == value).count()
            };
            let inputs = graph.nodes[draft.node].inputs.iter().flatten().map(|input| input.index());
            for value in inputs.collect::<SmallVec<[usize; 8]>>() {
                let node = &graph.nodes[draft.node];
                let uses = node.inputs.iter().flatten().filter(|input| input.index() == value).count();
                are_read[value] |= knows_bands(value) != uses;
                images[value].last = Some(position);
            }
        }
        for step in steps.iter().flatten() {
            for value in step.images.iter().map(|image| image.1).chain([step.output]) {
                let Some(desc) = &self.descs[value] else { continue };
                let (height, width) = (desc.shape[ROWS], desc.shape[2]);
                let row_bytes = match self.layouts[value] {
                    Layout::RowMajor => width * desc.shape[3] * desc.dtype.size(),
                    layout => {
                        (desc.shape[3] * desc.dtype.size()).div_ceil(LINE_BYTES)
                            * Grid::of(layout, [height, width]).line()
                            * LINE_BYTES
                    }
                };
                let image = &mut images[value];
                *image = Image { height, width, row_bytes, bytes: height * row_bytes, ..*image };
                if are_read[value] || self.places[value] != Place::Nothing {
                    image.last = None;
                }
            }
        }
        images
    }

    /// Prepares the steps of a run for the bands of a schedule; `None`, and nothing changed, where one cannot.
    fn banded(
        &self,
        program: &Program,
        drafts: &mut [Draft],
        rows: &[Rows],
        (steps, schedule): (Range<usize>, Schedule),
        images: &[Image],
    ) -> Option<Bands> {
        let count = schedule.ends.first()?.len();
        let mut forms: Vec<Vec<Prepared>> = drafts.iter().map(|_| Vec::new()).collect();
        let mut known: Vec<Vec<(usize, usize, usize, [bool; 2])>> = vec![Vec::new(); drafts.len()];
        let mut turns = Vec::new();
        // Where a value's rows begin in a band.
        let first = |value: usize, band: usize| {
            let step = rows.iter().position(|step| step.output == value);
            step.and_then(|step| schedule.firsts[step].as_ref()).map_or(0, |firsts| firsts[band])
        };
        for band in 0..count {
            for (step, firsts) in schedule.firsts.iter().enumerate() {
                let (Some(firsts), Some(before)) = (firsts, band.checked_sub(1)) else { continue };
                let (shift, kept) = (firsts[band] - firsts[before], firsts[band]..schedule.ends[step][before]);
                if shift > 0 && !kept.is_empty() {
                    turns.push(Turn::Keep(self.kept((steps.start + step, rows[step].output), shift, kept)?));
                }
            }
            for (step, own) in rows.iter().enumerate() {
                let start = band.checked_sub(1).map_or(0, |before| schedule.ends[step][before]);
                let made = start..schedule.ends[step][band];
                if made.is_empty() {
                    continue;
                }
                let (seen, above) = own.axis.seen(made.clone())?;
                let edges = [made.start == 0, made.end == images[own.output].height];
                let key = (made.len(), seen.len(), above, edges);
                let form = match known[step].iter().position(|form| *form == key) {
                    Some(form) => form,
                    None => {
                        forms[step].push(self.form(program, &drafts[step], own, made.clone())?);
                        known[step].push(key);
                        known[step].len() - 1
                    }
                };
                let node = &program.graph().nodes[drafts[step].node];
                let mut parts: SmallVec<[Option<Part>; 6]> = smallvec![None; node.inputs.len()];
                for &(input, value) in &own.images {
                    let rows = own.seen(input, made.clone())?;
                    parts[input] = Some(self.part(value, rows.start - first(value, band), rows.len())?);
                }
                parts.push(Some(self.part(own.output, made.start - first(own.output, band), made.len())?));
                let is_far = schedule.firsts[step].is_none() && images[own.output].bytes >= NEAR_BYTES;
                let (step, is_first) = (steps.start + step, made.start == 0);
                turns.push(Turn::Band(BandOfStep { step, form, parts, is_far, is_first }));
            }
        }
        for (draft, forms) in drafts.iter_mut().zip(forms) {
            draft.forms = forms;
        }
        Some(Bands { steps, turns })
    }

    /// The bytes of some rows of a value, from a place on.
    fn part(&self, value: usize, place: usize, rows: usize) -> Option<Part> {
        let desc = self.descs[value].as_ref()?;
        let (layout, columns) = (self.layouts[value], desc.shape[3] * desc.dtype.size());
        if layout == Layout::RowMajor {
            let row = desc.shape[2] * columns;
            return Some(Part { offset: place * row, bytes: rows * row });
        }
        let whole = Grid::of(layout, [desc.shape[ROWS], desc.shape[2]]);
        let last = Grid { size: [rows, desc.shape[2]], ..whole }.rows(1) + TILE - 1;
        let apart = rows_apart(whole.rows(1)) * LINE_BYTES;
        let bytes = (columns.div_ceil(LINE_BYTES) - 1) * apart + last * LINE_BYTES;
        Some(Part { offset: place * whole.line() * LINE_BYTES, bytes })
    }

    /// Rows of the value that a step writes, which move to its front, by so many.
    fn kept(&self, (step, value): (usize, usize), shift: usize, kept: Range<usize>) -> Option<Kept> {
        let desc = self.descs[value].as_ref()?;
        let (layout, columns) = (self.layouts[value], desc.shape[3] * desc.dtype.size());
        if layout == Layout::RowMajor {
            let row = desc.shape[2] * columns;
            return Some(Kept { value, pieces: 1, apart: 0, from: shift * row, bytes: kept.len() * row, step });
        }
        // With what is above the first, so that a piece begins where the value does, and what is right of the last or below it.
        let grid = Grid::of(layout, [desc.shape[ROWS], desc.shape[2]]);
        let pieces = columns.div_ceil(LINE_BYTES);
        let apart = rows_apart(grid.rows(1)) * LINE_BYTES;
        let below = if kept.end == grid.size[0] { grid.border } else { 0 };
        let places = (grid.border + kept.len() + below) * grid.line() + grid.border;
        let from = shift * grid.line() * LINE_BYTES;
        Some(Kept { value, pieces, apart, from, bytes: places * LINE_BYTES, step })
    }
}

/// The parts of a run of steps, of which the first has that position, that gain most in bands, in order.
fn choose(run: &[Rows], position: usize, images: &[Image], how: (BandsOf, usize)) -> Vec<(Range<usize>, Schedule)> {
    // What is saved at most up to each step, and the part that ends there.
    let mut best: Vec<(isize, Option<(usize, Schedule)>)> = vec![(0, None)];
    for end in 1..=run.len() {
        let mut most = (best[end - 1].0, None);
        for start in end.saturating_sub(STEPS_MOST)..end.saturating_sub(1) {
            let Some(schedule) = Schedule::new(&run[start..end], position + start, images, how) else { continue };
            let saved = best[start].0 + schedule.saved;
            if saved > most.0 {
                most = (saved, Some((start, schedule)));
            }
        }
        best.push(most);
    }
    let mut chosen = Vec::new();
    let mut end = run.len();
    while end > 0 {
        match best[end].1.take() {
            Some((start, schedule)) => {
                chosen.push((start..end, schedule));
                end = start;
            }
            None => end -= 1,
        }
    }
    chosen.reverse();
    chosen
}

impl Schedule {
    /// In as few bands as leave what they read and write near; `None` where that saves nothing.
    fn new(run: &[Rows], position: usize, images: &[Image], (choice, threads): (BandsOf, usize)) -> Option<Schedule> {
        let within = |value: usize| images[value].last.is_some_and(|last| last < position + run.len());
        if let BandsOf::Rows(rows) = choice {
            let (schedule, _) = Schedule::of_rows(run, images, (&within, 0), (rows.max(1), threads))?;
            // Steps together are what is asked for.
            return Some(Schedule { saved: run.len() as isize, ..schedule });
        }
        if !run.iter().any(|step| within(step.output) && images[step.output].bytes >= FAR_BYTES) {
            return None;
        }
        // Weights alone would leave nothing near; and what goes through bands has all its memory for all of the run.
        let weights: usize = run.iter().map(|step| step.weights).sum();
        let room: usize = run.iter().filter(|step| within(step.output)).map(|step| images[step.output].bytes).sum();
        if weights >= BAND_BYTES * threads || room > ROOM_MOST {
            return None;
        }
        // What would have been written where something was read, but now comes to memory of its own, and is read from there.
        let is_lost = |(step, own): &(usize, &Rows)| {
            own.replaced.is_some_and(|value| images[value].last == Some(position + step))
        };
        let lost: usize = run.iter().enumerate().filter(is_lost).map(|(_, own)| images[own.output].bytes).sum();
        let result = images[run.last()?.output];
        let mut rows = result.height;
        while rows > 1 {
            rows = rows.div_ceil(2);
            if rows * result.width < PIXELS_LEAST * threads || result.height.div_ceil(rows) > BANDS_MOST {
                return None;
            }
            let (schedule, bytes) = Schedule::of_rows(run, images, (&within, FAR_BYTES), (rows, threads))?;
            if bytes <= BAND_BYTES * threads {
                return Some(schedule).filter(|schedule| schedule.saved > 2 * lost as isize);
            }
        }
        None
    }

    /// In bands of so many rows of the last result, and the bytes that a band reads and writes. Values of so many bytes are far.
    fn of_rows(
        run: &[Rows],
        images: &[Image],
        (within, far): (&dyn Fn(usize) -> bool, usize),
        (rows, threads): (usize, usize),
    ) -> Option<(Schedule, usize)> {
        let height = images[run.last()?.output].height;
        let count = height.div_ceil(rows);
        let mut ends: Vec<Vec<usize>> = vec![Vec::new(); run.len()];
        let readers = |value: usize| {
            let images =
                run.iter().enumerate().flat_map(|(step, own)| own.images.iter().map(move |image| (step, image)));
            images.filter(move |(_, image)| image.1 == value).map(|(step, image)| (step, image.0))
        };
        for (step, own) in run.iter().enumerate().rev() {
            let height = images[own.output].height;
            for band in 0..count {
                let mut end = if step + 1 == run.len() { (rows * (band + 1)).min(height) } else { 0 };
                for (reader, input) in readers(own.output) {
                    end = end.max(run[reader].seen(input, 0..ends[reader][band])?.end);
                }
                if !within(own.output) && (band + 1 == count || readers(own.output).next().is_none()) {
                    end = end.max((height * (band + 1)).div_ceil(count));
                }
                let before = ends[step].last().copied().unwrap_or(0);
                // Every step has something to do in the first band.
                let end = end.max(before);
                if end == 0 || end > before && own.axis.seen(before..end).is_none() {
                    return None;
                }
                ends[step].push(end);
            }
        }
        let mut firsts: Vec<Option<Vec<usize>>> = Vec::with_capacity(run.len());
        let (mut saved, mut bytes) = (0usize, 0usize);
        let mut cost = STEP_BYTES * count * run.len() * if threads > 1 { 2 * threads } else { 1 };
        for (step, own) in run.iter().enumerate() {
            let image = images[own.output];
            let most = |firsts: &dyn Fn(usize) -> usize| {
                (0..count).map(|band| ends[step][band] - firsts(band)).max().unwrap_or(0) * image.row_bytes
            };
            // Weights come from afar for every band but the first.
            bytes += own.weights;
            cost += own.weights * (count - 1) / MOVE;
            // What two bands see is copied twice, a line for each pixel at least.
            let data = images[own.images[0].1];
            cost += own.copied * data.row_bytes.max(data.width * LINE_BYTES) * (count - 1) * MOVE;
            if !within(own.output) || image.bytes < far {
                let start = |band: usize| band.checked_sub(1).map_or(0, |before| ends[step][before]);
                bytes += if within(own.output) { image.bytes } else { most(&start) };
                firsts.push(None);
                continue;
            }
            let mut from = vec![0];
            for band in 1..count {
                let mut first = ends[step][band - 1];
                for (reader, input) in readers(own.output) {
                    let (start, height) = (ends[reader][band - 1], images[run[reader].output].height);
                    if start < height {
                        first = first.min(run[reader].seen(input, start..start + 1).map_or(0, |seen| seen.start));
                    }
                }
                let first = first.max(from[band - 1]);
                if first > from[band - 1] {
                    cost += (ends[step][band - 1] - first) * image.row_bytes * MOVE;
                }
                from.push(first);
            }
            bytes += most(&|band| from[band]);
            saved += image.bytes * (1 + readers(own.output).count());
            firsts.push(Some(from));
        }
        // What is read several times, and from outside.
        let mut outside: SmallVec<[usize; 8]> = smallvec![];
        for (_, value) in run.iter().flat_map(|step| &step.images) {
            let is_made = run.iter().any(|step| step.output == *value);
            if !is_made && !outside.contains(value) {
                outside.push(*value);
            }
        }
        for value in outside {
            let (image, reads) = (images[value], readers(value).count());
            bytes += image.bytes.div_ceil(count);
            saved += if image.bytes >= FAR_BYTES { image.bytes * (reads - 1) } else { 0 };
        }
        let saved = saved as isize - cost as isize;
        Some((Schedule { ends, firsts, saved }, bytes))
    }
}
