use super::edit::done;
use super::{Pass, PassOptions, PassReport};
use crate::ops::channels::{channels_last, first_from_last, last_from_first, to_channels_last};
use crate::ops::{Concat, Conv, Factors, Op, Padding, Pool, PoolKind, Reduce, Resize, Softmax, Transpose};
use crate::{Dims, Fact, Graph, Node, ValueId};
use halimede_tensor::DType;
use smallvec::{SmallVec, smallvec};
use std::collections::{HashMap, HashSet};

/// Computes convolutions on data whose channels lie last, and everything between them too, so that
/// only the edges of a convolutional network transpose.
///
/// A convolution then is a matrix product of pixels by channels whose operands both lie in memory in the
/// order they are read, and a pixel's channels fill whole vectors however small the image is.
pub(super) const PASS: Pass = Pass { name: "channels last", run };

/// Fewer channels than this do not fill the vectors of a pixel.
pub(super) const CHANNELS_MIN: usize = 8;

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    let nodes = std::mem::take(&mut graph.nodes);
    let mut layouts = Layouts { graph, nodes: Vec::new(), last: HashMap::new(), unwritten: HashSet::new() };
    for node in nodes {
        match layouts.moved(&node) {
            Some(moved) => {
                if matches!(moved.op, Op::Conv(_)) {
                    done(layouts.graph, &node, "its data has the channels last", report);
                }
                layouts.nodes.push(moved);
            }
            None => {
                node.inputs.iter().flatten().for_each(|&input| layouts.write(input));
                layouts.nodes.push(node);
            }
        }
    }
    for output in layouts.graph.outputs.clone() {
        layouts.write(output);
    }
    let nodes = layouts.nodes;
    graph.nodes = nodes;
}

/// A graph that is being written anew.
struct Layouts<'g> {
    graph: &'g mut Graph,
    nodes: Vec<Node>,
    /// For a value, the one with the same numbers and the channels last.
    last: HashMap<ValueId, ValueId>,
    /// Values that so far exist with the channels last only.
    unwritten: HashSet<ValueId>,
}

