//! Which products run in fewer bits, and which values are kept so.
//!
//! Every product that the matrix unit takes rounds its operands to bf16 and sums in f32. A value between
//! operations is kept in bf16 where who writes it can round and everybody who reads it can widen: it is
//! rounded once, where it is written, and costs half the memory traffic. That holds for operations whose
//! products stay f32 as well (depthwise convolutions and groups of few channels). Inputs, outputs and constants of the graph stay as
//! they are, and every operation computes in f32.
//!
//! Where nothing multiplies bf16 fast and something multiplies f16, products by weights round their operands to that
//! instead. It has three bits more and a far smaller range: what is 65520 or more becomes infinite. Weights are looked
//! at here. Data are not: where a sample of the guard has such numbers, an output of it differs, and the product stays
//! exact; where none has, a request that has them gets infinities or what follows from them. For the same reason
//! values between operations stay f32.

use crate::Isa;
use crate::kernels::{takes_taps, takes_tiles};
use halimede_graph::ops::{Conv, Factors, Instruction, Map, Reduce, ReduceKind, Reg, ResizeMode};
use halimede_graph::{Graph, Node, Op, ValueId};
use halimede_tensor::{DType, Tensor};
use std::collections::{BTreeSet, HashSet};

/// Rewrites a graph for products of bf16, but for the nodes of the names given. Where there is no such product, as in a model that
/// quantises all of its own, values keep their numbers, too, unless `has_own_integers`, products that a precision made of integers.
pub(crate) fn narrow(graph: &mut Graph, exact_nodes: &BTreeSet<String>, has_own_integers: bool, isa: Isa) {
    narrow_products(graph, exact_nodes, isa);
    if !has_own_integers && graph.nodes.iter().all(|node| node.op.multiply() != Some(Factors::Bf16)) {
        return;
    }
    let kept = kept_narrow(graph, exact_nodes, isa);
    for &value in &kept {
        graph.values[value.index()].fact.dtype = Some(DType::Bf16);
    }
    for node in &mut graph.nodes {
        let narrow = |value: &Option<ValueId>| value.is_some_and(|value| kept.contains(&value));
        let rounded = node.outputs.iter().any(|output| kept.contains(output));
        let inputs: Vec<bool> = node.inputs.iter().map(narrow).collect();
        match &mut node.op {
            Op::Map(map) => *map = through_f32(map, &inputs, rounded),
            Op::Contract(op) => {
                let first = op.first_extra();
                rewrite_epilogue(&mut op.epilogue, &inputs, first, false, rounded);
            }
            Op::Conv(op) => rewrite_epilogue(&mut op.epilogue, &inputs, 3, false, rounded),
            // The result of a normalisation has the datatype of its data.
            Op::Norm(op) if op.epilogue.is_some() => {
                rewrite_epilogue(&mut op.epilogue, &inputs, 3, inputs[0], rounded);
            }
            _ => {}
        }
    }
}

/// Lets products by weights round their operands to f16, but for the nodes of the names given.
pub(crate) fn halve(graph: &mut Graph, exact_nodes: &BTreeSet<String>) {
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let is_f32 = |value: &Option<ValueId>| value.is_some_and(|value| graph.fact(value).dtype == Some(DType::F32));
        let fits = match &node.op {
            Op::Contract(op) => {
                op.multiply.is_none()
                    && op.dequantize.is_none()
                    && node.inputs.iter().take(2).all(is_f32)
                    && constant_weights(graph, node).is_some_and(has_range_of_f16)
            }
            _ => false,
        };
        if fits && !exact_nodes.contains(&node.name) {
            *graph.nodes[index].op.multiply_mut().expect("of a product") = Some(Factors::F16);
        }
    }
}

/// Whether all numbers of weights stay finite as f16.
fn has_range_of_f16(weights: &Tensor) -> bool {
    let Ok(bytes) = weights.bytes() else { return false };
    let (numbers, _) = bytes.as_chunks::<{ size_of::<f32>() }>();
    numbers.iter().all(|&number| f32::from_ne_bytes(number).abs() < BEYOND_F16)
}

/// The least number that is nearer to infinity than to the largest of f16.
const BEYOND_F16: f32 = 65520.0;

