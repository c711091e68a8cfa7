//! `halimede doctor`: what this machine has.

use std::{
    hint::black_box,
    process::ExitCode,
    time::{Duration, Instant},
};

use halimede_platform::{
    chip::{Cache, Chip},
    limits, memory, threads,
};

use crate::units;

/// Print the compute units, instruction sets, caches and memory of this machine, and whether its speed is
/// steady enough to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How long to watch the speed.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &Args) -> ExitCode {
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
        match units::find(name, None) {
            Ok(unit) => {
                let unit = unit.describe();
                println!(
                    "unit      {name}: {} threads, kernels for {}, precision {}",
                    unit.threads,
                    unit.features.join(" "),
                    unit.precisions
                        .iter()
                        .map(|precision| format!("{precision:?}").to_lowercase())
                        .collect::<Vec<_>>()
                        .join(" ")
                );
            }
            Err(error) => println!("unit      {name}: {error}"),
        }
    }
    print_steadiness(Duration::try_from_secs_f64(args.seconds).unwrap_or(Duration::from_secs(1)));
    ExitCode::SUCCESS
}

fn describe(cache: Cache) -> String {
    let shared = cache.shared_by.map_or(String::new(), |count| format!(", shared by {count} hardware threads"));
    format!("{} KiB{shared}", cache.bytes / 1024)
}

/// Bytes that the probe reads again and again: they lie in the first-level cache of every chip.
const PROBE_BYTES: usize = 16 << 10;

/// A sample this much slower than the fastest one counts as slow.
const SLOW: f64 = 1.3;

/// Reads a block from the first-level cache again and again. Some machines, virtual ones above all, fall
/// into a slow mode for seconds in which exactly this takes longer; figures taken then say nothing.
fn print_steadiness(duration: Duration) {
    let block = vec![1u64; PROBE_BYTES / 8];
    let mut samples = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < duration || samples.len() < 10 {
        let start = Instant::now();
        for _ in 0..50 {
            let sum: u64 = black_box(&block).iter().fold(0, |sum, value| sum.wrapping_add(*value));
            black_box(sum);
        }
        samples.push(start.elapsed().as_secs_f64());
    }
    let fastest = samples.iter().copied().fold(f64::INFINITY, f64::min);
    let slow = samples.iter().filter(|sample| **sample > fastest * SLOW).count();
    let share = slow as f64 / samples.len() as f64 * 100.0;
    let bandwidth = (PROBE_BYTES * 50) as f64 / fastest / 1e9;
    println!(
        "probe     {bandwidth:.1} GB/s from the first-level cache at best, {share:.0} % of {} samples slow",
        samples.len()
    );
    if share > 10.0 {
        println!("          the machine is not steady now: measure again later, and compare only interleaved runs");
    }
}
