//! Reading `config.pbtxt`.

use super::super::proto::model_config::SchedulingChoice;
use super::{DataType, read, read_error};

#[test]
fn all_ways_of_writing_are_read() {
    let canonical = read(
        r#"
        name: "m"
        input { name: "A" data_type: TYPE_FP32 dims: -1 dims: 4 }
        input { name: "B" data_type: TYPE_STRING dims: 1 optional: true }
        parameters { key: "k" value { string_value: "v" } }
        parameters { key: "l" value { string_value: "w" } }
        dynamic_batching { preferred_batch_size: 4 preferred_batch_size: 8 priority_queue_policy { key: 2 value { } } }
        "#,
    );
    for text in [
        // Lists in brackets, with and without colons; commas and semicolons; comments; quotes of both kinds.
        r#"
        name: 'm'  # the model
        input [
          { name: "A", data_type: TYPE_FP32; dims: [ -1, 4 ] },
          { name: "B" data_type: TYPE_STRING dims: [ 1 ], optional: True }
        ]
        parameters: [ { key: "k" value: { string_value: "v" } }, { key: 'l', value { string_value: 'w' } } ]
        dynamic_batching: { preferred_batch_size: [4, 8], priority_queue_policy: { key: 2 } },
        "#,
        // Angle brackets, numbers for enumerations, t and 1 for true, hexadecimal and octal, joined strings.
        r#"name:"" "m" input:<name:"A"data_type:11 dims:[-0x1,04]>input<name:"\x42"data_type:0xD dims:1 optional:t>
        parameters{key:"l"value{string_value:"old"}}parameters{key:"k"value{string_value:"\166"}}
        parameters{key:"l"value{string_value:"w"}}
        dynamic_batching{preferred_batch_size:[]preferred_batch_size:[4]preferred_batch_size:8 priority_queue_policy{value{}key:2}}"#,
    ] {
        assert_eq!(read(text), canonical);
    }
}

#[test]
fn numbers_at_the_ends_of_their_ranges() {
    let config = read(
        "max_batch_size: -2147483648 input { dims: [-9223372036854775808, 9223372036854775807] } \
         dynamic_batching { max_queue_delay_microseconds: 18446744073709551615 }",
    );
    assert_eq!(config.max_batch_size, i32::MIN);
    assert_eq!(config.input[0].dims, [i64::MIN, i64::MAX]);
    let Some(SchedulingChoice::DynamicBatching(batching)) = config.scheduling_choice else { panic!() };
    assert_eq!(batching.max_queue_delay_microseconds, u64::MAX);

    let direct = |value: &str| {
        let config = read(&format!("sequence_batching {{ direct {{ minimum_slot_utilization: {value} }} }}"));
        format!("{:?}", config.scheduling_choice)
    };
    for (given, read) in [("0.25f", "0.25"), ("-3", "-3.0"), ("inf", "inf"), ("-Infinity", "-inf"), ("nan", "NaN")] {
        assert!(direct(given).contains(&format!("minimum_slot_utilization: {read}")), "{given}");
    }
    // An enumeration takes numbers that this version has no name for.
    assert_eq!(read("input { data_type: 99 }").input[0].data_type(), DataType::TypeInvalid);
}

