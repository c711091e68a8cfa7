//! Every ONNX operator, one file each: attributes, a lowering to core operators or a plain reference
//! evaluation, and cases. [`OPERATORS`] is the one list.

mod abs;
mod add;
mod mat_mul;

use super::Operator;

/// Every operator, in alphabetical order within its domain.
pub static OPERATORS: &[&Operator] = &[&abs::OPERATOR, &add::OPERATOR, &mat_mul::OPERATOR];

/// The operator of that name, where the engine knows it.
pub fn find(domain: &str, name: &str) -> Option<&'static Operator> {
    let domain = if domain == "ai.onnx" { "" } else { domain };
    OPERATORS.iter().copied().find(|operator| operator.name == name && operator.domain == domain)
}
