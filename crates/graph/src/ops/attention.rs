use super::inputs::{optional, required, typed};
use super::movement::Offsets;
use super::{Factors, Facts, TensorOp, Tensors, Transpose};
use crate::{Dim, Dims, Fact, OpError};
use halimede_tensor::{CastOptions, DType, Tensor};
use smallvec::smallvec;

/// Scaled dot-product attention: `softmax(scale · Q Kᵀ + mask) V`, one pass, never holding the scores.
///
/// Inputs: `Q [B, H, S, D]`, `K [B, G, T, D]`, `V [B, G, T, E]` with `H` a multiple of `G` (grouped
/// heads: query head `h` reads key head `h / (H / G)`), and optionally a mask that broadcasts to
/// `[B, H, S, T]`: added where it is a float, and where it is Bool, `true` lets a key take part.
/// Output: `[B, H, S, E]`. A row in which no key takes part gives zeros for a Bool mask.
///
/// Each of the four may have its tokens before its heads instead: see `tokens_first`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Attention {
    /// Factor of the scores; `1 / sqrt(D)` where `None`.
    pub scale: Option<f32>,
    /// Query `s` sees key `t` only where `t <= s + offset`, with `offset` = `T - S` when
    /// `causal_from_end`, else 0.
    pub causal: bool,
    /// See `causal`.
    pub causal_from_end: bool,
    /// [`Factors::Bf16`], [`Factors::F16`]: queries, keys and values are rounded to it before they are multiplied, and the weights
    /// of values too where a unit multiplies so; sums and softmax stay in f32. `None`: nothing is rounded.
    pub multiply: Option<Factors>,
    /// Scores become `c · tanh(score / c)` before the mask, where positive.
    pub softcap: f32,
    /// Which of `Q`, `K`, `V` and the output are `[B, S, H, D]`, as products of tokens write and read them.
    pub tokens_first: [bool; 4],
}

impl TensorOp for Attention {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let (q, k, v) = (required(inputs, 0)?, required(inputs, 1)?, required(inputs, 2)?);
        let shape = match (&q.shape, &k.shape, &v.shape) {
            (Some(q), Some(k), Some(v)) => Some(self.shape(q, k, v)?),
            _ => Some(smallvec![Dim::unknown(); 4]),
        };
        Ok(smallvec![typed(q.dtype, shape)])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let (q, k, v) = (required(inputs, 0)?, required(inputs, 1)?, required(inputs, 2)?);
        let dims = |tensor: &Tensor| tensor.shape().iter().map(|&d| Dim::from(d)).collect::<Dims>();
        self.shape(&dims(q), &dims(k), &dims(v))?;
        // Heads before tokens, here as in the definition.
        let order = Transpose { perm: TURNED.as_slice().into() };
        let heads_first = |tensor: &Tensor, index: usize| match self.tokens_first[index] {
            true => Ok(order.evaluate(&[Some(tensor)])?.remove(0)),
            false => Ok::<_, OpError>(tensor.clone()),
        };
        let (q, k, v) = (&heads_first(q, 0)?, &heads_first(k, 1)?, &heads_first(v, 2)?);
        let (heads, groups, queries, depth) = (q.shape()[1], k.shape()[1], q.shape()[2], q.shape()[3]);
        let (keys, width) = (k.shape()[2], v.shape()[3]);
        let shape = [q.shape()[0], heads, queries, width];
        let scores_shape = [q.shape()[0], heads, queries, keys];
        let mask = optional(inputs, 3).map(|mask| Mask::new(mask, &scores_shape)).transpose()?;
        let scale = self.scale.map_or(1.0 / (depth as f64).sqrt(), f64::from);
        let offset = if self.causal_from_end { keys as i64 - queries as i64 } else { 0 };
        let rounded = |tensor: &Tensor| match self.multiply.and_then(Factors::rounded) {
            Some(dtype) => tensor.cast(dtype, CastOptions::default())?.to_f64s(),
            None => tensor.to_f64s(),
        };
        let (q, k, v, dtype) = (rounded(q)?, rounded(k)?, rounded(v)?, q.dtype());
        let mut out = vec![0.0; shape.iter().product()];
        let mut scores = vec![0.0; keys];
        for (row, result) in out.chunks_exact_mut(width.max(1)).enumerate() {
            let (query, head) = (row % queries, row / queries);
            let plane = head / heads * groups + head % heads / (heads / groups);
            let mut excluded = 0;
            for (key, score) in scores.iter_mut().enumerate() {
                let (a, b) = (&q[row * depth..][..depth], &k[(plane * keys + key) * depth..][..depth]);
                *score = a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>() * scale;
                if self.softcap > 0.0 {
                    let cap = f64::from(self.softcap);
                    *score = cap * (*score / cap).tanh();
                }
                let hidden = self.causal && key as i64 > query as i64 + offset;
                match mask.as_ref().map(|mask| mask.at(row * keys + key)) {
                    _ if hidden => *score = f64::NEG_INFINITY,
                    Some(None) => *score = f64::NEG_INFINITY,
                    Some(Some(bias)) => *score += bias,
                    None => {}
                }
                excluded += usize::from(hidden || matches!(mask.as_ref().map(|m| m.at(row * keys + key)), Some(None)));
            }
            if excluded == keys {
                continue;
            }
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            scores.iter_mut().for_each(|score| *score = (*score - max).exp());
            let sum: f64 = scores.iter().sum();
            for (key, score) in scores.iter().enumerate() {
                let values = &v[(plane * keys + key) * width..][..width];
                result.iter_mut().zip(values).for_each(|(r, v)| *r += score / sum * v);
            }
        }
        let out = Tensor::from_f64s(dtype, &shape, &out)?;
        if self.tokens_first[3] { order.evaluate(&[Some(&out)]) } else { Ok(smallvec![out]) }
    }
}

