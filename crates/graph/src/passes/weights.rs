use super::edit::{done, is_output, readers, refuse, remove};
use super::{Pass, PassOptions, PassReport};
use crate::ops::{Binary, Instruction, Map, Op, Scalar};
use crate::{Graph, Node, ValueId};
use halimede_tensor::{DType, Tensor};

/// Multiplies a factor per channel into the weights of the convolution before it, and adds a term per
/// channel to its bias: batch normalisation at inference costs nothing then.
///
/// ```text
/// (conv(x, w) + b) · f + t = conv(x, w · f) + (b · f + t)
/// ```
pub(super) const PASS: Pass = Pass { name: "scale into weights", run };

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    let mut gone = vec![false; graph.nodes.len()];
    let (mut producers, readers) = (graph.producers(), readers(graph));
    for index in 0..graph.nodes.len() {
        let Some((producer, function, constant)) = candidate(graph, index, &producers, &gone) else { continue };
        let result = graph.nodes[producer].outputs[0];
        let reason = match folded(graph, &graph.nodes[producer], function, constant) {
            _ if readers[result.index()] != 1 || is_output(graph, result) => {
                "something else reads the convolution's result"
            }
            Err(reason) => reason,
            Ok((weights, bias)) => {
                let name = graph.nodes[producer].name.clone();
                let mut node = graph.nodes[producer].clone();
                node.inputs.resize(node.inputs.len().max(3), None);
                if let Some(weights) = weights {
                    node.inputs[1] = Some(graph.add_constant(format!("{name}/weights"), weights));
                }
                if let Some(bias) = bias {
                    node.inputs[2] = Some(graph.add_constant(format!("{name}/bias"), bias));
                }
                // At the place of the pointwise work, whose result it now writes.
                node.outputs = graph.nodes[index].outputs.clone();
                producers.resize(graph.values.len(), None);
                producers[node.outputs[0].index()] = Some(index);
                graph.nodes[index] = node;
                gone[producer] = true;
                let what = match function {
                    Binary::Mul => "a factor per channel went into the weights",
                    _ => "a term per channel went into the bias",
                };
                done(graph, &graph.nodes[index], what, report);
                continue;
            }
        };
        refuse(graph, &graph.nodes[index], format!("its numbers stay out of the weights: {reason}"), report);
    }
    remove(graph, &gone);
}

/// A product or sum of a convolution's result and a constant: the convolution, the function, the constant.
fn candidate(
    graph: &Graph,
    index: usize,
    producers: &[Option<usize>],
    gone: &[bool],
) -> Option<(usize, Binary, Tensor)> {
    let node = &graph.nodes[index];
    let Op::Map(Map { instructions }) = &node.op else { return None };
    let [first, second, Instruction::Binary(function @ (Binary::Mul | Binary::Add), a, b)] = &instructions[..] else {
        return None;
    };
    if a == b {
        return None;
    }
    let convolution = |instruction: &Instruction| {
        let Instruction::Input(input) = instruction else { return None };
        let producer = producers[node.inputs[*input]?.index()]?;
        (!gone[producer] && matches!(graph.nodes[producer].op, Op::Conv(_))).then_some(producer)
    };
    let constant = |instruction: &Instruction| match instruction {
        Instruction::Input(input) => graph.constant(node.inputs[*input]?).cloned(),
        Instruction::Constant(Scalar::Float(number, dtype)) => Tensor::from_f64s(*dtype, &[], &[*number]).ok(),
        _ => None,
    };
    match (convolution(first), constant(second), convolution(second), constant(first)) {
        (Some(producer), Some(constant), ..) | (.., Some(producer), Some(constant)) => {
            Some((producer, *function, constant))
        }
        _ => None,
    }
}

type Folded = (Option<Tensor>, Option<Tensor>);

/// New weights and a new bias, each where it changes.
fn folded(graph: &Graph, node: &Node, function: Binary, constant: Tensor) -> Result<Folded, &'static str> {
    let Op::Conv(op) = &node.op else { return Err("it follows no convolution") };
    if op.epilogue.is_some() || op.transposed.is_some() {
        return Err("the convolution is transposed or carries pointwise work");
    }
    let input = |at: usize| node.inputs.get(at).copied().flatten();
    let tensor = |value: Option<ValueId>| value.and_then(|value| graph.constant(value));
    let weights = tensor(input(1)).ok_or("the weights are no constant")?;
    if weights.dtype() != DType::F32 || constant.dtype() != DType::F32 {
        return Err("it is not of f32");
    }
    let (channels, rank) = (weights.shape()[0], weights.rank());
    // The constant broadcasts from the last axis; the channels are axis 1 of `rank`.
    let lead = rank.checked_sub(constant.rank()).ok_or("the constant has more axes than the result")?;
    let per_channel =
        constant.shape().iter().enumerate().all(|(axis, &size)| size == 1 || (axis + lead == 1 && size == channels));
    if !per_channel {
        return Err("the constant is not one number per channel");
    }
    let read = |tensor: &Tensor| tensor.to_f64s().map_err(|_| "a constant cannot be read");
    let constant = read(&constant)?;
    if !constant.iter().all(|number| number.is_finite()) {
        return Err("a number is infinite or NaN");
    }
    let at = |channel: usize| if constant.len() == 1 { constant[0] } else { constant[channel] };
    let bias = match input(2) {
        Some(value) => Some(read(tensor(Some(value)).ok_or("the bias is no constant")?)?),
        None => None,
    };
    let write = |shape: &[usize], values: &[f64]| {
        Tensor::from_f64s(DType::F32, shape, values).map_err(|_| "a constant cannot be written")
    };
    let combined = |of: fn(f64, f64) -> f64, bias: Vec<f64>| {
        let values: Vec<f64> = bias.iter().enumerate().map(|(channel, &b)| of(b, at(channel))).collect();
        write(&[channels], &values)
    };
    if function == Binary::Add {
        return Ok((None, Some(combined(|b, t| b + t, bias.unwrap_or_else(|| vec![0.0; channels]))?)));
    }
    let mut values = read(weights)?;
    let taps = values.len() / channels.max(1);
    for (position, value) in values.iter_mut().enumerate() {
        *value *= at(position / taps.max(1));
    }
    let weights = write(weights.shape(), &values)?;
    Ok((Some(weights), bias.map(|bias| combined(|b, f| b * f, bias)).transpose()?))
}
