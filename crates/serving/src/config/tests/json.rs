//! Reading a configuration from JSON.

use super::super::{parse_json, parse_override, to_json};
use super::read;

#[test]
fn all_ways_of_writing_are_read() {
    let expected = read(
        r#"
        name: "m" max_batch_size: 8
        input { name: "A" data_type: TYPE_FP32 dims: [-1, 4] }
        instance_group { kind: KIND_CPU count: 2 }
        version_policy { specific { versions: [1, 3] } }
        parameters { key: "k" value { string_value: "v" } }
        dynamic_batching { max_queue_delay_microseconds: 9007199254740993 priority_queue_policy { key: 2 value { max_queue_size: 5 } } }
        "#,
    );
    for text in [
        r#"{"name":"m","max_batch_size":8,"input":[{"name":"A","data_type":"TYPE_FP32","dims":[-1,4]}],
        "instance_group":[{"kind":"KIND_CPU","count":2}],"version_policy":{"specific":{"versions":[1,3]}},
        "parameters":{"k":{"string_value":"v"}},"dynamic_batching":{"max_queue_delay_microseconds":9007199254740993,
        "priority_queue_policy":{"2":{"max_queue_size":5}}}}"#,
        // JSON names, numbers as strings and as whole floats, enumerations in any case and by number, null.
        r#"{"name":"m","maxBatchSize":"8","input":[{"name":"A","dataType":"type_fp32","dims":["-1",4.0]}],
        "output":null,"sequence_batching":null,
        "instanceGroup":[{"kind":2,"count":2e0}],"versionPolicy":{"specific":{"versions":["1","3"]}},
        "parameters":{"k":{"stringValue":"v"}},"dynamicBatching":{"maxQueueDelayMicroseconds":"9007199254740993",
        "priorityQueuePolicy":{"2":{"maxQueueSize":5}}}}"#,
        // The only element of an array without the array, as protobuf reads it.
        r#"{"name":"m","max_batch_size":8,"input":{"name":"A","data_type":"TYPE_FP32","dims":[-1,4]},
        "instance_group":{"kind":"KIND_CPU","count":2},"version_policy":{"specific":{"versions":[1,3]}},
        "parameters":{"k":{"string_value":"v"}},"dynamic_batching":{"max_queue_delay_microseconds":9007199254740993,
        "priority_queue_policy":{"2":{"max_queue_size":5}}}}"#,
        // Names without quotes.
        r#"{name:"m","max_batch_size":8,input : [{"name":"A","data_type":"TYPE_FP32",dims:[-1,4]}],
        "instance_group":[{"kind":"KIND_CPU","count":2}],"version_policy":{"specific":{"versions":[1,3]}},
        "parameters":{"k":{"string_value":"v"}},"dynamic_batching":{"max_queue_delay_microseconds":9007199254740993,
        "priority_queue_policy":{"2":{"max_queue_size":5}}}}"#,
    ] {
        assert_eq!(parse_json(text).unwrap(), expected);
    }
    assert_eq!(parse_json(&to_json(&expected)).unwrap(), expected);
}

#[test]
fn errors_say_where() {
    for (text, expected) in [
        ("", "EOF while parsing a value at line 1 column 0"),
        ("[]", "expected an object, found an array"),
        (
            r#"{"platfrom":"x"}"#,
            "message type \"inference.ModelConfig\" has no field named \"platfrom\"; did you mean \"platform\"?",
        ),
        (
            r#"{"input":[{},{"nam":1}]}"#,
            "input[1]: message type \"inference.ModelInput\" has no field named \"nam\"; did you mean \"name\"?",
        ),
        (
            r#"{"input":{"nam":1}}"#,
            "input: message type \"inference.ModelInput\" has no field named \"nam\"; did you mean \"name\"?",
        ),
        (r#"{"input":[null]}"#, "input[0]: expected an object, found null"),
        (r#"{"name":7}"#, "name: expected a string, found a number"),
        (r#"{"max_batch_size":2.5}"#, "max_batch_size: expected an integer, found a number"),
        (r#"{"max_batch_size":2147483648}"#, "max_batch_size: the value 2147483648 is out of range"),
        (r#"{"maxBatchSize":"ten"}"#, "max_batch_size: expected an integer, found a string"),
        (r#"{"input":[{"dims":[1,"x"]}]}"#, "input[0].dims[1]: expected an integer, found a string"),
        (r#"{"input":[{"optional":"true"}]}"#, "input[0].optional: expected true or false, found a string"),
        (
            r#"{"input":[{"data_type":"fp32"}]}"#,
            "input[0].data_type: \"fp32\" is no value of inference.DataType; did you mean \"TYPE_FP32\"?",
        ),
        (r#"{"parameters":[]}"#, "parameters: expected an object, found an array"),
        (r#"{"parameters":{"k":"v"}}"#, "parameters.k: expected an object, found a string"),
        (
            r#"{"dynamic_batching":{"priority_queue_policy":{"high":{}}}}"#,
            "dynamic_batching.priority_queue_policy.high: expected an integer, found a string",
        ),
        (
            r#"{"dynamic_batching":{},"sequence_batching":{}}"#,
            "\"sequence_batching\" and \"dynamic_batching\" exclude each other",
        ),
        (
            r#"{"sequence_batching":{"direct":{"minimum_slot_utilization":"half"}}}"#,
            "sequence_batching.direct.minimum_slot_utilization: expected a number, found a string",
        ),
    ] {
        let error = parse_json(text).expect_err(text);
        assert_eq!(error.message, expected, "{text}");
        assert_eq!(parse_override(text).unwrap_err().message, format!("Invalid config override: {expected}"));
    }
    let deep = "[".repeat(100_000);
    assert!(parse_json(&deep).unwrap_err().message.starts_with("recursion limit exceeded"));
}
