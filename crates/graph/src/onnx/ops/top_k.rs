use super::common::{evaluate_by_lowering, position};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Call, Facts, Op, TopK};
use crate::{Builder, Fact, OpError};
use halimede_tensor::DType;
use smallvec::smallvec;

/// The k largest or smallest along an axis with their indices (ONNX TopK, opset 24; `k` is an input
/// since 10, `largest` and `sorted` came with 11).
pub static OPERATOR: Operator =
    Operator::new("TopK").lower(lower).evaluate(evaluate_by_lowering).infer(infer).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let k = match node.attributes.int("k")? {
        Some(k) => b.ints(&[k]),
        None => node.input(1)?,
    };
    let Some(axis) = position(node.attributes.int_or("axis", -1)?, b.rank(x))? else { return Ok(None) };
    let largest = node.attributes.flag_or("largest", true)?;
    let sorted = node.attributes.flag_or("sorted", true)?;
    Ok(Some(b.add_all(Op::TopK(TopK { axis, largest, sorted }), &[Some(x), Some(k)])?))
}

fn infer(_call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let dtype = inputs.first().copied().flatten().and_then(|x| x.dtype);
    Ok(smallvec![Fact::of_dtype(dtype), Fact::of_dtype(Some(DType::I64))])
}

fn cases() -> Vec<Case> {
    let data = tensor(&[2, 3], &[3.0f32, 1.0, 3.0, 4.0, 6.0, 5.0]);
    vec![
        Case::new("equal ones by index", &OPERATOR, 11)
            .input(data.clone())
            .input(tensor(&[1], &[2i64]))
            .output(tensor(&[2, 2], &[3.0f32, 3.0, 6.0, 5.0]))
            .output(tensor(&[2, 2], &[0i64, 2, 1, 2])),
        Case::new("k as attribute", &OPERATOR, 9)
            .attribute("k", Attribute::Int(1))
            .attribute("axis", Attribute::Int(0))
            .input(data)
            .output(tensor(&[1, 3], &[4.0f32, 6.0, 5.0]))
            .output(tensor(&[1, 3], &[1i64, 1, 1])),
    ]
}
