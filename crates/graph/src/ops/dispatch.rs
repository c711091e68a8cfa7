//! One way in to the shape rule and the definition of every operation.

use super::{Call, Facts, Op, TensorOp, Tensors};
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
        Ok(evaluate(op, &tensors)?.into_iter().map(Value::from).collect())
    }
}

/// The outputs by definition, where that is not to do nothing very many times.
fn evaluate(op: &dyn TensorOp, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
    match nothing_of_much(op, inputs) {
        Some(nothing) => nothing,
        None => op.evaluate(inputs),
    }
}

/// A tensor without elements whose other axes come to more than so many rows is not walked row by row.
const ROWS_MAX: usize = 1 << 20;

/// The outputs of an operation that would do nothing very many times: of an input without elements, without elements
/// themselves, and with very many rows in one or the other. `None` for everything else.
fn nothing_of_much(op: &dyn TensorOp, inputs: &[Option<&Tensor>]) -> Option<Result<Tensors, OpError>> {
    if !inputs.iter().flatten().any(|tensor| tensor.is_empty()) {
        return None;
    }
    let is_much = inputs.iter().flatten().any(|tensor| tensor.is_empty() && has_many_rows(tensor.shape()));
    let facts: Vec<Option<Fact>> = inputs.iter().map(|input| input.cloned().map(Fact::constant)).collect();
    // Where the rule finds something wrong the definition does too, in its own words.
    let outputs = op.infer(&facts.iter().map(Option::as_ref).collect::<Vec<_>>()).ok()?;
    let descs: Option<Vec<_>> = outputs.iter().map(|fact| fact.dtype.zip(fact.known_shape())).collect();
    let descs = descs?;
    let is_nothing = descs.iter().all(|(_, shape)| shape.contains(&0));
    let is_much = is_much || descs.iter().any(|(_, shape)| has_many_rows(shape));
    (is_nothing && is_much).then(|| descs.iter().map(|(dtype, shape)| Ok(Tensor::zeros(*dtype, shape)?)).collect())
}

/// Whether the axes that are not empty come to so many rows that nobody should walk them where there is nothing in them.
pub fn has_many_rows(shape: &[usize]) -> bool {
    shape.iter().fold(1usize, |rows, &size| rows.saturating_mul(size.max(1))) > ROWS_MAX
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
    if let Ok(tensors) = evaluate(op, &values.iter().map(Option::as_ref).collect::<Vec<_>>()) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Concat, Gather, Reduce, ReduceKind, Softmax, Transpose};
    use halimede_tensor::DType;

    #[test]
    fn very_many_rows_of_nothing_take_no_time() {
        let rows = 1usize << 40;
        let sum = Reduce { kind: ReduceKind::Sum, axes: [0].as_slice().into(), keep_dims: true };
        for dtype in [DType::F16, DType::String] {
            let data = Value::from(Tensor::zeros(dtype, &[rows, 0]).unwrap());
            let index = Value::from(Tensor::from_slice(&[2], &[0i64, 0]).unwrap());
            let two = [Some(data.clone()), Some(data.clone())];
            let one = &two[..1];
            let shape = |op: Op, inputs: &[Option<Value>]| {
                op.evaluate(inputs).unwrap_or_else(|error| panic!("{op:?}: {error}"))[0]
                    .tensor()
                    .unwrap()
                    .shape()
                    .to_vec()
            };
            assert_eq!(shape(Op::Concat(Concat { axis: 1 }), &two), [rows, 0]);
            assert_eq!(shape(Op::Transpose(Transpose { perm: [1, 0].as_slice().into() }), one), [0, rows]);
            assert_eq!(shape(Op::Gather(Gather { axis: 0 }), &[Some(data), Some(index)]), [2, 0]);
            if dtype == DType::F16 {
                assert_eq!(shape(Op::Softmax(Softmax { axis: 0, log: false }), one), [rows, 0]);
                assert_eq!(shape(Op::Reduce(sum.clone()), one), [1, 0]);
            }
        }
    }
}
