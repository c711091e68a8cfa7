//! Traces as Triton's JSON: the objects of a request lie together, in the order in which they happened.

use std::{fmt::Write as _, time::Instant};

use halimede_serving::wire;
use halimede_tensor::DType;

use super::record::Event;
use crate::json::Writer;

/// The moment from which times are counted, and how many nanoseconds it has itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Epoch {
    pub start: Instant,
    pub ns: u64,
}

impl Epoch {
    pub fn ns(&self, at: Instant) -> u64 {
        let offset = |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        match at.checked_duration_since(self.start) {
            Some(after) => self.ns.saturating_add(offset(after)),
            None => self.ns.saturating_sub(offset(self.start.saturating_duration_since(at))),
        }
    }
}

/// The objects of one trace with commas between.
pub(super) fn render(events: &[Event], epoch: Epoch) -> String {
    let mut parts: Vec<(u64, String)> = Vec::new();
    for event in events {
        let (id, object) = object(event, epoch);
        match parts.iter_mut().find(|(known, _)| *known == id) {
            Some((_, text)) => {
                text.push(',');
                text.push_str(&object);
            }
            None => parts.push((id, object)),
        }
    }
    let parts: Vec<String> = parts.into_iter().map(|(_, text)| text).collect();
    parts.join(",")
}

fn object(event: &Event, epoch: Epoch) -> (u64, String) {
    let mut writer = Writer::default();
    writer.begin_object();
    writer.name("id");
    let id = match event {
        Event::Begin { id, parent, model, version, request_id } => {
            writer.unsigned(*id);
            writer.member("model_name", model);
            writer.name("model_version");
            writer.signed(*version);
            if !request_id.is_empty() {
                writer.member("request_id", request_id);
            }
            if *parent != 0 {
                writer.name("parent_id");
                writer.unsigned(*parent);
            }
            id
        }
        Event::Reach { id, name, at } => {
            writer.unsigned(*id);
            writer.name("timestamps");
            writer.begin_array();
            writer.begin_object();
            writer.member("name", name);
            writer.name("ns");
            writer.unsigned(epoch.ns(*at));
            writer.end_object();
            writer.end_array();
            id
        }
        Event::Tensor { id, is_output, name, dtype, shape, data } => {
            writer.unsigned(*id);
            writer.member("activity", if *is_output { "TENSOR_BACKEND_OUTPUT" } else { "TENSOR_QUEUE_INPUT" });
            writer.name("tensor");
            writer.begin_object();
            writer.member("name", name);
            writer.member("data", &elements(*dtype, data));
            let dims: Vec<String> = shape.iter().map(i64::to_string).collect();
            writer.member("shape", &dims.join(","));
            writer.member("dtype", wire::datatype_name(*dtype));
            writer.end_object();
            id
        }
        Event::LeftOut { id, activities, tensors } => {
            writer.unsigned(*id);
            writer.name("left_out");
            writer.begin_object();
            writer.name("activities");
            writer.unsigned(*activities);
            writer.name("tensors");
            writer.unsigned(*tensors);
            writer.end_object();
            id
        }
    };
    writer.end_object();
    (*id, String::from_utf8_lossy(&writer.into_bytes()).into_owned())
}

/// The elements of a tensor with commas between, as C++ prints them. Formats of 16 bits are left out, as in Triton.
fn elements(dtype: DType, data: &[u8]) -> String {
    fn all<const N: usize, T: std::fmt::Display>(data: &[u8], read: fn([u8; N]) -> T) -> String {
        let mut text = String::new();
        for (index, chunk) in data.chunks_exact(N).enumerate() {
            let mut bytes = [0; N];
            bytes.copy_from_slice(chunk);
            let _ = write!(text, "{}{}", if index == 0 { "" } else { "," }, read(bytes));
        }
        text
    }
    match dtype {
        DType::Bool => all(data, |[byte]: [u8; 1]| u8::from(byte != 0)),
        DType::U8 => all(data, u8::from_le_bytes),
        DType::U16 => all(data, u16::from_le_bytes),
        DType::U32 => all(data, u32::from_le_bytes),
        DType::U64 => all(data, u64::from_le_bytes),
        DType::I8 => all(data, i8::from_le_bytes),
        DType::I16 => all(data, i16::from_le_bytes),
        DType::I32 => all(data, i32::from_le_bytes),
        DType::I64 => all(data, i64::from_le_bytes),
        DType::F32 => all(data, |bytes| general(f64::from(f32::from_le_bytes(bytes)))),
        DType::F64 => all(data, |bytes| general(f64::from_le_bytes(bytes))),
        DType::String => {
            let strings = wire::strings(data).map_while(Result::ok);
            strings.map(|text| format!("\"{}\"", String::from_utf8_lossy(text))).collect::<Vec<_>>().join(",")
        }
        _ => String::new(),
    }
}

