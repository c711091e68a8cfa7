//! One way in to the shape rule and the definition of every operation.

use super::{Call, Facts, Op, TensorOp};
use crate::onnx::ops::infer_by_lowering;
use crate::{Fact, OpError};
use halimede_tensor::{Tensor, Value};
use smallvec::SmallVec;

impl Op {
    /// What is known of the outputs.
    pub fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        match self {
            Op::Call(call) => infer_call(call, inputs),
            Op::If(_) | Op::Loop(_) | Op::Scan(_) => super::control::infer(self, inputs),
            // Weights stay what they are until it is known who multiplies them.
            Op::Dequantize(op) => op.infer(inputs),
            other => match other.tensor_op() {
                Some(op) => Ok(with_values(op, inputs, op.infer(inputs)?)),
                None => Err(OpError::unsupported(format!("shapes of {} by rule", other.name()))),
            },
        }
    }

    /// The outputs, by definition. Not for control flow, which needs somebody to run its bodies.
    pub fn evaluate(&self, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
        if let Op::Call(call) = self {
            let evaluate = call.operator.evaluate.ok_or_else(|| {
                OpError::unsupported(format!("{:?} (opset {}) in this form", call.operator, call.opset))
            })?;
            return evaluate(call, inputs);
        }
        let op = self.tensor_op().ok_or_else(|| OpError::unsupported(format!("{} by definition", self.name())))?;
        let mut tensors: SmallVec<[Option<&Tensor>; 4]> = SmallVec::new();
        for value in inputs {
            tensors.push(value.as_ref().map(Value::tensor).transpose()?);
        }
        Ok(op.evaluate(&tensors)?.into_iter().map(Value::from).collect())
    }
}

/// Values of at most so many elements are worked out with the shapes.
const MAX_VALUE: usize = 1024;

/// Adds the outputs' values where all inputs' are known and small: what shapes are computed from often
/// passes through floats and larger tensors on its way.
fn with_values(op: &dyn TensorOp, inputs: &[Option<&Fact>], mut facts: Facts) -> Facts {
    let small = |fact: &Fact| fact.count().is_some_and(|count| count <= MAX_VALUE);
    if inputs.is_empty() || !inputs.iter().flatten().all(|f| small(f)) || !facts.iter().all(small) {
        return facts;
    }
    let values: Option<Vec<Option<Tensor>>> =
        inputs.iter().map(|input| input.map_or(Some(None), |fact| fact.value().map(Some))).collect();
    let Some(values) = values else { return facts };
    // An evaluation that fails says nothing yet: the node may stand in a branch that is never taken.
    if let Ok(tensors) = op.evaluate(&values.iter().map(Option::as_ref).collect::<Vec<_>>()) {
        for (fact, tensor) in facts.iter_mut().zip(tensors) {
            *fact = Fact::constant(tensor);
        }
    }
    facts
}

fn infer_call(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    // With the numbers of a request an operator can often be lowered that could not be at load; its
    // core operators then say the shapes.
    let mut facts = match (infer_by_lowering(call, inputs)?, call.operator.infer) {
        (Some(facts), _) => facts,
        (None, Some(infer)) => infer(call, inputs)?,
        (None, None) => Facts::new(),
    };
    facts.resize(call.outputs.len(), Fact::default());
    Ok(facts)
}
