//! `halimede tune`: finds out which configurations of its kernels a model is fastest with.

mod bench;

use std::{
    error::Error,
    fs::{self, OpenOptions},
    io,
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use halimede_compute::{
    Precision, Session,
    tuning::{
        Choices, Config, CostModelTopK, Database, Effort, Exhaustive, Found, Part, Probed, Record, Strategy, search,
    },
};
use halimede_platform::chip::Chip;

use super::{
    inputs,
    model::{ModelArgs, UnitArgs},
    steady::Probe,
};
use crate::{logging::civil_date, tuning::origin};
use bench::SessionBench;

/// Measure which configurations of its kernels (blocks, algorithms, threads) a model is fastest with on this
/// machine, and remember them for every model that has the same operations.
///
/// Nothing else should run meanwhile. Weights and shapes are the model's, inputs are made up; unknown dimensions
/// are 1 unless an --input says more. What wins against a kernel's own configuration, warm and with an empty
/// second-level cache, is added to the database.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    on: UnitArgs,
    /// How long to search; the confirmation of what was found comes on top.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = super::seconds)]
    budget: Duration,
    /// Which configurations to measure: those that a cost model expects to be the fastest, or all.
    #[arg(long, value_enum, default_value_t = Search::CostModel)]
    strategy: Search,
}

/// Strategies by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Search {
    CostModel,
    Exhaustive,
}

/// Candidates of an operator that the cost model may choose.
const CANDIDATES: usize = 12;

/// Every operator may take at least this share of the time that is left.
const SHARE_MIN: f64 = 0.1;

impl Search {
    fn strategy(self) -> Box<dyn Strategy> {
        match self {
            Search::CostModel => Box::new(CostModelTopK { count: CANDIDATES }),
            Search::Exhaustive => Box::new(Exhaustive),
        }
    }
}

/// Runs the command.
pub fn run(args: &Args) -> ExitCode {
    super::exit_code(execute(args))
}

fn execute(args: &Args) -> Result<(), Box<dyn Error>> {
    let source = args.on.database();
    let file = source.file().ok_or("no place for the database: name one with --database FILE")?;
    check_writable(&file)?;
    let (known, damaged) = source.read(args.on.matrix())?;
    damaged.iter().for_each(|damage| eprintln!("warning: {damage}"));
    // The model that is measured knows nothing, so that its kernels' own configurations are what others beat.
    let choices = Arc::new(Choices::default());
    let unit = args.on.find_with(choices.clone())?;
    let (model, _) = args.model.read()?;
    let values = vec![inputs::collect(&model, &args.model.input, None)?];
    let compiled = args.model.compile(model, &*unit, &args.on, &values)?;
    let mut session = compiled.session();
    let mut parts = by_time(&mut session, &values[0], args.on.timeout)?;
    drop(session);
    if parts.is_empty() {
        return Err("there is nothing to choose about this model's operations".into());
    }

    let strategy = args.strategy.strategy();
    println!(
        "{}, {} thread(s), precision {}, strategy {}",
        Chip::detect().key(),
        args.on.threads(),
        args.on.precision,
        strategy.name()
    );
    println!("{:>5} {:>5} {:>11}  {:>5} {:>5}  choice", "steps", "tried", "default µs", "warm", "cold");
    let (start, mut machine) = (Instant::now(), Probe::now());
    let mut records = Vec::new();
    while !parts.is_empty() {
        let share = parts[0].1.as_secs_f64() / parts.iter().map(|(_, time)| time.as_secs_f64()).sum::<f64>();
        let (part, _) = parts.remove(0);
        let left = args.budget.saturating_sub(start.elapsed());
        let end = Instant::now() + left.mul_f64(share.clamp(SHARE_MIN, 1.0));
        let mut bench = SessionBench::new(&part, &choices, args.on.threads() == 1, machine)?;
        let is_over = || Instant::now() >= end;
        let found = search(&part.tunable, &*strategy, &mut bench, &Effort::default(), &is_over)?;
        machine = bench.best();
        print_row(&part, &found, bench.default_micros());
        let before = known.find(part.operator());
        records.extend(record(&part, found, before, machine, args.on.matrix()));
        choices.set(part.operator(), None);
    }
    let added = Database::merge(&file, &records)?;
    println!("{added} of {} results are new in {}", records.len(), file.display());
    if args.on.precision != Precision::Exact {
        println!("they count for models in {} precision, and others with the same operations", args.on.precision);
    }
    Ok(())
}

/// Ends before anything is measured where the result could not be written.
fn check_writable(file: &Path) -> Result<(), String> {
    let existed = file.exists();
    let failed = |error: io::Error| format!("cannot write the tuning database '{}': {error}", file.display());
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    OpenOptions::new().append(true).create(true).open(file).map_err(failed)?;
    if existed { Ok(()) } else { fs::remove_file(file).map_err(failed) }
}

/// What can be chosen about a model that has run, with the time that the steps took; the longest first.
fn by_time(
    session: &mut Session,
    values: &[halimede_tensor::Value],
    timeout: Duration,
) -> Result<Vec<(Part, Duration)>, Box<dyn Error>> {
    session.run_within(values, timeout)?;
    session.measure(true);
    session.run_within(values, timeout)?;
    let time = |step: usize| session.times().iter().find(|time| time.step == step).map_or(Duration::ZERO, |t| t.time);
    let parts = session.parts().into_iter();
    let mut timed: Vec<(Part, Duration)> = parts
        .map(|part| {
            let time = part.steps.iter().map(|&step| time(step)).sum::<Duration>();
            (part, time.max(Duration::from_nanos(1)))
        })
        .collect();
    timed.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    Ok(timed)
}

/// What to remember: the winner, or that one of earlier is none any more.
fn record(part: &Part, found: Found, before: Option<Config>, machine: Probe, matrix: bool) -> Option<Record> {
    let probed = Probed { f32_gflops: machine.f32_gflops, l1_read_gbps: machine.l1_read_gbps, dropped: found.dropped };
    let (operator, origin, date) = (part.operator().to_string(), origin(matrix), today());
    if let Some(winner) = found.winner {
        let (config, warm, cold) = (winner.config, winner.warm, winner.cold);
        return Some(Record { operator, origin, config, warm: Some(warm), cold: Some(cold), probed, date });
    }
    // Nothing was beyond doubt, though it had every chance to be.
    before.filter(|config| !config.is_empty() && found.tried > 0)?;
    Some(Record { operator, origin, config: Config::default(), warm: None, cold: None, probed, date })
}

fn print_row(part: &Part, found: &Found, default_micros: f64) {
    // No time was left to measure it.
    let micros = if default_micros.is_finite() { format!("{default_micros:.1}") } else { "-".to_owned() };
    print!("{:>5} {:>5} {micros:>11}", part.steps.len(), found.tried);
    match &found.winner {
        Some(winner) => println!("  {:>4.2}x {:>4.2}x  {}", winner.warm.ratio, winner.cold.ratio, winner.config),
        None => println!("  {:>5} {:>5}  as it is", "", ""),
    }
    let dropped = if found.dropped > 0 { format!(", {} slow samples dropped", found.dropped) } else { String::new() };
    println!("{:>25}{}{dropped}", "", part.operator());
}

/// The day in UTC.
fn today() -> String {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = civil_date(since_epoch.as_secs() / (24 * 60 * 60));
    format!("{year}-{month:02}-{day:02}")
}
