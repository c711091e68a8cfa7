use super::inputs::{check_axis, integers, required, typed};
use super::movement::{strides, take};
use super::{Facts, TensorOp, Tensors};
use crate::{Dim, Dims, Fact, OpError};
use halimede_tensor::{Shape, Tensor, element_count};
use smallvec::smallvec;

/// Whole slices by index along one axis (ONNX Gather). Inputs: data, indices of any integer type,
/// negative from the end.
#[derive(Debug, Clone, PartialEq)]
pub struct Gather {
    /// Axis, resolved to be non-negative.
    pub axis: usize,
}

/// Single elements by index along one axis (ONNX GatherElements). Inputs: data, indices.
#[derive(Debug, Clone, PartialEq)]
pub struct GatherElements {
    /// Axis, resolved to be non-negative.
    pub axis: usize,
}

/// Slices by tuples of indices (ONNX GatherND). Inputs: data, indices.
#[derive(Debug, Clone, PartialEq)]
pub struct GatherNd {
    /// Leading axes that data and indices share.
    pub batch_dims: usize,
}

impl TensorOp for Gather {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let (data, indices) = (required(inputs, 0)?, required(inputs, 1)?);
        let (Some(from), Some(by)) = (&data.shape, &indices.shape) else {
            return Ok(smallvec![typed(data.dtype, None)]);
        };
        check_axis(self.axis, from.len())?;
        let shape: Dims = [&from[..self.axis], by, &from[self.axis + 1..]].concat().into();
        let elements = match (data.dims(), indices.ints()) {
            (Some(dims), Some(indices)) if from.len() == 1 => {
                let at = |index: i64| dims.get(resolve(index, dims.len()).ok()?).cloned();
                indices.into_iter().map(at).collect()
            }
            _ => None,
        };
        Ok(smallvec![typed(data.dtype, Some(shape)).and_elements(elements)])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let (data, indices) = (required(inputs, 0)?, required(inputs, 1)?);
        check_axis(self.axis, data.rank())?;
        let (outer, rest) = data.shape().split_at(self.axis);
        let (size, inner) = (rest[0], &rest[1..]);
        let shape: Shape = [outer, indices.shape(), inner].concat().into();
        let (outer, inner) = (element_count(outer)?, element_count(inner)?);
        let indices = integers(indices)?.into_iter().map(|i| resolve(i, size)).collect::<Result<Vec<_>, _>>()?;
        let positions = (0..outer).flat_map(|o| {
            let slice = indices.iter().map(move |&index| (o * size + index) * inner);
            slice.flat_map(move |start| start..start + inner)
        });
        Ok(smallvec![take(data, &shape, positions)?])
    }
}

impl TensorOp for GatherElements {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let (data, indices) = (required(inputs, 0)?, required(inputs, 1)?);
        check_elements(data, indices, self.axis)?;
        Ok(smallvec![typed(data.dtype, indices.shape.clone())])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let (data, indices) = (required(inputs, 0)?, required(inputs, 1)?);
        let positions = element_positions(data.shape(), indices, self.axis)?;
        Ok(smallvec![take(data, indices.shape(), positions.into_iter())?])
    }
}

