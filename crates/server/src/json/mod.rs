//! JSON as Triton's clients know it: the grammar, the numbers and the error texts of RapidJSON.
//!
//! [`Document`] reads a text into one flat list of nodes, without recursion, so that neither deep nesting
//! nor a million numbers cost more than the list. [`Writer`] prints straight into bytes.

mod reader;
#[cfg(test)]
mod tests;
mod value;
mod writer;

pub(crate) use reader::Document;
pub(crate) use value::{Scalar, Value};
pub(crate) use writer::Writer;
