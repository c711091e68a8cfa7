use super::common::{first_dtype, given, resolve_axis, sequence};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::{Call, Concat, TensorOp};
use crate::{Fact, OpError};
use halimede_tensor::{Tensor, Value};
use smallvec::smallvec;

/// The tensors of a sequence joined along an axis of theirs or a new one (ONNX ConcatFromSequence, opset 11).
pub static OPERATOR: Operator = Operator::new("ConcatFromSequence")
    .evaluate(evaluate)
    .infer(|_, inputs| Ok(smallvec![Fact::of_dtype(first_dtype(inputs))]))
    .cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let tensors: Vec<&Tensor> = sequence(given(inputs, 0)?)?.iter().map(Value::tensor).collect::<Result<_, _>>()?;
    let rank = tensors.first().ok_or_else(|| OpError::invalid("the sequence is empty"))?.rank();
    let axis = call.attributes.required("axis", call.attributes.int("axis")?)?;
    let new_axis = call.attributes.flag_or("new_axis", false)?;
    let axis = resolve_axis(axis, rank + usize::from(new_axis))?;
    let mut joined: Vec<Tensor> = tensors.into_iter().cloned().collect();
    if new_axis {
        for tensor in &mut joined {
            let mut shape = tensor.shape().to_vec();
            if axis > shape.len() {
                return Err(OpError::invalid("the tensors have different ranks"));
            }
            shape.insert(axis, 1);
            *tensor = tensor.reshaped(&shape)?;
        }
    }
    let joined: Vec<Option<&Tensor>> = joined.iter().map(Some).collect();
    Ok(Concat { axis }.evaluate(&joined)?.into_iter().map(Value::from).collect())
}

fn cases() -> Vec<Case> {
    let parts = Value::Sequence(vec![tensor(&[2], &[1i64, 2]).into(), tensor(&[2], &[3i64, 4]).into()]);
    let case = |name| Case::new(name, &OPERATOR, 11).input(parts.clone()).attribute("axis", Attribute::Int(-1));
    vec![
        case("end to end").output(tensor(&[4], &[1i64, 2, 3, 4])),
        case("a new axis").attribute("new_axis", Attribute::Int(1)).output(tensor(&[2, 2], &[1i64, 3, 2, 4])),
    ]
}
