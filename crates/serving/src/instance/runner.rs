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
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{
    ahead::Away,
    batch::{Batch, Entry, Finished},
    direct::Pace,
    expiry,
    limited::Limited,
    memory::{Memory, blank},
    warmup::WarmUp,
};
use crate::{
    backend::{Instance, Model, ModelMemory, OperatorWork, Submit, TuningWork},
    config::proto::ModelInstanceGroup,
    error::Error,
    model::Signature,
    ordering::Ordering,
    rate_limiter::{Place, RateLimiter},
    request::{Request, Sequence},
    response::{Responder, Response},
    scheduler::{Dropped, Item, Poll, Refused, STOPPING, Scheduler},
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
    /// Who decides which instances run.
    pub rate_limiter: Option<Arc<RateLimiter>>,
}

/// Instances of one group of the configuration.
pub(crate) type Group = ModelInstanceGroup;

/// An instance that is to be made.
struct Missing<'a> {
    group: &'a Group,
    name: String,
    /// Its number among all that the model ever had.
    index: usize,
}

/// Runs the requests of one version of a model.
pub(crate) struct Runner {
    pub(super) shared: Arc<Shared>,
    warm_up: WarmUp,
    rate_limiter: Option<Arc<RateLimiter>>,
    workers: Mutex<Vec<Worker>>,
    /// Those that end with the sequences of their instances.
    pub(super) leaving: Mutex<Vec<JoinHandle<()>>>,
    expiry: Mutex<Option<JoinHandle<()>>>,
    instances_made: AtomicUsize,
}

struct Worker {
    index: usize,
    group: Group,
    quit: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// What the threads of a runner share.
pub(super) struct Shared {
    model: Arc<dyn Model>,
    signature: Arc<Signature>,
    version: i64,
    pub(super) recorder: Arc<Recorder>,
    ordering: Option<Ordering<(Request, Response)>>,
    /// How long executions take.
    pub pace: Pace,
    /// Whether new requests are refused.
    stopped: AtomicBool,
    /// Whether instances run only when the rate limiter lets them.
    is_limited: bool,
    pub state: Mutex<State>,
    /// Wakes instances.
    pub(super) work: Condvar,
    /// Wakes the thread that refuses expired requests.
    pub expiry: Condvar,
}

pub(super) struct State {
    pub scheduler: Scheduler<Entry>,
    /// Batches for instances that were woken to take them: never more than are parked, or what the one that is away could not
    /// be given.
    pub(super) ready: VecDeque<Vec<Entry>>,
    /// The instances of workers that wait.
    pub(super) parked: Vec<Parked>,
    /// Workers that were woken while their instance was borrowed.
    pub(super) recalls: usize,
    /// When an idle instance looks at the queue again by itself.
    pub(super) alarm: Option<Instant>,
    /// The instance that has batches of its own, of which one may lie ahead.
    pub(super) away: Option<Away>,
    /// Whether a thread submits to it: no other may come before.
    pub(super) is_submitting: bool,
    /// Workers that have not ended.
    pub(super) workers: usize,
    next_ticket: u64,
    /// How often something came that may be run.
    pub(super) arrivals: u64,
    /// Whether instances end once the queue is empty.
    pub closed: bool,
    /// Until when the expiry thread sleeps.
    pub(super) expiry_sleep: ExpirySleep,
}

/// What the thread that refuses expired requests does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpirySleep {
    /// It looks at what there is, or there is none.
    Awake,
    Until(Instant),
    /// Until it is woken.
    Long,
}

impl ExpirySleep {
    /// Whether it has to be woken for a request that expires at `deadline`.
    fn is_too_long(self, deadline: Option<Instant>) -> bool {
        match (self, deadline) {
            (ExpirySleep::Awake, _) | (_, None) => false,
            (ExpirySleep::Long, Some(_)) => true,
            (ExpirySleep::Until(until), Some(deadline)) => deadline < until,
        }
    }
}

/// How often who waits for the last response of an instance looks.
const SENDERS_LOOK: Duration = Duration::from_millis(5);

