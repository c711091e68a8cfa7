//! A response to a message.

use bytes::Bytes;
use halimede_serving::{Error, Parameter, Response, wire};

use super::{
    super::proto::{
        InferParameter, ModelInferResponse, infer_parameter::ParameterChoice as Choice,
        model_infer_response::InferOutputTensor,
    },
    decode::Outputs,
};
use crate::http::share;

/// The message of a response. Outputs that go to shared memory are written there and leave an empty place
/// in the message.
pub(in super::super) fn encode(response: Response, outputs: &Outputs) -> Result<ModelInferResponse, Error> {
    if let Some(error) = response.error {
        return Err(error);
    }
    let mut message = ModelInferResponse {
        model_name: response.model,
        model_version: response.version.to_string(),
        id: response.id,
        parameters: response.parameters.into_iter().map(|(name, value)| (name, parameter(value))).collect(),
        outputs: Vec::with_capacity(response.outputs.len()),
        raw_output_contents: Vec::with_capacity(response.outputs.len()),
    };
    for output in response.outputs {
        let raw = match outputs.place(&output.name) {
            Some(place) => {
                place.write(&output.name, &output.data)?;
                Bytes::new()
            }
            None => share(output.data),
        };
        message.raw_output_contents.push(raw);
        message.outputs.push(InferOutputTensor {
            name: output.name,
            datatype: wire::datatype_name(output.dtype).to_owned(),
            shape: output.shape,
            ..InferOutputTensor::default()
        });
    }
    Ok(message)
}

fn parameter(value: Parameter) -> InferParameter {
    let choice = match value {
        Parameter::String(value) => Choice::StringParam(value),
        Parameter::Int(value) => Choice::Int64Param(value),
        Parameter::Bool(value) => Choice::BoolParam(value),
        Parameter::Double(value) => Choice::DoubleParam(value),
    };
    InferParameter { parameter_choice: Some(choice) }
}
