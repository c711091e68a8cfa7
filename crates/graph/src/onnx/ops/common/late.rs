use crate::onnx::OnnxNode;
use crate::ops::{Call, Op, Tensors};
use crate::{Builder, Fact, Graph, OpError, ValueId};
use halimede_tensor::{Tensor, Value};

/// The reference evaluation of an operator whose lowering only lacked facts when the model was loaded:
/// lowers it again with the inputs as constants, and evaluates what that gives.
pub fn evaluate_by_lowering(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let lower = call.operator.lower.ok_or_else(|| OpError::unsupported(call.operator.name))?;
    let mut graph = Graph::default();
    let mut node = OnnxNode {
        name: call.operator.name.to_owned(),
        opset: call.opset,
        inputs: Vec::with_capacity(inputs.len()),
        outputs: call.outputs.iter().enumerate().map(|(i, &wanted)| wanted.then(|| format!("output{i}"))).collect(),
        attributes: call.attributes.clone(),
    };
    for input in inputs {
        let id = match input {
            Some(value) => Some(graph.add_value("input", Fact::constant(value.tensor()?.clone()))),
            None => None,
        };
        node.inputs.push(id);
    }
    let mut builder = Builder::new(&mut graph);
    builder.at(call.operator.name, call.operator.name);
    let outputs = lower(&node, &mut builder)?
        .ok_or_else(|| OpError::unsupported(format!("{} with these attributes and datatypes", call.operator.name)))?;
    let values = run(&graph)?;
    outputs.iter().map(|&output| Ok(Value::Tensor(value(&graph, &values, output)?))).collect()
}

/// Evaluates every node in order; constants stay in the graph's facts.
fn run(graph: &Graph) -> Result<Vec<Option<Tensor>>, OpError> {
    let mut values: Vec<Option<Tensor>> = vec![None; graph.values.len()];
    for node in &graph.nodes {
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
