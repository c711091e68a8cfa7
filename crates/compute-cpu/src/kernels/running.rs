//! Numbers along an axis: ranges, running totals, the place of the largest and the k largest.

use super::Machine;
use super::copy::split;
use super::number::{Number, Wide, by_number, check_number};
use super::parameters::{Integers, desc, is_wide, position};
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::{ArgReduce, Cumulative, CumulativeKind, TopK};
use halimede_tensor::{DType, Shape, View};
use smallvec::SmallVec;
use std::cmp::Ordering;

/// A shape around one axis.
#[derive(Clone, Copy)]
struct Lines {
    size: usize,
    inner: usize,
    /// Lines along the axis.
    count: usize,
}

impl Lines {
    fn new(shape: &[usize], axis: usize) -> Lines {
        let inner: usize = shape[axis + 1..].iter().product();
        Lines { size: shape[axis], inner, count: shape[..axis].iter().product::<usize>() * inner }
    }

    /// Where line `index` of an axis of `size` begins; its elements lie `inner` apart.
    fn start(self, index: usize, size: usize) -> usize {
        index / self.inner * size * self.inner + index % self.inner
    }
}

/// Elements that several parts of a loop write, each its own.
#[derive(Clone, Copy)]
struct Out<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: parts of a loop write different elements.
unsafe impl<T: Number> Send for Out<T> {}
// SAFETY: as above.
unsafe impl<T: Number> Sync for Out<T> {}

impl<T: Number> Out<T> {
    fn new(view: View<'_>) -> Out<T> {
        assert!(view.as_ptr().cast::<T>().is_aligned());
        Out { start: view.as_ptr().cast(), len: view.len() / size_of::<T>() }
    }

    fn set(self, index: usize, value: T) {
        assert!(index < self.len);
        // SAFETY: inside the output; no other part touches this element.
        unsafe { *self.start.add(index) = value };
    }
}

pub(super) struct RangeKernel;

struct RangeStep {
    dtype: DType,
}

impl Kernel for RangeKernel {
    fn name(&self) -> &str {
        "range"
    }

    fn prepare(&self, _inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        check_number(outputs[0].dtype)?;
        Ok(Prepared { step: Box::new(RangeStep { dtype: outputs[0].dtype }), workspace: 0 })
    }
}

impl Step for RangeStep {
    fn run(&self, arguments: &Arguments<'_>) {
        fn run<T: Number>(arguments: &Arguments<'_>)
        where
            T::Wide: Count,
        {
            let [Some(start), _, Some(delta)] = arguments.inputs else { return };
            // SAFETY: inputs, which nobody writes, and an output that is this step's alone.
            let (start, delta, out) = unsafe {
                (start.slice::<T>()[0].wide(), delta.slice::<T>()[0].wide(), arguments.outputs[0].slice_mut::<T>())
            };
            for (index, element) in out.iter_mut().enumerate() {
                *element = T::narrow(start.plus(T::Wide::count(index).times(delta)));
            }
        }
        by_number!(self.dtype, run(arguments));
    }
}

/// A number of steps.
trait Count {
    fn count(steps: usize) -> Self;
}
impl Count for f64 {
    fn count(steps: usize) -> f64 {
        steps as f64
    }
}
impl Count for i64 {
    fn count(steps: usize) -> i64 {
        steps as i64
    }
}

pub(super) struct CumulativeKernel {
    pub op: Cumulative,
    pub machine: Machine,
}

struct CumulativeStep {
    op: Cumulative,
    shape: Shape,
    dtype: DType,
    wide: bool,
    machine: Machine,
}

impl Kernel for CumulativeKernel {
    fn name(&self) -> &str {
        "cumulative"
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        check_number(outputs[0].dtype)?;
        let (op, machine, output) = (self.op.clone(), self.machine.clone(), &outputs[0]);
        let wide = is_wide(desc(inputs, 1)?)?;
        let step = CumulativeStep { op, shape: output.shape.clone(), dtype: output.dtype, wide, machine };
        Ok(Prepared { step: Box::new(step), workspace: 0 })
    }

    fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        SmallVec::from_slice(&[(0, 0)])
    }
}

impl CumulativeStep {
    fn axis(&self, arguments: &Arguments<'_>) -> Result<usize, OpError> {
        let axis = arguments.inputs[1].map(|view| Integers::new(view, self.wide)).filter(|axis| axis.len() == 1);
        let axis = axis.ok_or_else(|| OpError::invalid("the axis of a running total should be one integer"))?;
        position(axis.at(0), self.shape.len())
    }
}

impl Step for CumulativeStep {
    fn check(&self, arguments: &Arguments<'_>) -> Result<(), OpError> {
        self.axis(arguments).map(drop)
    }

    fn run(&self, arguments: &Arguments<'_>) {
        let (Some(input), Ok(axis)) = (arguments.inputs[0], self.axis(arguments)) else { return };
        by_number!(self.dtype, total(self, axis, input, arguments.outputs[0]));
    }
}

fn total<T: Number>(step: &CumulativeStep, axis: usize, input: View<'_>, output: View<'_>) {
    let lines = Lines::new(&step.shape, axis);
    let out = Out::<T>::new(output);
    let neutral = match step.op.kind {
        CumulativeKind::Sum => T::Wide::ZERO,
        CumulativeKind::Product => T::Wide::ONE,
    };
    split(&step.machine, lines.count, output.len(), &|range| {
        for line in range {
            let start = lines.start(line, lines.size);
            let mut sum = neutral;
            for index in 0..lines.size {
                let index = if step.op.reverse { lines.size - 1 - index } else { index };
                let at = start + index * lines.inner;
                // SAFETY: the element is read before it is written where both share memory, and no
                // other part touches this line. A slice would claim the neighbours' elements too.
                let element = unsafe { *input.as_ptr().cast::<T>().add(at) }.wide();
                let before = sum;
                sum = match step.op.kind {
                    CumulativeKind::Sum => sum.plus(element),
                    CumulativeKind::Product => sum.times(element),
                };
                out.set(at, T::narrow(if step.op.exclusive { before } else { sum }));
            }
        }
    });
}

