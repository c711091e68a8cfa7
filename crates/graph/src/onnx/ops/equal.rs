use super::common::{broadcast_dims, broadcast_index, one};
use crate::onnx::case::{bools, strings, tensor};
use crate::onnx::{Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Call, Facts, Map, TensorOp};
use crate::{Builder, Fact, OpError};
use halimede_tensor::{DType, Tensor, Value, broadcast, element_count};
use smallvec::smallvec;

/// Whether elements are equal; strings too (ONNX Equal, opset 19).
pub static OPERATOR: Operator = Operator::new("Equal").lower(lower).evaluate(evaluate).infer(infer).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (x, y) = (node.input(0)?, node.input(1)?);
    match (b.fact(x).dtype, b.fact(y).dtype) {
        (Some(dtype), _) | (_, Some(dtype)) if dtype != DType::String => one(b.binary(Binary::Equal, x, y)?),
        _ => Ok(None),
    }
}

fn evaluate(_: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let [Some(x), Some(y)] = inputs else { return Err(OpError::invalid("Equal needs two inputs")) };
    let (x, y) = (x.tensor()?, y.tensor()?);
    if x.dtype() != DType::String {
        let equal = Map::binary(Binary::Equal).evaluate(&[Some(x), Some(y)])?;
        return Ok(equal.into_iter().map(Value::from).collect());
    }
    let shape = broadcast(x.shape(), y.shape())?;
    let (xs, ys) = (x.strings()?, y.strings()?);
    let equal: Vec<bool> = (0..element_count(&shape)?)
        .map(|flat| xs[broadcast_index(flat, &shape, x.shape())] == ys[broadcast_index(flat, &shape, y.shape())])
        .collect();
    Ok(vec![Tensor::from_bools(&shape, &equal)?.into()])
}

fn infer(_: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let shape = match inputs {
        [Some(Fact { shape: Some(x), .. }), Some(Fact { shape: Some(y), .. })] => Some(broadcast_dims(x, y)?),
        _ => None,
    };
    Ok(smallvec![Fact { dtype: Some(DType::Bool), shape, ..Fact::default() }])
}

fn cases() -> Vec<Case> {
    let (a, b) = (tensor(&[2, 2], &[1i32, 2, 3, 4]), tensor(&[2], &[1i32, 4]));
    let (s, t) = (strings(&[2, 1], &["a", "b"]), strings(&[2], &["b", "a"]));
    let crossed = || bools(&[2, 2], &[false, true, true, false]);
    vec![
        Case::new("a row broadcasts", &OPERATOR, 19)
            .input(a)
            .input(b)
            .output(bools(&[2, 2], &[true, false, false, true])),
        Case::new("strings", &OPERATOR, 19).input(s).input(t).output(crossed()),
    ]
}