impl Layouts<'_> {
    /// Makes sure that a value exists in its own layout.
    fn write(&mut self, value: ValueId) {
        if !self.unwritten.remove(&value) {
            return;
        }
        let (last, rank) = (self.last[&value], self.rank(value).unwrap_or(0));
        self.transpose(last, value, first_from_last(rank));
    }

    fn transpose(&mut self, from: ValueId, to: ValueId, perm: SmallVec<[usize; 6]>) {
        self.nodes.push(Node {
            name: self.graph.values[to.index()].name.clone(),
            origin: "Transpose (layout)".to_owned(),
            op: Op::Transpose(Transpose { perm }),
            inputs: smallvec![Some(from)],
            outputs: smallvec![to],
        });
    }

    fn rank(&self, value: ValueId) -> Option<usize> {
        self.graph.fact(value).shape.as_ref().map(|shape| shape.len())
    }

    fn has_last(&self, value: ValueId) -> bool {
        self.last.contains_key(&value)
    }

    /// The value with its channels last, transposed here where no node has it so.
    fn channels_last(&mut self, value: ValueId) -> Option<ValueId> {
        if let Some(&last) = self.last.get(&value) {
            return Some(last);
        }
        let last = match self.graph.constant(value) {
            Some(constant) => {
                let constant = to_channels_last(constant).ok()?;
                self.graph.add_constant(self.name(value), constant)
            }
            None => {
                let last = self.twin(value)?;
                self.transpose(value, last, last_from_first(self.rank(value)?));
                last
            }
        };
        self.last.insert(value, last);
        Some(last)
    }

    /// A new value for the numbers of another with the channels last.
    fn twin(&mut self, value: ValueId) -> Option<ValueId> {
        let fact = self.graph.fact(value);
        let shape = channels_last::<_, Dims>(fact.shape.as_ref()?);
        let fact = Fact { shape: Some(shape), constant: None, elements: None, ..fact.clone() };
        Some(self.graph.add_value(self.name(value), fact))
    }

    fn name(&self, value: ValueId) -> String {
        format!("{} (channels last)", self.graph.values[value.index()].name)
    }

    /// An operand that broadcasts to a result of `rank` axes; `None` where that cannot be said.
    fn operand(&mut self, value: ValueId, rank: usize) -> Option<ValueId> {
        let shape = self.graph.fact(value).shape.clone()?;
        if shape.iter().all(|dim| dim.known() == Some(1)) && shape.len() <= 1 {
            return Some(value);
        }
        if shape.len() == rank {
            return self.channels_last(value);
        }
        // Axes are matched from the last: the missing ones are ones in front.
        let constant = self.graph.constant(value)?;
        let missing = rank.checked_sub(constant.rank())?;
        let shape: Vec<usize> = std::iter::repeat_n(1, missing).chain(constant.shape().iter().copied()).collect();
        let last = to_channels_last(&constant.reshaped(&shape).ok()?).ok()?;
        Some(self.graph.add_constant(self.name(value), last))
    }

    /// Whether an operand can be had by [`Layouts::operand`], without making it.
    fn fits(&self, value: ValueId, rank: usize) -> bool {
        let Some(shape) = &self.graph.fact(value).shape else { return false };
        let one = shape.len() <= 1 && shape.iter().all(|dim| dim.known() == Some(1));
        one || shape.len() == rank || (shape.len() < rank && self.graph.constant(value).is_some())
    }

    /// The node on data with the channels last; `None` where it stays as it is.
    fn moved(&mut self, node: &Node) -> Option<Node> {
        let output = *node.outputs.first()?;
        let rank = self.rank(output)?;
        let data = node.inputs.first().copied().flatten();
        let here = data.is_some_and(|data| self.has_last(data));
        match &node.op {
            Op::Conv(op) => self.conv(op, node, rank),
            Op::Pool(op) if here && op.outputs == 1 && rank == 4 && self.is_pooled(op, data?) => {
                let op = Op::Pool(Pool { channels_last: true, ..op.clone() });
                self.pointwise(node, op, rank)
            }
            Op::Map(_) | Op::Cast(_) if rank >= 3 && self.mostly_here(node, rank) => {
                self.pointwise(node, node.op.clone(), rank)
            }
            Op::Quantize(_) | Op::Dequantize(_) if here && self.has_one_scale(node) => {
                self.pointwise(node, node.op.clone(), rank)
            }
            Op::Softmax(op) if here => {
                let op = Op::Softmax(Softmax { axis: moved_axis(op.axis, rank), ..op.clone() });
                self.pointwise(node, op, rank)
            }
            Op::Concat(op) if rank >= 3 && self.mostly_here(node, rank) => {
                let op = Op::Concat(Concat { axis: moved_axis(op.axis, rank) });
                self.pointwise(node, op, rank)
            }
            Op::Reduce(op) if here => self.reduce(op, node, data?),
            Op::Resize(op) if here => self.resize(op, node, data?, rank),
            _ => None,
        }
    }

    /// Whether one scale is for the whole of a tensor that is quantised or dequantised.
    fn has_one_scale(&self, node: &Node) -> bool {
        let parameters = node.inputs.iter().skip(1).flatten();
        parameters.into_iter().all(|&value| self.graph.fact(value).count() == Some(1))
    }

    fn is_f32(&self, value: ValueId) -> bool {
        self.graph.fact(value).dtype == Some(DType::F32)
    }

    /// Whether pooling has a kernel for data whose channels lie last.
    fn is_pooled(&self, op: &Pool, data: ValueId) -> bool {
        let bytes = matches!(self.graph.fact(data).dtype, Some(DType::U8 | DType::I8));
        self.is_f32(data) || (bytes && matches!(op.kind, PoolKind::Max { .. }))
    }

    /// Whether at least half of what a pointwise operation reads in full lies with its channels last, and
    /// the rest can follow.
    fn mostly_here(&self, node: &Node, rank: usize) -> bool {
        let full = |value: &&ValueId| self.rank(**value) == Some(rank) && self.graph.constant(**value).is_none();
        let inputs = || node.inputs.iter().flatten();
        let here = inputs().filter(full).filter(|value| self.has_last(**value)).count();
        here > 0 && 2 * here >= inputs().filter(full).count() && inputs().all(|&value| self.fits(value, rank))
    }

    /// A node all of whose inputs broadcast to its output.
    fn pointwise(&mut self, node: &Node, op: Op, rank: usize) -> Option<Node> {
        if !node.inputs.iter().flatten().all(|&value| self.fits(value, rank)) {
            return None;
        }
        let mut inputs = SmallVec::new();
        for input in &node.inputs {
            inputs.push(match input {
                Some(value) => Some(self.operand(*value, rank)?),
                None => None,
            });
        }
        self.replaced(node, op, inputs)
    }

    /// The node on other inputs, with its channels last.
    fn replaced(&mut self, node: &Node, op: Op, inputs: SmallVec<[Option<ValueId>; 4]>) -> Option<Node> {
        let output = node.outputs[0];
        let last = self.twin(output)?;
        self.last.insert(output, last);
        self.unwritten.insert(output);
        Some(Node { op, inputs, outputs: smallvec![last], ..node.clone() })
    }

    fn conv(&mut self, op: &Conv, node: &Node, rank: usize) -> Option<Node> {
        let (data, weights) = (node.inputs[0]?, node.inputs[1]?);
        let shape: Vec<usize> = self.graph.constant(weights)?.shape().to_vec();
        let &channels = shape.first()?;
        if op.transposed.is_some() {
            return self.transposed(op, node, rank, &shape);
        }
        let narrow = op.narrow_groups(&shape).is_some();
        let wide = (if narrow { channels } else { channels / op.groups.max(1) }) >= CHANNELS_MIN;
        // A product of pixels is worth more than a transposition, however few its columns.
        let product = self.has_last(data) && shape[2..].iter().all(|&taps| taps == 1);
        let two = (3..=4).contains(&rank) && self.rank(data) == Some(rank) && op.transposed.is_none();
        let more = node.inputs.get(3..).unwrap_or_default();
        let fits = op.multiply == Some(Factors::Integers) || self.is_f32(data) && self.is_f32(weights);
        if op.channels_last || !two || !(wide || product) || !fits {
            return None;
        }
        if !more.iter().flatten().all(|&value| self.fits(value, rank)) {
            return None;
        }
        let inputs = self.conv_inputs(node, data, rank)?;
        self.replaced(node, Op::Conv(Conv { channels_last: true, ..op.clone() }), inputs)
    }

    /// The inputs of a convolution: weights and bias stay, what its epilogue reads comes along.
    fn conv_inputs(&mut self, node: &Node, data: ValueId, rank: usize) -> Option<SmallVec<[Option<ValueId>; 4]>> {
        let mut inputs: SmallVec<[Option<ValueId>; 4]> = smallvec![Some(self.channels_last(data)?)];
        inputs.extend(node.inputs.iter().skip(1).take(2).copied());
        for value in node.inputs.get(3..).unwrap_or_default() {
            inputs.push(match value {
                Some(value) => Some(self.operand(*value, rank)?),
                None => None,
            });
        }
        Some(inputs)
    }

    /// A transposed convolution whose taps do not depend on the size of the data.
    fn transposed(&mut self, op: &Conv, node: &Node, rank: usize, weights: &[usize]) -> Option<Node> {
        let data = node.inputs[0]?;
        let fixed = matches!(op.padding, Padding::Explicit(_))
            && op.transposed.as_ref().is_some_and(|transposed| transposed.output_shape.is_empty());
        let narrow = op.narrow_groups(weights).is_some();
        let wide = (if narrow { weights[0] } else { *weights.get(1)? }) >= CHANNELS_MIN;
        let fits = fixed && (3..=4).contains(&rank) && wide;
        let more = node.inputs.get(3..).unwrap_or_default();
        if op.channels_last || !fits || !self.is_f32(data) || !self.is_f32(node.inputs[1]?) {
            return None;
        }
        if !more.iter().flatten().all(|&value| self.fits(value, rank)) {
            return None;
        }
        let inputs = self.conv_inputs(node, data, rank)?;
        self.replaced(node, Op::Conv(Conv { channels_last: true, ..op.clone() }), inputs)
    }

    /// Resampling: scales and sizes stay, and speak of the axes where they lie now.
    fn resize(&mut self, op: &Resize, node: &Node, data: ValueId, rank: usize) -> Option<Node> {
        let every: SmallVec<[usize; 4]> = (0..rank).collect();
        let axes = if op.axes.is_empty() { &every } else { &op.axes };
        let axes = axes.iter().map(|&axis| moved_axis(axis, rank)).collect();
        let mut inputs = node.inputs.clone();
        inputs[0] = Some(self.channels_last(data)?);
        self.replaced(node, Op::Resize(Resize { axes, ..op.clone() }), inputs)
    }

    fn reduce(&mut self, op: &Reduce, node: &Node, data: ValueId) -> Option<Node> {
        let rank = self.rank(data)?;
        let mut axes: SmallVec<[usize; 6]> = op.axes.iter().map(|&axis| moved_axis(axis, rank)).collect();
        axes.sort_unstable();
        let op = Op::Reduce(Reduce { axes, ..op.clone() });
        let inputs = smallvec![Some(self.channels_last(data)?)];
        let Op::Reduce(Reduce { keep_dims, axes, .. }) = &op else { return None };
        if *keep_dims {
            return self.replaced(node, op, inputs);
        }
        // Without the spatial axes, batch and channels are left in the usual order.
        let spatial: Vec<usize> = (1..rank - 1).collect();
        if axes[..] != spatial[..] {
            return None;
        }
        Some(Node { op, inputs, ..node.clone() })
    }
}

