//! Which steps of an ensemble have their inputs, and which of its responses their outputs.
//!
//! A tensor comes once per round. The inputs of the ensemble are round 0. A step gives its outputs the round of its
//! inputs, but a decoupled one begins a round with each response. The configuration was checked to join only tensors
//! that go back to the same decoupled step, so that equal rounds belong together, in whatever order steps answer.

use std::collections::{BTreeMap, BTreeSet};

use halimede_tensor::{Buffer, DType};

use super::plan::Plan;
use crate::request::Sequence;

/// The tensors of one request of an ensemble, as long as somebody needs them.
pub(super) struct Flow {
    /// By tensor.
    tensors: Vec<Kept>,
    /// By step: how many rounds it began.
    begun: Vec<u64>,
}

/// A tensor of all rounds.
#[derive(Default)]
struct Kept {
    /// Steps that read it.
    readers: Vec<usize>,
    /// Whether the client wants it.
    is_wanted: bool,
    rounds: BTreeMap<u64, Slot>,
}

/// A tensor of one round.
struct Slot {
    /// `None`: an optional input that was not given, or an output that was not made.
    tensor: Option<Tensor>,
    /// The sequence of what gave it; `None`: that of the ensemble's request.
    sequence: Option<Sequence>,
    /// How often it will still be asked for.
    uses: usize,
}

/// A tensor between two steps.
#[derive(Debug, Clone)]
pub(super) struct Tensor {
    pub dtype: DType,
    /// With the batch dimension, where it has one.
    pub shape: Vec<i64>,
    pub data: Buffer,
    /// Whether the first dimension is a batch.
    pub is_batched: bool,
}

/// A step in one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    pub step: usize,
    pub round: u64,
}

/// What a new tensor makes possible.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ready {
    /// Steps that have their inputs now.
    pub steps: Vec<At>,
    /// The round whose outputs are complete now.
    pub answer: Option<u64>,
}

/// Tensors that were asked for, each `None` where it is absent, with the sequence of the first that has one.
pub(super) type Tensors = (Vec<Option<Tensor>>, Option<Sequence>);

impl Flow {
    /// The flow of a request that wants the outputs for which `wants` is true.
    pub fn new(plan: &Plan, wants: impl Fn(&str) -> bool) -> Self {
        let mut tensors: Vec<Kept> = (0..plan.tensors).map(|_| Kept::default()).collect();
        let needed = plan.needed_steps(&wants);
        for (index, step) in plan.steps.iter().enumerate().filter(|(index, _)| needed[*index]) {
            let read: BTreeSet<usize> = step.inputs.iter().map(|(_, tensor)| *tensor).collect();
            read.into_iter().for_each(|tensor| tensors[tensor].readers.push(index));
        }
        for (_, tensor) in plan.outputs.iter().filter(|(name, _)| wants(name)) {
            tensors[*tensor].is_wanted = true;
        }
        Self { tensors, begun: vec![0; plan.steps.len()] }
    }

    /// Takes the inputs of the ensemble, by tensor.
    pub fn begin(&mut self, plan: &Plan, mut inputs: BTreeMap<usize, Tensor>) -> Ready {
        let tensors: Vec<_> = plan.inputs.iter().map(|(_, tensor)| (*tensor, inputs.remove(tensor))).collect();
        self.put(plan, 0, tensors, None)
    }

    /// Takes the outputs of a step, by name. What `at` gave is the sequence of its request, or that of the response.
    pub fn take(
        &mut self,
        plan: &Plan,
        at: At,
        is_decoupled: bool,
        mut outputs: BTreeMap<String, Tensor>,
        sequence: Sequence,
    ) -> Ready {
        let mut round = at.round;
        if is_decoupled {
            round = self.begun[at.step];
            self.begun[at.step] += 1;
        }
        let tensors = plan.steps[at.step].outputs.iter();
        let tensors = tensors.map(|(name, tensor)| (*tensor, outputs.remove(name))).collect();
        self.put(plan, round, tensors, Some(sequence))
    }

