//! The JSON of `GET /v2/models/{model}/config`, against what tritonserver 2.51.0 answered for the same
//! `config.pbtxt`. Two differences: entries of maps are sorted here and in hash order there, and
//! `max_inflight_requests` is newer.

use super::super::{
    Entry, ModelConfig, Options, VersionFiles, normalize, normalize_instance_groups, parse_json, prepare, to_json,
    to_text,
};
use super::read;

/// The way of a configuration of Triton's Python backend up to the running model.
fn rendered(name: &str, text: &str) -> String {
    let files = VersionFiles(Some(vec![Entry { name: "model.py".to_owned(), is_directory: false }]));
    let options = Options::default();
    let mut config = prepare(read(text), name, &files, &options).unwrap_or_else(|error| panic!("{error}"));
    normalize_instance_groups(&mut config, &options.gpus);
    to_json(&config)
}

/// Joins lines that were broken to be readable.
fn one_line(json: &str) -> String {
    json.lines().map(str::trim).collect()
}

#[test]
fn a_configuration_with_most_fields() {
    let text = r#"
        backend: "python"
        max_batch_size: 8
        input [
          { name: "A" data_type: TYPE_FP32 dims: [3,-1,4] format: FORMAT_NCHW reshape { shape: [3,-1,2,2] } },
          { name: "S" data_type: TYPE_STRING dims: 1 reshape { } }
        ]
        output [{ name: "B" data_type: TYPE_FP32 dims: [-1,4] }]
        batch_input [{ kind: BATCH_ELEMENT_COUNT target_name: "T" data_type: TYPE_INT32 source_input: "A" }]
        version_policy { all { } }
        optimization {
          graph { level: -1 }
          priority: PRIORITY_MAX
          cuda { graph_spec { batch_size: 2 input { key: "A" value { dim: [1,2] } } } }
          execution_accelerators {
            cpu_execution_accelerator {
              name: "openvino" parameters { key: "z" value: "1" } parameters { key: "b" value: "2" }
            }
          }
        }
        dynamic_batching {
          max_queue_delay_microseconds: 100
          priority_levels: 3
          default_priority_level: 2
          default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 9007199254740993 }
          priority_queue_policy { key: 2 value { max_queue_size: 5 default_timeout_microseconds: 7 } }
          priority_queue_policy { key: 1 value { } }
        }
        instance_group [{
          count: 1
          kind: KIND_CPU
          rate_limiter { resources { name: "R1" count: 4 } priority: 2 }
          secondary_devices { kind: KIND_NVDLA device_id: 7 }
        }]
        metric_tags { key: "b" value: "1" }
        metric_tags { key: "a" value: "é<>/\"\\\n\001\177" }
        parameters { key: "p" value { string_value: "x y" } }
        parameters { key: "a" value { string_value: "" } }
        model_transaction_policy { decoupled: false }
        response_cache { }
        model_operations { op_library_filename: "x" }
        cc_model_filenames { key: "7.5" value: "m" }
    "#;
    let expected = r#"{"name":"full","platform":"","backend":"python","runtime":"","version_policy":{"all":{}},
        "max_batch_size":8,"input":[{"name":"A","data_type":"TYPE_FP32","format":"FORMAT_NCHW","dims":[3,-1,4],
        "reshape":{"shape":[3,-1,2,2]},"is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,
        "is_non_linear_format_io":false},{"name":"S","data_type":"TYPE_STRING","format":"FORMAT_NONE","dims":[1],
        "reshape":{"shape":[]},"is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,
        "is_non_linear_format_io":false}],"output":[{"name":"B","data_type":"TYPE_FP32","dims":[-1,4],
        "label_filename":"","is_shape_tensor":false,"is_non_linear_format_io":false}],"batch_input":[{
        "kind":"BATCH_ELEMENT_COUNT","target_name":["T"],"data_type":"TYPE_INT32","source_input":["A"]}],
        "batch_output":[],"optimization":{"graph":{"level":-1},"priority":"PRIORITY_MAX","cuda":{"graphs":false,
        "busy_wait_events":false,"graph_spec":[{"batch_size":2,"input":{"A":{"dim":["1","2"]}}}],
        "output_copy_stream":false},"execution_accelerators":{"gpu_execution_accelerator":[],
        "cpu_execution_accelerator":[{"name":"openvino","parameters":{"b":"2","z":"1"}}]},
        "input_pinned_memory":{"enable":true},"output_pinned_memory":{"enable":true},
        "gather_kernel_buffer_threshold":0,"eager_batching":false},"dynamic_batching":{"preferred_batch_size":[8],
        "max_queue_delay_microseconds":100,"preserve_ordering":false,"priority_levels":3,"default_priority_level":2,
        "default_queue_policy":{"timeout_action":"DELAY","default_timeout_microseconds":9007199254740993,
        "allow_timeout_override":false,"max_queue_size":0},"priority_queue_policy":{"1":{"timeout_action":"REJECT",
        "default_timeout_microseconds":0,"allow_timeout_override":false,"max_queue_size":0},"2":{
        "timeout_action":"REJECT","default_timeout_microseconds":7,"allow_timeout_override":false,
        "max_queue_size":5}}},"instance_group":[{"name":"full_0","kind":"KIND_CPU","count":1,"rate_limiter":{
        "resources":[{"name":"R1","global":false,"count":4}],"priority":2},"gpus":[],"secondary_devices":[{
        "kind":"KIND_NVDLA","device_id":"7"}],"profile":[],"passive":false,"host_policy":""}],
        "default_model_filename":"model.py","cc_model_filenames":{"7.5":"m"},
        "metric_tags":{"a":"é<>/\"\\\n\u0001<7f>","b":"1"},"parameters":{"a":{"string_value":""},
        "p":{"string_value":"x y"}},"model_warmup":[],"model_operations":{"op_library_filename":["x"]},
        "model_transaction_policy":{"decoupled":false},"response_cache":{"enable":false}}"#;
    assert_eq!(rendered("full", text), one_line(expected).replace("<7f>", "\u{7f}"));
}

