//! Batches that are run in slices.
//!
//! Where a tensor of a whole batch is larger than the caches, every step reads it from memory and writes another there.
//! A run of steps of which each makes every image of its output of the same image of its inputs can instead take one
//! slice of the batch after the other through all of its steps, while what lies between them is near:
//!
//! ```text
//! for each slice of the batch
//!     for each step of the run
//!         step(slice)            what only the run's own steps read has room for one slice
//! ```
//!
//! That pays where the weights, which are read again for every slice, are less than what the slices are.

use super::{Draft, Memory, Place, Prepared, Run, prepare};
use crate::program::{Code, Program};
use crate::{RunError, TensorDesc, arena};
use halimede_graph::{Node, Op, ValueId};
use smallvec::SmallVec;
use std::ops::Range;

/// Bytes that the caches near a core hold, about.
pub(crate) const NEAR_BYTES: usize = 2 << 20;

/// Bytes of a slice that a step reads and writes, at most, where most of it comes to lie near by that.
const SLICE_NEAR: usize = 2 * NEAR_BYTES;
/// The same where such steps are part of a run that pays: what is more than is near goes through its steps in bands then, or stays in a cache
/// that cores share, where the whole batch would not.
const SLICE_MOST: usize = 8 * NEAR_BYTES;

/// A step as it runs on a slice.
pub(super) struct Sliced {
    pub inputs: SmallVec<[Option<TensorDesc>; 4]>,
    pub outputs: SmallVec<[TensorDesc; 1]>,
    /// Which inputs are sliced; outputs all are.
    pub cut: SmallVec<[bool; 4]>,
}

impl Sliced {
    /// The step of a node on `count` slices of its batch, whose operands are these; `None` where images are not apart
    /// from each other.
    pub fn new(
        node: &Node,
        is_constant: impl Fn(usize) -> bool,
        inputs: &[Option<TensorDesc>],
        outputs: &[TensorDesc],
        count: usize,
    ) -> Option<Sliced> {
        let [output, ..] = outputs else { return None };
        let &batch = output.shape.first()?;
        if count < 2 || !batch.is_multiple_of(count) || batch == 0 {
            return None;
        }
        let holds_batch = |desc: &TensorDesc| desc.shape.first() == Some(&batch);
        let is_sliced = |desc: &TensorDesc| desc.shape.len() == output.shape.len() && holds_batch(desc);
        let is_shared = |desc: &TensorDesc| desc.shape.len() < output.shape.len() || desc.shape.first() == Some(&1);
        // Which inputs hold images; the others are the same for all of them.
        let (data, packed): (&dyn Fn(usize) -> bool, &[usize]) = match &node.op {
            Op::Map(_) => (&|_| false, &[]),
            Op::Conv(_) if is_constant(1) => (&|input| input == 0, &[1]),
            // Positions of the largest elements count from the first image on.
            Op::Pool(_) if outputs.len() == 1 => (&|_| true, &[]),
            Op::Quantize(op) if op.axis > 0 || inputs.get(1)?.as_ref()?.len() == 1 => (&|input| input == 0, &[]),
            Op::Transpose(op) if op.perm.first() == Some(&0) => (&|_| true, &[]),
            Op::Concat(op) if op.axis > 0 => (&|_| true, &[]),
            _ => return None,
        };
        let cut = inputs.iter().enumerate().map(|(index, desc)| {
            let Some(desc) = desc else { return Some(false) };
            let whole = is_constant(index) && (packed.contains(&index) || is_shared(desc)) || desc.len() == 1;
            match (data(index), is_constant(index)) {
                (true, false) if is_sliced(desc) => Some(true),
                (false, false) if is_sliced(desc) && !whole => Some(true),
                (false, _) if whole => Some(false),
                _ => None,
            }
        });
        let cut = cut.collect::<Option<SmallVec<[bool; 4]>>>()?;
        let slice = |desc: &TensorDesc| {
            let mut desc = desc.clone();
            desc.shape[0] /= count;
            desc
        };
        if !outputs.iter().all(holds_batch) || !cut.contains(&true) {
            return None;
        }
        let inputs = inputs.iter().zip(&cut).map(|(desc, &cut)| match desc {
            Some(desc) if cut => Some(slice(desc)),
            desc => desc.clone(),
        });
        Some(Sliced { inputs: inputs.collect(), outputs: outputs.iter().map(slice).collect(), cut })
    }

    /// Bytes that a slice reads and writes, weights left out.
    pub fn bytes(&self) -> usize {
        let read = self.inputs.iter().zip(&self.cut).filter(|(_, cut)| **cut).flat_map(|(desc, _)| desc);
        read.chain(&self.outputs).map(TensorDesc::bytes).fold(0, usize::saturating_add)
    }
}

