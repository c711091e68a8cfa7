use super::edit::{Made, Reason, is_output, readers, remove, rework};
use super::layout::CHANNELS_MIN;
use super::{Pass, PassOptions, PassReport};
use crate::ops::{
    Binary, Cast, Contract, Conv, Dequantize, Factors, Instruction, Map, Op, Quantize, TensorOp, integer_weights,
};
use crate::{Graph, Node, ValueId};
use halimede_tensor::{DType, Tensor};
use smallvec::{SmallVec, smallvec};
use std::collections::HashSet;

/// Multiplies quantised data and weights as the integers that they are.
///
/// ```text
/// dequantize(x) · dequantize(w) + b = f32(Σ (x - zero)·w) · (scale of x · scale of w) + b
/// ```
///
/// The sums are exact, and what stands around the product becomes its epilogue: a quantisation of its result, or
/// where a residual is added to that, the steps that a quantisation and a dequantisation leave. It runs before
/// constants are folded, while weights still are integers.
pub(super) const PASS: Pass = Pass { name: "integer products", run };

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    let said = ("it multiplies in f32", "its integers are multiplied as they are");
    rework(graph, report, said, product);
    if graph.nodes.iter().any(multiplies_integers) {
        conversions(graph, report);
        quantizations(graph, report);
        dequantizations(graph, report);
    }
}

/// Whether a node is a product of integers.
pub(super) fn multiplies_integers(node: &Node) -> bool {
    node.op.multiply() == Some(Factors::Integers)
}

/// One scale and zero point for all of a tensor.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Steps {
    scale: f32,
    zero: i32,
}

impl Steps {
    /// Those of a node whose inputs are a value, its scale and its zero point.
    pub fn of(graph: &Graph, node: &Node) -> Option<Steps> {
        let [scale] = graph.constant(node.inputs[1]?)?.to_f32s().ok()?[..] else { return None };
        let zero = match node.inputs.get(2).copied().flatten() {
            Some(zero) => match graph.constant(zero)?.to_i64s().ok()?[..] {
                [zero] => i32::try_from(zero).ok()?,
                _ => return None,
            },
            None => 0,
        };
        (scale.is_normal() && scale > 0.0).then_some(Steps { scale, zero })
    }
}

/// Whether a datatype is of integers of 8 bits.
pub(super) fn is_byte(dtype: Option<DType>) -> bool {
    matches!(dtype, Some(DType::U8 | DType::I8))
}

/// The dequantisation to f32 that gives a value, where there is one.
fn dequantization<'g>(graph: &'g Graph, value: ValueId, producers: &[Option<usize>]) -> Option<(&'g Node, usize)> {
    let node = &graph.nodes[producers[value.index()]?];
    let Op::Dequantize(Dequantize { axis, block: 0, .. }) = &node.op else { return None };
    let fits = is_byte(graph.fact(node.inputs[0]?).dtype) && graph.fact(value).dtype == Some(DType::F32);
    fits.then_some((node, *axis))
}

