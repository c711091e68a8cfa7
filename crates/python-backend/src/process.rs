//! A process that hosts a model: starting it, talking with it, and noticing that it died.

use std::{
    collections::{HashMap, VecDeque},
    fmt, io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use halimede_platform::{limits::are_files_exhausted, shared_memory::SharedMemoryError};
use halimede_serving::{
    Code, Error, OutputTensor, Parameter,
    backend::{Peers, ResponseSender},
    metrics::CustomMetrics,
    trace::TraceOrigin,
};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::{runtime::Handle, select, task};

use crate::{
    calls::{self, Change},
    environment::Environment,
    files::Directory,
    link::{self, Link, Messages},
    metrics::ProcessMetrics,
    protocol::{self, Answer, Call, Encoded, Gone, Memory, Message, NewSegment, ResponseEntry, Task, TensorEntry},
    segment::{IDLE_FREE_MAX, Pool, Segment, Taken, UNTOLD_MAX},
    tensors,
};

/// How often a silent process is looked at. One that ends closes its socket, unless a process of its own holds
/// it open.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// What messages speak of beyond so many bytes is copied while another thread takes the place of this one: that costs more than
/// fewer bytes do.
const BYTES_MAX: usize = 2 << 20;

/// How long to wait for one who looks whether a process is there.
const KILL_WAIT: Duration = Duration::from_millis(100);

/// How long `finalize` may take.
const FINALIZE_MAX: Duration = Duration::from_secs(30);

/// What starting a process needs.
#[derive(Debug, Clone)]
pub(crate) struct Launcher {
    /// The model's name.
    pub model: String,
    pub environment: Environment,
    pub files: Arc<Directory>,
    pub prints: Prints,
    /// The models that the model may call.
    pub peers: Peers,
    /// Where the model may have metrics of its own.
    pub metrics: CustomMetrics,
    /// What listens to processes. Has several threads, or one that others can take the place of.
    pub runtime: Handle,
    /// Where its processes are kept.
    pub processes: Processes,
}

/// All processes of a backend, for a server that does not wait for them any more.
#[derive(Debug, Clone, Default)]
pub(crate) struct Processes(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    processes: Vec<Weak<Shared>>,
    are_killed: bool,
}

impl Processes {
    fn add(&self, process: &Arc<Shared>) {
        let mut known = self.0.lock();
        if known.are_killed {
            process.kill();
        }
        known.processes.retain(|process| process.strong_count() > 0);
        known.processes.push(Arc::downgrade(process));
    }

    /// Closes the files of all memory for inputs that nothing lies in, since no more can be opened. Nobody may hold the state of one.
    fn close_files(&self) {
        let processes: Vec<_> = self.0.lock().processes.iter().filter_map(Weak::upgrade).collect();
        for process in processes {
            drop(process.tidy(0));
        }
    }

    /// Ends all, also those that are stopped or listen to nobody, and whatever is started from now on.
    pub fn kill(&self) {
        let mut known = self.0.lock();
        known.are_killed = true;
        known.processes.drain(..).filter_map(|process| process.upgrade()).for_each(|process| process.kill());
    }
}

/// Where what a model prints goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prints {
    /// To the server's output.
    Stdout,
    /// Beside the server's log.
    Stderr,
}

/// A running process. Dropped, it ends.
pub(crate) struct Process {
    shared: Arc<Shared>,
    /// Disconnected once it has ended. Read when this is dropped; the lock is there for who shares it.
    ended: Mutex<mpsc::Receiver<()>>,
}

pub(crate) struct Shared {
    /// The models that the model may call.
    pub peers: Peers,
    /// The model's name.
    pub model: String,
    /// Who it works for.
    owner: Mutex<Owner>,
    started: Instant,
    link: Link,
    child: Mutex<Child>,
    /// Whether the model is made.
    is_made: AtomicBool,
    /// Whether it is asked to end.
    is_ending: AtomicBool,
    state: Mutex<State>,
    metrics: Mutex<ProcessMetrics>,
    /// All processes of the backend.
    processes: Processes,
}

