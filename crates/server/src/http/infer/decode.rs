//! A body to a request: JSON, and binary tensors behind it.

use bytes::Bytes;
use halimede_serving::{CorrelationId, Error, InputTensor, Parameter, Request, RequestedOutput, wire};
use halimede_tensor::Buffer;
use hyper::header::HeaderMap;

use super::data;
use crate::{
    json::{Document, Scalar, Value},
    services::{Services, check_forwarded},
    shared_memory::Place,
};

/// How the outputs of one request are to be returned.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    by_name: Vec<(String, Form)>,
    /// Whether outputs that the request does not name are binary.
    is_binary: bool,
}

/// How one output is returned.
#[derive(Debug, Clone)]
pub(super) enum Form {
    Json,
    Binary,
    SharedMemory(Place),
}

impl Outputs {
    /// How the output `name` is returned.
    pub fn form(&self, name: &str) -> Form {
        match self.by_name.iter().find(|(named, _)| named == name) {
            Some((_, form)) => form.clone(),
            None if self.is_binary => Form::Binary,
            None => Form::Json,
        }
    }
}

/// Puts `context` in front of an error's text.
fn within(context: &'static str) -> impl Fn(Error) -> Error {
    move |error| Error { message: format!("{context}: {}", error.message), ..error }
}

/// Fills `request` from a body whose first `header_length` bytes are JSON.
pub(super) fn decode(
    services: &Services,
    body: Bytes,
    header_length: usize,
    request: &mut Request,
) -> Result<Outputs, Error> {
    let body = Buffer::foreign(body);
    if header_length == 0 {
        return raw(services, body, request);
    }
    let limit = services.http_input_bytes_max;
    if header_length > limit {
        return Err(Error::invalid(format!(
            "request JSON size of {header_length} bytes exceeds the maximum allowed input size of {limit} bytes. Use \
             --http-max-input-size to increase the limit."
        )));
    }
    let document = Document::parse(&body[..header_length])?;
    let root = document.root();
    if let Some(id) = root.find("id") {
        request.id = id.text().map_err(within("Unable to parse 'id'"))?.into_owned();
    }
    let mut outputs = Outputs::default();
    if let Some(parameters) = root.find("parameters") {
        outputs.is_binary = read_parameters(parameters, request)?;
    }
    read_inputs(services, root, &body, header_length, request)?;
    read_outputs(services, root, request, &mut outputs)?;
    Ok(outputs)
}

/// The whole body is the one input of the model.
fn raw(services: &Services, body: Buffer, request: &mut Request) -> Result<Outputs, Error> {
    let limit = services.http_input_bytes_max;
    if body.len() > limit {
        return Err(Error::invalid(format!(
            "Raw input has a byte_size ({} bytes) that exceeds the maximum allowed value of {limit} bytes. Use \
             --http-max-input-size to increase the limit.",
            body.len()
        )));
    }
    request.raw = true;
    request.inputs.push(InputTensor::raw(body));
    Ok(Outputs { by_name: Vec::new(), is_binary: true })
}

/// Reads the parameters of the request; tells whether outputs are binary by default.
fn read_parameters(parameters: Value<'_>, request: &mut Request) -> Result<bool, Error> {
    let mut is_binary = false;
    for (name, value) in parameters.members().map_err(within("failed to get request params."))? {
        match &*name {
            "sequence_id" => {
                request.sequence.id = match value.unsigned() {
                    Ok(id) => CorrelationId::Int(id),
                    Err(_) => {
                        let id = value.text().map_err(within("Unable to parse 'sequence_id'"))?;
                        CorrelationId::String(id.into_owned())
                    }
                };
            }
            "sequence_start" => {
                request.sequence.start = value.boolean().map_err(within("Unable to parse 'sequence_start'"))?;
            }
            "sequence_end" => {
                request.sequence.end = value.boolean().map_err(within("Unable to parse 'sequence_end'"))?;
            }
            "priority" => request.priority = value.unsigned().map_err(within("Unable to parse 'priority'"))?,
            "timeout" => request.timeout_us = value.unsigned().map_err(within("Unable to parse 'timeout'"))?,
            "binary_data_output" => {
                is_binary = value.boolean().map_err(within("Unable to parse 'binary_data_output'"))?;
            }
            reserved if reserved.starts_with("triton_") => {
                return Err(Error::invalid(
                    "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
                ));
            }
            _ => {
                let parameter = custom_parameter(&name, value)?;
                request.parameters.push((name.into_owned(), parameter));
            }
        }
    }
    Ok(is_binary)
}

