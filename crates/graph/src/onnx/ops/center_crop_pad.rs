use super::common::{evaluate_by_lowering, one, resolve_axis, same_dtype};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Concat, Expr, Gather, Op, Pad, PadMode, Slice};
use crate::{Builder, OpError};

/// Cuts or pads around the middle to given sizes (ONNX CenterCropPad, opset 18).
pub static OPERATOR: Operator =
    Operator::new("CenterCropPad").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (x, target) = (node.input(0)?, node.input(1)?);
    let Some(rank) = b.rank(x) else { return Ok(None) };
    let axes: Vec<i64> = match node.attributes.ints("axes")? {
        Some(axes) => axes.iter().map(|&axis| Ok(resolve_axis(axis, rank)? as i64)).collect::<Result<_, OpError>>()?,
        None => (0..rank as i64).collect(),
    };
    let axes = b.ints(&axes);
    let target = b.cast(target, halimede_tensor::DType::I64)?;
    let dims = b.shape_of(x)?;
    let dims = b.add(Op::Gather(Gather { axis: 0 }), &[dims, axes])?;
    // Where the target is smaller, the middle is cut out; where it is larger, zeros go around.
    let (dim, wanted) = (Expr::input(0), Expr::input(1));
    let start = (dim.clone() - &wanted).max(0.0) / 2.0;
    let end = start.clone() + dim.min(&wanted);
    let missing = (wanted - &dim).max(0.0);
    let before = missing.clone() / 2.0;
    let after = missing - &before;
    let sizes = [dims, target];
    let (start, end) = (b.map(&start, &sizes)?, b.map(&end, &sizes)?);
    let cut = b.add(Op::Slice(Slice), &[x, start, end, axes])?;
    let (before, after) = (b.map(&before, &sizes)?, b.map(&after, &sizes)?);
    let pads = b.add(Op::Concat(Concat { axis: 0 }), &[before, after])?;
    let inputs = [Some(cut), Some(pads), None, Some(axes)];
    one(b.add_with_optional(Op::Pad(Pad { mode: PadMode::Constant }), &inputs)?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("cut and pad", &OPERATOR, 18)
            .attribute("axes", Attribute::Ints(vec![0, -1]))
            .input(tensor(&[4, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]))
            .input(tensor(&[2], &[1i64, 5]))
            .output(tensor(&[1, 5], &[0.0f32, 3.0, 4.0, 0.0, 0.0])),
    ]
}
