//! How long requests wait for their first response, by buckets.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::Recorder;
use crate::{
    config::{ModelConfig, proto::model_metrics::metric_control::MetricOptions},
    response::Responder,
};

/// The metric whose buckets a configuration may set.
pub(crate) const FIRST_RESPONSE: &str = "nv_inference_first_response_histogram_ms";
/// Its buckets otherwise.
const BUCKETS: [f64; 4] = [100.0, 500.0, 2000.0, 5000.0];

/// Durations in milliseconds by buckets.
#[derive(Debug)]
pub(crate) struct Histogram {
    /// Upper bounds, the last one infinite, and how many lie at or below each but above the one before.
    buckets: Mutex<(Vec<(f64, u64)>, f64)>,
}

impl Histogram {
    /// With the buckets that the configuration gives, or the usual ones.
    pub fn of_first_responses(config: &ModelConfig) -> Self {
        let controls = config.model_metrics.iter().flat_map(|metrics| &metrics.metric_control);
        let own = controls.filter(|control| {
            control.metric_identifier.as_ref().is_some_and(|identifier| identifier.family == FIRST_RESPONSE)
        });
        let mut own = own.filter_map(|control| control.metric_options.as_ref());
        let last = own.next_back().map(|MetricOptions::HistogramOptions(options)| options.buckets.clone());
        let mut bounds = last.unwrap_or_else(|| BUCKETS.to_vec());
        bounds.push(f64::INFINITY);
        Self { buckets: Mutex::new((bounds.into_iter().map(|bound| (bound, 0)).collect(), 0.0)) }
    }

    /// Counts a duration in whole milliseconds.
    pub fn observe(&self, duration: Duration) {
        let ms = duration.as_millis() as f64;
        let mut all = self.buckets.lock();
        let (buckets, sum) = &mut *all;
        *sum += ms;
        if let Some((_, count)) = buckets.iter_mut().find(|(bound, _)| ms <= *bound) {
            *count += 1;
        }
    }

    /// Upper bounds with all observations at or below each, and the sum of all.
    pub fn read(&self) -> (Vec<(f64, u64)>, f64) {
        let all = self.buckets.lock();
        let mut total = 0;
        let cumulative = all.0.iter().map(|(bound, count)| {
            total += count;
            (*bound, total)
        });
        (cumulative.collect(), all.1)
    }
}

/// Times the first response to a request that came at `start`.
pub(crate) fn time_first_response(recorder: Arc<Recorder>, start: Instant, responder: &mut Responder) {
    let mut start = Some(start);
    responder.observed(move |_| {
        if let (Some(start), Some(histogram)) = (start.take(), recorder.first_responses()) {
            histogram.observe(start.elapsed());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_by_buckets() {
        let histogram = Histogram::of_first_responses(&ModelConfig::default());
        for ms in [1, 100, 101, 6000] {
            histogram.observe(Duration::from_millis(ms));
        }
        let expected = vec![(100.0, 2), (500.0, 3), (2000.0, 3), (5000.0, 3), (f64::INFINITY, 4)];
        assert_eq!(histogram.read(), (expected, 6202.0));
    }
}
