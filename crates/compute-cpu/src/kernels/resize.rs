//! Resampling: the nearest elements are copied, weighted sums are made one axis after the other.

use super::Machine;
use super::copy::split;
use super::parameters::desc;
use super::parts::by_places;
use crate::isa::multiversion;
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::ops::{CoordinateTransform, Resize, ResizeMode, Sample};
use halimede_graph::{Graph, Node, OpError};
use halimede_tensor::{DType, Tensor, View};

pub(super) struct ResizeKernel {
    op: Resize,
    roi: Option<Vec<f64>>,
    scales: Option<Vec<f32>>,
    /// Sizes are given, but not as a constant: then the output's shape says them.
    sizes: Option<Option<Vec<i64>>>,
    machine: Machine,
}

impl ResizeKernel {
    pub fn new(op: &Resize, graph: &Graph, node: &Node, machine: Machine) -> ResizeKernel {
        let input = |index: usize| node.inputs.get(index).copied().flatten();
        let constant = |index: usize| input(index).and_then(|value| graph.constant(value));
        let filled = |tensor: &&Tensor| !tensor.is_empty();
        ResizeKernel {
            op: op.clone(),
            roi: constant(1).filter(filled).and_then(|roi| roi.to_f64s().ok()),
            scales: constant(2).filter(filled).and_then(|scales| scales.to_f32s().ok()),
            sizes: input(3).map(|_| constant(3).and_then(|sizes| sizes.to_i64s().ok())),
            machine,
        }
    }

    /// What each axis is made of, where that does not depend on a request's values.
    fn samples(&self, input: &TensorDesc, output: &TensorDesc) -> Result<Vec<Vec<Sample>>, OpError> {
        let axes = || {
            let all = (0..input.shape.len()).collect::<Vec<_>>();
            if self.op.axes.is_empty() { all } else { self.op.axes.to_vec() }
        };
        let sizes = match (&self.scales, &self.sizes) {
            (Some(_), _) => None,
            (None, Some(Some(sizes))) => Some(sizes.clone()),
            (None, Some(None)) if self.op.keep_aspect_ratio == 0 => {
                Some(axes().iter().filter_map(|&axis| output.shape.get(axis).map(|&size| size as i64)).collect())
            }
            _ => return Err(OpError::unsupported("resampling by numbers that depend on the request")),
        };
        if self.op.transform == CoordinateTransform::TfCropAndResize && self.roi.is_none() {
            return Err(OpError::unsupported("a region of interest that is known only when it runs"));
        }
        let (shape, samples) =
            self.op.samples(&input.shape, self.roi.as_deref(), self.scales.as_deref(), sizes.as_deref())?;
        if shape.contains(&0) {
            return Err(OpError::unsupported("an output without elements"));
        }
        if shape != output.shape || samples.iter().flatten().any(|sample| sample.outside) {
            return Err(OpError::unsupported("resampling outside the input"));
        }
        Ok(samples)
    }
}

impl Kernel for ResizeKernel {
    fn name(&self) -> &str {
        match self.op.mode {
            ResizeMode::Nearest(_) => "resize nearest",
            _ => "resize f32",
        }
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        let (input, output) = (desc(inputs, 0)?, &outputs[0]);
        let samples = self.samples(input, output)?;
        if samples.iter().flatten().all(|sample| matches!(sample.weights[..], [(_, 1.0)])) {
            let places = samples.iter().flatten().map(|sample| sample.weights[0].0 as i64).collect();
            let (from, shape) = (input.shape.clone(), output.shape.clone());
            return Ok(by_places(from, shape, places, output.dtype.size(), self.machine.clone()));
        }
        if output.dtype != DType::F32 {
            return Err(OpError::unsupported(format!("resampling of {}", output.dtype)));
        }
        let mut shape = input.shape.clone();
        let mut passes = Vec::new();
        for axis in Resize::order(&input.shape, &output.shape) {
            let samples = &samples[axis];
            let whole = |(at, sample): (usize, &Sample)| matches!(sample.weights[..], [(place, 1.0)] if place == at);
            if samples.len() == shape[axis] && samples.iter().enumerate().all(whole) {
                continue;
            }
            let (outer, inner) = (shape[..axis].iter().product(), shape[axis + 1..].iter().product());
            passes.push(Pass::new(outer, shape[axis], inner, samples));
            shape[axis] = samples.len();
        }
        // Between two passes the numbers wait in the workspace, in two halves taken in turn.
        let waiting = passes.iter().take(passes.len() - 1).map(Pass::len).max().unwrap_or(0);
        let halves = (passes.len() - 1).min(2);
        let step = ResizeStep { passes, half: waiting * size_of::<f32>(), machine: self.machine.clone() };
        Ok(Prepared { workspace: step.half * halves, step: Box::new(step) })
    }
}

