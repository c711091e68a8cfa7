use super::common::{required, text};
use crate::onnx::case::strings;
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{DType, Tensor, Value};
use smallvec::smallvec;

/// Removes stop words from a row of strings and changes case, by Unicode's rules whatever the locale
/// (ONNX StringNormalizer, opset 10).
pub static OPERATOR: Operator = Operator::new("StringNormalizer").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let x = required(inputs, 0)?;
    let change: fn(&str) -> String = match call.attributes.text_or("case_change_action", "NONE")? {
        "LOWER" => str::to_lowercase,
        "UPPER" => str::to_uppercase,
        "NONE" => str::to_owned,
        other => {
            return Err(OpError::invalid(format!("case_change_action is '{other}'; ONNX knows LOWER, UPPER and NONE")));
        }
    };
    let fold: fn(&str) -> String =
        if call.attributes.flag_or("is_case_sensitive", false)? { str::to_owned } else { str::to_lowercase };
    let stop_words = call.attributes.strings("stopwords")?.unwrap_or_default();
    let stop_words = stop_words.iter().map(|word| Ok(fold(text(word)?))).collect::<Result<Vec<_>, OpError>>()?;
    let leading = match x.shape() {
        [_] => None,
        [1, _] => Some(1),
        shape => return Err(OpError::invalid(format!("the input has shape {shape:?} instead of [C] or [1, C]"))),
    };
    let mut kept = Vec::new();
    for string in x.strings()? {
        let string = text(string)?;
        if !stop_words.contains(&fold(string)) {
            kept.push(change(string).into_bytes());
        }
    }
    if kept.is_empty() {
        // Nothing left is written as one empty string.
        kept.push(Vec::new());
    }
    let shape: Vec<usize> = leading.into_iter().chain([kept.len()]).collect();
    Ok(vec![Tensor::from_strings(&shape, kept)?.into()])
}

fn infer(_call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    Ok(smallvec![match inputs.first().copied().flatten().and_then(Fact::rank) {
        Some(1) => Fact::tensor(DType::String, [Dim::unknown()]),
        Some(2) => Fact::tensor(DType::String, [Dim::from(1), Dim::unknown()]),
        _ => Fact::of_dtype(Some(DType::String)),
    }])
}

fn cases() -> Vec<Case> {
    let case = |name, kept: &[&str]| {
        let stop = Attribute::Strings(vec!["monday".into()]);
        Case::new(name, &OPERATOR, 10)
            .attribute("case_change_action", Attribute::String("UPPER".into()))
            .attribute("stopwords", stop)
            .output(strings(&[1, kept.len()], kept))
    };
    vec![
        case("a stop word goes", &["TUESDAY"]).input(strings(&[1, 2], &["Monday", "tuesday"])),
        case("nothing is left", &[""]).input(strings(&[1, 1], &["Monday"])),
    ]
}
