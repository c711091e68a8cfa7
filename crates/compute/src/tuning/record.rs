use super::Config;
use serde::{Deserialize, Serialize};

/// What was measured of an operator: a line of the database.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The text of the [`Operator`](super::Operator).
    pub operator: String,
    /// Where the measurement counts.
    #[serde(flatten)]
    pub origin: Origin,
    /// The fastest configuration; an empty one where the kernel's own is.
    pub config: Config,
    /// Its times when it runs again and again; none of the kernel's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<Timing>,
    /// Its times when nothing that it reads lies in the second-level cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold: Option<Timing>,
    /// The machine meanwhile.
    pub probed: Probed,
    /// Day of the measurement: `2026-11-22`.
    pub date: String,
}

/// The machine and the code that a measurement counts for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// Name of the unit.
    pub unit: String,
    /// A text that is equal on equal chips.
    pub chip: String,
    /// Version of the unit's kernels: raised when what they do with a configuration changes.
    pub kernels: u32,
}

/// Times of the configuration in pairs with the default.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Median in microseconds.
    pub median_us: f64,
    /// A tenth of the samples was faster than this, in microseconds.
    pub p10_us: f64,
    /// Median, pair by pair, of how many times longer the default took.
    pub ratio: f64,
    /// Samples that were counted.
    pub samples: usize,
}

/// How fast the machine was during a measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Probed {
    /// Multiplications and additions of f32 on one thread, 10⁹ a second, at the best moment.
    pub f32_gflops: f64,
    /// Bytes from the first-level cache, 10⁹ a second, at the best moment.
    pub l1_read_gbps: f64,
    /// Samples of slow moments, which were dropped.
    pub dropped: usize,
}
