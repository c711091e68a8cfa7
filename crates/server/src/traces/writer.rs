//! The thread that writes traces to files. Nothing of a request waits for it: what it cannot take is dropped and counted.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use halimede_serving::metrics::{Family, Kind, Sample, Value};

use super::{
    context::Names,
    files::{Destination, Files, Outcome},
    held::Held,
    otlp::{Collector, Exporter},
    record::Event,
    render::{Epoch, render},
};

/// Traces that may wait to be written.
const WAITING_MAX: usize = 4096;

/// The thread's queue.
pub(super) struct Writer {
    shared: Arc<Shared>,
    settings: AtomicU64,
    /// Bytes of tensors that traces hold.
    held: Arc<AtomicUsize>,
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
    dropped: u64,
    written: u64,
    failed: u64,
    /// Activities and tensors that traces had no room for.
    left_out: u64,
    is_ending: bool,
    has_ended: bool,
}

/// A trace that has ended.
pub(super) struct Taken {
    pub events: Vec<Event>,
    /// The client's span that its request belongs to.
    pub names: Names,
    /// Gives back the room of the events.
    pub held: Held,
}

enum Job {
    Trace {
        destination: Destination,
        taken: Taken,
    },
    /// All traces of a setting that takes a certain number have come.
    Complete(Destination),
    /// No trace of the setting follows.
    Forget(Destination),
}

impl Writer {
    /// Writes to files, or sends to a collector.
    pub fn start(collector: Option<&Collector>) -> Self {
        let shared = Arc::<Shared>::default();
        let own = shared.clone();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch = Epoch { start: Instant::now(), ns: u64::try_from(since_1970.as_nanos()).unwrap_or(0) };
        let sink = collector.map_or_else(
            || Ok(Sink::Files(Files::default())),
            |collector| Exporter::new(collector.clone()).map(|exporter| Sink::Collector(Box::new(exporter))),
        );
        let spawned = sink
            .and_then(|sink| thread::Builder::new().name("traces".to_owned()).spawn(move || write(&own, epoch, sink)));
        if let Err(error) = spawned {
            tracing::warn!("traces are not written, for their thread cannot be started: {error}");
            shared.lock().has_ended = true;
        }
        Self { shared, settings: AtomicU64::new(0), held: Arc::default() }
    }

    /// A number for a setting; each has its own.
    pub fn next_setting(&self) -> u64 {
        self.settings.fetch_add(1, Relaxed)
    }

    /// Room for a trace, of what all of them may hold.
    pub fn held(&self) -> Held {
        Held::new(self.held.clone())
    }

    /// Takes a trace, unless too many wait; with `is_last`, the one after which its setting takes no more.
    pub fn take(&self, destination: &Destination, taken: Taken, is_last: bool) {
        let left_out = taken
            .events
            .iter()
            .map(|event| if let Event::LeftOut { activities, tensors, .. } = event { activities + tensors } else { 0 })
            .sum();
        let mut queue = self.shared.lock();
        queue.leave_out(left_out);
        if queue.traces >= WAITING_MAX || queue.has_ended {
            queue.dropped += 1;
            if queue.dropped == 1 {
                tracing::warn!("traces come faster than they can be written, and some are left out");
            }
        } else {
            queue.traces += 1;
            queue.jobs.push_back(Job::Trace { destination: destination.clone(), taken });
        }
        if is_last {
            queue.jobs.push_back(Job::Complete(destination.clone()));
        }
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
            ("halimede_trace_failed", "Number of traces lost because their file could not be written", queue.failed),
            (
                "halimede_trace_left_out",
                "Number of activities and tensors left out because their trace held too much",
                queue.left_out,
            ),
        ]
        .map(|(name, help, count)| {
            let samples = vec![Sample { labels: Vec::new(), value: Value::Number(count as f64) }];
            Family { name: name.into(), help: help.into(), kind: Kind::Counter, samples }
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

impl Queue {
    fn leave_out(&mut self, count: u64) {
        if self.left_out == 0 && count > 0 {
            tracing::warn!(
                "a trace has more activities or tensors than there is room for, and says how many are left out"
            );
        }
        self.left_out += count;
    }
}

/// Where traces go.
enum Sink {
    Files(Files),
    Collector(Box<Exporter>),
}

impl Sink {
    fn take(&mut self, job: Job, epoch: Epoch) {
        match (self, job) {
            (Sink::Files(files), Job::Trace { destination, taken: Taken { events, held, .. } }) => {
                let text = render(&events, epoch);
                drop(events);
                drop(held);
                files.add(&destination, text);
            }
            (Sink::Files(files), Job::Complete(destination)) => files.complete(&destination),
            (Sink::Files(files), Job::Forget(destination)) => files.flush(&destination),
            (Sink::Collector(exporter), Job::Trace { taken, .. }) => exporter.add(&taken.events, taken.names, epoch),
            (Sink::Collector(_), Job::Complete(_) | Job::Forget(_)) => {}
        }
    }

    /// How long nothing may happen before something has to be done.
    fn due_in(&self) -> Option<Duration> {
        match self {
            Sink::Files(_) => None,
            Sink::Collector(exporter) => exporter.due_in(Instant::now()),
        }
    }

    /// Does what is due.
    fn flush(&mut self) {
        if let Sink::Collector(exporter) = self {
            exporter.flush();
        }
    }

    /// What follows is the last.
    fn end(&mut self) {
        if let Sink::Collector(exporter) = self {
            exporter.end();
        }
    }

    fn take_outcome(&mut self) -> Outcome {
        match self {
            Sink::Files(files) => files.take_outcome(),
            Sink::Collector(exporter) => exporter.take_outcome(),
        }
    }
}

/// The life of the thread.
fn write(shared: &Shared, epoch: Epoch, mut sink: Sink) {
    loop {
        let mut queue = shared.lock();
        let mut is_due = false;
        while queue.jobs.is_empty() && !queue.is_ending && !is_due {
            queue = match sink.due_in() {
                None => shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(time) if time.is_zero() => {
                    is_due = true;
                    queue
                }
                Some(time) => shared.changed.wait_timeout(queue, time).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        let job = queue.jobs.pop_front();
        if job.is_none() && !is_due {
            break;
        }
        queue.traces -= usize::from(matches!(job, Some(Job::Trace { .. })));
        if queue.is_ending {
            sink.end();
        }
        drop(queue);
        match job {
            Some(job) => sink.take(job, epoch),
            None => sink.flush(),
        }
        count(shared, sink.take_outcome());
    }
    sink.end();
    sink.flush();
    count(shared, sink.take_outcome());
    if let Sink::Files(mut files) = sink {
        files.close();
    }
    shared.lock().has_ended = true;
    shared.changed.notify_all();
}

fn count(shared: &Shared, Outcome { written, failed, dropped }: Outcome) {
    let mut queue = shared.lock();
    queue.written += written;
    queue.failed += failed;
    queue.dropped += dropped;
}