/// Where an axis lies once the channels are last.
fn moved_axis(axis: usize, rank: usize) -> usize {
    first_from_last(rank).get(axis).copied().unwrap_or(axis)
}

#[cfg(test)]
mod tests {
    use crate::ops::{
        Binary, Concat, Conv, CoordinateTransform, NearestRounding, Op, Padding, Pool, PoolKind, ReduceKind, Resize,
        ResizeMode, Softmax, Transposed, Unary,
    };
    use crate::passes::tests::{floats, graph, optimized};
    use crate::{Builder, ValueId};
    use halimede_tensor::Tensor;

    fn conv(b: &mut Builder, x: ValueId, weights: &[usize], groups: usize, transposed: Option<Transposed>) -> ValueId {
        let border = (weights[2] / 2) as i64;
        let op = Conv {
            strides: smallvec::smallvec![1; weights.len() - 2],
            dilations: smallvec::smallvec![1; weights.len() - 2],
            padding: Padding::Explicit(smallvec::smallvec![border; 2 * (weights.len() - 2)]),
            groups,
            transposed,
            channels_last: false,
            multiply: None,
            epilogue: None,
        };
        let w = b.constant(floats(weights, 0.02));
        b.add(Op::Conv(op), &[x, w]).unwrap()
    }

    #[test]
    fn a_network_transposes_at_its_edges_only() {
        let (names, graph, _) = optimized(graph(&[1, 3, 6, 6], |b, x| {
            let a = conv(b, x, &[8, 3, 3, 3], 1, None);
            let scale = b.constant(floats(&[8, 1, 1], 0.5));
            let scaled = b.binary(Binary::Mul, a, scale).unwrap();
            let a = b.unary(Unary::Tanh, scaled).unwrap();
            let c = conv(b, a, &[8, 1, 3, 3], 8, None);
            let c = b.unary(Unary::Abs, c).unwrap();
            let sum = b.binary(Binary::Sub, a, c).unwrap();
            let both = b.add(Op::Concat(Concat { axis: 1 }), &[sum, a]).unwrap();
            let pool = Pool {
                kind: PoolKind::Max { column_major: false },
                kernel: smallvec::smallvec![2, 2],
                strides: smallvec::smallvec![2, 2],
                dilations: smallvec::smallvec![1, 1],
                padding: Padding::Explicit(smallvec::smallvec![0; 4]),
                ceil_mode: false,
                outputs: 1,
                channels_last: false,
            };
            let pooled = b.add(Op::Pool(pool), &[both]).unwrap();
            let mean = b.reduce(ReduceKind::Mean, pooled, [2, 3], true).unwrap();
            let gated = b.binary(Binary::Mul, pooled, mean).unwrap();
            let parts = b.add(Op::Softmax(Softmax { axis: 1, log: false }), &[gated]).unwrap();
            b.reduce(ReduceKind::Sum, parts, [2, 3], false).unwrap()
        }));
        assert_eq!(names.iter().filter(|&&name| name == "Transpose").count(), 1, "{names:?}");
        let last = |node: &crate::Node| match &node.op {
            Op::Conv(op) => op.channels_last,
            Op::Pool(op) => op.channels_last,
            _ => true,
        };
        assert!(graph.nodes.iter().all(last));
    }

