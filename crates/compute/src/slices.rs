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

use crate::TensorDesc;
use halimede_graph::{Node, Op};
use smallvec::SmallVec;
use std::ops::Range;

/// Bytes that the caches near a core hold, about.
pub(crate) const NEAR_BYTES: usize = 2 << 20;

/// A step as it runs on a slice.
pub(crate) struct Sliced {
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
pub(crate) fn count(batch: usize, threads: usize) -> usize {
    let images = (1..=threads.clamp(1, batch.max(1))).rev().find(|images| batch.is_multiple_of(*images));
    batch / images.unwrap_or(1)
}

/// Bytes of a slice that steps read and write, and those of their weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub slice: usize,
    pub weights: usize,
}

/// The runs of steps that may be worth slicing, in order, and into how many slices each: into no more than bring what a
/// step reads and writes near. `most` is how many there can be; steps without slices are `None`.
pub(crate) fn runs(steps: &[Option<Traffic>], most: usize) -> Vec<(Range<usize>, usize)> {
    let pays =
        |step: &Option<Traffic>| step.is_some_and(|step| step.weights <= step.slice && step.slice <= 2 * NEAR_BYTES);
    let mut runs = Vec::new();
    let mut from = 0;
    while from < steps.len() {
        let len = steps[from..].iter().take_while(|step| pays(step)).count();
        let run = from..from + len;
        let largest = steps[run.clone()].iter().flatten().map(|step| step.slice * most).max().unwrap_or(0);
        if len > 1 && largest > NEAR_BYTES {
            let near = (2..most).find(|count| most.is_multiple_of(*count) && largest / count <= NEAR_BYTES);
            runs.push((run, near.unwrap_or(most)));
        }
        from += len.max(1);
    }
    runs
}

/// Whether a run pays: what comes to lie near must be more than what stays in memory, weights included.
pub(crate) fn pays(whole: Traffic, inner: usize) -> bool {
    inner >= whole.weights + (whole.slice - inner.min(whole.slice))
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
        let step = |slice, weights| Some(Traffic { slice, weights });
        let near = step(NEAR_BYTES / 4, 1000);
        let heavy = step(1000, 2000);
        assert_eq!(runs(&[near, near, heavy, near, None, near, near, near], 8), [(0..2, 2), (5..8, 2)]);
        assert_eq!(runs(&[near, near], 2), []);
        assert_eq!(runs(&[step(NEAR_BYTES * 3, 0); 2], 8), []);
        assert_eq!(runs(&[step(NEAR_BYTES * 3 / 2, 0); 2], 6), [(0..2, 6)]);
        assert!(pays(Traffic { slice: 1000, weights: 100 }, 600) && !pays(Traffic { slice: 1000, weights: 300 }, 600));
        // Many small images go together.
        assert_eq!(runs(&[step(NEAR_BYTES / 64, 0); 2], 1024), [(0..2, 16)]);
    }
}