/// One axis resampled: `[outer, size, inner]` to `[outer, target, inner]`.
struct Pass {
    outer: usize,
    size: usize,
    inner: usize,
    /// Per new element the end of its taps.
    ends: Vec<usize>,
    places: Vec<usize>,
    weights: Vec<f32>,
}

impl Pass {
    fn new(outer: usize, size: usize, inner: usize, samples: &[Sample]) -> Pass {
        let mut pass = Pass { outer, size, inner, ends: Vec::new(), places: Vec::new(), weights: Vec::new() };
        for sample in samples {
            pass.places.extend(sample.weights.iter().map(|&(place, _)| place));
            pass.weights.extend(sample.weights.iter().map(|&(_, weight)| weight as f32));
            pass.ends.push(pass.places.len());
        }
        pass
    }

    /// Elements that it makes.
    fn len(&self) -> usize {
        self.outer * self.ends.len() * self.inner
    }

    fn taps(&self, target: usize) -> std::ops::Range<usize> {
        let start = if target == 0 { 0 } else { self.ends[target - 1] };
        start..self.ends[target]
    }

    fn run(&self, machine: &Machine, input: View<'_>, output: View<'_>) {
        let target = self.ends.len();
        // SAFETY: an input, or what the pass before wrote; nobody writes it now.
        let elements = unsafe { input.slice::<f32>() };
        split(machine, self.outer, output.len(), &|range| {
            for outer in range {
                let from = &elements[outer * self.size * self.inner..][..self.size * self.inner];
                let place = output.part(outer * target * self.inner * 4, target * self.inner * 4);
                // SAFETY: this part's own rows of the output or of the workspace.
                let to = unsafe { place.slice_mut::<f32>() };
                if self.inner == 1 {
                    for (index, to) in to.iter_mut().enumerate() {
                        let taps = self.taps(index);
                        let terms = self.places[taps.clone()].iter().zip(&self.weights[taps]);
                        *to = terms.map(|(&place, weight)| from[place] * weight).sum();
                    }
                    continue;
                }
                for (index, to) in to.chunks_exact_mut(self.inner).enumerate() {
                    to.fill(0.0);
                    for tap in self.taps(index) {
                        let row = &from[self.places[tap] * self.inner..][..self.inner];
                        add_scaled(machine.isa, to, row, self.weights[tap]);
                    }
                }
            }
        });
    }
}

multiversion! {
    fn add_scaled(to: &mut [f32], row: &[f32], weight: f32) = add_scaled_body
}

#[inline(always)]
fn add_scaled_body(to: &mut [f32], row: &[f32], weight: f32) {
    to.iter_mut().zip(row).for_each(|(to, x)| *to += x * weight);
}

struct ResizeStep {
    passes: Vec<Pass>,
    /// Bytes of half the workspace.
    half: usize,
    machine: Machine,
}

impl Step for ResizeStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let Some(mut from) = arguments.inputs[0] else { return };
        for (index, pass) in self.passes.iter().enumerate() {
            let last = index + 1 == self.passes.len();
            let to = if last {
                arguments.outputs[0]
            } else {
                arguments.workspace.part(index % 2 * self.half, pass.len() * size_of::<f32>())
            };
            if pass.len() > 0 {
                pass.run(&self.machine, from, to);
            }
            from = to;
        }
    }
}
