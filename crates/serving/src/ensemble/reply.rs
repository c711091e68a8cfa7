//! The way back from a step to the ensemble.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    flow::{At, Tensor},
    run::Run,
};
use crate::{
    error::Error,
    request::{CorrelationId, Parameter, Sequence},
    response::{OutputTensor, Reply, Response},
};

/// Takes the responses of one request of a step.
pub(super) struct StepReply {
    pub run: Arc<Run>,
    pub at: At,
    /// Whether the outputs of the step begin with a batch dimension.
    pub is_batched: bool,
    pub is_decoupled: bool,
    /// The sequence that the request belongs to.
    pub sequence: Sequence,
    /// The one response of a model that is not decoupled, where it did not say that it is the last.
    pub early: Option<Response>,
}

/// What a response brings.
pub(super) struct Brought {
    pub outputs: BTreeMap<String, Tensor>,
    pub sequence: Sequence,
}

impl Reply for StepReply {
    fn send(&mut self, response: Response, last: bool) {
        if self.is_decoupled {
            let brought = self.read(response);
            self.run.answered(self.at, true, Some(brought), last);
            if !last {
                self.run.wait_for_room();
            }
            return;
        }
        self.early = Some(response);
        if last {
            self.end();
        }
    }

    fn end(&mut self) {
        let early = self.early.take().map(|response| self.read(response));
        let brought = match early {
            None if !self.is_decoupled => Some(Err(Error::internal("a step gave no response"))),
            early => early,
        };
        self.run.answered(self.at, self.is_decoupled, brought, true);
    }

    fn is_cancelled(&self) -> bool {
        self.run.is_cancelled()
    }

    fn may_wait(&self) -> bool {
        self.is_decoupled && self.run.is_limited()
    }
}

impl StepReply {
    fn read(&self, response: Response) -> Result<Brought, Error> {
        if let Some(error) = response.error {
            return Err(error);
        }
        let sequence = sequence(&response.parameters, &self.sequence)?;
        let tensor = |output| {
            let OutputTensor { name, dtype, shape, data } = output;
            (name, Tensor { dtype, shape, data, is_batched: self.is_batched })
        };
        Ok(Brought { outputs: response.outputs.into_iter().map(tensor).collect(), sequence })
    }
}

/// The sequence that the parameters of a response tell; that of its request where they tell none.
fn sequence(parameters: &[(String, Parameter)], of_request: &Sequence) -> Result<Sequence, Error> {
    let mut told = Sequence { id: of_request.id.clone(), start: false, end: false };
    let mut is_told = false;
    for (name, value) in parameters {
        match (name.as_str(), value) {
            ("sequence_id", Parameter::Int(id)) => told.id = CorrelationId::Int(id.cast_unsigned()),
            ("sequence_id", Parameter::String(id)) => told.id = CorrelationId::String(id.clone()),
            ("sequence_id", _) => {
                let text = "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or \
                            TRITONSERVER_PARAMETER_STRING";
                return Err(Error::invalid(text));
            }
            ("sequence_start", Parameter::Bool(start)) => told.start = *start,
            ("sequence_end", Parameter::Bool(end)) => told.end = *end,
            ("sequence_start" | "sequence_end", _) => {
                let text = format!("expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL");
                return Err(Error::invalid(text));
            }
            _ => continue,
        }
        is_told = true;
    }
    Ok(if is_told { told } else { of_request.clone() })
}

/// What Triton says in responses of ensembles about the sequence that the outputs belong to.
pub(super) fn sequence_parameters(sequence: &Sequence) -> Vec<(String, Parameter)> {
    let id = match &sequence.id {
        CorrelationId::Int(id) => Parameter::Int(id.cast_signed()),
        CorrelationId::String(id) => Parameter::String(id.clone()),
    };
    vec![
        ("sequence_id".to_owned(), id),
        ("sequence_start".to_owned(), Parameter::Bool(sequence.start)),
        ("sequence_end".to_owned(), Parameter::Bool(sequence.end)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_may_tell_another_sequence() {
        let mine = Sequence { id: CorrelationId::Int(7), start: true, end: false };
        let told = |parameters: &[(&str, Parameter)]| {
            let parameters: Vec<_> =
                parameters.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            sequence(&parameters, &mine).map_err(|error| error.message)
        };
        let int = |id, start, end| Ok(Sequence { id: CorrelationId::Int(id), start, end });
        assert_eq!(told(&[("other", Parameter::Bool(true))]), Ok(mine.clone()));
        // Flags that are not told are not set.
        assert_eq!(told(&[("sequence_end", Parameter::Bool(true))]), int(7, false, true));
        assert_eq!(told(&[("sequence_id", Parameter::Int(9))]), int(9, false, false));
        let named = Sequence { id: CorrelationId::String("s".into()), start: true, end: false };
        let parameters = [("sequence_start", Parameter::Bool(true)), ("sequence_id", Parameter::String("s".into()))];
        assert_eq!(told(&parameters), Ok(named));
        for (name, value, text) in [
            (
                "sequence_id",
                Parameter::Bool(true),
                "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING",
            ),
            (
                "sequence_start",
                Parameter::Int(1),
                "expect parameter 'sequence_start' to be TRITONSERVER_PARAMETER_BOOL",
            ),
            ("sequence_end", Parameter::Int(1), "expect parameter 'sequence_end' to be TRITONSERVER_PARAMETER_BOOL"),
        ] {
            assert_eq!(told(&[(name, value)]), Err(text.to_owned()));
        }
    }
}
