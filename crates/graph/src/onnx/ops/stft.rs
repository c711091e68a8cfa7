use super::common::{Complex, Size, Transform, evaluate_by_lowering, fft, one, room};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Call, Contract, Facts, Gather, Op};
use crate::{Builder, Dim, Fact, OpError};
use halimede_tensor::{Tensor, Value};
use smallvec::smallvec;

/// Discrete Fourier transforms of overlapping windows of a signal `[batch, length, 1 or 2]`, giving
/// `[batch, frames, bins, 2]` (ONNX STFT, opset 17).
pub static OPERATOR: Operator = Operator::new("STFT").lower(lower).evaluate(evaluate).infer(infer).cases(cases);

/// Longest frame whose transform is written as a product with its matrix.
const MATRIX_LENGTH_MAX: usize = 2048;

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (signal, window) = (node.input(0)?, node.optional(2));
    let frame_step = node.input(1)?;
    let first = |list: Option<Vec<i64>>| list.and_then(|list| list.first().copied());
    let step = first(b.fact(frame_step).ints());
    let length = match (node.optional(3), window) {
        (Some(length), _) => first(b.fact(length).ints()),
        (None, Some(window)) => b.fact(window).shape.as_ref().and_then(|shape| shape.first()?.known()),
        (None, None) => b.fact(signal).shape.as_ref().and_then(|shape| shape.get(1)?.known()),
    };
    let (Some(step), Some(length)) = (step, length) else { return Ok(None) };
    let frame = checked(step, length)?.1;
    let (rank, parts) = match b.fact(signal).shape.as_ref() {
        Some(shape) if shape.len() == 2 => (2, Some(1)),
        Some(shape) if shape.len() == 3 => (3, shape[2].size()),
        Some(shape) => {
            return Err(OpError::invalid(format!("the signal has {} dimensions instead of 3", shape.len())));
        }
        None => return Ok(None),
    };
    let Some(parts) = parts else { return Ok(None) };
    if frame > MATRIX_LENGTH_MAX {
        return Ok(None);
    }
    let signal = if rank == 2 { b.reshape(signal, &[0, -1, 1])? } else { signal };

    let frames = Size::of(b, signal, 1)?.minus(b, length)?.over(b, step)?.plus(b, 1)?;
    let starts = frames.positions(b)?;
    let starts = b.reshape(starts, &[-1, 1])?;
    let step = b.ints(&[step]);
    let starts = b.binary(Binary::Mul, starts, step)?;
    let within = b.ints(&(0..length).collect::<Vec<_>>());
    let places = b.binary(Binary::Add, starts, within)?;
    let mut windows = b.add(Op::Gather(Gather { axis: 1 }), &[signal, places])?;
    let dtype = b.dtype(signal)?;
    if let Some(window) = window {
        let window = b.cast(window, dtype)?;
        let window = b.reshape(window, &[-1, 1])?;
        windows = b.binary(Binary::Mul, windows, window)?;
    }
    let bins = bins(node.attributes.flag_or("onesided", true)?, frame);
    let matrix = Transform::Forward.matrix(frame, parts, bins, frame);
    let matrix = Tensor::from_f64s(dtype, &[frame, parts, bins, 2], &matrix)?;
    let matrix = b.constant(matrix);
    let (lhs, rhs, out) = (smallvec![0, 1, 2, 3], smallvec![2, 3, 4, 5], smallvec![0, 1, 4, 5]);
    one(b.add(Op::Contract(Contract::new(lhs, rhs, out)), &[windows, matrix])?)
}

/// Step and frame length as sizes.
fn checked(step: i64, length: i64) -> Result<(usize, usize), OpError> {
    match (usize::try_from(step), usize::try_from(length)) {
        (Ok(step @ 1..), Ok(length @ 1..)) => Ok((step, length)),
        _ => Err(OpError::invalid(format!("frame step {step} and frame length {length} must be positive"))),
    }
}

fn bins(one_sided: bool, frame: usize) -> usize {
    if one_sided { frame / 2 + 1 } else { frame }
}

/// For frames too long for a matrix.
fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let input = |index: usize| inputs.get(index).and_then(Option::as_ref).map(Value::tensor).transpose();
    let needed = |index: usize| input(index)?.ok_or_else(|| OpError::invalid(format!("input {index} is missing")));
    let first = |tensor: &Tensor| -> Result<i64, OpError> {
        tensor.to_i64s()?.first().copied().ok_or_else(|| OpError::invalid("an empty tensor where a number should be"))
    };
    let (signal, window) = (needed(0)?, input(2)?);
    let length = match (input(3)?, window) {
        (Some(length), _) => first(length)?,
        (None, Some(window)) => window.len() as i64,
        (None, None) => signal.shape().get(1).map_or(0, |&size| size as i64),
    };
    let (step, frame) = checked(first(needed(1)?)?, length)?;
    if frame <= MATRIX_LENGTH_MAX {
        return evaluate_by_lowering(call, inputs);
    }
    let (batch, size, parts) = match *signal.shape() {
        [batch, size] => (batch, size, 1),
        [batch, size, parts @ (1 | 2)] => (batch, size, parts),
        _ => return Err(OpError::invalid("the signal must be [batch, length, 1 or 2]")),
    };
    let numbers = signal.to_f64s()?;
    let weights = match window {
        Some(window) if window.len() == frame => window.to_f64s()?,
        Some(window) => {
            return Err(OpError::invalid(format!("a window of {} cannot weigh frames of {frame}", window.len())));
        }
        None => vec![1.0; frame],
    };
    let frames = size.checked_sub(frame).map_or(0, |rest| rest / step + 1);
    let bins = bins(call.attributes.flag_or("onesided", true)?, frame);
    let mut out = Vec::with_capacity(room(&[batch, frames, bins, 2])?);
    for entry in 0..batch {
        for index in 0..frames {
            let number = |n: usize| -> Complex {
                let at = (entry * size + index * step + n) * parts;
                [numbers[at] * weights[n], if parts == 2 { numbers[at + 1] * weights[n] } else { 0.0 }]
            };
            let windowed: Vec<Complex> = (0..frame).map(number).collect();
            out.extend(fft(&windowed, false).into_iter().take(bins).flatten());
        }
    }
    Ok(vec![Tensor::from_f64s(signal.dtype(), &[batch, frames, bins, 2], &out)?.into()])
}

fn infer(_call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let [Some(signal), ..] = inputs else { return Ok(Facts::new()) };
    let Some(dtype) = signal.dtype else { return Ok(Facts::new()) };
    let batch = signal.shape.as_ref().and_then(|shape| shape.first().cloned()).unwrap_or_else(Dim::unknown);
    Ok(smallvec![Fact::tensor(dtype, [batch, Dim::unknown(), Dim::unknown(), Dim::from(2)])])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("two frames", &OPERATOR, 17)
            .attribute("onesided", Attribute::Int(1))
            .input(tensor(&[1, 3, 1], &[1.0f32, 2.0, 4.0]))
            .input(tensor(&[], &[1i64]))
            .no_input()
            .input(tensor(&[], &[2i64]))
            .output(tensor(&[1, 2, 2, 2], &[3.0f32, 0.0, -1.0, 0.0, 6.0, 0.0, -2.0, 0.0])),
    ]
}
