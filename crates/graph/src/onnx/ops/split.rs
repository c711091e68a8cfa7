use super::common::{IntList, Size, evaluate_by_lowering, resolve_axis, same_dtype};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Cumulative, CumulativeKind, Gather, Op, Slice};
use crate::{Builder, OpError, ValueId};
use halimede_tensor::Tensor;

/// Cuts a tensor along one axis, into parts of given sizes or into equal ones of which the last may
/// be smaller (ONNX Split, opset 18; `split` is an input since 13).
pub static OPERATOR: Operator =
    Operator::new("Split").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let parts = node.outputs.len();
    if let Some(count) = node.attributes.int("num_outputs")?
        && count != parts as i64
    {
        return Err(OpError::invalid(format!("num_outputs is {count}, but the node has {parts} outputs")));
    }
    let Some(rank) = b.rank(x) else { return Ok(None) };
    let axis = resolve_axis(node.attributes.int_or("axis", 0)?, rank)?;
    // The places of the cuts, from 0 to the size of the axis.
    let cuts = match IntList::read(node, b, "split", 1)? {
        IntList::Known(sizes) => known_cuts(&sizes, parts, b.fact(x).shape.as_ref().and_then(|s| s[axis].known()))?,
        IntList::Computed(sizes) => computed_cuts(b, sizes, parts)?,
        IntList::Missing => equal_cuts(b, x, axis, parts)?,
    };
    let axes = b.ints(&[axis as i64]);
    let mut outputs = Outputs::new();
    for ends in cuts.windows(2) {
        let (start, end) = (ends[0].vector(b), ends[1].vector(b));
        outputs.push(b.add(Op::Slice(Slice), &[x, start, end, axes])?);
    }
    Ok(Some(outputs))
}

fn known_cuts(sizes: &[i64], parts: usize, whole: Option<i64>) -> Result<Vec<Size>, OpError> {
    let total = sizes.iter().try_fold(0i64, |sum, &size| if size < 0 { None } else { sum.checked_add(size) });
    if sizes.len() != parts || total.is_none() || whole.is_some_and(|whole| total != Some(whole)) {
        let whole = whole.map_or(String::new(), |whole| format!(" of an axis of size {whole}"));
        return Err(OpError::invalid(format!("split {sizes:?} does not make {parts} parts{whole}")));
    }
    let mut cut = 0;
    let after = sizes.iter().map(|size| {
        cut += size;
        Size::Known(cut)
    });
    Ok(std::iter::once(Size::Known(0)).chain(after).collect())
}

fn computed_cuts(b: &mut Builder, sizes: ValueId, parts: usize) -> Result<Vec<Size>, OpError> {
    let axis = b.constant(Tensor::scalar(0i64));
    let sum = Op::Cumulative(Cumulative { kind: CumulativeKind::Sum, exclusive: false, reverse: false });
    let sums = b.add(sum, &[sizes, axis])?;
    let mut cuts = vec![Size::Known(0)];
    for part in 0..parts {
        let index = b.ints(&[part as i64]);
        cuts.push(Size::Value(b.add(Op::Gather(Gather { axis: 0 }), &[sums, index])?));
    }
    Ok(cuts)
}

fn equal_cuts(b: &mut Builder, x: ValueId, axis: usize, parts: usize) -> Result<Vec<Size>, OpError> {
    let whole = Size::of(b, x, axis)?;
    let part = whole.plus(b, parts as i64 - 1)?.over(b, parts as i64)?;
    let mut cuts = (0..parts).map(|index| part.times(b, index as i64)).collect::<Result<Vec<_>, _>>()?;
    cuts.push(whole);
    Ok(cuts)
}

fn cases() -> Vec<Case> {
    let data = tensor(&[5], &[1.0f32, 2.0, 3.0, 4.0, 5.0]);
    let (head, tail) = (tensor(&[3], &[1.0f32, 2.0, 3.0]), tensor(&[2], &[4.0f32, 5.0]));
    vec![
        Case::new("the last part is smaller", &OPERATOR, 18)
            .attribute("num_outputs", Attribute::Int(2))
            .input(data.clone())
            .output(head.clone())
            .output(tail.clone()),
        Case::new("sizes as input", &OPERATOR, 13)
            .input(data.clone())
            .input(tensor(&[2], &[3i64, 2]))
            .output(head.clone())
            .output(tail.clone()),
        Case::new("sizes as attribute", &OPERATOR, 11)
            .attribute("split", Attribute::Ints(vec![3, 2]))
            .input(data)
            .output(head)
            .output(tail),
    ]
}