/// Whether a graph or a body in it multiplies integers.
pub(crate) fn has_integers(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| {
        node.op.multiply() == Some(Factors::Integers) || node.op.bodies().iter().any(|body| has_integers(body))
    })
}

/// Lets every product that the matrix unit takes round its operands.
fn narrow_products(graph: &mut Graph, exact_nodes: &BTreeSet<String>, isa: Isa) {
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        if exact_nodes.contains(&node.name) {
            continue;
        }
        let f32s = |count: usize| {
            let operands = node.inputs.iter().take(count).flatten();
            operands.into_iter().all(|&value| graph.fact(value).dtype == Some(DType::F32))
        };
        let fits = match &node.op {
            // Weights in few bits are no floats before they are read.
            Op::Contract(op) => f32s(if op.dequantize.is_some() { 1 } else { 2 }),
            Op::Conv(op) => f32s(3) && is_tiled(op, graph, node, isa),
            Op::Attention(_) => f32s(3),
            _ => false,
        };
        if let Some(multiply) = graph.nodes[index].op.multiply_mut()
            && fits
        {
            *multiply = Some(Factors::Bf16);
        }
    }
}

/// Whether the matrix unit has a kernel for a convolution.
fn is_tiled(op: &Conv, graph: &Graph, node: &Node, isa: Isa) -> bool {
    op.channels_last && constant_weights(graph, node).is_some_and(|weights| takes_tiles(op, weights.shape(), isa))
}

/// Whether the channels of a convolution each see one or few: few products for each number that is read, so that
/// they stay f32, and the numbers in memory are what counts.
fn has_taps(op: &Conv, graph: &Graph, node: &Node, isa: Isa) -> bool {
    let is_taken = |weights: &Tensor| weights.dtype() == DType::F32 && takes_taps(op, weights.shape(), isa);
    constant_weights(graph, node).is_some_and(is_taken)
}

fn constant_weights<'g>(graph: &'g Graph, node: &Node) -> Option<&'g Tensor> {
    graph.constant((*node.inputs.get(1)?)?)
}

/// Whether a reduction goes over the pixels of each channel.
fn is_over_pixels(op: &Reduce, graph: &Graph, node: &Node) -> bool {
    let rank = node.inputs[0].and_then(|data| graph.fact(data).shape.as_ref()).map_or(0, |shape| shape.len());
    matches!(op.kind, ReduceKind::Mean | ReduceKind::Max) && rank > 2 && op.axes.iter().copied().eq(1..rank - 1)
}

/// The values that are kept in bf16: none that the nodes of the names given read or write.
fn kept_narrow(graph: &Graph, exact_nodes: &BTreeSet<String>, isa: Isa) -> HashSet<ValueId> {
    let may = |node: &Node| !exact_nodes.contains(&node.name);
    let fixed: HashSet<ValueId> = graph.inputs.iter().chain(&graph.outputs).copied().collect();
    let free = |value: ValueId| {
        graph.fact(value).dtype == Some(DType::F32) && graph.constant(value).is_none() && !fixed.contains(&value)
    };
    let written = graph
        .nodes
        .iter()
        .filter(|node| may(node) && writes(graph, node, isa))
        .flat_map(|node| node.outputs.iter().copied());
    let mut kept: HashSet<ValueId> = written.filter(|&value| free(value)).collect();
    // Values fall out until every operation can do with what is left.
    loop {
        let before = kept.len();
        for node in &graph.nodes {
            for (position, value) in node.inputs.iter().enumerate() {
                if let Some(value) = value
                    && !(may(node) && reads(graph, node, position, isa))
                {
                    kept.remove(value);
                }
            }
            let together = alike(node);
            if !together.iter().all(|value| kept.contains(value)) {
                kept.retain(|value| !together.contains(value));
            }
        }
        if kept.len() == before {
            return kept;
        }
    }
}

/// Whether an operation's kernel can round its result.
fn writes(graph: &Graph, node: &Node, isa: Isa) -> bool {
    match &node.op {
        Op::Contract(op) => op.multiply.is_some(),
        Op::Conv(op) => op.multiply.is_some() || has_taps(op, graph, node, isa),
        Op::Map(_) | Op::Norm(_) | Op::Attention(_) => true,
        Op::Pool(op) => op.channels_last && op.outputs == 1,
        Op::Reduce(op) => is_over_pixels(op, graph, node),
        op => moves(op),
    }
}