/// Who a process works for.
struct Owner {
    /// The instance, or the model, for messages.
    name: String,
    /// Called when the process ends unasked.
    on_death: Option<Box<dyn FnOnce(Duration) + Send>>,
}

#[derive(Default)]
struct State {
    is_gone: bool,
    /// Who waits for the answers to the tasks that the host has, in their order: one that it does, and one more at most.
    waiting: VecDeque<Waiting>,
    /// What answers the requests that the host has, by number.
    requests: HashMap<u64, ResponseSender>,
    /// The traces of those that are traced.
    traces: HashMap<u64, TraceOrigin>,
    request_count: u64,
    inputs: Pool,
    segments: HashMap<u32, Arc<Segment>>,
    segment_count: u32,
    /// Whether something was answered since the last look.
    is_busy: bool,
    /// Whether the host was asked to let go of outputs' memory since it last answered something.
    is_tidy: bool,
    /// Calls of other models that are not answered to the end, and whether they were cancelled. Who answers one asks that
    /// without the lock: it may be asked while somebody has it, here or in a process that called this one.
    calls: HashMap<u64, Arc<AtomicBool>>,
}

/// Who waits for the answer to a task.
enum Waiting {
    /// A thread; it hears nothing where the process ends.
    Thread(mpsc::Sender<Reply>),
    /// Nobody: who hears the answer finishes the batch.
    Execution(Box<dyn Execution>),
}

/// A batch that the host runs.
pub(crate) trait Execution: Send {
    /// Answers its requests; the host says how long it took.
    fn finish(self: Box<Self>, process: &Shared, executed: Result<Executed, Error>, took: Option<Duration>);

    /// The host never began with it, and will not.
    fn give_back(self: Box<Self>, process: &Shared);
}

/// The answer to a task.
#[derive(Debug)]
pub(crate) enum Reply {
    Done(Value),
    Failed(String),
    /// And how long it took.
    Executed(Result<Executed, String>, Duration),
}

impl Reply {
    /// The answer to something else than an execution.
    fn value(self) -> Result<Value, Error> {
        match self {
            Reply::Done(value) => Ok(value),
            Reply::Failed(text) => Err(Error::internal(text)),
            Reply::Executed(..) => Err(unexpected()),
        }
    }

    /// The answer to an execution.
    fn executed(self) -> Result<Executed, Error> {
        match self {
            Reply::Executed(executed, _) => executed.map_err(Error::internal),
            Reply::Failed(text) => Err(Error::internal(text)),
            Reply::Done(_) => Err(unexpected()),
        }
    }
}

fn unexpected() -> Error {
    Error::internal("the host answered something else than it was asked")
}

/// What a batch came to.
#[derive(Debug, Default)]
pub(crate) struct Executed {
    /// What was returned for each request, nothing where it is answered through its sender; `None` where all are.
    pub returned: Option<Vec<Option<ResponseEntry>>>,
    /// Requests, by their place in the batch, that run again.
    pub again: Vec<usize>,
}

/// What `execute` returned for a request: outputs and parameters, or the error of the request.
pub(crate) type Returned = Result<(Vec<OutputTensor>, Vec<(String, Parameter)>), Error>;

