use super::common::{Size, block_size, evaluate_by_lowering, one, reshape, same_dtype};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::{Builder, OpError};

/// Moves blocks of pixels into channels (ONNX SpaceToDepth, opset 13).
pub static OPERATOR: Operator =
    Operator::new("SpaceToDepth").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    let block = block_size(node)?;
    match b.rank(x) {
        None => return Ok(None),
        Some(4) => {}
        Some(rank) => return Err(OpError::invalid(format!("the input has {rank} dimensions instead of [N, C, H, W]"))),
    }
    let sizes = Size::all(b, x, 4)?;
    let [n, c, h, w] = sizes[..] else { return Ok(None) };
    if [h, w].iter().any(|size| size.known().is_some_and(|size| size % block != 0)) {
        return Err(OpError::invalid(format!("height or width does not divide by blocksize {block}")));
    }
    let (rows, columns) = (h.over(b, block)?, w.over(b, block)?);
    let s = Size::Known(block);
    let split = reshape(b, x, &[n, c, rows, s, columns, s])?;
    let moved = b.transpose(split, &[0, 3, 5, 1, 2, 4])?;
    let joined = [n, c.times(b, block * block)?, rows, columns];
    one(reshape(b, moved, &joined)?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("blocks become channels", &OPERATOR, 13)
            .attribute("blocksize", Attribute::Int(2))
            .input(tensor(&[1, 1, 2, 4], &[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]))
            .output(tensor(&[1, 4, 1, 2], &[0.0f32, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0])),
    ]
}
