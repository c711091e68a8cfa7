//! The built-in backends behind a server.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use halimede_compute::Precision;
use halimede_compute_cpu::{CpuOptions, CpuUnit};
use halimede_tensor::{Buffer, DType};

use super::{Kept, Onnx, built_in};
use crate::{
    Code, InputTensor, Options, Parameter, Response, Server,
    backend::{Backend, Batch, ModelContext},
    config,
    instance::batch::Entry,
    model::Signature,
    testing::{Files, ask, floats, identity, request, strings, values},
    wire,
};

/// The repository that ships with the project.
fn examples() -> Server {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/repository");
    Server::start(Options { repositories: vec![repository], ..with_onnx() }).unwrap()
}

fn onnx() -> Onnx {
    Onnx::new(Precision::Exact, Kept::default(), None, |wish, choices| {
        let options = CpuOptions { threads: wish.threads.or(Some(2)), choices, ..CpuOptions::default() };
        Ok(Arc::new(CpuUnit::new(&options)))
    })
}

fn with_onnx() -> Options {
    let mut backends = built_in();
    backends.push(Arc::new(onnx()));
    Options { backends, ..Options::default() }
}

#[test]
fn identity_answers_with_its_parameters() {
    let files = Files::new();
    files.model("m", &identity("[ -1 ]", "max_batch_size: 4"));
    let server = Server::start(files.options()).unwrap();
    let response = ask(&server, "m", [floats("INPUT0", &[2, 1], &[1.0, 2.0])]).response();
    assert_eq!((&response.outputs[0].shape[..], values(&response.outputs[0].data)), (&[2, 1][..], vec![1.0, 2.0]));
    let expected = [
        ("param0", Parameter::String("an example string parameter".into())),
        ("param1", Parameter::Int(42)),
        ("param2", Parameter::Bool(false)),
        ("param3", Parameter::Double(123.123)),
    ];
    assert_eq!(response.parameters, expected.map(|(name, value)| (name.to_owned(), value)));
}

#[test]
fn identity_gives_zeros_for_optional_inputs_and_reshapes() {
    let files = Files::new();
    let config = "backend: 'identity' max_batch_size: 4 \
                  input { name: 'INPUT0' data_type: TYPE_INT32 dims: [ -1, 2 ] optional: true } \
                  input { name: 'INPUT1' data_type: TYPE_FP32 dims: [ 2, 3 ] reshape { shape: 6 } } \
                  output { name: 'OUTPUT1' data_type: TYPE_FP32 dims: [ 3, 2 ] reshape { shape: 6 } } \
                  output { name: 'OUTPUT0' data_type: TYPE_INT32 dims: [ -1, 2 ] }";
    files.model("m", config);
    let server = Server::start(files.options()).unwrap();
    let outputs = ask(&server, "m", [floats("INPUT1", &[2, 2, 3], &[1.0; 12])]).outputs();
    assert_eq!((outputs[0].name.as_str(), &outputs[0].shape[..]), ("OUTPUT1", &[2, 3, 2][..]));
    assert_eq!((&outputs[1].shape[..], &outputs[1].data[..]), (&[2, 1, 2][..], &[0; 16][..]));
}

#[test]
fn identity_refuses_what_it_cannot_answer() {
    let io = |kind: &str, name: &str, dtype: &str, dims: &str| {
        format!("{kind} {{ name: '{name}' data_type: TYPE_{dtype} dims: {dims} }} ")
    };
    for (input, output, expected) in [
        (
            io("input", "X", "FP32", "1"),
            io("output", "OUTPUT0", "FP32", "1"),
            "expected input name to follow INPUT<index> pattern, got 'X'",
        ),
        (
            io("input", "INPUT0", "FP32", "1"),
            io("output", "OUTPUT1", "FP32", "1"),
            "expected input and output indices to match",
        ),
        (
            io("input", "INPUT0", "FP32", "1"),
            io("output", "OUTPUT0", "INT8", "1"),
            "expected input and output datatype to match, got TYPE_FP32 and TYPE_INT8",
        ),
        (
            io("input", "INPUT0", "FP32", "1"),
            io("output", "OUTPUT0", "FP32", "2"),
            "expected input and output shape to match, got [1] and [2]",
        ),
    ] {
        let files = Files::new();
        files.model("m", &format!("backend: 'identity' {input}{output}"));
        let server = Server::start(Options { exit_on_error: false, ..files.options() }).unwrap();
        let index = server.repository_index(false).unwrap();
        assert!(index[0].reason.contains(expected), "{}", index[0].reason);
    }
}

