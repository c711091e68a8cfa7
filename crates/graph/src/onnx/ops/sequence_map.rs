use super::common::{given, sequence, sequence_fact};
use crate::onnx::Operator;
use crate::ops::{Call, Facts};
use crate::{Fact, Kind, OpError, reference};
use halimede_tensor::Value;

/// Runs a body on every value of a sequence (ONNX SequenceMap, opset 17). Further inputs are sequences
/// that are walked alongside, or tensors that every run gets.
pub static OPERATOR: Operator = Operator::new("SequenceMap").evaluate(evaluate).infer(infer);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let body = call.attributes.required("body", call.attributes.graph("body")?)?;
    let own = inputs.len().saturating_sub(body.captured);
    let length = sequence(given(inputs, 0)?)?.len();
    let mut collected = vec![Vec::with_capacity(length); body.graph.outputs.len()];
    for index in 0..length {
        let mut run = Vec::with_capacity(inputs.len());
        for position in 0..inputs.len() {
            run.push(match given(inputs, position)? {
                Value::Sequence(values) if position < own => values.get(index).cloned().ok_or_else(|| {
                    OpError::invalid(format!("sequence {position} has {} values, the first {length}", values.len()))
                })?,
                other => other.clone(),
            });
        }
        let outputs = reference::run(&body.graph, &run).map_err(|error| OpError::invalid(error.to_string()))?;
        for (list, output) in collected.iter_mut().zip(outputs) {
            list.push(output);
        }
    }
    Ok(collected.into_iter().map(Value::Sequence).collect())
}

fn infer(call: &Call, _: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let body = call.attributes.required("body", call.attributes.graph("body")?)?;
    let dtype = |output: &crate::ValueId| match body.graph.fact(*output) {
        fact if fact.kind == Kind::Tensor => fact.dtype,
        _ => None,
    };
    Ok(body.graph.outputs.iter().map(|output| sequence_fact(dtype(output))).collect())
}
