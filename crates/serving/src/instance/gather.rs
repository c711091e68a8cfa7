//! The inputs of requests that run together: one after the other, or computed from their shapes.

use std::ops::Range;

use halimede_tensor::Buffer;

use super::batch::{Batch, Gathered};
use crate::{
    error::Error,
    model::{BatchInput, Item, Source, shape_text},
    request::InputTensor,
};

impl Batch {
    /// The input `name` of all requests, one after the other along the batch dimension; see [`Batch::gather_of`].
    pub fn gather(&self, name: &str) -> Result<Option<Gathered>, Error> {
        self.gather_of(0..self.len(), name)
    }

    /// The input `name` of the requests `which`, at least one, as the model takes it: one after the other along the
    /// batch dimension; in one dimension, where the configuration allows different shapes; computed from the requests,
    /// where the configuration says so. `None` where the input is optional and not given; all requests of a batch give
    /// the same inputs.
    pub fn gather_of(&self, which: Range<usize>, name: &str) -> Result<Option<Gathered>, Error> {
        if let Some(computed) = self.signature.batch_input(name) {
            return self.computed(which, computed).map(Some);
        }
        let Some(Gathered { dtype, mut shape, data }) = self.gather_one(which.start, name)? else { return Ok(None) };
        let entries = &self.entries[which];
        let is_ragged = self.signature.input(name).is_some_and(|input| input.is_ragged);
        if entries.len() == 1 && !is_ragged {
            return Ok(Some(Gathered { dtype, shape, data }));
        }
        let tensors = entries.iter().filter_map(|entry| given(&entry.request.inputs, name));
        if is_ragged {
            let elements = |tensor: &InputTensor| tensor.shape.iter().product::<i64>();
            shape = vec![tensors.clone().map(elements).sum()];
        } else if let Some(other) = tensors.clone().find(|tensor| tensor.shape.get(1..) != shape.get(1..)) {
            return Err(Error::internal(format!(
                "the requests of a batch of model '{}' have '{name}' in shapes {} and {}",
                self.signature.model,
                shape_text(&shape),
                shape_text(&other.shape)
            )));
        } else if let Some(batch) = shape.first_mut() {
            *batch = entries.iter().map(|entry| entry.batch_size as i64).sum();
        }
        let parts: Vec<&Buffer> = tensors.map(|tensor| &tensor.data).collect();
        Ok(Some(Gathered { dtype, shape, data: concatenated(&parts)? }))
    }

    /// The input `name` of request `index` alone, as its client gave it.
    pub fn gather_one(&self, index: usize, name: &str) -> Result<Option<Gathered>, Error> {
        let Some(input) = given(&self.entries[index].request.inputs, name) else { return Ok(None) };
        let dtype = input.dtype.ok_or_else(|| Error::internal(format!("input '{name}' has no datatype")))?;
        Ok(Some(Gathered { dtype, shape: input.shape.clone(), data: input.data.clone() }))
    }

    /// What the requests `which` make of an input that is computed from them.
    fn computed(&self, which: Range<usize>, input: &BatchInput) -> Result<Gathered, Error> {
        let items = which.map(|index| self.item(index, &input.source)).collect::<Result<Vec<_>, _>>()?;
        let (shape, values) = input.values(&items)?;
        let data = Buffer::copied(&input.bytes(&values))?;
        Ok(Gathered { dtype: input.dtype, shape, data })
    }

    /// What request `index` gives a source.
    pub(super) fn item(&self, index: usize, source: &Source) -> Result<Item<'_>, Error> {
        let entry = &self.entries[index];
        let Some(input) = given(&entry.request.inputs, &source.name) else {
            return Err(Error::invalid(format!(
                "model '{}' needs the shape of input '{}', which the request does not give",
                self.signature.model, source.name
            )));
        };
        Ok(source.item(entry.batch_size, &input.shape))
    }
}

fn given<'a>(inputs: &'a [InputTensor], name: &str) -> Option<&'a InputTensor> {
    inputs.iter().find(|input| input.name == name)
}

/// The bytes of `parts`, without a copy where they lie one after the other already.
fn concatenated(parts: &[&Buffer]) -> Result<Buffer, Error> {
    if let [one] = parts {
        return Ok((*one).clone());
    }
    // States often lie side by side, where the execution before left them.
    if let Some(data) = Buffer::joined(parts) {
        return Ok(data);
    }
    let parts: Vec<&[u8]> = parts.iter().map(|part| &***part).collect();
    Ok(Buffer::concatenated(&parts)?)
}
