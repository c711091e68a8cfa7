use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Op, Slice};
use crate::{Builder, OpError, ValueId};

/// A strided part (ONNX Slice, opset 13; its numbers are inputs since 10).
pub static OPERATOR: Operator = Operator::new("Slice").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let inputs: Vec<Option<ValueId>> = if node.opset < 10 {
        let list = |name: &str| node.attributes.ints(name);
        let starts = node.attributes.required("starts", list("starts")?)?;
        let ends = node.attributes.required("ends", list("ends")?)?;
        let axes = list("axes")?;
        vec![Some(node.input(0)?), Some(b.ints(starts)), Some(b.ints(ends)), axes.map(|axes| b.ints(axes))]
    } else {
        let required = (0..3).map(|index| node.input(index).map(Some));
        required.chain((3..5).map(|index| Ok(node.optional(index)))).collect::<Result<_, _>>()?
    };
    one(b.add_with_optional(Op::Slice(Slice), &inputs)?)
}

fn cases() -> Vec<Case> {
    let data = tensor(&[2, 4], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let ints = |v: &[i64]| tensor(&[v.len()], v);
    vec![
        Case::new("backwards and past the end", &OPERATOR, 13)
            .input(data.clone())
            .input(ints(&[1, -1]))
            .input(ints(&[1000, -1000]))
            .input(ints(&[0, 1]))
            .input(ints(&[1, -2]))
            .output(tensor(&[1, 2], &[8.0f32, 6.0])),
        Case::new("numbers as attributes", &OPERATOR, 9)
            .attribute("starts", Attribute::Ints(vec![0, 1]))
            .attribute("ends", Attribute::Ints(vec![-1, 3]))
            .input(data)
            .output(tensor(&[1, 2], &[2.0f32, 3.0])),
    ]
}
