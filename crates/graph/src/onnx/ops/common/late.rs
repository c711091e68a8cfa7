use super::room;
use crate::onnx::{OnnxNode, Outputs};
use crate::ops::{Call, Facts, Op, Tensors};
use crate::{Builder, Fact, Graph, OpError, ValueId};
use halimede_tensor::{Tensor, Value};

/// The reference evaluation of an operator whose lowering only lacked facts when the model was loaded:
/// lowers it again with the inputs as constants, and evaluates what that gives.
pub fn evaluate_by_lowering(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let fact = |input: &Option<Value>| match input {
        Some(value) => Ok(Some(Fact::constant(value.tensor()?.clone()))),
        None => Ok(None),
    };
    let facts = inputs.iter().map(fact).collect::<Result<Vec<_>, OpError>>()?;
    let (graph, outputs) = lower(call, facts, [call.operator.name; 2])?
        .ok_or_else(|| OpError::unsupported(format!("{} with these attributes and datatypes", call.operator.name)))?;
    let values = run(&graph)?;
    outputs.iter().map(|&output| Ok(Value::Tensor(value(&graph, &values, output)?))).collect()
}

/// What is known of the outputs of such a call: what its lowering says, where these facts already are
/// enough for one.
pub fn infer_by_lowering(call: &Call, inputs: &[Option<&Fact>]) -> Result<Option<Facts>, OpError> {
    if call.operator.lower.is_none() {
        return Ok(None);
    }
    let lowered = lower(call, inputs.iter().map(|fact| fact.cloned()).collect(), [call.operator.name; 2])?;
    Ok(lowered.map(|(graph, outputs)| outputs.iter().map(|&output| graph.fact(output).clone()).collect()))
}

/// A call as a graph of core operators, for inputs of which so much is known; `None` where its lowering
/// still lacks something. Inputs that are wholly known are constants of the graph, the others its inputs.
pub fn lower_call(call: &Call, inputs: Vec<Option<Fact>>, name: &str, origin: &str) -> Result<Option<Graph>, OpError> {
    if call.operator.lower.is_none() {
        return Ok(None);
    }
    let given: Vec<bool> = inputs.iter().flatten().map(|fact| fact.constant.is_none()).collect();
    let Some((mut graph, outputs)) = lower(call, inputs, [name, origin])? else { return Ok(None) };
    // The inputs were the first values to be made.
    graph.inputs = (0..given.len()).filter(|&index| given[index]).map(|index| ValueId(index as u32)).collect();
    graph.outputs = outputs.to_vec();
    Ok(Some(graph))
}

/// The lowering of a call as a graph of its own, with its outputs.
fn lower(
    call: &Call,
    inputs: Vec<Option<Fact>>,
    [name, origin]: [&str; 2],
) -> Result<Option<(Graph, Outputs)>, OpError> {
    let lower = call.operator.lower.ok_or_else(|| OpError::unsupported(call.operator.name))?;
    let mut graph = Graph::default();
    let inputs = inputs.into_iter().map(|fact| fact.map(|fact| graph.add_value("input", fact))).collect();
    let node = OnnxNode {
        name: name.to_owned(),
        opset: call.opset,
        inputs,
        outputs: call.outputs.iter().enumerate().map(|(i, &wanted)| wanted.then(|| format!("output{i}"))).collect(),
        attributes: call.attributes.clone(),
    };
    let mut builder = Builder::new(&mut graph);
    builder.at(name, origin);
    let outputs = lower(&node, &mut builder)?;
    Ok(outputs.map(|outputs| (graph, outputs)))
}

/// Evaluates every node in order; constants stay in the graph's facts.
fn run(graph: &Graph) -> Result<Vec<Option<Tensor>>, OpError> {
    let mut values: Vec<Option<Tensor>> = vec![None; graph.values.len()];
    for node in &graph.nodes {
        for shape in node.outputs.iter().filter_map(|&output| graph.fact(output).known_shape()) {
            room(&shape)?;
        }
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            inputs.push(match input {
                Some(id) => Some(value(graph, &values, *id)?),
                None => None,
            });
        }
        let results: Tensors = match (&node.op, node.op.tensor_op()) {
            (_, Some(op)) => op.evaluate(&inputs.iter().map(Option::as_ref).collect::<Vec<_>>())?,
            (Op::Call(call), None) => {
                let evaluate = call.operator.evaluate.ok_or_else(|| OpError::unsupported(call.operator.name))?;
                let inputs: Vec<_> = inputs.into_iter().map(|input| input.map(Value::from)).collect();
                let results = evaluate(call, &inputs)?;
                results.iter().map(|v| v.tensor().cloned()).collect::<Result<_, _>>()?
            }
            (other, None) => return Err(OpError::unsupported(format!("{} inside a lowering", other.name()))),
        };
        for (id, result) in node.outputs.iter().zip(results) {
            values[id.index()] = Some(result);
        }
    }
    Ok(values)
}

fn value(graph: &Graph, values: &[Option<Tensor>], id: ValueId) -> Result<Tensor, OpError> {
    let known = values[id.index()].as_ref().or(graph.constant(id));
    known.cloned().ok_or_else(|| OpError::invalid("a lowering reads a value before it is written"))
}
