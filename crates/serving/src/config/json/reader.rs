//! Reads a message from JSON by protobuf's rules: fields under their protocol name or their
//! lowerCamelCase name, a repeated field as an array or its only element, 64-bit integers as numbers
//! or strings, enumerations by name in any case or by number, `null` for a field that is not given.

use prost_reflect::{DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value};
use serde_json::Value as Json;

use super::{
    super::suggest::{nearest, suggestion},
    keys::with_quotes,
};

/// Reads a message of the type `descriptor`. The error names the place, such as `input[0].dims[1]`.
pub(in super::super) fn read_message(text: &str, descriptor: MessageDescriptor) -> Result<DynamicMessage, String> {
    // serde_json bounds the depth of nesting at 128.
    let json: Json = serde_json::from_str(text)
        .or_else(|error| serde_json::from_str(&with_quotes(text)).map_err(|_| error.to_string()))?;
    message(&json, descriptor, &Place::Root)
}

/// Where in the document the reader is; a list from the inside out, so that no text is made unless
/// there is an error.
enum Place<'a> {
    Root,
    Field(&'a Place<'a>, &'a str),
    Element(&'a Place<'a>, usize),
}

impl Place<'_> {
    fn path(&self) -> String {
        match self {
            Place::Root => String::new(),
            Place::Field(parent, name) => match parent.path() {
                path if path.is_empty() => (*name).to_owned(),
                path => format!("{path}.{name}"),
            },
            Place::Element(parent, index) => format!("{}[{index}]", parent.path()),
        }
    }

    fn error<T>(&self, text: impl std::fmt::Display) -> Result<T, String> {
        match self {
            Place::Root => Err(text.to_string()),
            place => Err(format!("{}: {text}", place.path())),
        }
    }
}

fn message(json: &Json, descriptor: MessageDescriptor, place: &Place) -> Result<DynamicMessage, String> {
    let Json::Object(members) = json else {
        return place.error(format_args!("expected an object, found {}", kind_name(json)));
    };
    let mut message = DynamicMessage::new(descriptor.clone());
    for (name, json) in members {
        let by_name = descriptor.get_field_by_name(name);
        let Some(field) = by_name.or_else(|| descriptor.get_field_by_json_name(name)) else {
            return place.error(unknown_field(&descriptor, name));
        };
        if json.is_null() {
            continue;
        }
        if let Some(other) =
            field.containing_oneof().and_then(|oneof| oneof.fields().find(|other| message.has_field(other)))
        {
            return place.error(format_args!("\"{name}\" and \"{}\" exclude each other", other.name()));
        }
        let place = Place::Field(place, field.name());
        let value = if field.is_map() {
            map(json, &field, &place)?
        } else if field.is_list() {
            list(json, &field, &place)?
        } else {
            value(json, &field, &place)?
        };
        message.set_field(&field, value);
    }
    Ok(message)
}

/// What is no array is the only element of one.
fn list(json: &Json, field: &FieldDescriptor, place: &Place) -> Result<Value, String> {
    let Json::Array(elements) = json else {
        return value(json, field, place).map(|only| Value::List(vec![only]));
    };
    let elements = elements.iter().enumerate();
    elements
        .map(|(index, element)| value(element, field, &Place::Element(place, index)))
        .collect::<Result<_, _>>()
        .map(Value::List)
}

fn map(json: &Json, field: &FieldDescriptor, place: &Place) -> Result<Value, String> {
    let (Json::Object(members), Kind::Message(entry)) = (json, field.kind()) else {
        return place.error(format_args!("expected an object, found {}", kind_name(json)));
    };
    let (key_field, value_field) = (entry.map_entry_key_field(), entry.map_entry_value_field());
    let mut entries = std::collections::HashMap::with_capacity(members.len());
    for (name, json) in members {
        let place = Place::Field(place, name);
        // Keys are strings in JSON whatever their type is.
        let key: Option<MapKey> = value(&Json::String(name.clone()), &key_field, &place)?.into_map_key();
        let Some(key) = key else {
            return place.error("not a key of this map");
        };
        entries.insert(key, value(json, &value_field, &place)?);
    }
    Ok(Value::Map(entries))
}

