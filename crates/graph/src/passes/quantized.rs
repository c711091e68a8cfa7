//! Products of integers in a graph of floats: with weights rounded to 8 bits, and what they multiply rounded by the
//! range that it was seen to have.

use super::edit::{is_output, remove};
use super::integers::multiplies_integers;
use super::layout::CHANNELS_MIN;
use super::maps::{self, append};
use super::{PassOptions, dead, epilogue, run};
use crate::eight_bits::column_scales;
use crate::ops::{Binary, Contract, Conv, Factors, Instruction, Map, Op, Pool, PoolKind, Quantize};
use crate::{Fact, Graph, Node, Range, ValueId};
use halimede_tensor::{DType, Tensor};
use smallvec::{SmallVec, smallvec};
use std::collections::{BTreeMap, HashMap};

/// The products of a graph whose passes have run that multiply integers with profit, by name, with what they
/// multiply: products and convolutions of f32 with stored weights, where their data are quantised as they are
/// computed or, rounded by a step of its own, each number is multiplied `factors_min` times. None that `stays` as it is,
/// none in a graph that is quantised already, and none in bodies of control flow.
pub fn quantizable<'g>(graph: &'g Graph, factors_min: f64, stays: &dyn Fn(&Node) -> bool) -> Vec<(&'g str, ValueId)> {
    if graph.nodes.iter().any(is_quantized) {
        return Vec::new();
    }
    let (producers, consumers) = (graph.producers(), graph.consumers());
    // A node may have no inputs at all.
    let data = |index: usize| {
        let node: &Node = &graph.nodes[index];
        let data = node.inputs.first().copied().flatten()?;
        (column_axis(graph, node).is_some() && !stays(node)).then_some(data)
    };
    let mut found: BTreeMap<usize, ValueId> =
        (0..graph.nodes.len()).filter_map(|index| Some((index, data(index)?))).collect();
    // Each that falls out may take others with it.
    loop {
        let is_computed_so = |value: &ValueId| {
            let by = producers[value.index()];
            let quantizes = by.is_some_and(|by| found.contains_key(&by));
            let becomes_integers = |reader: &usize| {
                found.get(reader).is_some_and(|data| data == value || adds(&graph.nodes[*reader], *value))
            };
            quantizes && !is_output(graph, *value) && consumers[value.index()].iter().all(becomes_integers)
        };
        let factors = |value: &ValueId| -> f64 {
            let readers = found.iter().filter(|(_, data)| *data == value);
            readers.map(|(&reader, _)| factors_of_each(graph, &graph.nodes[reader])).sum()
        };
        let pays = |value: &ValueId| is_computed_so(value) || factors(value) >= factors_min;
        let kept: BTreeMap<usize, ValueId> =
            found.iter().filter(|(_, value)| pays(value)).map(|(&index, &value)| (index, value)).collect();
        if kept.len() == found.len() {
            return kept.into_iter().map(|(index, value)| (graph.nodes[index].name.as_str(), value)).collect();
        }
        found = kept;
    }
}

/// What these products of integers ([`quantizable`]) give that others of them add and nobody else reads, by the name under which
/// [`multiply_integers`] looks for its range: written in 8 bits it takes half of the time to write and to read.
pub fn residuals(graph: &Graph, products: &[(&str, ValueId)]) -> Vec<(String, ValueId)> {
    let is_product = |node: &Node| products.iter().any(|(name, _)| *name == node.name);
    added(graph, is_product).into_iter().map(|value| (name_of_residual(graph, value), value)).collect()
}

fn name_of_residual(graph: &Graph, value: ValueId) -> String {
    format!("{} (added)", graph.values[value.index()].name)
}

