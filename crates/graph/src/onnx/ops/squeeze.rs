use super::common::{IntList, Size, evaluate_by_lowering, one, reshape, resolve_axis, same_dtype};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::{Builder, Dim, OpError};

/// Removes axes of size 1 (ONNX Squeeze, opset 25; `axes` is an input since 13).
pub static OPERATOR: Operator =
    Operator::new("Squeeze").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let Some(dims) = b.fact(x).shape.clone() else { return Ok(None) };
    let removed: Vec<usize> = match IntList::read(node, b, "axes", 1)? {
        IntList::Computed(_) => return Ok(None),
        IntList::Known(axes) => axes.iter().map(|&axis| resolve_axis(axis, dims.len())).collect::<Result<_, _>>()?,
        // Every axis of size 1, which must be known to be or not to be.
        IntList::Missing if dims.iter().all(|dim| dim.known().is_some()) => {
            (0..dims.len()).filter(|&axis| dims[axis] == Dim::from(1)).collect()
        }
        IntList::Missing => return Ok(None),
    };
    if let Some(axis) = removed.iter().find(|&&axis| dims[axis].known().is_some_and(|size| size != 1)) {
        return Err(OpError::invalid(format!("axis {axis} has size {}; only axes of size 1 can go", dims[*axis])));
    }
    let kept: Vec<usize> = (0..dims.len()).filter(|axis| !removed.contains(axis)).collect();
    let sizes = kept.into_iter().map(|axis| Size::of(b, x, axis)).collect::<Result<Vec<_>, _>>()?;
    one(reshape(b, x, &sizes)?)
}

fn cases() -> Vec<Case> {
    let data = tensor(&[1, 2, 1], &[1.0f32, 2.0]);
    let axes = |axes: &[i64]| tensor(&[axes.len()], axes);
    vec![
        Case::new("axes as input", &OPERATOR, 13)
            .input(data.clone())
            .input(axes(&[-1]))
            .output(tensor(&[1, 2], &[1.0f32, 2.0])),
        Case::new("axes as attribute", &OPERATOR, 11)
            .attribute("axes", Attribute::Ints(vec![0]))
            .input(data.clone())
            .output(tensor(&[2, 1], &[1.0f32, 2.0])),
        Case::new("every axis of size 1", &OPERATOR, 13).input(data).output(tensor(&[2], &[1.0f32, 2.0])),
    ]
}
