//! If, Loop and Scan over sessions of their bodies.

use crate::{RunError, Session};
use halimede_graph::ops::{Concat, Gather, Loop, Scan, TensorOp};
use halimede_graph::{Op, OpError};
use halimede_tensor::{DType, Shape, Tensor, TensorError, Value};

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

impl From<TensorError> for Error {
    fn from(error: TensorError) -> Error {
        Error::Op(error.into())
    }
}

impl From<RunError> for Error {
    fn from(error: RunError) -> Error {
        Error::Run(error)
    }
}

/// Runs a control-flow operation on its inputs.
pub(crate) fn run(op: &Op, bodies: &mut [Session], inputs: &[Option<Value>]) -> Result<Vec<Value>, Error> {
    match op {
        Op::If(_) => run_if(bodies, inputs),
        Op::Loop(op) => run_loop(op, &mut bodies[0], inputs),
        Op::Scan(op) => run_scan(op, &mut bodies[0], inputs),
        other => Err(OpError::unsupported(other.name()).into()),
    }
}

fn run_if(bodies: &mut [Session], inputs: &[Option<Value>]) -> Result<Vec<Value>, Error> {
    let condition = truth(required(inputs, 0)?)?;
    let outside: Vec<Value> = inputs[1..].iter().flatten().cloned().collect();
    call(&mut bodies[usize::from(!condition)], &outside)
}

fn run_loop(op: &Loop, body: &mut Session, inputs: &[Option<Value>]) -> Result<Vec<Value>, Error> {
    let trips = match inputs.first() {
        Some(Some(value)) => *first(value.tensor()?.slice::<i64>()?)?,
        _ => i64::MAX,
    };
    let mut condition = match inputs.get(1) {
        Some(Some(value)) => truth(value)?,
        _ => true,
    };
    let mut carried: Vec<Value> =
        (0..op.carried).map(|index| required(inputs, 2 + index).cloned()).collect::<Result<_, _>>()?;
    let outside: Vec<Value> = inputs[2 + op.carried..].iter().flatten().cloned().collect();
    let scans = op.body.outputs.len().saturating_sub(1 + op.carried);
    let mut collected: Vec<Vec<Tensor>> = vec![Vec::new(); scans];
    let mut trip = 0;
    while trip < trips && condition {
        let mut given = vec![Tensor::scalar(trip).into(), Tensor::from_bools(&[], &[condition])?.into()];
        given.append(&mut carried);
        given.extend(outside.iter().cloned());
        let mut made = call(body, &given)?.into_iter();
        let next = made.next().ok_or_else(|| OpError::invalid("the body gives no condition"))?;
        condition = truth(&next)?;
        carried = made.by_ref().take(op.carried).collect();
        for (list, value) in collected.iter_mut().zip(made) {
            list.push(value.tensor()?.clone());
        }
        trip += 1;
    }
    for (index, list) in collected.into_iter().enumerate() {
        carried.push(stack(list, 0, &op.body, 1 + op.carried + index)?.into());
    }
    Ok(carried)
}

fn run_scan(op: &Scan, body: &mut Session, inputs: &[Option<Value>]) -> Result<Vec<Value>, Error> {
    let mut states: Vec<Value> =
        (0..op.states).map(|index| required(inputs, index).cloned()).collect::<Result<_, _>>()?;
    let scanned: Vec<&Tensor> = (0..op.inputs.len())
        .map(|index| Ok(required(inputs, op.states + index)?.tensor()?))
        .collect::<Result<_, Error>>()?;
    let outside: Vec<Value> = inputs[op.states + op.inputs.len()..].iter().flatten().cloned().collect();
    let axes: Vec<usize> = scanned
        .iter()
        .zip(&op.inputs)
        .map(|(tensor, (axis, _))| resolve(*axis, tensor.rank()))
        .collect::<Result<_, _>>()?;
    let length = match (scanned.first(), axes.first()) {
        (Some(tensor), Some(&axis)) => tensor.shape()[axis],
        _ => return Err(OpError::invalid("Scan has no scan input").into()),
    };
    if scanned.iter().zip(&axes).any(|(tensor, &axis)| tensor.shape()[axis] != length) {
        return Err(OpError::invalid("the scan inputs have different lengths").into());
    }
    let mut collected: Vec<Vec<Tensor>> = vec![Vec::new(); op.outputs.len()];
    for step in 0..length {
        let mut given = std::mem::take(&mut states);
        for ((tensor, &axis), (_, backward)) in scanned.iter().zip(&axes).zip(&op.inputs) {
            let position = if *backward { length - 1 - step } else { step };
            let index = Tensor::scalar(position as i64);
            given.push(Gather { axis }.evaluate(&[Some(tensor), Some(&index)])?.remove(0).into());
        }
        given.extend(outside.iter().cloned());
        let mut made = call(body, &given)?.into_iter();
        states = made.by_ref().take(op.states).collect();
        for (list, value) in collected.iter_mut().zip(made) {
            list.push(value.tensor()?.clone());
        }
    }
    for (index, (mut list, (axis, backward))) in collected.into_iter().zip(&op.outputs).enumerate() {
        if *backward {
            list.reverse();
        }
        states.push(stack(list, *axis, &op.body, op.states + index)?.into());
    }
    Ok(states)
}

fn call(body: &mut Session, inputs: &[Value]) -> Result<Vec<Value>, Error> {
    body.run(inputs)?;
    Ok(body.take_outputs()?)
}

/// Joins slices along a new axis; without slices, what the body's declared shape says.
fn stack(slices: Vec<Tensor>, axis: i64, body: &halimede_graph::Graph, output: usize) -> Result<Tensor, Error> {
    let Some(slice) = slices.first() else {
        let fact = body.fact(body.outputs[output]);
        let inner = fact.shape.iter().flatten().map(|dim| dim.size().unwrap_or(0));
        let shape: Shape = std::iter::once(0).chain(inner).collect();
        return Ok(Tensor::zeros(fact.dtype.unwrap_or(DType::F32), &shape)?);
    };
    let axis = resolve(axis, slice.rank() + 1)?;
    let widened: Vec<Tensor> = slices
        .iter()
        .map(|slice| {
            let mut shape: Shape = slice.shape().into();
            shape.insert(axis, 1);
            slice.reshaped(&shape)
        })
        .collect::<Result<_, _>>()?;
    let operands: Vec<Option<&Tensor>> = widened.iter().map(Some).collect();
    Ok(Concat { axis }.evaluate(&operands)?.remove(0))
}

fn resolve(axis: i64, rank: usize) -> Result<usize, OpError> {
    let resolved = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(resolved)
        .ok()
        .filter(|&axis| axis < rank)
        .ok_or_else(|| OpError::invalid(format!("axis {axis} lies outside rank {rank}")))
}

fn required(inputs: &[Option<Value>], index: usize) -> Result<&Value, OpError> {
    inputs.get(index).and_then(Option::as_ref).ok_or_else(|| OpError::invalid(format!("input {index} is missing")))
}

fn truth(value: &Value) -> Result<bool, OpError> {
    Ok(*first(value.tensor()?.slice::<u8>()?)? != 0)
}

fn first<T>(elements: &[T]) -> Result<&T, OpError> {
    elements.first().ok_or_else(|| OpError::invalid("a condition or count has no element"))
}