impl Launcher {
    /// Starts a process; `name` is whom it works for.
    pub fn start(&self, name: &str) -> Result<Process, Error> {
        let interpreter = &self.environment.interpreter;
        let failed = |error: io::Error| {
            Error::internal(format!("cannot start the Python interpreter '{}': {error}", interpreter.display()))
        };
        let (socket, theirs) = UnixStream::pair().map_err(failed)?;
        let (link, messages) = link::open(socket, &self.runtime).map_err(failed)?;
        let mut command = Command::new(interpreter);
        // The name is for people who look at the machine's processes.
        command.arg(self.files.start()).arg(name.replace('\0', "_")).stdin(Stdio::from(OwnedFd::from(theirs)));
        if self.prints == Prints::Stderr {
            command.stdout(io::stderr());
        }
        command.envs(self.environment.variables());
        let child = command.spawn().map_err(failed)?;
        // The command holds the other end.
        drop(command);
        let shared = Arc::new(Shared {
            peers: self.peers.clone(),
            model: self.model.clone(),
            owner: Mutex::new(Owner { name: name.to_owned(), on_death: None }),
            started: Instant::now(),
            link,
            child: Mutex::new(child),
            is_made: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            state: Mutex::default(),
            metrics: Mutex::new(ProcessMetrics::new(self.metrics.clone())),
            processes: self.processes.clone(),
        });
        self.processes.add(&shared);
        let (end, ended) = mpsc::channel();
        self.runtime.spawn(listen(Listener { shared: shared.clone(), end: Some(end) }, messages));
        Ok(Process { shared, ended: Mutex::new(ended) })
    }
}

impl Process {
    /// From now on it works for the instance `name`. When it ends unasked, `on_death` is called on a thread of
    /// its own, with the time that it lived.
    pub fn adopt(&self, name: &str, on_death: impl FnOnce(Duration) + Send + 'static) {
        *self.shared.owner.lock() = Owner { name: name.to_owned(), on_death: Some(Box::new(on_death)) };
    }

    /// What talks with it, for as long as somebody does.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Lets the host do something that is not an execution, and waits for it.
    pub fn ask(&self, task: &Task<'_>) -> Result<Value, Error> {
        self.shared.ask(task)?.value()
    }

    /// Makes the model. Waits for it.
    pub fn initialize(&self, task: &Task<'_>) -> Result<(), Error> {
        self.ask(task)?;
        self.shared.is_made.store(true, SeqCst);
        Ok(())
    }

    /// Whether the process has ended.
    pub fn is_gone(&self) -> bool {
        self.shared.is_gone()
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("owner", &self.shared.name()).finish_non_exhaustive()
    }
}

impl Drop for Process {
    /// Lets the model end, and answers what it did not.
    fn drop(&mut self) {
        self.shared.is_ending.store(true, SeqCst);
        match self.shared.ask_within(&Task::Finalize, Some(FINALIZE_MAX)) {
            Ok(Reply::Failed(text)) => tracing::error!("finalize of '{}': {text}", self.shared.name()),
            Ok(_) | Err(RecvTimeoutError::Disconnected) => {}
            Err(RecvTimeoutError::Timeout) => tracing::error!("finalize of '{}' took too long", self.shared.name()),
        }
        // Who listens finds the end of the bytes, and the host too.
        self.shared.link.close();
        // Nothing is sent.
        let _ = self.ended.get_mut().recv();
    }
}

/// Who listens to a process. Dropped, whatever the reason, the process ends.
struct Listener {
    shared: Arc<Shared>,
    /// Dropped when it has ended.
    end: Option<mpsc::Sender<()>>,
}