    fn put(
        &mut self,
        plan: &Plan,
        round: u64,
        tensors: Vec<(usize, Option<Tensor>)>,
        sequence: Option<Sequence>,
    ) -> Ready {
        let mut readers = BTreeSet::new();
        let mut is_wanted = false;
        for (index, tensor) in tensors {
            let kept = &mut self.tensors[index];
            let uses = kept.readers.len() + usize::from(kept.is_wanted);
            if uses > 0 {
                kept.rounds.insert(round, Slot { tensor, sequence: sequence.clone(), uses });
            }
            readers.extend(kept.readers.iter().copied());
            is_wanted |= kept.is_wanted;
        }
        let has = |tensor: &usize| self.tensors[*tensor].rounds.contains_key(&round);
        let is_ready = |step: &usize| plan.steps[*step].inputs.iter().all(|(_, tensor)| has(tensor));
        let steps = readers.into_iter().filter(is_ready).map(|step| At { step, round }).collect();
        let mut wanted = (0..self.tensors.len()).filter(|tensor| self.tensors[*tensor].is_wanted);
        Ready { steps, answer: (is_wanted && wanted.all(|tensor| has(&tensor))).then_some(round) }
    }

    /// The inputs of a step that is ready, in the order of the plan.
    pub fn inputs(&mut self, plan: &Plan, at: At) -> Tensors {
        let tensors: Vec<usize> = plan.steps[at.step].inputs.iter().map(|(_, tensor)| *tensor).collect();
        self.use_up(&tensors, at.round)
    }

    /// The outputs of a round that is complete, in the order of the plan; absent where they are not wanted.
    pub fn outputs(&mut self, plan: &Plan, round: u64) -> Tensors {
        let wanted = plan.outputs.iter().map(|(_, tensor)| *tensor).filter(|tensor| self.tensors[*tensor].is_wanted);
        let wanted: Vec<usize> = wanted.collect();
        let (found, sequence) = self.use_up(&wanted, round);
        let mut found: BTreeMap<usize, Option<Tensor>> = wanted.into_iter().zip(found).collect();
        (plan.outputs.iter().map(|(_, tensor)| found.remove(tensor).flatten()).collect(), sequence)
    }

    fn use_up(&mut self, tensors: &[usize], round: u64) -> Tensors {
        let slot = |flow: &Self, tensor: usize| -> Option<(Option<Tensor>, Option<Sequence>)> {
            let slot = flow.tensors[tensor].rounds.get(&round)?;
            Some((slot.tensor.clone(), slot.sequence.clone()))
        };
        let found: Vec<_> = tensors.iter().map(|tensor| slot(self, *tensor).unwrap_or_default()).collect();
        for tensor in tensors.iter().collect::<BTreeSet<_>>() {
            let rounds = &mut self.tensors[*tensor].rounds;
            if let Some(slot) = rounds.get_mut(&round) {
                slot.uses -= 1;
                if slot.uses == 0 {
                    rounds.remove(&round);
                }
            }
        }
        let sequence = found.iter().find_map(|(_, sequence)| sequence.clone());
        (found.into_iter().map(|(tensor, _)| tensor).collect(), sequence)
    }