/// Into how many slices a batch is cut for so many threads, each of which then has an image.
fn count(batch: usize, threads: usize) -> usize {
    let images = (1..=threads.clamp(1, batch.max(1))).rev().find(|images| batch.is_multiple_of(*images));
    batch / images.unwrap_or(1)
}

/// Bytes of a slice that steps read and write, and those of their weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Traffic {
    slice: usize,
    weights: usize,
}

impl Traffic {
    fn sum(steps: &[Traffic]) -> Traffic {
        steps.iter().fold(Traffic::default(), |sum, step| Traffic {
            slice: sum.slice.saturating_add(step.slice),
            weights: sum.weights.saturating_add(step.weights),
        })
    }
}

/// The runs of neighbouring steps that may be worth slicing, in order, and into how many slices each: into no more than
/// bring what a step reads and writes near. `most` is how many there can be; steps whose slices have more than `limit` bytes end a run.
fn candidates(steps: &[Traffic], most: usize, limit: usize) -> Vec<(Range<usize>, usize)> {
    let mut runs = Vec::new();
    let mut from = 0;
    while from < steps.len() {
        let fits = |step: &&Traffic| step.weights <= step.slice && step.slice <= limit;
        let len = steps[from..].iter().take_while(fits).count();
        let run = from..from + len;
        let largest = steps[run.clone()].iter().map(|step| step.slice * most).max().unwrap_or(0);
        if len > 1 && largest > NEAR_BYTES {
            let near = (2..most).find(|count| most.is_multiple_of(*count) && largest / count <= NEAR_BYTES);
            runs.push((run, near.unwrap_or(most)));
        }
        from += len.max(1);
    }
    runs
}

/// Whether a run pays: what comes to lie near must be more than what stays in memory, weights included.
fn pays(whole: Traffic, inner: usize) -> bool {
    inner >= whole.weights + (whole.slice - inner.min(whole.slice))
}

/// The batch of a step that has slices.
#[derive(Clone, Copy)]
struct Batch {
    images: usize,
    /// Slices there can be.
    most: usize,
    traffic: Traffic,
}

impl Memory {
    /// Decides which steps run on slices of the batch, and prepares them for those.
    pub(super) fn slice(&mut self, program: &Program, drafts: &mut [Draft]) -> Result<Vec<Run>, RunError> {
        let batches: Vec<Option<Batch>> = drafts.iter().map(|draft| self.batch(program, draft)).collect();
        let mut runs = Vec::new();
        let mut from = 0;
        while from < drafts.len() {
            let Some(Batch { images, most, .. }) = batches[from] else {
                from += 1;
                continue;
            };
            let same = batches[from..].iter().map_while(|batch| batch.filter(|batch| batch.images == images));
            let traffic: Vec<Traffic> = same.map(|batch| batch.traffic).collect();
            let mut paying = Vec::new();
            for (run, slices) in candidates(&traffic, most, SLICE_MOST) {
                if self.run_pays(program, drafts, (from, &run), &traffic[run.clone()], most) {
                    paying.push((run, slices));
                    continue;
                }
                // Without its large steps a part of it may.
                for (part, slices) in candidates(&traffic[run.clone()], most, SLICE_NEAR) {
                    let part = run.start + part.start..run.start + part.end;
                    if self.run_pays(program, drafts, (from, &part), &traffic[part.clone()], most) {
                        paying.push((part, slices));
                    }
                }
            }
            for (run, slices) in paying {
                let steps = run.start + from..run.end + from;
                let inner = self.inner_values(program, drafts, &steps);
                if let Some(made) = self.sliced_run(program, &drafts[steps.clone()], slices)? {
                    inner.iter().for_each(|(value, _)| self.slices[*value] = slices);
                    for (draft, (prepared, cut)) in drafts[steps.clone()].iter_mut().zip(made) {
                        (draft.prepared, draft.sliced) = (Some(prepared), Some((slices, cut)));
                    }
                    runs.push(Run::new(steps, slices));
                }
            }
            from += traffic.len();
        }
        Ok(whole_runs(runs, drafts.len()))
    }

    /// Whether a run of steps, counted from one on, pays in so many slices.
    fn run_pays(
        &self,
        program: &Program,
        drafts: &[Draft],
        (from, run): (usize, &Range<usize>),
        traffic: &[Traffic],
        most: usize,
    ) -> bool {
        let inner = self.inner_values(program, drafts, &(run.start + from..run.end + from));
        let bytes = |(value, uses): &(usize, usize)| (self.bytes(*value) / most).saturating_mul(*uses);
        pays(Traffic::sum(traffic), inner.iter().map(bytes).fold(0, usize::saturating_add))
    }

