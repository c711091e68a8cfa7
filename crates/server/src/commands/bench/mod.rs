//! `halimede bench`: how long a model takes.

use std::{
    error::Error,
    io::{self, BufRead, Write},
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use halimede_compute::Session;
use halimede_platform::{chip::Chip, cpu_time};
use halimede_tensor::Value;
use serde_json::json;

use super::model::{self, ModelArgs};

/// Measure latency and throughput of a model.
///
/// Runs on made-up inputs unless they are given; unknown dimensions are 1.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Arrays for the inputs, by name.
    #[arg(long, value_name = "FILE.npz")]
    inputs: Option<PathBuf>,
    /// How long to measure.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
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
    match execute(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Times of runs in seconds, one after the other.
#[derive(Debug, Default, serde::Serialize)]
struct Times {
    lat: Vec<f64>,
    /// Processor time of all threads.
    cpu: Vec<f64>,
}

fn execute(args: &Args) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let (compiled, inputs) = args.model.load(args.inputs.as_deref())?;
    let load_seconds = start.elapsed().as_secs_f64();
    let mut session = compiled.session();
    for _ in 0..args.warmup.max(1) {
        session.run(&inputs)?;
    }
    let facts = json!({
        "model": args.model.path,
        "unit": args.model.unit,
        "precision": args.model.precision,
        "threads": args.model.threads.unwrap_or_else(halimede_platform::threads::parallelism),
        "chip": Chip::detect().key(),
        "load_seconds": load_seconds,
        "arena_bytes": session.arena_bytes(),
        "packed_bytes": compiled.packed_bytes(),
        "kernels": session.coverage().kernels,
        "reference": session.coverage().reference,
        "inputs": inputs.iter().map(model::describe).collect::<Vec<_>>(),
    });
    if args.interactive {
        return interactive(&facts, &mut session, &inputs);
    }
    let times = measure(&mut session, &inputs, Duration::try_from_secs_f64(args.seconds)?, 1)?;
    report(args, facts, &times)
}

/// Runs for at least so long and so often.
fn measure(
    session: &mut Session,
    inputs: &[Value],
    duration: Duration,
    iterations_min: usize,
) -> Result<Times, Box<dyn Error>> {
    let mut times = Times::default();
    let begin = Instant::now();
    while begin.elapsed() < duration || times.lat.len() < iterations_min {
        let cpu = cpu_time::process()?;
        let start = Instant::now();
        session.run(inputs)?;
        times.lat.push(start.elapsed().as_secs_f64());
        times.cpu.push((cpu_time::process()? - cpu).as_secs_f64());
    }
    Ok(times)
}

fn interactive(facts: &serde_json::Value, session: &mut Session, inputs: &[Value]) -> Result<(), Box<dyn Error>> {
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
        let times = measure(session, inputs, duration, iterations.parse()?)?;
        writeln!(out, "{}", serde_json::to_string(&times)?)?;
        out.flush()?;
    }
    Ok(())
}

fn report(args: &Args, mut facts: serde_json::Value, times: &Times) -> Result<(), Box<dyn Error>> {
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
    if args.json {
        if let (Some(facts), Some(figures)) = (facts.as_object_mut(), figures.as_object()) {
            facts.extend(figures.clone());
        }
        println!("{facts}");
        return Ok(());
    }
    println!(
        "{} on {} ({}), {} kernels, {} by reference",
        args.model.path.display(),
        args.model.unit,
        args.model.precision,
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