#[test]
fn the_example_repository_is_served() {
    let server = examples();
    assert!(server.is_ready());
    assert!(server.repository_index(true).unwrap().len() > 15);
    let outputs =
        ask(&server, "add_sub", [floats("INPUT0", &[4], &[1.0; 4]), floats("INPUT1", &[4], &[2.0; 4])]).outputs();
    let found: Vec<_> = outputs.iter().map(|output| (output.name.as_str(), values(&output.data)[0])).collect();
    assert_eq!(found, [("OUTPUT0", 3.0), ("OUTPUT1", -1.0)]);
}

#[test]
fn strings_pass_through_a_model() {
    let server = examples();
    let metadata = server.model_metadata("identity_bytes", None).unwrap();
    let (input, output) = (&metadata.inputs[0], &metadata.outputs[0]);
    let rank = input.shape.len();
    let shape: Vec<i64> = (0..rank).map(|axis| if axis + 1 == rank { 3 } else { 1 }).collect();
    let texts = ["", "two words", "\u{e9}\0x"];
    let outputs = ask(&server, "identity_bytes", [strings(&input.name, &shape, &texts)]).outputs();
    assert_eq!(outputs[0].name, output.name);
    let found: Vec<&[u8]> = wire::strings(&outputs[0].data).map(Result::unwrap).collect();
    assert_eq!(found, texts.map(str::as_bytes));
}

/// Rows that look like nothing in particular.
fn rows(count: usize, width: usize, seed: u32) -> Vec<f32> {
    let mut state = seed | 1;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 24) as f32
    };
    std::iter::repeat_with(next).take(count * width).collect()
}

/// Name and dimensions of a row of the classifier's input, and the number of floats in it.
fn classifier(server: &Server) -> (String, Vec<i64>, usize) {
    let metadata = server.model_metadata("digits_classifier", None).unwrap();
    let dims = metadata.inputs[0].shape[1..].to_vec();
    assert_eq!((metadata.inputs[0].datatype, metadata.inputs[0].shape[0]), ("FP32", -1), "the test expects batches");
    let width = dims.iter().product::<i64>() as usize;
    (metadata.inputs[0].name.clone(), dims, width)
}

/// Runs requests in one batch, without a server between.
fn in_one_batch(model: &str, requests: Vec<Vec<InputTensor>>) -> Vec<Response> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/repository").join(model);
    let config = fs::read_to_string(directory.join("config.pbtxt")).unwrap_or_default();
    let options = config::Options::default();
    let files = config::VersionFiles::read(&directory).unwrap();
    let config = config::parse(&config, &directory).unwrap();
    let config = config::prepare(config, model, &files, &options).unwrap();
    let context = ModelContext {
        config,
        options,
        directory,
        version: 1,
        settings: BTreeMap::new(),
        backend_directory: None,
        peers: Default::default(),
        metrics: Default::default(),
        admission: None,
    };
    let loaded = onnx().load(&context).unwrap();
    let signature = Arc::new(Signature::new(&loaded.completion.config).unwrap());
    assert!(signature.is_batched());
    let entries = requests.into_iter().map(|inputs| {
        let (mut request, _) = request(model, inputs);
        let batch_size = signature.prepare(&mut request).unwrap();
        Entry::new(request, batch_size)
    });
    let mut batch = Batch::new(signature.clone(), 1, Arc::default(), entries.collect());
    loaded.model.instance(0).unwrap().execute(&mut batch);
    let mut responses = Vec::new();
    batch.finish(|_, _, response| responses.push(response));
    responses
}