impl TensorOp for GatherNd {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let (data, indices) = (required(inputs, 0)?, required(inputs, 1)?);
        let (Some(from), Some(by)) = (&data.shape, &indices.shape) else {
            return Ok(smallvec![typed(data.dtype, None)]);
        };
        let Some((tuple, leading)) = by.split_last() else {
            return Err(OpError::invalid("the indices of a GatherND are a scalar"));
        };
        let shape = match tuple.size() {
            Some(tuple) => {
                check_tuple(from.len(), by.len(), tuple, self.batch_dims)?;
                let differ = |(a, b): (&Dim, &Dim)| a.known().zip(b.known()).is_some_and(|(a, b)| a != b);
                if from.iter().zip(by).take(self.batch_dims).any(differ) {
                    return Err(OpError::invalid(format!(
                        "data {from:?} and indices {by:?} differ in their batch axes"
                    )));
                }
                Some([leading, &from[self.batch_dims + tuple..]].concat().into())
            }
            None => None,
        };
        Ok(smallvec![typed(data.dtype, shape)])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let (data, indices) = (required(inputs, 0)?, required(inputs, 1)?);
        let (starts, inner) = slice_positions(data.shape(), indices, self.batch_dims)?;
        let leading = &indices.shape()[..indices.rank() - 1];
        let tuple = indices.shape()[indices.rank() - 1];
        let shape: Shape = [leading, &data.shape()[self.batch_dims + tuple..]].concat().into();
        let positions = starts.into_iter().flat_map(|start| start..start + inner);
        Ok(smallvec![take(data, &shape, positions)?])
    }
}

/// An index into an axis, counted from the end where negative.
pub(super) fn resolve(index: i64, size: usize) -> Result<usize, OpError> {
    let resolved = if index < 0 { index.saturating_add(size as i64) } else { index };
    usize::try_from(resolved)
        .ok()
        .filter(|&index| index < size)
        .ok_or_else(|| OpError::invalid(format!("index {index} is outside an axis of size {size}")))
}

/// Refuses indices of single elements that reach outside the data, as far as shapes are known.
pub(super) fn check_elements(data: &Fact, indices: &Fact, axis: usize) -> Result<(), OpError> {
    let (Some(from), Some(by)) = (&data.shape, &indices.shape) else { return Ok(()) };
    check_axis(axis, from.len())?;
    same_rank(from.len(), by.len())?;
    match (data.known_shape(), indices.known_shape()) {
        (Some(data), Some(indices)) => check_reach(&data, &indices, axis),
        _ => Ok(()),
    }
}

/// The same for shapes of one rank. Without indices nothing is reached for.
fn check_reach(data: &[usize], indices: &[usize], axis: usize) -> Result<(), OpError> {
    let fits = |(at, (&index, &size)): (usize, (&usize, &usize))| at == axis || index <= size;
    match indices.contains(&0) || indices.iter().zip(data).enumerate().all(fits) {
        true => Ok(()),
        false => Err(OpError::invalid(format!("indices of shape {indices:?} reach outside data of shape {data:?}"))),
    }
}

/// Refuses tuples of indices that do not fit the data, as far as shapes are known.
pub(super) fn check_tuples(data: &Fact, indices: &Fact) -> Result<(), OpError> {
    let (Some(from), Some(by)) = (&data.shape, &indices.shape) else { return Ok(()) };
    match by.last() {
        None => Err(OpError::invalid("the indices of a GatherND or ScatterND are a scalar")),
        Some(tuple) => tuple.size().map_or(Ok(()), |tuple| check_tuple(from.len(), by.len(), tuple, 0)),
    }
}

/// Where the elements lie that `indices` mean along `axis`, in the order of `indices`.
pub(super) fn element_positions(data: &[usize], indices: &Tensor, axis: usize) -> Result<Vec<usize>, OpError> {
    check_axis(axis, data.len())?;
    same_rank(data.len(), indices.rank())?;
    check_reach(data, indices.shape(), axis)?;
    let strides = halimede_tensor::strides(data);
    let mut index: Shape = smallvec![0; data.len()];
    let mut positions = Vec::with_capacity(indices.len());
    for along in integers(indices)? {
        let along = resolve(along, data[axis])?;
        let position = |(at, (&index, &stride))| if at == axis { along * stride } else { index * stride };
        positions.push(index.iter().zip(&strides).enumerate().map(position).sum());
        for at in (0..index.len()).rev() {
            index[at] += 1;
            if index[at] < indices.shape()[at] {
                break;
            }
            index[at] = 0;
        }
    }
    Ok(positions)
}

