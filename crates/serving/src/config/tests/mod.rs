//! Tests of the whole way of a configuration.

mod completion;
mod ensembles;
mod json;
mod rendering;
mod roundtrip;
mod text;
mod validation;

use std::path::Path;

use super::*;

/// Reads a configuration that is known to be readable.
fn read(text: &str) -> ModelConfig {
    parse(text, Path::new("config.pbtxt")).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The text of the error that reading gives.
fn read_error(text: &str) -> String {
    let error = parse(text, Path::new("m/config.pbtxt")).expect_err(text);
    assert_eq!(error.code, crate::Code::Internal);
    let message = error.message.strip_prefix("failed to read text proto from m/config.pbtxt: ");
    message.unwrap_or_else(|| panic!("no path: {}", error.message)).to_owned()
}
