//! Members of JSON to inputs and parameters.

use halimede_serving::{Error, InputTensor, Request, TensorMetadata, wire};
use halimede_tensor::{Buffer, DType};

use super::super::infer::{custom_parameter, data};
use crate::json::{Document, Value};

/// The member whose own members are taken as if they stood beside it.
const PARAMETERS: &str = "parameters";

/// Fills `request` from a body; each member that is no input is a parameter.
pub(super) fn decode(
    body: &[u8],
    inputs: &[TensorMetadata],
    bytes_max: usize,
    request: &mut Request,
) -> Result<(), Error> {
    let document = Document::parse(body)?;
    let root = document.root();
    if let Some(id) = root.find("id") {
        let text = id.text().map_err(|error| within("Unable to parse 'id'", error))?;
        request.id = text.into_owned();
    }
    let mut members = Members { inputs, bytes_max, bytes: 0, request };
    for (name, value) in root.members()? {
        if name != PARAMETERS {
            members.take(&name, value)?;
            continue;
        }
        if inputs.iter().any(|input| input.name == PARAMETERS) {
            return Err(Error::invalid("Keyword 'parameters' for nested schema also given as input tensor name"));
        }
        let nested = value.members().map_err(|_| {
            Error::internal(
                "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
            )
        })?;
        let mut inner = Members { inputs, bytes_max, bytes: 0, request: members.request };
        for (name, value) in nested {
            inner.take(&name, value).map_err(|error| within("Converting keyword: 'parameters'", error))?;
        }
        members = Members { inputs, bytes_max, bytes: members.bytes, request: inner.request };
    }
    Ok(())
}

fn within(context: &str, error: Error) -> Error {
    Error { message: format!("{context}: {}", error.message), ..error }
}

struct Members<'r> {
    inputs: &'r [TensorMetadata],
    bytes_max: usize,
    /// Of the inputs so far.
    bytes: usize,
    request: &'r mut Request,
}

impl Members<'_> {
    fn take(&mut self, name: &str, value: Value<'_>) -> Result<(), Error> {
        let Some(input) = self.inputs.iter().find(|input| input.name == name) else {
            self.request.parameters.push((name.to_owned(), custom_parameter(name, value)?));
            return Ok(());
        };
        let dtype = wire::datatype(input.datatype);
        // Only the outermost array counts; the model's shape says the rest.
        let count = value.elements().map_or(1, Iterator::count);
        let size = match dtype {
            Some(DType::String) => string_bytes(value)?,
            Some(dtype) => count.saturating_mul(dtype.size()),
            None => 0,
        };
        if size == 0 {
            // A shape without elements, where the model's can be one.
            let shape = fit(&input.shape, 0).unwrap_or_default();
            self.push(name, dtype, shape, Vec::new());
            return Ok(());
        }
        if size > self.bytes_max.saturating_sub(self.bytes) {
            return Err(Error::invalid(format!(
                "request size of {} bytes with input '{name}' of size {size} bytes exceeds the maximum allowed input size \
                 of {}. Use --http-max-input-size to increase the limit.",
                self.bytes, self.bytes_max
            )));
        }
        self.bytes += size;
        let shape = fit(&input.shape, count).ok_or_else(|| {
            Error::invalid(format!("The schema can not convert input '{name}' to tensor with proper shape"))
        })?;
        let data = data::of_elements(name, dtype, &shape, value, self.bytes_max)?;
        self.push(name, dtype, shape, data);
        Ok(())
    }

    fn push(&mut self, name: &str, dtype: Option<DType>, shape: Vec<i64>, data: Vec<u8>) {
        self.request.inputs.push(InputTensor { name: name.to_owned(), dtype, shape, data: Buffer::foreign(data) });
    }
}

/// Bytes of all strings in wire form.
fn string_bytes(value: Value<'_>) -> Result<usize, Error> {
    let mut bytes = 0;
    for (scalar, _) in value.flattened() {
        let scalar = scalar.ok_or_else(|| Error::internal("attempt to access JSON non-string as string"));
        let text = scalar.and_then(|scalar| scalar.bytes());
        bytes += wire::LENGTH_BYTES + text.map_err(|error| within("Unable to parse JSON bytes array", error))?.len();
    }
    Ok(bytes)
}

/// The shape of `count` elements: fixed dimensions take their share, the innermost variable one takes the rest
/// and the others are 1. `None` where that does not come out even.
fn fit(dims: &[i64], count: usize) -> Option<Vec<i64>> {
    let mut rest = count;
    for dim in dims.iter().filter(|dim| **dim != -1) {
        let dim = usize::try_from(*dim).ok()?;
        rest = rest.checked_div(dim).filter(|_| rest.is_multiple_of(dim))?;
    }
    let mut shape = dims.to_vec();
    for dim in shape.iter_mut().rev().filter(|dim| **dim == -1) {
        *dim = i64::try_from(std::mem::replace(&mut rest, 1)).ok()?;
    }
    (rest == 1).then_some(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_fit_the_shape_of_the_model() {
        assert_eq!(fit(&[-1, 3], 6), Some(vec![2, 3]));
        assert_eq!(fit(&[-1, -1, 2], 6), Some(vec![1, 3, 2]));
        assert_eq!(fit(&[1], 1), Some(vec![1]));
        assert_eq!(fit(&[], 1), Some(vec![]));
        assert_eq!(fit(&[-1, 2], 0), Some(vec![0, 2]));
        for (dims, count) in [(&[-1, 4][..], 6), (&[2], 4), (&[0], 1), (&[-2], 2)] {
            assert_eq!(fit(dims, count), None, "{dims:?} {count}");
        }
    }
}
