use super::common::{IntList, Size, evaluate_by_lowering, one, reshape, resolve_axis};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Call, Facts};
use crate::{Builder, Dim, Fact, OpError};
use smallvec::smallvec;

/// Inserts axes of size 1 (ONNX Unsqueeze, opset 25; `axes` is an input since 13).
pub static OPERATOR: Operator =
    Operator::new("Unsqueeze").lower(lower).evaluate(evaluate_by_lowering).infer(infer).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let Some(rank) = b.rank(x) else { return Ok(None) };
    let axes = match IntList::read(node, b, "axes", 1)? {
        IntList::Known(axes) => axes,
        IntList::Computed(_) => return Ok(None),
        IntList::Missing => return Err(OpError::invalid("the axes to insert are missing")),
    };
    let rank = rank + axes.len();
    let mut inserted: Vec<usize> = axes.iter().map(|&axis| resolve_axis(axis, rank)).collect::<Result<_, _>>()?;
    inserted.sort_unstable();
    if inserted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(OpError::invalid(format!("axes {axes:?} name one axis twice")));
    }
    let mut from = 0;
    let mut sizes = Vec::with_capacity(rank);
    for axis in 0..rank {
        if inserted.contains(&axis) {
            sizes.push(Size::Known(1));
        } else {
            sizes.push(Size::of(b, x, from)?);
            from += 1;
        }
    }
    one(reshape(b, x, &sizes)?)
}

fn infer(_call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let [Some(x), axes, ..] = inputs else { return Ok(Facts::new()) };
    let count = axes.and_then(|axes| axes.shape.as_ref()?.first()?.size());
    Ok(smallvec![match (x.rank(), x.dtype, count) {
        (Some(rank), Some(dtype), Some(count)) => Fact::tensor(dtype, vec![Dim::unknown(); rank + count]),
        _ => Fact::of_dtype(x.dtype),
    }])
}

fn cases() -> Vec<Case> {
    let data = tensor(&[2], &[1i64, 2]);
    vec![
        Case::new("unsorted axes", &OPERATOR, 13)
            .input(data.clone())
            .input(tensor(&[2], &[2i64, 0]))
            .output(tensor(&[1, 2, 1], &[1i64, 2])),
        Case::new("axes as attribute", &OPERATOR, 11)
            .attribute("axes", Attribute::Ints(vec![-1]))
            .input(data)
            .output(tensor(&[2, 1], &[1i64, 2])),
    ]
}
