//! NVIDIA's decoupled test backend `square`: as many responses as `IN` says, each with that number as `OUT`.
//!
//! Parameters of the configuration let it fail and wait: of N responses the last `CUSTOM_EMPTY_COUNT` are not
//! sent and the `CUSTOM_FAIL_COUNT` before them are errors; `CUSTOM_INFER_DELAY_NS` and
//! `CUSTOM_OUTPUT_DELAY_NS` are spent on each response, `CUSTOM_CANCEL_DELAY_NS` when the client has gone.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use halimede_tensor::DType;

use super::interface::{check, check_single, single, words};
use crate::{
    backend::{Backend, Batch, Instance, LoadedModel, Model, ModelContext, ResponseSender},
    config::{ModelConfig, finish_without_model},
    error::Error,
};

/// The backend `square`.
#[derive(Debug)]
pub struct Square;

impl Backend for Square {
    fn name(&self) -> &str {
        "square"
    }

    fn load(&self, context: &ModelContext) -> Result<LoadedModel, Error> {
        let config = finish_without_model(context.config.clone(), &context.options)?;
        check(&config, &[("IN", "INT32")], &[("OUT", "INT32")])?;
        check_single("IN", &config.input[0].dims)?;
        check_single("OUT", &config.output[0].dims)?;
        let model = Arc::new(SquareModel(Settings::read(&config)));
        Ok(LoadedModel::as_configured(config, model))
    }
}

#[derive(Debug, Clone, Copy)]
struct Settings {
    infer_delay: Duration,
    output_delay: Duration,
    cancel_delay: Duration,
    fail_count: u64,
    empty_count: u64,
}

impl Settings {
    /// What is no number counts as 0, as in NVIDIA's backend.
    fn read(config: &ModelConfig) -> Self {
        let number = |name: &str| -> u64 {
            config.parameters.get(name).and_then(|value| value.string_value.parse().ok()).unwrap_or(0)
        };
        let delay = |name: &str| Duration::from_nanos(number(name));
        Self {
            infer_delay: delay("CUSTOM_INFER_DELAY_NS"),
            output_delay: delay("CUSTOM_OUTPUT_DELAY_NS"),
            cancel_delay: delay("CUSTOM_CANCEL_DELAY_NS"),
            fail_count: number("CUSTOM_FAIL_COUNT"),
            empty_count: number("CUSTOM_EMPTY_COUNT"),
        }
    }
}

struct SquareModel(Settings);

impl Model for SquareModel {
    fn instance(&self, _: usize) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(SquareInstance { settings: self.0, threads: Vec::new() }))
    }
}

struct SquareInstance {
    settings: Settings,
    /// What still answers.
    threads: Vec<JoinHandle<()>>,
}

impl Instance for SquareInstance {
    fn execute(&mut self, batch: &mut Batch) {
        self.threads.retain(|thread| !thread.is_finished());
        for index in 0..batch.len() {
            let started = read(batch, index).and_then(|(shape, number)| {
                let (settings, sender) = (self.settings, batch.response_sender(index));
                let answer = move || answer(settings, shape, number, sender);
                let thread = thread::Builder::new().name("square".to_owned()).spawn(answer);
                thread.map_err(|error| Error::internal(format!("cannot start a thread: {error}")))
            });
            match started {
                Ok(thread) => self.threads.push(thread),
                Err(error) => batch.fail(index, error),
            }
        }
    }
}

impl Drop for SquareInstance {
    /// Waits until every request has its last response.
    fn drop(&mut self) {
        // A panic of theirs was answered by their senders.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// The shape of the outputs, and how many there are.
fn read(batch: &Batch, index: usize) -> Result<(Vec<i64>, u64), Error> {
    let Ok([number]) = <[[u8; 4]; 1]>::try_from(words(batch, index, "IN")?) else {
        return Err(Error::invalid("unexpected shape for IN input"));
    };
    let shape = if batch.is_batched() { vec![1, 1] } else { vec![1] };
    Ok((shape, u64::try_from(i32::from_le_bytes(number)).unwrap_or(0)))
}

fn answer(settings: Settings, shape: Vec<i64>, number: u64, mut sender: ResponseSender) {
    for index in 0..number {
        if sender.is_cancelled() {
            thread::sleep(settings.cancel_delay);
            sender.skip_cancelled();
            break;
        }
        thread::sleep(settings.infer_delay);
        // How many follow, this one included.
        let left = number - index;
        if left <= settings.empty_count {
            sender.skip();
            continue;
        }
        sender.outputs_computed();
        thread::sleep(settings.output_delay);
        if left - settings.empty_count <= settings.fail_count {
            sender.fail(Error::unknown("simulated failure"), false);
        } else {
            let value = (number as i32).to_le_bytes();
            sender.send(vec![single("OUT", DType::I32, shape.clone(), value)], Vec::new(), false);
        }
    }
    sender.end();
}