/// A mask under the shape of the scores.
struct Mask {
    positions: Vec<usize>,
    values: Vec<f64>,
    is_bool: bool,
}

impl Mask {
    fn new(mask: &Tensor, scores: &[usize]) -> Result<Mask, OpError> {
        match halimede_tensor::broadcast(mask.shape(), scores) {
            Ok(joint) if joint[..] == *scores => Ok(Mask {
                positions: Offsets::broadcast(mask.shape(), scores)?.collect(),
                values: mask.to_f64s()?,
                is_bool: mask.dtype() == DType::Bool,
            }),
            _ => Err(OpError::invalid(format!("a mask of shape {:?} for scores of {scores:?}", mask.shape()))),
        }
    }

    /// What is added to a score; `None` where its key takes no part.
    fn at(&self, score: usize) -> Option<f64> {
        let value = self.values[self.positions[score]];
        if self.is_bool { (value != 0.0).then_some(0.0) } else { Some(value) }
    }
}

/// Where batch, heads, tokens and features are among axes of which tokens come first.
const TURNED: [usize; 4] = [0, 2, 1, 3];

impl Attention {
    /// Where batch, heads, tokens and features are among the axes of `Q`, `K`, `V` or the output, by number.
    pub fn axes(&self, operand: usize) -> [usize; 4] {
        if self.tokens_first[operand] { TURNED } else { [0, 1, 2, 3] }
    }

    fn shape(&self, q: &[Dim], k: &[Dim], v: &[Dim]) -> Result<Dims, OpError> {
        let wrong = || OpError::invalid(format!("attention of queries {q:?}, keys {k:?} and values {v:?}"));
        if q.len() != 4 || k.len() != 4 || v.len() != 4 {
            return Err(wrong());
        }
        let heads_first = |dims: &[Dim], operand: usize| self.axes(operand).map(|axis| dims[axis].clone());
        let (q, k, v) = (heads_first(q, 0), heads_first(k, 1), heads_first(v, 2));
        let same = |a: &Dim, b: &Dim| a.known().is_none() || b.known().is_none() || a == b;
        let grouped = match (q[1].known(), k[1].known()) {
            (Some(heads), Some(groups)) => groups > 0 && heads % groups == 0,
            _ => true,
        };
        let fits = same(&q[0], &k[0]) && same(&q[0], &v[0]) && same(&q[3], &k[3]);
        if !fits || !grouped || !same(&k[1], &v[1]) || !same(&k[2], &v[2]) {
            return Err(wrong());
        }
        let result = [q[0].clone(), q[1].clone(), q[2].clone(), v[3].clone()];
        // Tokens and heads change places: to and fro is the same.
        Ok(heads_first(&result, 3).into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op() -> Attention {
        Attention { scale: Some(1.0), ..Attention::default() }
    }

    fn run(op: &Attention, q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Vec<f32> {
        op.evaluate(&[Some(q), Some(k), Some(v), mask]).unwrap()[0].slice::<f32>().unwrap().to_vec()
    }

    #[test]
    fn equal_scores_give_the_mean() {
        let q = Tensor::zeros(DType::F32, &[1, 1, 2, 1]).unwrap();
        let k = Tensor::zeros(DType::F32, &[1, 1, 2, 1]).unwrap();
        let v = Tensor::from_slice(&[1, 1, 2, 1], &[2f32, 4.0]).unwrap();
        assert_eq!(run(&op(), &q, &k, &v, None), [3.0, 3.0]);
        assert_eq!(run(&Attention { causal: true, ..op() }, &q, &k, &v, None), [2.0, 3.0]);
        let mask = Tensor::from_bools(&[2, 2], &[false, true, false, false]).unwrap();
        assert_eq!(run(&op(), &q, &k, &v, Some(&mask)), [4.0, 0.0]);
        let bias = Tensor::from_slice(&[1, 2], &[0f32, 3f32.ln()]).unwrap();
        let out = run(&op(), &q, &k, &v, Some(&bias));
        assert!((out[0] - 3.5).abs() < 1e-6, "{out:?}");
        let one = Tensor::zeros(DType::F32, &[1, 1, 1, 1]).unwrap();
        let last = Attention { causal: true, causal_from_end: true, ..op() };
        assert_eq!(run(&last, &one, &k, &v, None), [3.0]);
    }

    #[test]
    fn heads_share_keys() {
        let q = Tensor::zeros(DType::F32, &[1, 4, 1, 1]).unwrap();
        let k = Tensor::zeros(DType::F32, &[1, 2, 1, 1]).unwrap();
        let v = Tensor::from_slice(&[1, 2, 1, 1], &[1f32, 2.0]).unwrap();
        assert_eq!(run(&op(), &q, &k, &v, None), [1.0, 1.0, 2.0, 2.0]);
        let three = Tensor::zeros(DType::F32, &[1, 3, 1, 1]).unwrap();
        assert!(op().evaluate(&[Some(&three), Some(&k), Some(&v)]).is_err());
    }
}
