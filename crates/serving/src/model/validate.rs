//! Checks a request against a model, and brings it into the form that instances take.
//!
//! The order of the checks, their codes and texts are Triton's (`InferenceRequest::Normalize`).

use std::collections::HashSet;

use halimede_tensor::Buffer;

use super::signature::{InputSpec, Signature};
use crate::{
    error::Error,
    request::{InputTensor, Request},
    wire::{self, Truncated, datatype_name},
};

/// Why a request does not fit.
enum Refusal {
    /// It names a tensor that the model does not have. Triton does not say in which request.
    Name(String),
    /// Anything else; the identifier of the request stands in front.
    Request(String),
}

impl From<String> for Refusal {
    fn from(text: String) -> Self {
        Refusal::Request(text)
    }
}

/// What Triton calls the input of a request that is nothing but bytes.
const RAW_INPUT: &str = "raw_input";

impl Signature {
    /// Checks `request` and brings its inputs into the order of the configuration and into the shapes
    /// that the model sees. Returns the number of inferences, at least 1.
    pub fn prepare(&self, request: &mut Request) -> Result<usize, Error> {
        let batch_size = self.prepare_inputs(request)?;
        self.check_sequence(request)?;
        Ok(batch_size)
    }

    /// The same without a look at the request's sequence.
    pub fn prepare_inputs(&self, request: &mut Request) -> Result<usize, Error> {
        self.normalize(request).map_err(|refusal| match refusal {
            Refusal::Name(text) => Error::invalid(text),
            Refusal::Request(text) => Error::invalid(format!("{}{text}", request.log_prefix())),
        })
    }

    fn normalize(&self, request: &mut Request) -> Result<usize, Refusal> {
        if let Some(twice) = first_twice(&request.inputs) {
            return Err(Refusal::Request(format!("input '{twice}' already exists in request")));
        }
        let raw = request.raw;
        if raw {
            self.deduce_raw_input(request)?;
        }
        if let Some(unknown) = request.outputs.iter().find(|output| self.output(&output.name).is_none()) {
            let text = format!("unexpected inference output '{}' for model '{}'", unknown.name, self.model);
            return Err(Refusal::Name(text));
        }
        self.check_input_count(&request.inputs)?;
        if let Some(unknown) = request.inputs.iter().find(|input| self.input(&input.name).is_none()) {
            let text = format!("unexpected inference input '{}' for model '{}'", unknown.name, self.model);
            return Err(Refusal::Name(text));
        }
        let position = |input: &InputTensor| self.inputs.iter().position(|spec| spec.name == input.name);
        if !request.inputs.is_sorted_by_key(position) {
            request.inputs.sort_by_key(position);
        }
        let batch_size = self.batch_size(&request.inputs)?;
        for input in &mut request.inputs {
            if let Some(spec) = self.input(&input.name) {
                // Texts call the input of a raw request by the name that it came with.
                let name = if raw { RAW_INPUT } else { &spec.name };
                self.prepare_input(input, spec, name, batch_size)?;
            }
        }
        Ok(usize::try_from(batch_size).unwrap_or(0).max(1))
    }

    /// The batch size of the request; 0 for a model without batch dimension.
    fn batch_size(&self, inputs: &[InputTensor]) -> Result<i64, String> {
        let model = &self.model;
        let mut batch_size = 0;
        for input in inputs.iter().filter(|_| self.is_batched()) {
            let Some(&first) = input.shape.first() else {
                return Err(format!(
                    "input '{}' has no shape but model requires batch dimension for '{model}'",
                    input.name
                ));
            };
            if batch_size == 0 {
                batch_size = first;
            } else if first != batch_size {
                return Err(format!("input '{}' batch size does not match other inputs for '{model}'", input.name));
            }
        }
        let max = self.batch_size_max;
        match usize::try_from(batch_size) {
            Ok(size) if size <= max => Ok(batch_size),
            _ => Err(format!("inference request batch-size must be <= {max} for '{model}'")),
        }
    }

