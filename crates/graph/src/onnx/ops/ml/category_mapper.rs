use super::keys::{keys, pick};
use crate::onnx::case::{strings, tensor};
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Fact, OpError};
use halimede_tensor::{DType, Tensor, Value};
use smallvec::smallvec;
use std::collections::HashMap;

/// Texts to integers or integers to texts by a list of pairs (ai.onnx.ml CategoryMapper, opset 1).
pub static OPERATOR: Operator =
    Operator::in_domain("ai.onnx.ml", "CategoryMapper").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let Some(Some(x)) = inputs.first() else { return Err(OpError::invalid("CategoryMapper needs an input")) };
    let (x, attributes) = (x.tensor()?, &call.attributes);
    let texts = attributes.required("cats_strings", attributes.strings("cats_strings")?)?;
    let ints = attributes.required("cats_int64s", attributes.ints("cats_int64s")?)?;
    if texts.len() != ints.len() {
        return Err(OpError::invalid(format!("{} texts for {} integers", texts.len(), ints.len())));
    }
    let (texts, ints) =
        (Tensor::from_strings(&[texts.len()], texts.to_vec())?, Tensor::from_slice(&[ints.len()], ints)?);
    let (from, to, default) = match x.dtype() {
        DType::String => (texts, ints, Tensor::scalar(attributes.int_or("default_int64", -1)?)),
        _ => {
            let default = attributes.text_or("default_string", "_Unused")?.as_bytes().to_vec();
            (ints, texts, Tensor::from_strings(&[], vec![default])?)
        }
    };
    let positions: HashMap<_, _> =
        keys(&from)?.into_iter().enumerate().map(|(position, key)| (key, position)).collect();
    let found: Vec<usize> = keys(x)?.iter().map(|key| positions.get(key).copied().unwrap_or(usize::MAX / 64)).collect();
    Ok(vec![pick(&to, &default, &found, x.shape())?.into()])
}

fn infer(_: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let Some(Some(x)) = inputs.first() else { return Err(OpError::invalid("CategoryMapper needs an input")) };
    let dtype = x.dtype.map(|dtype| if dtype == DType::String { DType::I64 } else { DType::String });
    Ok(smallvec![Fact { dtype, shape: x.shape.clone(), ..Fact::default() }])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("texts", &OPERATOR, 3)
            .attribute("cats_strings", Attribute::Strings(vec![b"a".to_vec(), b"b".to_vec()]))
            .attribute("cats_int64s", Attribute::Ints(vec![3, 4]))
            .attribute("default_int64", Attribute::Int(-5))
            .input(strings(&[2], &["b", "z"]))
            .output(tensor(&[2], &[4i64, -5])),
        Case::new("integers", &OPERATOR, 3)
            .attribute("cats_strings", Attribute::Strings(vec![b"a".to_vec(), b"b".to_vec()]))
            .attribute("cats_int64s", Attribute::Ints(vec![3, 4]))
            .attribute("default_string", Attribute::String(b"none".to_vec()))
            .input(tensor(&[2], &[4i64, 1]))
            .output(strings(&[2], &["b", "none"])),
    ]
}
