//! The one list of compute units.

use std::sync::Arc;

use halimede_compute::{BandsOf, ComputeUnit, tuning::Choices};
use halimede_compute_cpu::{BlockedLayouts, CpuOptions, CpuUnit, MatrixChoice, MatrixUnits};

/// Names of the units that there are.
pub const NAMES: &[&str] = &["cpu"];

/// More threads than this for each core only wait for each other.
const MOST_THREADS_PER_CORE: usize = 16;

/// Choices for a unit.
#[derive(Debug, Clone)]
pub struct Choice {
    /// Most workers that run one operation together; `None` leaves that to the unit.
    pub threads: Option<usize>,
    /// Which matrix units multiply.
    pub matrix: MatrixUnits,
    /// Which values between products are blocked.
    pub blocked: BlockedLayouts,
    /// Which images go through several steps in bands.
    pub bands: BandsOf,
    /// Configurations of kernels that were measured to be fastest.
    pub choices: Arc<Choices>,
}

impl Default for Choice {
    fn default() -> Choice {
        let (blocked, bands) = (BlockedLayouts::default(), BandsOf::default());
        Choice { threads: None, matrix: matrix_units(true), blocked, bands, choices: Arc::default() }
    }
}

/// Those of this machine, or none where they may not be used.
pub fn matrix_units(may_be_used: bool) -> MatrixUnits {
    if may_be_used { MatrixChoice::Fastest.into() } else { MatrixChoice::None.into() }
}

/// The unit of that name.
pub fn find(name: &str, choice: Choice) -> Result<Box<dyn ComputeUnit>, String> {
    let Choice { threads, matrix, blocked, bands, choices } = choice;
    let most = MOST_THREADS_PER_CORE * std::thread::available_parallelism().map_or(1, |cores| cores.get());
    if let Some(threads) = threads.filter(|threads| !(1..=most).contains(threads)) {
        return Err(format!("--threads {threads}: it is a number from 1 to {most} on this machine"));
    }
    match name {
        "cpu" => Ok(Box::new(CpuUnit::new(&CpuOptions {
            threads,
            matrix,
            blocked,
            bands,
            choices,
            ..CpuOptions::default()
        }))),
        other => Err(format!("no compute unit '{other}' here; there is: {}", NAMES.join(", "))),
    }
}
