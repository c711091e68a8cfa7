//! Control flow by definition, over anything that can run a body.

use super::super::inputs::check_slices;
use super::super::{Concat, Gather, Op, TensorOp};
use super::infer::resolve;
use super::{Loop, Scan};
use crate::{Graph, OpError};
use halimede_tensor::{DType, Shape, Tensor, TensorError, Value};

/// Runs a control-flow operation. `call` runs one of its [bodies](Op::bodies) on inputs; the error is
/// the caller's own.
pub fn run_control<E: From<OpError>>(
    op: &Op,
    inputs: &[Option<Value>],
    call: &mut dyn FnMut(usize, Vec<Value>) -> Result<Vec<Value>, E>,
) -> Result<Vec<Value>, E> {
    match op {
        Op::If(_) => {
            let condition = truth(required(inputs, 0)?)?;
            call(usize::from(!condition), outside(inputs, 1))
        }
        Op::Loop(op) => run_loop(op, inputs, &mut |given| call(0, given)),
        Op::Scan(op) => run_scan(op, inputs, &mut |given| call(0, given)),
        other => Err(OpError::unsupported(other.name()).into()),
    }
}

fn run_loop<E: From<OpError>>(
    op: &Loop,
    inputs: &[Option<Value>],
    call: &mut dyn FnMut(Vec<Value>) -> Result<Vec<Value>, E>,
) -> Result<Vec<Value>, E> {
    let trips = match inputs.first() {
        Some(Some(value)) => trip_count(value)?,
        _ => i64::MAX,
    };
    let mut condition = match inputs.get(1) {
        Some(Some(value)) => truth(value)?,
        _ => true,
    };
    let mut carried: Vec<Value> =
        (0..op.carried).map(|index| required(inputs, 2 + index).cloned()).collect::<Result<_, _>>()?;
    let outside = outside(inputs, 2 + op.carried);
    let mut collected: Vec<Vec<Tensor>> = vec![Vec::new(); op.body.outputs.len().saturating_sub(1 + op.carried)];
    if trips == i64::MAX && condition && never_ends(&op.body) {
        return Err(OpError::invalid(
            "the loop has no trip count and its body never changes the condition: it would not end",
        )
        .into());
    }
    let mut trip = 0;
    while trip < trips && condition {
        let mut given = Vec::with_capacity(2 + carried.len() + outside.len());
        given.push(Tensor::scalar(trip).into());
        given.push(Tensor::from_bools(&[], &[condition]).map_err(OpError::from)?.into());
        given.append(&mut carried);
        given.extend(outside.iter().cloned());
        let mut made = call(given)?.into_iter();
        condition = truth(&made.next().ok_or_else(|| OpError::invalid("the body gives no condition"))?)?;
        carried = made.by_ref().take(op.carried).collect();
        collect(&mut collected, made)?;
        trip += 1;
    }
    for (index, slices) in collected.into_iter().enumerate() {
        carried.push(stack(slices, 0, &op.body, 1 + op.carried + index)?.into());
    }
    Ok(carried)
}

/// Whether the condition that a body gives is the one that it was given, or always true.
fn never_ends(body: &Graph) -> bool {
    let Some(&given) = body.outputs.first() else { return false };
    let constant = body.constant(given).and_then(|tensor| tensor.slice::<u8>().ok());
    body.inputs.get(1) == Some(&given) || constant.is_some_and(|truth| matches!(truth, [truth] if *truth != 0))
}

