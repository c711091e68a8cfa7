use super::common::{coordinate_transform, early_rounding, evaluate_by_lowering, nearest_rounding, one};
use super::common::{resize_mode, resolve_axis, same_dtype};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{CoordinateTransform, Op, Resize};
use crate::{Builder, OpError, ValueId};
use smallvec::SmallVec;

/// Resampling (ONNX Resize, opset 19; opset 10 took scales alone and knew fewer modes, `antialias`,
/// `axes` and `keep_aspect_ratio_policy` came with 18).
pub static OPERATOR: Operator =
    Operator::new("Resize").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    if node.opset < 11 {
        let scales = node.input(1)?;
        let mode = resize_mode(node, early_rounding(b, scales))?;
        let op = Resize::new(mode, CoordinateTransform::Asymmetric);
        return one(b.add_with_optional(Op::Resize(op), &[Some(x), None, Some(scales)])?);
    }
    let mut op = Resize::new(resize_mode(node, nearest_rounding(node)?)?, coordinate_transform(node)?);
    op.antialias = node.attributes.flag_or("antialias", false)?;
    op.exclude_outside = node.attributes.flag_or("exclude_outside", false)?;
    op.extrapolation_value = node.attributes.float_or("extrapolation_value", 0.0)?;
    op.keep_aspect_ratio = match node.attributes.text_or("keep_aspect_ratio_policy", "stretch")? {
        "stretch" => 0,
        "not_larger" => 1,
        "not_smaller" => 2,
        other => return Err(OpError::invalid(format!("keep_aspect_ratio_policy '{other}' is not one of ONNX"))),
    };
    if let Some(axes) = node.attributes.ints("axes")? {
        let Some(rank) = b.rank(x) else { return Ok(None) };
        op.axes = axes.iter().map(|&axis| resolve_axis(axis, rank)).collect::<Result<SmallVec<_>, _>>()?;
    }
    // Opset 11 had no optional inputs: an empty tensor stands for one that is not there.
    let given = |index: usize, b: &Builder| -> Option<ValueId> {
        node.optional(index).filter(|&input| b.fact(input).known_shape().is_none_or(|shape| !shape.contains(&0)))
    };
    let (roi, scales, sizes) = (given(1, b), given(2, b), given(3, b));
    let roi = roi.filter(|_| op.transform == CoordinateTransform::TfCropAndResize);
    let (scales, sizes) = match (scales, sizes) {
        (_, Some(sizes)) => (None, Some(sizes)),
        (Some(scales), None) => (Some(scales), None),
        (None, None) => return Err(OpError::invalid("one of scales and sizes is needed")),
    };
    one(b.add_with_optional(Op::Resize(op), &[Some(x), roi, scales, sizes])?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("twice as wide, by size", &OPERATOR, 18)
            .attribute("mode", Attribute::String("nearest".into()))
            .attribute("axes", Attribute::Ints(vec![-1]))
            .input(tensor(&[1, 1, 1, 2], &[1.0f32, 2.0]))
            .no_input()
            .no_input()
            .input(tensor(&[1], &[4i64]))
            .output(tensor(&[1, 1, 1, 4], &[1.0f32, 1.0, 2.0, 2.0])),
    ]
}
