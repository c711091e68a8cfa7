use super::scores::{PostTransform, infer_regressor, rows, scores_tensor};
use crate::OpError;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::Call;
use halimede_tensor::Value;

/// Weighted sums of features (ai.onnx.ml LinearRegressor, opset 1).
pub static OPERATOR: Operator =
    Operator::in_domain("ai.onnx.ml", "LinearRegressor").evaluate(evaluate).infer(infer_regressor).cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let (x, _, width) = rows(inputs)?;
    let targets = call.attributes.int_or("targets", 1)?.max(0) as usize;
    let scores = weighted_sums(call, &x, width, targets)?;
    let transform = PostTransform::read(&call.attributes)?;
    let transformed = scores
        .into_iter()
        .map(|mut row| {
            transform.apply(&mut row);
            row
        })
        .collect();
    Ok(vec![scores_tensor(transformed)?.into()])
}

/// For each row of features, one weighted sum per target.
pub fn weighted_sums(call: &Call, x: &[f64], width: usize, targets: usize) -> Result<Vec<Vec<f64>>, OpError> {
    let coefficients = call.attributes.required("coefficients", call.attributes.floats("coefficients")?)?;
    let intercepts = call.attributes.floats("intercepts")?.unwrap_or_default();
    if Some(coefficients.len()) != width.checked_mul(targets) || !(intercepts.is_empty() || intercepts.len() == targets)
    {
        let (have, add) = (coefficients.len(), intercepts.len());
        return Err(OpError::invalid(format!(
            "{have} coefficients and {add} intercepts for {targets} targets of {width} features"
        )));
    }
    let sum = |row: &[f64], target: usize| {
        let weights = &coefficients[target * width..][..width];
        let start = intercepts.get(target).map_or(0.0, |&value| f64::from(value));
        row.iter().zip(weights).fold(start, |sum, (x, &weight)| sum + x * f64::from(weight))
    };
    Ok(x.chunks_exact(width.max(1)).map(|row| (0..targets).map(|target| sum(row, target)).collect()).collect())
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("two targets", &OPERATOR, 3)
            .attribute("coefficients", Attribute::Floats(vec![1.0, 2.0, 3.0, -1.0, 0.5, 2.0]))
            .attribute("intercepts", Attribute::Floats(vec![0.5, -0.5]))
            .attribute("targets", Attribute::Int(2))
            .input(tensor(&[2, 3], &[1.0f32, -2.0, 0.5, 0.0, 3.0, -1.0]))
            .output(tensor(&[2, 2], &[-1.0f32, -1.5, 3.5, -1.0])),
    ]
}
