//! Properties over all fields of the schema and over arbitrary texts.

use std::path::Path;

use proptest::prelude::*;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage as _, Value};

use super::super::{dynamic, parse, parse_json, proto, to_json, to_text, typed};

/// Makes messages from a seed; every field of the schema is reached.
struct Maker(u64);

impl Maker {
    /// A number below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn message(&mut self, descriptor: MessageDescriptor) -> DynamicMessage {
        let mut message = DynamicMessage::new(descriptor);
        for field in message.descriptor().fields() {
            if self.below(3) == 0 {
                continue;
            }
            let value = if field.is_map() {
                let Kind::Message(entry) = field.kind() else { unreachable!() };
                let (key, value) = (entry.map_entry_key_field(), entry.map_entry_value_field());
                let mut entry = || (self.scalar(&key).into_map_key().unwrap(), self.value(&value));
                Value::Map((0..2).map(|_| entry()).collect::<std::collections::HashMap<MapKey, Value>>())
            } else if field.is_list() {
                Value::List((0..self.below(3)).map(|_| self.value(&field)).collect())
            } else {
                self.value(&field)
            };
            message.set_field(&field, value);
        }
        message
    }

    fn value(&mut self, field: &FieldDescriptor) -> Value {
        match field.kind() {
            Kind::Message(descriptor) => Value::Message(self.message(descriptor)),
            _ => self.scalar(field),
        }
    }

    fn scalar(&mut self, field: &FieldDescriptor) -> Value {
        let bits = self.below(u64::MAX);
        let small = self.below(2) == 0;
        match field.kind() {
            Kind::Bool => Value::Bool(small),
            Kind::Int32 => Value::I32(if small { bits as i32 % 10 } else { bits as i32 }),
            Kind::Int64 => Value::I64(if small { bits as i64 % 10 } else { bits as i64 }),
            Kind::Uint32 => Value::U32(bits as u32),
            Kind::Uint64 => Value::U64(bits),
            Kind::Float => Value::F32(if small { 0.3 } else { bits as i32 as f32 / 7.0 }),
            Kind::Double => Value::F64(bits as i64 as f64 / 1e9),
            Kind::Enum(descriptor) => {
                let known = descriptor.values().len() as u64;
                Value::EnumNumber(if bits.is_multiple_of(10) { 77 } else { (bits % known) as i32 })
            }
            Kind::String => {
                let alphabet =
                    ['a', 'Z', '0', ' ', '"', '\'', '\\', '\n', '\t', '\r', '\u{1}', '\u{7f}', 'é', '😀', '#'];
                Value::String((0..bits % 6).map(|_| alphabet[self.below(alphabet.len() as u64) as usize]).collect())
            }
            other => panic!("the schema has a new kind of field: {other:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn printing_and_reading_give_the_same_configuration(seed: u64) {
        let config = typed(&Maker(seed).message(proto::model_config_descriptor())).unwrap();
        let text = to_text(&config);
        prop_assert_eq!(&parse(&text, Path::new("x")).map_err(|error| format!("{error}\n{text}")).unwrap(), &config);
        let json = to_json(&config);
        prop_assert_eq!(&parse_json(&json).map_err(|error| format!("{error}\n{json}")).unwrap(), &config);
        prop_assert_eq!(typed(&dynamic(&config)).unwrap(), config);
    }

    #[test]
    fn arbitrary_texts_never_panic(text in any::<String>()) {
        let _ = parse(&text, Path::new("x"));
        let _ = parse_json(&text);
    }

    #[test]
    fn texts_of_tokens_never_panic(tokens in prop::collection::vec(
        prop::sample::select(vec!["input", "name", ":", "{", "}", "[", "]", "<", ">", ",", "\"a\"", "'", "\\", "1", "-", "0x", "1e",
            "dims", "data_type", "TYPE_FP32", "parameters", "key", "value", "string_value", "#", "\n", "é", "inf", "true"]), 0..40)) {
        let _ = parse(&tokens.join(" "), Path::new("x"));
        let _ = parse(&tokens.concat(), Path::new("x"));
    }

    #[test]
    fn damaged_configurations_never_panic(seed: u64, cut in any::<prop::sample::Index>(), byte: u8) {
        let config = typed(&Maker(seed).message(proto::model_config_descriptor())).unwrap();
        for text in [to_text(&config), to_json(&config)] {
            let mut bytes = text.into_bytes();
            if !bytes.is_empty() {
                let at = cut.index(bytes.len());
                bytes[at] = byte;
                let damaged = String::from_utf8_lossy(&bytes).into_owned();
                let _ = parse(&damaged, Path::new("x"));
                let _ = parse_json(&damaged);
                bytes.truncate(at);
                let short = String::from_utf8_lossy(&bytes).into_owned();
                let _ = parse(&short, Path::new("x"));
                let _ = parse_json(&short);
            }
        }
    }
}
