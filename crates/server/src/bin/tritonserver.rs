//! The server under the name that scripts for Triton start.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    halimede_server::cli::run_tritonserver()
}