/// Values that products give and other products, being convolutions, read in their epilogues alone.
fn added(graph: &Graph, is_product: impl Fn(&Node) -> bool) -> Vec<ValueId> {
    let consumers = graph.consumers();
    let products = graph.nodes.iter().filter(|node| is_product(node));
    let results = products.filter_map(|node| node.outputs.first().copied());
    let is_added = |value: &ValueId| {
        let mut readers = consumers[value.index()].iter().map(|&reader| &graph.nodes[reader]).peekable();
        let is_read = readers.peek().is_some() && !is_output(graph, *value);
        is_read && readers.all(|reader| adds(reader, *value) && is_product(reader))
    };
    results.filter(is_added).collect()
}

/// Whether a convolution reads a value in its epilogue alone.
fn adds(node: &Node, value: ValueId) -> bool {
    matches!(&node.op, Op::Conv(_)) && node.inputs.iter().position(|input| *input == Some(value)) >= Some(CONV_INPUTS)
}

/// Inputs of a convolution of floats that are not those of its epilogue.
const CONV_INPUTS: usize = 3;

/// Products of a number of 8 bits and a weight whose sum is certain to fit into 32 bits.
const SUMMED_MAX: usize = (i32::MAX / (255 * 127)) as usize;

/// How often a product multiplies each number of its data.
fn factors_of_each(graph: &Graph, node: &Node) -> f64 {
    let weights = node.inputs[1].and_then(|weights| graph.constant(weights)).map_or(&[][..], Tensor::shape);
    match &node.op {
        Op::Conv(op) => {
            let taps = weights.iter().product::<usize>() as f64 / weights.get(1).map_or(1.0, |&inputs| inputs as f64);
            taps / op.strides.iter().product::<usize>().max(1) as f64
        }
        Op::Contract(op) => op.column_axis().map_or(0.0, |axis| weights[axis] as f64),
        _ => 0.0,
    }
}

/// Lets the products of these names multiply integers: their weights are rounded to 8 bits by a scale for each
/// column, what they multiply by a scale and zero point that cover the range.
///
/// ```text
/// epilogue(x · w + b) = epilogue(f32(Σ (quantize(x) - zero)·round(w / scale of w)) · (scale of x · scale of w) + b)
/// ```
///
/// A residual that a convolution multiplies too is read as that was rounded, and one that has a range of its own
/// ([`residuals`]) by that: then its floats need not be written at all.
/// The largest of numbers that were rounded is the largest of them rounded: what a pooling alone reads is rounded before it.
///
/// The graph keeps the weights as they are; a kernel rounds them as it packs them.
pub fn multiply_integers(graph: &mut Graph, ranges: &BTreeMap<String, Range>) {
    let is_product = |node: &Node| ranges.contains_key(&node.name) && column_axis(graph, node).is_some();
    let added = added(graph, is_product).into_iter();
    let added = added.filter_map(|value| Some((value, *ranges.get(&name_of_residual(graph, value))?))).collect();
    let pooled = pooled(graph, ranges);
    let mut writer = Writer { quantized: HashMap::new(), pooled, added, nodes: Vec::with_capacity(graph.nodes.len()) };
    for node in std::mem::take(&mut graph.nodes) {
        let range = ranges.get(&node.name);
        let made = range.and_then(|&range| writer.product(graph, &node, range));
        writer.nodes.push(made.unwrap_or(node));
    }
    graph.nodes = writer.nodes;
    // What is quantised becomes part of what computes it, where nobody reads the floats any more.
    for pass in [&dead::PASS, &maps::FUSION, &epilogue::PASS, &dead::PASS] {
        run(pass, graph, &PassOptions::default());
    }
    quantizations(graph, &writer.quantized);
    quantize_in_norms(graph, &writer.quantized);
}