/// The instance of a worker that waits.
pub(super) struct Parked {
    pub worker: usize,
    pub held: Held,
}

/// What a worker runs requests with.
#[derive(Default)]
pub(super) struct Held {
    /// `None` after a panic: it has to be made anew.
    instance: Option<Box<dyn Instance>>,
    memory: Memory,
    /// Shared with what answers requests of this instance from elsewhere.
    senders: Arc<()>,
}

impl Held {
    /// What [`ResponseSender`](super::sender::ResponseSender)s of its requests hold.
    pub fn senders(&self) -> &Arc<()> {
        &self.senders
    }

    /// Ends the instance once nothing answers requests any more for which it ran: a model may go on with that long after its
    /// execution.
    fn end(self) {
        while Arc::strong_count(&self.senders) > 1 {
            thread::sleep(SENDERS_LOOK);
        }
    }

    /// What takes batches of the instance now without a thread that waits for it.
    pub fn queue(&self) -> Option<Arc<dyn Submit>> {
        self.instance.as_ref()?.queue().filter(|queue| queue.is_ready())
    }

    /// Whether a batch is work of the thread that brings it.
    pub fn runs_here(&self) -> bool {
        self.instance.as_ref().is_none_or(|instance| instance.queue().is_none())
    }
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

    /// Requests join where they give the same inputs in the same shapes, but for ragged inputs. Both have their inputs
    /// in the order of the configuration.
    fn joins(&self, first: &Self) -> bool {
        let (mine, theirs) = (&self.request.inputs, &first.request.inputs);
        mine.len() == theirs.len()
            && mine
                .iter()
                .zip(theirs)
                .all(|(a, b)| a.name == b.name && (a.shape.get(1..) == b.shape.get(1..) || self.is_ragged(&a.name)))
    }

    fn sequence(&self) -> &Sequence {
        &self.request.sequence
    }

    fn set_sequence(&mut self, sequence: Sequence) {
        self.request.sequence = sequence;
    }

    fn slot(&self) -> usize {
        self.slot
    }

    fn set_slot(&mut self, slot: usize) {
        self.slot = slot;
    }

    fn stand_in(&self, slot: usize) -> Self {
        let mut request = Request::new(self.request.model.clone(), Responder::closed());
        // An input that no memory is left for is missing, and the batch fails for it.
        request.inputs = self.request.inputs.iter().filter_map(|input| blank(input).ok()).collect();
        Entry::stand_in(request, self.batch_size, slot)
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
        let RunnerSettings { model, signature, version, recorder, scheduler, preserve_ordering, warm_up, rate_limiter } =
            settings;
        let has_timeouts = scheduler.has_timeouts();
        let shared = Arc::new(Shared {
            model,
            signature,
            version,
            recorder,
            ordering: preserve_ordering.then(Ordering::default),
            pace: Pace::default(),
            stopped: AtomicBool::new(false),
            is_limited: rate_limiter.is_some(),
            state: Mutex::new(State {
                scheduler,
                ready: VecDeque::new(),
                parked: Vec::new(),
                recalls: 0,
                alarm: None,
                away: None,
                is_submitting: false,
                workers: 0,
                next_ticket: 0,
                arrivals: 0,
                closed: false,
                expiry_sleep: ExpirySleep::Awake,
            }),
            work: Condvar::new(),
            expiry: Condvar::new(),
        });
        let runner = Self {
            shared,
            warm_up,
            rate_limiter,
            workers: Mutex::new(Vec::new()),
            leaving: Mutex::default(),
            expiry: Mutex::new(None),
            instances_made: AtomicUsize::new(0),
        };
        runner.resize(groups, true)?;
        if has_timeouts {
            let shared = runner.shared.clone();
            let thread = spawn(&format!("{}-expiry", runner.shared.signature.model), move || expiry::run(&shared))?;
            *runner.expiry.lock() = Some(thread);
        }
        Ok(runner)
    }