/// Takes what the host says until it has ended.
async fn listen(listener: Listener, mut messages: Messages) {
    let shared = &listener.shared;
    let is_alive = || matches!(shared.child.lock().try_wait(), Ok(None));
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    let wrong = |error: io::Error| tracing::error!("the Python process of '{}' is ended: {error}", shared.name());
    loop {
        // What was sent is read before anybody looks who sent it.
        select! { biased;
            read = messages.read() => match read {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return wrong(error),
            },
            _ = look.tick() => {
                if !is_alive() {
                    return;
                }
                let gone = shared.tidy_if_idle();
                if gone.len() > IDLE_FREE_MAX {
                    // Each is a file to close.
                    task::block_in_place(|| drop(gone));
                }
            }
        }
        loop {
            match messages.next() {
                Ok(Some(message)) if shared.is_long(&message) => task::block_in_place(|| shared.take(message)),
                Ok(Some(message)) => shared.take(message),
                Ok(None) => break,
                Err(error) => return wrong(error),
            }
            task::consume_budget().await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let (shared, end) = (self.shared.clone(), self.end.take());
        // It may have to be waited for.
        let work = move || {
            shared.end();
            drop(end);
            let on_death = shared.owner.lock().on_death.take().filter(|_| !shared.is_ending.load(SeqCst));
            let lived = shared.started.elapsed();
            drop(shared);
            if let Some(on_death) = on_death {
                on_death(lived);
            }
        };
        if thread::Builder::new().name("python-end".to_owned()).spawn(work).is_err() {
            // Without a thread the next request finds the process gone and starts another.
            self.shared.end();
        }
    }
}

impl Shared {
    /// Lets the host run a batch, and waits for it.
    pub fn execute(&self, task: &Task<'_>) -> Result<Executed, Error> {
        self.ask(task)?.executed()
    }

    /// Lets the host run a batch, of which `task` tells it, after the one that it has. Whoever hears the answer finishes it.
    ///
    /// # Errors
    /// The process has ended; the batch is given back.
    pub fn submit<E: Execution + 'static>(&self, task: Encoded, execution: E) -> Result<(), E> {
        let state = self.state.lock();
        if state.is_gone {
            return Err(execution);
        }
        self.begin(state, task, Waiting::Execution(Box::new(execution)));
        Ok(())
    }

    /// The number by which the host names the request that `sender` answers.
    pub fn register(&self, sender: ResponseSender, trace: Option<TraceOrigin>) -> u64 {
        let mut state = self.state.lock();
        state.request_count += 1;
        let number = state.request_count;
        state.requests.insert(number, sender);
        state.traces.extend(trace.map(|trace| (number, trace)));
        number
    }

    /// What answers a request, unless it has its last response.
    pub fn take_request(&self, request: u64) -> Option<ResponseSender> {
        let mut state = self.state.lock();
        state.traces.remove(&request);
        state.requests.remove(&request)
    }

    /// What a response says, with its outputs copied and the segments of outputs freed.
    pub fn read(&self, entry: ResponseEntry) -> Returned {
        read(&self.state.lock(), entry)
    }

    /// What a request is told whose process has ended.
    pub fn death(&self) -> Error {
        Error::internal(format!("Stub process '{}' is not healthy.", self.name()))
    }

    /// A segment for tensors of `bytes` together, and what the host is told of it.
    pub fn input_segment(&self, bytes: usize) -> Result<(Arc<Segment>, Memory), Error> {
        let taken = self.take_segment(bytes).or_else(|error| {
            if !error.cause().is_some_and(are_files_exhausted) {
                return Err(error);
            }
            self.processes.close_files();
            self.take_segment(bytes)
        });
        taken.map_err(|error| Error::internal(no_memory(&error)))
    }

    fn take_segment(&self, bytes: usize) -> Result<(Arc<Segment>, Memory), SharedMemoryError> {
        let mut state = self.state.lock();
        let State { inputs, segments, segment_count, .. } = &mut *state;
        let number = || {
            *segment_count += 1;
            *segment_count
        };
        let Taken { segment, is_new, dropped } = inputs.take(bytes, number)?;
        if is_new {
            segments.insert(segment.number(), segment.clone());
        }
        dropped.iter().for_each(|number| drop(segments.remove(number)));
        let new = is_new.then(|| NewSegment(segment.clone()));
        let memory = Memory { new, uses: vec![segment.number()], dropped };
        Ok((segment, memory))
    }

    /// Where the host has answered nothing since the last look, what a burst needed and is free goes. Returns what is to be dropped.
    fn tidy_if_idle(&self) -> Vec<Arc<Segment>> {
        if std::mem::take(&mut self.state.lock().is_busy) {
            return Vec::new();
        }
        self.tidy(IDLE_FREE_MAX)
    }

    /// Lets go of free memory for inputs but for so many segments, and asks the host to do so with outputs'. Returns what is to be
    /// dropped.
    fn tidy(&self, kept: usize) -> Vec<Arc<Segment>> {
        let mut state = self.state.lock();
        // The host is told of those that went before, too.
        let _ = state.inputs.trim(kept);
        let gone = state.inputs.untold(1);
        let segments = gone.iter().filter_map(|number| state.segments.remove(number)).collect();
        let has_outputs = state.segments.len().saturating_sub(state.inputs.len()) > IDLE_FREE_MAX;
        let is_asked = has_outputs && self.is_made.load(SeqCst) && !std::mem::replace(&mut state.is_tidy, true);
        drop(state);
        if !gone.is_empty() {
            self.send(&Gone { gone });
        }
        if is_asked {
            self.send(&Task::Tidy);
        }
        segments
    }

    /// Whether the process has ended.
    pub fn is_gone(&self) -> bool {
        self.state.lock().is_gone
    }

    /// Whether the model runs requests: it is made, and not asked to end.
    pub fn is_serving(&self) -> bool {
        self.is_made.load(SeqCst) && !self.is_ending.load(SeqCst)
    }

    /// The trace of a request that the host has.
    pub fn trace(&self, request: u64) -> Option<TraceOrigin> {
        self.state.lock().traces.get(&request).cloned()
    }

    /// A call of another model is on its way; given is whether it is cancelled.
    pub fn begin_call(&self, call: u64) -> Arc<AtomicBool> {
        let mut state = self.state.lock();
        let is_cancelled = Arc::new(AtomicBool::new(state.is_gone));
        state.calls.insert(call, is_cancelled.clone());
        is_cancelled
    }

    /// A call has its last answer.
    pub fn end_call(&self, call: u64) {
        self.state.lock().calls.remove(&call);
    }

    /// The tensors that entries of the host name, copied; their segments are freed.
    pub fn tensors(&self, entries: Vec<TensorEntry>) -> Result<Vec<OutputTensor>, Error> {
        read_tensors(&self.state.lock(), entries)
    }

    /// Sends a message. One that has ended needs none.
    pub fn send(&self, message: &impl protocol::Outgoing) {
        match protocol::encode(message) {
            Ok(message) => self.link.send(message),
            Err(error) => tracing::error!("a message to the Python process of '{}': {error}", self.name()),
        }
    }

    fn ask(&self, task: &Task<'_>) -> Result<Reply, Error> {
        self.ask_within(task, None).map_err(|_| self.death())
    }

    /// The answer to a task: disconnected, where the process has ended.
    fn ask_within(&self, task: &Task<'_>, time: Option<Duration>) -> Result<Reply, RecvTimeoutError> {
        let (answer, answers) = mpsc::channel();
        let task = protocol::encode(task).map_err(|_| RecvTimeoutError::Disconnected)?;
        let state = self.state.lock();
        if state.is_gone {
            return Err(RecvTimeoutError::Disconnected);
        }
        self.begin(state, task, Waiting::Thread(answer));
        match time {
            None => answers.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(time) => answers.recv_timeout(time),
        }
    }

    /// Sends a task whose answer is for `waiting`.
    fn begin(&self, mut state: MutexGuard<'_, State>, task: Encoded, waiting: Waiting) {
        state.waiting.push_back(waiting);
        // With the lock, so that the tasks are in the order of those who wait.
        self.link.send(task);
    }

    fn name(&self) -> String {
        self.owner.lock().name.clone()
    }

    /// Whether what a message wants may take long, or has to wait.
    fn is_long(&self, message: &Message) -> bool {
        let may_wait = |request| self.state.lock().requests.get(request).is_some_and(ResponseSender::may_wait);
        message.bytes() > BYTES_MAX || matches!(message, Message::Response { request, .. } if may_wait(request))
    }

    /// Ends the process, whatever it does, and does not wait for it.
    fn kill(&self) {
        self.is_ending.store(true, SeqCst);
        // Who has the lock for longer than this has killed it, and waits for its end.
        if let Some(mut child) = self.child.try_lock_for(KILL_WAIT) {
            // One that has ended already cannot be killed, and need not be.
            let _ = child.kill();
        }
    }

    /// Sees to it that the process has ended, and answers its requests.
    fn end(&self) {
        self.link.close();
        let mut child = self.child.lock();
        // One that has ended already cannot be killed, and need not be.
        let _ = child.kill();
        let status = child.wait();
        drop(child);
        if !self.is_ending.load(SeqCst) {
            let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            tracing::error!("the Python process of '{}' ended: {status}", self.name());
        }
        let mut waiting = {
            let mut state = self.state.lock();
            state.is_gone = true;
            state.calls.drain().for_each(|(_, is_cancelled)| is_cancelled.store(true, SeqCst));
            std::mem::take(&mut state.waiting)
        };
        let running = waiting.pop_front();
        for waiting in waiting {
            if let Waiting::Execution(execution) = waiting {
                execution.give_back(self);
            }
        }
        let requests: Vec<ResponseSender> = {
            let mut state = self.state.lock();
            state.traces.clear();
            state.requests.drain().map(|(_, sender)| sender).collect()
        };
        for mut sender in requests {
            sender.fail(self.death(), true);
        }
        *self.metrics.lock() = ProcessMetrics::default();
        // A thread hears of it because nobody can answer any more.
        if let Some(Waiting::Execution(execution)) = running {
            execution.finish(self, Err(self.death()), None);
        }
    }

    fn take(self: &Arc<Self>, message: Message) {
        if matches!(message, Message::Executed { .. } | Message::Response { .. } | Message::Dropped { .. }) {
            let state = &mut *self.state.lock();
            (state.is_busy, state.is_tidy) = (true, false);
            for number in state.inputs.shrink() {
                state.segments.remove(&number);
            }
            let gone = state.inputs.untold(UNTOLD_MAX);
            if !gone.is_empty() {
                self.send(&Gone { gone });
            }
        }
        match message {
            Message::Done { value } => self.reply(Reply::Done(value)),
            Message::Failed { error } => self.reply(Reply::Failed(error)),
            Message::Executed { responses, error, again, ns } => {
                let executed = Executed { returned: responses, again };
                let executed = error.map_or(Ok(executed), Err);
                self.reply(Reply::Executed(executed, Duration::from_nanos(ns)));
            }
            Message::Response { request, last, response } => self.respond(request, last, response),
            // Dropping it answers with an error.
            Message::Dropped { request } => drop(self.take_request(request)),
            Message::Call { call, what } => self.answer(call, what),
            Message::Cancel { call } => {
                if let Some(is_cancelled) = self.state.lock().calls.get(&call) {
                    is_cancelled.store(true, SeqCst);
                }
            }
            Message::ForgetMetric { number } => self.metrics.lock().forget(number),
            Message::ForgetSegments { numbers } => {
                let state = &mut *self.state.lock();
                for number in numbers {
                    state.inputs.forget(number);
                    state.segments.remove(&number);
                }
            }
            // The log tells these instead of this file and line.
            Message::Log { level, text, file: source_file, line: source_line } => match &*level {
                "error" => tracing::error!(source_file, source_line, "{text}"),
                "warning" => tracing::warn!(source_file, source_line, "{text}"),
                "verbose" => tracing::debug!(source_file, source_line, "{text}"),
                _ => tracing::info!(source_file, source_line, "{text}"),
            },
        }
    }

    fn reply(&self, reply: Reply) {
        let waiting = self.state.lock().waiting.pop_front();
        match waiting {
            // One that does not wait any more did not get it in time.
            Some(Waiting::Thread(answer)) => drop(answer.send(reply)),
            Some(Waiting::Execution(execution)) => {
                let took = if let Reply::Executed(_, took) = &reply { Some(*took) } else { None };
                execution.finish(self, reply.executed(), took);
            }
            None => tracing::warn!("the Python process of '{}' answered what it was not asked", self.name()),
        }
    }

    /// Sends a response. The sender is not there where its request was answered: the host checks that, and what
    /// it sends all the same is nobody's.
    fn respond(&self, request: u64, last: bool, response: Option<ResponseEntry>) {
        let mut state = self.state.lock();
        let Some(mut sender) = state.requests.remove(&request) else {
            // Nobody waits for it: it is not read.
            let outputs = response.map_or(Vec::new(), |response| response.outputs);
            return free(&state, &segments_of(&outputs));
        };
        // The trace of a request may be told of once it is answered.
        let trace = if last { state.traces.remove(&request) } else { None };
        let response = response.map(|entry| read(&state, entry));
        drop(state);
        match response {
            None => return sender.end(),
            Some(Ok((outputs, parameters))) => sender.send(outputs, parameters, last),
            Some(Err(error)) => sender.fail(error, last),
        }
        if !last {
            let mut state = self.state.lock();
            // Taken out of the list while it sent; only this thread ends the list.
            state.requests.insert(request, sender);
        }
        drop(trace);
    }

    fn answer(self: &Arc<Self>, call: u64, what: Call) {
        let answer = match what {
            Call::Segment { bytes } => match self.output_segment(bytes) {
                Ok(segment) => Answer { call, segment: Some(segment), ..Answer::default() },
                Err(error) => Answer { call, error: Some(error), ..Answer::default() },
            },
            Call::IsCancelled { request } => {
                let state = self.state.lock();
                let is_answered_or_cancelled = || state.requests.get(&request).is_none_or(ResponseSender::is_cancelled);
                let is_cancelled = request != protocol::STAND_IN && is_answered_or_cancelled();
                Answer { call, value: Some(is_cancelled.into()), ..Answer::default() }
            }
            Call::IsModelReady { model, version } => {
                let version = (version >= 0).then_some(version);
                Answer { call, value: Some(self.peers.is_ready(&model, version).into()), ..Answer::default() }
            }
            Call::LoadModel { model, config, files } => {
                let parameters = calls::load_parameters(self, config, files);
                match parameters.and_then(|parameters| calls::change(self, call, model, Change::Load(parameters))) {
                    Ok(()) => return,
                    Err(error) => Answer { call, error: Some(error.message), ..Answer::default() },
                }
            }
            Call::UnloadModel { model, dependents } => {
                match calls::change(self, call, model, Change::Unload { dependents }) {
                    Ok(()) => return,
                    Err(error) => Answer { call, error: Some(error.message), ..Answer::default() },
                }
            }
            Call::Metric(what) => match self.metrics.lock().answer(what) {
                Ok(value) => Answer { call, value: Some(value), ..Answer::default() },
                Err(error) => Answer { call, error: Some(error.message), ..Answer::default() },
            },
            Call::Infer { request, decoupled } => match calls::infer(self, call, request, decoupled) {
                Ok(()) => return,
                Err(error) => Answer { call, error: Some(error.message), ..Answer::default() },
            },
        };
        self.send(&answer);
    }

    fn output_segment(&self, bytes: usize) -> Result<NewSegment, String> {
        let usable = halimede_platform::memory::machine().usable();
        if let Some(usable) = usable.filter(|usable| bytes as u64 > *usable) {
            return Err(format!("a response of {bytes} bytes is larger than the {usable} bytes of this machine"));
        }
        let number = {
            let mut state = self.state.lock();
            state.segment_count += 1;
            state.segment_count
        };
        let created = Segment::create(number, bytes).or_else(|error| {
            if !error.cause().is_some_and(are_files_exhausted) {
                return Err(error);
            }
            self.processes.close_files();
            Segment::create(number, bytes)
        });
        let segment = Arc::new(created.map_err(|error| no_memory(&error))?);
        self.state.lock().segments.insert(number, segment.clone());
        Ok(NewSegment(segment))
    }
}

