use super::gather::{check_elements, check_tuples, element_positions, slice_positions, tuples_len};
use super::inputs::{like, required};
use super::movement::put;
use super::numeric::Numbers;
use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::{DType, Tensor};
use smallvec::smallvec;

/// What happens where an element is already there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "named after ONNX's reduction")]
pub enum ScatterReduction {
    None,
    Add,
    Mul,
    Max,
    Min,
}

/// Writes single elements by index along one axis (ONNX ScatterElements). Inputs: data, indices, updates.
#[derive(Debug, Clone, PartialEq)]
pub struct ScatterElements {
    /// Axis, resolved to be non-negative.
    pub axis: usize,
    /// What happens where an element is already there.
    pub reduction: ScatterReduction,
}

/// Writes slices by tuples of indices (ONNX ScatterND). Inputs: data, indices, updates.
#[derive(Debug, Clone, PartialEq)]
pub struct ScatterNd {
    /// What happens where an element is already there.
    pub reduction: ScatterReduction,
}

impl TensorOp for ScatterElements {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let (data, indices) = (required(inputs, 0)?, required(inputs, 1)?);
        check_elements(data, indices, self.axis)?;
        Ok(smallvec![like(data)])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let (data, indices, updates) = (required(inputs, 0)?, required(inputs, 1)?, required(inputs, 2)?);
        let positions = element_positions(data.shape(), indices, self.axis)?;
        Ok(smallvec![write(data, updates, positions, self.reduction)?])
    }
}

impl TensorOp for ScatterNd {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let (data, indices) = (required(inputs, 0)?, required(inputs, 1)?);
        check_tuples(data, indices)?;
        Ok(smallvec![like(data)])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let (data, indices, updates) = (required(inputs, 0)?, required(inputs, 1)?, required(inputs, 2)?);
        // Before their places are listed: tuples of no indices need no memory.
        check_updates(data, updates, tuples_len(data.shape(), indices.shape())?)?;
        let (starts, inner) = slice_positions(data.shape(), indices, 0)?;
        let positions = starts.into_iter().flat_map(|start| start..start + inner).collect();
        Ok(smallvec![write(data, updates, positions, self.reduction)?])
    }
}

/// Refuses updates that are not so many elements of the data's datatype.
fn check_updates(data: &Tensor, updates: &Tensor, count: usize) -> Result<(), OpError> {
    if updates.len() == count && updates.dtype() == data.dtype() {
        return Ok(());
    }
    let (shape, dtype) = (updates.shape(), updates.dtype());
    Err(OpError::invalid(format!(
        "updates {dtype}{shape:?} for {count} elements of {}{:?}",
        data.dtype(),
        data.shape()
    )))
}

fn write(
    data: &Tensor,
    updates: &Tensor,
    positions: Vec<usize>,
    reduction: ScatterReduction,
) -> Result<Tensor, OpError> {
    check_updates(data, updates, positions.len())?;
    let mut out = data.clone();
    if reduction == ScatterReduction::None {
        put(&mut out, updates, positions.into_iter())?;
        return Ok(out);
    }
    let unsigned = data.dtype() == DType::U64;
    let numbers = match (Numbers::read(data)?, Numbers::read(updates)?) {
        (Numbers::Float(mut v), Numbers::Float(u)) => {
            positions.iter().zip(u).for_each(|(&at, u)| v[at] = float(reduction, v[at], u));
            Numbers::Float(v)
        }
        (Numbers::Int(mut v), Numbers::Int(u)) => {
            positions.iter().zip(u).for_each(|(&at, u)| v[at] = integer(reduction, v[at], u, unsigned));
            Numbers::Int(v)
        }
        _ => return Err(OpError::invalid("data and updates differ in datatype")),
    };
    numbers.write(data.dtype(), data.shape())
}

fn float(reduction: ScatterReduction, a: f64, b: f64) -> f64 {
    match reduction {
        ScatterReduction::None => b,
        ScatterReduction::Add => a + b,
        ScatterReduction::Mul => a * b,
        // NaN wins, as in NumPy.
        ScatterReduction::Max if a.is_nan() || b.is_nan() => f64::NAN,
        ScatterReduction::Min if a.is_nan() || b.is_nan() => f64::NAN,
        ScatterReduction::Max => a.max(b),
        ScatterReduction::Min => a.min(b),
    }
}

