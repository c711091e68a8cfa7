//! How long requests take, for every model and always: what percentiles are worked out from.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// A bucket is an eighth of a power of two wide, so that a bound is within 12.5 % of what was observed.
const BITS: u32 = 3;
/// Everything shorter than 2^10 ns is in the first bucket.
const SHORTEST: u32 = 10;
/// Up to 2^42 ns, more than an hour; what takes longer is in the last bucket.
const BUCKETS: usize = (42 - SHORTEST as usize) << BITS;

/// Counts of durations since the model was loaded. To add one is one atomic addition.
#[derive(Debug)]
pub(crate) struct Latencies([AtomicU64; BUCKETS]);

impl Default for Latencies {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS])
    }
}

impl Latencies {
    pub fn observe(&self, duration: Duration) {
        self.0[bucket(super::recorder::ns(duration))].fetch_add(1, Relaxed);
    }

    /// Upper bounds in nanoseconds of the buckets that hold any, ascending, with what they hold.
    pub fn read(&self) -> Vec<(u64, u64)> {
        let counts = self.0.iter().enumerate().map(|(index, count)| (bound(index), count.load(Relaxed)));
        counts.filter(|&(_, count)| count > 0).collect()
    }
}

fn bucket(ns: u64) -> usize {
    let octave = ns.max(1).ilog2();
    if octave < SHORTEST {
        return 0;
    }
    let eighth = (ns >> (octave - BITS)) as usize & ((1 << BITS) - 1);
    ((((octave - SHORTEST) as usize) << BITS) | eighth).min(BUCKETS - 1)
}

/// The first duration beyond a bucket.
fn bound(index: usize) -> u64 {
    let (octave, eighth) = (SHORTEST + (index >> BITS) as u32, (index & ((1 << BITS) - 1)) as u64);
    ((1 << BITS) + eighth + 1) << (octave - BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_close_to_what_was_observed() {
        for ns in (1_024..100_000).step_by(7).chain([1 << 30, (1 << 30) + 1, 3_599_000_000_000]) {
            let bound = bound(bucket(ns));
            assert!(bound > ns && bound as f64 <= ns as f64 * 1.126, "{ns} in {bound}");
        }
        assert_eq!((bucket(0), bucket(1_000), bucket(u64::MAX)), (0, 0, BUCKETS - 1));
    }

    #[test]
    fn what_was_observed_is_read() {
        let latencies = Latencies::default();
        for us in [5, 5, 700] {
            latencies.observe(Duration::from_micros(us));
        }
        let read = latencies.read();
        assert_eq!(read.iter().map(|&(_, count)| count).collect::<Vec<_>>(), [2, 1]);
        assert!(read[0].0 > 5_000 && read[1].0 > 700_000);
    }
}
