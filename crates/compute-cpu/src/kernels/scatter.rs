//! ScatterElements and ScatterNd.
//!
//! Updates are written one after the other, since several may meet in one place and the last, or the
//! order of a float's sum, counts.

use super::Machine;
use super::copy::{Source, Target, Unit, by_width, offset, split};
use super::number::{Number, Wide, by_number, check_number};
use super::parameters::{Integers, desc, is_wide, position};
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::ScatterReduction;
use halimede_tensor::{DType, Shape, element_count};
use smallvec::SmallVec;

/// What an index stands for.
#[derive(Clone, Copy)]
pub(super) enum Scattering {
    /// One element along an axis, at its own place along the others.
    Elements { axis: usize },
    /// With others, the beginning of a place.
    Tuples,
}

pub(super) struct ScatterKernel {
    pub scattering: Scattering,
    pub reduction: ScatterReduction,
    pub machine: Machine,
}

struct ScatterStep {
    scattering: Scattering,
    reduction: ScatterReduction,
    data: Shape,
    strides: SmallVec<[usize; 6]>,
    indices: Shape,
    wide: bool,
    dtype: DType,
    machine: Machine,
}

impl Kernel for ScatterKernel {
    fn name(&self) -> &str {
        match self.scattering {
            Scattering::Elements { .. } => "scatter elements",
            Scattering::Tuples => "scatter nd",
        }
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], _outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        let (data, indices, updates) = (desc(inputs, 0)?, desc(inputs, 1)?, desc(inputs, 2)?);
        if self.reduction != ScatterReduction::None {
            check_number(data.dtype)?;
        }
        let step = ScatterStep {
            scattering: self.scattering,
            reduction: self.reduction,
            strides: halimede_tensor::strides(&data.shape),
            data: data.shape.clone(),
            indices: indices.shape.clone(),
            wide: is_wide(indices)?,
            dtype: data.dtype,
            machine: self.machine.clone(),
        };
        let written = match self.scattering {
            Scattering::Elements { axis } => {
                let others = |(other, (index, size)): (usize, (&usize, &usize))| other == axis || index <= size;
                let rank = indices.shape.len() == data.shape.len() && axis < data.shape.len();
                // Without indices nothing is written.
                let reach = || indices.shape.iter().zip(&data.shape).enumerate().all(others);
                if rank && (indices.is_empty() || reach()) { Some(indices.len()) } else { None }
            }
            Scattering::Tuples => match indices.shape.split_last() {
                Some((&tuple, slices)) if tuple <= data.shape.len() => {
                    let counts: Shape = slices.iter().chain(&data.shape[tuple..]).copied().collect();
                    Some(element_count(&counts)?)
                }
                _ => None,
            },
        };
        if written != Some(updates.len()) || updates.dtype != data.dtype {
            let message = format!(
                "updates {}{:?} at indices {:?} do not fit {}{:?}",
                updates.dtype, updates.shape, indices.shape, data.dtype, data.shape
            );
            return Err(OpError::invalid(message));
        }
        Ok(Prepared { step: Box::new(step), workspace: 0 })
    }

    fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        SmallVec::from_slice(&[(0, 0)])
    }
}

impl ScatterStep {
    fn tuple(&self) -> usize {
        self.indices.last().copied().unwrap_or(0)
    }

    /// Elements that one tuple of indices stands for.
    fn run(&self) -> usize {
        match self.scattering {
            Scattering::Elements { .. } => 1,
            Scattering::Tuples => self.data[self.tuple()..].iter().product(),
        }
    }

    /// Calls `write(place in the data, place in the updates)` for every run.
    fn each(&self, indices: Integers<'_>, mut write: impl FnMut(usize, usize)) {
        let resolve = |index: i64, size: usize| (if index < 0 { index + size as i64 } else { index }) as usize;
        match self.scattering {
            Scattering::Elements { axis } => {
                let mut strides = self.strides.clone();
                strides[axis] = 0;
                for item in 0..indices.len() {
                    let index = resolve(indices.at(item), self.data[axis]);
                    write(offset(item, &self.indices, &strides) + index * self.strides[axis], item);
                }
            }
            Scattering::Tuples => {
                let (tuple, run) = (self.tuple(), self.run());
                let count: usize = self.indices[..self.indices.len() - 1].iter().product();
                for item in 0..count {
                    let part =
                        |axis: usize| resolve(indices.at(item * tuple + axis), self.data[axis]) * self.strides[axis];
                    write((0..tuple).map(part).sum(), item * run);
                }
            }
        }
    }
}

impl Step for ScatterStep {
    fn check(&self, arguments: &Arguments<'_>) -> Result<(), OpError> {
        let Some(indices) = arguments.inputs[1] else { return Ok(()) };
        let indices = Integers::new(indices, self.wide);
        match self.scattering {
            Scattering::Elements { axis } => {
                indices.iter().try_for_each(|index| position(index, self.data[axis]).map(drop))
            }
            Scattering::Tuples => {
                let sizes = self.data.iter().take(self.tuple()).cycle();
                indices.iter().zip(sizes).try_for_each(|(index, &size)| position(index, size).map(drop))
            }
        }
    }

    fn run(&self, arguments: &Arguments<'_>) {
        match self.reduction {
            ScatterReduction::None => by_width!(self.dtype.size(), replace(self, arguments)),
            _ => by_number!(self.dtype, reduce(self, arguments)),
        }
    }
}

/// Brings the data over, where it does not lie in the output already.
fn bring<T: Unit>(step: &ScatterStep, arguments: &Arguments<'_>) {
    let (Some(data), output) = (arguments.inputs[0], arguments.outputs[0]) else { return };
    if data.as_ptr() != output.as_ptr() {
        let (source, target) = (Source::<T>::new(data), Target::<T>::new(output));
        split(&step.machine, target.len(), output.len(), &|range| {
            target.copy(range.start, source, range.start, range.len());
        });
    }
}

fn replace<T: Unit>(step: &ScatterStep, arguments: &Arguments<'_>) {
    bring::<T>(step, arguments);
    let [_, Some(indices), Some(updates), ..] = arguments.inputs else { return };
    let (source, target, run) = (Source::<T>::new(*updates), Target::<T>::new(arguments.outputs[0]), step.run());
    step.each(Integers::new(*indices, step.wide), |to, from| target.copy(to, source, from, run));
}

fn reduce<T: Number>(step: &ScatterStep, arguments: &Arguments<'_>) {
    by_width!(step.dtype.size(), bring(step, arguments));
    let [_, Some(indices), Some(updates), ..] = arguments.inputs else { return };
    // SAFETY: an input, which nobody writes, and the output, which is this step's alone by now.
    let (updates, out) = unsafe { (updates.slice::<T>(), arguments.outputs[0].slice_mut::<T>()) };
    let (run, unsigned) = (step.run(), step.dtype == DType::U64);
    step.each(Integers::new(*indices, step.wide), |to, from| {
        for (element, update) in out[to..to + run].iter_mut().zip(&updates[from..from + run]) {
            let (a, b) = (element.wide(), update.wide());
            *element = T::narrow(match step.reduction {
                ScatterReduction::None => b,
                ScatterReduction::Add => a.plus(b),
                ScatterReduction::Mul => a.times(b),
                ScatterReduction::Max => a.larger(b, unsigned),
                ScatterReduction::Min => a.smaller(b, unsigned),
            });
        }
    });
}
