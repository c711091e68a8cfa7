//! Counters that instances write while they work.

use std::{
    collections::BTreeMap,
    sync::atomic::{
        AtomicI64, AtomicU64, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
    time::{self, Instant, SystemTime},
};

use parking_lot::Mutex;

use super::{
    BatchStatistics, Duration, Histogram, InferenceStatistics, ModelStatistics, ResponseStatistics, SlowRequest,
    Success,
    latency::Latencies,
    slowest::Slowest,
    summary::{SUMMARIES, Summaries, SummaryValues},
};
use crate::options::MetricsOptions;

/// Responses to a request that are counted each by its place. Those behind are counted together, at this place: a model may send any number
/// of them, and what is counted stays as long as it.
const PLACES_MAX: u64 = 4096;

/// Why a request failed, as the metrics tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureReason {
    /// It waited too long.
    Rejected,
    /// The client gave up.
    Canceled,
    /// The model failed.
    Backend,
    /// Anything else.
    Other,
}

impl FailureReason {
    /// All reasons.
    pub const ALL: [FailureReason; 4] =
        [FailureReason::Rejected, FailureReason::Canceled, FailureReason::Backend, FailureReason::Other];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            FailureReason::Rejected => "REJECTED",
            FailureReason::Canceled => "CANCELED",
            FailureReason::Backend => "BACKEND",
            FailureReason::Other => "OTHER",
        }
    }
}

/// The times of one execution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ComputeTimes {
    /// The instance took the batch.
    pub start: Instant,
    /// The inputs are gathered.
    pub input_end: Instant,
    /// The outputs are computed.
    pub output_start: Instant,
    /// The outputs are scattered.
    pub end: Instant,
}

impl ComputeTimes {
    /// The time that each part took.
    pub fn durations(&self) -> ComputeDurations {
        ComputeDurations {
            input: self.input_end.saturating_duration_since(self.start),
            infer: self.output_start.saturating_duration_since(self.input_end),
            output: self.end.saturating_duration_since(self.output_start),
        }
    }
}

/// What became of one of the responses of a decoupled model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has outputs.
    Success,
    /// It is an error.
    Fail,
    /// The model had nothing to say.
    Empty,
    /// The client had gone.
    Cancel,
}

/// How long each part of an execution took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ComputeDurations {
    /// Gathering of inputs.
    pub input: time::Duration,
    /// The execution itself.
    pub infer: time::Duration,
    /// Scattering of outputs.
    pub output: time::Duration,
}

impl std::ops::AddAssign for ComputeDurations {
    fn add_assign(&mut self, other: Self) {
        self.input += other.input;
        self.infer += other.infer;
        self.output += other.output;
    }
}

/// What happens to the requests of one version of a model. Any number of threads record at once.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    inference_count: AtomicU64,
    execution_count: AtomicU64,
    last_inference_ms: AtomicU64,
    success: Counter,
    fail: Counter,
    queue: Counter,
    compute_input: Counter,
    compute_infer: Counter,
    compute_output: Counter,
    cache_hit: Counter,
    cache_miss: Counter,
    failures: [AtomicU64; FailureReason::ALL.len()],
    pending: AtomicI64,
    load_ns: AtomicU64,
    batches: Mutex<BTreeMap<u64, BatchStatistics>>,
    /// By the response's place among those of its request.
    responses: Mutex<BTreeMap<u64, ResponseStatistics>>,
    /// Requests that are not answered to the end.
    in_flight: AtomicUsize,
    summaries: Option<Mutex<Summaries>>,
    first_responses: Option<Histogram>,
    latencies: Latencies,
    slowest: Slowest,
}

#[derive(Debug, Default)]
struct Counter {
    count: AtomicU64,
    ns: AtomicU64,
}

impl Counter {
    fn add(&self, duration: time::Duration) {
        self.count.fetch_add(1, Relaxed);
        self.ns.fetch_add(ns(duration), Relaxed);
    }

    /// More time for what is counted already.
    fn extend(&self, duration: time::Duration) {
        self.ns.fetch_add(ns(duration), Relaxed);
    }

    fn read(&self) -> Duration {
        Duration { count: self.count.load(Relaxed), ns: self.ns.load(Relaxed) }
    }
}

