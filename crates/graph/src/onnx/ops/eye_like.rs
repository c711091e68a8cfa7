use super::common::{Size, dtype_attribute, one};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Expr};
use crate::{Builder, OpError};

/// Ones on a diagonal of a matrix of the input's shape (ONNX EyeLike, opset 22).
pub static OPERATOR: Operator = Operator::new("EyeLike").lower(lower).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    if let Some(rank) = b.rank(x).filter(|&rank| rank != 2) {
        return Err(OpError::invalid(format!("the input has {rank} dimensions; EyeLike takes a matrix")));
    }
    let dtype = match dtype_attribute(&node.attributes, "dtype")? {
        Some(dtype) => dtype,
        None => b.dtype(x)?,
    };
    let rows = Size::of(b, x, 0)?.positions(b)?;
    let rows = b.reshape(rows, &[-1, 1])?;
    let columns = Size::of(b, x, 1)?.positions(b)?;
    let k = node.attributes.int_or("k", 0)? as f64;
    let on_diagonal = (Expr::input(1) - Expr::input(0)).with(Binary::Equal, k);
    one(b.map(&on_diagonal.cast(dtype), &[rows, columns])?)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("above the main diagonal", &OPERATOR, 9)
            .attribute("k", Attribute::Int(1))
            .attribute("dtype", Attribute::Int(1))
            .input(tensor(&[2, 3], &[7i32; 6]))
            .output(tensor(&[2, 3], &[0.0f32, 1.0, 0.0, 0.0, 0.0, 1.0])),
    ]
}
