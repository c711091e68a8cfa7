use super::keys::{Key, keys, pick};
use crate::onnx::case::{strings, tensor};
use crate::onnx::{Attribute, Attributes, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Fact, OpError};
use halimede_tensor::{DType, Tensor, Value};
use smallvec::smallvec;
use std::collections::HashMap;

/// Values by a table (ai.onnx.ml LabelEncoder, opset 4; opset 1 knew texts and their positions, opset 2
/// pairs of lists, opset 4 tensors).
pub static OPERATOR: Operator =
    Operator::in_domain("ai.onnx.ml", "LabelEncoder").evaluate(evaluate).infer(infer).cases(cases);

/// What is looked up, what it becomes, and what everything else becomes.
struct Table {
    keys: Tensor,
    values: Tensor,
    default: Tensor,
}

impl Table {
    fn read(call: &Call, input: Option<DType>) -> Result<Table, OpError> {
        let attributes = &call.attributes;
        if call.opset < 2 {
            return Table::of_positions(attributes, input);
        }
        let missing = |what| OpError::invalid(format!("LabelEncoder has no {what}"));
        let keys = list(attributes, "keys")?.ok_or_else(|| missing("keys"))?;
        let values = list(attributes, "values")?.ok_or_else(|| missing("values"))?;
        if keys.len() != values.len() {
            return Err(OpError::invalid(format!("{} keys for {} values", keys.len(), values.len())));
        }
        let default = match (attributes.tensor("default_tensor")?, values.dtype()) {
            (Some(default), _) if default.dtype() == values.dtype() => default.clone(),
            (_, DType::String) => text(attributes.text_or("default_string", "_Unused")?)?,
            (_, DType::I64) => Tensor::scalar(attributes.int_or("default_int64", -1)?),
            (_, DType::F32) => Tensor::scalar(attributes.float_or("default_float", -0.0)?),
            (_, DType::I16) => Tensor::scalar(-1i16),
            (_, other) => Tensor::zeros(other, &[])?,
        };
        Ok(Table { keys, values, default })
    }

    /// The form of opset 1: texts become their positions, and positions texts.
    fn of_positions(attributes: &Attributes, input: Option<DType>) -> Result<Table, OpError> {
        let classes = attributes.required("classes_strings", attributes.strings("classes_strings")?)?;
        let texts = Tensor::from_strings(&[classes.len()], classes.to_vec())?;
        let positions: Vec<i64> = (0..classes.len() as i64).collect();
        let positions = Tensor::from_slice(&[positions.len()], &positions)?;
        Ok(match input {
            Some(DType::String) => Table {
                keys: texts,
                values: positions,
                default: Tensor::scalar(attributes.int_or("default_int64", -1)?),
            },
            _ => Table {
                keys: positions,
                values: texts,
                default: text(attributes.text_or("default_string", "_Unused")?)?,
            },
        })
    }
}

fn text(text: &str) -> Result<Tensor, OpError> {
    Ok(Tensor::from_strings(&[], vec![text.as_bytes().to_vec()])?)
}

/// The list `keys_*` or `values_*` that a node has, whatever its type.
fn list(attributes: &Attributes, name: &str) -> Result<Option<Tensor>, OpError> {
    if let Some(tensor) = attributes.tensor(&format!("{name}_tensor"))? {
        return Ok(Some(tensor.clone()));
    }
    if let Some(list) = attributes.strings(&format!("{name}_strings"))?.filter(|list| !list.is_empty()) {
        return Ok(Some(Tensor::from_strings(&[list.len()], list.to_vec())?));
    }
    if let Some(list) = attributes.floats(&format!("{name}_floats"))?.filter(|list| !list.is_empty()) {
        return Ok(Some(Tensor::from_slice(&[list.len()], list)?));
    }
    let list = attributes.ints(&format!("{name}_int64s"))?.filter(|list| !list.is_empty());
    Ok(list.map(|list| Tensor::from_slice(&[list.len()], list)).transpose()?)
}

/// The table with the place of each key. The datatype of a node's input never changes, so what is read for
/// the first holds for all.
struct Places {
    table: Table,
    positions: HashMap<Key, usize>,
}

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let Some(Some(x)) = inputs.first() else { return Err(OpError::invalid("LabelEncoder needs an input")) };
    let x = x.tensor()?;
    let Places { table, positions } = call.parsed(|call| {
        let table = Table::read(call, Some(x.dtype()))?;
        let mut positions = HashMap::new();
        for (position, key) in keys(&table.keys)?.into_iter().enumerate() {
            // The first of equal keys holds.
            positions.entry(key).or_insert(position);
        }
        Ok(Places { table, positions })
    })?;
    let found: Vec<usize> = keys(x)?.iter().map(|key| positions.get(key).copied().unwrap_or(usize::MAX / 64)).collect();
    Ok(vec![pick(&table.values, &table.default, &found, x.shape())?.into()])
}

fn infer(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let Some(Some(x)) = inputs.first() else { return Err(OpError::invalid("LabelEncoder needs an input")) };
    let table = Table::read(call, x.dtype)?;
    Ok(smallvec![Fact { dtype: Some(table.values.dtype()), shape: x.shape.clone(), ..Fact::default() }])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("texts to integers", &OPERATOR, 2)
            .attribute("keys_strings", Attribute::Strings(vec![b"a".to_vec(), b"b".to_vec()]))
            .attribute("values_int64s", Attribute::Ints(vec![3, 4]))
            .attribute("default_int64", Attribute::Int(9))
            .input(strings(&[3], &["b", "a", "z"]))
            .output(tensor(&[3], &[4i64, 3, 9])),
        Case::new("floats to texts", &OPERATOR, 2)
            .attribute("keys_floats", Attribute::Floats(vec![1.0, 2.0]))
            .attribute("values_strings", Attribute::Strings(vec![b"x".to_vec(), b"y".to_vec()]))
            .attribute("default_string", Attribute::String(b"?".to_vec()))
            .input(tensor(&[3], &[2.0f32, 1.0, 5.0]))
            .output(strings(&[3], &["y", "x", "?"])),
    ]
}
