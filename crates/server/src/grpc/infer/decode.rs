//! A message to a request.

use std::collections::BTreeMap;

use bytes::Bytes;
use halimede_serving::{CorrelationId, Error, InputTensor, Parameter, Request, RequestedOutput, Responder, wire};
use halimede_tensor::{Buffer, DType};
use tonic::metadata::{KeyAndValueRef, MetadataMap};

use super::super::proto::{
    InferParameter, InferTensorContents, ModelInferRequest,
    infer_parameter::ParameterChoice as Choice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};
use crate::{
    event_loops::BYTES_MAX,
    services::{Services, check_forwarded, model_version},
    shared_memory::Place,
};

/// The one parameter with Triton's prefix that clients may set.
const EMPTY_FINAL_RESPONSE: &str = "triton_enable_empty_final_response";

/// The call that a message came with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum CallKind {
    /// ModelInfer: one request, one response.
    Single,
    /// ModelStreamInfer.
    Stream,
}

/// A request, and where its outputs go.
pub(in super::super) struct Decoded {
    pub request: Request,
    pub outputs: Outputs,
    /// Whether the model answers with any number of responses.
    pub is_decoupled: bool,
    /// Whether the client of such a model wants to be told of the end by a message of its own.
    pub wants_end: bool,
}

/// The outputs that go to shared memory.
#[derive(Debug, Default)]
pub(in super::super) struct Outputs(Vec<(String, Place)>);

impl Outputs {
    /// Where the output `name` goes, if not into the message.
    pub fn place(&self, name: &str) -> Option<&Place> {
        self.0.iter().find(|(named, _)| named == name).map(|(_, place)| place)
    }
}

