//! `halimede explain`: what became of a model, and where its time goes.

use std::{
    collections::BTreeMap,
    error::Error,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use halimede_compute::{Footprint, Session, StepReport, process_memory};
use halimede_graph::{
    Fact, Graph,
    onnx::import::Model,
    passes::{PassReport, Refusal, Rewrite},
};

use super::{
    inputs,
    model::{ModelArgs, UnitArgs, describe},
    roofs::Roofs,
};

/// Print the graph of a model, what each pass did and why it refused, the plan, memory and where time goes.
///
/// Without inputs it makes some up; unknown dimensions are 1 then.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    on: UnitArgs,
    /// Arrays for the inputs, by name.
    #[arg(long, value_name = "FILE.npz")]
    inputs: Option<PathBuf>,
    /// Print every operation of the graph.
    #[arg(long)]
    graph: bool,
    /// Print every rewrite and every refusal of the passes, not one of each kind.
    #[arg(long)]
    all: bool,
    /// Runs to take the times from.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Do not run the model: no plan, no times.
    #[arg(long)]
    no_run: bool,
}

/// Kinds of kernels that are listed apart.
const KINDS_MAX: usize = 12;
/// Width of the longest bar.
const BAR: f64 = 30.0;

/// Runs the command.
pub fn run(args: &Args) -> ExitCode {
    let is_seen_enough = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    match execute(args) {
        // Whoever reads has seen enough.
        Err(error) if error.downcast_ref().is_some_and(is_seen_enough) => ExitCode::SUCCESS,
        result => super::exit_code(result),
    }
}

fn execute(args: &Args) -> Result<(), Box<dyn Error>> {
    let out: &mut dyn Write = &mut io::stdout().lock();
    let unit = args.on.find()?;
    let (model, passes) = args.model.read()?;
    print_model(out, args, &model)?;
    print_graph(out, &model.graph, args.graph)?;
    print_passes(out, &passes, args.all)?;
    if args.no_run {
        return Ok(());
    }
    let values = inputs::collect(&model, &args.model.input, args.inputs.as_deref())?;
    let given: Vec<String> =
        model.inputs.iter().zip(&values).map(|(input, value)| format!("{} {}", input.name, describe(value))).collect();
    let values = [values];
    let compiled = args.model.compile(model, &*unit, &args.on, &values)?;
    print_unit_passes(out, compiled.unit_reports(), args.all)?;
    let mut session = compiled.session();
    let best = measure(&mut session, &values[0], args.runs, args.on.timeout)?;
    let steps = session.steps();
    let mut roofs = Roofs::new(args.on.threads(), !args.on.disable_matrix);
    let total: Duration = best.iter().filter(|time| **time != Duration::MAX).sum();

    title(out, "plan", &format!("{} steps for {}", steps.len(), given.join(", ")))?;
    writeln!(
        out,
        "  {:>9}  {:>6} {:>8} {:>6} {:>5}  {:<18} {:<40} {:<36} output",
        "time µs", "share", "GFLOP/s", "GB/s", "roof", "operator", "kernel", "node"
    )?;
    for (step, time) in steps.iter().zip(&best) {
        writeln!(
            out,
            "  {:>9.1}  {:>5.1}% {}  {:<18} {:<40} {:<36} {}",
            micros(*time),
            share(*time, total),
            rates(step, *time, &mut roofs),
            step.operator,
            kernel(step),
            shortened(&step.node, 36),
            step.outputs.join(" ")
        )?;
    }
    let above = match steps.iter().any(|step| step.kernel.contains("Winograd")) {
        true => "; Winograd's forms, which do fewer multiplications than they are counted for, may be above",
        false => "",
    };
    let threads = args.on.threads();
    writeln!(
        out,
        "  roof: of what {threads} thread(s) of this machine can do at best, in arithmetic or in reading{above}"
    )?;
    writeln!(out, "  layout: values lie row by row, but for those that are called blocked or bordered")?;
    print_times(out, &steps, &best, total)?;
    let coverage = session.coverage();
    let how = match coverage.reference {
        0 => format!("all {} steps run on kernels", coverage.kernels),
        reference => {
            format!("{} steps run on kernels, {reference} by their definition (slow, but right)", coverage.kernels)
        }
    };
    print_memory(out, &compiled.footprint(), &session)?;
    title(out, "coverage", &how)?;
    Ok(())
}

