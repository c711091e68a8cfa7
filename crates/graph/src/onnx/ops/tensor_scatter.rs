use super::common::{Size, evaluate_by_lowering, expand, one, reshape, resolve_axis, same_dtype};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Op, ScatterElements, ScatterReduction};
use crate::{Builder, OpError};

/// Writes new entries into a cache from a place per batch entry on, around its end where `mode` is
/// circular (ONNX TensorScatter, opset 24).
pub static OPERATOR: Operator =
    Operator::new("TensorScatter").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (cache, update) = (node.input(0)?, node.input(1)?);
    let Some(rank) = b.rank(cache).or(b.rank(update)) else { return Ok(None) };
    let axis = resolve_axis(node.attributes.int_or("axis", -2)?, rank)?;
    if axis == 0 {
        return Err(OpError::invalid("axis 0 is the batch and cannot be written along"));
    }
    let sizes = Size::all(b, update, rank)?;
    let mut along = vec![Size::Known(1); rank];
    along[axis] = Size::Known(-1);
    let positions = sizes[axis].positions(b)?;
    let mut indices = reshape(b, positions, &along)?;
    if let Some(starts) = node.optional(2) {
        along[axis] = Size::Known(1);
        along[0] = Size::Known(-1);
        let starts = reshape(b, starts, &along)?;
        indices = b.binary(Binary::Add, starts, indices)?;
    }
    match node.attributes.text_or("mode", "linear")? {
        "linear" => {}
        "circular" => {
            let size = Size::of(b, cache, axis)?.scalar(b)?;
            indices = b.binary(Binary::Mod, indices, size)?;
        }
        other => return Err(OpError::invalid(format!("mode is '{other}'; ONNX knows linear and circular"))),
    }
    let indices = expand(b, indices, &sizes)?;
    let op = ScatterElements { axis, reduction: ScatterReduction::None };
    one(b.add(Op::ScatterElements(op), &[cache, indices, update])?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("around the end", &OPERATOR, 24)
            .attribute("mode", Attribute::String("circular".into()))
            .input(tensor(&[2, 3, 1], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]))
            .input(tensor(&[2, 2, 1], &[10.0f32, 20.0, 30.0, 40.0]))
            .input(tensor(&[2], &[0i64, 2]))
            .output(tensor(&[2, 3, 1], &[10.0f32, 20.0, 3.0, 40.0, 5.0, 30.0])),
    ]
}
