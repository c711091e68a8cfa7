//! NVIDIA's test backend `iterative_sequence`: a request with `INPUT` n runs n times and is answered with `OUTPUT`
//! n - 1, ..., 0. Each run takes half a second.

use std::{collections::HashMap, sync::Arc, thread, time::Duration};

use super::{
    accumulator::{answer_each, numbers},
    interface::filled,
};
use crate::{
    backend::{Backend, Batch, Instance, LoadedModel, Model, ModelContext},
    config::finish_without_model,
    error::Error,
    request::CorrelationId,
};

/// How long a run takes.
const PAUSE: Duration = Duration::from_millis(500);

/// The backend `iterative_sequence`.
#[derive(Debug)]
pub struct IterativeSequence;

impl Backend for IterativeSequence {
    fn name(&self) -> &str {
        "iterative_sequence"
    }

    fn load(&self, context: &ModelContext) -> Result<LoadedModel, Error> {
        let config = finish_without_model(context.config.clone(), &context.options)?;
        Ok(LoadedModel::as_configured(config, Arc::new(IterativeSequence)))
    }
}

impl Model for IterativeSequence {
    fn instance(&self, _: usize) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(IterativeSequenceInstance { left: HashMap::new() }))
    }
}

struct IterativeSequenceInstance {
    /// Answers that are still to be sent, by sequence.
    left: HashMap<CorrelationId, i32>,
}

impl Instance for IterativeSequenceInstance {
    fn execute(&mut self, batch: &mut Batch) {
        batch.inputs_ready();
        answer_each(batch, |batch, index| self.answer(batch, index));
    }
}

impl IterativeSequenceInstance {
    fn answer(&mut self, batch: &mut Batch, index: usize) -> Result<(), Error> {
        let (values, _) = numbers(batch, index, "INPUT")?;
        let id = batch.request(index).sequence.id.clone();
        let first = values.first().copied().unwrap_or(0);
        let left = self.left.remove(&id).unwrap_or(first).saturating_sub(1);
        let shape = if batch.is_batched() { vec![1, 1] } else { vec![1] };
        let output = filled("OUTPUT", shape, 1, left);
        thread::sleep(PAUSE);
        if left <= 0 {
            batch.push_output(index, output);
            return Ok(());
        }
        batch.run_again(index)?;
        self.left.insert(id, left);
        let mut sender = batch.response_sender(index);
        sender.send(vec![output], Vec::new(), false);
        batch.restore(index, sender);
        Ok(())
    }
}