/// What poolings give that products of integers of one range alone multiply, with their data, where a product writes those for the
/// pooling alone.
fn pooled(graph: &Graph, ranges: &BTreeMap<String, Range>) -> HashMap<ValueId, ValueId> {
    let (producers, consumers) = (graph.producers(), graph.consumers());
    let range = |node: &Node| ranges.get(&node.name).filter(|_| column_axis(graph, node).is_some());
    let of_pooling = |node: &Node| {
        let Op::Pool(Pool { kind: PoolKind::Max { .. }, outputs: 1, .. }) = &node.op else { return None };
        let (data, output) = (node.inputs[0]?, node.outputs[0]);
        let is_alone = consumers[data.index()].len() == 1 && !is_output(graph, data) && !is_output(graph, output);
        range(&graph.nodes[producers[data.index()]?]).filter(|_| is_alone)?;
        let readers = || consumers[output.index()].iter().map(|&reader| &graph.nodes[reader]);
        let of_first = range(readers().next()?)?;
        let reads_it_so = |reader: &Node| {
            let times = reader.inputs.iter().filter(|input| **input == Some(output)).count();
            range(reader) == Some(of_first) && reader.inputs[0] == Some(output) && times == 1
        };
        readers().all(reads_it_so).then_some((output, data))
    };
    graph.nodes.iter().filter_map(of_pooling).collect()
}

/// Lets a normalisation write what it gives in 8 bits too, instead of an operation that reads it again.
fn quantize_in_norms(graph: &mut Graph, quantized: &HashMap<Quantized, ValueId>) {
    let producers = graph.producers();
    let by_output: HashMap<ValueId, Quantized> = quantized.iter().map(|(of, output)| (*output, *of)).collect();
    let mut gone = vec![false; graph.nodes.len()];
    for (index, gone) in gone.iter_mut().enumerate() {
        let node = &graph.nodes[index];
        let Some(&(value, scale, zero)) = by_output.get(&node.outputs[0]) else { continue };
        let (output, producer) = (node.outputs[0], producers[value.index()]);
        if !matches!(node.op, Op::Quantize(_)) {
            continue;
        }
        if let Some(norm) = producer.map(|at| &mut graph.nodes[at])
            && let Op::Norm(op) = &mut norm.op
            && op.quantize.is_none()
        {
            op.quantize = Some((f32::from_bits(scale), zero));
            norm.outputs.push(output);
            *gone = true;
        }
    }
    remove(graph, &gone);
}

/// Makes quantisations of the programs that no product ended with: those have a kernel of their own.
fn quantizations(graph: &mut Graph, quantized: &HashMap<Quantized, ValueId>) {
    let by_output: HashMap<ValueId, Quantized> = quantized.iter().map(|(of, output)| (*output, *of)).collect();
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let Some(&(value, scale, zero)) = by_output.get(&node.outputs[0]) else { continue };
        if !matches!(node.op, Op::Map(_)) || node.inputs[..] != [Some(value)] {
            continue;
        }
        let name = node.name.clone();
        let (op, steps) = quantization(graph, &name, f32::from_bits(scale), zero);
        let node = &mut graph.nodes[index];
        node.op = op;
        node.inputs.extend(steps);
    }
}

/// The operation that makes a value U8, and what it reads beside the value.
fn quantization(graph: &mut Graph, name: &str, scale: f32, zero: u8) -> (Op, [Option<ValueId>; 2]) {
    let scale = graph.add_constant(format!("{name}/scale"), Tensor::scalar(scale));
    let zero = graph.add_constant(format!("{name}/zero point"), Tensor::scalar(zero));
    // In f32, whatever floats the value comes to be kept in.
    let precision = Some(DType::F32);
    let op = Op::Quantize(Quantize { to: DType::U8, axis: 0, block: 0, saturate: true, precision });
    (op, [Some(scale), Some(zero)])
}

fn is_quantized(node: &Node) -> bool {
    matches!(node.op, Op::Quantize(_) | Op::Dequantize(_)) || multiplies_integers(node)
}