#[test]
fn errors_say_where_and_what_is_valid() {
    for (text, expected) in [
        (
            "name: \"m\"\nplatfrom: \"x\"",
            "line 2, column 1: Message type \"inference.ModelConfig\" has no field named \"platfrom\"; did you mean \
             \"platform\"?",
        ),
        ("foo: 3", "line 1, column 1: Message type \"inference.ModelConfig\" has no field named \"foo\""),
        (
            "input [\n  {\n    datatype: TYPE_FP32\n  }\n]",
            "line 3, column 5: Message type \"inference.ModelInput\" has no field named \"datatype\"; did you mean \
             \"data_type\"?",
        ),
        (
            "batch_size: 8",
            "line 1, column 1: Message type \"inference.ModelConfig\" has no field named \"batch_size\"; did you mean \
             \"max_batch_size\"?",
        ),
        (
            "input { data_type: FP32 }",
            "line 1, column 20: Unknown enumeration value of \"FP32\" for field \"data_type\"; did you mean \
             \"TYPE_FP32\"?",
        ),
        (
            "instance_group { kind: KIND_TPU_POD_SLICE }",
            "line 1, column 24: Unknown enumeration value of \"KIND_TPU_POD_SLICE\" for field \"kind\"; the values are \
             KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL",
        ),
        ("name: m", "line 1, column 7: Expected string, got: m; field \"name\" takes a string in quotes"),
        (
            "name \"m\"",
            "line 1, column 6: Expected \":\", found \"\"m\"\"; field \"name\" takes a value behind a colon",
        ),
        (
            "max_batch_size: 4.5",
            "line 1, column 17: Expected integer, got: 4.5; field \"max_batch_size\" takes a 32-bit integer",
        ),
        (
            "max_batch_size: 4294967296",
            "line 1, column 17: Integer out of range (4294967296); field \"max_batch_size\" takes a 32-bit integer",
        ),
        (
            "max_batch_size: -99999999999999999999999",
            "line 1, column 18: Integer out of range (99999999999999999999999); field \"max_batch_size\" takes a 32-bit \
             integer",
        ),
        (
            "dynamic_batching { priority_levels: -1 }",
            "line 1, column 37: Expected integer, got: -; field \"priority_levels\" takes a 64-bit integer from 0",
        ),
        ("input: 3", "line 1, column 8: Expected \"{\", found \"3\"; field \"input\" takes a message in braces"),
        ("input {\n name: \"A\"", "line 2, column 2: field \"input\" is not closed with '}'"),
        (
            "input { dims: [1 2] }",
            "line 1, column 18: Expected \",\", found \"2\"; field \"dims\" takes ',' or ']' after an element",
        ),
        ("input { dims: [1,] }", "line 1, column 18: Expected integer, got: ]; field \"dims\" takes a 64-bit integer"),
        (
            "input { optional: yes }",
            "line 1, column 19: Invalid value for boolean field \"optional\". Value: \"yes\"; field \"optional\" takes true or false",
        ),
        (
            "input { optional: 2 }",
            "line 1, column 19: Integer out of range (2); field \"optional\" takes true or false",
        ),
        ("name: \"a\" name: \"b\"", "line 1, column 11: Non-repeated field \"name\" is specified multiple times"),
        (
            "dynamic_batching { }\nsequence_batching { }",
            "line 2, column 1: Field \"sequence_batching\" is specified along with field \"dynamic_batching\", another \
             member of oneof \"scheduling_choice\"",
        ),
        (
            "sequence_batching { direct { minimum_slot_utilization: 0x1 } }",
            "line 1, column 56: Expected double, got: 0x1; field \"minimum_slot_utilization\" takes a decimal number",
        ),
        (
            "name: \"\\377\"",
            "line 1, column 7: the string of field \"name\" is not UTF-8; save the file in that encoding",
        ),
        (
            "name: \"Andr\u{ffff}\"",
            "line 1, column 7: the string of field \"name\" is not UTF-8; save the file in that encoding",
        ),
        (
            "ensemble_scheduling { max_inflight_requests: \"many\" }",
            "line 1, column 46: Expected integer, got: \"many\"; field \"max_inflight_requests\" takes a 32-bit integer \
             from 0",
        ),
        (
            "max_batch_size:",
            "line 1, column 16: Expected integer, got: ; field \"max_batch_size\" takes a 32-bit integer",
        ),
        (
            "input { data_type: \"FP32\" }",
            "line 1, column 20: Expected integer or identifier, got: \"FP32\"; field \"data_type\" takes the name of an \
             enumeration value",
        ),
        ("name: \"abc", "line 1, column 7: the string is not closed with \""),
        (
            "é",
            "line 1, column 1: Expected identifier, got: é; a field of \"inference.ModelConfig\" begins with its name",
        ),
        (
            "# é\n  }",
            "line 2, column 3: Expected identifier, got: }; a field of \"inference.ModelConfig\" begins with its name",
        ),
        (
            "input { ]",
            "line 1, column 9: Expected identifier, got: ]; a field of \"inference.ModelInput\" begins with its name",
        ),
        (
            "[a.b]: 1",
            "line 1, column 1: Expected identifier, got: [; a field of \"inference.ModelConfig\" begins with its name",
        ),
    ] {
        assert_eq!(read_error(text), expected, "{text}");
    }
}

#[test]
fn a_scalar_at_its_default_may_be_repeated() {
    // Protobuf notices a second value only where the first differs from the default.
    assert_eq!(read("max_batch_size: 0 max_batch_size: 3").max_batch_size, 3);
}

#[test]
fn long_nonsense_gives_a_short_error() {
    for text in ["x".repeat(1 << 20), format!("name: {}", "x".repeat(1 << 20)), "input {".repeat(1 << 16)] {
        assert!(read_error(&text).len() < 400);
    }
}
