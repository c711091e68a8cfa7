use crate::onnx::case::tensor;
use crate::onnx::ops::common::{Size, evaluate_by_lowering};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Gather, Norm, NormKind, Op, ReduceKind};
use crate::{Builder, OpError, ValueId};
use halimede_tensor::DType;
use smallvec::smallvec;

/// Sum of word, position and segment embeddings, layer normalised, and the length of each sequence by
/// its mask (ONNX Runtime EmbedLayerNormalization).
pub static OPERATOR: Operator = Operator::in_domain("com.microsoft", "EmbedLayerNormalization")
    .lower(lower)
    .evaluate(evaluate_by_lowering)
    .cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let ids = node.input(0)?;
    if b.rank(ids).is_none() {
        return Ok(None);
    }
    let rows = |b: &mut Builder, table: ValueId, rows: ValueId| b.add(Op::Gather(Gather { axis: 0 }), &[table, rows]);
    let words = rows(b, node.input(2)?, ids)?;
    let positions = match node.optional(8) {
        Some(positions) => positions,
        None => Size::of(b, ids, 1)?.positions(b)?,
    };
    let positions = rows(b, node.input(3)?, positions)?;
    let mut sum = b.binary(Binary::Add, words, positions)?;
    if let (Some(segments), Some(table)) = (node.optional(1), node.optional(4)) {
        let segments = rows(b, table, segments)?;
        sum = b.binary(Binary::Add, sum, segments)?;
    }
    let norm = Norm {
        kind: NormKind::Layer { axis: 2 },
        epsilon: node.attributes.float_or("epsilon", 1e-12)?,
        epilogue: None,
        quantize: None,
    };
    let y = b.add(Op::Norm(norm), &[sum, node.input(5)?, node.input(6)?])?;
    let mut outputs: Outputs = smallvec![y];
    if node.outputs.len() > 1 {
        let lengths = match node.optional(7) {
            Some(mask) => b.reduce(ReduceKind::Sum, mask, [1], false)?,
            None => {
                let ids = b.cast(ids, DType::I32)?;
                let zeros = b.binary(Binary::Sub, ids, ids)?;
                b.reduce(ReduceKind::Sum, zeros, [1], false)?
            }
        };
        outputs.extend([lengths, sum]);
        outputs.truncate(node.outputs.len());
    }
    Ok(Some(outputs))
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("words, positions, segments, mask", &OPERATOR, 1)
            .attribute("epsilon", Attribute::Float(0.00001))
            .input(tensor(&[2, 2], &[1i32, 0, 2, 1]))
            .input(tensor(&[2, 2], &[0i32, 0, 0, 1]))
            .input(tensor(&[3, 4], &[-1.32f32, 1.72, 1.46, -0.46, 0.77, 0.38, -2.61, 0.25, -0.06, 0.08, -1.08, -0.27]))
            .input(tensor(&[2, 4], &[-0.18f32, 1.19, 0.33, -0.01, 1.53, -0.56, -0.39, -1.82]))
            .input(tensor(&[2, 4], &[1.57f32, 0.96, 0.92, 0.67, 0.11, 0.22, -0.25, -0.2]))
            .input(tensor(&[4], &[0.05f32, 1.51, 0.56, -0.06]))
            .input(tensor(&[4], &[-0.58f32, -0.63, 1.6, 0.51]))
            .input(tensor(&[2, 2], &[1i32, 1, 1, 0]))
            .output(tensor(
                &[2, 2, 4],
                &[
                    -0.5438319f32,
                    0.8296782,
                    0.70881826,
                    0.51591843,
                    -0.557127,
                    0.39155197,
                    1.931948,
                    0.6136049,
                    -0.561672,
                    1.5840243,
                    1.0115485,
                    0.5569197,
                    -0.50775814,
                    -0.14219874,
                    0.9088447,
                    0.54202074,
                ],
            ))
            .output(tensor(&[2], &[2i32, 1]))
            .within(1e-4, 1e-5),
        Case::new("words and positions", &OPERATOR, 1)
            .attribute("epsilon", Attribute::Float(0.00001))
            .input(tensor(&[1, 2], &[1i32, 0]))
            .no_input()
            .input(tensor(&[2, 4], &[0.07f32, -0.35, -1.11, -0.07, 0.87, -0.39, -0.23, -0.22]))
            .input(tensor(&[2, 4], &[0.11f32, -1.59, -0.24, -0.85, 0.88, -0.77, 0.58, 1.52]))
            .no_input()
            .input(tensor(&[4], &[-0.31f32, -0.6, 0.19, -0.0]))
            .input(tensor(&[4], &[-0.99f32, 0.46, 2.02, -0.26]))
            .output(tensor(
                &[1, 2, 4],
                &[-1.4551557f32, 1.2097867, 2.0491273, -0.26, -1.2153821, 1.2080157, 1.890015, -0.26],
            ))
            .output(tensor(&[1], &[0i32]))
            .within(1e-4, 1e-5),
    ]
}
