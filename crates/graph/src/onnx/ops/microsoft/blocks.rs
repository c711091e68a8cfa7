//! Weights in blocks of few bits, as ONNX Runtime stores them.

use crate::ops::Binary;
use crate::ops::{Concat, Expand, Expr, Op};
use crate::{Builder, OpError, ValueId};
use halimede_tensor::{DType, Tensor};

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

/// The first `count` elements of each of `rows` rows of bytes that hold elements of 2, 4 or 8 bits, lowest first, less
/// half of their range, which stands for 0 where there is no zero point. `None` where the bytes are too few.
pub fn centred(packed: &Tensor, bits: i64, rows: usize, count: usize) -> Option<Tensor> {
    let (bytes, per_byte) = (packed.slice::<u8>().ok()?, usize::try_from(8 / bits).ok()?);
    let row_bytes = bytes.len().checked_div(rows).filter(|row| row * rows == bytes.len())?;
    if row_bytes * per_byte < count {
        return None;
    }
    let (mask, half) = (u8::MAX >> (8 - bits), 1u8 << (bits - 1));
    let element = |row: &[u8], at: usize| {
        let shift = at % per_byte * bits as usize;
        (row[at / per_byte] >> shift & mask).wrapping_sub(half) as i8
    };
    let mut elements = Vec::with_capacity(rows * count);
    for row in bytes.chunks_exact(row_bytes.max(1)) {
        elements.extend((0..count).map(|at| element(row, at)));
    }
    Tensor::from_slice(&[rows, count], &elements).ok()
}
