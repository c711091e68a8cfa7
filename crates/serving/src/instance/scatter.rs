//! The outputs of requests that ran together, given to each.

use std::ops::Range;

use halimede_tensor::{Buffer, DType};

use super::batch::Batch;
use crate::{error::Error, model::shape_text, response::OutputTensor, wire};

impl Batch {
    /// Gives each request that wants the output `name` its part of it; see [`Batch::scatter_to`].
    ///
    /// # Errors
    /// The output does not have one row per inference.
    pub fn scatter(&mut self, name: &str, dtype: DType, shape: &[i64], data: Buffer) -> Result<(), Error> {
        self.scatter_to(0..self.len(), name, dtype, shape, data)
    }

    /// Gives each of the requests `which` that wants the output `name` its part of it, in order: along the batch
    /// dimension, or, where the configuration says so, as long as an input of the request. The parts share `data`.
    ///
    /// # Errors
    /// The output does not have one row per inference, or is shorter than the inputs ask for.
    pub fn scatter_to(
        &mut self,
        which: Range<usize>,
        name: &str,
        dtype: DType,
        shape: &[i64],
        data: Buffer,
    ) -> Result<(), Error> {
        let signature = self.signature.clone();
        // One request has all there is, unless the model sees its elements in one dimension.
        if which.len() == 1 && !signature.is_ragged() && signature.batch_output(name).is_none() {
            if self.wants(which.start, name) {
                self.push_output(
                    which.start,
                    OutputTensor { name: name.to_owned(), dtype, shape: shape.to_vec(), data },
                );
            }
            return Ok(());
        }
        let shapes = self.part_shapes(which.clone(), name, shape)?;
        let short = || {
            let (shape, parts) = (shape_text(shape), shapes.iter().map(|shape| shape_text(shape)).collect::<Vec<_>>());
            Error::internal(format!(
                "model '{}' gave output '{name}' of shape {shape}, which is too short for its requests: {}",
                signature.model,
                parts.join(", ")
            ))
        };
        let bytes = part_bytes(dtype, &data, &shapes).ok_or_else(short)?;
        let mut offset = 0;
        let parts = bytes.into_iter().map(|bytes| {
            let part = data.part(offset, bytes);
            offset += bytes;
            part
        });
        let parts = parts.collect::<Option<Vec<Buffer>>>().ok_or_else(short)?;
        for ((index, shape), data) in which.zip(shapes).zip(parts) {
            if self.wants(index, name) {
                self.push_output(index, OutputTensor { name: name.to_owned(), dtype, shape, data });
            }
        }
        Ok(())
    }

    /// The shape of the part of each request of an output of shape `shape`.
    fn part_shapes(&self, which: Range<usize>, name: &str, shape: &[i64]) -> Result<Vec<Vec<i64>>, Error> {
        let model = &self.signature.model;
        if let Some(split) = self.signature.batch_output(name) {
            let shape = |index: usize| {
                let missing = || Error::internal(format!("output '{name}' has more dimensions than its source"));
                split.shape(self.item(index, &split.source)?, self.is_batched()).ok_or_else(missing)
            };
            return which.map(shape).collect();
        }
        let rows: usize = self.entries[which.clone()].iter().map(|entry| entry.batch_size).sum();
        if self.is_batched() && shape.first() != Some(&(rows as i64)) {
            let shape = shape_text(shape);
            return Err(Error::internal(format!(
                "model '{model}' gave output '{name}' of shape {shape} for a batch of {rows}; its first dimension must \
                 be the batch"
            )));
        }
        let part = |index: usize| {
            let mut shape = shape.to_vec();
            if self.is_batched() {
                shape[0] = self.entries[index].batch_size as i64;
            }
            shape
        };
        Ok(which.map(part).collect())
    }
}

/// Bytes of parts of these shapes; strings differ in length. `None` where there are not so many elements.
fn part_bytes(dtype: DType, data: &[u8], shapes: &[Vec<i64>]) -> Option<Vec<usize>> {
    let count = |shape: &Vec<i64>| {
        let dims = shape.iter().map(|dim| usize::try_from(*dim).unwrap_or(0));
        dims.fold(1usize, usize::saturating_mul)
    };
    if dtype != DType::String {
        return shapes.iter().map(|shape| count(shape).checked_mul(dtype.size())).collect();
    }
    let mut strings = wire::strings(data);
    let mut next = || Some(wire::LENGTH_BYTES + strings.next()?.ok()?.len());
    shapes.iter().map(|shape| (0..count(shape)).try_fold(0, |bytes, _| Some(bytes + next()?))).collect()
}
