//! Requests that every instance runs before its model counts as ready.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use halimede_tensor::{Buffer, DType};

use super::batch::{Batch, Entry, Finished};
use crate::{
    backend::Instance,
    config::{
        DataType, ModelConfig,
        proto::{
            ModelWarmup,
            model_warmup::{Input, input::InputDataType},
        },
    },
    error::Error,
    model::Signature,
    paths::is_inside,
    request::{InputTensor, Request, Sequence},
    response::{Reply, Responder, Response},
    statistics::Recorder,
};

/// Directory below the model's directory with data for warm-up requests.
const DIRECTORY: &str = "warmup";

/// Requests of a sample that run together.
const BATCH_MAX: u32 = 1 << 16;

/// How often the log says that a model still warms up: as long as it does nobody can use it.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// The warm-up requests of a model.
#[derive(Debug, Default)]
pub(crate) struct WarmUp {
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    name: String,
    /// Requests in the batch, each with one inference.
    batch_size: u32,
    /// How often the batch runs.
    count: u32,
    inputs: Vec<InputTensor>,
}

/// Hears whether a request failed. Gone once it has its last response.
struct Heard(mpsc::Sender<Error>);

impl Reply for Heard {
    fn send(&mut self, response: Response, _: bool) {
        if let Some(error) = response.error {
            // Who runs the requests may have given up.
            let _ = self.0.send(error);
        }
    }

    fn end(&mut self) {}
}

impl WarmUp {
    /// Reads the warm-up requests of a complete configuration; `directory` is the model's.
    pub fn read(config: &ModelConfig, directory: &Path) -> Result<Self, Error> {
        let with_requests = config.model_warmup.iter().filter(|setting| setting.batch_size > 0);
        let samples = with_requests.map(|setting| Sample::read(setting, config, directory));
        Ok(Self { samples: samples.collect::<Result<_, _>>()? })
    }

    /// Runs all of them on an instance, which the log calls `name`.
    pub fn run(
        &self,
        instance: &mut dyn Instance,
        name: &str,
        signature: &Arc<Signature>,
        version: i64,
    ) -> Result<(), Error> {
        let mut told = Instant::now();
        for sample in &self.samples {
            for iteration in 1..=sample.count {
                if told.elapsed() > TOLD_EVERY {
                    told = Instant::now();
                    tracing::info!(
                        "model '{}' instance {name} still warms up: run {iteration} of {} of sample '{}'",
                        signature.model,
                        sample.count,
                        sample.name
                    );
                }
                tracing::debug!(
                    "model '{}' instance {name} is running warmup sample '{}' for iteration {iteration}",
                    signature.model,
                    sample.name
                );
                let failed = |error: &Error| {
                    Error::invalid(format!("failed to run warmup sample '{}': {}; ", sample.name, error.message))
                };
                let (errors, heard) = mpsc::channel();
                let entries =
                    (0..sample.batch_size).map(|_| sample.entry(signature, &errors)).collect::<Result<_, _>>();
                drop(errors);
                let entries: Vec<Entry> = entries.map_err(|error| failed(&error))?;
                let recorder = Arc::<Recorder>::default();
                recorder.enter(entries.len());
                let mut batch = Batch::new(signature.clone(), version, recorder, entries);
                let run = catch_unwind(AssertUnwindSafe(|| instance.execute(&mut batch)));
                if run.is_err() {
                    return Err(failed(&Error::internal("the model panicked")));
                }
                if let Some(error) = batch.first_error() {
                    return Err(failed(error));
                }
                let Finished { again, .. } =
                    batch.finish(|_, mut request, response| request.responder.send(response, true));
                // Once is enough for what would run again.
                again.into_iter().for_each(|mut entry| entry.request.responder.end());
                // Until all have their last response, which a model may give from threads of its own.
                if let Some(error) = heard.iter().next() {
                    return Err(failed(&error));
                }
            }
        }
        Ok(())
    }
}

