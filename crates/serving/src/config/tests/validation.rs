//! Texts of a configuration that is wrong by itself. Where tritonserver's own tests expect a text for
//! the same mistake, it is that text.

use std::collections::BTreeSet;

use super::super::{
    Entry, Gpus, ModelConfig, Options, ServerParts, VersionFiles, check_runtime, finish_without_model, prepare,
    prepare_instance_groups, validate_instance_groups,
};
use super::read;
use crate::Code;

/// The error of preparing and finishing a model called `m` of Triton's Python backend.
fn error(text: &str) -> crate::Error {
    try_all(text).map(|config| panic!("accepted: {text}\n{config:?}")).unwrap_err()
}

fn try_all(text: &str) -> Result<ModelConfig, crate::Error> {
    let files = VersionFiles(Some(vec![Entry { name: "model.py".to_owned(), is_directory: false }]));
    let options = Options::default();
    finish_without_model(prepare(read(text), "m", &files, &options)?, &options)
}

const IO: &str =
    "input { name: 'input' data_type: TYPE_FP32 dims: 4 } output { name: 'output' data_type: TYPE_FP32 dims: 4 }";

#[test]
fn model() {
    for (text, expected) in [
        ("name: 'other'", "unexpected directory name 'm' for model 'other', directory name must equal model name"),
        ("platform: 'tensorflo'", "unexpected platform type 'tensorflo' for m"),
        (
            "backend: 'onnxruntime' platform: 'tensorrt_plan'",
            "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime",
        ),
        (
            "platform: 'ensemble' backend: 'b'",
            "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
        ),
        ("max_batch_size: -1", "'max_batch_size' must be non-negative value for m"),
        ("platform: 'ensemble'", "ensemble scheduling must be set for ensemble m whose platform is ensemble"),
        (
            "model_transaction_policy { decoupled: true } response_cache { enable: true }",
            "Response Cache does not currently support model m with 'decoupled' transaction policy. Please disable the \
             response cache.",
        ),
        ("model_metrics { metric_control { } }", "metric control must specify 'metric_identifier'"),
        (
            "model_metrics { metric_control { metric_identifier { } } }",
            "metric identifier must specify non-empty 'family'",
        ),
        (
            "model_metrics { metric_control { metric_identifier { family: 'f' } } }",
            "metric control must specify 'histogram_options'",
        ),
        (
            "model_metrics { metric_control { metric_identifier { family: 'f' } histogram_options { } } }",
            "histogram options must specify non-empty 'buckets'",
        ),
    ] {
        let error = error(&format!("{text} {IO}"));
        assert_eq!((error.code, error.message.as_str()), (Code::InvalidArgument, expected), "{text}");
    }
}

#[test]
fn dynamic_batching() {
    for (text, expected) in [
        ("preferred_batch_size: 0", "dynamic batching preferred size must be positive for m"),
        ("preferred_batch_size: [4, 9]", "dynamic batching preferred size must be <= max batch size for m"),
        ("priority_levels: 3", "default priority level must be in range [1, 3] for m"),
        ("priority_levels: 3 default_priority_level: 4", "default priority level must be in range [1, 3] for m"),
        (
            "priority_levels: 3 default_priority_level: 1 priority_queue_policy { key: 0 value { } }",
            "priority queue policy must have priority level in range [1, 3] for m",
        ),
        (
            "priority_levels: 3 default_priority_level: 1 priority_queue_policy { key: 4 value { } }",
            "priority queue policy must have priority level in range [1, 3] for m",
        ),
        (
            "preserve_ordering: true priority_levels: 2 default_priority_level: 1",
            "Only one priority level is allowed when 'preserve_ordering' is true for m",
        ),
        (
            "preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 }",
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
        ),
        (
            "preserve_ordering: true priority_levels: 1 default_priority_level: 1 \
             priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 1 } }",
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
        ),
    ] {
        let error = error(&format!("max_batch_size: 8 dynamic_batching {{ {text} }} {IO}"));
        assert_eq!((error.code, error.message.as_str()), (Code::InvalidArgument, expected), "{text}");
    }
    // A DELAY without a timeout never happens.
    try_all(&format!(
        "dynamic_batching {{ preserve_ordering: true default_queue_policy {{ timeout_action: DELAY }} }} {IO}"
    ))
    .unwrap();
}

