use super::inputs::{integers, like, optional, required};
use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;
use smallvec::smallvec;

/// Rotary position embedding (ONNX RotaryEmbedding, opset 23).
///
/// Inputs: `x [B, H, S, D]`, `cos` and `sin` of `[B, S, R/2]` or `[1, S, R/2]`, or of `[P, R/2]` with
/// positions `[B, S]` (i64) as a fourth input. Output: as x. The first R features of each head are turned, the
/// rest pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Pairs are neighbours (2i, 2i+1) instead of halves (i, i + R/2).
    pub interleaved: bool,
    /// R; the whole head where 0.
    pub rotary_dim: usize,
}

impl TensorOp for Rope {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let x = required(inputs, 0)?;
        match x.rank() {
            None | Some(4) => Ok(smallvec![like(x)]),
            Some(rank) => Err(OpError::invalid(format!("a rotary embedding of rank {rank}, which should be 4"))),
        }
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let (x, cos, sin) = (required(inputs, 0)?, required(inputs, 1)?, required(inputs, 2)?);
        let &[batch, heads, length, depth] = x.shape() else {
            return Err(OpError::invalid(format!("a rotary embedding of {:?}, which should be of rank 4", x.shape())));
        };
        let turned = if self.rotary_dim == 0 { depth } else { self.rotary_dim };
        let half = turned / 2;
        // Which row of the tables each position of each sequence reads.
        let (rows, last) = match optional(inputs, 3) {
            Some(positions) => (integers(positions)?, cos.shape().first().copied().unwrap_or(0)),
            // The tables of one sequence serve every sequence.
            None if cos.shape().first() == Some(&1) => {
                ((0..batch * length).map(|row| (row % length.max(1)) as i64).collect(), length)
            }
            None => ((0..(batch * length) as i64).collect(), batch * length),
        };
        let reach = rows.len() == batch * length && rows.iter().all(|&row| (0..last as i64).contains(&row));
        if turned > depth || turned % 2 == 1 || cos.shape() != sin.shape() || cos.len() != last * half || !reach {
            let (x, cos, sin) = (x.shape(), cos.shape(), sin.shape());
            return Err(OpError::invalid(format!("cos {cos:?} and sin {sin:?} for {turned} features of {x:?}")));
        }
        let mut values = x.to_f64s()?;
        let (cos, sin) = (cos.to_f64s()?, sin.to_f64s()?);
        for (index, head) in values.chunks_exact_mut(depth.max(1)).enumerate() {
            let row = rows[index / (heads * length) * length + index % length] as usize;
            for pair in 0..half {
                let (a, b) = if self.interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + half) };
                let (c, s) = (cos[row * half + pair], sin[row * half + pair]);
                (head[a], head[b]) = (head[a] * c - head[b] * s, head[b] * c + head[a] * s);
            }
        }
        Ok(smallvec![Tensor::from_f64s(x.dtype(), x.shape(), &values)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_turn() {
        let x = Tensor::from_slice(&[1, 1, 2, 4], &[1f32, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0]).unwrap();
        let cos = Tensor::from_slice(&[2, 2], &[1f32, 1.0, 0.0, 0.0]).unwrap();
        let sin = Tensor::from_slice(&[2, 2], &[0f32, 0.0, 1.0, 1.0]).unwrap();
        let positions = Tensor::from_slice(&[1, 2], &[1i64, 0]).unwrap();
        let run = |interleaved, rotary_dim, cos: &Tensor, sin: &Tensor| {
            let op = Rope { interleaved, rotary_dim };
            Ok::<_, OpError>(
                op.evaluate(&[Some(&x), Some(cos), Some(sin), Some(&positions)])?[0].slice::<f32>()?.to_vec(),
            )
        };
        assert_eq!(run(false, 0, &cos, &sin).unwrap(), [-3.0, -4.0, 1.0, 2.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(run(true, 0, &cos, &sin).unwrap()[..4], [-2.0, 1.0, -4.0, 3.0]);
        let (one_cos, one_sin) = (cos.reshaped(&[4, 1]).unwrap(), sin.reshaped(&[4, 1]).unwrap());
        assert_eq!(run(false, 2, &one_cos, &one_sin).unwrap()[..4], [1.0, 2.0, 3.0, 4.0]);
        assert!(run(false, 8, &cos, &sin).is_err());
        // One sequence's tables for two sequences.
        let twice = x.reshaped(&[2, 1, 1, 4]).unwrap();
        let row = |table: &Tensor| Tensor::from_slice(&[1, 1, 2], &table.slice::<f32>().unwrap()[2..]).unwrap();
        let op = Rope { interleaved: false, rotary_dim: 0 };
        let out = op.evaluate(&[Some(&twice), Some(&row(&cos)), Some(&row(&sin))]).unwrap().remove(0);
        assert_eq!(out.slice::<f32>().unwrap(), [-3.0, -4.0, 1.0, 2.0, -3.0, -4.0, 1.0, 2.0]);
    }
}