/// What a response says, with its outputs copied and the segments of outputs freed.
fn read(state: &State, entry: ResponseEntry) -> Returned {
    if let Some((code, text)) = entry.error {
        return Err(Error { code: code_of(code), message: text, retry_after: None });
    }
    let outputs = read_tensors(state, entry.outputs);
    let parameters = entry.parameters.map_or(Ok(Vec::new()), |text| parameters(&text))?;
    Ok((outputs?, parameters))
}

/// What is told where there is no more shared memory: `/dev/shm` is full, or it would be one file too many.
fn no_memory(error: &SharedMemoryError) -> String {
    let way_out = match error.cause().is_some_and(are_files_exhausted) {
        true => {
            "As many files are open as may be (`halimede doctor` says how many): raise `ulimit -n` where the server is started"
        }
        false => "In a container, its flag --shm-size says how much shared memory there is",
    };
    format!("Failed to increase the shared memory pool size: {error}. {way_out}")
}

/// The tensors that entries name, copied, and the segments of outputs freed.
fn read_tensors(state: &State, entries: Vec<TensorEntry>) -> Result<Vec<OutputTensor>, Error> {
    let used = segments_of(&entries);
    let tensors = entries.into_iter().map(|entry| tensors::read(entry, &state.segments)).collect();
    free(state, &used);
    tensors
}

