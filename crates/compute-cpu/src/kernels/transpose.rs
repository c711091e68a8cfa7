//! Reordering axes: adjacent axes that stay together are one, whole runs are copied, and where the
//! innermost axis moves, squares are turned that fit the cache, or, where it becomes a few elements, as the channels
//! of an image do, registers are interleaved.

use super::Machine;
use super::copy::{Source, Target, Unit, by_width, offset, split};
use crate::isa::multiversion;
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::Transpose;
use smallvec::SmallVec;

/// Side of a square: a square of 4-byte elements is 16 cache lines read and 16 written.
const SQUARE: usize = 16;
/// Columns that are turned in registers at a time, of which each is a cache line read.
const WIDE: usize = 64;
/// Rows of a few elements that are made at a time.
const FEW_TALL: usize = 4096;

pub(super) struct TransposeKernel {
    pub op: Transpose,
    pub machine: Machine,
}

struct TransposeStep {
    /// Joined axes of the output, and the input's stride of each.
    shape: SmallVec<[usize; 8]>,
    strides: SmallVec<[usize; 8]>,
    width: usize,
    machine: Machine,
}

impl Kernel for TransposeKernel {
    fn name(&self) -> &str {
        "transpose"
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        let input = super::parameters::desc(inputs, 0)?;
        let own = halimede_tensor::strides(&input.shape);
        let (mut shape, mut strides) = (SmallVec::new(), SmallVec::<[usize; 8]>::new());
        for &axis in &self.op.perm {
            let (size, stride) = (input.shape[axis], own[axis]);
            match (shape.last_mut(), strides.last_mut()) {
                _ if size == 1 => {}
                // This axis follows the last one in the input too.
                (Some(last), Some(last_stride)) if *last_stride == stride * size => {
                    *last *= size;
                    *last_stride = stride;
                }
                _ => {
                    shape.push(size);
                    strides.push(stride);
                }
            }
        }
        let width = outputs[0].dtype.size();
        let step = TransposeStep { shape, strides, width, machine: self.machine.clone() };
        Ok(Prepared { step: Box::new(step), workspace: 0 })
    }
}

impl Step for TransposeStep {
    fn run(&self, arguments: &Arguments<'_>) {
        if !arguments.outputs[0].is_empty()
            && let Some(input) = arguments.inputs[0]
        {
            let (source, target) = (input, arguments.outputs[0]);
            by_width!(self.width, run(self, source, target));
        }
    }
}

fn run<T: Unit>(step: &TransposeStep, input: halimede_tensor::View<'_>, output: halimede_tensor::View<'_>) {
    let (source, target) = (Source::<T>::new(input), Target::<T>::new(output));
    let Some((&run, outer)) = step.shape.split_last() else { return target.copy(0, source, 0, 1) };
    let (&stride, outer_strides) = step.strides.split_last().expect("as many strides as axes");
    let rows: usize = outer.iter().product();
    let bytes = output.len();
    if stride == 1 {
        // The innermost axis stays: whole runs.
        return split(&step.machine, rows, bytes, &|range| {
            range.for_each(|row| target.copy(row * run, source, offset(row, outer, outer_strides), run));
        });
    }
    // The axis that is innermost in the input: squares of it and the output's innermost one.
    let Some(inner) = outer_strides.iter().position(|&stride| stride == 1) else {
        return split(&step.machine, rows, bytes, &|range| {
            for row in range {
                let from = offset(row, outer, outer_strides);
                (0..run).for_each(|i| target.set(row * run + i, source.at(from + i * stride)));
            }
        });
    };
    let (height, after) = (outer[inner], outer[inner + 1..].iter().product::<usize>());
    // Where there are fewer columns than a square has, as many elements make it higher.
    let few =
        [interleave_2::<T>, interleave_3, interleave_4].into_iter().zip(2..).find(|few| few.1 == run && after == 1);
    // In registers two lines of each column go together: the second comes with the first.
    let (lines, wide) = if size_of::<T>() == size_of::<f32>() { (2, WIDE) } else { (1, SQUARE) };
    let tall = match few {
        Some(_) => FEW_TALL,
        None => lines * (SQUARE * SQUARE / run.min(SQUARE)).next_multiple_of(SQUARE),
    };
    let bands = height.div_ceil(tall);
    // One item is a band of squares: fixed outer axes, `tall` places of the input's innermost axis.
    let items = rows / height * bands;
    split(&step.machine, items, bytes, &|range| {
        for item in range {
            let (band, place) = (item % bands, item / bands);
            let (before, behind) = (place / after, place % after);
            let row = |y: usize| (before * height + y) * after + behind;
            let (top, bottom) = (band * tall, ((band + 1) * tall).min(height));
            let from = offset(row(top), outer, outer_strides);
            if let Some((interleave, _)) = few {
                interleave(step.machine.isa, target, row(top) * run, source, (from, stride), bottom - top);
                continue;
            }
            for left in (0..run).step_by(wide) {
                let (size, to) = ((bottom - top, wide.min(run - left)), (row(top) * run + left, after * run));
                target.turn_all(step.machine.isa, to, source, (from + left * stride, stride), size);
            }
        }
    });
}

multiversion! {
    fn interleave_2<T: Unit>(target: Target<T>, to: usize, source: Source<T>, from: (usize, usize), count: usize)
        = interleave::<T, 2>
}

multiversion! {
    fn interleave_3<T: Unit>(target: Target<T>, to: usize, source: Source<T>, from: (usize, usize), count: usize)
        = interleave::<T, 3>
}

multiversion! {
    fn interleave_4<T: Unit>(target: Target<T>, to: usize, source: Source<T>, from: (usize, usize), count: usize)
        = interleave::<T, 4>
}

#[inline(always)]
fn interleave<T: Unit, const N: usize>(
    target: Target<T>,
    to: usize,
    source: Source<T>,
    from: (usize, usize),
    count: usize,
) {
    target.interleave::<N>(to, source, from, count);
}
