//! Quantiles of recent durations, for the summary metrics.

use std::time::{Duration, Instant};

/// Durations older than this are forgotten.
const AGE_MAX: Duration = Duration::from_secs(60);
/// The window advances in so many steps.
const STEPS: usize = 5;
/// A bucket's bounds differ by this factor, so an estimate is within 1 % of a real observation.
const GROWTH: f64 = 1.02;
/// Buckets reach from 1 microsecond to over an hour.
const BUCKETS: usize = 1150;

/// How many durations have a summary.
pub(crate) const SUMMARIES: usize = 7;

/// Quantiles of the five durations of a request, which are whole, queue, input, inference and output; then of hits and
/// misses of the cache.
#[derive(Debug)]
pub(crate) struct Summaries([Summary; SUMMARIES]);

/// What a summary metric shows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SummaryValues {
    /// The estimates in microseconds, one per quantile asked for; NaN without recent observations.
    pub quantiles: Vec<f64>,
    /// Sum of all observations in microseconds.
    pub sum_us: f64,
    /// Number of all observations.
    pub count: u64,
}

/// Durations of the last minute in buckets that grow geometrically.
#[derive(Debug)]
struct Summary {
    /// One histogram per step of the window.
    steps: [Vec<u32>; STEPS],
    current: usize,
    step_start: Instant,
    sum_us: f64,
    count: u64,
}

impl Summaries {
    pub fn new(now: Instant) -> Self {
        Self(std::array::from_fn(|_| Summary::new(now)))
    }

    pub fn observe(&mut self, durations: [Duration; 5], now: Instant) {
        for (summary, duration) in self.0.iter_mut().zip(durations) {
            summary.observe(duration, now);
        }
    }

    /// A request that waited for `queue` was found in the cache within `hit`.
    pub fn observe_hit(&mut self, queue: Duration, hit: Duration, now: Instant) {
        self.0[1].observe(queue, now);
        self.0[5].observe(hit, now);
    }

    /// To miss in the cache, and to keep the answer, took `miss`.
    pub fn observe_miss(&mut self, miss: Duration, now: Instant) {
        self.0[6].observe(miss, now);
    }

    pub fn read(&mut self, quantiles: &[f64], now: Instant) -> [SummaryValues; SUMMARIES] {
        self.0.each_mut().map(|summary| summary.read(quantiles, now))
    }
}

impl Summary {
    fn new(now: Instant) -> Self {
        Self { steps: Default::default(), current: 0, step_start: now, sum_us: 0.0, count: 0 }
    }

    fn observe(&mut self, duration: Duration, now: Instant) {
        self.advance(now);
        let us = duration.as_secs_f64() * 1e6;
        let step = &mut self.steps[self.current];
        step.resize(BUCKETS, 0);
        step[bucket(us)] += 1;
        self.sum_us += us;
        self.count += 1;
    }

    fn read(&mut self, quantiles: &[f64], now: Instant) -> SummaryValues {
        self.advance(now);
        let mut merged = vec![0u64; BUCKETS];
        for step in &self.steps {
            merged.iter_mut().zip(step).for_each(|(total, &count)| *total += u64::from(count));
        }
        let recent: u64 = merged.iter().sum();
        let estimate = |quantile: f64| {
            let rank = ((quantile * recent as f64).ceil() as u64).clamp(1, recent.max(1));
            let mut seen = 0;
            let found = merged.iter().position(|&count| {
                seen += count;
                seen >= rank
            });
            found.map_or(f64::NAN, value)
        };
        let quantiles = quantiles.iter().map(|&quantile| estimate(quantile)).collect();
        SummaryValues { quantiles, sum_us: self.sum_us, count: self.count }
    }

    /// Forgets the steps of the window that are over.
    fn advance(&mut self, now: Instant) {
        let step = AGE_MAX / STEPS as u32;
        let mut over = 0;
        while now.saturating_duration_since(self.step_start) >= step && over < STEPS {
            self.current = (self.current + 1) % STEPS;
            self.steps[self.current].clear();
            self.step_start += step;
            over += 1;
        }
        if over == STEPS {
            self.step_start = now;
        }
    }
}

/// The bucket of a duration in microseconds.
fn bucket(us: f64) -> usize {
    // Casting a float saturates, so that a negative logarithm gives the first bucket.
    ((us.max(1.0).ln() / GROWTH.ln()) as usize).min(BUCKETS - 1)
}

/// The middle of a bucket.
fn value(bucket: usize) -> f64 {
    GROWTH.powf(bucket as f64 + 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_one_percent() {
        let start = Instant::now();
        let mut summary = Summary::new(start);
        for us in 1..=1000u64 {
            summary.observe(Duration::from_micros(us * 10), start);
        }
        let values = summary.read(&[0.5, 0.9, 0.99], start);
        for (estimate, expected) in values.quantiles.iter().zip([5000.0, 9000.0, 9900.0]) {
            assert!((estimate / expected - 1.0f64).abs() < 0.011, "{estimate} {expected}");
        }
        assert_eq!(values.count, 1000);
        assert!((values.sum_us - 5_005_000.0).abs() < 1.0);
    }

    #[test]
    fn old_durations_are_forgotten_and_sums_are_not() {
        let start = Instant::now();
        let mut summary = Summary::new(start);
        summary.observe(Duration::from_millis(1), start);
        summary.observe(Duration::from_millis(9), start + Duration::from_secs(30));
        let at = |summary: &mut Summary, s| summary.read(&[0.0], start + Duration::from_secs(s)).quantiles[0];
        assert!((at(&mut summary, 50) / 1000.0 - 1.0).abs() < 0.011);
        assert!((at(&mut summary, 65) / 9000.0 - 1.0).abs() < 0.011);
        assert!(at(&mut summary, 3600).is_nan());
        assert_eq!(summary.read(&[], start + Duration::from_secs(3600)).count, 2);
        assert!(bucket(f64::MAX) < BUCKETS && bucket(0.0) == 0);
    }
}