fn integer(reduction: ScatterReduction, a: i64, b: i64, unsigned: bool) -> i64 {
    match reduction {
        ScatterReduction::None => b,
        ScatterReduction::Add => a.wrapping_add(b),
        ScatterReduction::Mul => a.wrapping_mul(b),
        ScatterReduction::Max if unsigned => (a as u64).max(b as u64) as i64,
        ScatterReduction::Min if unsigned => (a as u64).min(b as u64) as i64,
        ScatterReduction::Max => a.max(b),
        ScatterReduction::Min => a.min(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements() {
        let data = Tensor::from_slice(&[1, 4], &[1i32, 2, 3, 4]).unwrap();
        let indices = Tensor::from_slice(&[1, 2], &[1i64, -1]).unwrap();
        let updates = Tensor::from_slice(&[1, 2], &[10i32, 20]).unwrap();
        let run = |reduction| {
            let op = ScatterElements { axis: 1, reduction };
            let out = op.evaluate(&[Some(&data), Some(&indices), Some(&updates)]).unwrap();
            out[0].slice::<i32>().unwrap().to_vec()
        };
        assert_eq!(run(ScatterReduction::None), [1, 10, 3, 20]);
        assert_eq!(run(ScatterReduction::Add), [1, 12, 3, 24]);
        assert_eq!(run(ScatterReduction::Mul), [1, 20, 3, 80]);
        assert_eq!(run(ScatterReduction::Min), [1, 2, 3, 4]);
    }

    #[test]
    fn what_does_not_fit_is_found_with_the_shapes() {
        let infer = |op: &dyn TensorOp, data: &[usize], indices: &[usize]| {
            let fact = |dtype, shape: &[usize]| Fact::tensor(dtype, shape.iter().map(|&size| size.into()));
            let facts = [fact(DType::F32, data), fact(DType::I64, indices), fact(DType::F32, indices)];
            op.infer(&facts.iter().map(Some).collect::<Vec<_>>())
        };
        let reduction = ScatterReduction::None;
        let elements = |axis| ScatterElements { axis, reduction };
        assert!(infer(&elements(0), &[2, 3], &[1, 4]).unwrap_err().to_string().contains("[1, 4] reach outside"));
        assert!(infer(&elements(0), &[], &[]).is_err() && infer(&elements(0), &[2], &[1, 1]).is_err());
        assert!(infer(&elements(0), &[2, 3], &[0, 4]).is_ok());
        let tuples = ScatterNd { reduction };
        assert!(infer(&tuples, &[2, 3], &[4, 3]).is_err() && infer(&tuples, &[2, 3], &[]).is_err());
        assert!(infer(&tuples, &[2, 3], &[0, 2]).is_ok() && infer(&tuples, &[2, 3], &[4, 0]).is_ok());
    }

    #[test]
    fn slices() {
        let data = Tensor::from_strings(&[3], ["a", "b", "c"].map(|s| s.as_bytes().to_vec()).to_vec()).unwrap();
        let indices = Tensor::from_slice(&[1, 1], &[-1i64]).unwrap();
        let updates = Tensor::from_strings(&[1], vec![b"x".to_vec()]).unwrap();
        let op = ScatterNd { reduction: ScatterReduction::None };
        let out = op.evaluate(&[Some(&data), Some(&indices), Some(&updates)]).unwrap().remove(0);
        assert_eq!(out.strings().unwrap()[2], b"x");
        assert!(op.evaluate(&[Some(&data), Some(&indices), Some(&data)]).is_err());
        let rows = Tensor::zeros(DType::I64, &[1 << 40, 0]).unwrap();
        assert!(op.evaluate(&[Some(&data), Some(&rows), Some(&updates)]).is_err());
        let outside = Tensor::from_slice(&[1, 1], &[3i64]).unwrap();
        assert!(op.evaluate(&[Some(&data), Some(&outside), Some(&updates)]).is_err());
    }
}
