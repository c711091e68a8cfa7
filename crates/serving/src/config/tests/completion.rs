//! Completion from files and from the model, and the comparison with the model. Where tritonserver's
//! own tests have the case, the expected configuration or text is theirs.

use super::super::{
    Batching, DataType, Entry, IoFacts, IoKind, ModelConfig, ModelFacts, Options, VersionFiles, complete_backend,
    finish, prepare,
    proto::{ModelTensorReshape, model_config::SchedulingChoice},
};
use super::read;
use crate::Code;

fn files(names: &[&str]) -> VersionFiles {
    let entry = |name: &&str| Entry { name: name.trim_end_matches('/').to_owned(), is_directory: name.ends_with('/') };
    VersionFiles(Some(names.iter().map(entry).collect()))
}

#[test]
fn backend_platform_and_file_name() {
    let none: &[&str] = &[];
    for (config, found, expected) in [
        ("", &["model.onnx"][..], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("", &["model.onnx/"], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("", &["README", "model.py", "model.onnx"], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("", &["model.plan"], ("tensorrt", "tensorrt_plan", "model.plan")),
        ("", &["model.savedmodel/"], ("tensorflow", "tensorflow_savedmodel", "model.savedmodel")),
        ("", &["model.graphdef"], ("tensorflow", "tensorflow_graphdef", "model.graphdef")),
        ("", &["model.xml", "model.bin"], ("openvino", "", "model.xml")),
        ("", &["model.pt"], ("pytorch", "pytorch_libtorch", "model.pt")),
        ("", &["model.pt2"], ("pytorch", "torch_aoti", "model.pt2")),
        ("", &["model.py"], ("python", "", "model.py")),
        ("platform: 'onnxruntime_onnx'", none, ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("backend: 'onnxruntime'", none, ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("backend: 'onnxruntime'", &["model.py"], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        (
            "backend: 'onnxruntime' default_model_filename: 'net.onnx'",
            none,
            ("onnxruntime", "onnxruntime_onnx", "net.onnx"),
        ),
        ("default_model_filename: 'model.onnx'", none, ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("default_model_filename: 'model.py'", &["model.onnx"], ("python", "", "model.py")),
        ("backend: 'pytorch' platform: 'torch_aoti'", none, ("pytorch", "torch_aoti", "model.pt2")),
        ("backend: 'identity'", &["model.onnx"], ("identity", "", "")),
        ("platform: 'ensemble'", none, ("", "ensemble", "")),
        ("platform: 'unheard'", &["model.onnx"], ("", "unheard", "")),
        ("backend: 'onnxruntime' platform: 'tensorrt_plan'", none, ("onnxruntime", "tensorrt_plan", "")),
        // By the name of the model; a file of the wrong kind does not count.
        ("", none, ("identity", "", "model.identity")),
        ("", &["model.plan/", "model.pt/"], ("identity", "", "model.identity")),
    ] {
        let mut config = read(config);
        complete_backend(&mut config, "m.identity", &files(found)).unwrap();
        let filled = (config.backend.as_str(), config.platform.as_str(), config.default_model_filename.as_str());
        assert_eq!(filled, expected, "{found:?}");
        assert_eq!(config.name, "m.identity");
    }

    for found in [VersionFiles(None), files(&[]), files(&["model.tflite"])] {
        let error = complete_backend(&mut ModelConfig::default(), "no_delimiter", &found).unwrap_err();
        assert_eq!(
            error.message,
            "Invalid model name: Could not determine backend for model 'no_delimiter' with no backend in model \
             configuration. Expected model name of the form 'model.<backend_name>'."
        );
    }
}

#[test]
fn the_first_version_directory_decides() {
    let directory = std::env::temp_dir().join(format!("halimede-config-{}", std::process::id()));
    for path in ["0", "007x", "2/model.py", "10/model.onnx", "configs/model.plan"] {
        std::fs::create_dir_all(directory.join(path)).unwrap();
    }
    std::fs::write(directory.join("1"), "a file, no version").unwrap();
    let found = VersionFiles::read(&directory);
    std::fs::remove_dir_all(&directory).unwrap();
    // Names are compared as texts, so 10 comes before 2, as in Triton.
    assert_eq!(found.unwrap(), files(&["model.onnx/"]));
    assert!(VersionFiles::read(&directory).is_err());
}

/// A model of two inputs and two outputs, as the one of tritonserver's tests.
fn pair(shape: &[i64]) -> ModelFacts {
    let tensor = |name: &str, data_type| IoFacts::tensor(name, data_type, shape);
    ModelFacts {
        inputs: vec![tensor("INPUT0", DataType::TypeInt32), tensor("INPUT1", DataType::TypeInt32)],
        outputs: vec![tensor("OUTPUT0", DataType::TypeInt8), tensor("OUTPUT1", DataType::TypeInt8)],
        ..Default::default()
    }
}

fn completed(config: &str, facts: &ModelFacts) -> Result<super::super::Completion, crate::Error> {
    let options = Options::default();
    finish(prepare(read(config), "m", &files(&["model.onnx"]), &options)?, facts, &options)
}

#[test]
fn a_model_without_configuration() {
    let completion = completed("", &pair(&[-1, 16])).unwrap();
    let expected = r#"
        name: "m" platform: "onnxruntime_onnx" backend: "onnxruntime" default_model_filename: "model.onnx"
        version_policy { latest { num_versions: 1 } }
        max_batch_size: 4
        input { name: "INPUT0" data_type: TYPE_INT32 dims: 16 } input { name: "INPUT1" data_type: TYPE_INT32 dims: 16 }
        output { name: "OUTPUT0" data_type: TYPE_INT8 dims: 16 } output { name: "OUTPUT1" data_type: TYPE_INT8 dims: 16 }
        instance_group { name: "m" count: 2 kind: KIND_CPU }
        dynamic_batching { preferred_batch_size: 4 }
        optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } }
    "#;
    assert_eq!(completion.config, read(expected));
    let text = completion.assumptions[0].to_string();
    assert!(
        text.starts_with("model 'm' is taken to support batching (max_batch_size 4): the first dimension"),
        "{text}"
    );
    assert!(text.contains("write 'max_batch_size: N', or inputs and outputs with all their dimensions"), "{text}");
}

#[test]
fn what_sequences_add_is_not_for_clients() {
    let sequences = "sequence_batching { \
        control_input { name: 'INPUT0' control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } \
        state { input_name: 'INPUT1' output_name: 'OUTPUT1' data_type: TYPE_INT32 dims: 16 } }";
    let mut facts = pair(&[-1, 16]);
    facts.inputs[0].shape = vec![-1, 1];
    facts.outputs[1].data_type = DataType::TypeInt32;
    facts.inputs.push(IoFacts::tensor("VALUE", DataType::TypeInt32, [-1, 16]));
    let config = completed(sequences, &facts).unwrap().config;
    let inputs: Vec<&str> = config.input.iter().map(|io| io.name.as_str()).collect();
    let outputs: Vec<&str> = config.output.iter().map(|io| io.name.as_str()).collect();
    assert_eq!((inputs, outputs), (vec!["VALUE"], vec!["OUTPUT0"]));
}

#[test]
fn signals_and_states_must_be_those_of_the_model() {
    let mut facts = pair(&[-1, 1]);
    facts.outputs[1].data_type = DataType::TypeInt32;
    let signal = |name: &str, control: &str| format!("control_input {{ name: '{name}' control {{ {control} }} }}");
    let state = |text: &str| format!("state {{ {text} dims: 1 }}");
    let start = "kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ]";
    for (batching, shape, expected) in [
        (signal("X", start), 1, "configuration specified sequence control 'X', but model does not provide that input"),
        (
            signal("INPUT0", start),
            2,
            "unable to load model 'm', sequence control 'INPUT0' in model has dims [2] but dims [1] is expected",
        ),
        (
            signal("INPUT0", "kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ]"),
            1,
            "unable to load model 'm', sequence control 'INPUT0', the model expects data-type INT32 but the model \
             configuration specifies data-type TYPE_FP32",
        ),
        (
            signal("INPUT0", "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING"),
            1,
            "unable to load model 'm', sequence control 'INPUT0', the model expects data-type INT32 but the model \
             configuration specifies data-type TYPE_STRING",
        ),
        (
            state("input_name: 'X' output_name: 'OUTPUT1' data_type: TYPE_INT32"),
            1,
            "unable to load model 'm', configuration specified state 'X', but model does not provide that input",
        ),
        (
            state("input_name: 'INPUT1' output_name: 'OUTPUT0' data_type: TYPE_INT32"),
            1,
            "unable to load model 'm', configuration expects datatype TYPE_INT32 for state 'OUTPUT0', model provides \
             TYPE_INT8",
        ),
    ] {
        facts.inputs[0].shape = vec![-1, shape];
        let error = completed(&format!("max_batch_size: 4 sequence_batching {{ {batching} }}"), &facts).unwrap_err();
        assert_eq!(error.message, expected);
    }
}

#[test]
fn a_model_that_does_not_batch() {
    let completion = completed("instance_group { kind: KIND_CPU }", &pair(&[16])).unwrap();
    let config = &completion.config;
    assert!(completion.assumptions.is_empty());
    assert_eq!((config.max_batch_size, &config.scheduling_choice), (0, &None));
    assert_eq!(config.input[0].dims, [16]);
    assert_eq!(config.instance_group, read("instance_group { name: 'm_0' count: 2 kind: KIND_CPU }").instance_group);
}

#[test]
fn batching_is_decided_from_what_is_known() {
    let dynamic = |config: &ModelConfig| matches!(config.scheduling_choice, Some(SchedulingChoice::DynamicBatching(_)));
    let mixed = Batching::Mixed("node 'softmax' (Softmax) works along axis 0".to_owned());
    for (config, batching, size, is_dynamic, assumptions) in [
        ("", Batching::Unknown, 4, true, 1),
        ("", Batching::Independent, 4, true, 0),
        ("", mixed.clone(), 0, false, 1),
        // Whoever writes a size knows.
        ("max_batch_size: 8", Batching::Unknown, 8, true, 0),
        ("max_batch_size: 8", mixed, 8, true, 0),
        ("max_batch_size: 1", Batching::Unknown, 1, false, 0),
        // An input written with all its dimensions has no batch in front.
        (
            "input { name: 'INPUT0' data_type: TYPE_INT32 dims: [-1, 16] } input { name: 'INPUT1' data_type: TYPE_INT32 dims: [-1, 16] }",
            Batching::Unknown,
            0,
            false,
            0,
        ),
        (
            "input { name: 'INPUT0' data_type: TYPE_INT32 dims: 16 } input { name: 'INPUT1' data_type: TYPE_INT32 dims: 16 }",
            Batching::Unknown,
            4,
            true,
            1,
        ),
    ] {
        let facts = ModelFacts { batching, ..pair(&[-1, 16]) };
        let completion = completed(config, &facts).unwrap_or_else(|error| panic!("{error}: {config}"));
        let config = &completion.config;
        let found = (config.max_batch_size, dynamic(config), completion.assumptions.len());
        assert_eq!(found, (size, is_dynamic, assumptions), "{config:?}");
        assert_eq!(config.output[0].dims.len(), if size > 0 { 1 } else { 2 });
    }

    // One fixed first dimension among outputs is enough to rule a batch out.
    let mut facts = pair(&[-1, 16]);
    facts.outputs[1].shape = vec![1];
    assert_eq!(completed("", &facts).unwrap().config.max_batch_size, 0);
    let error = completed("max_batch_size: 8", &facts).unwrap_err();
    assert_eq!(
        error.message,
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
    );
    facts.inputs.clear();
    facts.outputs[1].shape = vec![-1];
    assert_eq!(completed("", &facts).unwrap().config.max_batch_size, 0, "without inputs there is no batch");
}

#[test]
fn other_schedulers_and_sizes_are_kept() {
    let options = Options { default_max_batch_size: 16, ..Default::default() };
    let facts = pair(&[-1, 16]);
    let run = |config: &str, options: &Options| {
        let prepared = prepare(read(config), "m", &files(&["model.onnx"]), options)?;
        finish(prepared, &facts, options).map(|completion| completion.config)
    };
    let config = run("dynamic_batching { max_queue_delay_microseconds: 5 }", &options).unwrap();
    assert_eq!(config.max_batch_size, 16);
    let Some(SchedulingChoice::DynamicBatching(batching)) = config.scheduling_choice else { panic!() };
    assert_eq!((batching.preferred_batch_size, batching.max_queue_delay_microseconds), (vec![16], 5));

    let config = run("", &Options { default_max_batch_size: 0, ..Default::default() }).unwrap();
    assert_eq!((config.max_batch_size, config.input[0].dims.as_slice()), (0, &[-1, 16][..]));

    let off = Options { auto_complete: false, ..Default::default() };
    assert_eq!(
        run("", &off).unwrap_err().message,
        "unable to load model 'm', configuration expects 0 inputs, model provides 2"
    );
}

#[test]
fn scalars_are_written_as_one_element() {
    let facts = ModelFacts {
        inputs: vec![IoFacts::tensor("A", DataType::TypeFp32, [-1])],
        outputs: vec![IoFacts::tensor("B", DataType::TypeFp32, [-1])],
        ..Default::default()
    };
    let config = completed("", &facts).unwrap().config;
    assert_eq!(
        (config.input[0].dims.as_slice(), &config.input[0].reshape),
        (&[1][..], &Some(ModelTensorReshape::default()))
    );

    let facts = ModelFacts {
        inputs: vec![IoFacts::tensor("A", DataType::TypeFp32, [])],
        outputs: vec![IoFacts::tensor("B", DataType::TypeFp32, [])],
        ..Default::default()
    };
    let config = completed("", &facts).unwrap().config;
    assert_eq!(
        (config.max_batch_size, config.output[0].dims.as_slice(), &config.output[0].reshape),
        (0, &[1][..], &None)
    );
}

#[test]
fn what_is_no_tensor_of_the_protocol_is_an_error() {
    let mut facts = pair(&[16]);
    facts.outputs[1].kind = IoKind::Sequence;
    let error = completed("", &facts).unwrap_err();
    assert_eq!(error.code, Code::Unsupported);
    assert_eq!(
        error.message,
        "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'OUTPUT1', expected 'ONNX_TYPE_TENSOR'."
    );

    let mut facts = pair(&[16]);
    facts.inputs[0].data_type = DataType::TypeInvalid;
    assert_eq!(completed("", &facts).unwrap_err().message, "model input 'INPUT0' must specify 'data_type' for m");
}

/// A full configuration of [`pair`], with replacements.
fn full(max_batch_size: i32, replacements: &[(&str, &str)]) -> String {
    let mut text = format!(
        "max_batch_size: {max_batch_size}
        input {{ name: 'INPUT0' data_type: TYPE_INT32 dims: 16 }}
        input {{ name: 'INPUT1' data_type: TYPE_INT32 dims: [ 16 ] }}
        output {{ name: 'OUTPUT0' data_type: TYPE_INT8 dims: 16 }}
        output {{ name: 'OUTPUT1' data_type: TYPE_INT8 dims: [ 16 ] }}"
    );
    for (from, to) in replacements {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    text
}

#[test]
fn configurations_that_do_not_fit_the_model() {
    let batched = pair(&[-1, 16]);
    let fixed = pair(&[16]);
    for (config, facts, expected) in [
        (
            full(8, &[("dims: 16", "dims: [16, 1]")]),
            &batched,
            "model 'm', tensor 'INPUT0': the model expects 2 dimensions (shape [-1,16]) but the model configuration \
             specifies 3 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit \
             tensor shape, making complete shape [-1,16,1])",
        ),
        (
            full(8, &[("TYPE_INT8 dims: [ 16 ]", "TYPE_INT8 dims: [ 1 ]")]),
            &batched,
            "model 'm', tensor 'OUTPUT1': the model expects 2 dimensions (shape [-1,16]) but the model configuration \
             specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit \
             tensor shape, making complete shape [-1,1])",
        ),
        (
            full(0, &[("dims: 16", "dims: 15")]),
            &fixed,
            "model 'm', tensor 'INPUT0': the model expects 1 dimensions (shape [16]) but the model configuration \
             specifies 1 dimensions (shape [15])",
        ),
        (
            full(8, &[]),
            &fixed,
            "model 'm', tensor 'INPUT0': for the model to support batching the shape should have at least 1 dimension \
             and the first dimension must be -1; but shape expected by the model is [16]",
        ),
        (
            full(8, &[("input { name: 'INPUT1' data_type: TYPE_INT32 dims: [ 16 ] }", "")]),
            &batched,
            "unable to load model 'm', configuration expects 1 inputs, model provides 2",
        ),
        (
            full(8, &[("input {", "input { name: 'EXTRA' data_type: TYPE_INT32 dims: 16 } input {")]),
            &batched,
            "unable to load model 'm', configuration expects 3 inputs, model provides 2",
        ),
        (
            full(8, &[("INPUT0", "INPUT_UNKNOWN")]),
            &batched,
            "unexpected inference input 'INPUT_UNKNOWN', allowed inputs are: INPUT0, INPUT1",
        ),
        (
            full(8, &[("OUTPUT1", "OUTPUT_UNKNOWN")]),
            &batched,
            "unexpected inference output 'OUTPUT_UNKNOWN', allowed outputs are: OUTPUT0, OUTPUT1",
        ),
        (
            full(8, &[("TYPE_INT32", "TYPE_STRING")]),
            &batched,
            "unable to load model 'm', configuration expects datatype TYPE_STRING for input 'INPUT0', model provides TYPE_INT32",
        ),
        (
            full(8, &[("TYPE_INT8", "TYPE_FP32")]),
            &batched,
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for output 'OUTPUT0', model provides TYPE_INT8",
        ),
        (full(8, &[("TYPE_INT8", "77")]), &batched, "unsupported datatype 77 for output 'OUTPUT0' for model 'm'"),
    ] {
        assert_eq!(completed(&config, facts).expect_err(&config).message, expected, "{config}");
    }
}

#[test]
fn configurations_that_fit_the_model() {
    for (config, facts) in [
        (full(8, &[]), pair(&[-1, 16])),
        (full(0, &[]), pair(&[16])),
        // A variable dimension of an input takes any; reshape decides, not dims; an output may be left out.
        (
            full(0, &[("TYPE_INT8 dims: 16", "TYPE_INT8 dims: -1"), ("TYPE_INT8 dims: [ 16 ]", "TYPE_INT8 dims: -1")]),
            pair(&[-1]),
        ),
        (full(0, &[("dims: 16", "dims: [4, 4] reshape { shape: 16 }")]), pair(&[16])),
        (full(0, &[("output { name: 'OUTPUT0' data_type: TYPE_INT8 dims: 16 }", "")]), pair(&[16])),
    ] {
        let completion = completed(&config, &facts).unwrap_or_else(|error| panic!("{error}: {config}"));
        assert!(completion.assumptions.is_empty());
    }
}

#[test]
fn a_dimension_that_was_worked_out_may_be_configured() {
    let mut facts = pair(&[-1, 16]);
    for output in &mut facts.outputs {
        (output.shape, output.inferred) = (vec![-1, -1], vec![-1, 16]);
    }
    completed(&full(8, &[]), &facts).unwrap();
    for (dims, fits) in [("-1", true), ("16", true), ("8", false)] {
        let config = full(8, &[("TYPE_INT8 dims: 16", &format!("TYPE_INT8 dims: {dims}"))]);
        assert_eq!(completed(&config, &facts).is_ok(), fits, "{dims}");
    }
}

#[test]
fn inputs_with_a_default_may_be_configured_as_optional() {
    let mut facts = pair(&[16]);
    facts.initializers.push(IoFacts::tensor("BIAS", DataType::TypeFp32, [16]));
    let optional = ("input {", "input { name: 'BIAS' data_type: TYPE_FP32 dims: 16 optional: true } input {");
    completed(&full(0, &[optional]), &facts).unwrap();

    facts.inputs.iter_mut().chain(&mut facts.outputs).for_each(|io| io.shape = vec![-1, 16]);
    assert_eq!(
        completed(&full(8, &[optional]), &facts).unwrap_err().message,
        "unable to load model 'm', optional input 'BIAS' is not supported for models that support batching"
    );
}

#[test]
fn scalars_of_the_model_take_ones() {
    let facts = ModelFacts {
        inputs: vec![IoFacts::tensor("A", DataType::TypeFp32, [])],
        outputs: vec![IoFacts::tensor("B", DataType::TypeFp32, [])],
        ..Default::default()
    };
    let config = |dims| {
        format!(
            "input {{ name: 'A' data_type: TYPE_FP32 dims: {dims} }} output {{ name: 'B' data_type: TYPE_FP32 dims: 1 }}"
        )
    };
    completed(&config("[1, 1]"), &facts).unwrap();
    assert_eq!(
        completed(&config("[1, 2]"), &facts).unwrap_err().message,
        "unable to load model 'm', scalar tensor 'A', should only provide 1 in the model configuration when the model \
         doesn't support batching. Model configuration provided: [1,2]."
    );
}

/// A model that sees the elements of a batch in one dimension, and what is computed of it.
fn ragged() -> ModelFacts {
    let f32 = |name: &str, shape: &[i64]| IoFacts::tensor(name, DataType::TypeFp32, shape);
    let inputs = vec![f32("X", &[-1]), IoFacts::tensor("N", DataType::TypeInt32, [-1]), f32("S", &[-1, 2])];
    ModelFacts { inputs, outputs: vec![f32("Y", &[-1]), f32("Z", &[-1, 1])], ..Default::default() }
}

const RAGGED: &str = "max_batch_size: 4 \
    input { name: 'X' data_type: TYPE_FP32 dims: [ -1, 2 ] allow_ragged_batch: true } \
    batch_input { kind: BATCH_ELEMENT_COUNT target_name: 'N' data_type: TYPE_INT32 source_input: 'X' } \
    batch_input { kind: BATCH_ITEM_SHAPE target_name: 'S' data_type: TYPE_FP32 source_input: 'X' } \
    output { name: 'Y' data_type: TYPE_FP32 dims: [ -1, 2 ] } output { name: 'Z' data_type: TYPE_FP32 dims: 1 } \
    batch_output { target_name: 'Y' source_input: 'X' }";

#[test]
fn what_is_computed_from_the_batch_is_no_input_of_clients() {
    let finished = |text: &str| completed(text, &ragged()).unwrap().config;
    let names = |config: &ModelConfig| config.input.iter().map(|input| input.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&finished(RAGGED)), ["X"]);
    // Where outputs are completed from the model, inputs stay as they are.
    let (start, _) = RAGGED.split_once("output").unwrap();
    let config = finished(start);
    assert_eq!(names(&config), ["X"]);
    assert_eq!(config.output.iter().map(|output| &output.name).collect::<Vec<_>>(), ["Y", "Z"]);
}

#[test]
fn shapes_may_be_asked_for_without_a_batch() {
    let z = "name: 'Z' data_type: TYPE_FP32 dims: ";
    let text = RAGGED.replace("max_batch_size: 4", "").replace(&format!("{z}1"), &format!("{z}[ -1, 1 ]"));
    assert_eq!(completed(&text, &ragged()).unwrap().config.max_batch_size, 0);
}

#[test]
fn what_is_computed_from_the_batch_must_fit_the_model() {
    let unable = "unable to load model 'm', ";
    for (from, to, expected) in [
        ("target_name: 'N'", "", "batch input 'BATCH_ELEMENT_COUNT' must specify 'target_name'"),
        ("target_name: 'N'", "target_name: [ 'N', 'S' ]", "batch input 'S' can only be specified once"),
        ("target_name: 'N'", "target_name: 'X'", "batch input 'X' can only be specified once"),
        (
            "target_name: 'N'",
            "target_name: 'M'",
            "configuration specified batch input 'M', but model does not provide that input, its inputs are: X, N, S",
        ),
        (
            "target_name: 'N' data_type: TYPE_INT32",
            "target_name: 'N' data_type: TYPE_FP32",
            "configuration expects datatype TYPE_FP32 for batch input 'N', model provides TYPE_INT32",
        ),
        (
            "kind: BATCH_ITEM_SHAPE",
            "kind: BATCH_ITEM_SHAPE_FLATTEN",
            "batch input 'S' has shape [-1] for 'BATCH_ITEM_SHAPE_FLATTEN', model provides [-1,2]",
        ),
        (
            "batch_output {",
            "batch_output { source_input: 'X' } batch_output {",
            "batch output 'BATCH_SCATTER_WITH_INPUT_SHAPE' must specify 'target_name'",
        ),
        (
            "name: 'Y' data_type: TYPE_FP32 dims: [ -1, 2 ]",
            "name: 'Y' data_type: TYPE_FP32 dims: [ 2, 1, -1 ]",
            "batch output 'Y' of dims [2,1,-1] has a variable dimension that its source input 'X' of dims [-1,2] does not have",
        ),
        (
            "batch_input { kind: BATCH_ELEMENT_COUNT",
            "batch_input { kind: BATCH_ELEMENT_COUNT target_name: 'S'",
            "batch input 'S' can only be specified once",
        ),
    ] {
        assert!(RAGGED.contains(from), "{from}");
        let text = RAGGED.replacen(from, to, 1);
        let error = completed(&text, &ragged()).expect_err(&text);
        assert_eq!((error.code, error.message), (Code::InvalidArgument, format!("{unable}{expected}")), "{to}");
    }
}
