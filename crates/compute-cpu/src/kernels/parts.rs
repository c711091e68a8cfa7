//! Slice, Pad, Tile and Expand: for each axis a list says where each of its places comes from.
//!
//! The lists are written to the workspace at the start of a run, since starts, pads and repeats are
//! inputs. Trailing axes that come over whole are one run; the innermost other axis is copied in one
//! piece where its places follow each other.

use super::Machine;
use super::copy::{Source, Target, Unit, by_width, split};
use super::parameters::{Integers, desc, is_wide, position};
use crate::prefetch::LINE;
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::PadMode;
use halimede_tensor::{Shape, View};
use smallvec::SmallVec;

/// What is copied from where.
#[derive(Clone, Copy)]
pub(super) enum Parts {
    Slice,
    Pad(PadMode),
    Tile,
    Expand,
    /// From places known when the step was prepared ([`by_places`]).
    Listed,
}

/// A step that copies elements of `width` bytes from an input of shape `from`, and the workspace it
/// wants: `places` says for each axis of `shape` in turn where its elements come from.
pub(super) fn by_places(from: Shape, shape: Shape, places: Vec<i64>, width: usize, machine: Machine) -> Prepared {
    let workspace = places.len() * size_of::<i64>();
    let (strides, wide) = (halimede_tensor::strides(&from), SmallVec::new());
    let step = PartsStep { parts: Parts::Listed, listed: places, from, strides, shape, wide, width, machine };
    Prepared { step: Box::new(step), workspace }
}

pub(super) struct PartsKernel {
    pub parts: Parts,
    pub machine: Machine,
}

/// A place of the border.
const BORDER: i64 = -1;

struct PartsStep {
    parts: Parts,
    listed: Vec<i64>,
    /// The input's shape with ones in front to the output's rank, and its strides.
    from: Shape,
    strides: SmallVec<[usize; 6]>,
    shape: Shape,
    /// Per input whether it is i64, for integer inputs.
    wide: SmallVec<[bool; 5]>,
    width: usize,
    machine: Machine,
}

impl Kernel for PartsKernel {
    fn name(&self) -> &str {
        match self.parts {
            Parts::Slice => "slice",
            Parts::Pad(_) => "pad",
            Parts::Tile => "tile",
            Parts::Expand => "expand",
            Parts::Listed => "copy",
        }
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        let (input, output) = (desc(inputs, 0)?, &outputs[0]);
        let fill = |index: usize| index == 2 && matches!(self.parts, Parts::Pad(_));
        let wide = |(index, input): (usize, &Option<TensorDesc>)| match input {
            Some(input) if index > 0 && !fill(index) => is_wide(input),
            _ => Ok(false),
        };
        let missing = output.shape.len().checked_sub(input.shape.len());
        let missing = missing.ok_or_else(|| OpError::invalid("the output has fewer axes than the input"))?;
        let from: Shape = std::iter::repeat_n(1, missing).chain(input.shape.iter().copied()).collect();
        let step = PartsStep {
            parts: self.parts,
            listed: Vec::new(),
            strides: halimede_tensor::strides(&from),
            from,
            shape: output.shape.clone(),
            wide: inputs.iter().enumerate().map(wide).collect::<Result<_, _>>()?,
            width: output.dtype.size(),
            machine: self.machine.clone(),
        };
        // Where there is nothing to copy, axes may be longer than there is memory for.
        let places = if output.is_empty() { 0 } else { output.shape.iter().sum::<usize>() };
        let workspace = places * size_of::<i64>();
        Ok(Prepared { step: Box::new(step), workspace })
    }
}

impl Step for PartsStep {
    fn check(&self, arguments: &Arguments<'_>) -> Result<(), OpError> {
        // Everything else was known when the output's shape was.
        let axes = match self.parts {
            Parts::Slice | Parts::Pad(_) => self.integers(arguments, 3),
            _ => None,
        };
        axes.into_iter().flat_map(Integers::iter).try_for_each(|axis| position(axis, self.from.len()).map(drop))
    }

    fn run(&self, arguments: &Arguments<'_>) {
        let Some(input) = arguments.inputs[0] else { return };
        if arguments.outputs[0].is_empty() {
            return;
        }
        // SAFETY: the workspace is this step's alone.
        let places = unsafe { arguments.workspace.slice_mut::<i64>() };
        self.write_places(arguments, places);
        let fill = match self.parts {
            Parts::Pad(PadMode::Constant) => arguments.inputs.get(2).copied().flatten(),
            _ => None,
        };
        by_width!(self.width, copy(self, places, input, fill, arguments.outputs[0]));
    }
}

