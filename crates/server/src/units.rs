//! The one list of compute units.

use halimede_compute::ComputeUnit;
use halimede_compute_cpu::{CpuOptions, CpuUnit};

/// Names of the units that there are.
pub const NAMES: &[&str] = &["cpu"];

/// The unit of that name. `threads` bounds the workers that run one operation together; `None` leaves the
/// choice to the unit.
pub fn find(name: &str, threads: Option<usize>) -> Result<Box<dyn ComputeUnit>, String> {
    match name {
        "cpu" => Ok(Box::new(CpuUnit::new(&CpuOptions { threads, ..CpuOptions::default() }))),
        other => Err(format!("no compute unit '{other}' here; there is: {}", NAMES.join(", "))),
    }
}
