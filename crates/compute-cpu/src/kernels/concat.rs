//! Joining along an axis: blocks copied one after the other.

use super::Machine;
use super::copy::{Source, Target, Unit, by_width, split};
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::Concat;
use smallvec::SmallVec;

pub(super) struct ConcatKernel {
    pub op: Concat,
    pub machine: Machine,
}

struct ConcatStep {
    /// Blocks along the axes before the joined one.
    outer: usize,
    /// Elements per block of each input, and of the output.
    blocks: SmallVec<[usize; 8]>,
    block: usize,
    width: usize,
    machine: Machine,
}

impl Kernel for ConcatKernel {
    fn name(&self) -> &str {
        "concat"
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        let after = |desc: &TensorDesc| desc.shape[self.op.axis..].iter().product::<usize>();
        let step = ConcatStep {
            outer: outputs[0].shape[..self.op.axis].iter().product(),
            blocks: inputs.iter().flatten().map(after).collect(),
            block: after(&outputs[0]),
            width: outputs[0].dtype.size(),
            machine: self.machine.clone(),
        };
        Ok(Prepared { step: Box::new(step), workspace: 0 })
    }
}

impl Step for ConcatStep {
    fn run(&self, arguments: &Arguments<'_>) {
        by_width!(self.width, run(self, arguments));
    }
}

fn run<T: Unit>(step: &ConcatStep, arguments: &Arguments<'_>) {
    let target = Target::<T>::new(arguments.outputs[0]);
    // Few blocks are split by their elements, many by themselves.
    let mut start = 0;
    for (view, &block) in arguments.inputs.iter().flatten().zip(&step.blocks) {
        let source = Source::<T>::new(*view);
        let bytes = step.outer * block * size_of::<T>();
        if step.outer == 1 {
            split(&step.machine, block, bytes, &|range| {
                target.copy(start + range.start, source, range.start, range.len())
            });
        } else {
            split(&step.machine, step.outer, bytes, &|range| {
                range.for_each(|outer| target.copy(outer * step.block + start, source, outer * block, block));
            });
        }
        start += block;
    }
}
