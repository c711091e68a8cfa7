//! The command line.

use crate::commands;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Inference server that speaks Triton's protocols and runs ONNX models on its own engine.
#[derive(Debug, Parser)]
#[command(name = "halimede", version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(commands::check::Args),
}

/// Runs the command that the arguments of this process name.
pub fn run() -> ExitCode {
    match Cli::parse().command {
        Command::Check(args) => commands::check::run(&args),
    }
}