#[test]
fn sequence_batching() {
    let control = |tensor: &str, kind: &str, rest: &str| {
        format!("control_input {{ name: '{tensor}' control {{ kind: CONTROL_SEQUENCE_{kind} {rest} }} }}")
    };
    let two = "int32_false_true: [0, 1]";
    let cases = [
        (control("", "START", two), "sequence batching control tensor must have a name for m"),
        (
            control("A", "START", two) + &control("A", "READY", two),
            "sequence batching control tensor 'A' is specified for multiple control kinds for m",
        ),
        (
            control("A", "END", two) + &control("B", "END", two),
            "sequence batching specifies multiple CONTROL_SEQUENCE_END tensors for m",
        ),
        (
            control("A", "READY", ""),
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for \
             CONTROL_SEQUENCE_READY for m",
        ),
        (
            control("A", "START", "int32_false_true: [0, 1] bool_false_true: [false, true]"),
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and \
             'bool_false_true' for CONTROL_SEQUENCE_START for m",
        ),
        (
            control("A", "START", "fp32_false_true: [0]"),
            "sequence batching control 'fp32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_START for m",
        ),
        (
            control("A", "CORRID", two),
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for \
             CONTROL_SEQUENCE_CORRID for m",
        ),
        (
            control("A", "CORRID", "data_type: TYPE_FP32"),
            "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, \
             TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
        ),
        (
            "oldest { preferred_batch_size: -1 }".to_owned(),
            "sequence batching preferred batch size must be positive for m",
        ),
        (
            "oldest { preferred_batch_size: 9 }".to_owned(),
            "sequence batching preferred batch size must be <= max batch size for m",
        ),
        (
            "direct { minimum_slot_utilization: 1.5 }".to_owned(),
            "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
        ),
    ];
    for (text, expected) in cases {
        let error = error(&format!("max_batch_size: 8 sequence_batching {{ {text} }} {IO}"));
        assert_eq!((error.code, error.message.as_str()), (Code::InvalidArgument, expected), "{text}");
    }
}

