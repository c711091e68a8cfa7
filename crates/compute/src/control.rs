//! If, Loop and Scan over sessions of their bodies.

use crate::memory::value_bytes;
use crate::session::Watch;
use crate::{RunError, Session};
use halimede_graph::ops::run_control;
use halimede_graph::{Op, OpError};
use halimede_tensor::Value;

/// A failure of the operation itself or inside a body.
pub(crate) enum Error {
    Op(OpError),
    Run(RunError),
}

impl From<OpError> for Error {
    fn from(error: OpError) -> Error {
        Error::Op(error)
    }
}

impl From<RunError> for Error {
    fn from(error: RunError) -> Error {
        Error::Run(error)
    }
}

/// Runs a control-flow operation on its inputs. Every iteration asks `watch` whether to go on, and what
/// the iterations leave behind may not come to more than `bytes_max`.
pub(crate) fn run(
    op: &Op,
    bodies: &mut [Session],
    inputs: &[Option<Value>],
    watch: Watch<'_>,
    bytes_max: usize,
) -> Result<Vec<Value>, Error> {
    // Outputs of the body from here on are kept, one for each iteration; those before replace each other.
    let kept_from = match op {
        Op::Loop(op) => 1 + op.carried,
        Op::Scan(op) => op.states,
        _ => usize::MAX,
    };
    let mut kept = 0usize;
    run_control(op, inputs, &mut |body, given| {
        let body = &mut bodies[body];
        body.run_watched(&given, watch)?;
        let made = body.take_outputs()?;
        let mut bytes = 0usize;
        for (index, value) in made.iter().enumerate() {
            let count = if index < kept_from { &mut bytes } else { &mut kept };
            *count = count.saturating_add(value_bytes(value));
        }
        let bytes = bytes.saturating_add(kept);
        if bytes > bytes_max {
            return Err(RunError::Memory { bytes, bytes_max }.into());
        }
        Ok(made)
    })
}
