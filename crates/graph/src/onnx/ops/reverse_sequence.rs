use super::common::{Size, evaluate_by_lowering, one, reshape, same_dtype};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Expr, GatherNd, Op};
use crate::{Builder, OpError};

/// Turns the beginnings of sequences around, each up to its own length (ONNX ReverseSequence, opset 10).
pub static OPERATOR: Operator =
    Operator::new("ReverseSequence").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (x, lengths) = (node.input(0)?, node.input(1)?);
    let Some(rank) = b.rank(x) else { return Ok(None) };
    let (batch, time) = (node.attributes.int_or("batch_axis", 1)?, node.attributes.int_or("time_axis", 0)?);
    let mut order: Vec<usize> = (0..rank).collect();
    match (batch, time) {
        _ if rank < 2 => return Err(OpError::invalid("the input needs a batch and a time axis")),
        (0, 1) => {}
        (1, 0) => order.swap(0, 1),
        _ => return Err(OpError::invalid(format!("batch_axis {batch} and time_axis {time} must be 0 and 1"))),
    }
    // Batch first: then each entry gathers its own time steps.
    let x = b.transpose(x, &order)?;
    let steps = Size::of(b, x, 1)?.positions(b)?;
    let lengths = b.reshape(lengths, &[-1, 1])?;
    let (step, length) = (Expr::input(0), Expr::input(1));
    let source = step.less(&length).select(length - 1.0 - &step, &step);
    let source = b.map(&source, &[steps, lengths])?;
    let shape = [Size::of(b, x, 0)?, Size::of(b, x, 1)?, Size::Known(1)];
    let source = reshape(b, source, &shape)?;
    let turned = b.add(Op::GatherNd(GatherNd { batch_dims: 1 }), &[x, source])?;
    one(b.transpose(turned, &order)?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("time first", &OPERATOR, 10)
            .attribute("time_axis", Attribute::Int(0))
            .attribute("batch_axis", Attribute::Int(1))
            .input(tensor(&[3, 2], &[1.0f32, 4.0, 2.0, 5.0, 3.0, 6.0]))
            .input(tensor(&[2], &[3i64, 2]))
            .output(tensor(&[3, 2], &[3.0f32, 5.0, 2.0, 4.0, 1.0, 6.0])),
    ]
}
