//! Models made of models.

use std::sync::{Arc, Mutex};

use crate::{
    Code, ControlMode, InputTensor, LoadParameters, Options, Parameter, Server,
    backend::Batch,
    testing::{Files, Scripted, ask, eventually, floats, request, values},
};

/// Adds the inputs up; `OUTPUT1` is the same plus 100. A 13 fails.
fn sum(batch: &mut Batch) {
    let names: Vec<String> = batch.request(0).inputs.iter().map(|input| input.name.clone()).collect();
    let inputs: Vec<_> = names.iter().map(|name| batch.gather(name).unwrap().unwrap()).collect();
    let mut total = vec![0.0; values(&inputs[0].data).len()];
    for input in &inputs {
        total.iter_mut().zip(values(&input.data)).for_each(|(total, value)| *total += value);
    }
    if total.contains(&13.0) {
        return batch.fail_all(&crate::Error::internal("unlucky"));
    }
    let shape = inputs[0].shape.clone();
    for (name, plus) in [("OUTPUT0", 0.0), ("OUTPUT1", 100.0)] {
        let output = floats(name, &shape, &total.iter().map(|value| value + plus).collect::<Vec<_>>());
        batch.scatter(name, output.dtype.unwrap(), &output.shape, output.data).unwrap();
    }
}

fn io(kind: &str, name: &str, dims: &str) -> String {
    format!("{kind} {{ name: '{name}' data_type: TYPE_FP32 dims: {dims} }} ")
}

fn member(inputs: &[&str], outputs: &[&str], more: &str) -> String {
    let inputs: String = inputs.iter().map(|name| io("input", name, "[ -1 ]")).collect();
    let outputs: String = outputs.iter().map(|name| io("output", name, "[ -1 ]")).collect();
    format!("backend: 'sum' {inputs}{outputs}{more}")
}

fn ensemble(
    inputs: &[&str],
    outputs: &[&str],
    steps: &[(&str, &[(&str, &str)], &[(&str, &str)])],
    more: &str,
) -> String {
    let inputs: String = inputs.iter().map(|name| io("input", name, "[ -1 ]")).collect();
    let outputs: String = outputs.iter().map(|name| io("output", name, "[ -1 ]")).collect();
    let map = |kind: &str, pairs: &[(&str, &str)]| -> String {
        pairs.iter().map(|(key, value)| format!("{kind} {{ key: '{key}' value: '{value}' }} ")).collect()
    };
    let steps: String = steps
        .iter()
        .map(|(model, inputs, outputs)| {
            let (inputs, outputs) = (map("input_map", inputs), map("output_map", outputs));
            format!("step {{ model_name: '{model}' model_version: -1 {inputs}{outputs} }} ")
        })
        .collect();
    format!("platform: 'ensemble' {inputs}{outputs}ensemble_scheduling {{ {steps} }} {more}")
}

fn options(files: &Files) -> Options {
    Options { backends: vec![Scripted::backend("sum", |_, batch| sum(batch))], ..files.options() }
}

fn input(name: &str, value: f32) -> InputTensor {
    floats(name, &[1], &[value])
}

const DIAMOND: &[(&str, &[(&str, &str)], &[(&str, &str)])] = &[
    // The last step first: order in the configuration means nothing.
    ("two", &[("INPUT0", "left"), ("INPUT1", "right")], &[("OUTPUT0", "Y")]),
    ("one", &[("INPUT0", "X")], &[("OUTPUT0", "a"), ("OUTPUT1", "b")]),
    ("one", &[("INPUT0", "a")], &[("OUTPUT0", "left")]),
    ("one", &[("INPUT0", "b")], &[("OUTPUT0", "right"), ("OUTPUT1", "Z")]),
];

fn diamond() -> Files {
    let files = Files::new();
    files
        .model("one", &member(&["INPUT0"], &["OUTPUT0", "OUTPUT1"], ""))
        .model("two", &member(&["INPUT0", "INPUT1"], &["OUTPUT0"], ""))
        .model("e", &ensemble(&["X"], &["Y", "Z"], DIAMOND, ""));
    files
}

