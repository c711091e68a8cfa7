use super::common::{Size, evaluate_by_lowering, one, reshape, resolve_axis};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Call, Expr, Facts, Gather, Op};
use crate::{Builder, Fact, OpError};
use halimede_tensor::DType;
use smallvec::smallvec;

/// A new axis that holds one value at each index and another everywhere else (ONNX OneHot, opset 11).
pub static OPERATOR: Operator =
    Operator::new("OneHot").lower(lower).evaluate(evaluate_by_lowering).infer(infer).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (indices, depth, values) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let Some(rank) = b.rank(indices) else { return Ok(None) };
    let axis = resolve_axis(node.attributes.int_or("axis", -1)?, rank + 1)?;
    let depth = Size::from_input(b, depth)?;
    let mut along = vec![Size::Known(1); rank + 1];
    along[axis] = Size::Known(-1);
    let places = depth.positions(b)?;
    let places = reshape(b, places, &along)?;
    let indices = b.cast(indices, DType::I64)?;
    let mut sizes = Size::all(b, indices, rank)?;
    sizes.insert(axis, Size::Known(1));
    let indices = reshape(b, indices, &sizes)?;
    let depth = depth.scalar(b)?;
    // A negative index counts from the end; one outside the depth is nowhere.
    let (place, index, depth_number) = (Expr::input(0), Expr::input(1), Expr::input(2));
    let index = index.less(0.0).select(index.clone() + depth_number, index);
    let chosen = place.with(Binary::Equal, index).cast(DType::I64);
    let chosen = b.map(&chosen, &[places, indices, depth])?;
    // `values` holds the other value first; any datatype can be gathered.
    one(b.add(Op::Gather(Gather { axis: 0 }), &[values, chosen])?)
}

fn infer(_call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    Ok(smallvec![Fact::of_dtype(inputs.get(2).copied().flatten().and_then(|values| values.dtype))])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("from the end, and nowhere", &OPERATOR, 11)
            .attribute("axis", Attribute::Int(0))
            .input(tensor(&[3], &[0i64, -1, 5]))
            .input(tensor(&[], &[3i64]))
            .input(tensor(&[2], &[0.5f32, 2.0]))
            .output(tensor(&[3, 3], &[2.0f32, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 2.0, 0.5])),
    ]
}
