use crate::onnx::{OnnxNode, Operator, Outputs};
use crate::ops::{If, Op};
use crate::{Builder, OpError, ValueId};

/// Runs one of two bodies (ONNX If, opset 25). A condition that is known leaves only its branch.
pub static OPERATOR: Operator = Operator::new("If").lower(lower);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let condition = node.input(0)?;
    let outside: Vec<ValueId> = node.inputs[1..].iter().copied().flatten().collect();
    let branch = |name| node.attributes.required(name, node.attributes.graph(name)?);
    if let Some(tensor) = b.graph().constant(condition) {
        let &[truth] = tensor.slice::<u8>()? else {
            return Err(OpError::invalid(format!(
                "the condition has shape {:?}; it takes one element",
                tensor.shape()
            )));
        };
        let graph = branch(if truth != 0 { "then_branch" } else { "else_branch" })?.graph.clone();
        return Ok(Some(b.inline(&graph, &outside)?));
    }
    let (then_branch, else_branch) = (branch("then_branch")?.graph.clone(), branch("else_branch")?.graph.clone());
    Ok(Some(b.add_all(Op::If(If { then_branch, else_branch }), &node.inputs)?))
}
