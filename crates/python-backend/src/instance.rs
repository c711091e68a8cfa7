//! One instance of a Python model, and the process that it runs in.

use std::{
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use halimede_serving::{
    CorrelationId, Error, Request,
    backend::{Batch, Instance, Submit, Submitted},
    trace::Trace,
};
use parking_lot::Mutex;
use serde_json::Value;

use crate::{
    calls,
    model::Definition,
    process::{Executed, Execution, Process, Returned, Shared},
    protocol::{self, Arguments, RequestEntry, Task, TensorEntry},
    segment::Kept,
    tensors,
};

/// A process that lived shorter is not started again before as long has passed.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Between attempts to start one that fail there is twice as long each time, up to this.
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(30);

/// The place of an instance, filled by one process after the other.
#[derive(Debug)]
pub(crate) struct Slot {
    definition: Arc<Definition>,
    /// As Triton names it: `<group>_<index>`.
    name: String,
    /// `CPU` or `MODEL`.
    kind: &'static str,
    /// Held for moments: whoever asks whether this is ready waits for it.
    state: Mutex<State>,
    /// Held while a process is started.
    starting: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    process: Option<Arc<Process>>,
    is_closed: bool,
}

impl Slot {
    pub fn new(definition: Arc<Definition>, name: String, kind: &'static str) -> Self {
        Self { definition, name, kind, state: Mutex::default(), starting: Mutex::default() }
    }

    /// The process, started where there is none.
    pub fn running(self: &Arc<Self>) -> Result<Arc<Process>, Error> {
        if let Some(process) = self.alive()? {
            return Ok(process);
        }
        let _starting = self.starting.lock();
        // Somebody else may have started one meanwhile.
        if let Some(process) = self.alive()? {
            return Ok(process);
        }
        let process = Arc::new(self.start()?);
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(unloaded());
        }
        state.process = Some(process.clone());
        Ok(process)
    }

    /// The process, unless there is none or it is gone.
    fn alive(&self) -> Result<Option<Arc<Process>>, Error> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(unloaded());
        }
        let gone = state.process.take_if(|process| process.is_gone());
        let process = state.process.clone();
        // Its end is waited for, without the lock: what answers its requests asks whether this is ready.
        drop(state);
        drop(gone);
        Ok(process)
    }

    fn start(self: &Arc<Self>) -> Result<Process, Error> {
        let slot = Arc::downgrade(self);
        let process = self.definition.loaded(&self.name, move |lived| restart(&slot, lived))?;
        let arguments = Arguments {
            model_config: &self.definition.config_text,
            model_instance_kind: self.kind,
            model_instance_name: &self.name,
            model_instance_device_id: "0",
            model_repository: &self.definition.directory,
            model_version: &self.definition.version.to_string(),
            model_name: &self.definition.name,
        };
        process.initialize(&Task::Initialize { arguments, is_decoupled: self.definition.is_decoupled })?;
        Ok(process)
    }

    /// Ends the process; no other is started, and one that is being started has ended, too.
    fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let process = state.process.take();
        drop(state);
        drop(process);
        // Who starts one holds this until it has found out.
        drop(self.starting.lock());
    }
}

fn unloaded() -> Error {
    Error::unavailable("the model is being unloaded")
}

/// Fills the place of a process that lived so long and died. One that cannot be started, or dies before its model is made, is
/// tried again: who waits for the model to be ready sends no request that would do it.
fn restart(slot: &Weak<Slot>, lived: Duration) {
    let mut pause = RESTART_PAUSE.saturating_sub(lived);
    loop {
        thread::sleep(pause);
        let Some(slot) = slot.upgrade().filter(|slot| !slot.state.lock().is_closed) else { return };
        match slot.running() {
            Ok(_) => return tracing::warn!("the Python process of '{}' was started again", slot.name),
            Err(error) => tracing::error!("the Python process of '{}' cannot be started: {error}", slot.name),
        }
        pause = (pause * 2).clamp(RESTART_PAUSE, RESTART_PAUSE_MAX);
    }
}

