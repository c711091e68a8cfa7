//! `halimede doctor`: what this machine has, and what becomes of a repository's models here.

pub(super) mod remedies;
mod repository;

use std::{
    io::{self, BufRead, Write},
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use halimede_compute::tuning::Probe;
use halimede_compute_cpu::{Blas, HalfMatrix, IntegerMatrix, Matrix, MatrixUnits, rates};
use halimede_platform::{
    chip::{Cache, Chip},
    limits, memory, threads,
};

use crate::units::{self, Choice};

/// Print the compute units, instruction sets, caches and memory of this machine, and whether its speed is
/// steady enough to measure; or, of model repositories, whether each model loads here, what is done otherwise, and the way
/// out for those that do not load.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folders of models as Triton has them. Each model is loaded, its own code included, and unloaded.
    #[arg(value_name = "REPOSITORY")]
    repositories: Vec<PathBuf>,
    #[command(flatten)]
    serve: repository::ServeFlags,
    /// Of repositories: print a JSON array.
    #[arg(long, requires = "repositories")]
    json: bool,
    /// How long to watch the speed.
    #[arg(long, default_value = "1", value_parser = super::seconds)]
    seconds: Duration,
    /// Print nothing of that, but for each line on standard input one line with the rates of this moment,
    /// `{"f32_gflops":…,"l1_read_gbps":…}`, and with two cores and more `"core_to_core_ns":…`: for those who measure on a machine
    /// whose speed changes.
    #[arg(long, conflicts_with = "repositories")]
    probe: bool,
    /// Look at the machine as a server with this flag uses it: without a matrix unit and without Accelerate.
    #[arg(long, conflicts_with_all = ["repositories", "probe"])]
    disable_matrix: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> ExitCode {
    if args.probe {
        return super::exit_code(answer_probes().map_err(Into::into));
    }
    if !args.repositories.is_empty() {
        return match repository::examine(&args.repositories, &args.serve, args.json) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => super::exit_code(Err(error.into())),
        };
    }
    let chip = Chip::detect();
    let unknown = || "unknown".to_owned();
    println!("chip      {}", chip.brand.clone().unwrap_or_else(unknown));
    println!("          {} ({})", chip.microarchitecture().unwrap_or("microarchitecture unknown"), chip.key());
    println!("features  {}", chip.features);
    let caches = &chip.caches;
    for (name, cache) in [("L1 data", caches.l1d), ("L2", caches.l2), ("L3", caches.l3)] {
        println!("cache     {name}: {}", cache.map_or_else(unknown, describe));
    }
    match threads::cores() {
        Ok(cores) => {
            let counts = threads::core_counts(&cores);
            println!(
                "cores     {} for this process; {} physical, of which {} fast and {} efficient",
                threads::parallelism(),
                counts.physical,
                counts.performance,
                counts.efficiency
            );
        }
        Err(error) => println!("cores     {} ({error})", threads::parallelism()),
    }
    match rates::core_to_core() {
        Some(seconds) => {
            println!("          a cache line goes from the first core to the second in {:.0} ns", seconds * 1e9)
        }
        None => println!("          from the first core to the second: unavailable"),
    }
    let machine = memory::machine();
    let size = |bytes: Option<u64>| {
        bytes.map_or_else(unknown, |bytes| format!("{:.1} GiB", bytes as f64 / 1e9 * 0.931_322_575))
    };
    println!("memory    {} in all, {} available", size(machine.total), size(machine.available));
    if let Some(limit) = machine.limit {
        println!("          this process may use {}", size(Some(limit)));
    }
    if let Ok(files) = limits::open_files() {
        println!("files     {} open files at once, {} at most", files.soft, files.hard);
    }
    for name in units::NAMES {
        match units::find(name, Choice { matrix: units::matrix_units(!args.disable_matrix), ..Choice::default() }) {
            Ok(unit) => {
                let unit = unit.describe();
                println!(
                    "unit      {name}: {} threads, kernels for {}, precision {}",
                    unit.threads,
                    unit.features.join(" "),
                    unit.precisions.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
                );
            }
            Err(error) => println!("unit      {name}: {error}"),
        }
    }
    print_rates(args.seconds, !args.disable_matrix);
    ExitCode::SUCCESS
}

