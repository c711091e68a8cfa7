use super::scores::{PostTransform, infer_regressor, rows, scores_tensor};
use super::svm::Kernel;
use crate::OpError;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::Call;
use halimede_tensor::Value;

/// Regression by support vectors, or whether a row belongs to the one class (ai.onnx.ml SVMRegressor,
/// opset 1).
pub static OPERATOR: Operator =
    Operator::in_domain("ai.onnx.ml", "SVMRegressor").evaluate(evaluate).infer(infer_regressor).cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let attributes = &call.attributes;
    let (x, _, width) = rows(inputs)?;
    let coefficients = attributes.required("coefficients", attributes.floats("coefficients")?)?;
    let supports = attributes.floats("support_vectors")?.unwrap_or_default();
    let count = attributes.int_or("n_supports", 0)?.max(0) as usize;
    let offset = attributes.floats("rho")?.and_then(|rho| rho.first()).map_or(0.0, |&rho| f64::from(rho));
    // Without support vectors the coefficients are those of a linear function.
    let (kernel, supports, weights) = match count {
        0 => (Kernel::Linear, coefficients, &[1.0f32][..]),
        _ => (Kernel::read(attributes)?, supports, coefficients),
    };
    if Some(supports.len()) != width.checked_mul(count.max(1)) || weights.len() != count.max(1) {
        return Err(OpError::invalid(format!(
            "{} support numbers for {count} vectors of {width} features",
            supports.len()
        )));
    }
    let one_class = attributes.flag_or("one_class", false)?;
    let transform = PostTransform::read(attributes)?;
    let results = x
        .chunks_exact(width.max(1))
        .map(|row| {
            let vectors = supports.chunks_exact(width.max(1));
            let sum: f64 =
                vectors.zip(weights).map(|(support, &weight)| kernel.of(row, support) * f64::from(weight)).sum();
            let score = sum + offset;
            let mut scores = vec![if one_class { if score > 0.0 { 1.0 } else { -1.0 } } else { score }];
            transform.apply(&mut scores);
            scores
        })
        .collect();
    Ok(vec![scores_tensor(results)?.into()])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("radial", &OPERATOR, 3)
            .attribute("kernel_type", Attribute::String(b"RBF".to_vec()))
            .attribute("kernel_params", Attribute::Floats(vec![0.3, 0.0, 3.0]))
            .attribute("coefficients", Attribute::Floats(vec![1.5, -0.5]))
            .attribute("support_vectors", Attribute::Floats(vec![1.0, 0.0, 0.5, -1.0, 2.0, 0.0]))
            .attribute("n_supports", Attribute::Int(2))
            .attribute("rho", Attribute::Floats(vec![0.25]))
            .input(tensor(&[2, 3], &[1.0f32, -2.0, 0.5, 0.0, 3.0, -1.0]))
            .output(tensor(&[2, 1], &[0.70064145f32, 0.08473927]))
            .within(1e-4, 1e-5),
        Case::new("linear", &OPERATOR, 3)
            .attribute("kernel_type", Attribute::String(b"LINEAR".to_vec()))
            .attribute("kernel_params", Attribute::Floats(vec![0.0, 0.0, 0.0]))
            .attribute("coefficients", Attribute::Floats(vec![1.5, -0.5, 1.0]))
            .attribute("rho", Attribute::Floats(vec![0.25]))
            .attribute("n_supports", Attribute::Int(0))
            .input(tensor(&[2, 3], &[1.0f32, -2.0, 0.5, 0.0, 3.0, -1.0]))
            .output(tensor(&[2, 1], &[3.25f32, -2.25]))
            .within(1e-4, 1e-5),
        Case::new("one class", &OPERATOR, 3)
            .attribute("kernel_type", Attribute::String(b"POLY".to_vec()))
            .attribute("kernel_params", Attribute::Floats(vec![0.3, 1.0, 2.0]))
            .attribute("coefficients", Attribute::Floats(vec![1.5, -0.5]))
            .attribute("support_vectors", Attribute::Floats(vec![1.0, 0.0, 0.5, -1.0, 2.0, 0.0]))
            .attribute("n_supports", Attribute::Int(2))
            .attribute("rho", Attribute::Floats(vec![0.25]))
            .attribute("one_class", Attribute::Int(1))
            .input(tensor(&[2, 3], &[1.0f32, -2.0, 0.5, 0.0, 3.0, -1.0]))
            .output(tensor(&[2, 1], &[1.0f32, -1.0]))
            .within(1e-4, 1e-5),
    ]
}