/// Whether an operation's kernel can widen an input.
fn reads(graph: &Graph, node: &Node, position: usize, isa: Isa) -> bool {
    match &node.op {
        op if op.multiply() == Some(Factors::Integers) => is_residual(graph, node, position),
        // Of a quantised model: the nearest of its steps is that of the number as it is, not as it is rounded before.
        Op::Map(map) if map.quantizes() => false,
        Op::Quantize(op) => position == 0 && op.precision == Some(DType::F32),
        // The bias has few numbers.
        Op::Conv(_) => position != 2 && writes(graph, node, isa),
        Op::ShapeOf(_) => true,
        // Scale and bias are few.
        Op::Norm(_) => position == 0 || position > 2,
        Op::Attention(_) => position < 3,
        _ => writes(graph, node, isa),
    }
}

/// Whether an input is as large as the result. The scales of products of integers are not: an error of a
/// scale is one of every number that it multiplies.
fn is_residual(graph: &Graph, node: &Node, position: usize) -> bool {
    let shape = |value: ValueId| graph.fact(value).shape.as_ref();
    let input = node.inputs.get(position).copied().flatten().and_then(shape);
    input.is_some_and(|input| node.outputs.first().copied().and_then(shape) == Some(input))
}

/// Whether an operation moves numbers without reading them.
fn moves(op: &Op) -> bool {
    match op {
        Op::Reshape(_) | Op::Transpose(_) | Op::Concat(_) => true,
        Op::Resize(op) => matches!(op.mode, ResizeMode::Nearest(_)),
        _ => false,
    }
}

/// Values of an operation that have one datatype.
fn alike(node: &Node) -> Vec<ValueId> {
    let inputs = |count: usize| node.inputs.iter().take(count).flatten().copied();
    let outputs = || node.outputs.iter().copied();
    match &node.op {
        Op::Norm(op) if op.epilogue.is_some() => Vec::new(),
        // A second output is of integers.
        Op::Norm(_) => outputs().take(1).chain(inputs(1)).collect(),
        Op::Pool(_) | Op::Reduce(_) | Op::Reshape(_) | Op::Resize(_) | Op::Transpose(_) => {
            outputs().chain(inputs(1)).collect()
        }
        Op::Attention(_) => outputs().chain(inputs(3)).collect(),
        Op::Concat(_) => outputs().chain(inputs(usize::MAX)).collect(),
        _ => Vec::new(),
    }
}

/// An epilogue whose inputs from `first` on and whose result (`narrow_result`) may be bf16.
fn rewrite_epilogue(epilogue: &mut Option<Map>, inputs: &[bool], first: usize, narrow_result: bool, rounded: bool) {
    let narrow: Vec<bool> = [narrow_result].iter().chain(inputs.get(first..).unwrap_or_default()).copied().collect();
    if epilogue.is_none() && rounded {
        let mut map = Map::default();
        map.push(Instruction::Input(0));
        *epilogue = Some(map);
    }
    if let Some(map) = epilogue {
        *map = through_f32(map, &narrow, rounded);
    }
}

