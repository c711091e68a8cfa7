use super::common::dtype_attribute;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Fact, OpError};
use halimede_tensor::Value;
use smallvec::smallvec;

/// The same bits read as another datatype of the same width (ONNX BitCast, opset 26).
pub static OPERATOR: Operator = Operator::new("BitCast").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let to = call.attributes.required("to", dtype_attribute(&call.attributes, "to")?)?;
    let [Some(x)] = inputs else { return Err(OpError::invalid("BitCast needs one input")) };
    let x = x.tensor()?;
    if x.dtype().bits() != to.bits() {
        return Err(OpError::invalid(format!("BitCast from {} to {to}, which has another width", x.dtype())));
    }
    Ok(vec![x.reinterpreted(to)?.into()])
}

fn infer(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let dtype = dtype_attribute(&call.attributes, "to")?;
    let shape = inputs.first().copied().flatten().and_then(|fact| fact.shape.clone());
    Ok(smallvec![Fact { dtype, shape, ..Fact::default() }])
}

fn cases() -> Vec<Case> {
    let case = Case::new("a float's bits", &OPERATOR, 26).attribute("to", Attribute::Int(6));
    vec![case.input(tensor(&[2], &[1f32, -2.0])).output(tensor(&[2], &[0x3f80_0000i32, -0x4000_0000]))]
}
