use crate::onnx::case::strings;
use crate::onnx::ops::common::{required, text};
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{DType, Tensor, Value};
use regex::Regex;
use smallvec::smallvec;

/// Words of each string, padded to the longest list (ONNX Runtime Tokenizer, opset 1).
///
/// Words are what `tokenexp` matches, what lies between `separators`, or with the one separator "" the
/// characters. Input: strings `[C]` or `[N, C]`; output: one axis more.
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "Tokenizer").evaluate(evaluate).infer(infer).cases(cases);

/// ONNX Runtime's marks around each list where `mark` is set: start and end of text.
const MARKS: [&[u8]; 2] = [b"\x02", b"\x03"];

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let x = required(inputs, 0)?;
    if !(1..=2).contains(&x.rank()) {
        return Err(OpError::invalid(format!("Tokenizer takes strings of rank 1 or 2, not {}", x.rank())));
    }
    let attributes = &call.attributes;
    let pad = attributes.required("pad_value", attributes.text("pad_value")?)?.as_bytes();
    let shortest = usize::try_from(attributes.int_or("mincharnum", 1)?).unwrap_or(1);
    let mark = attributes.flag_or("mark", false)?;
    let words = Words::new(call)?;
    let mut rows = Vec::with_capacity(x.len());
    for string in x.strings()? {
        let mut row = words.of(text(string)?, shortest);
        if mark && !row.is_empty() {
            row.insert(0, MARKS[0].to_vec());
            row.push(MARKS[1].to_vec());
        }
        rows.push(row);
    }
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let shape: Vec<usize> = x.shape().iter().copied().chain([longest]).collect();
    let padded = rows.into_iter().flat_map(|mut row| {
        row.resize(longest, pad.to_vec());
        row
    });
    Ok(vec![Tensor::from_strings(&shape, padded.collect())?.into()])
}

/// How a string falls into words.
enum Words {
    Matches(Regex),
    Between(Vec<Regex>),
    Characters,
}

impl Words {
    fn new(call: &Call) -> Result<Words, OpError> {
        let compile = |attribute: &str, pattern: &str| {
            Regex::new(pattern)
                .map_err(|error| OpError::invalid(format!("attribute '{attribute}' is no regular expression: {error}")))
        };
        if let Some(pattern) = call.attributes.text("tokenexp")? {
            return Ok(Words::Matches(compile("tokenexp", pattern)?));
        }
        let separators = call.attributes.required("separators", call.attributes.strings("separators")?)?;
        if matches!(separators, [only] if only.is_empty()) {
            return Ok(Words::Characters);
        }
        let separators = separators.iter().map(|separator| compile("separators", text(separator)?));
        Ok(Words::Between(separators.collect::<Result<_, OpError>>()?))
    }

    /// The words of at least `shortest` characters.
    fn of(&self, string: &str, shortest: usize) -> Vec<Vec<u8>> {
        let words: Vec<&str> = match self {
            Words::Matches(pattern) => pattern.find_iter(string).map(|found| found.as_str()).collect(),
            Words::Characters => string.split("").filter(|character| !character.is_empty()).collect(),
            Words::Between(separators) => separators
                .iter()
                .fold(vec![string], |parts, pattern| parts.into_iter().flat_map(|part| pattern.split(part)).collect()),
        };
        let long = words.into_iter().filter(|word| !word.is_empty() && word.chars().count() >= shortest);
        long.map(|word| word.as_bytes().to_vec()).collect()
    }
}

fn infer(_: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let shape = inputs.first().copied().flatten().and_then(|x| x.shape.clone());
    let shape = shape.map(|mut shape| {
        shape.push(Dim::unknown());
        shape
    });
    Ok(smallvec![Fact { dtype: Some(DType::String), shape, ..Fact::default() }])
}

fn cases() -> Vec<Case> {
    let case = |name| {
        Case::new(name, &OPERATOR, 1)
            .attribute("pad_value", Attribute::String("#".into()))
            .attribute("mark", Attribute::Int(0))
            .attribute("mincharnum", Attribute::Int(1))
    };
    vec![
        case("words by expression")
            .attribute("tokenexp", Attribute::String("[a-z]+".into()))
            .input(strings(&[2], &["a big dog", "cat!"]))
            .output(strings(&[2, 3], &["a", "big", "dog", "cat", "#", "#"])),
        case("words between separators")
            .attribute("separators", Attribute::Strings(vec![" ".into(), ",".into()]))
            .input(strings(&[1, 2], &["a,b c", "d"]))
            .output(strings(&[1, 2, 3], &["a", "b", "c", "d", "#", "#"])),
    ]
}
