//! Calls whose lowering lacked numbers when the model was loaded: with those of a request they become core
//! operators after all, and run on kernels.

use crate::packed::Packer;
use crate::plan::node_error;
use crate::session::Watch;
use crate::{Executable, Kernels, Program, RunError, Session, TensorDesc};
use halimede_graph::ops::Call;
use halimede_graph::{Fact, Node, OpError};
use halimede_tensor::{DType, Tensor, Value};
use std::sync::Arc;

/// Tensors of at most so many elements and one axis are parameters: sizes, axes, scales.
const PARAMETER_MAX: usize = 64;

/// A call as a program for one set of shapes and parameters.
pub(crate) struct Late {
    known: Vec<Known>,
    /// `None` where even with the numbers of a request there is no lowering.
    session: Option<Box<Session>>,
}

impl Late {
    /// Where its program runs.
    pub fn session(&self) -> Option<&Session> {
        self.session.as_deref()
    }
}

/// What a call's lowering is told of an input.
#[derive(PartialEq)]
enum Known {
    Missing,
    Shape(TensorDesc),
    Value(Tensor),
}

impl Known {
    /// The first input is what an operator works on; the others may say how.
    fn of(index: usize, value: &Option<Value>) -> Option<Known> {
        Some(match value {
            None => Known::Missing,
            Some(Value::Tensor(tensor)) if tensor.dtype() != DType::String => {
                match index > 0 && tensor.rank() <= 1 && tensor.len() <= PARAMETER_MAX {
                    true => Known::Value(tensor.clone()),
                    false => Known::Shape(TensorDesc { dtype: tensor.dtype(), shape: tensor.shape().into() }),
                }
            }
            Some(_) => return None,
        })
    }

    fn fact(&self) -> Option<Fact> {
        match self {
            Known::Missing => None,
            Known::Shape(desc) => Some(Fact::tensor(desc.dtype, desc.shape.iter().map(|&size| size.into()))),
            Known::Value(tensor) => Some(Fact::constant(tensor.clone())),
        }
    }
}

/// Runs a call as core operators, and gives the session that ran it. `None` where the call has to run by
/// its definition.
pub(crate) fn run<'s>(
    node: &Node,
    call: &Call,
    kernels: &Arc<dyn Kernels>,
    given: &[Option<Value>],
    kept: &'s mut Option<Late>,
    watch: Watch<'_>,
    bytes_max: usize,
) -> Result<Option<(Vec<Value>, &'s mut Session)>, RunError> {
    let known: Option<Vec<Known>> = given.iter().enumerate().map(|(index, value)| Known::of(index, value)).collect();
    let Some(known) = known else { return Ok(None) };
    if kept.as_ref().is_none_or(|late| late.known != known) {
        let session = compile(node, call, kernels, &known, bytes_max)?;
        *kept = Some(Late { known, session });
    }
    let Some(Late { known, session: Some(session) }) = kept else { return Ok(None) };
    let inputs: Vec<Value> = known
        .iter()
        .zip(given)
        .filter(|(known, _)| matches!(known, Known::Shape(_)))
        .filter_map(|(_, value)| value.clone())
        .collect();
    session.run_watched(&inputs, watch)?;
    Ok(Some((session.take_outputs()?, session)))
}

fn compile(
    node: &Node,
    call: &Call,
    kernels: &Arc<dyn Kernels>,
    known: &[Known],
    bytes_max: usize,
) -> Result<Option<Box<Session>>, RunError> {
    let facts = known.iter().map(Known::fact).collect();
    match call.lowered(facts, &node.name, &node.origin) {
        Ok(Some(graph)) => match Program::new(graph, kernels, bytes_max, &Packer::default()) {
            Ok(program) => Ok(Some(Box::new(Arc::new(program).session()))),
            // Its definition says better what is wrong.
            Err(_) => Ok(None),
        },
        Ok(None) | Err(OpError::Unsupported(_)) => Ok(None),
        Err(source) => Err(node_error(node, source).into()),
    }
}
