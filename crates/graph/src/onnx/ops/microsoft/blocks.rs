//! Weights in blocks of few bits, as ONNX Runtime stores them.

use crate::ops::Binary;
use crate::ops::{Concat, Expand, Expr, Op};
use crate::{Builder, OpError, ValueId};
use halimede_tensor::DType;

/// Elements of 2, 4 or 8 bits, packed lowest first into the bytes of the last axis of `rank`, one per
/// byte.
pub fn unpack(b: &mut Builder, packed: ValueId, bits: i64, rank: usize) -> Result<ValueId, OpError> {
    let per_byte = match bits {
        8 => return Ok(packed),
        2 | 4 => 8 / bits,
        _ => return Err(OpError::unsupported(format!("weights of {bits} bits; 2, 4 and 8 are built"))),
    };
    let mask = ((1 << bits) - 1) as f64;
    // Each part gets an axis of its own after the last, then both are one.
    let mut opened = vec![0i64; rank];
    opened.push(1);
    let mut parts = Vec::new();
    for part in 0..per_byte {
        let shifted = Expr::input(0).with(Binary::Shr, (part * bits) as f64).with(Binary::BitAnd, mask);
        let part = b.map(&shifted, &[packed])?;
        parts.push(b.reshape(part, &opened)?);
    }
    let joined = b.add(Op::Concat(Concat { axis: rank }), &parts)?;
    let mut closed = vec![0i64; rank - 1];
    closed.push(-1);
    b.reshape(joined, &closed)
}

/// The zero point that stands for none, half of the range, for each scale.
pub fn middle(b: &mut Builder, scales: ValueId, bits: i64) -> Result<ValueId, OpError> {
    let shape = b.shape_of(scales)?;
    let middle = b.scalar((1 << (bits - 1)) as f64, DType::U8)?;
    b.add(Op::Expand(Expand), &[middle, shape])
}