/// The request of a message, with a responder still to be given.
pub(super) fn decode(services: &Services, message: ModelInferRequest, place: CallKind) -> Result<Decoded, Error> {
    let version = model_version(&message.model_version)?;
    let is_decoupled = services.server.is_decoupled(&message.model_name, version)?;
    if is_decoupled && place == CallKind::Single {
        return Err(Error::unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy"));
    }
    let mut request = Request::new(message.model_name, Responder::closed());
    let mut wants_end = false;
    request.version = version;
    request.id = message.id;
    // The protocol has no order of them: models are to find the same each time.
    let parameters: BTreeMap<String, InferParameter> = message.parameters.into_iter().collect();
    for (name, parameter) in parameters {
        match (name.as_str(), &parameter.parameter_choice) {
            (EMPTY_FINAL_RESPONSE, Some(Choice::BoolParam(wanted))) => wants_end = *wanted,
            _ => read_parameter(name, parameter, &mut request)?,
        }
    }

    let has_raw = !message.raw_input_contents.is_empty();
    let mut raw = message.raw_input_contents.into_iter();
    request.inputs.reserve(message.inputs.len());
    for input in message.inputs {
        let input = read_input(services, input, has_raw, &mut raw, &request.model)?;
        request.inputs.push(input);
    }
    let mut outputs = Outputs::default();
    request.outputs.reserve(message.outputs.len());
    for output in message.outputs {
        let requested = read_output(services, output, &mut outputs)?;
        request.outputs.push(requested);
    }
    Ok(Decoded { request, outputs, is_decoupled, wants_end })
}

fn read_parameter(name: String, parameter: InferParameter, request: &mut Request) -> Result<(), Error> {
    let wrong_type =
        |expected: &str| Err(Error::invalid(format!("invalid value type for '{name}' parameter, expected {expected}")));
    let choice = parameter.parameter_choice;
    match name.as_str() {
        "sequence_id" => match choice {
            Some(Choice::Int64Param(id)) => request.sequence.id = CorrelationId::Int(id as u64),
            Some(Choice::StringParam(id)) => request.sequence.id = CorrelationId::String(id),
            _ => return wrong_type("int64_param or string_param."),
        },
        "sequence_start" => match choice {
            Some(Choice::BoolParam(start)) => request.sequence.start = start,
            _ => return wrong_type("bool_param."),
        },
        "sequence_end" => match choice {
            Some(Choice::BoolParam(end)) => request.sequence.end = end,
            _ => return wrong_type("bool_param."),
        },
        "priority" => match choice {
            Some(Choice::Int64Param(priority)) => {
                request.priority = u64::try_from(priority)
                    .map_err(|_| Error::invalid("invalid value for 'priority', expected value >= 0."))?;
            }
            Some(Choice::Uint64Param(priority)) => request.priority = priority,
            _ => return wrong_type("int64_param or uint64_param."),
        },
        "timeout" => match choice {
            // A negative one becomes endless, as in Triton.
            Some(Choice::Int64Param(timeout)) => request.timeout_us = timeout as u64,
            _ => return wrong_type("int64_param."),
        },
        EMPTY_FINAL_RESPONSE => return wrong_type("bool_param."),
        reserved if reserved.starts_with("triton_") => {
            return Err(Error::invalid(format!(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys \
                 starting with 'triton_' are allowed: {EMPTY_FINAL_RESPONSE}"
            )));
        }
        _ => {
            let value = match choice {
                Some(Choice::Int64Param(value)) => Parameter::Int(value),
                Some(Choice::BoolParam(value)) => Parameter::Bool(value),
                Some(Choice::StringParam(value)) => Parameter::String(value),
                Some(Choice::DoubleParam(value)) => Parameter::Double(value),
                Some(Choice::Uint64Param(_)) | None => {
                    return wrong_type("int64_param, bool_param, or string_param.");
                }
            };
            request.parameters.push((name, value));
        }
    }
    Ok(())
}

fn read_input(
    services: &Services,
    input: InferInputTensor,
    has_raw: bool,
    raw: &mut impl Iterator<Item = Bytes>,
    model: &str,
) -> Result<InputTensor, Error> {
    let dtype = wire::datatype(&input.datatype);
    let find = |name: &str| input.parameters.get(name);
    let place = read_place(services, &input.name, &find)?;
    let name = &input.name;
    let data = match (place, &input.contents) {
        (Some(_), Some(_)) => {
            return Err(Error::invalid(format!(
                "unexpected 'content' provided when using shared memory for input tensor '{name}' for model '{model}'"
            )));
        }
        (Some(place), None) => place.read()?,
        (None, Some(_)) if has_raw => {
            return Err(Error::invalid(format!(
                "contents field must not be specified when using raw_input_contents for '{name}' for model '{model}'"
            )));
        }
        (None, Some(contents)) => Buffer::foreign(read_contents(contents, name, dtype, model)?),
        (None, None) => match raw.next() {
            Some(bytes) => Buffer::foreign(bytes),
            None => {
                return Err(Error::invalid(format!(
                    "unable to find data for input tensor '{name}' for model '{model}' in request."
                )));
            }
        },
    };
    Ok(InputTensor { name: input.name, dtype, shape: input.shape, data })
}

/// Whether a message has so many elements one by one that it takes long to bring them into wire form.
pub(super) fn is_long(message: &ModelInferRequest) -> bool {
    let elements = |contents: &InferTensorContents| {
        let InferTensorContents { bool_contents, int_contents, int64_contents, uint_contents, uint64_contents, .. } =
            contents;
        let InferTensorContents { fp32_contents, fp64_contents, bytes_contents, .. } = contents;
        let integers = int_contents.len() + int64_contents.len() + uint_contents.len() + uint64_contents.len();
        bool_contents.len() + integers + fp32_contents.len() + fp64_contents.len() + bytes_contents.len()
    };
    let all = message.inputs.iter().filter_map(|input| input.contents.as_ref()).map(elements);
    all.sum::<usize>() * size_of::<f32>() > BYTES_MAX
}

/// The typed contents in wire form.
fn read_contents(
    contents: &InferTensorContents,
    name: &str,
    dtype: Option<DType>,
    model: &str,
) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    // Checks that a field fits the type of the input and is the only one.
    let check = |is_first: bool, field: DType| {
        if !is_first {
            return Err(Error::invalid(format!(
                "unexpected explicit tensor data for input tensor '{name}' for model '{model}', binary data was already \
                 supplied."
            )));
        }
        if dtype != Some(field) {
            return Err(Error::invalid(format!(
                "unexpected explicit tensor data for input tensor '{name}' for model '{model}' of type '{}', expected \
                 datatype '{}'",
                wire::datatype_name(field),
                dtype.map_or("<invalid>", wire::datatype_name)
            )));
        }
        Ok(())
    };
    macro_rules! field {
        ($values:expr, $dtype:expr, |$value:ident| $convert:expr) => {
            if !$values.is_empty() {
                check(bytes.is_empty(), $dtype)?;
                $values.iter().for_each(|$value| bytes.extend_from_slice(&$convert));
            }
        };
    }
    field!(contents.bool_contents, DType::Bool, |value| [u8::from(*value)]);
    match dtype {
        Some(DType::I8) => field!(contents.int_contents, DType::I8, |value| (*value as i8).to_le_bytes()),
        Some(DType::I16) => field!(contents.int_contents, DType::I16, |value| (*value as i16).to_le_bytes()),
        _ => field!(contents.int_contents, DType::I32, |value| value.to_le_bytes()),
    }
    field!(contents.int64_contents, DType::I64, |value| value.to_le_bytes());
    match dtype {
        Some(DType::U8) => field!(contents.uint_contents, DType::U8, |value| (*value as u8).to_le_bytes()),
        Some(DType::U16) => field!(contents.uint_contents, DType::U16, |value| (*value as u16).to_le_bytes()),
        _ => field!(contents.uint_contents, DType::U32, |value| value.to_le_bytes()),
    }
    field!(contents.uint64_contents, DType::U64, |value| value.to_le_bytes());
    field!(contents.fp32_contents, DType::F32, |value| value.to_le_bytes());
    field!(contents.fp64_contents, DType::F64, |value| value.to_le_bytes());
    if !contents.bytes_contents.is_empty() {
        check(bytes.is_empty(), DType::String)?;
        for string in &contents.bytes_contents {
            // No message is large enough for a longer one.
            wire::push_string(&mut bytes, string)
                .ok_or_else(|| Error::invalid(format!("a string of input '{name}' has 4 GiB or more")))?;
        }
    }
    Ok(bytes)
}