/// The value of a parameter that the protocol does not define.
pub(in super::super) fn custom_parameter(name: &str, value: Value<'_>) -> Result<Parameter, Error> {
    Ok(match value.scalar() {
        Some(Scalar::String(bytes)) => Parameter::String(String::from_utf8_lossy(bytes).into_owned()),
        Some(Scalar::Int(value)) => Parameter::Int(value),
        Some(Scalar::Bool(value)) => Parameter::Bool(value),
        Some(Scalar::UInt(value)) => Parameter::Double(value as f64),
        Some(Scalar::Double(value)) => Parameter::Double(value),
        Some(Scalar::Null) | None => {
            return Err(Error::invalid(format!(
                "parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
            )));
        }
    })
}

/// Reads the inputs; binary ones follow each other from `position` of the body.
fn read_inputs(
    services: &Services,
    root: Value<'_>,
    body: &Buffer,
    mut position: usize,
    request: &mut Request,
) -> Result<(), Error> {
    let inputs = root.member("inputs").and_then(Value::elements).map_err(within("Unable to parse 'inputs'"))?;
    for input in inputs {
        let source = Source::of(input)?;
        let name = input.member("name").and_then(Value::text).map_err(within("Unable to parse 'name'"))?;
        let datatype = input.member("datatype").and_then(Value::text).map_err(within("Unable to parse 'datatype'"))?;
        let dtype = wire::datatype(&datatype);
        let shape = read_shape(input).map_err(within("Unable to parse 'shape'"))?;
        let data = match source {
            Source::Binary(size) => {
                let size = size.unsigned().map_err(within("Unable to parse 'binary_data_size'"))?;
                let left = (body.len() - position) as u64;
                let part = usize::try_from(size).ok().and_then(|size| body.part(position, size));
                let Some(part) = part else {
                    return Err(Error::invalid(format!(
                        "unexpected size for input '{name}', expecting {} additional bytes for model '{}'",
                        size.saturating_sub(left),
                        request.model
                    )));
                };
                position += part.len();
                part
            }
            Source::SharedMemory(parameters) => place(services, parameters)?.read()?,
            Source::Json(value) => {
                let bytes = data::from_json(&name, dtype, &shape, value, services.http_input_bytes_max)?;
                Buffer::foreign(bytes)
            }
        };
        request.inputs.push(InputTensor { name: name.into_owned(), dtype, shape, data });
    }
    if position != body.len() {
        return Err(Error::invalid(format!("unexpected additional input data for model '{}'", request.model)));
    }
    Ok(())
}

