use crate::onnx::{OnnxNode, Operator, Outputs};
use crate::ops::{Loop, Op};
use crate::{Builder, OpError};

/// Runs a body again and again (ONNX Loop, opset 25).
pub static OPERATOR: Operator = Operator::new("Loop").lower(lower);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let body = node.attributes.required("body", node.attributes.graph("body")?)?;
    let carried = node
        .inputs
        .len()
        .checked_sub(2 + body.captured)
        .ok_or_else(|| OpError::invalid("takes a trip count and a condition, each of which may be empty"))?;
    let (takes, gives) = (body.graph.inputs.len() - body.captured, body.graph.outputs.len());
    if takes != 2 + carried || gives < 1 + carried {
        return Err(OpError::invalid(format!(
            "with {carried} carried values the body takes {} inputs and gives at least {} outputs; this one takes \
             {takes} and gives {gives}",
            2 + carried,
            1 + carried
        )));
    }
    Ok(Some(b.add_all(Op::Loop(Loop { body: body.graph.clone(), carried }), &node.inputs)?))
}