/// A number as C++ streams print it: six digits, no zeros at the end, an exponent for what is large or small.
fn general(value: f64) -> String {
    if !value.is_finite() {
        return match value {
            value if value.is_nan() => "nan".to_owned(),
            value => if value > 0.0 { "inf" } else { "-inf" }.to_owned(),
        };
    }
    let scientific = format!("{value:.5e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let without_zeros = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..6).contains(&exponent) {
        let decimals = usize::try_from(5 - exponent).unwrap_or(0);
        return without_zeros(&format!("{value:.decimals$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", without_zeros(digits), exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use halimede_tensor::Buffer;

    use super::*;

    #[test]
    fn numbers_are_printed_as_streams_do() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (0.1, "0.1"),
            (123_456.0, "123456"),
            (1_234_567.0, "1.23457e+06"),
            (999_999.5, "1e+06"),
            (0.000_123_4, "0.0001234"),
            (0.000_012_34, "1.234e-05"),
            (1e100, "1e+100"),
            (-2.5, "-2.5"),
            (f64::from(0.1f32), "0.1"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(general(value), text);
        }
    }

    #[test]
    fn objects_of_a_request_lie_together() {
        let start = Instant::now();
        let epoch = Epoch { start, ns: 1_000 };
        let reach = |id, name, ns| Event::Reach { id, name, at: start + Duration::from_nanos(ns) };
        let begin = |id, parent, request_id: &str| Event::Begin {
            id,
            parent,
            model: "m\"".to_owned(),
            version: 3,
            request_id: request_id.to_owned(),
        };
        let events = [
            reach(1, "HTTP_RECV_START", 5),
            begin(1, 0, "mine"),
            begin(2, 1, ""),
            reach(2, "REQUEST_END", 7),
            reach(1, "REQUEST_END", 9),
        ];
        let expected = r#"{"id":1,"timestamps":[{"name":"HTTP_RECV_START","ns":1005}]},{"id":1,"model_name":"m\"","model_version":3,"request_id":"mine"},{"id":1,"timestamps":[{"name":"REQUEST_END","ns":1009}]},{"id":2,"model_name":"m\"","model_version":3,"parent_id":1},{"id":2,"timestamps":[{"name":"REQUEST_END","ns":1007}]}"#;
        assert_eq!(render(&events, epoch), expected);
        assert_eq!(Epoch { start: start + Duration::from_secs(1), ns: 2_000_000_000 }.ns(start), 1_000_000_000);
    }

    #[test]
    fn tensors_are_texts() {
        let tensor = |dtype, data: &[u8]| {
            let (name, shape) = ("T".to_owned(), vec![1, 2]);
            let data = Buffer::copied(data).unwrap();
            let event = Event::Tensor { id: 4, is_output: true, name, dtype, shape, data };
            object(&event, Epoch { start: Instant::now(), ns: 0 }).1
        };
        let with = |data: &str, dtype: &str| {
            format!(
                r#"{{"id":4,"activity":"TENSOR_BACKEND_OUTPUT","tensor":{{"name":"T","data":"{data}","shape":"1,2","dtype":"{dtype}"}}}}"#
            )
        };
        assert_eq!(tensor(DType::I32, &[1, 0, 0, 0, 255, 255, 255, 255]), with("1,-1", "INT32"));
        assert_eq!(tensor(DType::Bool, &[1, 0]), with("1,0", "BOOL"));
        assert_eq!(tensor(DType::F32, &[0, 0, 128, 63, 0, 0, 0, 63]), with("1,0.5", "FP32"));
        assert_eq!(tensor(DType::String, b"\x01\0\0\0a\x02\0\0\0b\""), with(r#"\"a\",\"b\"\""#, "BYTES"));
        assert_eq!(tensor(DType::F16, &[0, 0, 0, 0]), with("", "FP16"));
    }
}