    #[test]
    fn what_turns_the_channels_of_a_convolution_reads_them_as_they_lie() {
        let (names, graph, _) = optimized(graph(&[1, 3, 20], |b, x| {
            let c = conv(b, x, &[8, 3, 3], 1, None);
            let tokens = b.transpose(c, &[0, 2, 1]).unwrap();
            b.add(Op::Softmax(Softmax { axis: 2, log: false }), &[tokens]).unwrap()
        }));
        assert_eq!(names, ["Transpose", "Conv", "Softmax"]);
        assert_eq!(graph.fact(graph.outputs[0]).known_shape().unwrap()[..], [1, 20, 8]);
    }

    #[test]
    fn resampling_comes_along() {
        for axes in [&[][..], &[2, 3]] {
            let (names, graph, _) = optimized(graph(&[1, 8, 4, 5], |b, x| {
                let c = conv(b, x, &[8, 8, 3, 3], 1, None);
                let mode = ResizeMode::Nearest(NearestRounding::Floor);
                let op = Resize { axes: axes.into(), ..Resize::new(mode, CoordinateTransform::Asymmetric) };
                let scales = [1.0, 1.0, 2.0, 3.0];
                let scales = &scales[if axes.is_empty() { 0 } else { 2 }..];
                let scales = b.constant(Tensor::from_slice(&[scales.len()], scales).unwrap());
                let y = b.add_with_optional(Op::Resize(op), &[Some(c), None, Some(scales)]).unwrap();
                conv(b, y, &[8, 8, 3, 3], 1, None)
            }));
            assert_eq!(names, ["Transpose", "Conv", "Resize", "Conv", "Transpose"]);
            let resized = graph.nodes.iter().find(|node| matches!(node.op, Op::Resize(_))).unwrap();
            assert_eq!(graph.fact(resized.outputs[0]).known_shape().unwrap()[..], [1, 8, 15, 8]);
        }
    }

