use super::common::{broadcast_dims, broadcast_index, evaluate_by_lowering, one};
use crate::onnx::case::{bools, strings, tensor};
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Call, Expr, Facts};
use crate::{Builder, Fact, OpError};
use halimede_tensor::{DType, Tensor, Value, broadcast, element_count};
use smallvec::smallvec;

/// One of two elements by a condition; strings too (ONNX Where, opset 16).
pub static OPERATOR: Operator = Operator::new("Where").lower(lower).evaluate(evaluate).infer(infer).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let inputs = [node.input(0)?, node.input(1)?, node.input(2)?];
    match b.fact(inputs[1]).dtype.or(b.fact(inputs[2]).dtype) {
        Some(dtype) if dtype != DType::String => {
            one(b.map(&Expr::input(0).select(Expr::input(1), Expr::input(2)), &inputs)?)
        }
        _ => Ok(None),
    }
}

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let [Some(condition), Some(x), Some(y)] = inputs else {
        return Err(OpError::invalid("Where needs three inputs"));
    };
    let (condition, x, y) = (condition.tensor()?, x.tensor()?, y.tensor()?);
    if x.dtype() != DType::String {
        return evaluate_by_lowering(call, inputs);
    }
    let shape = broadcast(&broadcast(condition.shape(), x.shape())?, y.shape())?;
    let (conditions, xs, ys) = (condition.slice::<u8>()?, x.strings()?, y.strings()?);
    let at = |flat, operand: &Tensor| broadcast_index(flat, &shape, operand.shape());
    let picked = (0..element_count(&shape)?)
        .map(|flat| if conditions[at(flat, condition)] != 0 { &xs[at(flat, x)] } else { &ys[at(flat, y)] })
        .cloned()
        .collect();
    Ok(vec![Tensor::from_strings(&shape, picked)?.into()])
}

fn infer(_: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let [Some(condition), Some(x), Some(y)] = inputs else {
        return Err(OpError::invalid("Where needs three inputs"));
    };
    let shape = match (&condition.shape, &x.shape, &y.shape) {
        (Some(a), Some(b), Some(c)) => Some(broadcast_dims(&broadcast_dims(a, b)?, c)?),
        _ => None,
    };
    Ok(smallvec![Fact { dtype: x.dtype.or(y.dtype), shape, ..Fact::default() }])
}

fn cases() -> Vec<Case> {
    let condition = || bools(&[2, 1], &[true, false]);
    let case = |name| Case::new(name, &OPERATOR, 16).input(condition());
    vec![
        case("numbers")
            .input(tensor(&[2], &[1f32, 2.0]))
            .input(tensor(&[], &[0f32]))
            .output(tensor(&[2, 2], &[1f32, 2.0, 0.0, 0.0])),
        case("strings")
            .input(strings(&[], &["yes"]))
            .input(strings(&[], &["no"]))
            .output(strings(&[2, 1], &["yes", "no"])),
    ]
}