    /// Tensors that are kept.
    #[cfg(test)]
    pub fn kept(&self) -> usize {
        self.tensors.iter().map(|kept| kept.rounds.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Weak};

    use super::*;
    use crate::{config, ensemble::plan::no_members, model::Signature, request::CorrelationId};

    /// `a` reads X and writes `t` and `u`; `b` reads both and writes Y; `c` reads `t` and writes Z.
    fn plan() -> Plan {
        let io = |kind: &str, name: &str| format!("{kind} {{ name: '{name}' data_type: TYPE_FP32 dims: 1 }} ");
        let text = format!(
            "name: 'e' platform: 'ensemble' {}{}{} ensemble_scheduling {{ \
             step {{ model_name: 'a' input_map {{ key: 'I' value: 'X' }} output_map {{ key: 'T' value: 't' }} \
                     output_map {{ key: 'U' value: 'u' }} }} \
             step {{ model_name: 'b' input_map {{ key: 'I' value: 't' }} input_map {{ key: 'J' value: 'u' }} \
                     output_map {{ key: 'O' value: 'Y' }} }} \
             step {{ model_name: 'c' input_map {{ key: 'I' value: 't' }} output_map {{ key: 'O' value: 'Z' }} }} }}",
            io("input", "X"),
            io("output", "Y"),
            io("output", "Z")
        );
        let config = config::parse(&text, Path::new("config.pbtxt")).unwrap();
        let signature = Signature::new(&config).unwrap();
        Plan::new(&config, signature.into(), Weak::<no_members::None>::new())
    }

    fn tensor(value: u8) -> Tensor {
        Tensor { dtype: DType::U8, shape: vec![1], data: Buffer::copied(&[value]).unwrap(), is_batched: false }
    }

    fn outputs(pairs: &[(&str, u8)]) -> BTreeMap<String, Tensor> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), tensor(*value))).collect()
    }

    fn bytes(tensors: &[Option<Tensor>]) -> Vec<Option<u8>> {
        tensors.iter().map(|tensor| tensor.as_ref().map(|tensor| tensor.data[0])).collect()
    }

    fn at(step: usize, round: u64) -> At {
        At { step, round }
    }

    fn begin(plan: &Plan, wants: impl Fn(&str) -> bool) -> (Flow, Ready) {
        let mut flow = Flow::new(plan, wants);
        let ready = flow.begin(plan, [(plan.inputs[0].1, tensor(9))].into());
        (flow, ready)
    }

    #[test]
    fn rounds_are_kept_apart_and_nothing_longer_than_it_is_needed() {
        let plan = plan();
        let (mut flow, ready) = begin(&plan, |_| true);
        assert_eq!(ready, Ready { steps: vec![at(0, 0)], answer: None });
        assert_eq!(bytes(&flow.inputs(&plan, at(0, 0)).0), [Some(9)]);
        assert_eq!(flow.kept(), 0);
        // Two responses of `a`, which is decoupled, and then the steps behind in any order.
        for round in 0..2 {
            let value = 10 * round as u8;
            let ready =
                flow.take(&plan, at(0, 0), true, outputs(&[("T", value), ("U", value + 1)]), Sequence::default());
            assert_eq!(ready, Ready { steps: vec![at(1, round), at(2, round)], answer: None });
        }
        assert_eq!(flow.kept(), 4);
        assert_eq!(bytes(&flow.inputs(&plan, at(1, 1)).0), [Some(10), Some(11)]);
        assert_eq!(bytes(&flow.inputs(&plan, at(2, 1)).0), [Some(10)]);
        assert_eq!(bytes(&flow.inputs(&plan, at(1, 0)).0), [Some(0), Some(1)]);
        assert_eq!(bytes(&flow.inputs(&plan, at(2, 0)).0), [Some(0)]);
        let none = Ready::default();
        assert_eq!(flow.take(&plan, at(1, 1), false, outputs(&[("O", 1)]), Sequence::default()), none);
        assert_eq!(flow.take(&plan, at(2, 0), false, outputs(&[("O", 2)]), Sequence::default()), none);
        let ready = flow.take(&plan, at(2, 1), false, outputs(&[("O", 3)]), Sequence::default());
        assert_eq!(ready.answer, Some(1));
        assert_eq!(bytes(&flow.outputs(&plan, 1).0), [Some(1), Some(3)]);
        let ready = flow.take(&plan, at(1, 0), false, outputs(&[("O", 4)]), Sequence::default());
        assert_eq!(ready.answer, Some(0));
        assert_eq!(bytes(&flow.outputs(&plan, 0).0), [Some(4), Some(2)]);
        assert_eq!(flow.kept(), 0);
    }

    #[test]
    fn what_nobody_wants_is_neither_run_nor_kept() {
        let plan = plan();
        let (mut flow, _) = begin(&plan, |name| name == "Z");
        flow.inputs(&plan, at(0, 0));
        let ready = flow.take(&plan, at(0, 0), false, outputs(&[("T", 1), ("U", 2)]), Sequence::default());
        assert_eq!(ready, Ready { steps: vec![at(2, 0)], answer: None });
        assert_eq!(flow.kept(), 1);
        flow.inputs(&plan, at(2, 0));
        let ready = flow.take(&plan, at(2, 0), false, outputs(&[("O", 3)]), Sequence::default());
        assert_eq!(ready.answer, Some(0));
        assert_eq!(bytes(&flow.outputs(&plan, 0).0), [None, Some(3)]);
    }

    #[test]
    fn an_output_that_was_not_made_is_there_and_absent() {
        let plan = plan();
        let (mut flow, _) = begin(&plan, |_| true);
        let mine = Sequence { id: CorrelationId::Int(3), start: true, end: false };
        let ready = flow.take(&plan, at(0, 0), false, outputs(&[("U", 2)]), mine.clone());
        assert_eq!(ready.steps, [at(1, 0), at(2, 0)]);
        let (tensors, sequence) = flow.inputs(&plan, at(1, 0));
        assert_eq!((bytes(&tensors), sequence), (vec![None, Some(2)], Some(mine)));
    }
}