    /// The batch of a step; `None` where it has no slices.
    fn batch(&self, program: &Program, draft: &Draft) -> Option<Batch> {
        let output = *program.graph().nodes[draft.node].outputs.first()?;
        let &images = self.descs[output.index()].as_ref()?.shape.first()?;
        let most = count(images, program.kernels().threads());
        let weights = match &program.codes()[draft.node] {
            Code::Kernel(kernel) => kernel.packed_bytes(),
            _ => 0,
        };
        let slice = self.sliced(program, draft, most)?.bytes();
        Some(Batch { images, most, traffic: Traffic { slice, weights } })
    }

    /// A step as it runs on a slice, where it does.
    pub(super) fn sliced(&self, program: &Program, draft: &Draft, slices: usize) -> Option<Sliced> {
        draft.prepared.as_ref()?;
        let node = &program.graph().nodes[draft.node];
        let is_constant = |input: usize| {
            node.inputs[input].is_none_or(|value| matches!(self.places[value.index()], Place::Constant(_)))
        };
        Sliced::new(node, is_constant, &self.input_descs(node), &self.output_descs(node)?, slices)
    }

    /// The steps of a run, prepared for slices; `None` where one has no form for them, or where they would not lie on
    /// cache lines. Of request inputs that is promised to nobody.
    fn sliced_run(
        &self,
        program: &Program,
        drafts: &[Draft],
        slices: usize,
    ) -> Result<Option<Vec<(Prepared, SmallVec<[bool; 4]>)>>, RunError> {
        let graph = program.graph();
        let mut made = Vec::with_capacity(drafts.len());
        for draft in drafts {
            let node = &graph.nodes[draft.node];
            let lies_well = |value: &ValueId| match self.places[self.root(value.index())] {
                Place::Constant(_) | Place::Input(_) => true,
                _ => (self.bytes(value.index()) / slices).is_multiple_of(arena::ALIGNMENT),
            };
            let (Code::Kernel(kernel), Some(sliced)) =
                (&program.codes()[draft.node], self.sliced(program, draft, slices))
            else {
                return Ok(None);
            };
            if !node.inputs.iter().flatten().chain(&node.outputs).all(lies_well) {
                return Ok(None);
            }
            match prepare(node, kernel.as_ref(), &sliced.inputs, &sliced.outputs, program.bytes_max())? {
                Some(prepared) => made.push((prepared, sliced.cut)),
                None => return Ok(None),
            }
        }
        Ok(Some(made))
    }

    /// Values that only the steps of a run write and read, and how often they do.
    fn inner_values(&self, program: &Program, drafts: &[Draft], steps: &Range<usize>) -> Vec<(usize, usize)> {
        let graph = program.graph();
        let outputs = drafts[steps.clone()].iter().flat_map(|draft| &graph.nodes[draft.node].outputs);
        let inner = outputs.filter_map(|output| {
            let value = output.index();
            let is_shared = (0..self.roots.len()).any(|other| (self.roots[other] == value) != (other == value));
            let reads = |range: Range<usize>| {
                let nodes = drafts[range].iter().map(|draft| &graph.nodes[draft.node]);
                nodes.filter(|node| node.inputs.contains(&Some(*output))).count()
            };
            let (own, all) = (reads(steps.clone()), reads(0..drafts.len()));
            let is_inner = own == all && !is_shared && !graph.outputs.contains(output);
            (is_inner && self.places[value] == Place::Nothing).then_some((value, 1 + own))
        });
        inner.collect()
    }
}

