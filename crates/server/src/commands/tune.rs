//! `halimede tune`: finds out which configurations of its kernels a model is fastest with.

use std::{
    error::Error,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use halimede_compute::{
    Precision, RunError,
    tuning::{
        Agenda, Choices, CostModelTopK, Database, Effort, Exhaustive, Found, NothingElse, Part, PartBench, Strategy,
        search,
    },
};
use halimede_compute_cpu::rates;
use halimede_platform::chip::Chip;

use super::{
    inputs,
    model::{ModelArgs, UnitArgs},
};
use crate::tuning::{check_writable, origin, record};

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
    let (begin, after) = (Instant::now(), args.on.timeout);
    let parts = session.timed_parts(&values[0], &|| begin.elapsed() > after).map_err(|error| match error {
        RunError::Cancelled => RunError::Overdue { after },
        error => error,
    })?;
    let mut agenda = Agenda::new(parts);
    drop(session);
    if agenda.is_empty() {
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
    let (start, mut machine) = (Instant::now(), rates::probe());
    let (origin, mut records) = (origin(args.on.matrix()), Vec::new());
    while let Some((part, time)) = agenda.next(args.budget.saturating_sub(start.elapsed())) {
        let end = Instant::now() + time;
        let mut bench = PartBench::new(&part, &choices, &NothingElse, rates::probe, machine)?;
        let is_over = || Instant::now() >= end;
        let found = search(&part.tunable, &*strategy, &mut bench, &Effort::default(), &is_over)?;
        machine = bench.best();
        print_row(&part, &found, bench.default_micros());
        records.extend(record(part.operator(), &found, known.known(part.operator()), machine, &origin));
    }
    let added = Database::merge(&file, &records)?;
    println!("{added} of {} results are new in {}", records.len(), file.display());
    match args.on.precision {
        Precision::Exact => {
            println!("they count for exact precision alone; `serve` computes in balanced: --precision balanced")
        }
        precision => println!("they count for models in {precision} precision, and others with the same operations"),
    }
    Ok(())
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
