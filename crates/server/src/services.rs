//! What the protocols share.

use std::sync::Arc;

use halimede_serving::{Error, Request, Server};

use crate::{
    event_loops::{BYTES_MAX, aside},
    logging::Logging,
    restricted::Restrictions,
    rooms::Rooms,
    shared_memory::Regions,
    traces::Tracing,
    ui::Ui,
};

/// What a connection needs to answer requests.
#[derive(Debug)]
pub(crate) struct Services {
    pub server: Arc<Server>,
    pub regions: Regions,
    pub logging: Arc<Logging>,
    pub tracing: Tracing,
    pub ui: Ui,
    pub rooms: Rooms,
    /// Most bytes of JSON, of a raw tensor, and of what was decompressed.
    pub http_input_bytes_max: usize,
    /// Most bytes of a body, binary tensors included.
    pub http_body_bytes_max: usize,
    pub http_restrictions: Restrictions,
    pub http_forward_headers: Option<regex::Regex>,
    pub grpc_forward_headers: Option<regex::Regex>,
}

impl Services {
    /// Hands a request to the server. What that does with it at once, such as a key for a cache, takes the longer the more
    /// bytes there are.
    pub fn infer(&self, request: Request) {
        let bytes = request.inputs.iter().map(|input| input.data.len()).sum::<usize>();
        aside(bytes > BYTES_MAX, || self.server.infer(request));
    }
}

/// Names that headers must not have where they become parameters: the protocol means something by them.
const RESERVED_PARAMETERS: [&str; 7] =
    ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"];

/// Refuses a header that is to become a parameter of its name and must not.
pub(crate) fn check_forwarded(header: &str) -> Result<(), Error> {
    if RESERVED_PARAMETERS.contains(&header) || header.starts_with("triton_") {
        let text = format!("Header '{header}' is reserved for Triton usage and cannot be forwarded.");
        return Err(Error::invalid(text));
    }
    Ok(())
}

/// Reads a model version as a client spells it; empty asks for the newest, as -1 does inside Triton.
pub(crate) fn model_version(text: &str) -> Result<Option<i64>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    // C's strtol: white space, a sign, digits; what follows is ignored.
    let trimmed = text.trim_start();
    let digits = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed);
    let len = trimmed.len() - digits.len() + digits.bytes().take_while(u8::is_ascii_digit).count();
    let version: i64 = trimmed[..len].parse().map_err(|_| {
        Error::invalid(format!(
            "failed to get model version from specified version string '{text}' (details: stol), version should be an \
             integral value > 0"
        ))
    })?;
    if version < 0 {
        return Err(Error::invalid(format!(
            "invalid model version specified '{text}' , version should be an integral value > 0"
        )));
    }
    Ok(Some(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(model_version("").unwrap(), None);
        assert_eq!(model_version(" +12x").unwrap(), Some(12));
        assert!(model_version("x").unwrap_err().message.contains("(details: stol)"));
        assert!(model_version("99999999999999999999").unwrap_err().message.contains("(details: stol)"));
        assert!(model_version("-2").unwrap_err().message.starts_with("invalid model version specified '-2' ,"));
    }
}
