use super::common::one;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Contract, Expr, Labels, Op};
use crate::{Builder, OpError};
use smallvec::smallvec;

/// `α A B + β C` with either matrix transposed (ONNX Gemm, opset 13).
pub static OPERATOR: Operator = Operator::new("Gemm").lower(lower).cases(cases);

pub(super) fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let attributes = &node.attributes;
    let (alpha, beta) = (attributes.float_or("alpha", 1.0)?, attributes.float_or("beta", 1.0)?);
    let (m, n, k) = (0u8, 1, 2);
    let lhs: Labels = if attributes.flag_or("transA", false)? { smallvec![k, m] } else { smallvec![m, k] };
    let rhs: Labels = if attributes.flag_or("transB", false)? { smallvec![n, k] } else { smallvec![k, n] };
    let contract = Contract::new(lhs, rhs, smallvec![m, n]);
    let product = b.add(Op::Contract(contract), &[node.input(0)?, node.input(1)?])?;

    let scaled = |value: Expr, by: f32| if by == 1.0 { value } else { value * by };
    let product_term = scaled(Expr::input(0), alpha);
    match node.optional(2).filter(|_| beta != 0.0) {
        Some(c) => one(b.map(&(product_term + scaled(Expr::input(1), beta)), &[product, c])?),
        None if alpha == 1.0 => one(product),
        None => one(b.map(&product_term, &[product])?),
    }
}

fn cases() -> Vec<Case> {
    let a = || tensor(&[1, 2], &[1f32, 2.0]);
    let b = || tensor(&[2, 2], &[3f32, 4.0, 5.0, 6.0]);
    let case = |name| Case::new(name, &OPERATOR, 13).input(a()).input(b());
    vec![
        case("without C").output(tensor(&[1, 2], &[13f32, 16.0])),
        case("C broadcasts").input(tensor(&[2], &[1f32, -1.0])).output(tensor(&[1, 2], &[14f32, 15.0])),
        case("transposed and scaled")
            .attribute("transB", Attribute::Int(1))
            .attribute("alpha", Attribute::Float(2.0))
            .attribute("beta", Attribute::Float(0.5))
            .input(tensor(&[], &[4f32]))
            .output(tensor(&[1, 2], &[24f32, 36.0])),
    ]
}
