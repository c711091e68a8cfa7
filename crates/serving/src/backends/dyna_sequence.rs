//! NVIDIA's test backend `dyna_sequence`: `OUTPUT` is the sum of what came as `INPUT` since the sequence began, and
//! with the last request the identifier of the sequence is added. The sums are found by the identifier, so that
//! requests may come in any row.
//!
//! `execute_delay_ms` in the parameters of the configuration lets every execution take that long.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    thread,
    time::Duration,
};

use super::{
    accumulator::{answer_each, check_controls, check_vectors, is_set, numbers, sum},
    interface::{execute_delay, filled},
};
use crate::{
    backend::{Backend, Batch, Instance, LoadedModel, Model, ModelContext},
    config::{
        DataType, ModelConfig, finish_without_model,
        proto::{model_config::SchedulingChoice, model_sequence_batching::control::Kind},
    },
    error::Error,
    wire,
};

/// The backend `dyna_sequence`.
#[derive(Debug)]
pub struct DynaSequence;

impl Backend for DynaSequence {
    fn name(&self) -> &str {
        "dyna_sequence"
    }

    fn load(&self, context: &ModelContext) -> Result<LoadedModel, Error> {
        let config = finish_without_model(context.config.clone(), &context.options)?;
        let text = "'START', 'END, 'READY' and 'CORRID' must be configured as the control inputs";
        check_controls(&config, &["START", "END", "READY", "CORRID"], text)?;
        let is_text = has_text_identifiers(&config)?;
        check_vectors(&config)?;
        let model = Arc::new(DynaSequenceModel { delay: execute_delay(&config)?, is_text });
        Ok(LoadedModel::as_configured(config, model))
    }
}

fn has_text_identifiers(config: &ModelConfig) -> Result<bool, Error> {
    let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice else { return Ok(false) };
    let mut controls = batching.control_input.iter().flat_map(|input| &input.control);
    let id = controls.find(|control| control.kind() == Kind::ControlSequenceCorrid);
    match id.map_or(DataType::TypeInvalid, |id| id.data_type()) {
        DataType::TypeUint64 => Ok(false),
        DataType::TypeString => Ok(true),
        _ => Err(Error::invalid("model CORRID control input must have TYPE_UINT64 or TYPE_STRING data-type")),
    }
}

struct DynaSequenceModel {
    delay: Duration,
    is_text: bool,
}

impl Model for DynaSequenceModel {
    fn instance(&self, _: usize) -> Result<Box<dyn Instance>, Error> {
        let sums = HashMap::new();
        Ok(Box::new(DynaSequenceInstance { delay: self.delay, is_text: self.is_text, sums }))
    }
}

struct DynaSequenceInstance {
    delay: Duration,
    is_text: bool,
    /// By the identifier of the sequence.
    sums: HashMap<u64, i32>,
}

impl Instance for DynaSequenceInstance {
    fn execute(&mut self, batch: &mut Batch) {
        batch.inputs_ready();
        thread::sleep(self.delay);
        let mut seen = HashSet::new();
        answer_each(batch, |batch, index| self.answer(batch, index, &mut seen));
    }
}

impl DynaSequenceInstance {
    fn answer(&mut self, batch: &mut Batch, index: usize, seen: &mut HashSet<u64>) -> Result<(), Error> {
        if !is_set(batch, index, "READY")? {
            return Ok(());
        }
        let id = self.identifier(batch, index)?;
        if !seen.insert(id) {
            return Err(Error::unsupported(
                "Execute() called with batch containing multiple inferences requests for the same Correlation ID",
            ));
        }
        let (values, shape) = numbers(batch, index, "INPUT")?;
        let before = if is_set(batch, index, "START")? { 0 } else { self.sums.remove(&id).unwrap_or(0) };
        let mut total = sum(before, &values);
        if is_set(batch, index, "END")? {
            total = total.wrapping_add(id as i32);
        } else {
            self.sums.insert(id, total);
        }
        batch.push_output(index, filled("OUTPUT", shape, values.len(), total));
        Ok(())
    }

    fn identifier(&self, batch: &Batch, index: usize) -> Result<u64, Error> {
        let input = batch.gather_one(index, "CORRID")?;
        let data = input.map(|input| input.data).ok_or_else(|| Error::invalid("failed to get input 'CORRID'"))?;
        if !self.is_text {
            return Ok(data.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)));
        }
        let text = wire::strings(&data).next().and_then(Result::ok).and_then(|text| std::str::from_utf8(text).ok());
        leading_number(text.unwrap_or_default()).map(|number| number as u64).ok_or_else(|| {
            Error::invalid("dyna sequence backend expects correlation ID to be decodable into an integer")
        })
    }
}

/// The number that a text begins with.
fn leading_number(text: &str) -> Option<i32> {
    let text = text.trim_start();
    let sign = text.starts_with(['+', '-']) as usize;
    let digits = text[sign..].bytes().take_while(u8::is_ascii_digit).count();
    text[..sign + digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_may_go_on_behind_its_number() {
        for (text, expected) in
            [("1002", Some(1002)), (" -7_1", Some(-7)), ("+3", Some(3)), ("x1", None), ("", None), ("-", None)]
        {
            assert_eq!(leading_number(text), expected, "{text}");
        }
    }
}
