//! Prints a message in its text format, one field a line.

use std::fmt::Write;

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, Value};

/// The set fields of `message` in the order of their numbers; map entries in the order of their keys.
pub(in super::super) fn print_message(message: &DynamicMessage) -> String {
    let mut text = String::new();
    print_fields(message, 0, &mut text);
    text
}

fn print_fields(message: &DynamicMessage, indent: usize, text: &mut String) {
    for (field, value) in message.fields() {
        match value {
            Value::List(values) => values.iter().for_each(|value| print_field(&field, value, indent, text)),
            Value::Map(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                entries.sort_by(|a, b| a.0.cmp(b.0));
                entries.iter().for_each(|(key, value)| print_entry(&field, key, value, indent, text));
            }
            value => print_field(&field, value, indent, text),
        }
    }
}

fn print_field(field: &FieldDescriptor, value: &Value, indent: usize, text: &mut String) {
    push_indent(indent, text);
    text.push_str(field.name());
    match value {
        Value::Message(message) => {
            text.push_str(" {\n");
            print_fields(message, indent + 1, text);
            push_indent(indent, text);
            text.push('}');
        }
        value => {
            text.push_str(": ");
            print_scalar(field, value, text);
        }
    }
    text.push('\n');
}

fn print_entry(field: &FieldDescriptor, key: &MapKey, value: &Value, indent: usize, text: &mut String) {
    // A map is a repeated message of the fields "key" and "value".
    let Kind::Message(entry) = field.kind() else {
        return;
    };
    push_indent(indent, text);
    text.push_str(field.name());
    text.push_str(" {\n");
    print_field(&entry.map_entry_key_field(), &Value::from(key.clone()), indent + 1, text);
    print_field(&entry.map_entry_value_field(), value, indent + 1, text);
    push_indent(indent, text);
    text.push_str("}\n");
}

fn print_scalar(field: &FieldDescriptor, value: &Value, text: &mut String) {
    // Writing to a String cannot fail.
    let _ = match value {
        Value::Bool(value) => write!(text, "{value}"),
        Value::I32(value) => write!(text, "{value}"),
        Value::I64(value) => write!(text, "{value}"),
        Value::U32(value) => write!(text, "{value}"),
        Value::U64(value) => write!(text, "{value}"),
        // Rust prints the shortest digits that read back as the same value, and "inf" and "NaN".
        Value::F32(value) => write!(text, "{value}"),
        Value::F64(value) => write!(text, "{value}"),
        Value::String(value) => {
            push_string(value, text);
            Ok(())
        }
        Value::EnumNumber(number) => {
            let name = match field.kind() {
                Kind::Enum(descriptor) => descriptor.get_value(*number).map(|value| value.name().to_owned()),
                _ => None,
            };
            match name {
                Some(name) => write!(text, "{name}"),
                None => write!(text, "{number}"),
            }
        }
        Value::Bytes(_) | Value::Message(_) | Value::List(_) | Value::Map(_) => {
            unreachable!("the schema has no bytes, and the rest is printed by the callers")
        }
    };
}

fn push_string(value: &str, text: &mut String) {
    text.push('"');
    for character in value.chars() {
        match character {
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            // Always three digits: a digit may follow.
            control if (control as u32) < 0x20 || control as u32 == 0x7f => {
                let _ = write!(text, "\\{:03o}", control as u32);
            }
            other => text.push(other),
        }
    }
    text.push('"');
}

fn push_indent(indent: usize, text: &mut String) {
    text.extend(std::iter::repeat_n("  ", indent));
}