/// An instance.
pub(crate) struct PythonInstance(pub Arc<Slot>);

impl Instance for PythonInstance {
    fn execute(&mut self, batch: &mut Batch) {
        let ran = self.0.running().and_then(|process| self.0.run(process.shared(), batch));
        if let Err(error) = ran {
            batch.fail_all(&error);
        }
    }

    fn queue(&self) -> Option<Arc<dyn Submit>> {
        Some(self.0.clone())
    }
}

impl Drop for PythonInstance {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Submit for Slot {
    fn is_ready(&self) -> bool {
        self.state.lock().process.as_ref().is_some_and(|process| !process.is_gone())
    }

    fn takes_ahead(&self) -> bool {
        !self.definition.is_decoupled
    }

    fn submit(&self, mut batch: Submitted) -> Result<(), (Submitted, Error)> {
        // Not the process itself: who owns it last ends it, and waits for that.
        let process = self.state.lock().process.as_ref().map(|process| process.shared().clone());
        let Some(process) = process else { return Err((batch, unloaded())) };
        let (task, sent) = match self.announce(&process, batch.batch()) {
            Ok(announced) => announced,
            Err(error) => return Err((batch, error)),
        };
        let task = protocol::encode(&task).map_err(|error| Error::internal(error.to_string()));
        let submitted = match task {
            Ok(task) => process.submit(task, Running { batch, sent }).map_err(|back| (back, process.death())),
            Err(error) => Err((Running { batch, sent }, error)),
        };
        submitted.map_err(|(Running { mut batch, sent }, error)| {
            sent.answer(&process, batch.batch(), Err(error.clone()));
            (batch, error)
        })
    }
}

/// A batch that the host has.
struct Running {
    batch: Submitted,
    sent: Sent,
}

impl Execution for Running {
    fn finish(self: Box<Self>, process: &Shared, executed: Result<Executed, Error>, took: Option<Duration>) {
        let Self { mut batch, sent } = *self;
        if let Some(took) = took {
            batch.ran_for(took);
            batch.batch().executed();
        }
        sent.answer(process, batch.batch(), executed);
        batch.finish();
    }

    fn give_back(self: Box<Self>, process: &Shared) {
        let Self { mut batch, sent } = *self;
        for (index, number) in sent.numbers.into_iter().enumerate() {
            if let Some(sender) = process.take_request(number) {
                batch.batch().restore(index, sender);
            }
        }
        batch.give_back();
    }
}

/// What the host knows of a batch.
struct Sent {
    /// The numbers of its requests.
    numbers: Vec<u64>,
    /// Their inputs, which the host may give back as outputs: another batch may be announced before those are read.
    _inputs: Kept,
}

impl Sent {
    /// Leaves in the batch what became of its requests.
    fn answer(self, process: &Shared, batch: &mut Batch, executed: Result<Executed, Error>) {
        batch.outputs_computed();
        match executed {
            Err(error) => {
                for (index, number) in self.numbers.into_iter().enumerate() {
                    answer(process, batch, index, number, Err(error.clone()));
                }
            }
            Ok(Executed { returned, again }) => {
                // What was not returned is answered through the request's sender, or was already, or stands in for a request.
                if let Some(returned) = returned {
                    let mut returned = returned.into_iter();
                    for (index, number) in self.numbers.iter().enumerate() {
                        let returned = match returned.next() {
                            Some(None) => continue,
                            Some(Some(returned)) => process.read(returned),
                            None => Err(Error::internal("the model's process did not say what became of the request")),
                        };
                        answer(process, batch, index, *number, returned);
                    }
                }
                for index in again {
                    run_again(process, batch, index, self.numbers.get(index).copied());
                }
            }
        }
    }
}

impl Slot {
    /// Runs the batch. An error is one of memory, before the host has heard of the requests.
    fn run(&self, process: &Shared, batch: &mut Batch) -> Result<(), Error> {
        let (task, sent) = self.announce(process, batch)?;
        let executed = process.execute(&task);
        if executed.is_ok() {
            batch.executed();
        }
        sent.answer(process, batch, executed);
        Ok(())
    }

