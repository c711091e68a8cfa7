//! ONNX: operators by name, and the import of models.

mod attributes;
pub mod case;
pub mod import;
mod operator;
pub mod ops;
pub mod quantize;
#[allow(missing_docs, clippy::all, reason = "generated from proto/")]
pub(crate) mod proto {
    include!(concat!(env!("OUT_DIR"), "/onnx.rs"));
}

pub use attributes::{Attribute, Attributes, Body};
pub use case::Case;
pub use operator::{EvaluateFn, InferFn, LowerFn, OnnxNode, Operator, Outputs};
