//! The graph: intermediate representation, ONNX import, operator definitions, passes and the
//! reference interpreter.
//!
//! Two levels, so that breadth never waits for speed. [`onnx`] holds one file per ONNX operator, each
//! either lowering to the closed set of core operators in [`ops`] or giving a plain reference
//! evaluation that runs as [`Op::Call`]. Compute units see core operators only.

#![forbid(unsafe_code)]

mod builder;
mod dim;
mod eight_bits;
mod error;
mod fact;
mod fold;
mod graph;
mod infer;
pub mod onnx;
pub mod ops;
pub mod passes;
pub mod reference;

pub use builder::Builder;
pub use dim::Dim;
pub use eight_bits::Range;
pub use error::{GraphError, OpError};
pub use fact::{Dims, Fact, Kind};
pub use graph::{Graph, Node, ValueId, ValueInfo};
pub use infer::infer_values;
pub use ops::Op;