/// The map with its `narrow` inputs widened as they are read, and the result rounded.
fn through_f32(map: &Map, narrow: &[bool], rounded: bool) -> Map {
    let mut wide = Map::default();
    let mut places: Vec<Reg> = Vec::new();
    for instruction in &map.instructions {
        let instruction = instruction.moved(&places);
        let widened = matches!(instruction, Instruction::Input(input) if narrow.get(input) == Some(&true));
        let place = wide.push(instruction);
        places.push(if widened { wide.push(Instruction::Cast(DType::F32, place)) } else { place });
    }
    if rounded && let Some(&last) = places.last() {
        wide.push(Instruction::Cast(DType::Bf16, last));
    }
    wide
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuOptions, CpuUnit, Matrix, MatrixChoice};
    use halimede_compute::{CompileOptions, Model, ModelOptions, Precision};
    use halimede_graph::ops::{Binary, Contract, Norm, NormKind, Padding, Transpose, Transposed, Unary};
    use halimede_graph::{Builder, Fact};
    use halimede_tensor::Value;

    fn numbers(shape: &[usize], seed: usize) -> Tensor {
        let count: usize = shape.iter().product();
        let elements: Vec<f32> = (0..count).map(|i| ((i * 31 + seed * 17) % 101) as f32 * 0.02 - 1.0).collect();
        Tensor::from_slice(shape, &elements).unwrap()
    }

    /// A graph of one input `[6, 64]`, made by a function that gives its outputs.
    fn graph(make: impl FnOnce(&mut Builder, ValueId) -> Vec<ValueId>) -> Graph {
        let mut graph = Graph::default();
        let x = graph.add_value("x", Fact::tensor(DType::F32, [6, 64].map(Into::into)));
        graph.inputs.push(x);
        let outputs = make(&mut Builder::new(&mut graph), x);
        graph.outputs = outputs;
        graph
    }

    fn product(b: &mut Builder, x: ValueId, seed: usize) -> ValueId {
        let w = b.constant(numbers(&[64, 64], seed));
        b.add(Op::Contract(Contract::matmul(0)), &[x, w]).unwrap()
    }

    /// Datatypes of what the nodes write, in order.
    fn written(graph: &Graph) -> Vec<DType> {
        graph.nodes.iter().flat_map(|node| &node.outputs).filter_map(|&output| graph.fact(output).dtype).collect()
    }

    #[test]
    fn values_between_products_are_kept_in_bf16() {
        let mut graph = graph(|b, x| {
            let y = product(b, x, 1);
            let y = b.unary(Unary::Tanh, y).unwrap();
            let z = product(b, y, 2);
            vec![b.binary(Binary::Add, z, y).unwrap()]
        });
        narrow(&mut graph, &BTreeSet::new(), false, Isa::PORTABLE);
        assert_eq!(written(&graph), [DType::Bf16, DType::Bf16, DType::Bf16, DType::F32]);
        let products = graph.nodes.iter().filter(|node| matches!(&node.op, Op::Contract(op) if op.multiply.is_some()));
        assert_eq!(products.count(), 2);
    }

    #[test]
    fn products_by_weights_in_range_are_of_f16_and_values_stay() {
        let mut graph = graph(|b, x| {
            let mut products = vec![product(b, x, 1)];
            for largest in [65519f32, 65520.0, f32::INFINITY, f32::NAN] {
                let weights =
                    b.constant(Tensor::from_slice(&[64, 1], &[[1.0; 63].as_slice(), &[largest]].concat()).unwrap());
                products.push(b.add(Op::Contract(Contract::matmul(0)), &[x, weights]).unwrap());
            }
            // Nothing that is not known when the model is loaded.
            let turned = b.add(Op::Transpose(Transpose { perm: [1, 0].as_slice().into() }), &[x]).unwrap();
            products.push(b.add(Op::Contract(Contract::matmul(0)), &[x, turned]).unwrap());
            products
        });
        halve(&mut graph, &BTreeSet::new());
        assert!(written(&graph).iter().all(|&dtype| dtype == DType::F32));
        let products = graph.nodes.iter().filter(|node| matches!(node.op, Op::Contract(_)));
        let multiply: Vec<_> = products.map(|node| node.op.multiply()).collect();
        assert_eq!(multiply, [Some(Factors::F16), Some(Factors::F16), None, None, None, None]);
    }

    #[test]
    fn a_value_that_somebody_reads_in_f32_stays() {
        let mut graph = graph(|b, x| {
            let y = product(b, x, 1);
            let mean = Reduce { kind: ReduceKind::Mean, axes: [1].as_slice().into(), keep_dims: true };
            let mean = b.add(Op::Reduce(mean), &[y]).unwrap();
            let norm = Norm { kind: NormKind::Layer { axis: 1 }, epsilon: 1e-5, epilogue: None, quantize: None };
            let z = product(b, x, 2);
            let z = b.add(Op::Norm(norm), &[z]).unwrap();
            vec![mean, z]
        });
        narrow(&mut graph, &BTreeSet::new(), false, Isa::PORTABLE);
        // The reduction's data; the normalisation's data, because its result is an output of the graph.
        assert!(written(&graph).iter().all(|&dtype| dtype == DType::F32), "{:?}", written(&graph));
    }

    #[test]
    fn values_around_depthwise_convolutions_are_kept_in_bf16() {
        let mut graph = Graph::default();
        let x = graph.add_value("x", Fact::tensor(DType::F32, [1, 4, 4, 8].map(Into::into)));
        graph.inputs.push(x);
        let mut b = Builder::new(&mut graph);
        let conv = |groups| Conv {
            strides: [1, 1].as_slice().into(),
            dilations: [1, 1].as_slice().into(),
            padding: Padding::Explicit([1; 4].as_slice().into()),
            groups,
            transposed: None,
            channels_last: true,
            multiply: None,
            epilogue: None,
        };
        let (wide, deep) = (b.constant(numbers(&[8, 8, 3, 3], 1)), b.constant(numbers(&[8, 1, 3, 3], 2)));
        let y = b.add(Op::Conv(conv(1)), &[x, wide]).unwrap();
        let y = b.add(Op::Conv(conv(8)), &[y, deep]).unwrap();
        let mean = b.reduce(ReduceKind::Mean, y, [1, 2], true).unwrap();
        let y = b.binary(Binary::Mul, y, mean).unwrap();
        let y = b.add(Op::Conv(conv(1)), &[y, wide]).unwrap();
        graph.outputs.push(y);
        narrow(&mut graph, &BTreeSet::new(), false, Isa::PORTABLE);
        assert_eq!(written(&graph), [DType::Bf16, DType::Bf16, DType::Bf16, DType::Bf16, DType::F32]);
        let multiply = |node: &Node| if let Op::Conv(op) = &node.op { op.multiply } else { None };
        let multiply: Vec<_> = graph.nodes.iter().map(multiply).collect();
        assert_eq!(multiply, [Some(Factors::Bf16), None, None, None, Some(Factors::Bf16)]);
    }

    #[test]
    fn groups_read_bf16_where_their_kernel_does_and_wide_ones_multiply_it() {
        let run = |[inputs, outputs]: [usize; 2], groups: usize, transposed: bool| {
            let mut graph = Graph::default();
            let x = graph.add_value("x", Fact::tensor(DType::F32, [1, 4, 4, 8].map(Into::into)));
            graph.inputs.push(x);
            let mut b = Builder::new(&mut graph);
            let op = Conv {
                strides: [1, 1].as_slice().into(),
                dilations: [1, 1].as_slice().into(),
                padding: Padding::Explicit([0; 4].as_slice().into()),
                groups: 1,
                transposed: None,
                channels_last: true,
                multiply: None,
                epilogue: None,
            };
            let first = b.constant(numbers(&[inputs, 8, 1, 1], 1));
            let y = b.add(Op::Conv(op.clone()), &[x, first]).unwrap();
            let shape = if transposed { [inputs, outputs / groups] } else { [outputs, inputs / groups] };
            let weights = b.constant(numbers(&[shape[0], shape[1], 1, 1], 2));
            let transposed = transposed.then(Transposed::default);
            let y = b.add(Op::Conv(Conv { groups, transposed, ..op }), &[y, weights]).unwrap();
            graph.outputs.push(y);
            narrow(&mut graph, &BTreeSet::new(), false, Isa::PORTABLE);
            let multiply = graph.nodes[1].op.multiply();
            (written(&graph)[0], multiply)
        };
        assert_eq!(run([32, 32], 8, false), (DType::Bf16, None), "four channels");
        assert_eq!(run([32, 32], 8, true), (DType::Bf16, None), "four channels, transposed");
        assert_eq!(run([48, 96], 2, false), (DType::Bf16, Some(Factors::Bf16)), "24 channels to 48");
        assert_eq!(run([48, 96], 2, true), (DType::F32, None), "the same, transposed");
        assert_eq!(run([24, 48], 2, false), (DType::F32, None), "12 channels to 24");
    }

    #[test]
    fn what_a_model_quantises_itself_stays() {
        let mut graph = graph(|b, x| {
            let y = product(b, x, 1);
            let mut map = Map::default();
            let (sum, other) = (map.push(Instruction::Input(0)), map.push(Instruction::Input(1)));
            let sum = map.push(Instruction::Binary(Binary::Add, sum, other));
            map.push_quantize(sum, 0.03, 5, DType::U8);
            vec![b.add(Op::Map(map), &[y, x]).unwrap()]
        });
        narrow(&mut graph, &BTreeSet::new(), false, Isa::PORTABLE);
        assert_eq!(written(&graph), [DType::F32, DType::U8]);
    }

    #[test]
    fn scales_of_products_of_integers_stay() {
        let mut graph = graph(|b, x| {
            // What is added has the shape of the result and may be rounded; what is multiplied has not.
            let added = b.unary(Unary::Tanh, x).unwrap();
            let scale = b.reduce(ReduceKind::Max, x, [0, 1], true).unwrap();
            let scale = b.unary(Unary::Abs, scale).unwrap();
            let data = b.constant(Tensor::from_slice(&[6, 64], &[3u8; 6 * 64]).unwrap());
            let weights = b.constant(Tensor::from_slice(&[64, 64], &[2i8; 64 * 64]).unwrap());
            let zero = b.constant(Tensor::scalar(1u8));
            let mut map = Map::default();
            let [sum, scale_of_all, residual] = [0, 1, 2].map(|input| map.push(Instruction::Input(input)));
            let sum = map.push(Instruction::Cast(DType::F32, sum));
            let scaled = map.push(Instruction::Binary(Binary::Mul, sum, scale_of_all));
            map.push(Instruction::Binary(Binary::Add, scaled, residual));
            let op = Contract { multiply: Some(Factors::Integers), epilogue: Some(map), ..Contract::matmul(0) };
            let y = b.add(Op::Contract(op), &[data, weights, zero, scale, added]).unwrap();
            vec![b.unary(Unary::Tanh, y).unwrap()]
        });
        let mut own = graph.clone();
        narrow(&mut own, &BTreeSet::new(), false, Isa::PORTABLE);
        let is_narrow = |node: &Node| own.fact(node.outputs[0]).dtype == Some(DType::Bf16);
        assert!(!own.nodes.iter().any(is_narrow), "a model that quantises all of its own products");
        narrow(&mut graph, &BTreeSet::new(), true, Isa::PORTABLE);
        let kept: Vec<_> = graph.nodes.iter().map(|node| (node.op.name(), graph.fact(node.outputs[0]).dtype)).collect();
        let dtype = |index: usize| kept[index].1;
        assert_eq!(dtype(0), Some(DType::Bf16), "what is added: {kept:?}");
        assert_eq!(dtype(2), Some(DType::F32), "the scale: {kept:?}");
    }

    #[test]
    fn a_model_in_bf16_is_near_the_model_in_f32() {
        let build = || {
            graph(|b, x| {
                let y = product(b, x, 1);
                let y = b.unary(Unary::GeluErf, y).unwrap();
                let (scale, bias) = (b.constant(numbers(&[64], 5)), b.constant(numbers(&[64], 6)));
                let norm = Norm { kind: NormKind::Layer { axis: 1 }, epsilon: 1e-5, epilogue: None, quantize: None };
                let z = b.add(Op::Norm(norm), &[y, scale, bias]).unwrap();
                let z = product(b, z, 2);
                vec![b.binary(Binary::Add, z, y).unwrap()]
            })
        };
        let run = |precision| {
            let matrix = MatrixChoice::Only(Matrix::available().last().copied().unwrap_or(Matrix::PORTABLE));
            let unit = CpuUnit::new(&CpuOptions { threads: Some(1), matrix: matrix.into(), ..CpuOptions::default() });
            let options = ModelOptions { compile: CompileOptions::from(precision), ..ModelOptions::default() };
            let mut session = Model::compile(build(), &unit, &options).unwrap().session();
            session.run(&[Value::from(numbers(&[6, 64], 3))]).unwrap();
            assert_eq!(session.coverage().reference, 0);
            session.take_outputs().unwrap()[0].tensor().unwrap().slice::<f32>().unwrap().to_vec()
        };
        let (exact, balanced) = (run(Precision::Exact), run(Precision::Balanced));
        let largest = exact.iter().fold(0f32, |max, x| max.max(x.abs()));
        let error = exact.iter().zip(&balanced).fold(0f32, |max, (a, b)| max.max((a - b).abs()));
        assert!(error > 0.0 && error < 0.02 * largest, "{error} of {largest}");
    }
}