/// Where the data of an input is.
enum Source<'d> {
    Json(Value<'d>),
    /// Behind the JSON; the value is the size.
    Binary(Value<'d>),
    /// In a region that the parameters name.
    SharedMemory(Value<'d>),
}

impl<'d> Source<'d> {
    fn of(input: Value<'d>) -> Result<Self, Error> {
        let parameters = input.find("parameters");
        let data = input.find("data");
        let size = parameters.and_then(|parameters| parameters.find("binary_data_size"));
        let region = parameters.filter(|parameters| parameters.find("shared_memory_region").is_some());
        match (data, size, region) {
            (Some(data), None, None) => Ok(Source::Json(data)),
            (None, Some(size), None) => Ok(Source::Binary(size)),
            (None, None, Some(parameters)) => Ok(Source::SharedMemory(parameters)),
            _ => {
                let given: String = [
                    (data.is_some(), " 'data'"),
                    (size.is_some(), " 'binary_data_size'"),
                    (region.is_some(), " 'shared_memory_region'"),
                ]
                .into_iter()
                .filter_map(|(is_given, name)| is_given.then_some(name))
                .collect();
                let given = if given.is_empty() { " no field is set".to_owned() } else { format!(" set{given}") };
                Err(Error::invalid(format!(
                    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
                     'shared_memory_region' in 'parameters'. But{given}"
                )))
            }
        }
    }
}

fn read_shape(input: Value<'_>) -> Result<Vec<i64>, Error> {
    // A dimension beyond i64 becomes negative, as in Triton, and fits no model.
    input.member("shape")?.elements()?.map(|dim| dim.unsigned().map(|dim| dim as i64)).collect()
}

/// The part of a region that `parameters` speak of.
fn place(services: &Services, parameters: Value<'_>) -> Result<Place, Error> {
    let region = parameters.member("shared_memory_region").and_then(Value::text);
    let region = region.map_err(within("Unable to parse 'shared_memory_region'"))?;
    let number = |name: &'static str, context| {
        parameters.find(name).map_or(Ok(0), |value| value.unsigned().map_err(within(context)))
    };
    let offset = number("shared_memory_offset", "Unable to parse 'shared_memory_offset'")?;
    let len = number("shared_memory_byte_size", "Unable to parse 'shared_memory_byte_size'")?;
    services.regions.place(&region, offset, len)
}

fn read_outputs(
    services: &Services,
    root: Value<'_>,
    request: &mut Request,
    outputs: &mut Outputs,
) -> Result<(), Error> {
    let Some(requested) = root.find("outputs") else { return Ok(()) };
    for output in requested.elements().map_err(within("Unable to parse 'outputs'"))? {
        let parameters = output.find("parameters");
        let parameter = |name| parameters.and_then(|parameters| parameters.find(name));
        let region = parameter("shared_memory_region");
        let binary = parameter("binary_data");
        if region.is_some() {
            if parameter("classification").is_some() {
                return Err(Error::invalid("Output can't set both 'shared_memory_region' and 'classification'"));
            }
            let is_binary = binary.map_or(Ok(false), Value::boolean).map_err(within("Unable to set 'binary_data'"))?;
            if is_binary {
                return Err(Error::invalid("Output can't set both 'shared_memory_region' and 'binary_data'"));
            }
        }
        let name = output.member("name").and_then(Value::text).map_err(within("Unable to parse 'name'"))?;
        let classes = parameter("classification").map_or(Ok(0), Value::unsigned);
        let classes = classes.map_err(within("Unable to set 'classification'"))?;
        let form = match (region, parameters) {
            (Some(_), Some(parameters)) => Form::SharedMemory(place(services, parameters)?),
            _ => match binary.map_or(Ok(false), Value::boolean).map_err(within("Unable to parse 'binary_data'"))? {
                true => Form::Binary,
                false => Form::Json,
            },
        };
        request.outputs.push(RequestedOutput {
            name: name.clone().into_owned(),
            classification: u32::try_from(classes).unwrap_or(u32::MAX),
        });
        outputs.by_name.push((name.into_owned(), form));
    }
    Ok(())
}

/// Headers whose names match become parameters.
pub(super) fn forward_headers(headers: &HeaderMap, pattern: &regex::Regex, request: &mut Request) -> Result<(), Error> {
    for (name, value) in headers {
        if pattern.is_match(name.as_str()) {
            check_forwarded(name.as_str())?;
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            request.parameters.push((name.as_str().to_owned(), Parameter::String(value)));
        }
    }
    Ok(())
}