#[test]
fn tensors_flow_along_any_graph() {
    let files = diamond();
    let server = Server::start(options(&files)).unwrap();
    let response = ask(&server, "e", [input("X", 1.0)]).response();
    let outputs: Vec<_> =
        response.outputs.iter().map(|output| (output.name.as_str(), values(&output.data)[0])).collect();
    assert_eq!((response.error, response.version), (None, 1));
    assert_eq!(outputs, [("Y", 102.0), ("Z", 201.0)]);
    assert_eq!(response.parameters[0], ("sequence_id".to_owned(), Parameter::Int(0)));
    let count = |model: &str| server.statistics(model, None).unwrap()[0].inference.success.count;
    assert_eq!((count("e"), count("one"), count("two")), (1, 3, 1));
    assert_eq!(server.statistics("e", None).unwrap()[0].batches.len(), 1);
    let config = server.model_config("e", None).unwrap();
    assert_eq!(config.model_transaction_policy.as_ref().map(|policy| policy.decoupled), Some(false));
}

#[test]
fn steps_that_nobody_asks_for_do_not_run() {
    let files = diamond();
    let server = Server::start(options(&files)).unwrap();
    let (mut request, waiting) = request("e", [input("X", 1.0)]);
    request.outputs = vec!["Z".into()];
    server.infer(request);
    let outputs = waiting.outputs();
    assert_eq!((outputs.len(), outputs[0].name.as_str()), (1, "Z"));
    assert_eq!(server.statistics("two", None).unwrap()[0].inference.success.count, 0);
    assert_eq!(server.statistics("one", None).unwrap()[0].inference.success.count, 2);
}

#[test]
fn the_error_of_a_step_is_the_ensembles() {
    let files = diamond();
    let server = Server::start(options(&files)).unwrap();
    let error = ask(&server, "e", [input("X", 13.0)]).error();
    assert_eq!((error.code, error.message.as_str()), (Code::Internal, "in ensemble 'e', unlucky"));
    // Once for the step and once for the request, as in Triton.
    assert_eq!(server.statistics("e", None).unwrap()[0].inference.fail.count, 2);
    eventually("all are counted", || server.in_flight() == 0);
}

#[test]
fn optional_inputs_are_passed_on_or_left_out() {
    let files = Files::new();
    let optional = |kind: &str, name: &str| {
        format!("input {{ name: '{name}' data_type: TYPE_FP32 dims: [ -1 ] optional: {kind} }} ")
    };
    let two = format!(
        "backend: 'sum' {}{}{}",
        optional("false", "INPUT0"),
        optional("true", "INPUT1"),
        io("output", "OUTPUT0", "[ -1 ]")
    );
    let e = format!(
        "platform: 'ensemble' {}{}{}ensemble_scheduling {{ step {{ model_name: 'two' model_version: -1 \
         input_map {{ key: 'INPUT0' value: 'A' }} input_map {{ key: 'INPUT1' value: 'B' }} \
         output_map {{ key: 'OUTPUT0' value: 'Y' }} }} }}",
        optional("false", "A"),
        optional("true", "B"),
        io("output", "Y", "[ -1 ]")
    );
    files.model("two", &two).model("e", &e);
    let server = Server::start(options(&files)).unwrap();
    assert_eq!(values(&ask(&server, "e", [input("A", 1.0)]).outputs()[0].data), [1.0]);
    assert_eq!(values(&ask(&server, "e", [input("A", 1.0), input("B", 2.0)]).outputs()[0].data), [3.0]);
}

#[test]
fn members_batch_the_requests_of_several_ensembles_requests() {
    let files = Files::new();
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let all = sizes.clone();
    let backend = Scripted::backend("sum", move |_, batch| {
        all.lock().unwrap().push(batch.size());
        sum(batch);
    });
    let batching = "max_batch_size: 4 instance_group { count: 1 } \
                    dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 10000000 }";
    let step: &[(&str, &[(&str, &str)], &[(&str, &str)])] = &[("one", &[("INPUT0", "X")], &[("OUTPUT0", "Y")])];
    files
        .model("one", &member(&["INPUT0"], &["OUTPUT0", "OUTPUT1"], batching))
        .model("e", &ensemble(&["X"], &["Y"], step, "max_batch_size: 4"));
    let server = Server::start(Options { backends: vec![backend], ..files.options() }).unwrap();
    let waiting: Vec<_> = (0..2).map(|i| ask(&server, "e", [floats("X", &[2, 1], &[i as f32, 7.0])])).collect();
    for (i, waiting) in waiting.into_iter().enumerate() {
        let outputs = waiting.outputs();
        assert_eq!((&outputs[0].shape[..], values(&outputs[0].data)), (&[2, 1][..], vec![i as f32, 7.0]));
    }
    assert_eq!(*sizes.lock().unwrap(), [4]);
}

