use super::lists::per_feature;
use crate::onnx::case::tensor;
use crate::onnx::ops::common::one;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Expr, Unary};
use crate::{Builder, OpError};

/// Features that hold a certain value, often NaN, replaced by others (ai.onnx.ml Imputer, opset 1).
pub static OPERATOR: Operator = Operator::in_domain("ai.onnx.ml", "Imputer").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (x, attributes) = (node.input(0)?, &node.attributes);
    let element = Expr::input(0);
    let (missing, imputed) = match attributes.ints("imputed_value_int64s")?.filter(|list| !list.is_empty()) {
        Some(list) if b.dtype(x)?.is_integer() => {
            let replaced = attributes.int_or("replaced_value_int64", 0)?;
            (element.with(Binary::Equal, replaced as f64), b.ints(list))
        }
        _ => {
            let list = attributes.required("imputed_value_floats", attributes.floats("imputed_value_floats")?)?;
            let replaced = attributes.float_or("replaced_value_float", 0.0)?;
            let missing =
                if replaced.is_nan() { element.apply(Unary::IsNan) } else { element.with(Binary::Equal, replaced) };
            (missing, per_feature(b, list)?)
        }
    };
    let dtype = b.dtype(x)?;
    let imputed = b.cast(imputed, dtype)?;
    one(b.map(&missing.select(Expr::input(1), element), &[x, imputed])?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("NaN", &OPERATOR, 3)
            .attribute("imputed_value_floats", Attribute::Floats(vec![7.0, 8.0]))
            .attribute("replaced_value_float", Attribute::Float(f32::NAN))
            .input(tensor(&[2, 2], &[1.0f32, f32::NAN, f32::NAN, 2.0]))
            .output(tensor(&[2, 2], &[1.0f32, 8.0, 7.0, 2.0])),
        Case::new("integers", &OPERATOR, 3)
            .attribute("imputed_value_int64s", Attribute::Ints(vec![5]))
            .attribute("replaced_value_int64", Attribute::Int(-1))
            .input(tensor(&[1, 2], &[1i64, -1]))
            .output(tensor(&[1, 2], &[1i64, 5])),
    ]
}
