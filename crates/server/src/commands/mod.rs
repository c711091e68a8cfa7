//! One file per verb of the command line, and what several of them share.

pub mod bench;
pub mod check;
pub mod doctor;
pub mod explain;
mod inputs;
mod model;
pub mod quantize;
mod roofs;
pub mod run;
pub mod serve;
pub mod tune;

use std::{error::Error, process::ExitCode, time::Duration};

/// What the process ends with; an error is printed.
fn exit_code(result: Result<(), Box<dyn Error>>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A duration on the command line, in seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().map_err(|_| format!("'{text}' is no number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
