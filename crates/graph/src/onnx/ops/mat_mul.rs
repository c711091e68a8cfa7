use crate::onnx::{OnnxNode, Operator, Outputs};
use crate::ops::{Contract, Labels, Op};
use crate::{Builder, OpError};
use smallvec::smallvec;

/// Product of matrices with broadcast batch axes, as NumPy's `matmul` (ONNX MatMul, opset 13).
pub static OPERATOR: Operator = Operator::new("MatMul").lower(lower);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (x, y) = (node.input(0)?, node.input(1)?);
    let (Some(x_rank), Some(y_rank)) = (b.rank(x), b.rank(y)) else { return Ok(None) };
    if x_rank == 0 || y_rank == 0 {
        return Err(OpError::invalid("an operand is a scalar; MatMul needs at least one axis on each side"));
    }
    let batch = x_rank.max(y_rank).saturating_sub(2);
    // Batch axes are labelled from the right, so that operands of different ranks broadcast.
    let leading = |rank: usize| (batch - rank.saturating_sub(2)..batch).map(|label| label as u8);
    let (m, n, k) = (batch as u8, batch as u8 + 1, batch as u8 + 2);
    let lhs: Labels = if x_rank == 1 { smallvec![k] } else { leading(x_rank).chain([m, k]).collect() };
    let rhs: Labels = if y_rank == 1 { smallvec![k] } else { leading(y_rank).chain([k, n]).collect() };
    let out = (0..batch as u8).chain((x_rank > 1).then_some(m)).chain((y_rank > 1).then_some(n)).collect();
    Ok(Some(smallvec![b.add(Op::Contract(Contract { lhs, rhs, out, epilogue: None }), &[x, y])?]))
}