/// How many elements the tuples in the last axis of `indices` mean.
pub(super) fn tuples_len(data: &[usize], indices: &[usize]) -> Result<usize, OpError> {
    let Some((&tuple, leading)) = indices.split_last() else {
        return Err(OpError::invalid("the indices of a GatherND or ScatterND are a scalar"));
    };
    check_tuple(data.len(), indices.len(), tuple, 0)?;
    Ok(element_count(&[leading, &data[tuple..]].concat())?)
}

/// Where the slices start that the tuples in the last axis of `indices` mean, and how many elements
/// each has.
pub(super) fn slice_positions(
    data: &[usize],
    indices: &Tensor,
    batch_dims: usize,
) -> Result<(Vec<usize>, usize), OpError> {
    let Some((&tuple, leading)) = indices.shape().split_last() else {
        return Err(OpError::invalid("the indices of a GatherND or ScatterND are a scalar"));
    };
    check_tuple(data.len(), indices.rank(), tuple, batch_dims)?;
    if leading[..batch_dims] != data[..batch_dims] {
        let shape = indices.shape();
        return Err(OpError::invalid(format!("data {data:?} and indices {shape:?} differ in their batch axes")));
    }
    let strides = strides(data);
    let batch = element_count(&data[..batch_dims])?;
    let inner = element_count(&data[batch_dims + tuple..])?;
    let batch_size = element_count(&data[batch_dims..])?;
    let slices = element_count(leading)?;
    // Of slices without elements there may be very many, and tuples of no indices need no memory.
    if inner == 0 && tuple == 0 {
        return Ok((Vec::new(), 0));
    }
    // Without slices nothing is divided.
    let per_batch = (slices / batch.max(1)).max(1);
    let values = integers(indices)?;
    let mut starts = Vec::with_capacity(slices);
    for slice in 0..slices {
        let mut start = slice / per_batch * batch_size;
        for (at, &index) in values[slice * tuple..][..tuple].iter().enumerate() {
            let axis = batch_dims + at;
            start += resolve(index, data[axis])? * strides[axis] as usize;
        }
        starts.push(start);
    }
    Ok((starts, inner))
}

fn check_tuple(data: usize, indices: usize, tuple: usize, batch_dims: usize) -> Result<(), OpError> {
    if batch_dims < indices.max(1) && batch_dims.checked_add(tuple).is_some_and(|axes| axes <= data) {
        return Ok(());
    }
    Err(OpError::invalid(format!("tuples of {tuple} indices after {batch_dims} batch axes, for data of rank {data}")))
}

