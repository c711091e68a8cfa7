use super::common::RandomState;
use crate::onnx::case::{bools, tensor};
use crate::onnx::{Attribute, Attributes, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Call, Expand, Facts, Op};
use crate::{Builder, Fact, OpError};
use halimede_tensor::{DType, Tensor, Value};
use smallvec::smallvec;

/// Passes its input when a model serves; in training mode drops elements at random (ONNX Dropout,
/// opset 22).
pub static OPERATOR: Operator =
    Operator::new("Dropout").lower(lower).evaluate(evaluate).infer(infer).random().cases(cases);

const DEFAULT_RATIO: f32 = 0.5;

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let x = node.input(0)?;
    // Below opset 12 there was no training mode to ask for; from there on it is an input.
    let training = node.optional(2).filter(|_| node.opset >= 12);
    if let Some(training) = training {
        let ratio = node.optional(1).map_or(Some(DEFAULT_RATIO), |ratio| constant_float(b, ratio));
        let off = b.graph().constant(training).is_some_and(|t| t.slice::<u8>().is_ok_and(|t| t == [0]));
        if !off && ratio != Some(0.0) {
            return Ok(None);
        }
    }
    let mut outputs: Outputs = smallvec![x];
    if node.wants(1) {
        let shape = b.shape_of(x)?;
        let kept = b.scalar(1.0, DType::Bool)?;
        let mask = b.add(Op::Expand(Expand), &[kept, shape])?;
        // Below opset 10 the mask had the datatype of the data.
        let dtype = if node.opset >= 10 { DType::Bool } else { b.dtype(x)? };
        outputs.push(b.cast(mask, dtype)?);
    }
    Ok(Some(outputs))
}

fn constant_float(b: &Builder, value: crate::ValueId) -> Option<f32> {
    b.graph().constant(value)?.to_f32s().ok()?.first().copied()
}

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let tensor = |index: usize| inputs.get(index).and_then(Option::as_ref).map(Value::tensor).transpose();
    let x = tensor(0)?.ok_or_else(|| OpError::invalid("Dropout needs an input"))?;
    let ratio = match tensor(1)? {
        Some(ratio) => ratio.to_f64s()?.first().copied().unwrap_or_default(),
        None => f64::from(DEFAULT_RATIO),
    };
    let training = tensor(2)?.map_or(Ok(false), |t| t.slice::<u8>().map(|t| t.first().is_some_and(|&t| t != 0)))?;
    if !training || ratio == 0.0 {
        return Ok(vec![x.clone().into(), Tensor::from_bools(x.shape(), &vec![true; x.len()])?.into()]);
    }
    let mut random = RandomState::new(seed(&call.attributes)?);
    let kept: Vec<bool> = (0..x.len()).map(|_| random.uniform() >= ratio).collect();
    let scale = 1.0 / (1.0 - ratio);
    let scaled: Vec<f64> =
        x.to_f64s()?.iter().zip(&kept).map(|(x, &kept)| if kept { x * scale } else { 0.0 }).collect();
    Ok(vec![Tensor::from_f64s(x.dtype(), x.shape(), &scaled)?.into(), Tensor::from_bools(x.shape(), &kept)?.into()])
}

/// The seed that the model states, or another one each time.
fn seed(attributes: &Attributes) -> Result<u32, OpError> {
    use std::hash::{BuildHasher, RandomState as HashState};
    Ok(match attributes.int("seed")? {
        Some(seed) => seed as u32,
        None => HashState::new().hash_one(0u8) as u32,
    })
}

fn infer(_: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let Some(Some(x)) = inputs.first() else { return Err(OpError::invalid("Dropout needs an input")) };
    let like = |dtype| Fact { dtype, shape: x.shape.clone(), ..Fact::default() };
    Ok(smallvec![like(x.dtype), like(Some(DType::Bool))])
}

fn cases() -> Vec<Case> {
    let x = || tensor(&[3], &[1f32, 2.0, 3.0]);
    vec![
        Case::new("serving", &OPERATOR, 22).input(x()).output(x()).output(bools(&[3], &[true; 3])),
        Case::new("training under a seed", &OPERATOR, 22)
            .attribute("seed", Attribute::Int(0))
            .input(x())
            .input(tensor(&[], &[0.6f32]))
            .input(bools(&[], &[true]))
            .output(tensor(&[3], &[0f32, 5.0, 7.5]))
            .output(bools(&[3], &[false, true, true])),
    ]
}