pub(super) struct ArgReduceKernel {
    pub op: ArgReduce,
    pub machine: Machine,
}

struct ArgReduceStep {
    op: ArgReduce,
    lines: Lines,
    dtype: DType,
    machine: Machine,
}

impl Kernel for ArgReduceKernel {
    fn name(&self) -> &str {
        if self.op.largest { "arg max" } else { "arg min" }
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], _outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        let input = desc(inputs, 0)?;
        check_number(input.dtype)?;
        let lines = Lines::new(&input.shape, self.op.axis);
        if lines.size == 0 && lines.count > 0 {
            return Err(OpError::invalid("there is no largest or smallest of 0 elements"));
        }
        let step = ArgReduceStep { op: self.op.clone(), lines, dtype: input.dtype, machine: self.machine.clone() };
        Ok(Prepared { step: Box::new(step), workspace: 0 })
    }
}

impl Step for ArgReduceStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let Some(input) = arguments.inputs[0] else { return };
        by_number!(self.dtype, find(self, input, arguments.outputs[0]));
    }
}

fn find<T: Number>(step: &ArgReduceStep, input: View<'_>, output: View<'_>) {
    // SAFETY: an input; nobody writes it while the step runs.
    let (elements, out) = (unsafe { input.slice::<T>() }, Out::<i64>::new(output));
    let (lines, op) = (step.lines, &step.op);
    split(&step.machine, lines.count, input.len(), &|range| {
        for line in range {
            let start = lines.start(line, lines.size);
            let (mut best, mut place) = (elements[start], 0);
            for index in 1..lines.size {
                let element = elements[start + index * lines.inner];
                let better = if op.largest { element > best } else { element < best };
                if better || (op.last && element == best) {
                    (best, place) = (element, index);
                }
            }
            out.set(line, place as i64);
        }
    });
}

pub(super) struct TopKKernel {
    pub op: TopK,
    pub machine: Machine,
}

struct TopKStep {
    largest: bool,
    lines: Lines,
    k: usize,
    parts: usize,
    dtype: DType,
    machine: Machine,
}

impl Kernel for TopKKernel {
    fn name(&self) -> &str {
        "top k"
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        let input = desc(inputs, 0)?;
        check_number(input.dtype)?;
        let (lines, k) = (Lines::new(&input.shape, self.op.axis), outputs[0].shape[self.op.axis]);
        if k > lines.size {
            return Err(OpError::invalid(format!("k is {k} for an axis of {} elements", lines.size)));
        }
        let parts = (self.machine.pool.threads() * 2).min(lines.count);
        let step =
            TopKStep { largest: self.op.largest, lines, k, parts, dtype: input.dtype, machine: self.machine.clone() };
        Ok(Prepared { workspace: parts * lines.size * size_of::<u64>(), step: Box::new(step) })
    }
}

impl Step for TopKStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let Some(input) = arguments.inputs[0] else { return };
        if self.k > 0 && self.lines.count > 0 {
            by_number!(self.dtype, select(self, input, arguments.workspace, arguments.outputs));
        }
    }
}

fn select<T: Number>(step: &TopKStep, input: View<'_>, workspace: View<'_>, outputs: &[View<'_>]) {
    let (lines, k) = (step.lines, step.k);
    // SAFETY: an input; nobody writes it while the step runs.
    let elements = unsafe { input.slice::<T>() };
    let values = Out::<T>::new(outputs[0]);
    let indices = outputs.get(1).map(|view| Out::<i64>::new(*view));
    let unsigned = step.dtype == DType::U64;
    step.machine.pool.run(step.parts, &|part| {
        assert!((part + 1) * lines.size * size_of::<u64>() <= workspace.len());
        // SAFETY: this part's own places in the workspace, which nobody else uses.
        let order = unsafe {
            let start = workspace.as_ptr().cast::<u64>().add(part * lines.size);
            std::slice::from_raw_parts_mut(start, lines.size)
        };
        for line in part * lines.count / step.parts..(part + 1) * lines.count / step.parts {
            let start = lines.start(line, lines.size);
            let element = |index: u64| elements[start + index as usize * lines.inner].wide();
            let first = |&a: &u64, &b: &u64| {
                let by_value = compare(element(a), element(b), unsigned);
                // Among equals the lower index comes first.
                (if step.largest { by_value.reverse() } else { by_value }).then(a.cmp(&b))
            };
            order.iter_mut().zip(0..).for_each(|(place, index)| *place = index);
            if k < order.len() {
                order.select_nth_unstable_by(k - 1, first);
            }
            order[..k].sort_unstable_by(first);
            let to = lines.start(line, k);
            for (rank, &index) in order[..k].iter().enumerate() {
                values.set(to + rank * lines.inner, elements[start + index as usize * lines.inner]);
                if let Some(indices) = indices {
                    indices.set(to + rank * lines.inner, index as i64);
                }
            }
        }
    });
}

/// By value; NaN counts as larger than infinity.
fn compare<W: Wide>(a: W, b: W, unsigned: bool) -> Ordering {
    if unsigned && a != b {
        return if a.larger(b, true) == a { Ordering::Greater } else { Ordering::Less };
    }
    a.partial_cmp(&b).unwrap_or_else(|| {
        let nan = |x: W| x.partial_cmp(&x).is_none();
        nan(a).cmp(&nan(b))
    })
}