/// The product of integers that a product of dequantised operands is; `None` where it is none.
fn product(graph: &mut Graph, index: usize, producers: &[Option<usize>]) -> Option<Result<Made, Reason>> {
    let node = &graph.nodes[index];
    if !matches!(
        &node.op,
        Op::Contract(Contract { multiply: None, epilogue: None, .. })
            | Op::Conv(Conv { multiply: None, epilogue: None, .. })
    ) {
        return None;
    }
    let (data, weights) = (node.inputs[0]?, node.inputs[1]?);
    let (data, _) = dequantization(graph, data, producers)?;
    let (weights, scales_axis) = dequantization(graph, weights, producers)?;
    let parts = || -> Result<(Parts, Option<Tensor>), Reason> {
        Ok(match &node.op {
            Op::Conv(op) => {
                fitting_conv(graph, op, node)?;
                (integers(graph, data, weights, (0, scales_axis))?, bias(graph, node, producers)?)
            }
            Op::Contract(op) => {
                let axis = op.column_axis().ok_or("its right operand is no matrix of columns")?;
                (integers(graph, data, weights, (axis, scales_axis))?, None)
            }
            _ => return Err("it is no product"),
        })
    };
    let (Parts { weights, scales }, bias) = match parts() {
        Ok(parts) => parts,
        Err(reason) => return Some(Err(reason)),
    };
    let zero = data.inputs.get(2).copied().flatten();
    let mut inputs: SmallVec<[Option<ValueId>; 4]> = smallvec![data.inputs[0], None, zero];
    let mut map = Map::default();
    let sum = map.push(Instruction::Input(0));
    let sum = map.push(Instruction::Cast(DType::F32, sum));
    let scale = map.push(Instruction::Input(1));
    let scaled = map.push(Instruction::Binary(Binary::Mul, sum, scale));
    if bias.is_some() {
        let bias = map.push(Instruction::Input(2));
        map.push(Instruction::Binary(Binary::Add, scaled, bias));
    }
    let (multiply, epilogue) = (Some(Factors::Integers), Some(map));
    let op = match node.op.clone() {
        Op::Contract(op) => Op::Contract(Contract { multiply, epilogue, ..op }),
        Op::Conv(op) => Op::Conv(Conv { multiply, epilogue, ..op }),
        _ => return None,
    };
    let name = node.name.clone();
    inputs[1] = Some(graph.add_constant(format!("{name}/weights"), weights));
    inputs.push(Some(graph.add_constant(format!("{name}/scales"), scales)));
    if let Some(bias) = bias {
        inputs.push(Some(graph.add_constant(format!("{name}/bias"), bias)));
    }
    Some(Ok((op, inputs)))
}

/// Whether the integer unit has a kernel for a convolution.
fn fitting_conv(graph: &Graph, op: &Conv, node: &Node) -> Result<(), Reason> {
    /// So few products of 8 bits are whole numbers of f32 together, as which kernels may sum them.
    const TAPS_MAX: usize = 128;
    /// Channels of a group that every machine's registers bring together.
    const NARROW_MAX: usize = 8;
    let weights = node.inputs[1].and_then(|weights| graph.fact(weights).known_shape());
    let is_narrow = |shape: &[usize]| {
        (3..=4).contains(&shape.len())
            && op.narrow_groups(shape).is_some_and(|width| width <= NARROW_MAX)
            && shape[0] >= CHANNELS_MIN
    };
    match weights {
        _ if op.transposed.is_some() => Err("the convolution is transposed"),
        Some(shape) if is_narrow(&shape) => match shape[1..].iter().product::<usize>() {
            0..=TAPS_MAX => Ok(()),
            _ => Err("the convolution has many taps"),
        },
        _ if op.groups != 1 => Err("the convolution has groups that no kernel of integers takes"),
        Some(shape) if (3..=4).contains(&shape.len()) && shape[0] >= CHANNELS_MIN => Ok(()),
        _ => Err("the convolution has few channels or many axes"),
    }
}

struct Parts {
    weights: Tensor,
    scales: Tensor,
}

