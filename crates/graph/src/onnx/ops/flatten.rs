use super::common::{Size, evaluate_by_lowering, one, reshape};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Call, Facts};
use crate::{Builder, Dim, Fact, OpError, ValueId};
use smallvec::smallvec;
use std::ops::Range;

/// Joins the axes before and those from `axis` on into one each (ONNX Flatten, opset 25).
pub static OPERATOR: Operator =
    Operator::new("Flatten").lower(lower).evaluate(evaluate_by_lowering).infer(infer).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let Some(rank) = b.rank(x) else { return Ok(None) };
    let given = node.attributes.int_or("axis", 1)?;
    // Unlike elsewhere, the rank itself is an axis too.
    let axis = if given < 0 { given.saturating_add(rank as i64) } else { given };
    let outside = || OpError::invalid(format!("axis {given} lies outside a tensor of {rank} dimensions"));
    let axis = usize::try_from(axis).ok().filter(|&axis| axis <= rank).ok_or_else(outside)?;
    let sizes = [product(b, x, 0..axis)?, product(b, x, axis..rank)?];
    one(reshape(b, x, &sizes)?)
}

fn product(b: &mut Builder, x: ValueId, axes: Range<usize>) -> Result<Size, OpError> {
    axes.into_iter().try_fold(Size::Known(1), |product, axis| {
        let size = Size::of(b, x, axis)?;
        product.times(b, size)
    })
}

fn infer(_call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let dtype = inputs.first().copied().flatten().and_then(|fact| fact.dtype);
    let Some(dtype) = dtype else { return Ok(Facts::new()) };
    Ok(smallvec![Fact::tensor(dtype, [Dim::unknown(), Dim::unknown()])])
}

fn cases() -> Vec<Case> {
    let data = tensor(&[2, 1, 3], &[1i8, 2, 3, 4, 5, 6]);
    let case = |name, axis: i64, shape: &[usize]| {
        Case::new(name, &OPERATOR, 13)
            .attribute("axis", Attribute::Int(axis))
            .input(data.clone())
            .output(tensor(shape, &[1i8, 2, 3, 4, 5, 6]))
    };
    vec![case("nothing before", 0, &[1, 6]), case("everything before", 3, &[6, 1]), case("from the end", -1, &[2, 3])]
}
