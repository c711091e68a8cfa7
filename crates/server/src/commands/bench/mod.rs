//! `halimede bench`: how long a model takes, and the kernels by themselves.

mod cases;
mod suite;

use std::{
    error::Error,
    io::{self, BufRead, Write},
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use halimede_compute::{RunError, Session};
use halimede_platform::{chip::Chip, cpu_time};
use halimede_tensor::Value;
use serde_json::json;

use super::{
    inputs,
    model::{self, ModelArgs, UnitArgs},
};

/// Measure latency and throughput of a model, or of the engine's kernels by themselves.
///
/// A model runs on made-up inputs unless they are given; unknown dimensions are 1.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: Option<ModelArgs>,
    #[command(flatten)]
    on: UnitArgs,
    /// Instead of a model, the kernels whose names contain a NAME; all when none is given. Products,
    /// ResNet-50's convolutions, attention, norms and reading memory, each beside what this machine can do.
    #[arg(
        long,
        value_name = "NAME",
        num_args = 0..,
        conflicts_with_all = ["ModelArgs", "inputs", "interactive"],
        required_unless_present = "path"
    )]
    suite: Option<Vec<String>>,
    /// Arrays for the inputs, by name. Given several times, a run computes them all one after the other.
    #[arg(long, value_name = "FILE.npz")]
    inputs: Vec<PathBuf>,
    /// How long to measure: a model, or each kernel. 3 for a model, 0.5 for a kernel when left out.
    #[arg(long, value_parser = super::seconds)]
    seconds: Option<Duration>,
    /// Runs before measuring.
    #[arg(long, default_value_t = 3)]
    warmup: usize,
    /// Print one JSON object instead of lines.
    #[arg(long)]
    json: bool,
    /// Print `READY {…}` once loaded, then answer each line `run SECONDS MIN_ITERATIONS` on standard input
    /// with one line `{"lat":[…],"cpu":[…]}` in seconds; end at end of file.
    #[arg(long)]
    interactive: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> ExitCode {
    super::exit_code(execute(args))
}

/// Times of runs in seconds, one after the other.
#[derive(Debug, Default, serde::Serialize)]
struct Times {
    lat: Vec<f64>,
    /// Processor time of all threads.
    cpu: Vec<f64>,
}

fn execute(args: &Args) -> Result<(), Box<dyn Error>> {
    let Some(model) = &args.model else {
        let names = args.suite.as_deref().unwrap_or_default();
        return suite::run(names, &args.on, args.seconds.unwrap_or(Duration::from_millis(500)), args.json);
    };
    let start = Instant::now();
    let unit = args.on.find()?;
    let (read, _) = model.read()?;
    let feeds: Vec<Vec<Value>> = match args.inputs.as_slice() {
        [] => vec![inputs::collect(&read, &model.input, None)?],
        files => files.iter().map(|file| inputs::collect(&read, &model.input, Some(file))).collect::<Result<_, _>>()?,
    };
    let compiled = model.compile(read, &*unit, &args.on, &feeds)?;
    let load_seconds = start.elapsed().as_secs_f64();
    let mut session = compiled.session();
    for _ in 0..args.warmup.max(1) {
        feeds.iter().try_for_each(|inputs| session.run_within(inputs, args.on.timeout))?;
    }
    let footprint = compiled.footprint();
    let facts = json!({
        "model": model.path,
        "unit": args.on.unit,
        "precision": args.on.precision.to_string(),
        "threads": args.on.threads(),
        "chip": Chip::detect().key(),
        "load_seconds": load_seconds,
        "arena_bytes": session.arena_bytes(),
        "packed_bytes": footprint.packed.total(),
        "weights_bytes": footprint.weights,
        "memory_bytes": footprint.private() + session.memory_bytes(),
        "mapped_bytes": footprint.mapped(),
        "kernels": session.coverage().kernels,
        "reference": session.coverage().reference,
        "inputs": feeds[0].iter().map(model::describe).collect::<Vec<_>>(),
    });
    if args.interactive {
        return interactive(&facts, &mut session, &feeds);
    }
    let duration = args.seconds.unwrap_or(Duration::from_secs(3));
    let times = measure(&mut session, &feeds, duration, 1, || {})?;
    report(args.json, facts, &times)
}