/// Weights of I8 without a zero point, and the scale of each column (or one for all) of the result.
fn integers(graph: &Graph, data: &Node, weights: &Node, (axis, scales_axis): (usize, usize)) -> Result<Parts, Reason> {
    let steps = Steps::of(graph, data).ok_or("its data have no single constant scale")?;
    let constant = |at: usize| weights.inputs.get(at).copied().flatten().map(|value| graph.constant(value));
    let (Some(Some(tensor)), Some(Some(scales))) = (constant(0), constant(1)) else {
        return Err("its weights are no constant");
    };
    let zeros = match constant(2) {
        None => None,
        Some(Some(zeros)) => Some(zeros),
        Some(None) => return Err("the zero point of its weights is no constant"),
    };
    let columns = tensor.shape().get(axis).copied().unwrap_or(0);
    let per_column = scales.rank() == 1 && scales.len() == columns && scales_axis == axis;
    if scales.len() != 1 && !per_column {
        return Err("its weights have scales along another axis");
    }
    let scales: Vec<f32> = scales.to_f32s().map_err(|_| "a scale cannot be read")?;
    let scales: Vec<f32> = scales.iter().map(|scale| scale * steps.scale).collect();
    if !scales.iter().all(|scale| scale.is_finite()) {
        return Err("a scale is not finite");
    }
    let scales = match scales.len() {
        1 => Tensor::scalar(scales[0]),
        // Behind the channels of a convolution stand the spatial axes.
        count => Tensor::from_slice(&[&[count], &vec![1; tensor.rank() - 2][..]].concat(), &scales)
            .map_err(|_| "a constant cannot be written")?,
    };
    let weights = integer_weights(tensor, zeros, axis).ok_or("its weights less their zero point exceed 8 bits")?;
    if !has_room(&weights, axis) {
        return Err("its sums may exceed 32 bits");
    }
    Ok(Parts { weights, scales })
}

/// Whether the sums of weights along an axis, each with numbers of 8 bits less a zero point, stay within 32 bits.
pub(super) fn has_room(weights: &Tensor, axis: usize) -> bool {
    const MOST: u64 = i32::MAX as u64 / 255;
    let shape = weights.shape();
    let (columns, inner) = (shape[axis].max(1), shape[axis + 1..].iter().product::<usize>().max(1));
    // Nearly all are so short that nothing need be looked at.
    if (weights.len() / columns) as u64 <= MOST / 128 {
        return true;
    }
    let Ok(weights) = weights.slice::<i8>() else { return false };
    let mut sums = vec![0u64; columns];
    for (index, weight) in weights.iter().enumerate() {
        sums[index / inner % columns] += u64::from(weight.unsigned_abs());
    }
    sums.into_iter().all(|sum| sum <= MOST)
}

/// The bias of a convolution as a number per channel, which stands before the spatial axes.
fn bias(graph: &Graph, node: &Node, producers: &[Option<usize>]) -> Result<Option<Tensor>, Reason> {
    let Some(value) = node.inputs.get(2).copied().flatten() else { return Ok(None) };
    let known = graph.constant(value).cloned().or_else(|| {
        let producer = &graph.nodes[producers[value.index()]?];
        let Op::Dequantize(op) = &producer.op else { return None };
        let inputs: Vec<Option<&Tensor>> =
            producer.inputs.iter().map(|input| input.and_then(|value| graph.constant(value))).collect();
        inputs[0]?;
        op.evaluate(&inputs).ok()?.pop()
    });
    let bias = known.filter(|bias| bias.dtype() == DType::F32).ok_or("its bias is no constant")?;
    let spatial = node.inputs[1].and_then(|weights| graph.fact(weights).rank()).unwrap_or(2).saturating_sub(2);
    let shape: Vec<usize> = std::iter::once(bias.len()).chain(std::iter::repeat_n(1, spatial)).collect();
    bias.reshaped(&shape).map(Some).map_err(|_| "a constant cannot be written")
}

/// The epilogue of a product of integers whose result is f32.
fn epilogue(op: &mut Op) -> Option<&mut Map> {
    match op {
        Op::Contract(op) if op.multiply == Some(Factors::Integers) => op.epilogue.as_mut(),
        Op::Conv(op) if op.multiply == Some(Factors::Integers) => op.epilogue.as_mut(),
        _ => None,
    }
}

