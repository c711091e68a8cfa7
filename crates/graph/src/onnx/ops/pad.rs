use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Op, Pad, PadMode};
use crate::{Builder, OpError, ValueId};

/// Adds or removes a border (ONNX Pad, opset 25; `pads` and the value are inputs since 11, `axes` came
/// with 18).
pub static OPERATOR: Operator = Operator::new("Pad").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let mode = match node.attributes.text_or("mode", "constant")? {
        "constant" => PadMode::Constant,
        "edge" => PadMode::Edge,
        "reflect" => PadMode::Reflect,
        "wrap" => PadMode::Wrap,
        other => {
            return Err(OpError::invalid(format!("mode is '{other}'; ONNX knows constant, edge, reflect and wrap")));
        }
    };
    let x = node.input(0)?;
    let inputs: Vec<Option<ValueId>> = if node.opset < 11 {
        let pads = node.attributes.required("pads", node.attributes.ints("pads")?)?;
        let pads = b.ints(pads);
        let dtype = b.dtype(x)?;
        let value = b.scalar(node.attributes.float_or("value", 0.0)?.into(), dtype)?;
        vec![Some(x), Some(pads), Some(value)]
    } else {
        vec![Some(x), Some(node.input(1)?), node.optional(2), node.optional(3)]
    };
    one(b.add_with_optional(Op::Pad(Pad { mode }), &inputs)?)
}

fn cases() -> Vec<Case> {
    let data = tensor(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]);
    vec![
        Case::new("one axis, its end cut", &OPERATOR, 18)
            .input(data.clone())
            .input(tensor(&[2], &[1i64, -1]))
            .input(tensor(&[], &[9.0f32]))
            .input(tensor(&[1], &[-1i64]))
            .output(tensor(&[2, 2], &[9.0f32, 1.0, 9.0, 3.0])),
        Case::new("pads as attribute", &OPERATOR, 7)
            .attribute("pads", Attribute::Ints(vec![0, 1, 0, 0]))
            .attribute("mode", Attribute::String("reflect".into()))
            .input(data)
            .output(tensor(&[2, 3], &[2.0f32, 1.0, 2.0, 4.0, 3.0, 4.0])),
    ]
}