    fn check_input_count(&self, inputs: &[InputTensor]) -> Result<(), String> {
        let (known, required, given) = (self.inputs.len(), self.required_input_count(), inputs.len());
        if (required..=known).contains(&given) {
            return Ok(());
        }
        let quoted = |name: &String| format!("'{name}'");
        let is_missing = |spec: &&InputSpec| !spec.optional && inputs.iter().all(|input| input.name != spec.name);
        let missing: Vec<String> = self.inputs.iter().filter(is_missing).map(|spec| quoted(&spec.name)).collect();
        // Triton drops the last character of "[" where nothing is missing.
        let missing = if missing.is_empty() { "]".to_owned() } else { format!("[{}]", missing.join(",")) };
        let got: Vec<String> = inputs.iter().map(|input| quoted(&input.name)).collect();
        let expected = match required == known {
            true => format!("{known} inputs"),
            false => format!("number of inputs between {required} and {known}"),
        };
        Err(format!(
            "expected {expected} but got {given} inputs for model '{}'. Got input(s) [{}], but missing required \
             input(s) {missing}. Please provide all required input(s).",
            self.model,
            got.join(",")
        ))
    }

    fn prepare_input(
        &self,
        input: &mut InputTensor,
        spec: &InputSpec,
        name: &str,
        batch_size: i64,
    ) -> Result<(), String> {
        let model = &self.model;
        if input.dtype != Some(spec.dtype) {
            return Err(format!(
                "inference input '{name}' data-type is '{}', but model '{model}' expects '{}'",
                input.dtype.map_or("<invalid>", datatype_name),
                datatype_name(spec.dtype)
            ));
        }
        let dims = &input.shape[usize::from(self.is_batched())..];
        self.check_dims(&input.shape, dims, spec)?;
        if spec.reshape.is_some() || (self.is_batched() && batch_size == 0) {
            let batch = (batch_size != 0).then_some(batch_size);
            input.shape = batch.into_iter().chain(spec.model_dims(dims.to_vec())).collect();
        }
        if spec.dtype == halimede_tensor::DType::String {
            return self.check_strings(input);
        }
        let expected = byte_size(&input.shape, spec.dtype.size(), name)?;
        if input.data.len() as u64 != expected {
            return Err(format!(
                "input byte size mismatch for input '{name}' for model '{model}'. Expected {expected}, got {}",
                input.data.len()
            ));
        }
        Ok(())
    }

    fn check_dims(&self, shape: &[i64], dims: &[i64], spec: &InputSpec) -> Result<(), String> {
        let (name, model) = (&spec.name, &self.model);
        if dims.len() == spec.dims.len() {
            let mut pairs = dims.iter().zip(&spec.dims);
            match pairs.find(|(dim, expected)| **dim == -1 || (**expected != -1 && dim != expected)) {
                None => return Ok(()),
                Some((-1, _)) => {
                    return Err(format!(
                        "All input dimensions should be specified for input '{name}' for model '{model}', got {}",
                        shape_text(shape)
                    ));
                }
                Some(_) => {}
            }
        }
        let note = match self.is_batched() {
            true => {
                "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be \
                 prepended to each input shape. If you want to specify the full shape including the batch dim in your \
                 input dims config, try setting max_batch_size to zero. See the model configuration docs for more \
                 info on max_batch_size."
            }
            false => "",
        };
        let batch: &[i64] = if self.is_batched() { &[-1] } else { &[] };
        Err(format!(
            "unexpected shape for input '{name}' for model '{model}'. Expected {}, got {}. {note}",
            shape_text(&[batch, &spec.dims].concat()),
            shape_text(shape)
        ))
    }

    fn check_strings(&self, input: &InputTensor) -> Result<(), String> {
        let (name, model) = (&input.name, &self.model);
        let expected = element_count(&input.shape, name)?;
        let place = format!("for inference input '{name}' for model '{model}'");
        let mut count = 0;
        for string in wire::strings(&input.data) {
            if let Err(Truncated { available, length: None }) = string {
                return Err(format!(
                    "incomplete string length indicator {place}, expecting {} bytes but only {available} bytes \
                     available. Please make sure the string length indicator is in one buffer.",
                    wire::LENGTH_BYTES
                ));
            }
            count += 1;
            if count > expected {
                return Err(format!("unexpected number of string elements {count} {place}, expecting {expected}"));
            }
            if let Err(Truncated { available, length: Some(length) }) = string {
                return Err(format!(
                    "incomplete string data {place}, expecting string of length {length} but only {available} bytes \
                     available"
                ));
            }
        }
        if count != expected {
            return Err(format!("expected {expected} string elements {place}, got {count}"));
        }
        Ok(())
    }