fn value(json: &Json, field: &FieldDescriptor, place: &Place) -> Result<Value, String> {
    let expected = |what: &str| place.error(format_args!("expected {what}, found {}", kind_name(json)));
    Ok(match (field.kind(), json) {
        (Kind::Message(descriptor), json) => Value::Message(message(json, descriptor, place)?),
        (Kind::Enum(descriptor), json) => Value::EnumNumber(enumeration(json, &descriptor, place)?),
        (Kind::Bool, Json::Bool(value)) => Value::Bool(*value),
        (Kind::Bool, _) => return expected("true or false"),
        (Kind::String, Json::String(value)) => Value::String(value.clone()),
        (Kind::String, _) => return expected("a string"),
        (Kind::Float, json) => Value::F32(float(json, place)? as f32),
        (Kind::Double, json) => Value::F64(float(json, place)?),
        (Kind::Int32 | Kind::Sint32 | Kind::Sfixed32, json) => Value::I32(integer(json, place)?),
        (Kind::Int64 | Kind::Sint64 | Kind::Sfixed64, json) => Value::I64(integer(json, place)?),
        (Kind::Uint32 | Kind::Fixed32, json) => Value::U32(integer(json, place)?),
        (Kind::Uint64 | Kind::Fixed64, json) => Value::U64(integer(json, place)?),
        (Kind::Bytes, _) => return expected("a field that this server knows"),
    })
}

fn enumeration(json: &Json, descriptor: &EnumDescriptor, place: &Place) -> Result<i32, String> {
    let Json::String(given) = json else {
        return integer(json, place);
    };
    let name = given.to_ascii_uppercase().replace('-', "_");
    if let Some(value) = descriptor.get_value_by_name(&name) {
        return Ok(value.number());
    }
    let values: Vec<_> = descriptor.values().collect();
    let hint = nearest(&name, values.iter().map(|value| value.name())).map(suggestion).unwrap_or_default();
    place.error(format_args!("\"{given}\" is no value of {}{hint}", descriptor.full_name()))
}

fn integer<T: TryFrom<i128>>(json: &Json, place: &Place) -> Result<T, String> {
    let exact: Option<i128> = match json {
        Json::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(value), _, _) => Some(value.into()),
            (_, Some(value), _) => Some(value.into()),
            // 4.0 is an integer too. The conversion saturates far outside the range of any field.
            (_, _, Some(value)) if value.fract() == 0.0 => Some(value as i128),
            _ => None,
        },
        Json::String(digits) => digits.parse().ok(),
        _ => None,
    };
    let Some(value) = exact else {
        return place.error(format_args!("expected an integer, found {}", kind_name(json)));
    };
    T::try_from(value).or_else(|_| place.error(format_args!("the value {value} is out of range")))
}

fn float(json: &Json, place: &Place) -> Result<f64, String> {
    let value = match json {
        Json::Number(number) => number.as_f64(),
        Json::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            digits => digits.parse().ok(),
        },
        _ => None,
    };
    value.map_or_else(|| place.error(format_args!("expected a number, found {}", kind_name(json))), Ok)
}

fn unknown_field(descriptor: &MessageDescriptor, name: &str) -> String {
    let fields: Vec<_> = descriptor.fields().collect();
    let hint = nearest(name, fields.iter().map(|field| field.name())).map(suggestion).unwrap_or_default();
    let short: String = name.chars().take(60).collect();
    format!("message type \"{}\" has no field named \"{short}\"{hint}", descriptor.full_name())
}

fn kind_name(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "an array",
        Json::Object(_) => "an object",
    }
}