/// The numbers of the segments that tensors lie in, each once.
fn segments_of(entries: &[TensorEntry]) -> Vec<u32> {
    let mut used: Vec<u32> = entries.iter().map(|entry| entry.3).collect();
    used.sort_unstable();
    used.dedup();
    used
}

/// Frees those of these segments that are for outputs.
fn free(state: &State, numbers: &[u32]) {
    for number in numbers {
        if let Some(segment) = state.segments.get(number).filter(|segment| !state.inputs.owns(segment)) {
            segment.release();
        }
    }
}

/// Parameters out of JSON.
pub(crate) fn parameters(text: &str) -> Result<Vec<(String, Parameter)>, Error> {
    let wrong = || Error::internal("the parameters of a response cannot be read");
    let Ok(Value::Object(parameters)) = serde_json::from_str(text) else { return Err(wrong()) };
    let parameter = |(name, value): (String, Value)| {
        let value = match value {
            Value::String(text) => Parameter::String(text),
            Value::Bool(value) => Parameter::Bool(value),
            Value::Number(number) => match number.as_i64() {
                Some(number) => Parameter::Int(number),
                None => Parameter::Double(number.as_f64().ok_or_else(wrong)?),
            },
            _ => return Err(wrong()),
        };
        Ok((name, value))
    };
    parameters.into_iter().map(parameter).collect()
}