    /// Gives the one input of a raw request its name, datatype and shape.
    fn deduce_raw_input(&self, request: &mut Request) -> Result<(), String> {
        let ([spec], [input]) = (&self.inputs[..], &mut request.inputs[..]) else {
            return Err(format!(
                "Raw request must only have 1 input (found {}) to be deduced but got {} inputs in '{}' model \
                 configuration",
                request.inputs.len(),
                self.inputs.len(),
                self.model
            ));
        };
        let mut variable = spec.dims.iter().enumerate().filter(|(_, dim)| **dim == -1).map(|(axis, _)| axis);
        let (axis, another) = (variable.next(), variable.next());
        if another.is_some() {
            return Err(format!(
                "The shape of the raw input '{}' can not be deduced because there are more than one variable-sized \
                 dimension",
                spec.name
            ));
        }
        let fixed = spec.dims.iter().filter(|dim| **dim != -1).try_fold(1i64, |all, dim| all.checked_mul(*dim));
        let mut dims = spec.dims.clone();
        if spec.dtype == halimede_tensor::DType::String {
            if axis.is_some() || fixed != Some(1) {
                return Err(format!(
                    "For BYTE datatype raw input '{}', the model must have input shape [1]",
                    spec.name
                ));
            }
            let mut wire = Vec::with_capacity(wire::LENGTH_BYTES + input.data.len());
            wire::push_string(&mut wire, &input.data)
                .ok_or_else(|| format!("the raw input '{}' is longer than a string can be", spec.name))?;
            input.data = Buffer::foreign(wire);
        } else if let Some(axis) = axis {
            let row = fixed.unwrap_or(0).max(1).saturating_mul(spec.dtype.size() as i64);
            dims[axis] = input.data.len() as i64 / row;
        }
        let batch: &[i64] = if self.is_batched() { &[1] } else { &[] };
        input.shape = [batch, &dims].concat();
        input.name.clone_from(&spec.name);
        input.dtype = Some(spec.dtype);
        request.raw = false;
        Ok(())
    }
}

/// `[1,-1,3]`, as Triton prints shapes.
pub(crate) fn shape_text(dims: &[i64]) -> String {
    let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
    format!("[{}]", dims.join(","))
}

/// Number of elements of a shape of a request.
fn element_count(shape: &[i64], name: &str) -> Result<u64, String> {
    if shape.iter().any(|dim| *dim < 0) {
        return Err(format!("tensor '{name}' contains an invalid dimension in shape {}", shape_text(shape)));
    }
    let count = shape.iter().try_fold(1i64, |count, dim| count.checked_mul(*dim));
    count
        .and_then(|count| u64::try_from(count).ok())
        .ok_or_else(|| format!("element count for tensor '{name}' exceeds maximum size of {}", i64::MAX))
}

/// Bytes of a tensor of a request whose elements take `size` bytes.
fn byte_size(shape: &[i64], size: usize, name: &str) -> Result<u64, String> {
    if shape.iter().any(|dim| *dim < 0) {
        return Err(format!("tensor '{name}' contains an invalid dimension {}", shape_text(shape)));
    }
    let bytes = shape.iter().try_fold(size as i64, |bytes, dim| bytes.checked_mul(*dim));
    bytes
        .and_then(|bytes| u64::try_from(bytes).ok())
        .ok_or_else(|| format!("byte size for tensor '{name}' exceeds maximum size of {}", i64::MAX))
}
/// The first name that an input before it has, too.
fn first_twice(inputs: &[InputTensor]) -> Option<&str> {
    /// So many are compared with each other faster than they are remembered.
    const FEW: usize = 16;
    let name = |index: usize| inputs[index].name.as_str();
    if inputs.len() <= FEW {
        return (1..inputs.len()).find(|&i| (0..i).any(|j| name(i) == name(j))).map(name);
    }
    let mut seen = HashSet::with_capacity(inputs.len());
    (0..inputs.len()).map(name).find(|name| !seen.insert(*name))
}