    #[test]
    fn few_columns_of_a_product_come_along() {
        let few = |taps: usize| {
            let (names, ..) = optimized(graph(&[1, 8, 5, 5], |b, x| {
                let a = conv(b, x, &[8, 8, 3, 3], 1, None);
                conv(b, a, &[2, 8, taps, taps], 1, None)
            }));
            names
        };
        assert_eq!(few(1), ["Transpose", "Conv", "Conv", "Transpose"]);
        assert_eq!(few(3), ["Transpose", "Conv", "Transpose", "Conv"]);
    }

    #[test]
    fn an_output_keeps_its_layout() {
        for spatial in [&[5][..], &[5, 4]] {
            let shape = [&[2, 3], spatial].concat();
            let (names, ..) = optimized(graph(&shape, |b, x| {
                let weights = [&[8, 3], &[3; 2][..spatial.len()]].concat();
                conv(b, x, &weights, 1, None)
            }));
            assert_eq!(names, ["Transpose", "Conv", "Transpose"]);
        }
    }

    #[test]
    fn what_has_few_channels_or_many_axes_stays() {
        for (shape, weights) in [(&[1, 3, 5, 5][..], &[4, 3, 3, 3][..]), (&[1, 2, 3, 4, 5], &[8, 2, 1, 1, 1])] {
            let (names, ..) = optimized(graph(shape, |b, x| conv(b, x, weights, 1, None)));
            assert_eq!(names, ["Conv"]);
        }
    }

    #[test]
    fn groups_of_few_channels_come_along() {
        // Weights, groups: narrow ones of many channels in all, and of too few; wide ones; neither.
        for (weights, groups, transposed, expected) in [
            ([16, 4, 3, 3], 4, false, true),
            ([4, 2, 3, 3], 2, false, false),
            ([24, 6, 3, 3], 2, false, true),
            ([12, 6, 3, 3], 2, false, false),
            ([16, 2, 3, 3], 8, true, true),
            ([16, 4, 3, 3], 2, true, false),
        ] {
            let channels = if transposed { weights[0] } else { weights[1] * groups };
            let transposed = transposed.then(Transposed::default);
            let (_, graph, _) = optimized(graph(&[1, channels, 5, 5], |b, x| conv(b, x, &weights, groups, transposed)));
            let is_last = graph.nodes.iter().any(|node| matches!(&node.op, Op::Conv(op) if op.channels_last));
            assert_eq!(is_last, expected, "{weights:?} in {groups} groups");
        }
    }

    #[test]
    fn transposed_convolutions_come_along() {
        let shaped = Transposed { output_shape: smallvec::smallvec![5, 5], ..Transposed::default() };
        for (transposed, expected) in [(Transposed::default(), true), (shaped, false)] {
            let (_, graph, _) =
                optimized(graph(&[1, 3, 5, 5], |b, x| conv(b, x, &[3, 8, 3, 3], 1, Some(transposed.clone()))));
            let moved = graph.nodes.iter().any(|node| matches!(&node.op, Op::Conv(op) if op.channels_last));
            assert_eq!(moved, expected);
        }
    }
}
