//! One instance of a Python model, and the process that it runs in.

use std::{
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use halimede_serving::{
    CorrelationId, Error, Request,
    backend::{Batch, Instance},
    trace::Trace,
};
use parking_lot::Mutex;
use serde_json::Value;

use crate::{
    calls,
    model::Definition,
    process::{Executed, Process, Returned},
    protocol::{Arguments, RequestEntry, Task, TensorEntry},
    tensors,
};

/// A process that lived shorter is not started again before as long has passed.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

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

    /// Whether a request would find a process.
    pub fn is_ready(&self) -> bool {
        self.state.lock().process.as_ref().is_some_and(|process| !process.is_gone())
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
        if state.process.as_ref().is_some_and(|process| process.is_gone()) {
            state.process = None;
        }
        Ok(state.process.clone())
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

    /// Ends the process; no other is started.
    fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let process = state.process.take();
        drop(state);
        drop(process);
    }
}

fn unloaded() -> Error {
    Error::unavailable("the model is being unloaded")
}

/// Fills the place of a process that lived so long and died.
fn restart(slot: &Weak<Slot>, lived: Duration) {
    thread::sleep(RESTART_PAUSE.saturating_sub(lived));
    if let Some(slot) = slot.upgrade().filter(|slot| !slot.state.lock().is_closed) {
        match slot.running() {
            Ok(_) => tracing::warn!("the Python process of '{}' was started again", slot.name),
            Err(error) => tracing::error!("the Python process of '{}' cannot be started: {error}", slot.name),
        }
    }
}

/// An instance.
pub(crate) struct PythonInstance(pub Arc<Slot>);

impl Instance for PythonInstance {
    fn execute(&mut self, batch: &mut Batch) {
        let process = match self.0.running() {
            Ok(process) => process,
            Err(error) => return batch.fail_all(&error),
        };
        if let Err(error) = self.run(&process, batch) {
            batch.fail_all(&error);
        }
    }
}

impl Drop for PythonInstance {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl PythonInstance {
    /// Runs the batch. An error is one of memory, before the host has heard of the requests.
    fn run(&self, process: &Process, batch: &mut Batch) -> Result<(), Error> {
        let all = 0..batch.len();
        let bytes =
            tensors::bytes_of(all.clone().flat_map(|index| &batch.request(index).inputs).map(|input| &input.data));
        let (segment, memory) = process.input_segment(bytes)?;
        let is_new = !memory.segments.is_empty();
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
            let origin = batch.request(index).trace.as_ref().map(Trace::origin);
            process.register(batch.response_sender(index), origin)
        };
        let numbers: Vec<u64> = all.clone().map(register).collect();
        batch.inputs_ready();
        let requests = numbers.iter().zip(inputs).enumerate();
        let requests = requests.map(|(index, (number, inputs))| self.entry(batch.request(index), *number, inputs));
        let task = Task::Execute { requests: requests.collect(), memory };
        let returned = process.execute(&task);
        batch.outputs_computed();
        if is_new {
            segment.forget_name();
        }
        match returned {
            Err(error) => {
                for (index, number) in numbers.into_iter().enumerate() {
                    answer(process, batch, index, number, Err(error.clone()));
                }
            }
            Ok(Executed { returned, again }) => {
                // What was not returned is answered through the request's sender, or was already.
                for (index, (number, returned)) in numbers.iter().zip(returned).enumerate() {
                    if let Some(returned) = returned {
                        answer(process, batch, index, *number, returned);
                    }
                }
                for index in again {
                    run_again(process, batch, index, numbers.get(index).copied());
                }
            }
        }
        process.settle();
        Ok(())
    }

    fn entry<'a>(&'a self, request: &'a Request, number: u64, inputs: Vec<TensorEntry>) -> RequestEntry<'a> {
        let start = if request.sequence.start { calls::FLAG_START } else { 0 };
        let end = if request.sequence.end { calls::FLAG_END } else { 0 };
        let outputs = match &request.outputs[..] {
            [] => self.0.definition.outputs.iter().map(String::as_str).collect(),
            wanted => wanted.iter().map(|output| output.name.as_str()).collect(),
        };
        RequestEntry {
            request: number,
            id: &request.id,
            model: &self.0.definition.name,
            version: self.0.definition.version,
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
fn answer(process: &Process, batch: &mut Batch, index: usize, number: u64, returned: Returned) {
    if let Some(sender) = process.take(number) {
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
fn run_again(process: &Process, batch: &mut Batch, index: usize, number: Option<u64>) {
    let Some(sender) = number.and_then(|number| process.take(number)) else { return };
    batch.restore(index, sender);
    if let Err(error) = batch.run_again(index) {
        batch.fail(index, error);
    }
}
