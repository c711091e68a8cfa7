use super::inputs::{check_axis, required, typed};
use super::numeric::{Numbers, Split};
use super::{Facts, TensorOp, Tensors};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{DType, Shape, Tensor};
use smallvec::{SmallVec, smallvec};

/// How elements become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "named after ONNX's Reduce operators")]
pub enum ReduceKind {
    Sum,
    Mean,
    Max,
    Min,
    Product,
    SumSquare,
    L1,
    L2,
    LogSum,
    LogSumExp,
}

/// Reduces axes to one element each (ONNX Reduce*). Inputs: data.
#[derive(Debug, Clone, PartialEq)]
pub struct Reduce {
    /// How.
    pub kind: ReduceKind,
    /// Axes, resolved to be non-negative, sorted; no axis reduces nothing (but squares, logs … still apply).
    pub axes: SmallVec<[usize; 6]>,
    /// Keep the axes with size 1.
    pub keep_dims: bool,
}

impl TensorOp for Reduce {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let data = required(inputs, 0)?;
        let Some(shape) = &data.shape else { return Ok(smallvec![typed(data.dtype, None)]) };
        let output = typed(data.dtype, Some(self.shape(shape, Dim::from(1))?));
        let elements = match (data.dims(), output.count()) {
            (Some(dims), Some(1)) if dims.len() == shape.iter().filter_map(Dim::size).product() => self.symbol(&dims),
            _ => None,
        };
        Ok(smallvec![output.and_elements(elements.map(|one| vec![one]))])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let data = required(inputs, 0)?;
        let shape: Shape = self.shape(data.shape(), 1)?;
        let split = Split::new(data.shape(), |axis| self.axes.contains(&axis))?;
        let dtype = data.dtype();
        let numbers = match Numbers::read(data)? {
            Numbers::Float(v) => Numbers::Float(self.each(split, &v, |v| float(self.kind, v))),
            Numbers::Int(v) => Numbers::Int(self.each(split, &v, |v| integer(self.kind, v, dtype))),
        };
        Ok(smallvec![numbers.write(dtype, &shape)?])
    }
}

impl Reduce {
    fn shape<D: Clone, L: FromIterator<D>>(&self, shape: &[D], one: D) -> Result<L, OpError> {
        for &axis in &self.axes {
            check_axis(axis, shape.len())?;
        }
        let kept = |(axis, dim): (usize, &D)| match self.axes.contains(&axis) {
            false => Some(dim.clone()),
            true => self.keep_dims.then(|| one.clone()),
        };
        Ok(shape.iter().enumerate().filter_map(kept).collect())
    }

    fn each<T: Copy>(&self, split: Split, values: &[T], reduce: impl Fn(&[T]) -> T) -> Vec<T> {
        let Split { starts, steps } = split;
        let mut run = Vec::with_capacity(steps.len());
        starts
            .map(|start| {
                run.clear();
                run.extend(steps.iter().map(|&step| values[start + step]));
                reduce(&run)
            })
            .collect()
    }

    /// All sizes reduced to one.
    fn symbol(&self, dims: &[Dim]) -> Option<Dim> {
        let dims = dims.iter().cloned();
        match self.kind {
            ReduceKind::Sum => dims.reduce(|a, b| a + b),
            ReduceKind::Product => Some(dims.fold(Dim::from(1), |a, b| a * b)),
            ReduceKind::Max => dims.reduce(|a, b| a.maximum(&b)),
            ReduceKind::Min => dims.reduce(|a, b| a.minimum(&b)),
            _ => None,
        }
    }
}

fn float(kind: ReduceKind, v: &[f64]) -> f64 {
    let sum = |f: fn(f64) -> f64| v.iter().map(|&x| f(x)).sum::<f64>();
    // NaN wins, as in NumPy.
    let pick = |better: fn(f64, f64) -> bool, start: f64| {
        v.iter().fold(start, |a, &b| if b.is_nan() || (!a.is_nan() && better(b, a)) { b } else { a })
    };
    match kind {
        ReduceKind::Sum => sum(|x| x),
        ReduceKind::Mean => sum(|x| x) / v.len() as f64,
        ReduceKind::Max => pick(|b, a| b > a, f64::NEG_INFINITY),
        ReduceKind::Min => pick(|b, a| b < a, f64::INFINITY),
        ReduceKind::Product => v.iter().product(),
        ReduceKind::SumSquare => sum(|x| x * x),
        ReduceKind::L1 => sum(f64::abs),
        ReduceKind::L2 => sum(|x| x * x).sqrt(),
        ReduceKind::LogSum => sum(|x| x).ln(),
        ReduceKind::LogSumExp => {
            let max = pick(|b, a| b > a, f64::NEG_INFINITY);
            // Infinities and NaN are their own answer.
            if !max.is_finite() { max } else { max + v.iter().map(|x| (x - max).exp()).sum::<f64>().ln() }
        }
    }
}

