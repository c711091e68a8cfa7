use super::one;
use crate::onnx::{OnnxNode, Outputs};
use crate::ops::{Cumulative, CumulativeKind, Op};
use crate::{Builder, OpError};

/// Lowers a running total: its axis is the second input.
pub fn lower_cumulative(node: &OnnxNode, b: &mut Builder, kind: CumulativeKind) -> Result<Option<Outputs>, OpError> {
    let exclusive = node.attributes.flag_or("exclusive", false)?;
    let reverse = node.attributes.flag_or("reverse", false)?;
    one(b.add(Op::Cumulative(Cumulative { kind, exclusive, reverse }), &[node.input(0)?, node.input(1)?])?)
}