#[test]
fn a_sequence_configuration() {
    let text = r#"
        backend: "python"
        max_batch_size: 4
        input [{ name: "A" data_type: TYPE_FP32 dims: [-1,4] }]
        output [{ name: "B" data_type: TYPE_FP32 dims: [-1,4] }]
        sequence_batching {
          direct { minimum_slot_utilization: 0.3 max_queue_delay_microseconds: 5 }
          control_input [
            { name: "START" control [{ kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] }] },
            { name: "READY" control [{ kind: CONTROL_SEQUENCE_READY int32_false_true: [0, 1] }] },
            { name: "E" control { kind: CONTROL_SEQUENCE_END bool_false_true: [false,true] } },
            { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
          ]
          state [{
            input_name: "SI" output_name: "SO" data_type: TYPE_FP32 dims: [4]
            initial_state { name: "i" data_type: TYPE_FP32 dims: [4] zero_data: true }
          }]
        }
    "#;
    let expected = r#"{"name":"seq","platform":"","backend":"python","runtime":"",
        "version_policy":{"latest":{"num_versions":1}},"max_batch_size":4,"input":[{"name":"A",
        "data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[-1,4],"is_shape_tensor":false,
        "allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],"output":[{"name":"B",
        "data_type":"TYPE_FP32","dims":[-1,4],"label_filename":"","is_shape_tensor":false,
        "is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],"optimization":{
        "priority":"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},"output_pinned_memory":{"enable":true},
        "gather_kernel_buffer_threshold":0,"eager_batching":false},"sequence_batching":{"direct":{
        "max_queue_delay_microseconds":5,"minimum_slot_utilization":0.3},"max_sequence_idle_microseconds":1000000,
        "control_input":[{"name":"START","control":[{"kind":"CONTROL_SEQUENCE_START","int32_false_true":[],
        "fp32_false_true":[0,1],"bool_false_true":[],"data_type":"TYPE_INVALID"}]},{"name":"READY","control":[{
        "kind":"CONTROL_SEQUENCE_READY","int32_false_true":[0,1],"fp32_false_true":[],"bool_false_true":[],
        "data_type":"TYPE_INVALID"}]},{"name":"E","control":[{"kind":"CONTROL_SEQUENCE_END","int32_false_true":[],
        "fp32_false_true":[],"bool_false_true":[false,true],"data_type":"TYPE_INVALID"}]},{"name":"C","control":[{
        "kind":"CONTROL_SEQUENCE_CORRID","int32_false_true":[],"fp32_false_true":[],"bool_false_true":[],
        "data_type":"TYPE_UINT64"}]}],"state":[{"input_name":"SI","output_name":"SO","data_type":"TYPE_FP32",
        "dims":[4],"initial_state":[{"data_type":"TYPE_FP32","dims":["4"],"name":"i","zero_data":true}],
        "use_same_buffer_for_input_output":false,"use_growable_memory":false}],"iterative_sequence":false},
        "instance_group":[{"name":"seq","kind":"KIND_CPU","count":1,"gpus":[],"secondary_devices":[],"profile":[],
        "passive":false,"host_policy":""}],"default_model_filename":"model.py","cc_model_filenames":{},
        "metric_tags":{},"parameters":{},"model_warmup":[]}"#;
    assert_eq!(rendered("seq", text), one_line(expected));
}

