use super::common::{evaluate_by_lowering, matmul};
use crate::onnx::case::tensor;
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::{Builder, OpError};
use smallvec::smallvec;

/// Product of matrices with broadcast batch axes, as NumPy's `matmul` (ONNX MatMul, opset 13).
pub static OPERATOR: Operator = Operator::new("MatMul").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    Ok(matmul(b, node.input(0)?, node.input(1)?)?.map(|y| smallvec![y]))
}

fn cases() -> Vec<Case> {
    let case = |name| Case::new(name, &OPERATOR, 13);
    let (a, b) = (tensor(&[2, 2], &[1f32, 2.0, 3.0, 4.0]), tensor(&[2, 2], &[5f32, 6.0, 7.0, 8.0]));
    let batched = tensor(&[2, 1, 2], &[1f32, 0.0, 0.0, 1.0]);
    vec![
        case("matrices").input(a.clone()).input(b.clone()).output(tensor(&[2, 2], &[19f32, 22.0, 43.0, 50.0])),
        case("a batch axis broadcasts")
            .input(batched)
            .input(b.clone())
            .output(tensor(&[2, 1, 2], &[5f32, 6.0, 7.0, 8.0])),
        case("vector and matrix").input(tensor(&[2], &[1f32, 1.0])).input(b).output(tensor(&[2], &[12f32, 14.0])),
        case("two vectors")
            .input(tensor(&[2], &[1f32, 2.0]))
            .input(tensor(&[2], &[3f32, 4.0]))
            .output(tensor(&[], &[11f32])),
    ]
}