    /// Changes the instances to those of `groups`. Instances that fit stay; the others end after their
    /// current batch, and after the sequences that they have. On an error nothing changes.
    pub fn resize(&self, groups: &[Group], waits: bool) -> Result<(), Error> {
        let mut workers = self.workers.lock();
        let mut kept = Vec::new();
        let mut missing = Vec::new();
        let mut made = Vec::new();
        let mut surplus: Vec<usize> = (0..workers.len()).collect();
        for group in groups {
            for number in 0..group.count {
                match surplus.iter().position(|&index| workers[index].group.is_equivalent(group)) {
                    Some(position) => kept.push(surplus.remove(position)),
                    None => missing.push(Missing {
                        group,
                        name: format!("{}_{number}", group.name),
                        index: self.instances_made.fetch_add(1, Relaxed),
                    }),
                }
            }
        }
        for (Missing { group, index, .. }, instance) in self.make(missing)? {
            let place = match &self.rate_limiter {
                Some(limiter) => Some(self.shared.join(limiter, group.rate_limiter.as_ref())?),
                None => None,
            };
            made.push((group, index, instance, place));
        }
        for (group, index, instance, place) in made {
            workers.push(self.start_worker(group, index, instance, place)?);
        }
        let old = std::mem::take(&mut *workers);
        let (quitting, staying): (Vec<_>, Vec<_>) =
            old.into_iter().enumerate().partition(|(index, _)| surplus.contains(index));
        *workers = staying.into_iter().map(|(_, worker)| worker).collect();
        drop(workers);
        let mut state = self.shared.state.lock();
        for (_, worker) in &quitting {
            worker.quit.store(true, SeqCst);
            if let Some(sequences) = state.scheduler.sequences() {
                sequences.remove_instance(worker.index);
            }
        }
        let has_sequences = state.scheduler.sequences().is_some();
        drop(state);
        self.shared.work.notify_all();
        let threads = quitting.into_iter().map(|(_, worker)| worker.thread);
        // The clients of sequences decide when they are over.
        match waits && !has_sequences {
            true => threads.for_each(join),
            false => {
                let mut leaving = self.leaving.lock();
                // A thread that has ended keeps its stack until it is joined.
                let (ended, others) = leaving.drain(..).chain(threads).partition(JoinHandle::is_finished);
                *leaving = others;
                Vec::into_iter(ended).for_each(join);
            }
        }
        Ok(())
    }