/// Codes in the order of their numbers in `TritonError`.
const CODES: [Code; 8] = [
    Code::Unknown,
    Code::Internal,
    Code::NotFound,
    Code::InvalidArgument,
    Code::Unavailable,
    Code::Unsupported,
    Code::AlreadyExists,
    Code::Cancelled,
];

/// The code of a `TritonError`.
fn code_of(number: i32) -> Code {
    usize::try_from(number).ok().and_then(|number| CODES.get(number)).copied().unwrap_or(Code::Internal)
}

/// The number of a code in `TritonError`.
pub(crate) fn number_of(code: Code) -> i32 {
    CODES.iter().position(|other| *other == code).map_or(1, |number| number as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn what_is_missing_says_which_limit_to_raise() {
        let failed = |cause| no_memory(&SharedMemoryError::Manage { action: "create", key: "/x".into(), cause });
        // The numbers of "too many open files" on every Unix, and of "no space left on device".
        for (number, hint, other) in [(24, "ulimit -n", "--shm-size"), (28, "--shm-size", "ulimit -n")] {
            let text = failed(io::Error::from_raw_os_error(number));
            assert!(text.starts_with("Failed to increase the shared memory pool size: cannot create"), "{text}");
            assert!(text.contains(hint) && !text.contains(other), "{text}");
        }
    }
}
