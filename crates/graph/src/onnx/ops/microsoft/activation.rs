//! Activations that ONNX Runtime fuses into the operator before them, by name.

use crate::OpError;
use crate::ops::{Expr, Unary};

/// The activation `name` of `x`; `parameters` in the order of the ONNX operator's attributes.
pub fn activation(name: &str, parameters: &[f32], x: Expr) -> Result<Expr, OpError> {
    let parameter = |index: usize, default: f32| parameters.get(index).copied().unwrap_or(default);
    Ok(match name {
        "" => x,
        "Relu" => x.max(0.0),
        "Tanh" => x.apply(Unary::Tanh),
        "Sigmoid" => x.apply(Unary::Sigmoid),
        "Softplus" => x.apply(Unary::Softplus),
        "Softsign" => x.clone() / (x.apply(Unary::Abs) + 1.0),
        "LeakyRelu" => x.less(0.0).select(x.clone() * parameter(0, 0.01), x),
        "ThresholdedRelu" => x.greater(parameter(0, 1.0)).select(x, 0.0),
        "Elu" => x.less(0.0).select((x.exp() - 1.0) * parameter(0, 1.0), x),
        "Clip" => x.max(parameter(0, f32::MIN)).min(parameter(1, f32::MAX)),
        "HardSigmoid" => (x * parameter(0, 0.2) + parameter(1, 0.5)).min(1.0).max(0.0),
        "HardSwish" => x.clone() * (x * parameter(0, 1.0 / 6.0) + parameter(1, 0.5)).min(1.0).max(0.0),
        other => return Err(OpError::unsupported(format!("the fused activation '{other}'"))),
    })
}
