//! `halimede explain`: what became of a model, and where its time goes.

use std::{collections::BTreeMap, error::Error, path::PathBuf, process::ExitCode, time::Duration};

use halimede_graph::{Fact, Graph, passes::PassReport};

use super::{
    inputs,
    model::{ModelArgs, describe},
};

/// Print the graph of a model, what each pass did and why it refused, the plan, memory and time per step.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Arrays for the inputs, by name.
    #[arg(long, value_name = "FILE.npz")]
    inputs: Option<PathBuf>,
    /// Print every node of the graph.
    #[arg(long)]
    graph: bool,
    /// Runs to take the times from.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Do not run the model: no plan, no times.
    #[arg(long)]
    no_run: bool,
}

/// Refusals of one pass that are printed.
const REFUSALS_MAX: usize = 8;

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

fn execute(args: &Args) -> Result<(), Box<dyn Error>> {
    let (model, passes) = args.model.read()?;
    let opsets: Vec<String> = model
        .opsets
        .iter()
        .map(|(domain, version)| format!("{}{version}", if domain.is_empty() { "" } else { domain }))
        .collect();
    println!("model     {}", args.model.path.display());
    println!("format    IR version {}, opsets {}", model.ir_version, opsets.join(" "));
    println!("producer  {} {}", model.producer, model.producer_version);
    for input in &model.inputs {
        println!("input     {} {}", input.name, fact(&input.fact));
    }
    for (output, value) in model.outputs.iter().zip(&model.graph.outputs) {
        println!("output    {} {}", output.name, fact(model.graph.fact(*value)));
    }
    print_graph(&model.graph, args.graph);
    print_passes(&passes);
    if args.no_run {
        return Ok(());
    }

    let values = inputs::collect(&model, &args.model.input, args.inputs.as_deref())?;
    let names: Vec<String> = model.inputs.iter().map(|input| input.name.clone()).collect();
    let compiled = args.model.compile(model)?;
    let mut session = compiled.session();
    session.measure(true);
    // The fastest time of each step: what it takes when nothing else disturbs it.
    let mut best: Vec<Duration> = Vec::new();
    for _ in 0..args.runs.max(1) {
        session.run(&values)?;
        for time in session.times() {
            if best.len() <= time.step {
                best.resize(time.step + 1, Duration::MAX);
            }
            best[time.step] = best[time.step].min(time.time);
        }
    }
    let steps = session.steps();
    let total: Duration = best.iter().filter(|time| **time != Duration::MAX).sum();
    println!(
        "\nplan for {}",
        names
            .iter()
            .zip(&values)
            .map(|(name, value)| format!("{name} {}", describe(value)))
            .collect::<Vec<_>>()
            .join(", ")
    );
    println!("{:>10}  {:>6}  {:<24} {:<28} {:<32} output", "time", "share", "operator", "kernel", "node");
    for (step, time) in steps.iter().zip(&best) {
        let share = time.as_secs_f64() / total.as_secs_f64().max(f64::MIN_POSITIVE) * 100.0;
        println!(
            "{:>7.1} µs  {share:>5.1}%  {:<24} {:<28} {:<32} {}",
            time.as_secs_f64() * 1e6,
            step.operator,
            step.kernel,
            step.node,
            step.outputs.join(" ")
        );
    }
    println!("{:>7.1} µs  in {} steps", total.as_secs_f64() * 1e6, steps.len());
    let coverage = session.coverage();
    println!("\nsteps     {} on kernels, {} by reference evaluation", coverage.kernels, coverage.reference);
    println!("memory    arena {} bytes, prepacked weights {} bytes", session.arena_bytes(), compiled.packed_bytes());
    Ok(())
}

fn print_graph(graph: &Graph, all: bool) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for node in &graph.nodes {
        *counts.entry(node.op.name()).or_default() += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    println!("graph     {} nodes: {}", graph.nodes.len(), counts.join(", "));
    if !all {
        return;
    }
    for node in &graph.nodes {
        let inputs: Vec<&str> = node
            .inputs
            .iter()
            .map(|input| input.map_or("-", |input| graph.values[input.index()].name.as_str()))
            .collect();
        let outputs: Vec<String> = node
            .outputs
            .iter()
            .map(|output| format!("{} {}", graph.values[output.index()].name, fact(graph.fact(*output))))
            .collect();
        println!("  {} '{}' ({}) -> {}", node.op.name(), node.name, inputs.join(", "), outputs.join(", "));
    }
}

fn print_passes(passes: &[PassReport]) {
    if passes.is_empty() {
        println!("\npasses    off");
        return;
    }
    println!("\npasses");
    for pass in passes {
        println!("  {:<24} {} rewrites", pass.pass, pass.changed);
        for refusal in pass.refusals.iter().take(REFUSALS_MAX) {
            println!("    left '{}' alone: {}", refusal.node, refusal.reason);
        }
        if pass.refusals.len() > REFUSALS_MAX {
            println!("    and {} others", pass.refusals.len() - REFUSALS_MAX);
        }
    }
}

fn fact(fact: &Fact) -> String {
    let dtype = fact.dtype.map_or("?".to_owned(), |dtype| dtype.to_string());
    let shape = fact.shape.as_ref().map_or("[…]".to_owned(), |shape| format!("{:?}", shape.as_slice()));
    format!("{dtype}{shape}")
}
