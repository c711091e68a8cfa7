//! Requests that do not fit their model, and the texts that clients get.

use halimede_tensor::{Buffer, DType};

use super::Signature;
use crate::{
    InputTensor,
    config::{self, ModelConfig},
    testing::{floats, request, strings},
};

fn signature(text: &str) -> Signature {
    let mut config: ModelConfig = config::parse(text, "config.pbtxt".as_ref()).unwrap();
    config.name = "m".into();
    Signature::new(&config).unwrap()
}

const ADD_SUB: &str = "input { name: 'INPUT0' data_type: TYPE_FP32 dims: 4 } \
                       input { name: 'INPUT1' data_type: TYPE_FP32 dims: 4 } \
                       output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: 4 }";

fn rejected(config: &str, inputs: Vec<InputTensor>) -> String {
    rejected_as(config, inputs, |_| {})
}

fn rejected_as(config: &str, inputs: Vec<InputTensor>, change: impl FnOnce(&mut crate::Request)) -> String {
    let (mut request, _waiting) = request("m", inputs);
    change(&mut request);
    let error = signature(config).prepare(&mut request).unwrap_err();
    assert_eq!(error.code, crate::Code::InvalidArgument);
    error.message
}

fn four(name: &str) -> InputTensor {
    floats(name, &[4], &[0.0; 4])
}

#[test]
fn texts_about_inputs_are_tritons() {
    let prefix = "[request id: <id_unknown>] ";
    let batched = format!("max_batch_size: 8 {ADD_SUB}");
    let int = |name: &str| InputTensor { dtype: Some(DType::I32), ..four(name) };
    let unknown_type = |name: &str| InputTensor { dtype: None, ..four(name) };
    for (config, inputs, expected) in [
        (ADD_SUB, vec![four("INPUT0"), four("INPUT0")], format!("{prefix}input 'INPUT0' already exists in request")),
        (
            ADD_SUB,
            vec![four("INPUT0")],
            format!(
                "{prefix}expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['INPUT0'], but missing \
                 required input(s) ['INPUT1']. Please provide all required input(s)."
            ),
        ),
        (
            ADD_SUB,
            vec![four("INPUT0"), four("INPUT1"), four("X")],
            format!(
                "{prefix}expected 2 inputs but got 3 inputs for model 'm'. Got input(s) ['INPUT0','INPUT1','X'], but \
                 missing required input(s) ]. Please provide all required input(s)."
            ),
        ),
        (ADD_SUB, vec![four("INPUT0"), four("X")], "unexpected inference input 'X' for model 'm'".into()),
        (
            ADD_SUB,
            vec![four("INPUT0"), int("INPUT1")],
            format!("{prefix}inference input 'INPUT1' data-type is 'INT32', but model 'm' expects 'FP32'"),
        ),
        (
            ADD_SUB,
            vec![four("INPUT0"), unknown_type("INPUT1")],
            format!("{prefix}inference input 'INPUT1' data-type is '<invalid>', but model 'm' expects 'FP32'"),
        ),
        (
            ADD_SUB,
            vec![four("INPUT0"), floats("INPUT1", &[5], &[0.0; 5])],
            format!("{prefix}unexpected shape for input 'INPUT1' for model 'm'. Expected [4], got [5]. "),
        ),
        (
            ADD_SUB,
            vec![four("INPUT0"), floats("INPUT1", &[4], &[0.0; 3])],
            format!("{prefix}input byte size mismatch for input 'INPUT1' for model 'm'. Expected 16, got 12"),
        ),
        (
            &batched,
            vec![floats("INPUT0", &[1, 4], &[0.0; 4]), floats("INPUT1", &[], &[])],
            format!("{prefix}input 'INPUT1' has no shape but model requires batch dimension for 'm'"),
        ),
        (
            &batched,
            vec![floats("INPUT0", &[1, 4], &[0.0; 4]), floats("INPUT1", &[2, 4], &[0.0; 8])],
            format!("{prefix}input 'INPUT1' batch size does not match other inputs for 'm'"),
        ),
        (
            &batched,
            vec![floats("INPUT0", &[9, 4], &[0.0; 36]), floats("INPUT1", &[9, 4], &[0.0; 36])],
            format!("{prefix}inference request batch-size must be <= 8 for 'm'"),
        ),
        (
            &batched,
            vec![floats("INPUT0", &[0, 4], &[]), floats("INPUT1", &[0, 4], &[])],
            format!("{prefix}input byte size mismatch for input 'INPUT0' for model 'm'. Expected 16, got 0"),
        ),
        (
            &batched,
            vec![floats("INPUT0", &[1, 3], &[0.0; 3]), floats("INPUT1", &[1, 4], &[0.0; 4])],
            format!(
                "{prefix}unexpected shape for input 'INPUT0' for model 'm'. Expected [-1,4], got [1,3]. NOTE: Setting \
                 a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each \
                 input shape. If you want to specify the full shape including the batch dim in your input dims \
                 config, try setting max_batch_size to zero. See the model configuration docs for more info on \
                 max_batch_size."
            ),
        ),
    ] {
        assert_eq!(rejected(config, inputs), expected);
    }
}

#[test]
fn the_request_id_stands_in_front() {
    let message = rejected_as(ADD_SUB, vec![four("INPUT0")], |request| request.id = "e1".into());
    assert!(message.starts_with("[request id: e1] expected 2 inputs"), "{message}");
}

