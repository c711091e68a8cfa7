//! The thread that writes traces to files. Nothing of a request waits for it: what it cannot take is dropped and counted.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    fs::File,
    io::Write as _,
    mem,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use halimede_serving::metrics::{Family, Kind, Sample, Value};

use super::{
    record::Event,
    render::{Epoch, render},
};

/// Traces that may wait to be written.
const WAITING_MAX: usize = 4096;
/// Bytes of tensors that may wait to be written.
const TENSOR_BYTES_MAX: usize = 256 << 20;
/// Bytes of text that are kept for files whose traces are not complete.
const KEPT_BYTES_MAX: usize = 256 << 20;

/// Where the traces of one setting go.
#[derive(Debug, Clone)]
pub(super) struct Destination {
    /// Number of the setting.
    pub setting: u64,
    pub file: String,
    pub log_frequency: u32,
    /// Whether a certain number of traces is taken, which then have a file of their own.
    pub is_counted: bool,
}

/// The thread's queue.
pub(super) struct Writer {
    shared: Arc<Shared>,
    settings: AtomicU64,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Traces among the jobs.
    traces: usize,
    tensor_bytes: usize,
    dropped: u64,
    written: u64,
    is_ending: bool,
    has_ended: bool,
}

enum Job {
    Trace {
        destination: Destination,
        events: Vec<Event>,
        bytes: usize,
        is_last: bool,
    },
    /// No trace of the setting follows.
    Forget(Destination),
}

impl Writer {
    pub fn start() -> Self {
        let shared = Arc::<Shared>::default();
        let own = shared.clone();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch = Epoch { start: Instant::now(), ns: u64::try_from(since_1970.as_nanos()).unwrap_or(0) };
        let spawned = thread::Builder::new().name("traces".to_owned()).spawn(move || write(&own, epoch));
        if let Err(error) = spawned {
            tracing::warn!("traces are not written, for their thread cannot be started: {error}");
            shared.lock().has_ended = true;
        }
        Self { shared, settings: AtomicU64::new(0) }
    }

    /// A number for a setting; each has its own.
    pub fn next_setting(&self) -> u64 {
        self.settings.fetch_add(1, Relaxed)
    }

    /// Takes a trace, unless too much waits; with `is_last`, the one after which its setting takes no more.
    pub fn take(&self, destination: &Destination, events: Vec<Event>, is_last: bool) {
        let bytes = events.iter().map(tensor_bytes).sum();
        let mut queue = self.shared.lock();
        let is_full = queue.traces >= WAITING_MAX || queue.tensor_bytes.saturating_add(bytes) > TENSOR_BYTES_MAX;
        if is_full || queue.has_ended {
            queue.dropped += 1;
            if queue.dropped == 1 {
                tracing::warn!("traces come faster than they can be written, and some are left out");
            }
            return;
        }
        queue.traces += 1;
        queue.tensor_bytes += bytes;
        queue.jobs.push_back(Job::Trace { destination: destination.clone(), events, bytes, is_last });
        drop(queue);
        self.shared.changed.notify_all();
    }

    /// No trace of this destination follows.
    pub fn forget(&self, destination: &Destination) {
        self.shared.lock().jobs.push_back(Job::Forget(destination.clone()));
        self.shared.changed.notify_all();
    }

    /// Waits until everything is written, and ends the thread.
    pub fn end(&self, timeout: Duration) {
        let mut queue = self.shared.lock();
        queue.is_ending = true;
        self.shared.changed.notify_all();
        let ended = self.shared.changed.wait_timeout_while(queue, timeout, |queue| !queue.has_ended);
        if ended.is_ok_and(|(_, result)| result.timed_out()) {
            tracing::warn!("not all traces could be written");
        }
    }

