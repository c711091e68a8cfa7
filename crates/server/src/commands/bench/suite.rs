//! `halimede bench --suite`: kernels by themselves, beside what the machine can do at best.

use std::{
    error::Error,
    io::{self, Write},
    time::Duration,
};

use halimede_compute::{ComputeUnit, Model, ModelOptions, calibrated, tuning::Probe};
use halimede_compute_cpu::rates;
use halimede_graph::{
    ops::Factors,
    passes::{PassOptions, optimize},
};
use halimede_platform::chip::Chip;
use serde_json::{Value as Json, json};

use super::{
    super::{model::UnitArgs, roofs},
    Times,
    cases::{self, Case, Roof},
    measure, timed,
};

/// Parts that the time of a kernel is cut into, with a probe of the machine around each.
const SLICES: u32 = 8;

/// Bytes whose reading is measured: in the first-level cache, in the second, in memory.
const READS: [(&str, usize); 3] = [("read L1", 16 << 10), ("read L2", 512 << 10), ("read memory", 256 << 20)];

/// Bytes that leave nothing else in the caches.
const OTHER_BYTES: usize = 256 << 20;

/// What was measured of a kernel, in the order of its slices.
struct Measured {
    case: Case,
    /// Of operands and results in the precision that was measured.
    bytes: usize,
    /// Seconds of a run.
    times: Vec<f64>,
    /// Seconds of reading as much as the kernel does, in turns with it, where that is its roof.
    reads: Vec<f64>,
    /// The slower of the probes before and after.
    probes: Vec<Probe>,
    /// What it multiplies, and how many multiplications and additions a second the unit for that gives at best: nothing for f32.
    matrix: Option<(Factors, f64)>,
    /// Steps run by their definition.
    reference: usize,
}

/// Measures the kernels whose names contain one of `names`, all where there is none.
pub(super) fn run(names: &[String], on: &UnitArgs, duration: Duration, as_json: bool) -> Result<(), Box<dyn Error>> {
    let unit = on.find()?;
    let wanted = |name: &str| names.is_empty() || names.iter().any(|part| name.contains(part.as_str()));
    let reads: Vec<(&str, usize, f64)> = READS
        .into_iter()
        .filter(|(name, _)| wanted(name))
        .map(|(name, bytes)| (name, bytes, rates::read(bytes)))
        .collect();
    let mut kernels = Vec::new();
    for case in cases::all().into_iter().filter(|case| wanted(&case.name)) {
        let name = case.name.clone();
        kernels.push(measured(case, &*unit, on, duration).map_err(|error| format!("{name}: {error}"))?);
    }
    if reads.is_empty() && kernels.is_empty() {
        return Err(format!("no kernel of the suite has '{}' in its name", names.join("' or '")).into());
    }
    // What the machine can do is what it did at its best moment during all this.
    let best = kernels.iter().flat_map(|kernel| kernel.probes.iter().copied()).fold(rates::probe(), Probe::best);
    let peak = |factors: Factors| {
        let peaks = kernels.iter().filter_map(|kernel| kernel.matrix).filter(|(of, _)| *of == factors);
        peaks.map(|(_, peak)| peak).reduce(f64::max)
    };
    let (bf16, f16, int8) = (peak(Factors::Bf16), peak(Factors::F16), peak(Factors::Integers));
    let roof = |kernel: &Measured| match kernel.matrix.map(|(factors, _)| factors) {
        Some(Factors::Integers) => ("int8 operations", int8.unwrap_or(f64::NAN)),
        Some(Factors::Bf16) => ("bf16 operations", bf16.unwrap_or(f64::NAN)),
        Some(Factors::F16) => ("f16 operations", f16.unwrap_or(f64::NAN)),
        None => ("f32 operations", best.f32_gflops * 1e9),
    };
    let rows = reads
        .into_iter()
        .map(|(name, bytes, rate)| json!({ "name": name, "ms": bytes as f64 / rate * 1e3, "gbps": rate / 1e9 }))
        .chain(kernels.iter().map(|kernel| kernel.row(best, roof(kernel), on.threads())))
        .collect();
    let report = json!({
        "unit": on.unit,
        "precision": on.precision.to_string(),
        "threads": on.threads(),
        "chip": Chip::detect().key(),
        "best": best,
        "bf16_gflops": bf16.map(|operations| operations / 1e9),
        "int8_gflops": int8.map(|operations| operations / 1e9),
        "kernels": Json::Array(rows),
    });
    if as_json {
        println!("{report}");
        return Ok(());
    }
    Ok(print(&report)?)
}

