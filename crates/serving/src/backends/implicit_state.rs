//! NVIDIA's test backend `implicit_state`, which uses the states of sequences in the ways that `TEST_CASE` names:
//!
//! - 0 gives a state that the configuration does not have;
//! - 1 answers the sum of `INPUT` and the state, and leaves the state alone;
//! - 2 leaves the state where it lies, and fails where the next request finds it elsewhere;
//! - 3 lets the state grow by a MiB with each request, whose bytes are its place in the sequence, and answers the
//!   whole state as `OUTPUT_STATE`.

use std::sync::Arc;

use halimede_tensor::{Buffer, DType};

use super::{
    accumulator::{answer_each, check_controls, is_set, numbers},
    interface::filled,
};
use crate::{
    backend::{Backend, Batch, Gathered, Instance, LoadedModel, Model, ModelContext},
    config::finish_without_model,
    error::Error,
};

/// By how much the state grows.
const BLOCK_LEN: usize = 1 << 20;

const INPUT_STATE: &str = "INPUT_STATE";
const OUTPUT_STATE: &str = "OUTPUT_STATE";

/// The backend `implicit_state`.
#[derive(Debug)]
pub struct ImplicitState;

impl Backend for ImplicitState {
    fn name(&self) -> &str {
        "implicit_state"
    }

    fn load(&self, context: &ModelContext) -> Result<LoadedModel, Error> {
        let config = finish_without_model(context.config.clone(), &context.options)?;
        let text = "'START', 'END, and 'READY' must be configured as the control inputs";
        check_controls(&config, &["START", "END", "READY"], text)?;
        Ok(LoadedModel::as_configured(config, Arc::new(ImplicitState)))
    }
}

impl Model for ImplicitState {
    fn instance(&self, _: usize) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(ImplicitStateInstance { address: None, place: 0 }))
    }
}

struct ImplicitStateInstance {
    /// Where the state lies.
    address: Option<usize>,
    /// The place of the request in its sequence.
    place: usize,
}

impl Instance for ImplicitStateInstance {
    fn execute(&mut self, batch: &mut Batch) {
        batch.inputs_ready();
        answer_each(batch, |batch, index| self.answer(batch, index));
    }
}

impl ImplicitStateInstance {
    fn answer(&mut self, batch: &mut Batch, index: usize) -> Result<(), Error> {
        if is_set(batch, index, "START")? {
            (self.address, self.place) = (None, 0);
        }
        let first = |name| numbers(batch, index, name).map(|(values, _)| values.first().copied().unwrap_or(0));
        let (value, test_case) = (first("INPUT")?, first("TEST_CASE")?);
        if test_case == 0 {
            let nothing = Gathered { dtype: DType::I32, shape: Vec::new(), data: Buffer::zeroed(0)? };
            batch.keep_state(index, "undefined_state", nothing)?;
        }
        let state = batch.gather_one(index, INPUT_STATE)?;
        let state = state.ok_or_else(|| Error::invalid(format!("failed to get input '{INPUT_STATE}'")))?;
        match test_case {
            1 => {
                let kept = state.data.first_chunk().map_or(0, |bytes| i32::from_le_bytes(*bytes));
                batch.push_output(index, filled("OUTPUT", vec![1], 1, value.wrapping_add(kept)));
            }
            2 => {
                let address = state.data.as_ptr() as usize;
                if self.address.is_some_and(|known| known != address) {
                    return Err(Error::unsupported("Input and output state are using different buffers."));
                }
                self.address = Some(address);
                batch.keep_state(index, OUTPUT_STATE, state)?;
            }
            3 => {
                let mut data = Buffer::zeroed((self.place + 1) * BLOCK_LEN)?;
                let (old, new) = data.make_mut()?.split_at_mut(self.place * BLOCK_LEN);
                let len = old.len().min(state.data.len());
                old[..len].copy_from_slice(&state.data[..len]);
                new.fill(self.place as u8);
                let grown = Gathered { dtype: DType::I8, shape: vec![data.len() as i64], data };
                batch.push_output(index, grown.named(OUTPUT_STATE.to_owned()));
            }
            _ => {}
        }
        self.place = if is_set(batch, index, "END")? { 0 } else { self.place + 1 };
        Ok(())
    }
}
