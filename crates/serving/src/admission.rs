//! Who gets memory: models that would not fit are refused before they take it, and requests while there is hardly any left.

#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    error::Error,
    metrics::{Family, Kind, Sample, Value},
};

/// How long a reading of the memory is good for.
const READ_INTERVAL: Duration = Duration::from_millis(100);
/// How often freed memory is given back while there is too little.
const RELEASE_INTERVAL: Duration = Duration::from_secs(1);
/// What refused clients are told to wait.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The part of the limit that is kept free for requests that run.
const RESERVE_DIVISOR: u64 = 32;
/// More than this is never kept free.
const RESERVE_MAX: u64 = 256 << 20;

/// What tells how much memory there is.
pub trait MemorySensor: Send + Sync {
    /// The memory, now.
    fn read(&self) -> MemoryReading;

    /// Gives memory that was freed back to the system.
    fn release(&self) {}
}

/// Memory in bytes; `None` is what the system does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryReading {
    /// What this process alone holds.
    pub private: Option<u64>,
    /// What programs may still take: of the machine, and of the container where there is one.
    pub left: Option<u64>,
}

/// How much memory a server may take.
#[derive(Clone)]
pub struct MemoryLimit {
    /// Most bytes of this process; `None`: all that machine and container have.
    pub bytes: Option<u64>,
    /// What tells how much there is.
    pub sensor: Arc<dyn MemorySensor>,
}

impl fmt::Debug for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLimit").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// What a model needs, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Its weights, as they are multiplied.
    pub weights: u64,
    /// What each instance takes for a run.
    pub instance: u64,
    /// How many there are.
    pub instances: u64,
}

impl MemoryNeed {
    fn total(&self) -> u64 {
        self.weights.saturating_add(self.instance.saturating_mul(self.instances))
    }
}

/// Decides who gets memory. Clones are one.
#[derive(Clone)]
pub struct Admission(Arc<Shared>);

struct Shared {
    limit: MemoryLimit,
    state: Mutex<State>,
    /// The same as in the state, for requests: they wait for nobody.
    is_scarce: AtomicBool,
    /// When the memory is to be read again, in nanoseconds since `start`.
    read_next: AtomicU64,
    start: Instant,
    refused_models: AtomicU64,
    refused_requests: AtomicU64,
}

#[derive(Default)]
struct State {
    /// What was read last.
    reading: MemoryReading,
    is_scarce: bool,
    released: Option<Instant>,
    /// Models that are being loaded.
    loading: u64,
    /// What the process will hold at least when they are.
    expected: u64,
}

/// What a model was promised; it is taken as used when it is loaded or not.
#[derive(Debug)]
pub struct Promise(Admission);

impl Admission {
    /// Admits by a limit.
    pub fn new(limit: MemoryLimit, start: Instant) -> Self {
        let shared = Shared {
            limit,
            state: Mutex::default(),
            is_scarce: AtomicBool::new(false),
            read_next: AtomicU64::new(0),
            start,
            refused_models: AtomicU64::new(0),
            refused_requests: AtomicU64::new(0),
        };
        let admission = Self(Arc::new(shared));
        admission.look(start);
        admission
    }

    /// Whether the system tells enough to decide by.
    pub fn is_available(&self) -> bool {
        self.left(&self.0.state.lock()).is_some()
    }

    /// Lets a model be loaded that needs this much at least, or says why not.
    ///
    /// # Errors
    /// It would not fit. The text has the numbers and the way out.
    pub fn promise(&self, model: &str, need: &MemoryNeed) -> Result<Promise, Error> {
        let mut state = self.0.state.lock();
        state.reading = self.0.limit.sensor.read();
        if self.left(&state).is_some_and(|left| left < need.total()) {
            // Memory that was freed may still be with the allocator.
            self.0.limit.sensor.release();
            state.reading = self.0.limit.sensor.read();
        }
        let left = self.left(&state);
        if let Some(left) = left.filter(|left| *left < need.total()) {
            self.0.refused_models.fetch_add(1, Relaxed);
            return Err(Error::unavailable(self.refusal(model, need, left, &state)));
        }
        let private = state.reading.private.unwrap_or_default();
        let before = if state.loading == 0 { private } else { private.max(state.expected) };
        state.loading += 1;
        state.expected = before.saturating_add(need.total());
        Ok(Promise(self.clone()))
    }

    /// Why a request is refused at this time, if it is.
    pub fn refuse_request(&self, now: Instant) -> Option<Error> {
        let elapsed = u64::try_from(now.saturating_duration_since(self.0.start).as_nanos()).unwrap_or(u64::MAX);
        if elapsed >= self.0.read_next.load(Relaxed) {
            self.look(now);
        }
        if !self.0.is_scarce.load(Relaxed) {
            return None;
        }
        self.0.refused_requests.fetch_add(1, Relaxed);
        let text = "the server has too little memory left to take requests: those that run are finished first, try again later";
        Some(Error { retry_after: Some(RETRY_AFTER), ..Error::unavailable(text) })
    }

