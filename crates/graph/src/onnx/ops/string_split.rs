use super::common::{required, text};
use crate::onnx::case::{strings, tensor};
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{DType, Tensor, Value, element_count};
use smallvec::smallvec;

/// Splits strings at a delimiter, or at runs of blanks, into a new last axis filled up with empty
/// strings; and how many parts each gave (ONNX StringSplit, opset 20).
pub static OPERATOR: Operator = Operator::new("StringSplit").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let x = required(inputs, 0)?;
    let delimiter = call.attributes.text_or("delimiter", "")?;
    let splits_max = call.attributes.int("maxsplit")?.and_then(|splits| usize::try_from(splits).ok());
    let parts_max = splits_max.map_or(usize::MAX, |splits| splits.saturating_add(1));
    let split = |string: &Vec<u8>| -> Result<Vec<Vec<u8>>, OpError> {
        let string = text(string)?;
        let parts: Vec<&str> = match delimiter {
            "" => split_blanks(string, parts_max),
            delimiter => string.splitn(parts_max, delimiter).collect(),
        };
        Ok(parts.into_iter().map(|part| part.as_bytes().to_vec()).collect())
    };
    let parts = x.strings()?.iter().map(split).collect::<Result<Vec<_>, _>>()?;
    let longest = parts.iter().map(Vec::len).max().unwrap_or(0);
    let counts: Vec<i64> = parts.iter().map(|parts| parts.len() as i64).collect();
    let shape: Vec<usize> = x.shape().iter().copied().chain([longest]).collect();
    let mut filled = Vec::with_capacity(element_count(&shape)?);
    for mut parts in parts {
        parts.resize(longest, Vec::new());
        filled.append(&mut parts);
    }
    Ok(vec![Tensor::from_strings(&shape, filled)?.into(), Tensor::from_slice(x.shape(), &counts)?.into()])
}

/// Parts between runs of blanks; the last of at most `parts_max` keeps what follows it.
fn split_blanks(string: &str, parts_max: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = string.trim_start();
    while !rest.is_empty() {
        let end = if parts.len() + 1 == parts_max { None } else { rest.find(char::is_whitespace) };
        let Some(end) = end else {
            parts.push(rest);
            break;
        };
        parts.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    parts
}

fn infer(_call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let shape = inputs.first().copied().flatten().and_then(|x| x.shape.clone());
    let Some(shape) = shape else {
        return Ok(smallvec![Fact::of_dtype(Some(DType::String)), Fact::of_dtype(Some(DType::I64))]);
    };
    let parts = Fact::tensor(DType::String, shape.iter().cloned().chain([Dim::unknown()]));
    Ok(smallvec![parts, Fact::tensor(DType::I64, shape)])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("at a delimiter", &OPERATOR, 20)
            .attribute("delimiter", Attribute::String(".".into()))
            .input(strings(&[2], &["a.b.", "c"]))
            .output(strings(&[2, 3], &["a", "b", "", "c", "", ""]))
            .output(tensor(&[2], &[3i64, 1])),
        Case::new("at blanks, once", &OPERATOR, 20)
            .attribute("maxsplit", Attribute::Int(1))
            .input(strings(&[2], &[" a  b c", "  "]))
            .output(strings(&[2, 2], &["a", "b c", "", ""]))
            .output(tensor(&[2], &[2i64, 0])),
    ]
}
