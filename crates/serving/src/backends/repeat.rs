//! NVIDIA's decoupled test backend `repeat`: a response for each element of `IN`, which waits as many
//! milliseconds as `DELAY` says and gives the element as `OUT` and its place as `IDX`. The execution takes
//! `WAIT` milliseconds, whether the responses are sent by then or not.

use std::{
    thread::{self, JoinHandle},
    time::Duration,
};

use halimede_tensor::DType;

use super::interface::{self, check, check_single, single};
use crate::{
    backend::{Backend, Batch, Instance, LoadedModel, Model, ModelContext, ResponseSender},
    config::{ModelConfig, finish_without_model},
    error::Error,
    model::shape_text,
};

/// The backend `repeat`.
#[derive(Debug)]
pub struct Repeat;

impl Backend for Repeat {
    fn name(&self) -> &str {
        "repeat"
    }

    fn load(&self, context: &ModelContext) -> Result<LoadedModel, Error> {
        let config = finish_without_model(context.config.clone(), &context.options)?;
        validate(&config)?;
        Ok(LoadedModel::as_configured(config, std::sync::Arc::new(Repeat)))
    }
}

fn validate(config: &ModelConfig) -> Result<(), Error> {
    if config.max_batch_size != 0 {
        return Err(Error::invalid("repeat backend only supports models with max_batch_size == 0"));
    }
    check(config, &[("IN", "INT32"), ("DELAY", "UINT32"), ("WAIT", "UINT32")], &[("OUT", "INT32"), ("IDX", "UINT32")])?;
    let (values, delays) = (&config.input[0].dims, &config.input[1].dims);
    if values.len() != 1 {
        return Err(Error::invalid(format!("expected IN shape to have one dimension, got {}", shape_text(values))));
    }
    check_same_shape(values, delays)?;
    check_single("WAIT", &config.input[2].dims)?;
    check_single("OUT", &config.output[0].dims)?;
    check_single("IDX", &config.output[1].dims)
}

fn check_same_shape(values: &[i64], delays: &[i64]) -> Result<(), Error> {
    if values == delays {
        return Ok(());
    }
    let (values, delays) = (shape_text(values), shape_text(delays));
    Err(Error::invalid(format!("expected IN and DELAY shape to match, got {values} and {delays}")))
}

impl Model for Repeat {
    fn instance(&self, _: usize) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(RepeatInstance { threads: Vec::new() }))
    }
}

struct RepeatInstance {
    /// What still answers.
    threads: Vec<JoinHandle<()>>,
}

impl Instance for RepeatInstance {
    fn execute(&mut self, batch: &mut Batch) {
        self.threads.retain(|thread| !thread.is_finished());
        for index in 0..batch.len() {
            let started = Answers::read(batch, index).and_then(|(wait, answers)| {
                let sender = batch.response_sender(index);
                let thread = thread::Builder::new().name("repeat".to_owned()).spawn(move || answers.send(sender));
                Ok((wait, thread.map_err(|error| Error::internal(format!("cannot start a thread: {error}")))?))
            });
            match started {
                Ok((wait, thread)) => {
                    self.threads.push(thread);
                    thread::sleep(wait);
                }
                Err(error) => batch.fail(index, error),
            }
        }
    }
}

impl Drop for RepeatInstance {
    /// Waits until every request has its last response.
    fn drop(&mut self) {
        // A panic of theirs was answered by their senders.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Each element with the time to wait before it is sent.
struct Answers(Vec<([u8; 4], Duration)>);

impl Answers {
    /// How long the execution takes, and what is sent.
    fn read(batch: &Batch, index: usize) -> Result<(Duration, Self), Error> {
        let shape =
            |name: &str| batch.gather_one(index, name).map(|input| input.map_or(Vec::new(), |input| input.shape));
        check_same_shape(&shape("IN")?, &shape("DELAY")?)?;
        let millis = |name: &str| -> Result<Vec<Duration>, Error> {
            let words = interface::words(batch, index, name)?;
            Ok(words.into_iter().map(|word| Duration::from_millis(u32::from_le_bytes(word).into())).collect())
        };
        let Ok([wait]) = <[Duration; 1]>::try_from(millis("WAIT")?) else {
            return Err(Error::invalid("unexpected size for WAIT input"));
        };
        Ok((wait, Self(interface::words(batch, index, "IN")?.into_iter().zip(millis("DELAY")?).collect())))
    }

    fn send(self, mut sender: ResponseSender) {
        for (index, (value, delay)) in self.0.into_iter().enumerate() {
            thread::sleep(delay);
            if sender.is_cancelled() {
                break;
            }
            let place = (index as u32).to_le_bytes();
            let outputs = [single("OUT", DType::I32, vec![1], value), single("IDX", DType::U32, vec![1], place)];
            let outputs = outputs.into_iter().filter(|output| sender.wants(&output.name)).collect();
            sender.send(outputs, Vec::new(), false);
        }
        sender.end();
    }
}