#[test]
fn strange_shapes_are_refused_before_any_arithmetic_overflows() {
    let variable = "input { name: 'I' data_type: TYPE_FP32 dims: [ -1, -1 ] } \
                    output { name: 'O' data_type: TYPE_FP32 dims: -1 }";
    for (shape, expected) in [
        (&[-1, 2][..], "All input dimensions should be specified for input 'I' for model 'm', got [-1,2]"),
        (&[-2, 2], "tensor 'I' contains an invalid dimension [-2,2]"),
        (&[i64::MAX, i64::MAX], "byte size for tensor 'I' exceeds maximum size of 9223372036854775807"),
        (&[1], "unexpected shape for input 'I' for model 'm'. Expected [-1,-1], got [1]. "),
    ] {
        let message = rejected(variable, vec![floats("I", shape, &[])]);
        assert_eq!(message, format!("[request id: <id_unknown>] {expected}"));
    }
    let strings_of = variable.replace("FP32", "STRING");
    let message = rejected(&strings_of, vec![strings("I", &[i64::MAX, 2], &[])]);
    assert!(message.ends_with("element count for tensor 'I' exceeds maximum size of 9223372036854775807"), "{message}");
}

#[test]
fn strings_must_be_as_many_as_the_shape_says_and_whole() {
    let config =
        "input { name: 'I' data_type: TYPE_STRING dims: 2 } output { name: 'O' data_type: TYPE_STRING dims: 2 }";
    let place = "for inference input 'I' for model 'm'";
    let cut = |len: usize| {
        let whole = strings("I", &[2], &["ab", "c"]);
        InputTensor { data: whole.data.part(0, len).unwrap(), ..whole }
    };
    for (input, expected) in [
        (strings("I", &[2], &["a"]), format!("expected 2 string elements {place}, got 1")),
        (strings("I", &[2], &["a", "", "b"]), format!("unexpected number of string elements 3 {place}, expecting 2")),
        (
            cut(8),
            format!(
                "incomplete string length indicator {place}, expecting 4 bytes but only 2 bytes available. Please make \
                 sure the string length indicator is in one buffer."
            ),
        ),
        (cut(10), format!("incomplete string data {place}, expecting string of length 1 but only 0 bytes available")),
    ] {
        assert_eq!(rejected(config, vec![input]), format!("[request id: <id_unknown>] {expected}"));
    }
}

#[test]
fn unknown_outputs_are_refused() {
    let message = rejected_as(ADD_SUB, vec![four("INPUT0"), four("INPUT1")], |request| {
        request.outputs = vec!["OUTPUT0".into(), "X".into()];
    });
    assert_eq!(message, "unexpected inference output 'X' for model 'm'");
}

#[test]
fn inputs_come_in_the_order_of_the_configuration_with_the_models_shapes() {
    let config = "max_batch_size: 4 \
                  input { name: 'A' data_type: TYPE_FP32 dims: 1 reshape { } } \
                  input { name: 'B' data_type: TYPE_FP32 dims: [ -1, 2 ] reshape { shape: [ 2, -1 ] } } \
                  output { name: 'O' data_type: TYPE_FP32 dims: 1 }";
    let inputs = [floats("B", &[2, 3, 2], &[0.0; 12]), floats("A", &[2, 1], &[0.0; 2])];
    let (mut request, _waiting) = request("m", inputs);
    assert_eq!(signature(config).prepare(&mut request), Ok(2));
    let shapes: Vec<_> = request.inputs.iter().map(|input| (input.name.as_str(), &input.shape[..])).collect();
    assert_eq!(shapes, [("A", &[2][..]), ("B", &[2, 2, 3])]);
}

#[test]
fn optional_inputs_may_be_missing() {
    let config = "input { name: 'A' data_type: TYPE_FP32 dims: 1 optional: true } \
                  input { name: 'B' data_type: TYPE_FP32 dims: 1 } output { name: 'O' data_type: TYPE_FP32 dims: 1 }";
    let (mut fine, _waiting) = request("m", [floats("B", &[1], &[0.0])]);
    assert_eq!(signature(config).prepare(&mut fine), Ok(1));
    let message = rejected(config, Vec::new());
    assert!(message.contains("expected number of inputs between 1 and 2 but got 0 inputs"), "{message}");
    assert!(message.contains("Got input(s) [], but missing required input(s) ['B']"), "{message}");
}

#[test]
fn raw_requests_take_name_type_and_shape_from_the_model() {
    let raw = |bytes: usize| InputTensor::raw(Buffer::zeroed(bytes).unwrap());
    let one = |dims: &str, dtype: &str, batch: u32| {
        format!(
            "max_batch_size: {batch} input {{ name: 'I' data_type: TYPE_{dtype} dims: {dims} }} \
             output {{ name: 'O' data_type: TYPE_FP32 dims: 1 }}"
        )
    };
    for (config, bytes, shape) in [
        (one("[ -1, 2 ]", "FP32", 8), 24, &[1, 3, 2][..]),
        (one("[ 3 ]", "FP32", 0), 12, &[3]),
        (one("[ -1 ]", "FP32", 8), 0, &[1, 0]),
        (one("[ 1 ]", "STRING", 0), 7, &[1]),
    ] {
        let (mut request, _waiting) = request("m", [raw(bytes)]);
        request.raw = true;
        assert_eq!(signature(&config).prepare(&mut request), Ok(1), "{config}");
        assert_eq!((request.inputs[0].name.as_str(), &request.inputs[0].shape[..]), ("I", shape));
    }
    for (config, expected) in [
        (one("[ -1, -1 ]", "FP32", 0), "The shape of the raw input 'I' can not be deduced"),
        (one("[ -1 ]", "STRING", 0), "For BYTE datatype raw input 'I', the model must have input shape [1]"),
        (ADD_SUB.to_owned(), "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'm'"),
    ] {
        let message = rejected_as(&config, vec![raw(8)], |request| request.raw = true);
        assert!(message.contains(expected), "{message}");
    }
}
