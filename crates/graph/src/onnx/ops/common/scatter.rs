use crate::OpError;
use crate::onnx::OnnxNode;
use crate::ops::ScatterReduction;

/// The attribute `reduction` of the scattering operators.
pub fn scatter_reduction(node: &OnnxNode) -> Result<ScatterReduction, OpError> {
    Ok(match node.attributes.text_or("reduction", "none")? {
        "none" => ScatterReduction::None,
        "add" => ScatterReduction::Add,
        "mul" => ScatterReduction::Mul,
        "max" => ScatterReduction::Max,
        "min" => ScatterReduction::Min,
        other => {
            return Err(OpError::invalid(format!("reduction is '{other}'; ONNX knows none, add, mul, max and min")));
        }
    })
}