/// What else multiplies in f32, in bf16 and in integers, and how fast on one thread.
fn print_matrix_units(may_be_used: bool) {
    if !may_be_used {
        println!("          matrix units are disabled: balanced precision is exact");
        return;
    }
    let coprocessors: Vec<&str> = Matrix::available()
        .into_iter()
        .map(Matrix::name)
        .filter(|name| name.starts_with("amx") || name.starts_with("sme"))
        .collect();
    match &coprocessors[..] {
        [] => {
            println!("          no matrix coprocessor is used for bf16: there is no Intel AMX, and no SME of Arm, here")
        }
        names => println!("          matrix coprocessor: {}", names.join(" ")),
    }
    match Blas::available() {
        Some(blas) => println!("          {:.1} GFLOP/s in f32 by the system's {}", blas.peak() / 1e9, blas.name()),
        None => println!("          no library of this system multiplies f32: Accelerate of macOS does"),
    }
    if let Some(blas) = Blas::fastest() {
        println!("          products of f32 in whole matrices run on {}", blas.name());
    }
    for matrix in Matrix::available() {
        println!("          {:.1} GFLOP/s in bf16 on {}", matrix.peak() / 1e9, matrix.name());
    }
    for matrix in HalfMatrix::available() {
        println!("          {:.1} GFLOP/s in f16 on {}", matrix.peak() / 1e9, matrix.name());
    }
    for matrix in IntegerMatrix::available() {
        println!("          {:.1} GFLOP/s in int8 on {}", matrix.peak() / 1e9, matrix.name());
    }
    match MatrixUnits::default().balanced_by() {
        Some(by) => println!("          balanced precision multiplies on {by}"),
        None => println!("          nothing faster than f32 here: balanced precision is exact"),
    }
}

fn describe(cache: Cache) -> String {
    let shared = cache.shared_by.map_or(String::new(), |count| format!(", shared by {count} hardware threads"));
    format!("{} KiB{shared}", cache.bytes / 1024)
}

/// What a probe tells of this moment.
#[derive(serde::Serialize)]
struct Moment {
    #[serde(flatten)]
    rates: Probe,
    /// Where there are two cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    core_to_core_ns: Option<f64>,
}

impl Moment {
    fn now() -> Moment {
        Moment { rates: rates::probe(), core_to_core_ns: rates::core_to_core().map(|seconds| seconds * 1e9) }
    }
}

/// A line with a [`Moment`] for every line of standard input.
fn answer_probes() -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "READY {{}}")?;
    out.flush()?;
    for line in io::stdin().lock().lines() {
        line?;
        writeln!(out, "{}", serde_json::to_string(&Moment::now())?)?;
        out.flush()?;
    }
    Ok(())
}

fn print_rates(duration: Duration, may_use_matrix: bool) {
    let mut samples = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < duration || samples.len() < 10 {
        samples.push(rates::probe());
    }
    let Some(best) = samples.iter().copied().reduce(Probe::best) else { return };
    let slow = samples.iter().filter(|sample| sample.is_slow(best)).count();
    let share = slow as f64 / samples.len() as f64 * 100.0;
    println!(
        "rates     one thread at best: {:.1} GFLOP/s in f32, {:.1} GB/s from the first-level cache",
        best.f32_gflops, best.l1_read_gbps
    );
    print_matrix_units(may_use_matrix);
    println!("          {share:.0} % of {} samples slow", samples.len());
    if share > 10.0 {
        println!("          the machine is not steady now: measure again later, and compare only interleaved runs");
    }
}
