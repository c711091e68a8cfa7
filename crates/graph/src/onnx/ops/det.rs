use super::common::required;
use crate::onnx::case::tensor;
use crate::onnx::{Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Fact, OpError};
use halimede_tensor::{Tensor, Value};
use smallvec::smallvec;

/// Determinants of square matrices (ONNX Det, opset 22).
pub static OPERATOR: Operator = Operator::new("Det").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(_call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let x = required(inputs, 0)?;
    let [batch @ .., rows, columns] = x.shape() else { return Err(OpError::invalid("the input must hold matrices")) };
    if rows != columns {
        return Err(OpError::invalid(format!("a matrix of {rows} by {columns} has no determinant")));
    }
    let mut numbers = x.to_f64s()?;
    let count = halimede_tensor::element_count(batch)?;
    let out: Vec<f64> =
        (0..count).map(|index| determinant(&mut numbers[index * rows * rows..][..rows * rows], *rows)).collect();
    Ok(vec![Tensor::from_f64s(x.dtype(), batch, &out)?.into()])
}

/// Gaussian elimination with the largest pivot of each column.
fn determinant(matrix: &mut [f64], size: usize) -> f64 {
    let mut determinant = 1.0;
    for column in 0..size {
        let largest = |row: &usize| matrix[row * size + column].abs();
        let Some(pivot) = (column..size).max_by(|a, b| largest(a).total_cmp(&largest(b))) else { break };
        if matrix[pivot * size + column] == 0.0 {
            return 0.0;
        }
        if pivot != column {
            (0..size).for_each(|i| matrix.swap(pivot * size + i, column * size + i));
            determinant = -determinant;
        }
        determinant *= matrix[column * size + column];
        for row in column + 1..size {
            let factor = matrix[row * size + column] / matrix[column * size + column];
            for i in column..size {
                matrix[row * size + i] -= factor * matrix[column * size + i];
            }
        }
    }
    determinant
}

fn infer(_call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let [Some(x), ..] = inputs else { return Ok(Facts::new()) };
    Ok(smallvec![match (x.dtype, &x.shape) {
        (Some(dtype), Some(shape)) if shape.len() >= 2 => Fact::tensor(dtype, shape[..shape.len() - 2].iter().cloned()),
        (dtype, _) => Fact::of_dtype(dtype),
    }])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("two matrices", &OPERATOR, 11)
            .input(tensor(&[2, 2, 2], &[0.0f32, 1.0, 2.0, 3.0, 1.0, 2.0, 2.0, 4.0]))
            .output(tensor(&[2], &[-2.0f32, 0.0])),
    ]
}
