//! The model repository extension: index, load and unload.

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use halimede_serving::{Error, IndexEntry, LoadParameters, Server};
use halimede_tensor::Buffer;

use crate::{
    grpc::proto::{self, model_repository_parameter::ParameterChoice as Choice},
    json::{Document, Writer},
    percent,
};

/// Base64 with or without padding, as clients send it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Prefix of parameters that hold files.
const FILE_PREFIX: &str = "file:";

/// The index; the body may ask for models that are ready only.
pub(crate) fn http_index(server: &Server, body: &[u8]) -> Result<Vec<u8>, Error> {
    let mut ready_only = false;
    if !body.is_empty() {
        let document = Document::parse(body)?;
        ready_only = match document.root().find("ready") {
            None => false,
            // 2.51.0 ends where this nests too deep; later versions say this.
            Some(ready) if ready.scalar().is_none() => {
                return Err(Error::invalid("Invalid value for 'ready': expected a boolean"));
            }
            Some(ready) => ready.boolean()?,
        };
    }
    let mut writer = Writer::default();
    writer.begin_array();
    for entry in server.repository_index(ready_only)? {
        write(&mut writer, &entry);
    }
    writer.end_array();
    Ok(writer.into_bytes())
}

fn write(writer: &mut Writer, entry: &IndexEntry) {
    writer.begin_object();
    writer.member("name", &entry.name);
    if let Some(version) = entry.version {
        writer.member("version", &version.to_string());
    }
    if let Some(state) = entry.state {
        writer.member("state", state.name());
    }
    if !entry.reason.is_empty() {
        writer.member("reason", &entry.reason);
    }
    writer.end_object();
}

/// Loads a model; the body may replace its configuration and files.
pub(crate) fn http_load(server: &Server, model: &str, body: &[u8]) -> Result<(), Error> {
    let mut load = LoadParameters::default();
    if !body.is_empty() {
        let document = Document::parse(body)?;
        if let Some(parameters) = document.root().find("parameters") {
            for (name, value) in parameters.members()? {
                let value = value.text()?;
                match name.strip_prefix(FILE_PREFIX) {
                    Some(path) => load.files.push((path.to_owned(), file(path, &value)?)),
                    None if name == "config" => load.config = Some(value.into_owned()),
                    None => return Err(Error::internal("unexpected error on creating Triton parameter")),
                }
            }
        }
    }
    server.load(meant_of_all(server, model).as_deref().unwrap_or(model), load)
}

/// The model that a name in a path is the percent-encoding of, where none of `models` has the name as it stands. Triton decodes no
/// path, so that this goes first; but no browser can send a blank or an `ü` there.
pub(crate) fn meant(name: &str, models: impl FnOnce() -> Vec<IndexEntry>) -> Option<String> {
    // Nearly all names are plain, and cost nothing.
    let decoded = name.contains('%').then(|| percent::decoded(name).0)?;
    let decoded = String::from_utf8(decoded).ok()?;
    let models = models();
    let is_there = |name: &str| models.iter().any(|entry| entry.name == name);
    (!is_there(name) && is_there(&decoded)).then_some(decoded)
}

/// The same, of the models that may be loaded.
fn meant_of_all(server: &Server, name: &str) -> Option<String> {
    meant(name, || server.repository_index(false).unwrap_or_default())
}

fn file(path: &str, text: &str) -> Result<Buffer, Error> {
    // Some encoders break lines.
    let text: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let bytes = BASE64.decode(text);
    bytes.map(Buffer::foreign).map_err(|error| Error::invalid(format!("parameter 'file:{path}' is no base64: {error}")))
}

/// Unloads a model, and with it the models that only it uses if the body says so.
pub(crate) fn http_unload(server: &Server, model: &str, body: &[u8]) -> Result<(), Error> {
    let mut dependents = false;
    if !body.is_empty() {
        let document = Document::parse(body)?;
        let parameters = document.root().find("parameters");
        if let Some(value) = parameters.and_then(|parameters| parameters.find("unload_dependents")) {
            dependents = value.boolean().map_err(|error| Error {
                message: format!("Unable to parse 'unload_dependents': {}", error.message),
                ..error
            })?;
        }
    }
    server.unload(meant_of_all(server, model).as_deref().unwrap_or(model), dependents)
}

/// The index for gRPC.
pub(crate) fn grpc_index(
    server: &Server,
    request: &proto::RepositoryIndexRequest,
) -> Result<proto::RepositoryIndexResponse, Error> {
    check_repository(&request.repository_name)?;
    let entry = |entry: IndexEntry| proto::repository_index_response::ModelIndex {
        name: entry.name,
        version: entry.version.map_or(String::new(), |version| version.to_string()),
        state: entry.state.map_or(String::new(), |state| state.name().to_owned()),
        reason: entry.reason,
    };
    let models = server.repository_index(request.ready)?.into_iter().map(entry).collect();
    Ok(proto::RepositoryIndexResponse { models })
}

fn check_repository(name: &str) -> Result<(), Error> {
    match name {
        "" => Ok(()),
        _ => Err(Error::unsupported("'repository_name' specification is not supported")),
    }
}

/// Loads a model; the parameters may replace its configuration and files.
pub(crate) fn grpc_load(server: &Server, request: proto::RepositoryModelLoadRequest) -> Result<(), Error> {
    check_repository(&request.repository_name)?;
    let wrong_type = |name: &str, expected: &str| {
        Error::invalid(format!("invalid value type for load parameter '{name}', expected {expected}."))
    };
    let mut load = LoadParameters::default();
    for (name, parameter) in request.parameters {
        match (name.strip_prefix(FILE_PREFIX), parameter.parameter_choice) {
            (Some(path), Some(Choice::BytesParam(bytes))) => {
                load.files.push((path.to_owned(), Buffer::foreign(bytes)));
            }
            (Some(_), _) => return Err(wrong_type(&name, "bytes_param")),
            (None, Some(Choice::StringParam(config))) if name == "config" => load.config = Some(config),
            (None, _) if name == "config" => return Err(wrong_type(&name, "string_param")),
            (None, _) => return Err(Error::invalid(format!("unrecognized load parameter '{name}'."))),
        }
    }
    server.load(&request.model_name, load)
}

/// Unloads a model, and with it the models that only it uses if the parameters say so.
pub(crate) fn grpc_unload(server: &Server, request: &proto::RepositoryModelUnloadRequest) -> Result<(), Error> {
    check_repository(&request.repository_name)?;
    let dependents = match request.parameters.get("unload_dependents").map(|parameter| &parameter.parameter_choice) {
        None => false,
        Some(Some(Choice::BoolParam(dependents))) => *dependents,
        Some(_) => {
            let message = "invalid value type for 'unload_dependents' parameter, expected bool_param.";
            return Err(Error::invalid(message));
        }
    };
    server.unload(&request.model_name, dependents)
}
