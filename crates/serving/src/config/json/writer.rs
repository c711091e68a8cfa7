//! Writes a message as Triton's configuration route does.
//!
//! Measured on tritonserver 2.51.0: fields under their protocol names in the order of declaration;
//! every scalar, list and map, also where it has its default value; messages only where set; a scalar
//! of a oneof only where set, and then behind all other fields; map keys as strings; enumerations by
//! name. 64-bit integers are numbers, except the fields of [`QUOTED`], which Triton forgets to
//! convert from the strings of protobuf's own JSON. Clients of Triton have only ever seen them so.

use std::fmt::Write;

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage, Value};

/// 64-bit fields that stay strings.
const QUOTED: [&str; 3] = [
    "inference.ModelInstanceGroup.SecondaryDevice.device_id",
    "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
    "inference.ModelSequenceBatching.InitialState.dims",
];

/// `message` as one line of JSON.
pub(in super::super) fn write_message(message: &DynamicMessage) -> String {
    let mut json = String::with_capacity(1024);
    push_message(message, &mut json);
    json
}

fn push_message(message: &DynamicMessage, json: &mut String) {
    let descriptor = message.descriptor();
    let declared: Vec<FieldDescriptor> = descriptor
        .descriptor_proto()
        .field
        .iter()
        .filter_map(|field| descriptor.get_field_by_name(field.name()))
        .collect();
    let in_oneof =
        |field: &&FieldDescriptor| field.containing_oneof().is_some() && !matches!(field.kind(), Kind::Message(_));
    let first = declared.iter().filter(|field| !in_oneof(field));
    let last = declared.iter().filter(in_oneof);

    json.push('{');
    let mut separator = "";
    for field in first.chain(last) {
        if field.supports_presence() && !message.has_field(field) {
            continue;
        }
        json.push_str(separator);
        separator = ",";
        push_string(field.name(), json);
        json.push(':');
        push_value(field, &message.get_field(field), json);
    }
    json.push('}');
}

fn push_value(field: &FieldDescriptor, value: &Value, json: &mut String) {
    match value {
        Value::List(values) => {
            json.push('[');
            for (index, value) in values.iter().enumerate() {
                if index > 0 {
                    json.push(',');
                }
                push_value(field, value, json);
            }
            json.push(']');
        }
        Value::Map(map) => push_map(field, map, json),
        Value::Message(message) => push_message(message, json),
        Value::String(value) => push_string(value, json),
        Value::EnumNumber(number) => push_enum(field, *number, json),
        // Not in the schema; protobuf would write base64.
        Value::Bytes(_) => json.push_str("\"\""),
        Value::Bool(value) => push_plain(value, json),
        Value::I32(value) => push_plain(value, json),
        Value::U32(value) => push_plain(value, json),
        Value::I64(value) if QUOTED.contains(&field.full_name()) => push_string(&value.to_string(), json),
        Value::I64(value) => push_plain(value, json),
        Value::U64(value) => push_plain(value, json),
        // A float prints with its own shortest digits, not with those of the double: 0.3.
        Value::F32(value) if value.is_finite() => push_plain(value, json),
        Value::F64(value) if value.is_finite() => push_plain(value, json),
        Value::F32(value) => push_not_finite(f64::from(*value), json),
        Value::F64(value) => push_not_finite(*value, json),
    }
}

fn push_map(field: &FieldDescriptor, map: &std::collections::HashMap<MapKey, Value>, json: &mut String) {
    let Kind::Message(entry) = field.kind() else {
        return;
    };
    let value_field = entry.map_entry_value_field();
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by(|a, b| a.0.cmp(b.0));
    json.push('{');
    for (index, (key, value)) in entries.into_iter().enumerate() {
        if index > 0 {
            json.push(',');
        }
        match key {
            MapKey::String(key) => push_string(key, json),
            MapKey::Bool(key) => push_string(&key.to_string(), json),
            MapKey::I32(key) => push_string(&key.to_string(), json),
            MapKey::I64(key) => push_string(&key.to_string(), json),
            MapKey::U32(key) => push_string(&key.to_string(), json),
            MapKey::U64(key) => push_string(&key.to_string(), json),
        }
        json.push(':');
        push_value(&value_field, value, json);
    }
    json.push('}');
}

fn push_enum(field: &FieldDescriptor, number: i32, json: &mut String) {
    let Kind::Enum(descriptor) = field.kind() else {
        return push_plain(number, json);
    };
    match descriptor.get_value(number) {
        Some(value) => push_string(value.name(), json),
        None => push_plain(number, json),
    }
}

fn push_plain(value: impl std::fmt::Display, json: &mut String) {
    // Writing to a String cannot fail.
    let _ = write!(json, "{value}");
}

fn push_not_finite(value: f64, json: &mut String) {
    json.push_str(match value {
        f64::INFINITY => "\"Infinity\"",
        f64::NEG_INFINITY => "\"-Infinity\"",
        _ => "\"NaN\"",
    });
}

/// Escapes what JSON requires and nothing more, hexadecimal digits in upper case, as RapidJSON does.
fn push_string(value: &str, json: &mut String) {
    json.push('"');
    for character in value.chars() {
        match character {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\u{8}' => json.push_str("\\b"),
            '\u{c}' => json.push_str("\\f"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            control if (control as u32) < 0x20 => {
                let _ = write!(json, "\\u{:04X}", control as u32);
            }
            other => json.push(other),
        }
    }
    json.push('"');
}