fn integer(kind: ReduceKind, v: &[i64], dtype: DType) -> i64 {
    let sum = |f: fn(i64) -> i64| v.iter().fold(0i64, |a, &b| a.wrapping_add(f(b)));
    let values = v.iter().copied();
    match kind {
        ReduceKind::Sum => sum(|x| x),
        ReduceKind::Product => values.fold(1, i64::wrapping_mul),
        ReduceKind::SumSquare => sum(|x| x.wrapping_mul(x)),
        ReduceKind::L1 if dtype == DType::U64 => sum(|x| x),
        ReduceKind::L1 => sum(i64::wrapping_abs),
        // A mean cuts toward zero; of nothing it is 0, for want of NaN.
        ReduceKind::Mean if dtype == DType::U64 => {
            (values.map(|x| u128::from(x as u64)).sum::<u128>() / v.len().max(1) as u128) as i64
        }
        ReduceKind::Mean => (values.map(i128::from).sum::<i128>() / v.len().max(1) as i128) as i64,
        ReduceKind::Max if dtype == DType::U64 => values.map(|x| x as u64).max().unwrap_or(0) as i64,
        ReduceKind::Min if dtype == DType::U64 => values.map(|x| x as u64).min().unwrap_or(u64::MAX) as i64,
        ReduceKind::Max => values.max().unwrap_or(range(dtype).0),
        ReduceKind::Min => values.min().unwrap_or(range(dtype).1),
        ReduceKind::L2 | ReduceKind::LogSum | ReduceKind::LogSumExp => {
            let wide: Vec<f64> = values.map(|x| if dtype == DType::U64 { x as u64 as f64 } else { x as f64 }).collect();
            float(kind, &wide) as i64
        }
    }
}

/// The smallest and largest number of an integer type of at most 64 bits, signed, or of Bool.
fn range(dtype: DType) -> (i64, i64) {
    match (dtype, dtype.bits() as u32) {
        (DType::Bool, _) => (0, 1),
        (_, bits) if dtype.is_signed_integer() => (i64::MIN >> (64 - bits), i64::MAX >> (64 - bits)),
        (_, bits) => (0, (u64::MAX >> (64 - bits)) as i64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduce(kind: ReduceKind, axes: &[usize], keep_dims: bool, data: &Tensor) -> Tensor {
        Reduce { kind, axes: axes.into(), keep_dims }.evaluate(&[Some(data)]).unwrap().remove(0)
    }

    #[test]
    fn every_kind() {
        let data = Tensor::from_slice(&[2, 2], &[1f64, -2.0, 3.0, 4.0]).unwrap();
        let expected = [
            (ReduceKind::Sum, -1.0),
            (ReduceKind::Mean, -0.5),
            (ReduceKind::Max, 1.0),
            (ReduceKind::Min, -2.0),
            (ReduceKind::Product, -2.0),
            (ReduceKind::SumSquare, 5.0),
            (ReduceKind::L1, 3.0),
            (ReduceKind::L2, 5f64.sqrt()),
            (ReduceKind::LogSumExp, (1f64.exp() + (-2f64).exp()).ln()),
        ];
        for (kind, value) in expected {
            let out = reduce(kind, &[1], false, &data);
            assert!((out.slice::<f64>().unwrap()[0] - value).abs() < 1e-12, "{kind:?}");
        }
        assert_eq!(reduce(ReduceKind::Sum, &[0], true, &data), Tensor::from_slice(&[1, 2], &[4f64, 2.0]).unwrap());
        assert_eq!(reduce(ReduceKind::Sum, &[0, 1], false, &data), Tensor::scalar(6f64));
        assert_eq!(reduce(ReduceKind::SumSquare, &[], true, &data).slice::<f64>().unwrap(), [1.0, 4.0, 9.0, 16.0]);
    }

    #[test]
    fn nothing_reduces_to_the_neutral_element() {
        let floats = Tensor::zeros(DType::F32, &[1, 0]).unwrap();
        assert_eq!(reduce(ReduceKind::Max, &[1], false, &floats).slice::<f32>().unwrap(), [f32::NEG_INFINITY]);
        assert_eq!(reduce(ReduceKind::LogSumExp, &[1], false, &floats).slice::<f32>().unwrap(), [f32::NEG_INFINITY]);
        let bytes = Tensor::zeros(DType::I8, &[0]).unwrap();
        assert_eq!(reduce(ReduceKind::Max, &[0], false, &bytes), Tensor::scalar(i8::MIN));
        assert_eq!(
            reduce(ReduceKind::Min, &[0], false, &Tensor::zeros(DType::U32, &[0]).unwrap()),
            Tensor::scalar(u32::MAX)
        );
        let bools = Tensor::zeros(DType::Bool, &[0]).unwrap();
        assert_eq!(reduce(ReduceKind::Min, &[0], false, &bools), Tensor::from_bools(&[], &[true]).unwrap());
    }

    #[test]
    fn sizes_multiply() {
        let n = Dim::symbol("n");
        let shape = Fact::tensor(DType::I64, [Dim::from(2)]).and_elements(Some(vec![n.clone(), Dim::from(4)]));
        let op = Reduce { kind: ReduceKind::Product, axes: smallvec![0], keep_dims: false };
        assert_eq!(op.infer(&[Some(&shape)]).unwrap()[0].dims(), Some(vec![n * Dim::from(4)]));
    }
}