fn same_rank(data: usize, indices: usize) -> Result<(), OpError> {
    match data == indices {
        true => Ok(()),
        false => Err(OpError::invalid(format!("data of rank {data} with indices of rank {indices}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dim;
    use halimede_tensor::DType;

    fn pair(op: &dyn TensorOp, data: &Tensor, indices: &Tensor) -> Result<Tensor, OpError> {
        Ok(op.evaluate(&[Some(data), Some(indices)])?.remove(0))
    }

    #[test]
    fn whole_slices() {
        let data = Tensor::from_slice(&[2, 3], &[1i32, 2, 3, 4, 5, 6]).unwrap();
        let indices = Tensor::from_slice(&[2], &[-1i64, 0]).unwrap();
        let out = pair(&Gather { axis: 1 }, &data, &indices).unwrap();
        assert_eq!(out, Tensor::from_slice(&[2, 2], &[3i32, 1, 6, 4]).unwrap());
        let row = pair(&Gather { axis: 0 }, &data, &Tensor::scalar(1u8)).unwrap();
        assert_eq!(row, Tensor::from_slice(&[3], &[4i32, 5, 6]).unwrap());
        assert!(pair(&Gather { axis: 0 }, &data, &Tensor::scalar(2i64)).is_err());
        assert!(pair(&Gather { axis: 0 }, &data, &Tensor::scalar(i64::MIN)).is_err());
    }

    #[test]
    fn sizes_are_picked() {
        let n = Dim::symbol("n");
        let shape = Fact::tensor(DType::I64, [Dim::from(2)]).and_elements(Some(vec![Dim::from(3), n.clone()]));
        let index = Fact::constant(Tensor::scalar(-1i64));
        let fact = Gather { axis: 0 }.infer(&[Some(&shape), Some(&index)]).unwrap().remove(0);
        assert_eq!((fact.rank(), fact.dims()), (Some(0), Some(vec![n])));
    }

    #[test]
    fn single_elements() {
        let data = Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0]).unwrap();
        let indices = Tensor::from_slice(&[2, 2], &[0i64, 0, -1, 0]).unwrap();
        let out = pair(&GatherElements { axis: 1 }, &data, &indices).unwrap();
        assert_eq!(out.slice::<f32>().unwrap(), [1.0, 1.0, 4.0, 3.0]);
        let wide = Tensor::from_slice(&[3, 1], &[0i64, 0, 0]).unwrap();
        assert!(pair(&GatherElements { axis: 1 }, &data, &wide).is_err());
    }

    #[test]
    fn what_does_not_fit_is_found_with_the_shapes() {
        let infer = |op: &dyn TensorOp, data: &[usize], indices: &[usize]| {
            let fact = |dtype, shape: &[usize]| Fact::tensor(dtype, shape.iter().map(|&size| Dim::from(size)));
            let facts = [fact(DType::F32, data), fact(DType::I64, indices)];
            op.infer(&[Some(&facts[0]), Some(&facts[1])]).map(|facts| facts[0].known_shape().unwrap().to_vec())
        };
        let along = GatherElements { axis: 1 };
        assert!(infer(&along, &[2, 3], &[3, 1]).unwrap_err().to_string().contains("[3, 1] reach outside"));
        assert!(infer(&along, &[2, 3], &[2]).is_err() && infer(&along, &[2], &[2]).is_err());
        assert_eq!(infer(&along, &[0, 3], &[5, 0]).unwrap(), [5, 0]);
        let batched = GatherNd { batch_dims: 1 };
        assert!(infer(&batched, &[2, 4], &[3, 1]).unwrap_err().to_string().contains("differ in their batch axes"));
        assert!(infer(&batched, &[2, 4], &[]).is_err() && infer(&batched, &[2, 4], &[2, 2]).is_err());
        assert_eq!(infer(&batched, &[0, 4], &[0, 7, 1]).unwrap(), [0, 7]);
        let rows = Tensor::zeros(DType::I64, &[1 << 40, 0]).unwrap();
        let nothing = pair(&GatherNd { batch_dims: 0 }, &Tensor::zeros(DType::F32, &[0]).unwrap(), &rows).unwrap();
        assert_eq!(nothing.shape(), [1 << 40, 0]);
    }

    #[test]
    fn tuples_of_indices() {
        let data = Tensor::from_slice(&[2, 2, 2], &[0i64, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        let indices = Tensor::from_slice(&[2, 2], &[0i64, 1, 1, 0]).unwrap();
        let slices = pair(&GatherNd { batch_dims: 0 }, &data, &indices).unwrap();
        assert_eq!(slices, Tensor::from_slice(&[2, 2], &[2i64, 3, 4, 5]).unwrap());
        let one = Tensor::from_slice(&[2, 1], &[1i64, 0]).unwrap();
        let batched = pair(&GatherNd { batch_dims: 1 }, &data, &one).unwrap();
        assert_eq!(batched, slices);
        let facts = [Fact::constant(data), Fact::constant(one)];
        let fact = GatherNd { batch_dims: 1 }.infer(&[Some(&facts[0]), Some(&facts[1])]).unwrap().remove(0);
        assert_eq!(fact.known_shape().unwrap()[..], [2, 2]);
    }
}
