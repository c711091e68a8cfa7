//! Operations on constants, worked out while a graph is being written, so that the operators after them
//! see constants too: chains of shapes above all. Large constants are left to the folding pass.

use crate::ops::Op;
use crate::{Fact, Graph, ValueId};
use halimede_tensor::{DType, Tensor, Value, element_count};

/// Largest result that is worked out, in bytes.
const MAX_OUTPUT: usize = 64 << 10;
/// Most that an operation may read for it, in bytes.
const MAX_INPUT: usize = 1 << 20;

/// The outputs of an operation of which `facts` are known, where they are constants already or cheap to
/// work out.
pub(crate) fn fold(graph: &Graph, op: &Op, inputs: &[Option<ValueId>], facts: &[Fact]) -> Option<Vec<Tensor>> {
    if let Some(known) = facts.iter().map(known).collect() {
        return Some(known);
    }
    let foldable = match op {
        Op::Call(call) => call.operator.evaluate.is_some() && !call.operator.random,
        Op::If(_) | Op::Loop(_) | Op::Scan(_) => false,
        // As in `Op::infer`: weights stay what they are, and biases do not matter.
        Op::Dequantize(_) => facts.iter().any(|fact| fact.rank().is_none_or(|rank| rank < 2)),
        _ => true,
    };
    if !foldable || facts.iter().any(|fact| size(fact).is_none_or(|size| size > MAX_OUTPUT)) {
        return None;
    }
    let mut values = Vec::with_capacity(inputs.len());
    let mut read = 0;
    for input in inputs {
        values.push(match input {
            None => None,
            Some(id) => {
                let tensor = graph.constant(*id)?;
                read += bytes(tensor.dtype(), tensor.len());
                Some(Value::Tensor(tensor.clone()))
            }
        });
    }
    if read > MAX_INPUT {
        return None;
    }
    // What fails here fails again where it is run, with its node's name, if it is run at all.
    let outputs = op.evaluate(&values).ok()?;
    outputs.into_iter().map(|value| if let Value::Tensor(tensor) = value { Some(tensor) } else { None }).collect()
}

/// The value itself, where the fact holds it.
fn known(fact: &Fact) -> Option<Tensor> {
    if let Some(tensor) = &fact.constant {
        return Some(tensor.clone());
    }
    let (elements, shape) = (fact.ints()?, fact.known_shape()?);
    match fact.dtype? {
        DType::I64 => Tensor::from_slice(&shape, &elements).ok(),
        DType::I32 => {
            let narrow: Vec<i32> = elements.iter().map(|&e| e.try_into().ok()).collect::<Option<_>>()?;
            Tensor::from_slice(&shape, &narrow).ok()
        }
        _ => None,
    }
}

fn size(fact: &Fact) -> Option<usize> {
    Some(bytes(fact.dtype?, element_count(&fact.known_shape()?).ok()?))
}

/// Bytes of that many elements; strings count as 16 each.
fn bytes(dtype: DType, count: usize) -> usize {
    count.saturating_mul(if dtype == DType::String { 16 } else { dtype.size() })
}
