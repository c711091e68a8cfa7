//! The slowest requests of late, and where their time went.

use std::{
    mem,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;

use super::{ComputeDurations, recorder::ns};

/// So many are kept of each window.
const KEPT: usize = 8;
/// Requests are kept for one to two windows.
const WINDOW: Duration = Duration::from_secs(60);
/// Longer identifiers are cut: they are the client's, and some clients put all they know into them.
const ID_CHARS_MAX: usize = 128;

/// A request that was among the slowest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowRequest {
    /// The client's identifier; empty: none.
    pub id: String,
    /// Inferences of the request.
    pub batch_size: usize,
    /// When it was answered, in milliseconds since 1970.
    pub ended_ms: u64,
    /// From its arrival to its response.
    pub total: Duration,
    /// From its arrival to the queue: reading and checking it.
    pub arrival: Duration,
    /// In the queue.
    pub queue: Duration,
    /// Gathering of its batch's inputs.
    pub input: Duration,
    /// The execution itself.
    pub infer: Duration,
    /// Scattering of its batch's outputs.
    pub output: Duration,
}

/// A request that succeeded, as it is recorded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Success<'a> {
    /// The client's identifier.
    pub id: &'a str,
    /// Inferences of the request.
    pub batch_size: usize,
    /// When it arrived.
    pub start: Instant,
    /// When it was put into the queue.
    pub queued: Instant,
    /// When it began to run.
    pub compute_start: Instant,
    /// When it was answered.
    pub end: Instant,
    /// How long each part of its execution took.
    pub compute: ComputeDurations,
}

/// Keeps the slowest. A request that is none of them costs two loads and a comparison.
#[derive(Debug)]
pub(crate) struct Slowest {
    created: Instant,
    /// Requests that took no longer are not kept, in nanoseconds.
    floor: AtomicU64,
    /// When the window is over, in nanoseconds since `created`.
    window_end: AtomicU64,
    /// Those of this window and of the one before.
    windows: Mutex<[Vec<SlowRequest>; 2]>,
}

impl Default for Slowest {
    fn default() -> Self {
        Self::new(Instant::now())
    }
}

impl Slowest {
    fn new(now: Instant) -> Self {
        let window_end = AtomicU64::new(ns(WINDOW));
        Self { created: now, floor: AtomicU64::new(0), window_end, windows: Mutex::default() }
    }

    pub fn observe(&self, success: &Success<'_>) {
        let total = success.end.saturating_duration_since(success.start);
        let age = ns(success.end.saturating_duration_since(self.created));
        if ns(total) <= self.floor.load(Relaxed) && age < self.window_end.load(Relaxed) {
            return;
        }
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let request = SlowRequest {
            id: success.id.chars().take(ID_CHARS_MAX).collect(),
            batch_size: success.batch_size,
            ended_ms: u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX),
            total,
            arrival: success.queued.saturating_duration_since(success.start),
            queue: success.compute_start.saturating_duration_since(success.queued),
            input: success.compute.input,
            infer: success.compute.infer,
            output: success.compute.output,
        };
        let mut windows = self.windows.lock();
        self.advance(&mut windows, age);
        let [current, _] = &mut *windows;
        let place = current.partition_point(|kept| kept.total >= total);
        current.insert(place, request);
        current.truncate(KEPT);
        if current.len() == KEPT {
            self.floor.store(current.last().map_or(0, |kept| ns(kept.total)), Relaxed);
        }
    }

    /// The slowest first.
    pub fn read(&self, now: Instant) -> Vec<SlowRequest> {
        let mut windows = self.windows.lock();
        self.advance(&mut windows, ns(now.saturating_duration_since(self.created)));
        let mut all = windows.concat();
        drop(windows);
        all.sort_by_key(|kept| std::cmp::Reverse(kept.total));
        all.truncate(KEPT);
        all
    }

    /// Begins the window of a moment, in nanoseconds since `created`, and forgets what is too old.
    fn advance(&self, windows: &mut [Vec<SlowRequest>; 2], age: u64) {
        let end = self.window_end.load(Relaxed);
        if age < end {
            return;
        }
        let current = mem::take(&mut windows[0]);
        windows[1] = if age < end.saturating_add(ns(WINDOW)) { current } else { Vec::new() };
        self.window_end.store(age.saturating_add(ns(WINDOW)), Relaxed);
        self.floor.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn answered(slowest: &Slowest, id: &str, start: Instant, ms: u64) {
        let (queued, compute_start) = (start + MS(1), start + MS(3));
        let compute = ComputeDurations { infer: MS(ms) - MS(3), ..ComputeDurations::default() };
        let end = start + MS(ms);
        slowest.observe(&Success { id, batch_size: 2, start, queued, compute_start, end, compute });
    }

    fn totals(slowest: &Slowest, now: Instant) -> Vec<u128> {
        slowest.read(now).iter().map(|request| request.total.as_millis()).collect()
    }

    #[test]
    fn the_slowest_are_kept() {
        let start = Instant::now();
        let slowest = Slowest::new(start);
        for ms in [7, 30, 4, 9, 20, 5, 11, 6, 8, 10, 3] {
            answered(&slowest, "r", start, ms);
        }
        assert_eq!(totals(&slowest, start), [30, 20, 11, 10, 9, 8, 7, 6]);
        let first = &slowest.read(start)[0];
        assert_eq!((&*first.id, first.batch_size), ("r", 2));
        assert_eq!((first.arrival, first.queue, first.infer), (MS(1), MS(2), MS(27)));
    }

    #[test]
    fn old_ones_are_forgotten() {
        let start = Instant::now();
        let slowest = Slowest::new(start);
        let at = |seconds| start + Duration::from_secs(seconds);
        (0..KEPT).for_each(|_| answered(&slowest, "before", start, 900));
        answered(&slowest, "later", at(70), 5);
        assert_eq!(totals(&slowest, at(71)).len(), KEPT);
        answered(&slowest, "later", at(140), 4);
        assert_eq!(totals(&slowest, at(141)), [5, 4]);
        assert!(totals(&slowest, at(1_000)).is_empty());
    }

    #[test]
    fn an_identifier_is_not_kept_in_all_its_length() {
        let (start, long) = (Instant::now(), "ü".repeat(5_000));
        let slowest = Slowest::new(start);
        answered(&slowest, &long, start, 9);
        assert_eq!(slowest.read(start)[0].id.chars().count(), ID_CHARS_MAX);
    }
}