#[test]
fn inputs_and_outputs() {
    let good_input = "input { name: 'input' data_type: TYPE_FP32 dims: 4 }";
    let good_output = "output { name: 'output' data_type: TYPE_FP32 dims: 4 }";
    for (tensor, expected) in [
        ("data_type: TYPE_FP32 dims: 4", "model XX must specify 'name' for m"),
        ("name: 'T' dims: 4", "model XX 'T' must specify 'data_type' for m"),
        ("name: 'T' data_type: TYPE_FP32", "model XX 'T' must specify 'dims' for m"),
        (
            "name: 'T' data_type: TYPE_FP32 dims: 0",
            "model XX 'T' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
        ),
        (
            "name: 'T' data_type: TYPE_FP32 dims: [4, -2]",
            "model XX 'T' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
        ),
        (
            "name: 'T' data_type: TYPE_FP32 dims: 1 reshape { }",
            "model XX 'T' cannot have empty reshape for non-batching model as scalar tensors are not supported for m",
        ),
        (
            "name: 'T' data_type: TYPE_FP32 dims: 4 reshape { shape: [4, 0] }",
            "model XX 'T' reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension for m",
        ),
        (
            "name: 'T' data_type: TYPE_FP32 dims: [2, 4] reshape { shape: [2, 3] }",
            "model XX 'T' has different size for dims and reshape for m",
        ),
        (
            "name: 'T' data_type: TYPE_FP32 dims: [2, -1] reshape { shape: [2, 3] }",
            "model XX 'T' has different size for dims and reshape for m",
        ),
        (
            "name: 'T' data_type: TYPE_FP32 dims: [2, 4, -1, 6] reshape { shape: [8, -1, 1, 5] }",
            "model XX 'T' has different size for dims and reshape for m",
        ),
        (
            "name: 'T' data_type: TYPE_FP32 dims: [-1, 4, -1] reshape { shape: [4, -1] }",
            "model XX 'T' has different number of variable-size dimensions for dims and reshape for m",
        ),
        (
            "name: 'T' data_type: TYPE_FP32 dims: [9223372036854775807, 2] reshape { shape: [2, 9223372036854775807] }",
            "element count for tensor 'T dims' exceeds maximum size of 9223372036854775807 for m",
        ),
        (
            "name: 'T' data_type: TYPE_FP32 dims: 1 is_shape_tensor: true",
            "shape tensors are only supported for TensorRT platform for m",
        ),
        (
            "name: 'T' data_type: TYPE_FP32 dims: 1 is_non_linear_format_io: true",
            "Non-linear IO format is only supported for the TensorRT platform for m",
        ),
    ] {
        for (direction, text) in [
            ("input", format!("input {{ {tensor} }} {good_output}")),
            ("output", format!("{good_input} output {{ {tensor} }}")),
        ] {
            let error = error(&text);
            let expected = expected.replace("XX", direction);
            assert_eq!((error.code, error.message), (Code::InvalidArgument, expected), "{text}");
        }
    }
    let image = format!("input {{ name: 'T' data_type: TYPE_FP32 dims: 1 format: FORMAT_NHWC }} {good_output}");
    assert_eq!(error(&image).message, "model input NHWC/NCHW require 3 dims for m");

    for tensor in [
        "dims: [2, 4, -1, 6] reshape { shape: [8, -1, 1, 6] }",
        "dims: [1] reshape { }",
        "dims: [-1, 4] reshape { shape: [-1, 2, 2] }",
        "dims: [6] reshape { shape: [2, 3] }",
    ] {
        let text = format!("max_batch_size: 1 input {{ name: 'T' data_type: TYPE_FP32 {tensor} }} {good_output}");
        try_all(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    }
}

#[test]
fn tensors_computed_from_the_batch() {
    for kind in [
        "BATCH_ELEMENT_COUNT",
        "BATCH_ACCUMULATED_ELEMENT_COUNT",
        "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
        "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
        "BATCH_ITEM_SHAPE",
        "BATCH_ITEM_SHAPE_FLATTEN",
    ] {
        for (sources, count) in [("", 0), ("source_input: ['input', 'input']", 2)] {
            let text = format!("batch_input {{ kind: {kind} data_type: TYPE_INT32 {sources} }} {IO}");
            let expected = format!("batch input kind '{kind}' expects 1 source input, got {count} for m");
            assert_eq!(error(&text).message, expected);
        }
    }
    for (text, expected) in [
        ("batch_input { data_type: TYPE_FP32 source_input: 'UNKNOWN' }", "unknown source input name 'UNKNOWN' for m"),
        (
            "batch_input { data_type: TYPE_INT64 source_input: 'input' }",
            "batch input data type must be TYPE_INT32 or TYPE_FP32 for m",
        ),
        ("batch_input { kind: 17 }", "unknown batch input kind '17' for m"),
        (
            "batch_output { target_name: 'output' }",
            "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 0 for m",
        ),
        ("batch_output { source_input: 'UNKNOWN' }", "unknown source input name 'UNKNOWN' for m"),
        ("batch_output { source_input: 'input' target_name: 'UNKNOWN' }", "unknown target output name 'UNKNOWN' for m"),
        (
            "batch_output { source_input: 'input' target_name: ['output', 'output'] }",
            "target output name 'output' can only be specified once for m",
        ),
        ("batch_output { kind: 3 }", "unknown batch output kind '3' for m"),
    ] {
        assert_eq!(error(&format!("{text} {IO}")).message, expected, "{text}");
    }
}

#[test]
fn instance_groups() {
    let with_gpus = |ids: &[i32]| Gpus::Ids(BTreeSet::from_iter(ids.iter().copied()));
    for (group, gpus, expected) in [
        (
            "kind: KIND_CPU gpus: 0",
            Gpus::Unsupported,
            "m_0 of model m has kind KIND_CPU but specifies one or more GPUs",
        ),
        (
            "kind: KIND_MODEL gpus: 0",
            Gpus::Unsupported,
            "m_0 of model m has kind KIND_MODEL but specifies one or more GPUs",
        ),
        ("kind: KIND_GPU", Gpus::Unsupported, "m_0 of model m has kind KIND_GPU but server does not support GPUs"),
        ("kind: KIND_GPU", with_gpus(&[]), "m_0 of model m has kind KIND_GPU but no GPUs are available"),
        (
            "kind: KIND_GPU gpus: [0, 42]",
            with_gpus(&[0, 1]),
            "m_0 of model m specifies invalid or unsupported gpu id 42. The available GPUs are: 0, 1",
        ),
        (
            "kind: KIND_CPU profile: 'a'",
            Gpus::Unsupported,
            "m_0 of model m and platform specifies profile field which is only supported for TensorRT models",
        ),
    ] {
        let options = Options { gpus, ..Default::default() };
        let config = prepare(
            read(&format!("backend: 'b' instance_group {{ {group} }} {IO}")),
            "m",
            &VersionFiles::default(),
            &options,
        );
        let error = finish_without_model(config.unwrap(), &options).expect_err(group);
        assert_eq!(error.message, format!("instance group {expected}"), "{group}");
    }

    let many = read(&format!("name: 'm' backend: 'b' instance_group [{{ count: 1000 }}, {{ count: 25 }}] {IO}"));
    let error = prepare_instance_groups(many, &Options::default()).unwrap_err();
    assert!(error.message.starts_with("the instance groups of model m come to 1025 instances"), "{}", error.message);

    for (batching, places) in [
        (
            "max_batch_size: 1048577 sequence_batching { }",
            "1048577 sequences ('max_batch_size') in each of 1 instances",
        ),
        (
            "instance_group { count: 1024 } sequence_batching { oldest { max_candidate_sequences: 1025 } }",
            "1025 sequences ('max_candidate_sequences') in each of 1024 instances",
        ),
    ] {
        let many = read(&format!("name: 'm' backend: 'b' {batching} {IO}"));
        let error = prepare_instance_groups(many, &Options::default()).unwrap_err();
        assert!(
            error.message.contains(places) && error.message.contains("at most 1048576 in all"),
            "{}",
            error.message
        );
    }

    let mut config = read(&format!(
        "name: 'm' platform: 'tensorrt_plan' instance_group {{ kind: KIND_CPU profile: ['0', 'x'] }} {IO}"
    ));
    let error = validate_instance_groups(&config, &Gpus::Unsupported).unwrap_err();
    assert!(error.message.ends_with("platform tensorrt_plan specifies invalid profile x. The field should contain the string representation of a non-negative integer."));
    config.instance_group.clear();
    let error = validate_instance_groups(&config, &Gpus::Unsupported).unwrap_err();
    assert_eq!(error.message, "must specify one or more 'instance group's for m");
}

#[test]
fn defaults_of_instance_groups() {
    use super::super::proto::model_instance_group::Kind;
    let gpus = |ids: &[i32]| Gpus::Ids(BTreeSet::from_iter(ids.iter().copied()));
    for (backend, group, gpus, expected) in [
        ("onnxruntime", "", Gpus::Unsupported, ("m", Kind::Cpu, 2, vec![])),
        ("python", "", Gpus::Unsupported, ("m", Kind::Cpu, 1, vec![])),
        ("onnxruntime", "instance_group { }", Gpus::Unsupported, ("m_0", Kind::Cpu, 2, vec![])),
        ("onnxruntime", "instance_group { count: 5 name: 'g' }", Gpus::Unsupported, ("g", Kind::Cpu, 5, vec![])),
        ("onnxruntime", "instance_group { kind: KIND_MODEL }", Gpus::Unsupported, ("m_0", Kind::Model, 1, vec![])),
        ("onnxruntime", "", gpus(&[0, 2]), ("m", Kind::Gpu, 1, vec![0, 2])),
        ("onnxruntime", "instance_group { gpus: 2 }", gpus(&[0, 2]), ("m_0", Kind::Gpu, 1, vec![2])),
        // A GPU that is not there leaves the group on the CPU, where naming GPUs is then an error.
        ("onnxruntime", "instance_group { gpus: 1 }", gpus(&[0, 2]), ("m_0", Kind::Cpu, 2, vec![1])),
    ] {
        let mut config = read(&format!("name: 'm' backend: '{backend}' {group}"));
        super::super::normalize_instance_groups(&mut config, &gpus);
        let group = &config.instance_group[0];
        assert_eq!((group.name.as_str(), group.kind(), group.count, group.gpus.clone()), expected);
    }
}

#[test]
fn what_is_not_supported_yet_is_refused_with_its_name() {
    for (text, expected) in [
        (
            "model_operations { op_library_filename: 'x.so' }",
            "model_operations.op_library_filename (custom operators from a library)",
        ),
        (
            "model_repository_agents { agents { name: 'checksum' } }",
            "model_repository_agents (agents that act, or check, when the model is loaded)",
        ),
        (
            "batch_input { data_type: TYPE_FP32 source_input: 'input' }",
            "batch_input (inputs computed from the batch, which are for models of the backend onnxruntime)",
        ),
        (
            "batch_output { source_input: 'input' }",
            "batch_output (outputs split by the shape of an input, as models of the backend onnxruntime have)",
        ),
        (
            "instance_group { kind: KIND_CPU passive: true }",
            "instance_group 'm_0' passive (instances that the scheduler leaves alone)",
        ),
        (
            "instance_group { kind: KIND_CPU secondary_devices { } }",
            "instance_group 'm_0' secondary_devices (devices of NVIDIA's DLA)",
        ),
        (
            "parameters { key: 'TRITON_BATCH_STRATEGY_PATH' value { string_value: 'x.so' } }",
            "parameters TRITON_BATCH_STRATEGY_PATH (a batching strategy from a library)",
        ),
    ] {
        let error = error(&format!("{text} {IO}"));
        assert_eq!(error.code, Code::Unsupported);
        let expected = format!(
            "model 'm' asks for what this server cannot do yet: {expected}. Remove it from the model's config.pbtxt to \
             serve the model without it"
        );
        assert_eq!(error.message, expected, "{text}");
    }
    // What is switched off is not asked for.
    let off =
        "model_transaction_policy { } response_cache { enable: true } model_operations { } model_repository_agents { }";
    // Backends that look at each request by itself take any shapes.
    let ragged = "input { name: 'ragged' data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }";
    let config = try_all(&format!("{off} {ragged} {IO}")).unwrap();
    assert!(super::super::unsupported(&config).is_empty());
}

#[test]
fn a_runtime_of_its_own_is_refused() {
    let check = |runtime: &str| check_runtime(&read(&format!("name: 'm' backend: 'onnxruntime' runtime: '{runtime}'")));
    assert_eq!((check(""), check("libtriton_onnxruntime.so")), (Ok(()), Ok(())));
    for (runtime, expected) in [
        ("model.py", "unable to find backend library 'model.py' for model 'm': "),
        ("../x/libtriton_identity.so", "backend library name '../x/libtriton_identity.so' escapes backend directory"),
    ] {
        let message = check(runtime).unwrap_err().message;
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn parameters_of_onnx_runtime_without_effect_are_named() {
    for (parameter, value, expected) in [
        ("inter_op_thread_count", "2", Some("an instance runs one operator at a time, on the threads of")),
        ("inter_op_thread_count", "0", None),
        ("execution_mode", "1", Some("an instance runs one operator at a time")),
        ("enable_mem_arena", "0", Some("memory is planned ahead")),
        ("gpu_mem_limit", "9", Some("it is for CUDA devices")),
        ("intra_op_thread_count", "2", None),
        ("my_own", "2", None),
    ] {
        let text =
            format!("name: 'm' parameters {{ key: '{parameter}' value {{ string_value: '{value}' }} }} backend: ");
        let found = super::super::ignored(&read(&format!("{text} 'onnxruntime'")), ServerParts::default());
        match expected {
            None => assert!(found.is_empty(), "{found:?}"),
            Some(reason) => {
                let expected = format!("model 'm': parameter '{parameter}' is ignored: {reason}");
                assert!(found.len() == 1 && found[0].starts_with(&expected), "{found:?}");
            }
        }
        assert!(super::super::ignored(&read(&format!("{text} 'identity'")), ServerParts::default()).is_empty());
    }
}

#[test]
fn what_is_harmless_is_accepted_with_a_line_for_the_log() {
    for (text, expected) in [
        ("optimization { cuda { graphs: true } }", "optimization.cuda is ignored: it is for CUDA devices"),
        (
            "optimization { execution_accelerators { gpu_execution_accelerator { name: 'tensorrt' } } }",
            "execution accelerator 'tensorrt' is ignored: models run on this server's own engine",
        ),
        (
            "optimization { priority: PRIORITY_MIN }",
            "optimization.priority is ignored: all models have the same priority",
        ),
        (
            "instance_group { kind: KIND_CPU rate_limiter { priority: 2 } }",
            "instance_group 'm_0' rate_limiter is ignored: the rate limiter is off, as by default (--rate-limit)",
        ),
        (
            "instance_group { kind: KIND_CPU host_policy: 'cpu_0' }",
            "instance_group 'm_0' host_policy is ignored: instances are not bound to cores or memory nodes",
        ),
        (
            "response_cache { enable: true }",
            "response_cache is ignored: this server has no response cache: start it with \
             --cache-config=local,size=BYTES, or remove response_cache from the model's config.pbtxt",
        ),
    ] {
        let config = try_all(&format!("{text} {IO}")).unwrap();
        assert_eq!(
            super::super::ignored(&config, ServerParts::default()),
            [format!("model 'm': {expected}")],
            "{text}"
        );
    }
    let limited = try_all(&format!("instance_group {{ kind: KIND_CPU rate_limiter {{ priority: 2 }} }} {IO}")).unwrap();
    assert!(super::super::ignored(&limited, ServerParts { rate_limiter: true, cache: false }).is_empty());
    let cached = try_all(&format!("response_cache {{ enable: true }} {IO}")).unwrap();
    assert!(super::super::ignored(&cached, ServerParts { rate_limiter: false, cache: true }).is_empty());
    let silent =
        "response_cache { enable: false } optimization { input_pinned_memory { enable: false } graph { level: 1 } }";
    assert!(super::super::ignored(&try_all(&format!("{silent} {IO}")).unwrap(), ServerParts::default()).is_empty());
}

#[test]
fn changes_that_need_no_reload() {
    let old = read("name: 'm' max_batch_size: 4 instance_group { count: 1 }");
    for (new, expected) in [
        ("name: 'm' max_batch_size: 4 instance_group { count: 3 } version_policy { all { } }", false),
        ("name: 'm' max_batch_size: 8 instance_group { count: 1 }", true),
        ("name: 'm' max_batch_size: 4 instance_group { count: 1 } parameters { key: 'k' value { } }", true),
    ] {
        assert_eq!(old.requires_reload(&read(new)), expected, "{new}");
    }
    let group = |text: &str| read(&format!("instance_group {{ {text} }}")).instance_group.remove(0);
    assert!(group("name: 'a' count: 1 kind: KIND_CPU").is_equivalent(&group("name: 'b' count: 2 kind: KIND_CPU")));
    assert!(!group("kind: KIND_CPU").is_equivalent(&group("kind: KIND_CPU passive: true")));
}