/// The axis of the weights that counts the columns of a product which can multiply integers.
fn column_axis(graph: &Graph, node: &Node) -> Option<usize> {
    let (data, weights) = (graph.fact((*node.inputs.first()?)?), graph.fact((*node.inputs.get(1)?)?));
    let f32s = [data, weights, graph.fact(*node.outputs.first()?)].iter().all(|fact| fact.dtype == Some(DType::F32));
    let shape = weights.constant.as_ref()?.shape();
    if !f32s || data.constant.is_some() || data.shape.is_none() {
        return None;
    }
    let axis = match &node.op {
        Op::Contract(op @ Contract { multiply: None, .. }) => op.column_axis().filter(|&axis| is_plain(op, axis))?,
        Op::Conv(Conv { multiply: None, groups: 1, transposed: None, channels_last: true, .. }) => {
            let bias = node.inputs.get(2).copied().flatten();
            let fits = |bias: ValueId| graph.constant(bias).is_some_and(|bias| bias.shape() == [shape[0]]);
            Some(0).filter(|_| bias.is_none_or(fits))?
        }
        _ => return None,
    };
    let fits = shape[axis] >= CHANNELS_MIN && !shape.contains(&0);
    // Longer sums may exceed 32 bits.
    (fits && shape.iter().product::<usize>() / shape[axis] <= SUMMED_MAX).then_some(axis)
}

/// Whether the left operand's rows, in their order, are those of the output, and its last axis is summed over.
fn is_plain(op: &Contract, column_axis: usize) -> bool {
    let Some((summed, rows)) = op.lhs.split_last() else { return false };
    op.rhs[1 - column_axis] == *summed && op.out.split_last().is_some_and(|(_, of_output)| of_output == rows)
}

/// Reads an input of an epilogue, in floats.
fn residual(map: &mut Map, input: usize, residuals: &[(usize, f32, u8)]) -> Instruction {
    let Some(&(_, scale, zero)) = residuals.iter().find(|(place, ..)| *place == input) else {
        return Instruction::Input(input);
    };
    let point = map.push(Instruction::Input(input));
    let last = map.push_dequantize(point, scale, i32::from(zero));
    map.instructions[last].clone()
}

/// A value, the bits of a scale, and a zero point.
type Quantized = (ValueId, u32, u8);

struct Writer {
    nodes: Vec<Node>,
    /// Quantised values by what they were.
    quantized: HashMap<Quantized, ValueId>,
    /// As [`pooled`].
    pooled: HashMap<ValueId, ValueId>,
    /// Ranges of what is rounded to be added alone.
    added: HashMap<ValueId, Range>,
}

impl Writer {
    /// The product of integers for one of floats.
    fn product(&mut self, graph: &mut Graph, node: &Node, range: Range) -> Option<Node> {
        let axis = column_axis(graph, node)?;
        let (data, weights) = (node.inputs[0]?, node.inputs[1]?);
        let (scale, zero) = range.steps();
        let scales = column_scales(graph.constant(weights)?, axis).ok()?;
        let scales: Vec<f32> = scales.iter().map(|of_column| of_column * scale).collect();
        if !scales.iter().all(|scale| scale.is_normal()) {
            return None;
        }
        let scales = Tensor::from_slice(&[scales.len()], &scales).ok()?;
        let scales = graph.add_constant(format!("{}/scales", node.name), scales);
        let zero_point = graph.add_constant(format!("{}/zero point", node.name), Tensor::scalar(zero));
        let (bias, first_extra) = match &node.op {
            Op::Conv(_) => (node.inputs.get(2).copied().flatten(), CONV_INPUTS),
            _ => (None, 2),
        };
        let mut inputs: SmallVec<[Option<ValueId>; 4]> =
            smallvec![Some(self.quantize(graph, node, data, scale, zero)), Some(weights), Some(zero_point)];
        // Where a residual is read, by its place among the inputs of the epilogue.
        let mut residuals = Vec::new();
        for (place, extra) in node.inputs.iter().skip(first_extra).enumerate() {
            let residual = extra.filter(|extra| adds(node, *extra));
            if let Some(residual) = residual
                && let Some(range) = self.added.get(&residual)
            {
                let (scale, zero) = range.steps();
                self.quantize(graph, node, residual, scale, zero);
            }
            let rounded = residual.and_then(|residual| self.rounded(residual));
            residuals.extend(rounded.map(|(_, scale, zero)| (place + 1, scale, zero)));
            inputs.push(rounded.map(|(value, ..)| value).or(*extra));
        }
        let mut map = Map::default();
        let sum = map.push(Instruction::Input(0));
        let sum = map.push(Instruction::Cast(DType::F32, sum));
        // Of the inputs of a map, the first is the sum, and stands for the three of the product.
        let mut operand = |map: &mut Map, value| {
            inputs.push(Some(value));
            map.push(Instruction::Input(inputs.len() - 3))
        };
        let scales = operand(&mut map, scales);
        let mut result = map.push(Instruction::Binary(Binary::Mul, sum, scales));
        if let Some(bias) = bias {
            let bias = operand(&mut map, bias);
            result = map.push(Instruction::Binary(Binary::Add, result, bias));
        }
        let mut op = node.op.clone();
        let (multiply, epilogue) = match &mut op {
            Op::Contract(op) => (&mut op.multiply, &mut op.epilogue),
            Op::Conv(op) => (&mut op.multiply, &mut op.epilogue),
            _ => return None,
        };
        if let Some(epilogue) = epilogue {
            let read = &mut |map: &mut Map, input: usize| residual(map, input, &residuals);
            let is_result = |input| input == 0;
            append(&mut map, epilogue, read, Some((&is_result, result)));
        }
        (*multiply, *epilogue) = (Some(Factors::Integers), Some(map));
        Some(Node { op, inputs, ..node.clone() })
    }