impl PartsStep {
    fn integers<'a>(&self, arguments: &Arguments<'a>, index: usize) -> Option<Integers<'a>> {
        let view = arguments.inputs.get(index).copied().flatten()?;
        Some(Integers::new(view, self.wide[index]))
    }

    /// Per axis of the output the place in the input that each of its places comes from.
    fn write_places(&self, arguments: &Arguments<'_>, places: &mut [i64]) {
        if matches!(self.parts, Parts::Listed) {
            return places.copy_from_slice(&self.listed);
        }
        let mut start = 0;
        for (axis, &size) in self.shape.iter().enumerate() {
            let (before, step) = match self.parts {
                Parts::Slice => self.slice_of(arguments, axis),
                Parts::Pad(_) => (-self.pad_before(arguments, axis), 1),
                Parts::Tile | Parts::Expand | Parts::Listed => (0, 1),
            };
            let from = self.from[axis] as i64;
            for (index, place) in places[start..start + size].iter_mut().enumerate() {
                let at = before + index as i64 * step;
                *place = match self.parts {
                    _ if (0..from).contains(&at) => at,
                    Parts::Tile | Parts::Expand | Parts::Listed => at % from,
                    Parts::Slice => at.clamp(0, from - 1),
                    Parts::Pad(PadMode::Constant) => BORDER,
                    Parts::Pad(PadMode::Edge) => at.clamp(0, from - 1),
                    Parts::Pad(PadMode::Wrap) => at.rem_euclid(from),
                    Parts::Pad(PadMode::Reflect) if from == 1 => 0,
                    Parts::Pad(PadMode::Reflect) => {
                        let back = at.rem_euclid(2 * (from - 1));
                        back.min(2 * (from - 1) - back)
                    }
                };
            }
            start += size;
        }
    }

    /// First place and step along an axis.
    fn slice_of(&self, arguments: &Arguments<'_>, axis: usize) -> (i64, i64) {
        let Some(index) = self.entry(arguments, axis) else { return (0, 1) };
        let step = self.integers(arguments, 4).map_or(1, |steps| steps.at(index));
        let size = self.from[axis] as i64;
        let start = self.integers(arguments, 1).map_or(0, |starts| starts.at(index));
        let start = if start < 0 { start.saturating_add(size) } else { start };
        (if step > 0 { start.clamp(0, size) } else { start.clamp(-1, size - 1) }, step)
    }

    fn pad_before(&self, arguments: &Arguments<'_>, axis: usize) -> i64 {
        let pads = self.integers(arguments, 1);
        self.entry(arguments, axis).zip(pads).map_or(0, |(index, pads)| pads.at(index))
    }

    /// Where the lists of numbers speak of an axis.
    fn entry(&self, arguments: &Arguments<'_>, axis: usize) -> Option<usize> {
        match self.integers(arguments, 3) {
            Some(axes) => {
                let rank = self.from.len() as i64;
                axes.iter().position(|entry| (if entry < 0 { entry + rank } else { entry }) == axis as i64)
            }
            None => {
                let numbers = self.integers(arguments, 1)?.len();
                let count = if matches!(self.parts, Parts::Pad(_)) { numbers / 2 } else { numbers };
                Some(axis).filter(|&axis| axis < count)
            }
        }
    }
}

fn copy<T: Unit>(step: &PartsStep, places: &[i64], input: View<'_>, fill: Option<View<'_>>, output: View<'_>) {
    let (source, target) = (Source::<T>::new(input), Target::<T>::new(output));
    // SAFETY: every unit is plain bits, for which zeros are a value.
    let zero: T = unsafe { std::mem::zeroed() };
    let fill = fill.filter(|fill| !fill.is_empty()).map_or(zero, |fill| Source::<T>::new(fill).at(0));
    // Trailing axes that come over whole.
    let mut rank = step.shape.len();
    let mut end = places.len();
    let mut run = 1;
    while rank > 0 {
        let size = step.shape[rank - 1];
        let whole = size == step.from[rank - 1] && places[end - size..end].iter().copied().eq(0..size as i64);
        if !whole {
            break;
        }
        (rank, end, run) = (rank - 1, end - size, run * size);
    }
    let Some(last) = rank.checked_sub(1) else {
        let count = target.len();
        return split(&step.machine, count, output.len(), &|range| {
            target.copy(range.start, source, range.start, range.len());
        });
    };
    let size = step.shape[last];
    let row_places = &places[end - size..end];
    let follows = row_places[0] != BORDER && row_places.windows(2).all(|pair| pair[1] == pair[0] + 1);
    // Rows of a plane follow each other in the output, and come from one list.
    let (outer, outer_end, plane_places, row_stride) = match last.checked_sub(1) {
        Some(axis) => {
            let outer_end = end - size - step.shape[axis];
            (axis, outer_end, &places[outer_end..end - size], step.strides[axis])
        }
        None => (0, 0, &[0][..], 0),
    };
    let plane = plane_places.len();
    let rows: usize = step.shape[..last].iter().product();
    // A line is read for each row.
    let moved = output.len().max(rows * LINE);
    split(&step.machine, rows, moved, &|range| {
        let mut row = range.start;
        while row < range.end {
            let at = row % plane;
            let count = (plane - at).min(range.end - row);
            // Where the plane begins in the input; nowhere in the border.
            let (mut flat, mut ends, mut start) = (row / plane, outer_end, Some(0));
            for axis in (0..outer).rev() {
                ends -= step.shape[axis];
                let place = places[ends + flat % step.shape[axis]];
                start = start.filter(|_| place != BORDER).map(|start| start + place as usize * step.strides[axis]);
                flat /= step.shape[axis];
            }
            for (&place, row) in plane_places[at..at + count].iter().zip(row..) {
                let to = row * size * run;
                let from = start.filter(|_| place != BORDER).map(|start| start + place as usize * row_stride);
                match from {
                    None => target.fill(to, size * run, fill),
                    Some(from) if follows => {
                        target.copy_few(to, source, from + row_places[0] as usize * run, size * run);
                    }
                    Some(from) => {
                        for (index, &place) in row_places.iter().enumerate() {
                            let to = to + index * run;
                            match usize::try_from(place) {
                                Err(_) => target.fill(to, run, fill),
                                Ok(place) => target.copy_few(to, source, from + place * run, run),
                            }
                        }
                    }
                }
            }
            row += count;
        }
    });
}