    /// Makes instances and warms them up, all at once: each may take long, as a Python model's `initialize` does.
    fn make<'a>(&self, missing: Vec<Missing<'a>>) -> Result<Vec<(Missing<'a>, Box<dyn Instance>)>, Error> {
        let make = |missing: &Missing<'_>| {
            let Shared { signature, version, .. } = &*self.shared;
            let mut instance = self.shared.make_instance(missing.index)?;
            self.warm_up.run(instance.as_mut(), &missing.name, signature, *version)?;
            Ok(instance)
        };
        if let [_] = &*missing {
            return missing.into_iter().map(|missing| make(&missing).map(|instance| (missing, instance))).collect();
        }
        thread::scope(|scope| {
            let threads: Vec<_> = missing
                .into_iter()
                .map(|missing| {
                    let name = missing.name.replace('\0', "_");
                    let run = move || make(&missing).map(|instance| (missing, instance));
                    thread::Builder::new().name(name).spawn_scoped(scope, run)
                })
                .collect();
            let model = &self.shared.signature.model;
            let made = threads.into_iter().map(|thread| {
                let thread =
                    thread.map_err(|error| Error::internal(format!("cannot start a thread for '{model}': {error}")))?;
                thread.join().unwrap_or_else(|_| Err(Error::internal(format!("an instance of '{model}' panicked"))))
            });
            made.collect()
        })
    }

    fn start_worker(
        &self,
        group: &Group,
        index: usize,
        instance: Box<dyn Instance>,
        place: Option<Place>,
    ) -> Result<Worker, Error> {
        let quit = Arc::new(AtomicBool::new(false));
        let (shared, is_quit) = (self.shared.clone(), quit.clone());
        let name = format!("{}_{index}", self.shared.signature.model);
        let mut state = self.shared.state.lock();
        if let Some(sequences) = state.scheduler.sequences() {
            sequences.add_instance(index, Instant::now());
        }
        state.workers += 1;
        drop(state);
        let thread = spawn(&name, move || shared.work(index, instance, place, &is_quit));
        let thread = thread.inspect_err(|_| self.shared.state.lock().workers -= 1)?;
        Ok(Worker { index, group: group.clone(), quit, thread })
    }

    /// Puts a prepared request with `batch_size` inferences into the queue. An error is sent at once.
    pub fn infer(&self, request: Request, batch_size: usize) {
        let mut entry = Entry::new(request, batch_size);
        let signature = &self.shared.signature;
        entry.ragged = signature.is_ragged().then(|| signature.clone());
        self.shared.push(entry);
    }

    /// Refuses new requests; those in flight are still answered.
    pub fn stop(&self) {
        self.shared.stopped.store(true, SeqCst);
        if let Some(sequences) = self.shared.state.lock().scheduler.sequences() {
            sequences.stop();
        }
    }

    /// Requests that are not answered to the end, or else sequences that have not ended.
    pub fn in_flight(&self) -> usize {
        let requests = self.shared.recorder.in_flight();
        if requests > 0 { requests } else { self.shared.state.lock().scheduler.open_sequences() }
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
        self.leaving.get_mut().drain(..).for_each(join);
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
    fn push(self: &Arc<Self>, mut entry: Entry) {
        let now = Instant::now();
        entry.request.timestamps.queued = now;
        let has_sequences = self.signature.sequence.is_some();
        // Sequences that have begun may still end.
        if self.stopped.load(SeqCst) && !has_sequences {
            let error = Error::unavailable(format!("{}{STOPPING}", entry.request.log_prefix()));
            return entry.request.refuse(self.version, error);
        }
        self.recorder.enter(1);
        self.recorder.pending(1);
        // An ensemble's steps answer each other: on one thread they would nest.
        let may_run_here = entry.request.compute_total.is_none() && !self.is_limited;
        let mut state = self.state.lock();
        let deadline = match state.scheduler.push(entry, now) {
            Ok(deadline) => deadline,
            Err(refused) => {
                drop(state);
                self.recorder.leave(1);
                self.recorder.pending(-1);
                let (entry, error) = self.refusal(refused);
                return entry.request.refuse(self.version, error);
            }
        };
        let wake_expiry = state.expiry_sleep.is_too_long(deadline);
        if may_run_here {
            state = self.submit_waiting(state);
            state = self.run_here(state);
        }
        self.dispatch(state, now);
        if wake_expiry {
            self.expiry.notify_one();
        }
    }

    fn refusal(&self, refused: Refused<Entry>) -> (Entry, Error) {
        refused.into_error(&self.signature.model, |entry| entry.request.log_prefix())
    }

    /// Puts a request that runs again behind the others.
    fn push_again(self: &Arc<Self>, mut entry: Entry) {
        let now = Instant::now();
        entry.request.timestamps.queued = now;
        let sequence = &mut entry.request.sequence;
        (sequence.start, sequence.end) = (false, false);
        let start = entry.request.timestamps.start;
        self.recorder.pending(1);
        let mut state = self.state.lock();
        match state.scheduler.push_again(entry, now) {
            Ok(deadline) => {
                let wake_expiry = state.expiry_sleep.is_too_long(deadline);
                self.dispatch(state, now);
                if wake_expiry {
                    self.expiry.notify_one();
                }
            }
            Err(refused) => {
                drop(state);
                let (entry, error) = self.refusal(refused);
                self.recorder.pending(-1);
                self.recorder.failure(FailureReason::Other, start, now);
                self.fail(entry, error);
            }
        }
    }

    /// Answers a request that left the queue without running.
    fn fail(&self, entry: Entry, error: Error) {
        let is_counted = entry.is_counted();
        entry.request.fail(self.version, error);
        if !is_counted {
            self.recorder.leave(1);
        }
    }

    /// Wakes the instances that have something to run, where each has requests of its own.
    pub(super) fn wake_bound(&self, state: &mut MutexGuard<'_, State>) {
        let State { scheduler, parked, .. } = &mut **state;
        let is_any_waiting = scheduler.len() > 0;
        // Instances under the rate limiter are not parked: each looks for itself.
        if self.is_limited && scheduler.sequences().is_some_and(|sequences| is_any_waiting || sequences.has_gone()) {
            self.work.notify_all();
            return;
        }
        if let Some(sequences) = scheduler.sequences()
            && parked.iter().any(|parked| sequences.has_work(parked.worker))
        {
            self.work.notify_all();
        }
    }

    /// Forms batches for idle instances and wakes as many as there is work for.
    pub(super) fn dispatch<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>, now: Instant) {
        if self.is_limited {
            state.arrivals += 1;
            drop(state);
            self.work.notify_all();
            return;
        }
        state = self.submit_waiting(state);
        let mut wake = 0;
        let is_bound = state.scheduler.sequences().is_some();
        if is_bound {
            self.wake_bound(&mut state);
        }
        // Who submits goes on with what waits.
        while !is_bound && !state.is_submitting && state.parked.len() > state.ready.len() {
            match state.poll(0, now) {
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
    fn work(self: &Arc<Self>, index: usize, instance: Box<dyn Instance>, place: Option<Place>, quit: &AtomicBool) {
        let mut held = Held { instance: Some(instance), ..Held::default() };
        if let Some(place) = place {
            let mut limited = Limited::new(index, place);
            while let Some(entries) = self.next_limited(&mut limited, quit) {
                self.run(index, &mut held, entries);
            }
            return held.end();
        }
        let mut held = Some(held);
        while let Some((mut mine, entries)) = self.next_batch(index, held.take(), quit) {
            held = match self.queue(&mine, &entries) {
                Some(queue) => self.submit(&*queue, index, mine, entries),
                None => {
                    self.run(index, &mut mine, entries);
                    Some(mine)
                }
            };
        }
        self.state.lock().workers -= 1;
    }

    /// Runs requests on the instance of worker `index` and answers them.
    pub(super) fn run(self: &Arc<Self>, index: usize, held: &mut Held, entries: Vec<Entry>) {
        let (mut batch, prepared) = self.open(held, entries);
        let instance = &mut held.instance;
        match prepared.and_then(|()| self.ensure_instance(instance, index)) {
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
        self.close(index, held, batch);
    }

    /// Makes a batch of requests that left the queue, and gives those of sequences what belongs to them.
    pub(super) fn open(&self, held: &mut Held, mut entries: Vec<Entry>) -> (Batch, Result<(), Error>) {
        let count = entries.iter().filter(|entry| !entry.is_stand_in).count();
        self.recorder.pending(-(count as i64));
        let sequence = self.signature.sequence.as_ref();
        let prepared = sequence.map_or(Ok(()), |sequence| held.memory.prepare(sequence, &mut entries));
        (self.batch(held.senders(), entries), prepared)
    }

    /// A batch for an instance.
    pub(super) fn batch(&self, senders: &Arc<()>, entries: Vec<Entry>) -> Batch {
        Batch::new(self.signature.clone(), self.version, self.recorder.clone(), entries).held_by(senders)
    }

    /// Answers the requests of a batch that ran on the instance of worker `index`.
    pub(super) fn close(self: &Arc<Self>, index: usize, held: &mut Held, mut batch: Batch) {
        if let Some(sequence) = &self.signature.sequence {
            held.memory.keep(sequence, batch.entries_mut());
        }
        let is_counted_here = |entry: &Entry| !entry.is_stand_in && !entry.is_counted();
        let count = batch.entries_mut().iter().filter(|entry| is_counted_here(entry)).count();
        let Finished { took, again, ended } = batch.finish(|ticket, mut request, response| match &self.ordering {
            None => request.responder.send(response, true),
            Some(ordering) => ordering.send(ticket, (request, response), |(mut request, response)| {
                request.responder.send(response, true);
            }),
        });
        self.pace.record(took);
        self.recorder.leave(count - again.iter().filter(|entry| is_counted_here(entry)).count());
        if !ended.is_empty()
            && let Some(sequences) = self.state.lock().scheduler.sequences()
        {
            ended.iter().for_each(|(id, slot)| sequences.end(id, index, *slot, Instant::now()));
        }
        again.into_iter().for_each(|entry| self.push_again(entry));
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

    /// Waits for a batch, with the instance or for it where it is away with another batch; `None` when the thread is to
    /// end. While it waits, the instance is parked.
    fn next_batch(
        self: &Arc<Self>,
        worker: usize,
        held: Option<Held>,
        quit: &AtomicBool,
    ) -> Option<(Held, Vec<Entry>)> {
        let mut state = self.state.lock();
        let mut held = match held {
            Some(held) => held,
            None => {
                // Whoever brings it back finds work for it; this thread has to do something only when it is woken.
                let is_free = state.parked.iter().any(|parked| parked.worker == worker);
                if !quit.load(SeqCst) && !state.closed && state.ready.is_empty() && !is_free {
                    self.pass_alarm(&mut state);
                    self.work.wait(&mut state);
                }
                self.reclaim(worker, &mut state)
            }
        };
        loop {
            if quit.load(SeqCst) && state.scheduler.sequences().is_none_or(|sequences| sequences.is_gone(worker)) {
                // Work meant for this instance goes to another.
                self.work.notify_one();
                // The instance ends without the lock: that may take long, and may need whoever waits for it.
                drop(state);
                held.end();
                return None;
            }
            let now = Instant::now();
            let poll = match state.ready.pop_front() {
                Some(batch) => Poll::Batch(batch),
                None => state.poll(worker, now),
            };
            let dropped = state.scheduler.take_dropped();
            if !dropped.is_empty() {
                MutexGuard::unlocked(&mut state, || self.answer_dropped(dropped));
                if !matches!(poll, Poll::Batch(_)) {
                    continue;
                }
            }
            let until = match poll {
                Poll::Batch(batch) => {
                    if !state.parked.is_empty() && state.scheduler.len() > 0 {
                        self.dispatch(state, now);
                    }
                    return Some((held, batch));
                }
                Poll::Idle if state.closed && state.scheduler.len() == 0 => {
                    // Others may wait for the end of the last sequence.
                    self.work.notify_all();
                    drop(state);
                    held.end();
                    return None;
                }
                Poll::WaitUntil(until) => Some(until),
                Poll::Idle => None,
            };
            state.parked.push(Parked { worker, held });
            match until {
                Some(until) => {
                    state.alarm = Some(until);
                    self.work.wait_until(&mut state, until);
                }
                None => self.work.wait(&mut state),
            }
            held = self.reclaim(worker, &mut state);
        }
    }

    /// Answers requests that left the queue without running.
    pub fn answer_dropped(&self, dropped: Vec<(Entry, Dropped)>) {
        for (entry, why) in dropped {
            let (error, reason) = match why {
                Dropped::Expired => (Error::unavailable("Request timeout expired"), FailureReason::Rejected),
                Dropped::SequenceExpired => {
                    let text = "timeout of the corresponding sequence has been expired";
                    (Error::unavailable(text), FailureReason::Rejected)
                }
                Dropped::Cancelled => (Error::cancelled("the request was cancelled"), FailureReason::Canceled),
            };
            self.recorder.pending(-1);
            self.recorder.failure(reason, entry.request.timestamps.start, Instant::now());
            self.fail(entry, error);
        }
    }
}

impl State {
    /// What the scheduler says, with tickets in the order in which requests leave the queue.
    pub(super) fn poll(&mut self, worker: usize, now: Instant) -> Poll<Entry> {
        let mut poll = self.scheduler.poll(worker, now);
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
