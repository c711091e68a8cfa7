//! The threads of a model's instances and the scheduler that feeds them.

use std::{
    any::Any,
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{
    batch::{Batch, Entry},
    direct::Pace,
    expiry,
    ordering::Ordering,
    warmup::WarmUp,
};
use crate::{
    backend::{Instance, Model, ModelMemory, OperatorWork, TuningWork},
    config::proto::ModelInstanceGroup,
    error::Error,
    model::Signature,
    request::Request,
    scheduler::{Dropped, Full, Item, Poll, Scheduler},
    statistics::{FailureReason, Recorder},
};

/// What a runner is made of.
pub(crate) struct RunnerSettings {
    pub model: Arc<dyn Model>,
    pub signature: Arc<Signature>,
    pub version: i64,
    pub recorder: Arc<Recorder>,
    pub scheduler: Scheduler<Entry>,
    /// Whether responses keep the order in which requests were taken from the queue.
    pub preserve_ordering: bool,
    /// What each instance runs before it takes requests.
    pub warm_up: WarmUp,
}

/// Instances of one group of the configuration.
pub(crate) type Group = ModelInstanceGroup;

/// Runs the requests of one version of a model.
pub(crate) struct Runner {
    pub(super) shared: Arc<Shared>,
    warm_up: WarmUp,
    workers: Mutex<Vec<Worker>>,
    expiry: Mutex<Option<JoinHandle<()>>>,
    instances_made: AtomicUsize,
}

struct Worker {
    group: Group,
    quit: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// What the threads of a runner share.
pub(super) struct Shared {
    model: Arc<dyn Model>,
    signature: Arc<Signature>,
    version: i64,
    recorder: Arc<Recorder>,
    ordering: Option<Ordering>,
    /// How long executions take.
    pub pace: Pace,
    /// Whether new requests are refused.
    stopped: AtomicBool,
    pub state: Mutex<State>,
    /// Wakes instances.
    pub(super) work: Condvar,
    /// Wakes the thread that refuses expired requests.
    pub expiry: Condvar,
}

pub(super) struct State {
    pub scheduler: Scheduler<Entry>,
    /// Batches for instances that were woken to take them; never more than are parked.
    pub(super) ready: VecDeque<Vec<Entry>>,
    /// The instances of workers that wait.
    pub(super) parked: Vec<Parked>,
    /// Workers that were woken while their instance was borrowed.
    pub(super) recalls: usize,
    /// When an idle instance looks at the queue again by itself.
    alarm: Option<Instant>,
    next_ticket: u64,
    /// Whether instances end once the queue is empty.
    pub closed: bool,
    /// Whether the expiry thread waits for the first request.
    pub expiry_sleeps: bool,
}

/// The instance of a worker that waits.
pub(super) struct Parked {
    pub worker: usize,
    /// `None` after a panic: it has to be made anew.
    pub instance: Option<Box<dyn Instance>>,
}

impl Item for Entry {
    fn batch_size(&self) -> usize {
        self.batch_size
    }

    fn priority(&self) -> u64 {
        self.request.priority
    }

    fn timeout_us(&self) -> u64 {
        self.request.timeout_us
    }

    fn is_cancelled(&self) -> bool {
        self.request.responder.is_cancelled()
    }

    /// Requests join where they give the same inputs in the same shapes. Both have their inputs in the
    /// order of the configuration.
    fn joins(&self, first: &Self) -> bool {
        let (mine, theirs) = (&self.request.inputs, &first.request.inputs);
        mine.len() == theirs.len()
            && mine.iter().zip(theirs).all(|(a, b)| a.name == b.name && a.shape.get(1..) == b.shape.get(1..))
    }
}

impl Runner {
    /// Whether requests find what they need.
    pub fn is_ready(&self) -> bool {
        self.shared.model.is_ready()
    }

    /// What is known of the speed of the model's operators.
    pub fn operator_work(&self) -> Vec<OperatorWork> {
        self.shared.model.operator_work()
    }

    /// Where the model's memory goes.
    pub fn memory(&self) -> Option<ModelMemory> {
        self.shared.model.memory()
    }

    /// How far the model is tuned.
    pub fn tuning_work(&self) -> Option<TuningWork> {
        self.shared.model.tuning_work()
    }

    /// Makes the instances of `groups`, warms them up and starts their threads.
    pub fn start(settings: RunnerSettings, groups: &[Group]) -> Result<Self, Error> {
        let RunnerSettings { model, signature, version, recorder, scheduler, preserve_ordering, warm_up } = settings;
        let has_timeouts = scheduler.has_timeouts();
        let shared = Arc::new(Shared {
            model,
            signature,
            version,
            recorder,
            ordering: preserve_ordering.then(Ordering::default),
            pace: Pace::default(),
            stopped: AtomicBool::new(false),
            state: Mutex::new(State {
                scheduler,
                ready: VecDeque::new(),
                parked: Vec::new(),
                recalls: 0,
                alarm: None,
                next_ticket: 0,
                closed: false,
                expiry_sleeps: false,
            }),
            work: Condvar::new(),
            expiry: Condvar::new(),
        });
        let runner = Self {
            shared,
            warm_up,
            workers: Mutex::new(Vec::new()),
            expiry: Mutex::new(None),
            instances_made: AtomicUsize::new(0),
        };
        runner.resize(groups)?;
        if has_timeouts {
            let shared = runner.shared.clone();
            let thread = spawn(&format!("{}-expiry", runner.shared.signature.model), move || expiry::run(&shared))?;
            *runner.expiry.lock() = Some(thread);
        }
        Ok(runner)
    }

    /// Changes the instances to those of `groups`. Instances that fit stay; the others end after their
    /// current batch. On an error nothing changes.
    pub fn resize(&self, groups: &[Group]) -> Result<(), Error> {
        let mut workers = self.workers.lock();
        let mut kept = Vec::new();
        let mut missing = Vec::new();
        let mut surplus: Vec<usize> = (0..workers.len()).collect();
        for group in groups {
            for _ in 0..group.count {
                match surplus.iter().position(|&index| workers[index].group.is_equivalent(group)) {
                    Some(position) => kept.push(surplus.remove(position)),
                    None => missing.push(group),
                }
            }
        }
        let made = missing
            .into_iter()
            .map(|group| {
                let index = self.instances_made.fetch_add(1, Relaxed);
                let mut instance = self.shared.make_instance(index)?;
                self.warm_up.run(instance.as_mut(), &self.shared.signature, self.shared.version)?;
                Ok((group, index, instance))
            })
            .collect::<Result<Vec<_>, Error>>()?;
        for (group, index, instance) in made {
            workers.push(self.start_worker(group, index, instance)?);
        }
        let old = std::mem::take(&mut *workers);
        let (quitting, staying): (Vec<_>, Vec<_>) =
            old.into_iter().enumerate().partition(|(index, _)| surplus.contains(index));
        *workers = staying.into_iter().map(|(_, worker)| worker).collect();
        drop(workers);
        let state = self.shared.state.lock();
        quitting.iter().for_each(|(_, worker)| worker.quit.store(true, SeqCst));
        drop(state);
        self.shared.work.notify_all();
        quitting.into_iter().for_each(|(_, worker)| join(worker.thread));
        Ok(())
    }

    fn start_worker(&self, group: &Group, index: usize, instance: Box<dyn Instance>) -> Result<Worker, Error> {
        let quit = Arc::new(AtomicBool::new(false));
        let (shared, is_quit) = (self.shared.clone(), quit.clone());
        let name = format!("{}_{index}", self.shared.signature.model);
        let thread = spawn(&name, move || shared.work(index, instance, &is_quit))?;
        Ok(Worker { group: group.clone(), quit, thread })
    }

    /// Puts a prepared request with `batch_size` inferences into the queue. An error is sent at once.
    pub fn infer(&self, request: Request, batch_size: usize) {
        self.shared.push(Entry::new(request, batch_size));
    }

    /// Refuses new requests; those in flight are still answered.
    pub fn stop(&self) {
        self.shared.stopped.store(true, SeqCst);
    }

    /// Requests that are not answered to the end.
    pub fn in_flight(&self) -> usize {
        self.shared.recorder.in_flight()
    }
}

impl Drop for Runner {
    /// Waits until all requests are answered and ends the threads.
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        state.scheduler.close();
        drop(state);
        self.shared.work.notify_all();
        self.shared.expiry.notify_all();
        self.workers.get_mut().drain(..).for_each(|worker| join(worker.thread));
        self.expiry.get_mut().take().into_iter().for_each(join);
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("model", &self.shared.signature.model).finish_non_exhaustive()
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    // A NUL cannot be part of a thread's name.
    let builder = thread::Builder::new().name(name.replace('\0', "_"));
    builder.spawn(run).map_err(|error| Error::internal(format!("cannot start a thread for '{name}': {error}")))
}

fn join(thread: JoinHandle<()>) {
    // A worker catches panics of its instance; it has none of its own to report.
    let _ = thread.join();
}

impl Shared {
    fn push(&self, mut entry: Entry) {
        let now = Instant::now();
        entry.request.timestamps.queued = now;
        if self.stopped.load(SeqCst) {
            let text = "Server is stopping, scheduler for model has stopped accepting new inference requests";
            let error = Error::unavailable(format!("{}{text}", entry.request.log_prefix()));
            return entry.request.refuse(self.version, error);
        }
        self.recorder.enter(1);
        self.recorder.pending(1);
        // An ensemble's steps answer each other: on one thread they would nest.
        let may_run_here = entry.request.compute_total.is_none();
        let mut state = self.state.lock();
        if let Err(Full(entry)) = state.scheduler.push(entry, now) {
            drop(state);
            self.recorder.leave(1);
            self.recorder.pending(-1);
            let error = Error::unavailable(format!("{}Exceeds maximum queue size", entry.request.log_prefix()));
            return entry.request.refuse(self.version, error);
        }
        let wake_expiry = state.expiry_sleeps;
        if may_run_here {
            state = self.run_here(state);
        }
        self.dispatch(state, now);
        if wake_expiry {
            self.expiry.notify_one();
        }
    }

    /// Forms batches for idle instances and wakes as many as there is work for.
    fn dispatch(&self, mut state: MutexGuard<'_, State>, now: Instant) {
        let mut wake = 0;
        while state.parked.len() > state.ready.len() {
            match state.poll(now) {
                Poll::Batch(batch) => {
                    state.ready.push_back(batch);
                    wake += 1;
                }
                Poll::WaitUntil(until) if state.alarm.is_none_or(|alarm| until < alarm) => {
                    state.alarm = Some(until);
                    wake += 1;
                    break;
                }
                Poll::WaitUntil(_) | Poll::Idle => break,
            }
        }
        let dropped = state.scheduler.take_dropped();
        drop(state);
        (0..wake).for_each(|_| {
            self.work.notify_one();
        });
        self.answer_dropped(dropped);
    }

    /// The life of an instance's thread.
    fn work(&self, index: usize, instance: Box<dyn Instance>, quit: &AtomicBool) {
        let mut instance = Some(instance);
        while let Some(entries) = self.next_batch(index, &mut instance, quit) {
            self.run(index, &mut instance, entries);
        }
    }

    /// Runs requests on the instance of worker `index` and answers them.
    pub(super) fn run(&self, index: usize, instance: &mut Option<Box<dyn Instance>>, entries: Vec<Entry>) {
        self.recorder.pending(-(entries.len() as i64));
        let count = entries.len();
        let mut batch = Batch::new(self.signature.clone(), self.version, self.recorder.clone(), entries);
        match self.ensure_instance(instance, index) {
            Ok(running) => {
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| running.execute(&mut batch))) {
                    *instance = None;
                    let (model, what) = (&self.signature.model, panic_text(&*panic));
                    let text = format!("model '{model}' failed while it ran this request: {what}");
                    batch.fail_all(&Error::internal(text));
                }
            }
            Err(error) => batch.fail_all(&error),
        }
        let took = batch.finish(|ticket, mut request, response| match &self.ordering {
            None => request.responder.send(response, true),
            Some(ordering) => ordering.send(ticket, request, response),
        });
        self.pace.record(took);
        self.recorder.leave(count);
    }

    /// The instance, made anew where the last one panicked.
    fn ensure_instance<'a>(
        &self,
        instance: &'a mut Option<Box<dyn Instance>>,
        index: usize,
    ) -> Result<&'a mut Box<dyn Instance>, Error> {
        match instance {
            Some(instance) => Ok(instance),
            none => Ok(none.insert(self.make_instance(index)?)),
        }
    }

    fn make_instance(&self, index: usize) -> Result<Box<dyn Instance>, Error> {
        catch_unwind(AssertUnwindSafe(|| self.model.instance(index))).unwrap_or_else(|panic| {
            let (model, what) = (&self.signature.model, panic_text(&*panic));
            Err(Error::internal(format!("instance {index} of model '{model}' could not be made: {what}")))
        })
    }

    /// Waits for a batch; `None` when the thread is to end. While it waits, the instance is parked.
    fn next_batch(
        &self,
        worker: usize,
        instance: &mut Option<Box<dyn Instance>>,
        quit: &AtomicBool,
    ) -> Option<Vec<Entry>> {
        let mut state = self.state.lock();
        loop {
            if quit.load(SeqCst) {
                // Work meant for this instance goes to another.
                self.work.notify_one();
                return None;
            }
            let now = Instant::now();
            let poll = match state.ready.pop_front() {
                Some(batch) => Poll::Batch(batch),
                None => state.poll(now),
            };
            let dropped = state.scheduler.take_dropped();
            if !dropped.is_empty() {
                MutexGuard::unlocked(&mut state, || self.answer_dropped(dropped));
                if !matches!(poll, Poll::Batch(_)) {
                    continue;
                }
            }
            match poll {
                Poll::Batch(batch) => {
                    if !state.parked.is_empty() && state.scheduler.len() > 0 {
                        self.dispatch(state, now);
                    }
                    return Some(batch);
                }
                Poll::Idle if state.closed && state.scheduler.len() == 0 => return None,
                Poll::WaitUntil(until) => {
                    state.alarm = Some(until);
                    state.parked.push(Parked { worker, instance: instance.take() });
                    self.work.wait_until(&mut state, until);
                    state.alarm = None;
                    *instance = self.reclaim(worker, &mut state);
                }
                Poll::Idle => {
                    state.parked.push(Parked { worker, instance: instance.take() });
                    self.work.wait(&mut state);
                    state.alarm = None;
                    *instance = self.reclaim(worker, &mut state);
                }
            }
        }
    }

    /// Answers requests that left the queue without running.
    pub fn answer_dropped(&self, dropped: Vec<(Entry, Dropped)>) {
        for (entry, why) in dropped {
            let (error, reason) = match why {
                Dropped::Expired => (Error::unavailable("Request timeout expired"), FailureReason::Rejected),
                Dropped::Cancelled => (Error::cancelled("the request was cancelled"), FailureReason::Canceled),
            };
            self.recorder.pending(-1);
            self.recorder.failure(reason, entry.request.timestamps.start, Instant::now());
            entry.request.fail(self.version, error);
            self.recorder.leave(1);
        }
    }
}

impl State {
    /// What the scheduler says, with tickets in the order in which requests leave the queue.
    pub(super) fn poll(&mut self, now: Instant) -> Poll<Entry> {
        let mut poll = self.scheduler.poll(now);
        if let Poll::Batch(batch) = &mut poll {
            for entry in batch {
                entry.ticket = self.next_ticket;
                self.next_ticket += 1;
            }
        }
        poll
    }
}

/// What a panic said.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned())
}
