//! Whether the machine runs at full speed.
//!
//! Virtual machines share their cores with others: for seconds, loads from the first-level cache or
//! multiplications may take twice as long. Figures taken then say nothing, so they are dropped.

use serde::Serialize;

/// A rate this much below the best one tells of a slow moment.
const SLOW: f64 = 1.25;

/// How fast one thread of a machine is at a moment. Whoever owns the unit's instructions measures it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Probe {
    /// Multiplications and additions of f32, 10⁹ a second.
    pub f32_gflops: f64,
    /// Bytes from the first-level cache, 10⁹ a second.
    pub l1_read_gbps: f64,
}

impl Probe {
    /// The higher rates of both.
    pub fn best(self, other: Probe) -> Probe {
        self.zip(other, f64::max)
    }

    /// The lower rates of both.
    pub fn worst(self, other: Probe) -> Probe {
        self.zip(other, f64::min)
    }

    /// Whether a rate is far below that of the best moments.
    pub fn is_slow(self, best: Probe) -> bool {
        self.f32_gflops * SLOW < best.f32_gflops || self.l1_read_gbps * SLOW < best.l1_read_gbps
    }

    fn zip(self, other: Probe, choose: fn(f64, f64) -> f64) -> Probe {
        Probe {
            f32_gflops: choose(self.f32_gflops, other.f32_gflops),
            l1_read_gbps: choose(self.l1_read_gbps, other.l1_read_gbps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_rate_makes_a_moment_slow() {
        let best = Probe { f32_gflops: 140.0, l1_read_gbps: 200.0 };
        assert!(!Probe { f32_gflops: 120.0, l1_read_gbps: 170.0 }.is_slow(best));
        assert!(Probe { f32_gflops: 70.0, ..best }.is_slow(best));
        assert!(Probe { l1_read_gbps: 120.0, ..best }.is_slow(best));
        let mixed = Probe { f32_gflops: 70.0, l1_read_gbps: 210.0 };
        assert_eq!(best.best(mixed), Probe { f32_gflops: 140.0, l1_read_gbps: 210.0 });
        assert_eq!(best.worst(mixed), Probe { f32_gflops: 70.0, l1_read_gbps: 200.0 });
    }
}