    /// Looks how much memory there is, unless somebody else does.
    fn look(&self, now: Instant) {
        let Some(mut state) = self.0.state.try_lock() else { return };
        let next = now.saturating_duration_since(self.0.start) + READ_INTERVAL;
        self.0.read_next.store(u64::try_from(next.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        state.reading = self.0.limit.sensor.read();
        // What models that are being loaded will take is not there yet, and no reason to refuse requests.
        let is_scarce = match (self.left_now(&state.reading), state.is_scarce) {
            (None, _) => false,
            (Some(left), false) => left < self.reserve(&state.reading),
            // Later than it began, so that it does not come and go.
            (Some(left), true) => left < self.reserve(&state.reading).saturating_mul(2),
        };
        if is_scarce != state.is_scarce {
            let left = self.left_now(&state.reading).unwrap_or_default();
            match is_scarce {
                true => tracing::warn!("memory is scarce ({left} bytes left): new requests are refused"),
                false => tracing::info!("memory is no longer scarce ({left} bytes left): requests are taken again"),
            }
        }
        state.is_scarce = is_scarce;
        self.0.is_scarce.store(is_scarce, Relaxed);
        let is_due = state.released.is_none_or(|last| now.saturating_duration_since(last) >= RELEASE_INTERVAL);
        if is_scarce && is_due {
            state.released = Some(now);
            self.0.limit.sensor.release();
        }
    }

    /// What may still be taken, of that what is not promised.
    fn left(&self, state: &State) -> Option<u64> {
        let promised = match (state.loading, state.reading.private) {
            (0, _) | (_, None) => 0,
            (_, Some(private)) => state.expected.saturating_sub(private),
        };
        self.left_now(&state.reading).map(|left| left.saturating_sub(promised))
    }

    /// What may still be taken.
    fn left_now(&self, reading: &MemoryReading) -> Option<u64> {
        match (self.0.limit.bytes, reading.private, reading.left) {
            (None, _, left) => left,
            (Some(_), None, left) => left,
            (Some(limit), Some(private), left) => {
                let own = limit.saturating_sub(private);
                Some(left.map_or(own, |left| own.min(left)))
            }
        }
    }

    /// What the process may hold in all.
    fn limit(&self, reading: &MemoryReading) -> Option<u64> {
        let all = reading.left.map(|left| left.saturating_add(reading.private.unwrap_or_default()));
        self.0.limit.bytes.or(all)
    }

    /// What is kept free.
    fn reserve(&self, reading: &MemoryReading) -> u64 {
        // At least a byte, so that a limit that is used up is never enough.
        self.limit(reading).map_or(0, |limit| (limit / RESERVE_DIVISOR).clamp(1, RESERVE_MAX))
    }

    fn refusal(&self, model: &str, need: &MemoryNeed, left: u64, state: &State) -> String {
        let reading = &state.reading;
        let used = reading.private.unwrap_or_default();
        let whose = match (self.0.limit.bytes, reading.left) {
            (Some(limit), rest) if rest.is_none_or(|rest| limit.saturating_sub(used) <= rest) => {
                format!("of the limit of {limit} bytes (--memory-limit)")
            }
            _ => "of the memory of this machine or container".to_owned(),
        };
        let loading = match state.loading {
            0 => String::new(),
            1 => ", another model is being loaded".to_owned(),
            count => format!(", {count} other models are being loaded"),
        };
        let MemoryNeed { weights, instance, instances } = need;
        let mut parts = Vec::new();
        if *weights > 0 {
            parts.push(format!("{weights} for weights"));
        }
        if *instance > 0 {
            parts.push(format!("{instance} for each of {instances} instances"));
        }
        format!(
            "model '{model}' would not fit into memory: it needs at least {} bytes ({}), and {left} bytes {whose} are left; \
             the server holds {used}{loading}. Unload models, lower the count of instance_group or max_batch_size, or raise \
             --memory-limit (off: load it anyway)",
            need.total(),
            parts.join(", ")
        )
    }

    /// What is known and was refused, for the metrics.
    pub(crate) fn metrics(&self, now: Instant) -> Vec<Family> {
        self.look(now);
        let state = self.0.state.lock();
        let family = |name: &'static str, help: &'static str, kind: Kind, value: u64| Family {
            name: name.into(),
            help: help.into(),
            kind,
            samples: vec![Sample { labels: Vec::new(), value: Value::Number(value as f64) }],
        };
        let Some(left) = self.left(&state) else { return Vec::new() };
        let limit = self.limit(&state.reading).unwrap_or_default();
        vec![
            family("halimede_memory_limit_bytes", "Memory that the server may hold, in bytes", Kind::Gauge, limit),
            family("halimede_memory_left_bytes", "Memory that models may still take, in bytes", Kind::Gauge, left),
            family(
                "halimede_memory_scarce",
                "1 while new requests are refused because hardly any memory is left, else 0",
                Kind::Gauge,
                u64::from(state.is_scarce),
            ),
            family(
                "halimede_memory_refused_models",
                "Number of times a model was not loaded because it would not fit into memory",
                Kind::Counter,
                self.0.refused_models.load(Relaxed),
            ),
            family(
                "halimede_memory_refused_requests",
                "Number of requests refused because hardly any memory was left",
                Kind::Counter,
                self.0.refused_requests.load(Relaxed),
            ),
        ]
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("limit", &self.0.limit).finish_non_exhaustive()
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let mut state = self.0.0.state.lock();
        // Of what was promised to several, nobody knows who took what: it counts until all of them are done.
        state.loading = state.loading.saturating_sub(1);
    }
}