/// Runs of slices, and between them those of whole batches.
fn whole_runs(sliced: Vec<Run>, steps: usize) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut from = 0;
    for run in sliced {
        runs.push(Run::new(from..run.steps.start, 1));
        from = run.steps.end;
        runs.push(run);
    }
    runs.push(Run::new(from..steps, 1));
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use halimede_graph::ops::{Binary, Concat, Conv, Map, Padding, Pool, PoolKind, Transpose};
    use halimede_tensor::DType;

    fn sliced(op: Op, is_constant: &[bool], inputs: &[&[usize]], outputs: &[&[usize]]) -> Option<Vec<bool>> {
        let node = Node {
            name: String::new(),
            origin: String::new(),
            op,
            inputs: inputs.iter().map(|_| None).collect(),
            outputs: Default::default(),
        };
        let desc = |shape: &&[usize]| TensorDesc { dtype: DType::F32, shape: (*shape).into() };
        let inputs: Vec<Option<TensorDesc>> = inputs.iter().map(|shape| Some(desc(shape))).collect();
        let outputs: Vec<TensorDesc> = outputs.iter().map(desc).collect();
        let sliced = Sliced::new(&node, |input| is_constant[input], &inputs, &outputs, 4)?;
        assert!(sliced.outputs.iter().all(|output| output.shape[0] == 2));
        Some(sliced.cut.into_vec())
    }

    #[test]
    fn images_are_apart_from_each_other() {
        let sum = || Op::Map(Map::binary(Binary::Add));
        let (images, row) = (&[8usize, 5, 5, 3][..], &[3usize][..]);
        assert_eq!(sliced(sum(), &[false, false], &[images, images], &[images]), Some(vec![true, true]));
        assert_eq!(sliced(sum(), &[false, true], &[images, row], &[images]), Some(vec![true, false]));
        // As many numbers as there are images, but the same for all.
        assert_eq!(sliced(sum(), &[false, true], &[images, images], &[images]), None);
        assert_eq!(sliced(sum(), &[false, false], &[&[8, 3], &[8]], &[&[8, 3]]), None);
        let conv = || {
            Op::Conv(Conv {
                strides: Default::default(),
                dilations: Default::default(),
                padding: Padding::Explicit(Default::default()),
                groups: 1,
                transposed: None,
                channels_last: true,
                multiply: None,
                epilogue: None,
            })
        };
        // Eight channels are no images, whether the weights are known or not.
        let weights = &[8usize, 3, 1, 1][..];
        let result = &[8usize, 5, 5, 8][..];
        assert_eq!(sliced(conv(), &[false, true], &[images, weights], &[result]), Some(vec![true, false]));
        assert_eq!(sliced(conv(), &[false, false], &[images, weights], &[result]), None);
        let pool = || {
            Op::Pool(Pool {
                kind: PoolKind::Max { column_major: false },
                kernel: [1, 1].as_slice().into(),
                strides: Default::default(),
                dilations: Default::default(),
                padding: Padding::Explicit(Default::default()),
                ceil_mode: false,
                outputs: 1,
                channels_last: true,
            })
        };
        assert_eq!(sliced(pool(), &[false], &[images], &[images]), Some(vec![true]));
        assert_eq!(sliced(pool(), &[false], &[images], &[images, images]), None);
        let transpose = |perm: &[usize]| Op::Transpose(Transpose { perm: perm.into() });
        assert_eq!(sliced(transpose(&[0, 2, 1]), &[false], &[&[8, 5, 3]], &[&[8, 3, 5]]), Some(vec![true]));
        assert_eq!(sliced(transpose(&[1, 0, 2]), &[false], &[&[8, 8, 3]], &[&[8, 8, 3]]), None);
        assert_eq!(sliced(Op::Concat(Concat { axis: 0 }), &[false], &[images], &[images]), None);
        assert_eq!(sliced(sum(), &[false, false], &[&[6, 3], &[6, 3]], &[&[6, 3]]), None);
    }

    #[test]
    fn every_thread_has_an_image() {
        assert_eq!(
            [(8, 1), (8, 2), (8, 3), (7, 2), (1, 4), (4, 16), (0, 2)].map(|(b, t)| count(b, t)),
            [8, 4, 4, 7, 1, 1, 0]
        );
    }

    #[test]
    fn runs_are_where_the_batch_is_far_and_weights_are_small() {
        let step = |slice, weights| Traffic { slice, weights };
        let near = step(NEAR_BYTES / 4, 1000);
        let heavy = step(1000, 2000);
        assert_eq!(
            candidates(&[near, near, heavy, near, heavy, near, near, near], 8, SLICE_NEAR),
            [(0..2, 2), (5..8, 2)]
        );
        assert_eq!(candidates(&[near, near], 2, SLICE_NEAR), []);
        assert_eq!(candidates(&[step(SLICE_MOST + 1, 0); 2], 8, SLICE_MOST), []);
        let large = step(NEAR_BYTES * 3, 0);
        assert_eq!(candidates(&[large; 2], 8, SLICE_MOST), [(0..2, 8)], "one after the other, and in bands");
        assert_eq!(candidates(&[large, near, near], 8, SLICE_NEAR), [(1..3, 2)], "or without the large one");
        assert_eq!(candidates(&[step(NEAR_BYTES * 3 / 2, 0); 2], 6, SLICE_NEAR), [(0..2, 6)]);
        assert!(pays(Traffic { slice: 1000, weights: 100 }, 600) && !pays(Traffic { slice: 1000, weights: 300 }, 600));
        // Many small images go together.
        assert_eq!(candidates(&[step(NEAR_BYTES / 64, 0); 2], 1024, SLICE_NEAR), [(0..2, 16)]);
    }
}
