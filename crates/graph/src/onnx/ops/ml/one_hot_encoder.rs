use super::super::common::room;
use super::keys::keys;
use crate::onnx::case::{strings, tensor};
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{DType, Tensor, Value};
use smallvec::smallvec;

/// 1 at the position of each element among the categories, 0 elsewhere (ai.onnx.ml OneHotEncoder,
/// opset 1).
pub static OPERATOR: Operator =
    Operator::in_domain("ai.onnx.ml", "OneHotEncoder").evaluate(evaluate).infer(infer).cases(cases);

fn categories(call: &Call) -> Result<Tensor, OpError> {
    let attributes = &call.attributes;
    match (attributes.ints("cats_int64s")?, attributes.strings("cats_strings")?) {
        (Some(ints), _) if !ints.is_empty() => Ok(Tensor::from_slice(&[ints.len()], ints)?),
        (_, Some(texts)) => Ok(Tensor::from_strings(&[texts.len()], texts.to_vec())?),
        _ => Err(OpError::invalid("neither cats_int64s nor cats_strings names the categories")),
    }
}

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let Some(Some(x)) = inputs.first() else { return Err(OpError::invalid("OneHotEncoder needs an input")) };
    let x = x.tensor()?;
    let categories = keys(&categories(call)?)?;
    // Categories are integers or texts; a float counts as the integer that it holds.
    let elements = match x.dtype() {
        DType::String => keys(x)?,
        _ => keys(&Tensor::from_i64s(
            DType::I64,
            x.shape(),
            &x.to_f64s()?.iter().map(|&v| v as i64).collect::<Vec<_>>(),
        )?)?,
    };
    let mut hot = vec![0f32; room(&[elements.len(), categories.len()])?];
    for (element, row) in elements.iter().zip(hot.chunks_exact_mut(categories.len().max(1))) {
        match categories.iter().position(|category| category == element) {
            Some(position) => row[position] = 1.0,
            None if call.attributes.flag_or("zeros", true)? => {}
            None => return Err(OpError::invalid(format!("{element:?} is none of the categories, and zeros is off"))),
        }
    }
    let mut shape = x.shape().to_vec();
    shape.push(categories.len());
    Ok(vec![Tensor::from_slice(&shape, &hot)?.into()])
}

fn infer(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let count = categories(call)?.len();
    let shape = inputs.first().copied().flatten().and_then(|x| x.shape.clone()).map(|mut shape| {
        shape.push(Dim::from(count));
        shape
    });
    Ok(smallvec![Fact { dtype: Some(DType::F32), shape, ..Fact::default() }])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("integers", &OPERATOR, 3)
            .attribute("cats_int64s", Attribute::Ints(vec![1, 5, 7]))
            .attribute("zeros", Attribute::Int(1))
            .input(tensor(&[3], &[7i64, 1, 2]))
            .output(tensor(&[3, 3], &[0.0f32, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])),
        Case::new("texts", &OPERATOR, 3)
            .attribute("cats_strings", Attribute::Strings(vec![b"a".to_vec(), b"b".to_vec()]))
            .input(strings(&[2], &["b", "a"]))
            .output(tensor(&[2, 2], &[0.0f32, 1.0, 1.0, 0.0])),
        Case::new("floats", &OPERATOR, 3)
            .attribute("cats_int64s", Attribute::Ints(vec![1, 5]))
            .input(tensor(&[2, 1], &[5.0f32, 1.0]))
            .output(tensor(&[2, 1, 2], &[0.0f32, 1.0, 1.0, 0.0])),
    ]
}
