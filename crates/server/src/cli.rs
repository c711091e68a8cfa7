//! The command line.

use crate::commands::{self, serve::Name};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Inference server that speaks Triton's protocols and runs ONNX models on its own engine.
#[derive(Debug, Parser)]
#[command(name = "halimede", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve model repositories over HTTP and gRPC.
    Serve(commands::serve::Args),
    Run(commands::run::Args),
    Bench(commands::bench::Args),
    Explain(commands::explain::Args),
    Check(commands::check::Args),
    Quantize(commands::quantize::Args),
    Tune(commands::tune::Args),
    Doctor(commands::doctor::Args),
}

/// Runs the command that the arguments of this process name. Started as `tritonserver`, that is the server.
pub fn run() -> ExitCode {
    let own_name = std::env::args().next().unwrap_or_default();
    if commands::serve::is_tritonserver(&own_name) {
        return run_tritonserver();
    }
    // `--help` prints, too, and the server has its own way with what nobody reads.
    let serves = std::env::args().nth(1).is_some_and(|verb| verb == "serve");
    if !serves {
        halimede_platform::signals::end_with_reader();
    }
    match Cli::parse().command {
        Command::Serve(args) => commands::serve::run(&args.flags, Name::Halimede),
        Command::Run(args) => commands::run::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Explain(args) => commands::explain::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::Quantize(args) => commands::quantize::run(&args),
        Command::Tune(args) => commands::tune::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
    }
}

/// Runs the server with the flags in the arguments of this process.
pub fn run_tritonserver() -> ExitCode {
    let flags: Vec<String> = std::env::args().skip(1).collect();
    commands::serve::run(&flags, Name::Tritonserver)
}