/// What the model holds, and what the process took for it.
fn print_memory(out: &mut dyn Write, footprint: &Footprint, session: &Session) -> io::Result<()> {
    title(out, "memory", "")?;
    let mut line = |name: &str, bytes: usize, text: &str| writeln!(out, "  {name:<19} {:>12}   {text}", size(bytes));
    line("arena", session.arena_bytes(), "results between steps, one per run at a time")?;
    let outputs = session.memory_bytes().saturating_sub(session.arena_bytes());
    line("outputs", outputs, "and what lies on the heap, one per run at a time")?;
    line("prepacked weights", footprint.packed.total(), "shared by all instances")?;
    line("constants", footprint.constants.total(), "read as they are, shared by all instances")?;
    line("sources", footprint.sources.private, "what weights were packed from and no file has")?;
    let in_file = "the same, lying in the model's file: in memory while somebody reads it";
    line("", footprint.sources.mapped, in_file)?;
    line("plan", footprint.plans, "steps and constants for these shapes")?;
    let needed = footprint.weights;
    let text = format!(
        "what it needs at least, as it multiplies them; it keeps {:.2} times as much",
        (footprint.private() + footprint.packed.mapped + footprint.constants.mapped) as f64 / needed.max(1) as f64
    );
    line("weights", needed, &text)?;
    match process_memory().private {
        Some(bytes) => line("this process", bytes as usize, "memory that no file stands behind, now"),
        None => Ok(()),
    }
}

/// The kernel of a step, with what was measured to be its fastest configuration, and how often it runs.
fn kernel(step: &StepReport) -> String {
    let tuned = match step.chosen.as_ref().filter(|config| !config.is_empty()) {
        Some(config) => format!(", tuned: {config}"),
        None => String::new(),
    };
    let slices = if step.slices > 1 { format!(", {} slices", step.slices) } else { String::new() };
    let bands = if step.bands > 1 { format!(", {} bands", step.bands) } else { String::new() };
    format!("{}{slices}{bands}{tuned}", step.kernel)
}

/// The rates of a step, and how near the nearer one is to the machine's best.
fn rates(step: &StepReport, time: Duration, roofs: &mut Roofs) -> String {
    let Some(cost) = step.cost.filter(|_| time != Duration::MAX && !time.is_zero()) else {
        return format!("{:>8} {:>6} {:>5}", "", "", "");
    };
    let seconds = time.as_secs_f64();
    let operations =
        if cost.operations > 0.0 { format!("{:.1}", cost.operations / seconds / 1e9) } else { String::new() };
    let roof = roofs.seconds(&cost, step.multiply) / seconds * 100.0;
    format!("{operations:>8} {:>6.1} {roof:>4.0}%", cost.bytes / seconds / 1e9)
}

/// The fastest time of each step: what it takes when nothing else disturbs it.
fn measure(
    session: &mut Session,
    values: &[halimede_tensor::Value],
    runs: usize,
    timeout: Duration,
) -> Result<Vec<Duration>, Box<dyn Error>> {
    session.measure(true);
    let mut best: Vec<Duration> = Vec::new();
    for _ in 0..runs.max(1) {
        session.run_within(values, timeout)?;
        for time in session.times() {
            if best.len() <= time.step {
                best.resize(time.step + 1, Duration::MAX);
            }
            best[time.step] = best[time.step].min(time.time);
        }
    }
    Ok(best)
}

fn print_model(out: &mut dyn Write, args: &Args, model: &Model) -> io::Result<()> {
    let opset = |(domain, version): (&String, &i64)| match domain.as_str() {
        "" => format!("opset {version}"),
        domain => format!("{domain} {version}"),
    };
    let opsets: Vec<String> = model.opsets.iter().map(opset).collect();
    writeln!(out, "model  {}", args.model.path.display())?;
    writeln!(out, "  written by {}, IR version {}, {}", writer(model), model.ir_version, opsets.join(", "))?;
    for input in &model.inputs {
        writeln!(out, "  input   {:<24} {}", input.name, fact(&input.fact))?;
    }
    for (output, value) in model.outputs.iter().zip(&model.graph.outputs) {
        writeln!(out, "  output  {:<24} {}", output.name, fact(model.graph.fact(*value)))?;
    }
    Ok(())
}

