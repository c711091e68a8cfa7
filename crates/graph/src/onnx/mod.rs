//! ONNX: operators by name, and the import of models.

mod attributes;
pub mod case;
mod operator;
pub mod ops;

pub use attributes::{Attribute, Attributes};
pub use case::Case;
pub use operator::{EvaluateFn, InferFn, LowerFn, OnnxNode, Operator, Outputs};