#[test]
fn batches_of_one_meet_members_without_batches() {
    let files = Files::new();
    let steps: &[(&str, &[(&str, &str)], &[(&str, &str)])] =
        &[("plain", &[("INPUT0", "X")], &[("OUTPUT0", "t")]), ("batched", &[("INPUT0", "t")], &[("OUTPUT0", "Y")])];
    files
        .model("plain", &member(&["INPUT0"], &["OUTPUT0", "OUTPUT1"], ""))
        .model("batched", &member(&["INPUT0"], &["OUTPUT0", "OUTPUT1"], "max_batch_size: 2"))
        .model("e", &ensemble(&["X"], &["Y"], steps, "max_batch_size: 2"));
    let server = Server::start(options(&files)).unwrap();
    let outputs = ask(&server, "e", [floats("X", &[1, 3], &[1.0, 2.0, 3.0])]).outputs();
    assert_eq!((&outputs[0].shape[..], values(&outputs[0].data)), (&[1, 3][..], vec![1.0, 2.0, 3.0]));
}

#[test]
fn ensembles_follow_their_members() {
    let files = diamond();
    let server = Server::start(Options { control: ControlMode::Explicit, ..options(&files) }).unwrap();
    let load = |model: &str| server.load(model, LoadParameters::default());
    load("e").unwrap();
    assert!(server.model_ready("one", None).is_ok(), "members come along");
    server.unload("one", false).unwrap();
    assert!(server.model_ready("e", None).is_err(), "and take the ensemble with them");
    load("one").unwrap();
    assert_eq!(ask(&server, "e", [input("X", 1.0)]).outputs().len(), 2);

    // "one" was asked for by name and stays, "two" came along and goes.
    server.unload("e", true).unwrap();
    let is_ready = |model: &str| server.model_ready(model, None).is_ok();
    eventually("unloaded", || !is_ready("e") && !is_ready("two"));
    assert!(is_ready("one"));
}

#[test]
fn wrong_ensembles_say_what_is_missing() {
    let step = |model: &'static str| [(model, &[("INPUT0", "X")][..], &[("OUTPUT0", "Y")][..])];
    let files = Files::new();
    files
        .model("e", &ensemble(&["X"], &["Y"], &step("nowhere"), ""))
        .model("broken", "backend: 'nonsense'")
        .model("f", &ensemble(&["X"], &["Y"], &step("broken"), ""))
        .model("g", &ensemble(&["X"], &["Y"], &step("h"), ""))
        .model("h", &ensemble(&["X"], &["Y"], &step("g"), ""));
    let server = Server::start(Options { control: ControlMode::Explicit, ..options(&files) }).unwrap();
    for (model, expected) in [
        ("e", "failed to poll from model repository"),
        (
            "f",
            "load failed for model 'f': ensemble 'f' depends on 'broken' which has no loaded version. Model 'broken' loading failed with error: version 1 is at UNAVAILABLE state: Invalid argument: unable to find backend",
        ),
        ("g", "load failed for model 'g': circular dependency between ensembles: g -> ... -> h -> g\n"),
    ] {
        let error = server.load(model, LoadParameters::default()).unwrap_err();
        assert!(error.message.contains(expected), "{error}");
    }
    let all = Server::start(Options { exit_on_error: false, ..options(&files) }).unwrap();
    assert!(all.model_ready("e", None).is_err());
}

#[test]
fn labels_of_members_name_the_classes() {
    let files = diamond();
    let labelled = member(&["INPUT0", "INPUT1"], &[], "")
        + "output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ -1 ] label_filename: 'labels.txt' }";
    files.model("two", &labelled).write("two/labels.txt", "zero\r\non\u{e9}\n");
    let server = Server::start(options(&files)).unwrap();
    let (mut request, waiting) = request("e", [floats("X", &[2], &[1.0, 2.0])]);
    request.outputs = vec![crate::RequestedOutput { name: "Y".into(), classification: 2 }];
    server.infer(request);
    let outputs = waiting.outputs();
    let texts: Vec<&[u8]> = crate::wire::strings(&outputs[0].data).map(Result::unwrap).collect();
    assert_eq!(texts, ["104.000000:1:on\u{e9}".as_bytes(), b"102.000000:0:zero"]);
}