fn print_graph(out: &mut dyn Write, graph: &Graph, all: bool) -> io::Result<()> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for node in &graph.nodes {
        *counts.entry(node.op.name()).or_default() += 1;
    }
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
    let counts: Vec<String> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let mut constants: BTreeMap<usize, usize> = BTreeMap::new();
    for value in graph.nodes.iter().flat_map(|node| node.inputs.iter().flatten()) {
        if let Some(bytes) = graph.constant(*value).and_then(|tensor| Some(tensor.bytes().ok()?.len())) {
            constants.insert(value.index(), bytes);
        }
    }
    title(out, "graph", &format!("{} operations after the passes", graph.nodes.len()))?;
    writeln!(out, "  {}", counts.join(", "))?;
    writeln!(out, "  {} in {} constants", size(constants.values().sum()), constants.len())?;
    if !all {
        return Ok(());
    }
    for node in &graph.nodes {
        let input =
            |input: &Option<halimede_graph::ValueId>| input.map_or("-", |input| &graph.values[input.index()].name);
        let inputs: Vec<&str> = node.inputs.iter().map(input).collect();
        let outputs: Vec<String> = node
            .outputs
            .iter()
            .map(|output| format!("{} {}", graph.values[output.index()].name, fact(graph.fact(*output))))
            .collect();
        writeln!(out, "  {} '{}' ({}) -> {}", node.op.name(), node.name, inputs.join(", "), outputs.join(", "))?;
    }
    Ok(())
}

/// What passes of the graph did.
fn print_passes(out: &mut dyn Write, passes: &[PassReport], all: bool) -> io::Result<()> {
    if passes.is_empty() {
        return title(out, "passes", "off");
    }
    title(out, "passes", "what each rewrote, and what it left alone and why")?;
    print_reports(out, passes, all)
}

/// What passes of the unit did, which run when it is decided in how many bits each product is multiplied.
fn print_unit_passes(out: &mut dyn Write, passes: &[PassReport], all: bool) -> io::Result<()> {
    if passes.iter().all(|pass| pass.changed == 0 && pass.refusals.is_empty()) {
        return Ok(());
    }
    title(out, "passes of the unit", "the same, in this precision")?;
    print_reports(out, passes, all)
}

/// What passes did, and where they almost did something; passes that found nothing in one line.
fn print_reports(out: &mut dyn Write, passes: &[PassReport], all: bool) -> io::Result<()> {
    let mut idle: Vec<&str> = Vec::new();
    for pass in passes {
        if pass.changed == 0 && pass.refusals.is_empty() {
            idle.push(pass.pass);
            continue;
        }
        writeln!(
            out,
            "  {:<24} {:>5} {}",
            pass.pass,
            pass.changed,
            if pass.changed == 1 { "rewrite" } else { "rewrites" }
        )?;
        let rewrites = pass.rewrites.iter().map(|Rewrite { node, what }| (what.as_str(), node.as_str()));
        print_places(out, rewrites, "", all)?;
        let refusals = pass.refusals.iter().map(|Refusal { node, reason }| (reason.as_str(), node.as_str()));
        print_places(out, refusals, "left alone: ", all)?;
    }
    idle.sort_unstable();
    idle.dedup();
    if !idle.is_empty() {
        writeln!(out, "  nothing to do for: {}", idle.join(", "))?;
    }
    Ok(())
}

