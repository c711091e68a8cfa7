//! `halimede check`: runs ONNX test cases and says what is right.

use crate::units::{self, Choice};
use halimede_compute::{ModelOptions, Precision};
use halimede_conformance::{
    CheckOptions, ExpectedFailures, ReferenceRunner, Report, Runner, Tolerance, UnitRunner, check, discover,
};
use halimede_graph::passes::PassOptions;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Run ONNX test cases and compare the outputs with the expected ones.
///
/// A case is a folder with model.onnx and test_data_set_*/input_*.pb, output_*.pb. Exits with 0 only
/// when nothing failed, or when exactly the expected cases did.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folders of a case, folders of such folders, or models with their data beside them.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// What runs the models: a compute unit, or `reference` for the plain definitions.
    #[arg(long, default_value = "cpu")]
    unit: String,
    /// Largest difference allowed, relative to the expected value.
    #[arg(long, default_value_t = Tolerance::default().rtol)]
    rtol: f64,
    /// Largest difference allowed beside that.
    #[arg(long, default_value_t = Tolerance::default().atol)]
    atol: f64,
    /// The rewrites of the graph that come before it runs.
    #[arg(long, value_enum, default_value_t = Switch::On)]
    passes: Switch,
    /// How exactly to compute: exact (f32), balanced (products of bf16), or fast (products of 8-bit integers, calibrated
    /// on each case's inputs), which need wider tolerances.
    #[arg(long, default_value_t)]
    precision: Precision,
    /// Print one JSON object instead of lines.
    #[arg(long)]
    json: bool,
    /// Name every passed case in which some node ran by reference evaluation.
    #[arg(long)]
    list_reference: bool,
    /// Write the failures to a file that --expected-failures reads.
    #[arg(long, value_name = "FILE")]
    list_failures: Option<PathBuf>,
    /// Cases that are known to fail, `case: reason` a line. Another failure is an error, and so is a
    /// listed case that passes, but for `?case: reason`, which chance decides.
    #[arg(long, value_name = "FILE")]
    expected_failures: Option<PathBuf>,
    /// Seconds after which a run of a case is given up. Not for `--unit reference`.
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = super::seconds)]
    timeout: Duration,
    /// Cases that run at the same time; as many as there are cores when left out.
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

/// Runs the command.
pub fn run(args: &Args) -> ExitCode {
    match execute(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn execute(args: &Args) -> Result<bool, Box<dyn Error>> {
    let expected = args.expected_failures.as_deref().map(read_expected).transpose()?;
    let mut cases = Vec::new();
    for path in &args.paths {
        cases.extend(discover(path)?);
    }
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let options = CheckOptions {
        tolerance: Tolerance { rtol: args.rtol, atol: args.atol },
        threads: args.jobs.unwrap_or_else(cores),
        passes: (args.passes == Switch::On).then(PassOptions::default),
    };
    let report = match args.unit.as_str() {
        "reference" => check(&cases, &ReferenceRunner as &dyn Runner, &options),
        name => {
            // The cases run side by side; a unit with threads of its own would only get in their way.
            let unit = units::find(name, Choice { threads: Some(1), ..Choice::default() })?;
            // `check` has run the passes, or left them out, itself.
            let compile = ModelOptions { passes: None, compile: args.precision.into() };
            check(&cases, &UnitRunner::new(&*unit, compile).within(args.timeout), &options)
        }
    };
    if let Some(path) = &args.list_failures {
        std::fs::write(path, ExpectedFailures::of(&report))
            .map_err(|error| format!("cannot write '{}': {error}", path.display()))?;
    }
    let differences = expected.map(|expected| expected.differences(&report));
    print(args, &report, differences.as_deref())?;
    Ok(match differences {
        Some(differences) => differences.is_empty(),
        // Who checked nothing must not believe that all is well.
        None => report.failed == 0 && report.passed > 0,
    })
}

fn read_expected(path: &Path) -> Result<ExpectedFailures, Box<dyn Error>> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read '{}': {error}", path.display()))?;
    Ok(ExpectedFailures::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?)
}

fn print(args: &Args, report: &Report, differences: Option<&[String]>) -> Result<(), Box<dyn Error>> {
    if args.json {
        println!("{}", serde_json::to_string(report)?);
        return Ok(());
    }
    match differences {
        Some(differences) => differences.iter().for_each(|difference| println!("{difference}")),
        None => report.failures.iter().for_each(|failure| println!("FAIL {failure}")),
    }
    if args.list_reference {
        report.by_reference.iter().for_each(|case| println!("by reference: {case}"));
    }
    println!("{}", report.summary());
    if report.passed + report.failed == 0 {
        eprintln!("nothing was checked: a case is a model.onnx beside folders test_data_set_*");
    }
    Ok(())
}