/// One run: the answers to all feeds.
fn run_all(session: &mut Session, feeds: &[Vec<Value>]) -> Result<(), RunError> {
    feeds.iter().try_for_each(|inputs| session.run(inputs))
}

/// Runs for at least so long and so often, each run after `before_each`.
fn measure(
    session: &mut Session,
    feeds: &[Vec<Value>],
    duration: Duration,
    iterations_min: usize,
    before_each: impl Fn(),
) -> Result<Times, Box<dyn Error>> {
    timed(duration, iterations_min, before_each, || Ok(run_all(session, feeds)?))
}

/// Times of anything.
fn timed(
    duration: Duration,
    iterations_min: usize,
    before_each: impl Fn(),
    mut run: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<Times, Box<dyn Error>> {
    let mut times = Times::default();
    let begin = Instant::now();
    while begin.elapsed() < duration || times.lat.len() < iterations_min {
        before_each();
        let cpu = cpu_time::process()?;
        let start = Instant::now();
        run()?;
        times.lat.push(start.elapsed().as_secs_f64());
        times.cpu.push((cpu_time::process()? - cpu).as_secs_f64());
    }
    Ok(times)
}

fn interactive(facts: &serde_json::Value, session: &mut Session, feeds: &[Vec<Value>]) -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    writeln!(out, "READY {facts}")?;
    out.flush()?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["run", seconds, iterations] = words[..] else {
            return Err(format!("'{line}': a line has the form `run SECONDS MIN_ITERATIONS`").into());
        };
        let duration = Duration::try_from_secs_f64(seconds.parse()?)?;
        let times = measure(session, feeds, duration, iterations.parse()?, || {})?;
        writeln!(out, "{}", serde_json::to_string(&times)?)?;
        out.flush()?;
    }
    Ok(())
}

fn report(as_json: bool, mut facts: serde_json::Value, times: &Times) -> Result<(), Box<dyn Error>> {
    let mut sorted = times.lat.clone();
    sorted.sort_by(f64::total_cmp);
    let percentile = |p: f64| sorted[((sorted.len() - 1) as f64 * p).round() as usize] * 1e3;
    let (sum, cpu): (f64, f64) = (times.lat.iter().sum(), times.cpu.iter().sum());
    let count = times.lat.len() as f64;
    let figures = json!({
        "runs": times.lat.len(),
        "latency_ms": {
            "min": percentile(0.0),
            "p50": percentile(0.5),
            "p90": percentile(0.9),
            "p99": percentile(0.99),
            "max": percentile(1.0),
            "mean": sum / count * 1e3,
        },
        "cpu_ms": cpu / count * 1e3,
        "runs_per_second": count / sum,
    });
    if as_json {
        if let (Some(facts), Some(figures)) = (facts.as_object_mut(), figures.as_object()) {
            facts.extend(figures.clone());
        }
        println!("{facts}");
        return Ok(());
    }
    println!(
        "{} on {} ({}), {} kernels, {} by reference",
        facts["model"].as_str().unwrap_or_default(),
        facts["unit"].as_str().unwrap_or_default(),
        facts["precision"].as_str().unwrap_or_default(),
        facts["kernels"],
        facts["reference"]
    );
    println!(
        "latency  min {:.3} ms  p50 {:.3} ms  p90 {:.3} ms  p99 {:.3} ms  max {:.3} ms",
        percentile(0.0),
        percentile(0.5),
        percentile(0.9),
        percentile(0.99),
        percentile(1.0)
    );
    println!(
        "{} runs, {:.1} runs/s, {:.3} ms of processor time per run",
        times.lat.len(),
        count / sum,
        cpu / count * 1e3
    );
    Ok(())
}