fn read_output(
    services: &Services,
    output: InferRequestedOutputTensor,
    outputs: &mut Outputs,
) -> Result<RequestedOutput, Error> {
    let find = |name: &str| output.parameters.get(name);
    let place = read_place(services, &output.name, &find)?;
    let classification = match find("classification").map(|parameter| &parameter.parameter_choice) {
        None => 0,
        Some(Some(Choice::Int64Param(count))) if *count > 0 => u32::try_from(*count).unwrap_or(u32::MAX),
        Some(Some(Choice::Int64Param(_))) => {
            return Err(Error::invalid("invalid value for 'classification' parameter, expected >= 0"));
        }
        Some(_) => {
            let message = "invalid value type for 'classification' parameter, expected int64_param";
            return Err(Error::invalid(message));
        }
    };
    if let Some(place) = place {
        if classification > 0 {
            return Err(Error::invalid("output can't set both 'shared_memory_region' and 'classification'"));
        }
        outputs.0.push((output.name.clone(), place));
    }
    Ok(RequestedOutput { name: output.name, classification })
}

/// The part of shared memory that the parameters of a tensor speak of.
fn read_place<'p>(
    services: &Services,
    tensor: &str,
    find: &impl Fn(&str) -> Option<&'p InferParameter>,
) -> Result<Option<Place>, Error> {
    let choice = |name: &str| find(name).map(|parameter| &parameter.parameter_choice);
    let wrong_type = |name: &str, expected: &str| {
        Error::invalid(format!("invalid value type for '{name}' parameter for tensor '{tensor}', expected {expected}."))
    };
    let region = match choice("shared_memory_region") {
        None => return Ok(None),
        Some(Some(Choice::StringParam(region))) => region,
        Some(_) => return Err(wrong_type("shared_memory_region", "string_param")),
    };
    let number = |name: &str| match choice(name) {
        None => Ok(None),
        // A negative number becomes one that lies outside every region.
        Some(Some(Choice::Int64Param(value))) => Ok(Some(*value as u64)),
        Some(_) => Err(wrong_type(name, "int64_param")),
    };
    let offset = number("shared_memory_offset")?.unwrap_or(0);
    let len = number("shared_memory_byte_size")?.ok_or_else(|| {
        Error::invalid(format!(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor \
             '{tensor}'"
        ))
    })?;
    services.regions.place(region, offset, len).map(Some)
}

/// Whether a header is the protocol's own, and no metadata of the call.
fn is_of_transport(name: &str) -> bool {
    matches!(name, "content-type" | "te") || name.starts_with("grpc-")
}

/// Metadata whose names match become parameters, that in bytes as the text in it.
pub(super) fn forward_headers(
    metadata: &MetadataMap,
    pattern: &regex::Regex,
    request: &mut Request,
) -> Result<(), Error> {
    for entry in metadata.iter() {
        let (name, value) = match &entry {
            KeyAndValueRef::Ascii(name, value) => (name.as_str(), value.to_bytes()),
            KeyAndValueRef::Binary(name, value) => (name.as_str(), value.to_bytes()),
        };
        if is_of_transport(name) || !pattern.is_match(name) {
            continue;
        }
        check_forwarded(name)?;
        // What cannot be read comes from a client that breaks the protocol: it stands for nothing.
        let value = String::from_utf8_lossy(&value.unwrap_or_default()).into_owned();
        request.parameters.push((name.to_owned(), Parameter::String(value)));
    }
    Ok(())
}