    pub fn metrics(&self) -> Vec<Family> {
        let queue = self.shared.lock();
        [
            ("halimede_trace_written", "Number of traces that were written", queue.written),
            (
                "halimede_trace_dropped",
                "Number of traces left out because too many waited to be written",
                queue.dropped,
            ),
        ]
        .map(|(name, help, count)| {
            let samples = vec![Sample { labels: Vec::new(), value: Value::Number(count as f64) }];
            Family { name, help, kind: Kind::Counter, samples }
        })
        .into()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.lock().is_ending = true;
        self.shared.changed.notify_all();
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writer")
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tensor_bytes(event: &Event) -> usize {
    match event {
        Event::Tensor { data, .. } => data.len(),
        Event::Begin { .. } | Event::Reach { .. } => 0,
    }
}

/// The life of the thread.
fn write(shared: &Shared, epoch: Epoch) {
    let mut files = Files::default();
    loop {
        let mut queue = shared.lock();
        while queue.jobs.is_empty() && !queue.is_ending {
            queue = shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let Some(job) = queue.jobs.pop_front() else { break };
        if let Job::Trace { bytes, .. } = &job {
            queue.traces -= 1;
            queue.tensor_bytes -= bytes;
        }
        drop(queue);
        match job {
            Job::Trace { destination, events, is_last, .. } => {
                let text = render(&events, epoch);
                let result = files.add(&destination, text, is_last);
                let mut queue = shared.lock();
                match result {
                    true => queue.written += 1,
                    false => queue.dropped += 1,
                }
            }
            Job::Forget(destination) => files.flush(&destination),
        }
    }
    files.close();
    shared.lock().has_ended = true;
    shared.changed.notify_all();
}

/// Files and what is to be written to them.
#[derive(Default)]
struct Files {
    /// Texts by the number of their setting.
    kept: BTreeMap<u64, Vec<String>>,
    kept_bytes: usize,
    /// Files that grow, by name.
    growing: BTreeMap<String, Option<File>>,
    /// Numbers of the next files, by name.
    numbers: BTreeMap<String, u64>,
}

impl Files {
    /// Takes a trace; whether there was room for it.
    fn add(&mut self, destination: &Destination, text: String, is_last: bool) -> bool {
        if self.kept_bytes + text.len() > KEPT_BYTES_MAX {
            return false;
        }
        self.kept_bytes += text.len();
        let kept = self.kept.entry(destination.setting).or_default();
        // A request that was refused before anything happened to it has no events.
        if !text.is_empty() {
            kept.push(text);
        }
        let count = kept.len();
        let Destination { log_frequency, is_counted, .. } = *destination;
        if is_last || (log_frequency != 0 && count >= log_frequency as usize) {
            let texts = self.take(destination.setting);
            self.write_numbered(&destination.file, &texts);
        } else if log_frequency == 0 && !is_counted {
            let texts = self.take(destination.setting);
            self.append(&destination.file, &texts);
        }
        true
    }

    fn take(&mut self, setting: u64) -> Vec<String> {
        let texts = self.kept.remove(&setting).unwrap_or_default();
        self.kept_bytes -= texts.iter().map(String::len).sum::<usize>();
        texts
    }

    /// Writes what is left of a setting.
    fn flush(&mut self, destination: &Destination) {
        let texts = self.take(destination.setting);
        match destination.log_frequency {
            0 => self.append(&destination.file, &texts),
            _ => self.write_numbered(&destination.file, &texts),
        }
    }

    fn write_numbered(&mut self, name: &str, texts: &[String]) {
        if texts.is_empty() {
            return;
        }
        let number = self.numbers.entry(name.to_owned()).or_default();
        let path = format!("{name}.{number}");
        *number += 1;
        if let Err(error) = std::fs::write(&path, format!("[{}]", texts.join(","))) {
            tracing::error!("failed creating trace file: {path}: {error}");
        }
    }

    /// Adds to the file that grows until the server ends.
    fn append(&mut self, name: &str, texts: &[String]) {
        if texts.is_empty() {
            return;
        }
        let is_first = !self.growing.contains_key(name);
        let file = self.growing.entry(name.to_owned()).or_insert_with(|| {
            File::create(name).inspect_err(|error| tracing::error!("failed creating trace file: {name}: {error}")).ok()
        });
        let Some(open) = file else { return };
        let separator = if is_first { "[" } else { "," };
        if let Err(error) = open.write_all(format!("{separator}{}", texts.join(",")).as_bytes()) {
            tracing::error!("the trace file {name} is not written any more: {error}");
            *file = None;
        }
    }

    fn close(&mut self) {
        for (name, file) in mem::take(&mut self.growing) {
            if let Some(Err(error)) = file.map(|mut file| file.write_all(b"]")) {
                tracing::error!("the trace file {name} has no end: {error}");
            }
        }
    }
}