/// Makes programs of conversions of integer sums to f32.
fn conversions(graph: &mut Graph, report: &mut PassReport) {
    let producers = graph.producers();
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let (Op::Cast(Cast { to: DType::F32, .. }), Some(&Some(sums))) = (&node.op, node.inputs.first()) else {
            continue;
        };
        let product = producers[sums.index()].is_some_and(|producer| multiplies_integers(&graph.nodes[producer]));
        if product && graph.fact(sums).dtype == Some(DType::I32) {
            let mut map = Map::default();
            let sum = map.push(Instruction::Input(0));
            map.push(Instruction::Cast(DType::F32, sum));
            graph.nodes[index].op = Op::Map(map);
            report.changed += 1;
        }
    }
}

/// Ends products of integers with the quantisation of their result, and makes a program of a quantisation that
/// follows one, so that both become the epilogue of the product before.
fn quantizations(graph: &mut Graph, report: &mut PassReport) {
    let (mut producers, readers, consumers) = (graph.producers(), readers(graph), graph.consumers());
    let mut gone = vec![false; graph.nodes.len()];
    // Programs that read the unquantised result of a product already.
    let mut taken = HashSet::new();
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let Op::Quantize(Quantize { to: to @ (DType::U8 | DType::I8), block: 0, precision: None, .. }) = node.op else {
            continue;
        };
        let (Some(steps), Some(x)) = (Steps::of(graph, node), node.inputs[0]) else { continue };
        let Some(producer) = producers[x.index()].filter(|_| graph.fact(x).dtype == Some(DType::F32)) else { continue };
        let (quantized, single) = (node.outputs[0], readers[x.index()] == 1 && !is_output(graph, x));
        if matches!(graph.nodes[producer].op, Op::Map(_)) {
            let mut map = Map::default();
            let x = map.push(Instruction::Input(0));
            map.push_quantize(x, steps.scale, steps.zero, to);
            let node = &mut graph.nodes[index];
            node.op = Op::Map(map);
            node.inputs.truncate(1);
            report.changed += 1;
            continue;
        }
        // The sum with a residual, where the result is quantised for that alone.
        let snapped = match consumers[quantized.index()][..] {
            [next] if readers[quantized.index()] == 1 => residual(graph, next, steps, &consumers, &taken),
            _ => None,
        };
        let Some(map) = epilogue(&mut graph.nodes[producer].op).filter(|_| single) else { continue };
        let last = map.instructions.len() - 1;
        let output = match snapped {
            Some((dequantization, reader)) => {
                map.push_snap(last, steps.scale, steps.zero, to);
                taken.insert(reader);
                gone[dequantization] = true;
                graph.nodes[dequantization].outputs[0]
            }
            None => {
                map.push_quantize(last, steps.scale, steps.zero, to);
                quantized
            }
        };
        gone[index] = true;
        graph.nodes[producer].outputs[0] = output;
        producers[output.index()] = Some(producer);
        report.changed += 1;
    }
    remove(graph, &gone);
}

/// A dequantisation by the same steps whose result only one program reads, which has not been taken; and that.
fn residual(
    graph: &Graph,
    index: usize,
    steps: Steps,
    consumers: &[Vec<usize>],
    taken: &HashSet<usize>,
) -> Option<(usize, usize)> {
    let node = &graph.nodes[index];
    let (Op::Dequantize(Dequantize { block: 0, .. }), output) = (&node.op, node.outputs[0]) else { return None };
    let fits = Steps::of(graph, node) == Some(steps) && graph.fact(output).dtype == Some(DType::F32);
    match consumers[output.index()][..] {
        [reader] if fits && !is_output(graph, output) && !taken.contains(&reader) => {
            matches!(graph.nodes[reader].op, Op::Map(_)).then_some((index, reader))
        }
        _ => None,
    }
}

