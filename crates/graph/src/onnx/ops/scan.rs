use crate::onnx::{OnnxNode, Operator, Outputs};
use crate::ops::{Gather, Loop, Op, Scan, ShapeOf};
use crate::{Builder, Fact, Graph, OpError, ValueId};
use halimede_tensor::{DType, Tensor};
use std::sync::Arc;

/// Runs a body over the slices of its inputs (ONNX Scan, opset 25; opset 8 over every element of a batch).
pub static OPERATOR: Operator = Operator::new("Scan").lower(lower);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let with_batch = node.opset < 9;
    let body = node.attributes.required("body", node.attributes.graph("body")?)?;
    let own = body.graph.inputs.len() - body.captured;
    let scanned = node.attributes.required("num_scan_inputs", node.attributes.int("num_scan_inputs")?)?;
    let scanned = usize::try_from(scanned).ok().filter(|&count| (1..=own).contains(&count));
    let scanned = scanned.ok_or_else(|| OpError::invalid(format!("num_scan_inputs lies outside 1 to {own}")))?;
    let states = own - scanned;
    let first = usize::from(with_batch);
    if node.inputs.len() != first + body.graph.inputs.len() || body.graph.outputs.len() < states {
        return Err(OpError::invalid(format!(
            "the body takes {own} inputs and gives {} outputs; that does not fit {} inputs with {states} states",
            body.graph.outputs.len(),
            node.inputs.len() - body.captured
        )));
    }
    let outputs = body.graph.outputs.len() - states;
    // Opset 8 names the directions otherwise and has no axes: time comes right after the batch.
    let backward = if with_batch { "directions" } else { "scan_input_directions" };
    let op = Scan {
        body: body.graph.clone(),
        states,
        inputs: axes(node, "scan_input_axes", backward, scanned)?,
        outputs: axes(node, "scan_output_axes", "scan_output_directions", outputs)?,
    };
    if with_batch {
        return over_batch(node, b, op).map(Some);
    }
    Ok(Some(b.add_all(Op::Scan(op), &node.inputs)?))
}

/// Pairs of axis and whether it runs from the end.
fn axes(node: &OnnxNode, axes: &str, directions: &str, count: usize) -> Result<Vec<(i64, bool)>, OpError> {
    let list = |name: &str| -> Result<Vec<i64>, OpError> {
        let list = node.attributes.ints(name)?.filter(|list| !list.is_empty());
        let list = list.map_or_else(|| vec![0; count], <[i64]>::to_vec);
        if list.len() == count {
            return Ok(list);
        }
        Err(OpError::invalid(format!("attribute '{name}' has {} entries instead of {count}", list.len())))
    };
    Ok(list(axes)?.into_iter().zip(list(directions)?.into_iter().map(|backward| backward != 0)).collect())
}

/// A loop over the batch, the first axis of every state and scan input, with the scan inside.
fn over_batch(node: &OnnxNode, b: &mut Builder, scan: Scan) -> Result<Outputs, OpError> {
    if node.optional(0).is_some() {
        return Err(OpError::unsupported("sequence lengths (an input that only opset 8 has); export for opset 9"));
    }
    let own = scan.states + scan.inputs.len();
    let mut body = Graph::default();
    let trip = body.add_value("batch", Fact::tensor(DType::I64, []));
    let condition = body.add_value("more", Fact::tensor(DType::Bool, []));
    body.inputs = vec![trip, condition];
    let outside: Vec<ValueId> = node.inputs[1..].iter().copied().flatten().collect();
    for &value in &outside {
        let info = &b.graph().values[value.index()];
        let input = body.add_value(info.name.as_str(), Fact { constant: None, elements: None, ..info.fact.clone() });
        body.inputs.push(input);
    }
    let mut inner = Builder::new(&mut body);
    inner.at(&node.name, "Scan (opset 8)");
    let given = inner.graph().inputs[2..].to_vec();
    let mut inputs = Vec::with_capacity(given.len());
    for (index, &value) in given.iter().enumerate() {
        inputs.push(Some(if index < own { inner.add(Op::Gather(Gather { axis: 0 }), &[value, trip])? } else { value }));
    }
    let outputs = inner.add_all(Op::Scan(scan), &inputs)?;
    let go_on = inner.constant(Tensor::from_bools(&[], &[true])?);
    body.outputs = std::iter::once(go_on).chain(outputs).collect();
    let batch = b.add(Op::ShapeOf(ShapeOf { start: 0, end: Some(1) }), &outside[..1])?;
    let batch = b.reshape(batch, &[])?;
    let inputs: Vec<Option<ValueId>> = [Some(batch), None].into_iter().chain(outside.into_iter().map(Some)).collect();
    b.add_all(Op::Loop(Loop { body: Arc::new(body), carried: 0 }), &inputs)
}
