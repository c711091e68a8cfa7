//! Joining along an axis: blocks copied one after the other.
//!
//! Inputs that lie one behind the other in the result as they are need no copy: the plan has them made there. So it
//! is where nothing stands before the joined axis, and in blocked values, whose lines of channels follow each other:
//!
//! ```text
//! row-major   row 0 aaaa bb   row 1 aaaa bb   ...     two blocks for each row
//! blocked     row 0 aaaa row 1 aaaa ...   row 0 bb.. row 1 bb.. ...     two blocks in all
//! ```

use super::Machine;
use super::copy::{Source, Target, Unit, by_width, split};
use super::lines::in_lines;
use halimede_compute::layout::{Layout, Layouts, Stance, Stances};
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::Concat;
use smallvec::{SmallVec, smallvec};

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

impl ConcatKernel {
    /// How much is joined; `None` where the layouts are none that it knows.
    fn step(&self, inputs: &[Option<TensorDesc>], output: &TensorDesc, layouts: &Layouts) -> Option<ConcatStep> {
        let (axis, width) = (self.op.axis, output.dtype.size());
        let layout = layouts.output;
        let is_blocked = layout != Layout::RowMajor;
        let block = |desc: &TensorDesc| match is_blocked {
            true => layout.bytes(desc).map(|bytes| bytes / width),
            false => Some(desc.shape[axis..].iter().product()),
        };
        let known = (0..inputs.len()).all(|input| layouts.input(input) == layout);
        let outer = if is_blocked { 1 } else { output.shape[..axis].iter().product() };
        let blocks = inputs.iter().flatten().map(block).collect::<Option<_>>()?;
        known.then_some(ConcatStep { outer, blocks, block: block(output)?, width, machine: self.machine.clone() })
    }
}

impl Kernel for ConcatKernel {
    fn name(&self) -> &str {
        "concat"
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        self.prepare_laid_out(inputs, outputs, &Layouts::default())
    }

    fn stances(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Option<Stances> {
        let output = outputs.first()?;
        let has_lines = |desc: &TensorDesc| in_lines(desc).is_some_and(|lines| !lines.is_empty());
        let are_whole = self.op.axis + 1 == output.shape.len() && inputs.iter().flatten().all(has_lines);
        (are_whole && self.machine.blocks_values()).then(|| Stances {
            inputs: smallvec![Stance::AsOutput; inputs.len()],
            // What is made where it belongs need not be copied.
            output: Stance::Faster,
            takes_borders: true,
        })
    }

    fn prepare_laid_out(
        &self,
        inputs: &[Option<TensorDesc>],
        outputs: &[TensorDesc],
        layouts: &Layouts,
    ) -> Result<Prepared, OpError> {
        let step = self.step(inputs, &outputs[0], layouts);
        let step = step.ok_or_else(|| OpError::unsupported("joining of values that do not lie alike"))?;
        Ok(Prepared { step: Box::new(step), workspace: 0 })
    }

    fn joins(
        &self,
        inputs: &[Option<TensorDesc>],
        outputs: &[TensorDesc],
        layouts: &Layouts,
    ) -> Option<SmallVec<[usize; 4]>> {
        let step = self.step(inputs, outputs.first()?, layouts).filter(|step| step.outer == 1)?;
        let blocks = step.blocks.iter().scan(0, |end, block| Some(std::mem::replace(end, *end + block * step.width)));
        Some(blocks.collect())
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
            if target.holds(start, source) {
                start += block;
                continue;
            }
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
