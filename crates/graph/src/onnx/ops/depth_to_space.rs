use super::common::{Size, block_size, evaluate_by_lowering, one, reshape, same_dtype};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::{Builder, OpError};

/// Moves channels into blocks of pixels (ONNX DepthToSpace, opset 13; `mode` came with 11).
pub static OPERATOR: Operator =
    Operator::new("DepthToSpace").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype).cases(cases);

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
    if c.known().is_some_and(|c| c % (block * block) != 0) {
        return Err(OpError::invalid(format!("the channels do not divide by blocksize {block} squared")));
    }
    let depth = c.over(b, block * block)?;
    let s = Size::Known(block);
    // Which part of the channel says the place in the block: the outer one, or the inner one.
    let (split, order) = match node.attributes.text_or("mode", "DCR")? {
        "DCR" => ([n, s, s, depth, h, w], [0, 3, 4, 1, 5, 2]),
        "CRD" => ([n, depth, s, s, h, w], [0, 1, 4, 2, 5, 3]),
        other => return Err(OpError::invalid(format!("mode is '{other}'; ONNX knows DCR and CRD"))),
    };
    let split = reshape(b, x, &split)?;
    let moved = b.transpose(split, &order)?;
    let joined = [n, depth, h.times(b, block)?, w.times(b, block)?];
    one(reshape(b, moved, &joined)?)
}

fn cases() -> Vec<Case> {
    let case = |mode: &'static str, expected: [f32; 8]| {
        Case::new(mode, &OPERATOR, 13)
            .attribute("blocksize", Attribute::Int(2))
            .attribute("mode", Attribute::String(mode.into()))
            .input(tensor(&[1, 8, 1, 1], &[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]))
            .output(tensor(&[1, 2, 2, 2], &expected))
    };
    vec![case("DCR", [0.0, 2.0, 4.0, 6.0, 1.0, 3.0, 5.0, 7.0]), case("CRD", [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])]
}
