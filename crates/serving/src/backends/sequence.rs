//! NVIDIA's test backend `sequence`: `OUTPUT` is the sum of what came as `INPUT` since the sequence began. The sums
//! lie in the rows of the batch, so that the answers are right only with the strategy direct.
//!
//! `execute_delay_ms` in the parameters of the configuration lets every execution take that long.

use std::{sync::Arc, thread, time::Duration};

use super::{
    accumulator::{answer_each, check_controls, check_vectors, is_set, numbers, sum},
    interface::{execute_delay, filled},
};
use crate::{
    backend::{Backend, Batch, Instance, LoadedModel, Model, ModelContext},
    config::finish_without_model,
    error::Error,
};

/// The backend `sequence`.
#[derive(Debug)]
pub struct Sequence;

impl Backend for Sequence {
    fn name(&self) -> &str {
        "sequence"
    }

    fn load(&self, context: &ModelContext) -> Result<LoadedModel, Error> {
        let config = finish_without_model(context.config.clone(), &context.options)?;
        check_controls(&config, &["START", "READY"], "'START' and 'READY' must be configured as the control inputs")?;
        check_vectors(&config)?;
        let rows = usize::try_from(config.max_batch_size).unwrap_or(0).max(1);
        let model = Arc::new(SequenceModel { delay: execute_delay(&config)?, rows });
        Ok(LoadedModel::as_configured(config, model))
    }
}

struct SequenceModel {
    delay: Duration,
    rows: usize,
}

impl Model for SequenceModel {
    fn instance(&self, _: usize) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(SequenceInstance { delay: self.delay, sums: vec![0; self.rows] }))
    }
}

struct SequenceInstance {
    delay: Duration,
    /// By row of the batch.
    sums: Vec<i32>,
}

impl Instance for SequenceInstance {
    fn execute(&mut self, batch: &mut Batch) {
        batch.inputs_ready();
        thread::sleep(self.delay);
        answer_each(batch, |batch, row| self.answer(batch, row));
    }
}

impl SequenceInstance {
    fn answer(&mut self, batch: &mut Batch, row: usize) -> Result<(), Error> {
        if !is_set(batch, row, "READY")? {
            return Ok(());
        }
        let Some(total) = self.sums.get_mut(row) else {
            return Err(Error::unsupported("unable to execute batch larger than max-batch-size"));
        };
        let (values, shape) = numbers(batch, row, "INPUT")?;
        let before = if is_set(batch, row, "START")? { 0 } else { *total };
        *total = sum(before, &values);
        let output = filled("OUTPUT", shape, values.len(), *total);
        batch.push_output(row, output);
        Ok(())
    }
}
