use crate::onnx::case::tensor;
use crate::onnx::{Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Fact, OpError};
use halimede_tensor::{Tensor, Value};
use smallvec::smallvec;

/// The inverse of each matrix of a batch (ONNX Runtime Inverse).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "Inverse").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(_: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let [Some(x)] = inputs else { return Err(OpError::invalid("Inverse needs one input")) };
    let x = x.tensor()?;
    let &[.., rows, columns] = x.shape() else { return Err(OpError::invalid("Inverse takes matrices")) };
    if rows != columns {
        return Err(OpError::invalid(format!("Inverse takes square matrices, not {rows} by {columns}")));
    }
    let mut inverses = x.to_f64s()?;
    for matrix in inverses.chunks_exact_mut((rows * rows).max(1)) {
        invert(matrix, rows)?;
    }
    Ok(vec![Tensor::from_f64s(x.dtype(), x.shape(), &inverses)?.into()])
}

/// Gauss-Jordan elimination in place, with the largest element of each column as its pivot.
fn invert(matrix: &mut [f64], n: usize) -> Result<(), OpError> {
    let mut swaps = Vec::with_capacity(n);
    for column in 0..n {
        let size = |row: &usize| matrix[row * n + column].abs();
        let pivot = (column..n).max_by(|a, b| size(a).total_cmp(&size(b))).unwrap_or(column);
        if matrix[pivot * n + column] == 0.0 {
            return Err(OpError::invalid("a matrix without inverse"));
        }
        for i in 0..n {
            matrix.swap(column * n + i, pivot * n + i);
        }
        swaps.push((column, pivot));
        let scale = 1.0 / std::mem::replace(&mut matrix[column * n + column], 1.0);
        matrix[column * n..(column + 1) * n].iter_mut().for_each(|value| *value *= scale);
        for row in (0..n).filter(|&row| row != column) {
            let factor = std::mem::replace(&mut matrix[row * n + column], 0.0);
            for i in 0..n {
                matrix[row * n + i] -= factor * matrix[column * n + i];
            }
        }
    }
    // Rows were swapped on the way; the inverse wants its columns swapped back.
    for (a, b) in swaps.into_iter().rev() {
        for row in 0..n {
            matrix.swap(row * n + a, row * n + b);
        }
    }
    Ok(())
}

fn infer(_: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let Some(Some(x)) = inputs.first() else { return Err(OpError::invalid("Inverse needs one input")) };
    Ok(smallvec![Fact { dtype: x.dtype, shape: x.shape.clone(), ..Fact::default() }])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("needs a pivot", &OPERATOR, 1)
            .input(tensor(&[2, 2], &[0.0f32, 2.0, 1.0, 3.0]))
            .output(tensor(&[2, 2], &[-1.5f32, 1.0, 0.5, 0.0])),
        Case::new("a batch", &OPERATOR, 1)
            .input(tensor(&[2, 2, 2], &[4.0f32, 7.0, 2.0, 6.0, 1.0, 0.0, 0.0, 2.0]))
            .output(tensor(&[2, 2, 2], &[0.6f32, -0.7, -0.2, 0.4, 1.0, 0.0, 0.0, 0.5])),
    ]
}
