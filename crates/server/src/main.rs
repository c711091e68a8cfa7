//! The `halimede` command.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    halimede_server::cli::run()
}