    /// What a value was rounded to, where that was to one grid alone, with the grid's scale and zero point.
    fn rounded(&self, value: ValueId) -> Option<(ValueId, f32, u8)> {
        let mut known = self.quantized.iter().filter(|((of, ..), _)| *of == value);
        let (&(_, scale, zero), &rounded) = known.next()?;
        known.next().is_none().then_some((rounded, f32::from_bits(scale), zero))
    }

    /// A value as U8, written before its first reader.
    fn quantize(&mut self, graph: &mut Graph, reader: &Node, value: ValueId, scale: f32, zero: u8) -> ValueId {
        let key = (value, scale.to_bits(), zero);
        if let Some(&quantized) = self.quantized.get(&key) {
            return quantized;
        }
        let producer = self.nodes.iter().find(|node| node.outputs.contains(&value));
        let fact = Fact { dtype: Some(DType::U8), constant: None, elements: None, ..graph.fact(value).clone() };
        let name = format!("{} (quantised)", graph.values[value.index()].name);
        let quantized = graph.add_value(name.clone(), fact);
        let node = match (self.pooled.get(&value), producer) {
            (Some(&data), Some(pooling)) => {
                let pooling = pooling.clone();
                let data = self.quantize(graph, reader, data, scale, zero);
                Node { inputs: smallvec![Some(data)], outputs: smallvec![quantized], ..pooling }
            }
            (_, producer) => {
                // A product ends with it. A program would not: in integers it is slow, and the quantisation has a kernel.
                let is_product = |node: &Node| matches!(node.op, Op::Contract(_) | Op::Conv(_));
                let (op, steps) = if producer.is_some_and(is_product) {
                    let mut map = Map::default();
                    let x = map.push(Instruction::Input(0));
                    map.push_quantize(x, scale, i32::from(zero), DType::U8);
                    (Op::Map(map), [None; 2])
                } else {
                    quantization(graph, &name, scale, zero)
                };
                let inputs = [Some(value)].into_iter().chain(steps.into_iter().filter(Option::is_some)).collect();
                let origin = format!("{} (quantised)", reader.origin);
                Node { name, origin, op, inputs, outputs: smallvec![quantized] }
            }
        };
        self.nodes.push(node);
        self.quantized.insert(key, quantized);
        quantized
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{floats, graph, optimized};
    use super::*;
    use crate::ops::{Norm, NormKind, Padding, Unary};
    use crate::{Builder, reference};
    use halimede_tensor::Value;

    fn conv(b: &mut Builder, name: &str, x: ValueId, weights: &[usize], groups: usize) -> ValueId {
        let border = weights[2] as i64 / 2;
        let op = Conv {
            strides: smallvec![1, 1],
            dilations: smallvec![1, 1],
            padding: Padding::Explicit(smallvec![border; 4]),
            groups,
            transposed: None,
            channels_last: false,
            multiply: None,
            epilogue: None,
        };
        // About 0, as weights are.
        let count: usize = weights.iter().product();
        let numbers: Vec<f32> = (0..count).map(|i| ((i * 37) % 101) as f32 * 0.004 - 0.2).collect();
        let w = b.constant(Tensor::from_slice(weights, &numbers).unwrap());
        let bias = b.constant(floats(&weights[..1], 0.05));
        b.at(name, "Conv").add(Op::Conv(op), &[x, w, bias]).unwrap()
    }

    fn matmul(b: &mut Builder, name: &str, x: ValueId, shape: &[usize]) -> ValueId {
        // Equal products would become one.
        let w = b.constant(floats(shape, 0.002 * name.len() as f32));
        b.at(name, "MatMul").add(Op::Contract(Contract::matmul(0)), &[x, w]).unwrap()
    }

    const FACTORS_MIN: f64 = 256.0;

    /// The graph after its passes with products of integers, by the ranges that its own values have; how far its
    /// answer then is off, relative to the largest number.
    fn quantized(built: Graph) -> (Vec<&'static str>, Graph, f32) {
        let (_, exact, _) = optimized(built);
        let shape = exact.fact(exact.inputs[0]).known_shape().unwrap();
        let x = [Value::Tensor(floats(&shape, 0.01))];
        let read = |graph: &Graph| -> Vec<Vec<f32>> {
            let values = reference::run(graph, &x).unwrap();
            values.iter().map(|value| value.tensor().unwrap().to_f32s().unwrap()).collect()
        };
        let products = quantizable(&exact, FACTORS_MIN, &|_| false);
        let residuals = residuals(&exact, &products);
        let found: Vec<(String, ValueId)> =
            products.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(residuals).collect();
        let observed = Graph { outputs: found.iter().map(|(_, value)| *value).collect(), ..exact.clone() };
        let ranges = found.into_iter().zip(read(&observed));
        let ranges = ranges.map(|((name, _), values)| (name, Range::EMPTY.with(&values))).collect();
        let mut fast = exact.clone();
        multiply_integers(&mut fast, &ranges);
        let (exact, answer) = (read(&exact), read(&fast));
        let largest = exact[0].iter().fold(0f32, |largest, x| largest.max(x.abs()));
        let off = exact[0].iter().zip(&answer[0]).fold(0f32, |off, (a, b)| off.max((a - b).abs())) / largest;
        (fast.nodes.iter().map(|node| node.op.name()).collect(), fast, off)
    }

    #[test]
    fn what_a_product_gives_the_next_one_is_quantised_where_it_is_computed() {
        let (names, graph, off) = quantized(graph(&[1, 8, 6, 6], |b, x| {
            let y = conv(b, "first", x, &[40, 8, 3, 3], 1);
            let y = b.unary(Unary::Tanh, y).unwrap();
            conv(b, "second", y, &[8, 40, 1, 1], 1)
        }));
        assert_eq!(names, ["Transpose", "Quantize", "Conv", "Conv", "Transpose"]);
        let first = &graph.nodes[2];
        assert_eq!((first.op.multiply(), first.name.as_str()), (Some(Factors::Integers), "first"));
        assert_eq!(graph.fact(first.outputs[0]).dtype, Some(DType::U8));
        assert!(off > 0.0 && off < 0.02, "{off}");
    }

    #[test]
    fn a_residual_is_read_as_it_was_rounded_for_a_convolution() {
        let (names, graph, off) = quantized(graph(&[1, 8, 6, 6], |b, x| {
            let y = conv(b, "first", x, &[40, 8, 3, 3], 1);
            let y = b.unary(Unary::Tanh, y).unwrap();
            let z = conv(b, "second", y, &[16, 40, 1, 1], 1);
            let z = conv(b, "third", z, &[40, 16, 3, 3], 1);
            b.binary(Binary::Add, z, y).unwrap()
        }));
        assert_eq!(names, ["Transpose", "Quantize", "Conv", "Conv", "Conv", "Transpose"]);
        let convs = &graph.nodes[2..5];
        let types = convs.iter().map(|node| graph.fact(node.outputs[0]).dtype);
        assert_eq!(types.collect::<Vec<_>>(), [Some(DType::U8), Some(DType::U8), Some(DType::F32)]);
        assert!(convs[2].inputs.contains(&Some(convs[0].outputs[0])));
        assert!(off > 0.0 && off < 0.02, "{off}");
    }

    #[test]
    fn a_residual_that_nobody_multiplies_is_rounded_by_its_own_range() {
        let (names, graph, off) = quantized(graph(&[1, 8, 6, 6], |b, x| {
            let y = conv(b, "first", x, &[40, 8, 3, 3], 1);
            let y = b.unary(Unary::Tanh, y).unwrap();
            let beside = conv(b, "beside", y, &[40, 40, 1, 1], 1);
            let z = conv(b, "second", y, &[40, 40, 3, 3], 1);
            b.binary(Binary::Add, z, beside).unwrap()
        }));
        assert_eq!(names, ["Transpose", "Quantize", "Conv", "Conv", "Conv", "Transpose"]);
        let types = graph.nodes[2..5].iter().map(|node| graph.fact(node.outputs[0]).dtype);
        assert_eq!(types.collect::<Vec<_>>(), [Some(DType::U8), Some(DType::U8), Some(DType::F32)]);
        assert!(off > 0.0 && off < 0.02, "{off}");
    }

    #[test]
    fn what_a_pooling_reads_is_quantised_before_it() {
        let pool = || Pool {
            kind: PoolKind::Max { column_major: false },
            kernel: smallvec![3, 3],
            strides: smallvec![2, 2],
            dilations: smallvec![1, 1],
            padding: Padding::Explicit(smallvec![1; 4]),
            ceil_mode: false,
            outputs: 1,
            channels_last: false,
        };
        let built = |is_read_as_float: bool| {
            graph(&[1, 8, 6, 6], |b, x| {
                let y = conv(b, "first", x, &[40, 8, 3, 3], 1);
                let pooled = b.add(Op::Pool(pool()), &[y]).unwrap();
                let z = conv(b, "second", pooled, &[40, 40, 3, 3], 1);
                if is_read_as_float { b.binary(Binary::Mul, z, pooled).unwrap() } else { z }
            })
        };
        let (names, fast, off) = quantized(built(false));
        assert_eq!(names, ["Transpose", "Quantize", "Conv", "Pool", "Conv", "Transpose"]);
        let types = [2, 3].map(|node: usize| fast.fact(fast.nodes[node].outputs[0]).dtype);
        assert_eq!(types, [Some(DType::U8); 2]);
        assert!(off > 0.0 && off < 0.02, "{off}");
        let (names, _, off) = quantized(built(true));
        assert!(names.windows(2).any(|pair| pair == ["Pool", "Quantize"]), "{names:?}");
        assert!(off > 0.0 && off < 0.02, "{off}");
    }

    #[test]
    fn a_normalisation_quantises_what_it_gives() {
        let (names, fast, off) = quantized(graph(&[4, 64], |b, x| {
            let norm = Norm { kind: NormKind::Layer { axis: 1 }, epsilon: 1e-5, epilogue: None, quantize: None };
            let x = b.add(Op::Norm(norm), &[x]).unwrap();
            let y = matmul(b, "wide", x, &[64, 320]);
            let z = matmul(b, "back", y, &[320, 64]);
            b.binary(Binary::Add, z, x).unwrap()
        }));
        assert!(!names.contains(&"Quantize"), "{names:?}");
        let norm = fast.nodes.iter().find(|node| matches!(node.op, Op::Norm(_))).unwrap();
        assert_eq!(norm.outputs.len(), 2);
        assert!(off < 0.02, "{off}");
    }

    #[test]
    fn a_value_is_quantised_once_for_all_that_multiply_it() {
        let (names, graph, off) = quantized(graph(&[3, 40], |b, x| {
            let x = b.unary(Unary::Tanh, x).unwrap();
            let (y, z) = (matmul(b, "y", x, &[40, 160]), matmul(b, "second", x, &[40, 160]));
            let sum = b.binary(Binary::Add, y, z).unwrap();
            b.binary(Binary::Add, sum, sum).unwrap()
        }));
        assert_eq!(names, ["Map", "Quantize", "Contract", "Contract"]);
        assert_eq!(graph.fact(graph.nodes[1].outputs[0]).dtype, Some(DType::U8));
        assert!(off > 0.0 && off < 0.02, "{off}");
    }

    #[test]
    fn what_others_read_stays_a_float_beside() {
        let (names, _, off) = quantized(graph(&[3, 16], |b, x| {
            let x = b.unary(Unary::Tanh, x).unwrap();
            let y = matmul(b, "y", x, &[16, 640]);
            let y = matmul(b, "second", y, &[640, 16]);
            b.binary(Binary::Add, x, y).unwrap()
        }));
        assert_eq!(names, ["Map", "Quantize", "Contract", "Contract"]);
        assert!(off > 0.0 && off < 0.02, "{off}");
    }

    #[test]
    fn what_does_not_fit_keeps_its_floats() {
        let (_, depthwise, _) = optimized(graph(&[1, 8, 6, 6], |b, x| conv(b, "depthwise", x, &[8, 1, 3, 3], 8)));
        assert!(quantizable(&depthwise, FACTORS_MIN, &|_| false).is_empty());
        let (_, seldom, _) = optimized(graph(&[3, 40], |b, x| matmul(b, "seldom", x, &[40, 64])));
        assert!(quantizable(&seldom, FACTORS_MIN, &|_| false).is_empty(), "rounding costs more than it saves");
        let (_, narrow, _) = optimized(graph(&[3, 40], |b, x| matmul(b, "narrow", x, &[40, 4])));
        assert!(quantizable(&narrow, FACTORS_MIN, &|_| false).is_empty());
        let (_, varying, _) =
            optimized(graph(&[3, 3], |b, x| b.add(Op::Contract(Contract::matmul(0)), &[x, x]).unwrap()));
        assert!(quantizable(&varying, FACTORS_MIN, &|_| false).is_empty());
    }

    #[test]
    fn what_is_to_stay_is_not_found_and_takes_others_along() {
        let (_, chain, _) = optimized(graph(&[3, 16], |b, x| {
            let x = b.unary(Unary::Tanh, x).unwrap();
            let y = matmul(b, "first", x, &[16, 640]);
            matmul(b, "second", y, &[640, 16])
        }));
        let found = |stays: &dyn Fn(&Node) -> bool| -> Vec<&str> {
            quantizable(&chain, FACTORS_MIN, stays).into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(found(&|_| false), ["first", "second"]);
        assert_eq!(found(&|node| node.name == "second"), ["first"]);
        // Each of its numbers is multiplied 16 times: that pays where they come as integers alone.
        assert!(found(&|node| node.name == "first").is_empty());
    }

    #[test]
    fn what_is_quantised_stays_as_it_is() {
        let (_, before, _) = optimized(graph(&[3, 40], |b, x| matmul(b, "product", x, &[40, 320])));
        let mut after = before.clone();
        let ranges = BTreeMap::from([("product".to_owned(), Range { min: -1.0, max: 1.0 })]);
        multiply_integers(&mut after, &ranges);
        let found = |graph| quantizable(graph, FACTORS_MIN, &|_| false).len();
        assert_eq!((found(&before), found(&after)), (1, 0));
    }
}
