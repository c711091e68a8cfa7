//! Gather, GatherElements and GatherNd.

use super::Machine;
use super::copy::{Source, Target, Unit, by_width, offset, split};
use super::parameters::{Integers, desc, is_wide, position};
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_tensor::Shape;
use smallvec::SmallVec;

/// What an index stands for.
#[derive(Clone, Copy)]
pub(super) enum Gathering {
    /// A whole slice along an axis.
    Slices { axis: usize },
    /// One element along an axis, at its own place along the others.
    Elements { axis: usize },
    /// With others, the beginning of a place after shared axes.
    Tuples { batch_dims: usize },
}

pub(super) struct GatherKernel {
    pub gathering: Gathering,
    pub machine: Machine,
}

struct GatherStep {
    gathering: Gathering,
    data: Shape,
    strides: SmallVec<[usize; 6]>,
    indices: Shape,
    wide: bool,
    width: usize,
    machine: Machine,
}

impl Kernel for GatherKernel {
    fn name(&self) -> &str {
        match self.gathering {
            Gathering::Slices { .. } => "gather",
            Gathering::Elements { .. } => "gather elements",
            Gathering::Tuples { .. } => "gather nd",
        }
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        let (data, indices) = (desc(inputs, 0)?, desc(inputs, 1)?);
        let step = GatherStep {
            gathering: self.gathering,
            strides: halimede_tensor::strides(&data.shape),
            data: data.shape.clone(),
            indices: indices.shape.clone(),
            wide: is_wide(indices)?,
            width: outputs[0].dtype.size(),
            machine: self.machine.clone(),
        };
        Ok(Prepared { step: Box::new(step), workspace: 0 })
    }
}

impl Step for GatherStep {
    fn check(&self, arguments: &Arguments<'_>) -> Result<(), OpError> {
        let Some(indices) = arguments.inputs[1] else { return Ok(()) };
        let indices = Integers::new(indices, self.wide);
        match self.gathering {
            Gathering::Slices { axis } | Gathering::Elements { axis } => {
                indices.iter().try_for_each(|index| position(index, self.data[axis]).map(drop))
            }
            Gathering::Tuples { batch_dims } => {
                let sizes = self.data[batch_dims..].iter().take(self.tuple()).cycle();
                indices.iter().zip(sizes).try_for_each(|(index, &size)| position(index, size).map(drop))
            }
        }
    }

    fn run(&self, arguments: &Arguments<'_>) {
        if !arguments.outputs[0].is_empty() {
            by_width!(self.width, run(self, arguments));
        }
    }
}

impl GatherStep {
    fn tuple(&self) -> usize {
        self.indices.last().copied().unwrap_or(0)
    }
}

/// An index that was checked.
#[inline(always)]
fn resolve(index: i64, size: usize) -> usize {
    (if index < 0 { index + size as i64 } else { index }) as usize
}

fn run<T: Unit>(step: &GatherStep, arguments: &Arguments<'_>) {
    let [Some(data), Some(indices), ..] = arguments.inputs else { return };
    let (source, target) = (Source::<T>::new(*data), Target::<T>::new(arguments.outputs[0]));
    let indices = Integers::new(*indices, step.wide);
    let bytes = arguments.outputs[0].len();
    match step.gathering {
        Gathering::Slices { axis } => {
            let (size, run) = (step.data[axis], step.strides[axis]);
            let count = indices.len();
            split(&step.machine, target.len() / run, bytes, &|range| {
                for item in range {
                    let (outer, index) = (item / count, resolve(indices.at(item % count), size));
                    if run == 1 {
                        target.set(item, source.at(outer * size + index));
                    } else {
                        target.copy(item * run, source, (outer * size + index) * run, run);
                    }
                }
            });
        }
        Gathering::Elements { axis } => {
            // The place along the axis comes from the index, the others stay.
            let mut strides = step.strides.clone();
            strides[axis] = 0;
            split(&step.machine, target.len(), bytes, &|range| {
                for item in range {
                    let from = offset(item, &step.indices, &strides);
                    let index = resolve(indices.at(item), step.data[axis]);
                    target.set(item, source.at(from + index * step.strides[axis]));
                }
            });
        }
        Gathering::Tuples { batch_dims } => {
            let tuple = step.tuple();
            let run: usize = step.data[batch_dims + tuple..].iter().product();
            let batch: usize = step.data[..batch_dims].iter().product();
            let per_batch = target.len() / run / batch;
            let batch_stride: usize = step.data[batch_dims..].iter().product();
            split(&step.machine, target.len() / run, bytes, &|range| {
                for item in range {
                    let mut from = item / per_batch * batch_stride;
                    for part in 0..tuple {
                        let axis = batch_dims + part;
                        from += resolve(indices.at(item * tuple + part), step.data[axis]) * step.strides[axis];
                    }
                    target.copy(item * run, source, from, run);
                }
            });
        }
    }
}
