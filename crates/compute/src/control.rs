//! If, Loop and Scan over sessions of their bodies.

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

/// Runs a control-flow operation on its inputs.
pub(crate) fn run(op: &Op, bodies: &mut [Session], inputs: &[Option<Value>]) -> Result<Vec<Value>, Error> {
    run_control(op, inputs, &mut |body, given| {
        let body = &mut bodies[body];
        body.run(&given)?;
        Ok(body.take_outputs()?)
    })
}
