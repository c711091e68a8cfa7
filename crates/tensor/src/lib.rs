//! Datatypes, shapes, buffers and tensor values.
//!
//! A [`Tensor`] is a datatype, a shape and shared bytes in row-major order; a [`Value`] is what flows
//! along an edge of a model: a tensor, a sequence or an optional. Nothing here knows an operator.

mod block;
mod buffer;
pub mod convert;
mod dtype;
mod element;
mod error;
mod held;
pub mod npy;
mod shape;
mod tensor;
mod value;

pub use block::{Block, View};
pub use buffer::{Buffer, Location, Region};
pub use convert::{CastOptions, ExponentRounding};
pub use dtype::DType;
pub use element::Element;
pub use error::TensorError;
pub use held::Held;
pub use shape::{Shape, broadcast, element_count, strides};
pub use tensor::Tensor;
pub use value::Value;