fn run_scan<E: From<OpError>>(
    op: &Scan,
    inputs: &[Option<Value>],
    call: &mut dyn FnMut(Vec<Value>) -> Result<Vec<Value>, E>,
) -> Result<Vec<Value>, E> {
    let mut states: Vec<Value> =
        (0..op.states).map(|index| required(inputs, index).cloned()).collect::<Result<_, _>>()?;
    let mut scanned: Vec<(&Tensor, usize, bool)> = Vec::with_capacity(op.inputs.len());
    for (index, &(axis, backward)) in op.inputs.iter().enumerate() {
        let tensor = required(inputs, op.states + index)?.tensor().map_err(OpError::from)?;
        scanned.push((tensor, resolve(axis, tensor.rank())?, backward));
    }
    let length = match scanned.first() {
        Some((tensor, axis, _)) => tensor.shape()[*axis],
        None => return Err(OpError::invalid("Scan has no scan input").into()),
    };
    if scanned.iter().any(|(tensor, axis, _)| tensor.shape()[*axis] != length) {
        return Err(OpError::invalid("the scan inputs have different lengths").into());
    }
    for (tensor, ..) in &scanned {
        check_slices(tensor, length)?;
    }
    let outside = outside(inputs, op.states + op.inputs.len());
    let mut collected: Vec<Vec<Tensor>> = vec![Vec::new(); op.outputs.len()];
    for step in 0..length {
        let mut given = std::mem::take(&mut states);
        for &(tensor, axis, backward) in &scanned {
            let position = if backward { length - 1 - step } else { step };
            let index = Tensor::scalar(position as i64);
            given.push(Gather { axis }.evaluate(&[Some(tensor), Some(&index)])?.remove(0).into());
        }
        given.extend(outside.iter().cloned());
        let mut made = call(given)?.into_iter();
        states = made.by_ref().take(op.states).collect();
        collect(&mut collected, made)?;
    }
    for (index, (mut slices, &(axis, backward))) in collected.into_iter().zip(&op.outputs).enumerate() {
        if backward {
            slices.reverse();
        }
        states.push(stack(slices, axis, &op.body, op.states + index)?.into());
    }
    Ok(states)
}

/// What a body takes from outside: the inputs from `first` on.
fn outside(inputs: &[Option<Value>], first: usize) -> Vec<Value> {
    inputs.iter().skip(first).flatten().cloned().collect()
}

fn collect(lists: &mut [Vec<Tensor>], values: impl Iterator<Item = Value>) -> Result<(), OpError> {
    for (list, value) in lists.iter_mut().zip(values) {
        list.push(value.tensor()?.clone());
    }
    Ok(())
}

/// Joins slices along a new axis; without slices, what the body's declared shape says.
fn stack(slices: Vec<Tensor>, axis: i64, body: &Graph, output: usize) -> Result<Tensor, OpError> {
    let Some(slice) = slices.first() else {
        let fact = body.fact(body.outputs[output]);
        let mut shape: Shape = fact.shape.iter().flatten().map(|dim| dim.size().unwrap_or(0)).collect();
        shape.insert(resolve(axis, shape.len() + 1)?, 0);
        return Ok(Tensor::zeros(fact.dtype.unwrap_or(DType::F32), &shape)?);
    };
    let axis = resolve(axis, slice.rank() + 1)?;
    let widen = |slice: &Tensor| -> Result<Tensor, TensorError> {
        let mut shape: Shape = slice.shape().into();
        shape.insert(axis, 1);
        slice.reshaped(&shape)
    };
    let widened: Vec<Tensor> = slices.iter().map(widen).collect::<Result<_, _>>()?;
    let operands: Vec<Option<&Tensor>> = widened.iter().map(Some).collect();
    Ok(Concat { axis }.evaluate(&operands)?.remove(0))
}

fn required(inputs: &[Option<Value>], index: usize) -> Result<&Value, OpError> {
    inputs.get(index).and_then(Option::as_ref).ok_or_else(|| OpError::invalid(format!("input {index} is missing")))
}

fn trip_count(value: &Value) -> Result<i64, OpError> {
    let tensor = value.tensor()?;
    match tensor.slice::<i64>()? {
        [count] => Ok(*count),
        _ => Err(OpError::invalid(format!("a trip count of shape {:?}", tensor.shape()))),
    }
}

fn truth(value: &Value) -> Result<bool, OpError> {
    let tensor = value.tensor()?;
    match tensor.slice::<u8>()? {
        [truth] => Ok(*truth != 0),
        _ => Err(OpError::invalid(format!("a condition of shape {:?}; it takes one element", tensor.shape()))),
    }
}
