use super::cast::{lower_to, options};
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Call, Facts};
use crate::{Builder, Fact, OpError};
use halimede_tensor::Value;
use smallvec::smallvec;

/// The datatype of another tensor (ONNX CastLike, opset 25).
pub static OPERATOR: Operator = Operator::new("CastLike").lower(lower).evaluate(evaluate).infer(infer).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    match b.fact(node.input(1)?).dtype {
        Some(to) => lower_to(node, b, to),
        None => Ok(None),
    }
}

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let [Some(x), Some(like)] = inputs else { return Err(OpError::invalid("CastLike needs two inputs")) };
    Ok(vec![x.tensor()?.cast(like.tensor()?.dtype(), options(&call.attributes)?)?.into()])
}

fn infer(_: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let [Some(x), Some(like)] = inputs else { return Err(OpError::invalid("CastLike needs two inputs")) };
    Ok(smallvec![Fact { dtype: like.dtype, shape: x.shape.clone(), ..Fact::default() }])
}

fn cases() -> Vec<Case> {
    let case =
        Case::new("to an integer", &OPERATOR, 21).input(tensor(&[2], &[1.9f32, -1.9])).input(tensor(&[], &[0i64]));
    vec![case.output(tensor(&[2], &[1i64, -1]))]
}