    /// Puts the inputs of a batch where the host finds them, and says what it is to be told.
    fn announce<'a>(&'a self, process: &Shared, batch: &'a mut Batch) -> Result<(Task<'a>, Sent), Error> {
        let all = 0..batch.len();
        let bytes =
            tensors::bytes_of(all.clone().flat_map(|index| &batch.request(index).inputs).map(|input| &input.data));
        let (segment, memory) = process.input_segment(bytes)?;
        let kept = segment.keep();
        let mut place = 0;
        let inputs: Result<Vec<Vec<TensorEntry>>, Error> = all
            .clone()
            .map(|index| {
                let inputs = batch.request(index).inputs.iter();
                inputs.map(|input| tensors::write(input, &segment, &mut place)).collect()
            })
            .collect();
        let inputs = inputs.inspect_err(|_| segment.release())?;
        let register = |index: usize| {
            if batch.is_stand_in(index) {
                return protocol::STAND_IN;
            }
            let origin = batch.request(index).trace.as_ref().map(Trace::origin);
            process.register(batch.response_sender(index), origin)
        };
        let numbers: Vec<u64> = all.clone().map(register).collect();
        batch.inputs_ready();
        let requests = numbers.iter().zip(inputs).enumerate();
        let requests = requests.map(|(index, (number, inputs))| self.entry(batch.request(index), *number, inputs));
        let task = Task::Execute { requests: requests.collect(), memory };
        Ok((task, Sent { numbers, _inputs: kept }))
    }

    fn entry<'a>(&'a self, request: &'a Request, number: u64, inputs: Vec<TensorEntry>) -> RequestEntry<'a> {
        let start = if request.sequence.start { calls::FLAG_START } else { 0 };
        let end = if request.sequence.end { calls::FLAG_END } else { 0 };
        let outputs = match &request.outputs[..] {
            [] => self.definition.outputs.iter().map(String::as_str).collect(),
            wanted => wanted.iter().map(|output| output.name.as_str()).collect(),
        };
        RequestEntry {
            request: number,
            id: &request.id,
            model: &self.definition.name,
            version: self.definition.version,
            correlation_id: match &request.sequence.id {
                CorrelationId::Int(id) => Value::from(*id),
                CorrelationId::String(id) => Value::from(id.as_str()),
            },
            flags: start | end,
            timeout: request.timeout_us,
            parameters: calls::parameters_text(&request.parameters),
            outputs,
            inputs,
            is_traced: request.trace.is_some(),
            trace_context: request.trace.as_ref().and_then(|trace| trace.origin().context()),
        }
    }
}

/// Leaves what a request is told in the batch, unless it was told the last by its sender.
fn answer(process: &Shared, batch: &mut Batch, index: usize, number: u64, returned: Returned) {
    if let Some(sender) = process.take_request(number) {
        batch.restore(index, sender);
    }
    match returned {
        Err(error) => batch.fail(index, error),
        Ok((outputs, parameters)) => {
            outputs.into_iter().for_each(|output| batch.push_output(index, output));
            parameters.into_iter().for_each(|(name, value)| batch.push_parameter(index, &name, value));
        }
    }
}

/// Lets a request run again that was not told the last.
fn run_again(process: &Shared, batch: &mut Batch, index: usize, number: Option<u64>) {
    let Some(sender) = number.and_then(|number| process.take_request(number)) else { return };
    batch.restore(index, sender);
    if let Err(error) = batch.run_again(index) {
        batch.fail(index, error);
    }
}