#[test]
fn other_parts() {
    let io = r#"backend: "python" input [{ name: "A" data_type: TYPE_FP32 dims: [-1,4] }]
        output [{ name: "B" data_type: TYPE_FP32 dims: [-1,4] }]"#;
    for (text, part) in [
        (
            "max_batch_size: 4 sequence_batching { oldest { max_candidate_sequences: 3 } }",
            r#""sequence_batching":{"oldest":{"max_candidate_sequences":3,"preferred_batch_size":[4],
            "max_queue_delay_microseconds":0,"preserve_ordering":false},"max_sequence_idle_microseconds":1000000,
            "control_input":[],"state":[],"iterative_sequence":false},"#,
        ),
        (
            "dynamic_batching { }",
            r#""dynamic_batching":{"preferred_batch_size":[],"max_queue_delay_microseconds":0,
            "preserve_ordering":false,"priority_levels":0,"default_priority_level":0,"priority_queue_policy":{}},"#,
        ),
        (
            "model_warmup [{ name: \"w\" count: 2 inputs { key: \"A\" value { data_type: TYPE_FP32 dims: [1,4] \
             zero_data: true } } }]",
            r#""model_warmup":[{"name":"w","batch_size":0,"inputs":{"A":{"data_type":"TYPE_FP32","dims":[1,4],
            "zero_data":true}},"count":2}]}"#,
        ),
        (
            "version_policy { specific { versions: [1] } } instance_group [{ count: 2 }, { name: \"n\" kind: KIND_MODEL }]",
            r#""instance_group":[{"name":"spec_0","kind":"KIND_CPU","count":2,"gpus":[],"secondary_devices":[],
            "profile":[],"passive":false,"host_policy":""},{"name":"n","kind":"KIND_MODEL","count":1,"gpus":[],
            "secondary_devices":[],"profile":[],"passive":false,"host_policy":""}],"#,
        ),
        ("version_policy { specific { versions: [1] } }", r#""version_policy":{"specific":{"versions":[1]}},"#),
        ("version_policy { }", r#""version_policy":{},"#),
    ] {
        let json = rendered("spec", &format!("{io} {text}"));
        assert!(json.contains(&one_line(part)), "{text}\n{json}");
    }
}

#[test]
fn an_ensemble() {
    let text = r#"
        platform: "ensemble"
        input [{ name: "A" data_type: TYPE_FP32 dims: [-1,4] }]
        output [{ name: "B" data_type: TYPE_FP32 dims: [-1,4] }]
        ensemble_scheduling { step {
          model_name: "plain" model_version: -1
          input_map { key: "A" value: "A" } output_map { key: "B" value: "B" }
        } }
    "#;
    let json = rendered("ens", text);
    let expected = r#""batch_output":[],"ensemble_scheduling":{"step":[{"model_name":"plain","model_version":-1,
        "input_map":{"A":"A"},"output_map":{"B":"B"},"model_namespace":""}],"max_inflight_requests":0},
        "instance_group":[],"default_model_filename":"","#;
    assert!(json.contains(&one_line(expected)), "{json}");
    assert!(!json.contains("optimization"), "{json}");
}

#[test]
fn numbers_without_a_name_and_without_an_end() {
    let mut config = ModelConfig { name: "m".to_owned(), ..Default::default() };
    config.input.push(super::super::proto::ModelInput { data_type: 99, ..Default::default() });
    assert!(to_json(&config).contains(r#""data_type":99"#));
    assert!(to_text(&config).contains("data_type: 99"));
    for (given, json, text) in
        [("inf", "\"Infinity\"", "inf"), ("-inf", "\"-Infinity\"", "-inf"), ("nan", "\"NaN\"", "NaN")]
    {
        let config = read(&format!(
            "name: \"m\" model_metrics {{ metric_control {{ histogram_options {{ buckets: {given} }} }} }}"
        ));
        assert!(to_json(&config).contains(&format!("\"buckets\":[{json}]")), "{}", to_json(&config));
        assert!(to_text(&config).contains(&format!("buckets: {text}\n")));
        assert_eq!(to_json(&parse_json(&to_json(&config)).unwrap()), to_json(&config));
    }
}

#[test]
fn the_text_form_is_laid_out_as_protobuf_does() {
    let mut config = read(
        r#"name: "m" input { name: "A" data_type: TYPE_FP32 dims: [1,2] } parameters { key: "k" value { string_value: "\001" } }"#,
    );
    normalize(&mut config);
    let expected = "name: \"m\"\n\
        version_policy {\n  latest {\n    num_versions: 1\n  }\n}\n\
        input {\n  name: \"A\"\n  data_type: TYPE_FP32\n  dims: 1\n  dims: 2\n}\n\
        optimization {\n  input_pinned_memory {\n    enable: true\n  }\n  output_pinned_memory {\n    enable: true\n  }\n}\n\
        parameters {\n  key: \"k\"\n  value {\n    string_value: \"\\001\"\n  }\n}\n";
    assert_eq!(to_text(&config), expected);
}
