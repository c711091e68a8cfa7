//! The one list of compute units.

use halimede_compute::ComputeUnit;
use halimede_compute_cpu::{CpuOptions, CpuUnit};

/// Names of the units that there are.
pub const NAMES: &[&str] = &["cpu"];

/// More threads than this for each core only wait for each other.
const MOST_THREADS_PER_CORE: usize = 16;

/// The unit of that name. `threads` bounds the workers that run one operation together; `None` leaves the
/// choice to the unit.
pub fn find(name: &str, threads: Option<usize>) -> Result<Box<dyn ComputeUnit>, String> {
    let most = MOST_THREADS_PER_CORE * std::thread::available_parallelism().map_or(1, |cores| cores.get());
    if let Some(threads) = threads.filter(|threads| !(1..=most).contains(threads)) {
        return Err(format!("--threads {threads}: it is a number from 1 to {most} on this machine"));
    }
    match name {
        "cpu" => Ok(Box::new(CpuUnit::new(&CpuOptions { threads, ..CpuOptions::default() }))),
        other => Err(format!("no compute unit '{other}' here; there is: {}", NAMES.join(", "))),
    }
}