/// Makes programs of dequantisations that only programs read.
fn dequantizations(graph: &mut Graph, report: &mut PassReport) {
    let consumers = graph.consumers();
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let Op::Dequantize(Dequantize { block: 0, .. }) = &node.op else { continue };
        let (output, Some(steps)) = (node.outputs[0], Steps::of(graph, node)) else { continue };
        let fits = node.inputs[0].is_some_and(|x| is_byte(graph.fact(x).dtype) && graph.constant(x).is_none())
            && graph.fact(output).dtype == Some(DType::F32);
        let readers = &consumers[output.index()];
        let programs = readers.iter().all(|&reader| matches!(graph.nodes[reader].op, Op::Map(_)));
        if !fits || readers.is_empty() || !programs || is_output(graph, output) {
            continue;
        }
        let mut map = Map::default();
        let x = map.push(Instruction::Input(0));
        map.push_dequantize(x, steps.scale, steps.zero);
        let node = &mut graph.nodes[index];
        node.op = Op::Map(map);
        node.inputs.truncate(1);
        report.changed += 1;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::{floats, graph, optimized};
    use super::*;
    use crate::Builder;
    use crate::ops::{Padding, Unary};

    #[test]
    fn sums_have_room_in_32_bits() {
        let weights = |len: usize, weight: i8| Tensor::from_slice(&[len, 2], &vec![weight; 2 * len]).unwrap();
        assert!(has_room(&weights(1000, -128), 1) && has_room(&weights(66_311, 127), 1));
        assert!(!has_room(&weights(66_312, 127), 1) && has_room(&weights(100_000, 80), 1));
    }

    /// Quantises a value and makes a float of it again.
    pub fn quantize(b: &mut Builder, x: ValueId, scale: f32, zero: u8) -> ValueId {
        let (scale, zero) = (b.constant(Tensor::scalar(scale)), b.constant(Tensor::scalar(zero)));
        let op = Quantize { to: DType::U8, axis: 0, block: 0, saturate: true, precision: None };
        let q = b.add(Op::Quantize(op), &[x, scale, zero]).unwrap();
        dequantize(b, q, scale, zero, 0)
    }

    fn dequantize(b: &mut Builder, x: ValueId, scale: ValueId, zero: ValueId, axis: usize) -> ValueId {
        b.add(Op::Dequantize(Dequantize { to: None, axis, block: 0 }), &[x, scale, zero]).unwrap()
    }

    /// Weights whose columns lie along an axis, more than the builder itself works out; `zero` other than 0 is
    /// that of U8.
    fn weights(b: &mut Builder, shape: &[usize], axis: usize, zero: i64) -> ValueId {
        let count: usize = shape.iter().product();
        let values: Vec<i64> = (0..count as i64).map(|i| (i * 37) % 255 - 127 + zero).collect();
        let dtype = if zero == 0 { DType::I8 } else { DType::U8 };
        let scales: Vec<f32> = (0..shape[axis]).map(|i| 1.0 / (1 << (6 + i % 2)) as f32).collect();
        let w = b.constant(Tensor::from_i64s(dtype, shape, &values).unwrap());
        let scales = b.constant(Tensor::from_slice(&[shape[axis]], &scales).unwrap());
        let zeros = b.constant(Tensor::from_i64s(dtype, &[shape[axis]], &vec![zero; shape[axis]]).unwrap());
        dequantize(b, w, scales, zeros, axis)
    }

    fn conv(b: &mut Builder, x: ValueId, channels: usize) -> ValueId {
        let op = Conv {
            strides: smallvec![1, 1],
            dilations: smallvec![1, 1],
            padding: Padding::Explicit(smallvec![1, 1, 1, 1]),
            groups: 1,
            transposed: None,
            channels_last: false,
            multiply: None,
            epilogue: None,
        };
        let w = weights(b, &[16, channels, 3, 3], 0, 0);
        let bias = b.constant(floats(&[16], 0.05));
        b.add(Op::Conv(op), &[x, w, bias]).unwrap()
    }

    #[test]
    fn a_quantised_product_takes_what_stands_around_it() {
        for zero in [0, 128] {
            let (names, graph, reports) = optimized(graph(&[3, 40], |b, x| {
                let x = quantize(b, x, 0.0625, 100);
                let w = weights(b, &[40, 32], 1, zero);
                let y = b.add(Op::Contract(Contract::matmul(0)), &[x, w]).unwrap();
                let bias = b.constant(floats(&[32], 0.05));
                let y = b.binary(Binary::Add, y, bias).unwrap();
                let y = b.unary(Unary::Tanh, y).unwrap();
                quantize(b, y, 0.03125, 3)
            }));
            assert_eq!(names, ["Quantize", "Contract", "Dequantize"], "{reports:?}");
            let Op::Contract(op) = &graph.nodes[1].op else { panic!("no product") };
            assert_eq!(op.multiply, Some(Factors::Integers));
            assert_eq!(graph.fact(graph.nodes[1].outputs[0]).dtype, Some(DType::U8));
        }
    }

    #[test]
    fn a_residual_is_added_before_the_result_is_quantised() {
        let (names, graph, reports) = optimized(graph(&[1, 8, 4, 4], |b, x| {
            let x = quantize(b, x, 0.0625, 100);
            let left = conv(b, x, 8);
            let left = quantize(b, left, 0.125, 120);
            let right = conv(b, left, 16);
            let right = quantize(b, right, 0.25, 128);
            let sum = b.binary(Binary::Add, right, left).unwrap();
            quantize(b, sum, 0.25, 0)
        }));
        let kernels: Vec<_> = names.into_iter().filter(|&name| name != "Transpose").collect();
        assert_eq!(kernels, ["Quantize", "Conv", "Conv", "Dequantize"], "{reports:?}");
        let bytes = graph.nodes.iter().filter(|node| matches!(node.op, Op::Conv(_)));
        assert!(bytes.into_iter().all(|node| graph.fact(node.outputs[0]).dtype == Some(DType::U8)));
    }

    #[test]
    fn a_depthwise_convolution_multiplies_integers_too() {
        for (groups, kernel, is_one) in [(16, 3, true), (2, 3, true), (2, 5, false), (16, 12, false)] {
            let (_, graph, reports) = optimized(graph(&[1, 16, 14, 14], |b, x| {
                let x = quantize(b, x, 0.0625, 100);
                let w = weights(b, &[16, 16 / groups, kernel, kernel], 0, 0);
                let op = Conv {
                    strides: smallvec![1, 1],
                    dilations: smallvec![1, 1],
                    padding: Padding::Explicit(smallvec![1, 1, 1, 1]),
                    groups,
                    transposed: None,
                    channels_last: false,
                    multiply: None,
                    epilogue: None,
                };
                let y = b.add(Op::Conv(op), &[x, w]).unwrap();
                let y = b.unary(Unary::Sigmoid, y).and_then(|gate| b.binary(Binary::Mul, gate, y)).unwrap();
                quantize(b, y, 0.03125, 3)
            }));
            let op = graph.nodes.iter().find_map(|node| if let Op::Conv(op) = &node.op { Some(op) } else { None });
            let op = op.expect("the convolution");
            assert_eq!(op.multiply == Some(Factors::Integers), is_one, "{groups} groups: {reports:?}");
            // What stands before a quantisation is known as what it is.
            let silu = |map: &Map| map.instructions.iter().any(|i| matches!(i, Instruction::Unary(Unary::Silu, _)));
            assert!(!is_one || op.epilogue.as_ref().is_some_and(silu), "{:?}", op.epilogue);
        }
    }

    #[test]
    fn what_does_not_fit_multiplies_in_f32() {
        let (names, _, reports) = optimized(graph(&[3, 40], |b, x| {
            let x = quantize(b, x, 0.0625, 100);
            let w = weights(b, &[40, 32], 0, 0);
            b.add(Op::Contract(Contract::matmul(0)), &[x, w]).unwrap()
        }));
        assert_eq!(names, ["Quantize", "Dequantize", "Contract"]);
        let refusals = &reports.iter().find(|report| report.pass == PASS.name).unwrap().refusals;
        assert!(refusals[0].reason.contains("along another axis"), "{refusals:?}");
    }
}