impl Sample {
    fn read(setting: &ModelWarmup, config: &ModelConfig, directory: &Path) -> Result<Self, Error> {
        if setting.batch_size > BATCH_MAX {
            return Err(Error::invalid(format!(
                "warmup sample '{}' of model '{}' has a batch_size of {}; {BATCH_MAX} requests run together at most",
                setting.name, config.name, setting.batch_size
            )));
        }
        let inputs = setting.inputs.iter().map(|(name, input)| read_input(name, input, config, directory));
        Ok(Self {
            name: setting.name.clone(),
            batch_size: setting.batch_size,
            count: setting.count.max(1),
            inputs: inputs.collect::<Result<_, _>>()?,
        })
    }

    fn entry(&self, signature: &Signature, errors: &mpsc::Sender<Error>) -> Result<Entry, Error> {
        let mut request = Request::new(signature.model.clone(), Responder::new(Heard(errors.clone())));
        request.inputs.clone_from(&self.inputs);
        let Some(sequence) = &signature.sequence else {
            let batch_size = signature.prepare(&mut request)?;
            return Ok(Entry::new(request, batch_size));
        };
        // What a sequence adds may be given; else it is that of a request that begins and ends one.
        let is_added = |input: &InputTensor| sequence.input_names().any(|name| name == input.name);
        let (added, given) = request.inputs.into_iter().partition(is_added);
        request.inputs = given;
        let mut added: Vec<InputTensor> = added;
        let whole = Sequence { start: true, end: true, ..Sequence::default() };
        let states = sequence.states.iter().map(|state| state.initial.clone());
        for input in sequence.signals(Some(&whole)).chain(states) {
            if added.iter().all(|given| given.name != input.name) {
                added.push(input);
            }
        }
        let batch_size = signature.prepare_inputs(&mut request)?;
        request.inputs.extend(added);
        Ok(Entry::new(request, batch_size))
    }
}

fn read_input(name: &str, input: &Input, config: &ModelConfig, directory: &Path) -> Result<InputTensor, Error> {
    let dtype = DataType::try_from(input.data_type).ok().and_then(DataType::to_dtype);
    let dtype = dtype.ok_or_else(|| Error::invalid(format!("warmup input '{name}' has no data type")))?;
    let count = input.dims.iter().try_fold(1usize, |count, &dim| count.checked_mul(usize::try_from(dim).ok()?));
    let size = if dtype == DType::String { crate::wire::LENGTH_BYTES } else { dtype.size() };
    let bytes = count.and_then(|count| count.checked_mul(size)).ok_or_else(|| {
        Error::invalid(format!("warmup setting expects all variable-size dimensions are specified for input '{name}'"))
    })?;
    let data = match &input.input_data_type {
        Some(InputDataType::RandomData(_)) if dtype != DType::String => random(bytes)?,
        // A string of no bytes is four zeros.
        Some(InputDataType::ZeroData(_) | InputDataType::RandomData(_)) => Buffer::zeroed(bytes)?,
        Some(InputDataType::InputDataFile(file)) => {
            let data = read_file(directory, file)?;
            match dtype {
                DType::String => Buffer::foreign(data),
                _ if data.len() < bytes => {
                    return Err(Error::invalid(format!(
                        "[request id: <id_unknown>] warmup setting expects {bytes} bytes, but the data provided from \
                         {file} only has {} bytes",
                        data.len()
                    )));
                }
                _ => Buffer::copied(&data[..bytes])?,
            }
        }
        None => {
            return Err(Error::invalid(format!("warmup setting expects input '{name}' to have input_data_type set")));
        }
    };
    let batch: &[i64] = if config.max_batch_size > 0 { &[1] } else { &[] };
    Ok(InputTensor { name: name.to_owned(), dtype: Some(dtype), shape: [batch, &input.dims].concat(), data })
}

fn read_file(directory: &Path, file: &str) -> Result<Vec<u8>, Error> {
    if !is_inside(file) {
        return Err(Error::invalid(format!("warmup data file '{file}' is outside the model's directory {DIRECTORY}")));
    }
    let path = directory.join(DIRECTORY).join(file);
    fs::read(&path).map_err(|error| Error::invalid(format!("cannot read warmup data {}: {error}", path.display())))
}

/// Bytes without a pattern; the same ones each time.
fn random(len: usize) -> Result<Buffer, Error> {
    let mut buffer = Buffer::zeroed(len)?;
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for byte in buffer.make_mut()? {
        // Marsaglia's xorshift64.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = (state >> 32) as u8;
    }
    Ok(buffer)
}
