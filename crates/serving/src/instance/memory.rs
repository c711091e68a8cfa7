//! What an instance keeps between the requests of sequences.

use halimede_tensor::{Buffer, DType};

use super::batch::Entry;
use crate::{error::Error, model::SequenceSpec, request::InputTensor, wire};

/// The states of the sequences in the places of an instance.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// By place; empty before the first request of a sequence and after its last.
    slots: Vec<Vec<InputTensor>>,
}

impl Memory {
    /// Gives the requests of a batch their signals, and their states as long as they run.
    pub fn prepare(&mut self, spec: &SequenceSpec, entries: &mut [Entry]) -> Result<(), Error> {
        let mut like: Vec<InputTensor> = Vec::new();
        for entry in entries.iter_mut().filter(|entry| !entry.is_stand_in) {
            let states = self.take(entry.slot);
            let sequence = &entry.request.sequence;
            let signals = spec.signals(Some(sequence));
            let states = match sequence.start || states.is_empty() {
                true => spec.states.iter().map(|state| state.initial.clone()).collect(),
                false => states,
            };
            if like.is_empty() {
                like = states.iter().map(|state| InputTensor { data: Buffer::foreign([]), ..state.clone() }).collect();
            }
            let added: Vec<InputTensor> = signals.chain(states).collect();
            entry.given = entry.request.inputs.len();
            entry.request.inputs.extend(added);
        }
        for entry in entries.iter_mut().filter(|entry| entry.is_stand_in) {
            entry.given = entry.request.inputs.len();
            entry.request.inputs.extend(spec.signals(None));
            for state in &like {
                entry.request.inputs.push(blank(state)?);
            }
        }
        Ok(())
    }

    /// Takes the states back, those that the model gave and those that it left alone.
    pub fn keep(&mut self, spec: &SequenceSpec, entries: &mut [Entry]) {
        for entry in entries.iter_mut().filter(|entry| !entry.is_stand_in) {
            let inputs = &mut entry.request.inputs;
            let mut states = inputs.split_off(inputs.len().saturating_sub(spec.states.len()).max(entry.given));
            inputs.truncate(entry.given);
            let updates = std::mem::take(&mut entry.states);
            if entry.request.sequence.end || states.len() != spec.states.len() {
                continue;
            }
            if !entry.has_failed() {
                for (index, tensor) in updates {
                    let name = std::mem::take(&mut states[index].name);
                    states[index] = InputTensor { name, ..tensor };
                }
            }
            *self.slot(entry.slot) = states;
        }
    }

    fn slot(&mut self, slot: usize) -> &mut Vec<InputTensor> {
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, Vec::new);
        }
        &mut self.slots[slot]
    }

    fn take(&mut self, slot: usize) -> Vec<InputTensor> {
        self.slots.get_mut(slot).map(std::mem::take).unwrap_or_default()
    }
}

/// Zeros in the shape of a tensor.
pub(super) fn blank(like: &InputTensor) -> Result<InputTensor, Error> {
    let element = match like.dtype {
        // A string of no bytes is its length.
        Some(DType::String) | None => wire::LENGTH_BYTES,
        Some(dtype) => dtype.size(),
    };
    let count: usize = like.shape.iter().map(|dim| usize::try_from(*dim).unwrap_or(0)).product();
    Ok(InputTensor { data: Buffer::zeroed(count * element)?, ..like.clone() })
}