/// Compiles a kernel and runs it for so long.
fn measured(case: Case, unit: &dyn ComputeUnit, on: &UnitArgs, duration: Duration) -> Result<Measured, Box<dyn Error>> {
    let (mut graph, inputs) = case.build()?;
    optimize(&mut graph, &PassOptions::default());
    let compile = calibrated(&graph, unit, on.precision.into(), std::slice::from_ref(&inputs))?;
    let options = ModelOptions { compile, ..ModelOptions::default() };
    let mut session = Model::compile(graph, unit, &options)?.session();
    session.run(&inputs)?;
    let (mut times, mut reads, mut probes) = (Vec::new(), Vec::new(), Vec::new());
    let bytes = case.bytes(on.precision);
    let other = (case.roof == Roof::ReadingMemory).then(|| rates::Data::new(OTHER_BYTES));
    let same = (case.roof != Roof::Operations).then(|| rates::Data::new(bytes));
    let before_each = || other.iter().for_each(rates::Data::read);
    // On one thread processor time: what else runs on the machine is not in it.
    let typical = |runs: Times| median(if on.threads() == 1 { runs.cpu } else { runs.lat });
    let slice = duration / SLICES / if same.is_some() { 2 } else { 1 };
    for _ in 0..SLICES {
        let before = rates::probe();
        times.push(typical(measure(&mut session, std::slice::from_ref(&inputs), slice, 1, before_each)?));
        if let Some(same) = &same {
            let read = || {
                same.read();
                Ok(())
            };
            let scale = bytes as f64 / same.bytes() as f64;
            reads.push(typical(timed(slice, 1, before_each, read)?) * scale);
        }
        probes.push(before.worst(rates::probe()));
    }
    // Integers of 8 bits are multiplied so in every precision, where the model has them.
    let multiplied = session.steps().into_iter().filter_map(|step| step.multiply);
    let factors = multiplied.max_by_key(|factors| *factors == Factors::Integers);
    let peak = factors.and_then(|factors| roofs::peak(factors, on.matrix()));
    Ok(Measured {
        case,
        bytes,
        times,
        reads,
        probes,
        matrix: factors.zip(peak),
        reference: session.coverage().reference,
    })
}

impl Measured {
    /// How long a run takes, and how near that is to the machine's best: to plain reading, or to the
    /// operations a second of one thread that `operations` names.
    fn row(&self, best: Probe, operations: (&str, f64), threads: usize) -> Json {
        let is_steady: Vec<bool> = self.probes.iter().map(|probe| !probe.is_slow(best)).collect();
        let slow = is_steady.iter().filter(|is_steady| !**is_steady).count();
        let typical = |times: &[f64]| {
            let steady = times.iter().zip(&is_steady).filter_map(|(time, steady)| steady.then_some(*time));
            median(if slow < times.len() { steady.collect() } else { times.to_vec() })
        };
        let time = typical(&self.times);
        let (roof, possible) = match self.case.roof {
            Roof::ReadingMemory => ("reading memory", typical(&self.reads)),
            Roof::Reading => ("reading", typical(&self.reads)),
            Roof::Operations => (operations.0, self.case.operations / (operations.1 * threads as f64)),
        };
        json!({
            "name": self.case.name,
            "ms": time * 1e3,
            "gflops": self.case.operations / time / 1e9,
            "gbps": self.bytes as f64 / time / 1e9,
            "share": possible / time,
            "roof": roof,
            "slow": slow,
            "samples": self.times.len(),
            "reference": self.reference,
        })
    }
}

fn print(report: &Json) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let text = |key: &str| report[key].as_str().unwrap_or_default().to_owned();
    writeln!(out, "{}, {} thread(s), precision {}", text("chip"), report["threads"], text("precision"))?;
    writeln!(
        out,
        "one thread at best: {:.1} GFLOP/s in f32, {:.1} GB/s from the first-level cache",
        number(&report["best"]["f32_gflops"]),
        number(&report["best"]["l1_read_gbps"])
    )?;
    if let Some(gflops) = report["bf16_gflops"].as_f64() {
        writeln!(out, "its matrix unit: {gflops:.1} GFLOP/s in bf16")?;
    }
    if let Some(gflops) = report["int8_gflops"].as_f64() {
        writeln!(out, "{gflops:.1} GFLOP/s in int8")?;
    }
    writeln!(out, "{:30} {:>10} {:>9} {:>8}  share of what the machine can do", "", "time", "GFLOP/s", "GB/s")?;
    for row in report["kernels"].as_array().into_iter().flatten() {
        print_row(&mut out, row)?;
    }
    Ok(())
}

fn print_row(out: &mut impl Write, row: &Json) -> io::Result<()> {
    let ms = number(&row["ms"]);
    let time = if ms < 1.0 { format!("{:.1} us", ms * 1e3) } else { format!("{ms:.2} ms") };
    write!(out, "{:30} {time:>10}", row["name"].as_str().unwrap_or_default())?;
    match row["gflops"].as_f64() {
        Some(gflops) => write!(out, " {gflops:9.1}")?,
        None => write!(out, " {:9}", "")?,
    }
    write!(out, " {:8.1}", number(&row["gbps"]))?;
    if let Some(share) = row["share"].as_f64() {
        write!(out, "  {share:.2} of {}", row["roof"].as_str().unwrap_or_default())?;
        if row["slow"] != 0 {
            write!(out, ", {} of {} samples slow", row["slow"], row["samples"])?;
        }
        if row["reference"] != 0 {
            write!(out, ", by its definition")?;
        }
    }
    writeln!(out)
}

fn number(json: &Json) -> f64 {
    json.as_f64().unwrap_or(f64::NAN)
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert!(median(Vec::new()).is_nan());
    }
}