/// Equal texts as one line with the first place and the number of others, or every place.
fn print_places<'a>(
    out: &mut dyn Write,
    places: impl Iterator<Item = (&'a str, &'a str)>,
    prefix: &str,
    all: bool,
) -> io::Result<()> {
    let mut kinds: Vec<(&str, Vec<&str>)> = Vec::new();
    for (text, node) in places {
        match kinds.iter_mut().find(|(known, _)| *known == text) {
            Some((_, nodes)) => nodes.push(node),
            None => kinds.push((text, vec![node])),
        }
    }
    for (text, nodes) in kinds {
        let others = if nodes.len() > 1 && !all { format!(" and {} others", nodes.len() - 1) } else { String::new() };
        writeln!(out, "    {prefix}{text}")?;
        for node in nodes.iter().take(if all { usize::MAX } else { 1 }) {
            writeln!(out, "      at {node}{others}")?;
        }
    }
    Ok(())
}

/// Times by kernel, the largest first.
fn print_times(out: &mut dyn Write, steps: &[StepReport], best: &[Duration], total: Duration) -> io::Result<()> {
    let mut kinds: BTreeMap<(&str, &str), (usize, Duration)> = BTreeMap::new();
    for (step, time) in steps.iter().zip(best).filter(|(_, time)| **time != Duration::MAX) {
        let (count, sum) = kinds.entry((&step.operator, &step.kernel)).or_default();
        *count += 1;
        *sum += *time;
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, (_, time))| std::cmp::Reverse(*time));
    title(out, "time", &format!("{:.3} ms in all, the fastest of each step", total.as_secs_f64() * 1e3))?;
    writeln!(out, "  {:>9}  {:>6}  {:>5}  {:<18} kernel", "time µs", "share", "steps", "operator")?;
    for ((operator, kernel), (count, time)) in kinds.iter().take(KINDS_MAX) {
        let bar = "█".repeat((share(*time, total) / 100.0 * BAR).round() as usize);
        writeln!(
            out,
            "  {:>9.1}  {:>5.1}%  {count:>5}  {operator:<18} {kernel:<30} {bar}",
            micros(*time),
            share(*time, total)
        )?;
    }
    if kinds.len() > KINDS_MAX {
        let (count, time) = kinds[KINDS_MAX..]
            .iter()
            .fold((0, Duration::ZERO), |(steps, sum), (_, (count, time))| (steps + count, sum + *time));
        writeln!(out, "  {:>9.1}  {:>5.1}%  {count:>5}  others", micros(time), share(time, total))?;
    }
    Ok(())
}

fn title(out: &mut dyn Write, name: &str, text: &str) -> io::Result<()> {
    writeln!(out, "\n{}", format!("{name}  {text}").trim_end())
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Percent.
fn share(time: Duration, total: Duration) -> f64 {
    time.as_secs_f64() / total.as_secs_f64().max(f64::MIN_POSITIVE) * 100.0
}

/// The end of a name: what tells nodes of one layer apart stands there.
fn shortened(name: &str, width: usize) -> String {
    let count = name.chars().count();
    match count > width {
        true => format!("…{}", name.chars().skip(count - width + 1).collect::<String>()),
        false => name.to_owned(),
    }
}

fn size(bytes: usize) -> String {
    match bytes as f64 {
        bytes if bytes < 1e4 => format!("{bytes} B"),
        bytes if bytes < 1e6 => format!("{:.1} kB", bytes / 1e3),
        bytes => format!("{:.1} MB", bytes / 1e6),
    }
}

fn fact(fact: &Fact) -> String {
    let dtype = fact.dtype.map_or("?".to_owned(), |dtype| dtype.to_string());
    let shape = fact.shape.as_ref().map_or("[…]".to_owned(), |shape| format!("{:?}", shape.as_slice()));
    format!("{dtype}{shape}")
}

/// The tool that wrote a model, with its version where the model says them.
fn writer(model: &Model) -> String {
    match (model.producer.as_str(), model.producer_version.as_str()) {
        ("", _) => "an unnamed tool".to_owned(),
        (producer, "") => producer.to_owned(),
        (producer, version) => format!("{producer} {version}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_end() {
        assert_eq!(shortened("short", 8), "short");
        assert_eq!(shortened("/layer.11/output/MatMul", 10), "…ut/MatMul");
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!([512, 65_536, 435_000_000].map(size), ["512 B", "65.5 kB", "435.0 MB"]);
    }
}