pub(super) fn ns(duration: time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Recorder {
    /// A recorder of what `options` ask for.
    pub fn new(options: &MetricsOptions) -> Self {
        let summaries = options.summary_latencies.then(|| Mutex::new(Summaries::new(Instant::now())));
        Self { summaries, ..Self::default() }
    }

    /// The same with a histogram, of what it is asked for.
    pub fn with_first_responses(self, histogram: Option<Histogram>) -> Self {
        Self { first_responses: histogram, ..self }
    }

    /// How long requests wait for their first response, if that is collected.
    pub fn first_responses(&self) -> Option<&Histogram> {
        self.first_responses.as_ref()
    }

    /// A request succeeded.
    pub fn success(&self, success: &Success<'_>) {
        let Success { batch_size, start, queued, compute_start, end, compute, .. } = *success;
        let request = end.saturating_duration_since(start);
        let queue = compute_start.saturating_duration_since(queued);
        self.inference_count.fetch_add(batch_size as u64, Relaxed);
        self.success.add(request);
        self.queue.add(queue);
        self.compute_input.add(compute.input);
        self.compute_infer.add(compute.infer);
        self.compute_output.add(compute.output);
        self.latencies.observe(request);
        self.slowest.observe(success);
        if let Some(summaries) = &self.summaries {
            summaries.lock().observe([request, queue, compute.input, compute.infer, compute.output], end);
        }
    }

    /// A request that arrived at `start` and was to be queued at `queued` was answered from the cache, which was asked
    /// at `asked` and took `lookup`.
    pub fn cache_hit(&self, start: Instant, queued: Instant, asked: Instant, lookup: time::Duration) {
        let (end, queue) = (asked + lookup, asked.saturating_duration_since(queued));
        let request = end.saturating_duration_since(start);
        self.success.add(request);
        self.latencies.observe(request);
        self.queue.add(queue);
        self.cache_hit.add(lookup);
        if let Some(summaries) = &self.summaries {
            summaries.lock().observe_hit(queue, lookup, end);
        }
    }

    /// A request was not found in the cache; to ask it and to keep the answer took `duration`.
    pub fn cache_miss(&self, duration: time::Duration) {
        self.success.extend(duration);
        self.cache_miss.add(duration);
        if let Some(summaries) = &self.summaries {
            summaries.lock().observe_miss(duration, Instant::now());
        }
    }

    /// A request that arrived at `start` failed at `end`.
    pub fn failure(&self, reason: FailureReason, start: Instant, end: Instant) {
        self.fail.add(end.saturating_duration_since(start));
        self.failures[reason as usize].fetch_add(1, Relaxed);
    }

    /// A batch of `batch_size` inferences was executed.
    pub fn execution(&self, batch_size: usize, compute: ComputeDurations) {
        self.execution_count.fetch_add(1, Relaxed);
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.last_inference_ms.store(u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX), Relaxed);
        let mut batches = self.batches.lock();
        let batch = batches.entry(batch_size as u64).or_default();
        let parts = [
            (&mut batch.compute_input, compute.input),
            (&mut batch.compute_infer, compute.infer),
            (&mut batch.compute_output, compute.output),
        ];
        for (total, duration) in parts {
            total.count += 1;
            total.ns += ns(duration);
        }
    }

    /// The response number `index` of a decoupled model's request was `outcome`; to compute it took `infer`,
    /// and to give its outputs away `output`.
    pub fn response(&self, index: u64, outcome: Outcome, infer: time::Duration, output: time::Duration) {
        let mut responses = self.responses.lock();
        let all = responses.entry(index.min(PLACES_MAX)).or_default();
        let add = |total: &mut Duration, duration| {
            total.count += 1;
            total.ns += ns(duration);
        };
        if outcome == Outcome::Cancel {
            return add(&mut all.cancel, infer + output);
        }
        add(&mut all.compute_infer, infer);
        if outcome == Outcome::Success || !output.is_zero() {
            add(&mut all.compute_output, output);
        }
        let total = match outcome {
            Outcome::Success => &mut all.success,
            Outcome::Fail => &mut all.fail,
            Outcome::Empty | Outcome::Cancel => &mut all.empty_response,
        };
        add(total, infer + output);
    }

    /// `count` requests came.
    pub fn enter(&self, count: usize) {
        self.in_flight.fetch_add(count, SeqCst);
    }

    /// `count` requests have their last response.
    pub fn leave(&self, count: usize) {
        self.in_flight.fetch_sub(count, SeqCst);
    }

    /// Requests that are not answered to the end.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(SeqCst)
    }

    /// `change` more requests wait to run.
    pub fn pending(&self, change: i64) {
        self.pending.fetch_add(change, Relaxed);
    }

    /// The model took so long to load.
    pub fn loaded_in(&self, duration: time::Duration) {
        self.load_ns.store(ns(duration), Relaxed);
    }

    /// Number of requests that wait to run.
    pub fn pending_count(&self) -> i64 {
        self.pending.load(Relaxed)
    }

    /// How long the model took to load, in seconds.
    pub fn load_seconds(&self) -> f64 {
        self.load_ns.load(Relaxed) as f64 / 1e9
    }

    /// Requests that failed for `reason`.
    pub fn failure_count(&self, reason: FailureReason) -> u64 {
        self.failures[reason as usize].load(Relaxed)
    }

    /// Quantiles of request, queue, input, inference and output times, of hits and misses of the cache, if they are collected.
    pub fn summaries(&self, quantiles: &[f64], now: Instant) -> Option<[SummaryValues; SUMMARIES]> {
        Some(self.summaries.as_ref()?.lock().read(quantiles, now))
    }

    /// How long requests took: upper bounds in nanoseconds with the number of requests up to them that are in no lower one.
    pub fn latencies(&self) -> Vec<(u64, u64)> {
        self.latencies.read()
    }

    /// The slowest requests of late, the slowest first.
    pub fn slowest(&self, now: Instant) -> Vec<SlowRequest> {
        self.slowest.read(now)
    }

    /// Everything so far.
    pub fn snapshot(&self, name: &str, version: i64) -> ModelStatistics {
        let batches = self.batches.lock();
        ModelStatistics {
            name: name.to_owned(),
            version,
            last_inference_ms: self.last_inference_ms.load(Relaxed),
            inference_count: self.inference_count.load(Relaxed),
            execution_count: self.execution_count.load(Relaxed),
            inference: InferenceStatistics {
                success: self.success.read(),
                fail: self.fail.read(),
                queue: self.queue.read(),
                compute_input: self.compute_input.read(),
                compute_infer: self.compute_infer.read(),
                compute_output: self.compute_output.read(),
                cache_hit: self.cache_hit.read(),
                cache_miss: self.cache_miss.read(),
            },
            responses: self.responses.lock().iter().map(|(index, response)| (index.to_string(), *response)).collect(),
            batches: batches.iter().map(|(&batch_size, batch)| BatchStatistics { batch_size, ..*batch }).collect(),
            ..ModelStatistics::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> time::Duration = time::Duration::from_millis;

    #[test]
    fn requests_and_executions_are_counted_apart() {
        let recorder = Recorder::new(&MetricsOptions::default());
        let start = Instant::now();
        let times = ComputeTimes {
            start: start + MS(3),
            input_end: start + MS(4),
            output_start: start + MS(9),
            end: start + MS(11),
        };
        for batch_size in [1, 3] {
            recorder.success(&Success {
                id: "",
                batch_size,
                start,
                queued: start + MS(1),
                compute_start: times.start,
                end: start + MS(12),
                compute: times.durations(),
            });
        }
        recorder.execution(4, times.durations());
        recorder.failure(FailureReason::Canceled, start, start + MS(5));
        let all = recorder.snapshot("m", 2);
        assert_eq!((all.inference_count, all.execution_count), (4, 1));
        let ms = |count, ms: u64| Duration { count, ns: ms * 1_000_000 };
        assert_eq!(all.inference.success, ms(2, 24));
        assert_eq!(all.inference.fail, ms(1, 5));
        assert_eq!(all.inference.queue, ms(2, 4));
        assert_eq!(all.inference.compute_input, ms(2, 2));
        assert_eq!(all.inference.compute_infer, ms(2, 10));
        assert_eq!(all.inference.compute_output, ms(2, 4));
        assert_eq!(all.batches.len(), 1);
        assert_eq!((all.batches[0].batch_size, all.batches[0].compute_infer), (4, ms(1, 5)));
        assert!(all.last_inference_ms > 1_600_000_000_000);
        for outcome in [Outcome::Success, Outcome::Fail, Outcome::Empty, Outcome::Cancel] {
            let output = if outcome == Outcome::Empty { MS(0) } else { MS(2) };
            recorder.response(10, outcome, MS(3), output);
        }
        let response = recorder.snapshot("m", 2).responses["10"];
        assert_eq!((response.compute_infer, response.compute_output), (ms(3, 9), ms(2, 4)));
        assert_eq!((response.success, response.fail), (ms(1, 5), ms(1, 5)));
        assert_eq!((response.empty_response, response.cancel), (ms(1, 3), ms(1, 5)));
        assert_eq!(FailureReason::ALL.map(|reason| recorder.failure_count(reason)), [0, 1, 0, 0]);
    }

    #[test]
    fn places_of_responses_have_a_bound() {
        let recorder = Recorder::new(&MetricsOptions::default());
        for index in (0..2 * PLACES_MAX).chain([u64::MAX]) {
            recorder.response(index, Outcome::Success, MS(1), MS(1));
        }
        let responses = recorder.snapshot("m", 1).responses;
        assert_eq!(responses.len() as u64, PLACES_MAX + 1);
        assert_eq!(responses[&(PLACES_MAX - 1).to_string()].success.count, 1);
        assert_eq!(responses[&PLACES_MAX.to_string()].success.count, PLACES_MAX + 1);
    }
}