#[test]
fn an_answer_does_not_depend_on_the_company() {
    let (name, dims, width) = classifier(&examples());
    let input = |data: &[f32]| vec![floats(&name, &[&[(data.len() / width) as i64], &dims[..]].concat(), data)];
    let answer = |requests: &[Vec<f32>], index: usize| {
        let mut responses = in_one_batch("digits_classifier", requests.iter().map(|data| input(data)).collect());
        let response = responses.swap_remove(index);
        assert_eq!(response.error, None);
        values(&response.outputs[0].data)
    };
    let mine = rows(1, width, 7);
    let among_quiet = answer(&[mine.clone(), rows(2, width, 99), rows(1, width, 5)], 0);
    let among_loud = answer(&[mine.clone(), vec![f32::MAX; 2 * width], vec![f32::NAN; width]], 0);
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&among_quiet), bits(&among_loud), "bit for bit at equal shapes");
    let alone = answer(std::slice::from_ref(&mine), 0);
    for alone_or_last in [alone, answer(&[rows(6, width, 1), mine.clone()], 1)] {
        for (a, b) in alone_or_last.iter().zip(&among_quiet) {
            assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} {b}");
        }
    }
}

#[test]
fn a_request_with_wrong_data_fails_alone() {
    // Tokens are looked up in a table; one beyond it cannot be.
    let tokens = |token: i64| {
        let tensor = |name: &str, values: [i64; 3]| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let data = Buffer::copied(&bytes).unwrap();
            InputTensor { name: name.into(), dtype: Some(DType::I64), shape: vec![1, 3], data }
        };
        vec![tensor("input_ids", [1, token, 3]), tensor("attention_mask", [1, 1, 1])]
    };
    let alone = in_one_batch("encoder", vec![tokens(2)]).remove(0);
    let together = in_one_batch("encoder", vec![tokens(1 << 40), tokens(2)]);
    let error = together[0].error.as_ref().expect("no such token");
    assert!(error.code == Code::Internal && error.message.contains("model 'encoder'"), "{error}");
    assert_eq!(together[1].error, None);
    for (a, b) in alone.outputs.iter().zip(&together[1].outputs) {
        assert_eq!((&a.name, &a.shape, &*a.data), (&b.name, &b.shape, &*b.data));
    }
}

#[test]
fn classes_have_their_labels() {
    let server = examples();
    let (name, dims, width) = classifier(&server);
    let output = server.model_metadata("digits_classifier", None).unwrap().outputs[0].name.clone();
    let shape = [&[1], &dims[..]].concat();
    let (mut request, waiting) = request("digits_classifier", [floats(&name, &shape, &rows(1, width, 3))]);
    request.outputs = vec![crate::RequestedOutput { name: output, classification: 3 }];
    server.infer(request);
    let outputs = waiting.outputs();
    assert_eq!((outputs[0].dtype, &outputs[0].shape[..]), (DType::String, &[1, 3][..]));
    let text = String::from_utf8(wire::strings(&outputs[0].data).next().unwrap().unwrap().to_vec()).unwrap();
    assert_eq!(text.split(':').count(), 3, "value:index:label, got {text}");
}

#[test]
fn a_missing_or_broken_model_file_is_named() {
    let files = Files::new();
    files.write("none/1/.keep", "").write("none/config.pbtxt", "backend: 'onnxruntime'");
    files.write("broken/1/model.onnx", "this is no model");
    let server =
        Server::start(Options { repositories: vec![files.path().into()], exit_on_error: false, ..with_onnx() })
            .unwrap();
    let index = server.repository_index(false).unwrap();
    let reason = |name: &str| &index.iter().find(|entry| entry.name == name).unwrap().reason;
    assert!(reason("none").starts_with("Unavailable: unable to find '"), "{}", reason("none"));
    assert!(reason("broken").contains("model.onnx"), "{}", reason("broken"));
}

#[test]
fn bools_other_than_one_are_true() {
    let server = examples();
    let metadata = server.model_metadata("identity_bool", None).unwrap();
    let shape: Vec<i64> = metadata.inputs[0].shape.iter().map(|dim| if *dim == -1 { 1 } else { *dim }).collect();
    let count = shape.iter().product::<i64>() as usize;
    let data = Buffer::copied(&vec![7u8; count]).unwrap();
    let input = InputTensor { name: metadata.inputs[0].name.clone(), dtype: Some(DType::Bool), shape, data };
    assert_eq!(*ask(&server, "identity_bool", [input]).outputs()[0].data, vec![1u8; count]);
}
