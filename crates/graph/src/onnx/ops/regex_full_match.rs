use super::common::{required, text};
use crate::onnx::case::{bools, strings};
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Fact, OpError};
use halimede_tensor::{DType, Tensor, Value};
use regex::Regex;
use smallvec::smallvec;

/// Whether a regular expression (RE2's syntax) describes the whole of each string (ONNX RegexFullMatch,
/// opset 20).
pub static OPERATOR: Operator = Operator::new("RegexFullMatch").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let x = required(inputs, 0)?;
    let pattern = call.attributes.required("pattern", call.attributes.text("pattern")?)?;
    let whole = Regex::new(&format!(r"\A(?:{pattern})\z"))
        .map_err(|error| OpError::invalid(format!("attribute 'pattern' is no regular expression: {error}")))?;
    let matches = x.strings()?.iter().map(|string| Ok(whole.is_match(text(string)?)));
    let matches = matches.collect::<Result<Vec<bool>, OpError>>()?;
    Ok(vec![Tensor::from_bools(x.shape(), &matches)?.into()])
}

fn infer(_call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let shape = inputs.first().copied().flatten().and_then(|x| x.shape.clone());
    Ok(smallvec![Fact { dtype: Some(DType::Bool), shape, ..Fact::default() }])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("the whole string or nothing", &OPERATOR, 20)
            .attribute("pattern", Attribute::String("a+|b".into()))
            .input(strings(&[3], &["aa", "ab", ""]))
            .output(bools(&[3], &[true, false, false])),
    ]
}
