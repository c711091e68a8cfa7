//! Decoding within bounds. An empty message takes two bytes of a file and hundreds of bytes of memory, so
//! the memory is counted before anything is decoded.

use bytes::Bytes;
use prost::Message;

/// What a message may take in memory beyond the bytes that it has in the file. Models of a hundred
/// thousand nodes stay far below.
const STRUCTURE_BYTES_MAX: usize = 1 << 30;

/// Messages within messages that prost reads; deeper ones end in its own error.
const DEPTH_MAX: usize = 100;

/// A kind of message: what it takes itself, and what of its fields takes memory beside that.
struct Layout {
    name: &'static str,
    size: usize,
    fields: &'static [(u32, Field)],
}

enum Field {
    /// A message, by its position in [`LAYOUTS`].
    Message(usize),
    List(List),
}

enum List {
    /// Strings or bytes, each with a head of this size; the text itself is as long as in the file.
    Texts(usize),
    /// Numbers of one to ten bytes that take this many in memory.
    Varints(usize),
    /// Numbers as long as in the file.
    Fixed,
}

// `const LAYOUTS: &[Layout]`, made from the `.proto` files.
include!(concat!(env!("OUT_DIR"), "/layouts.rs"));

/// Decodes a message of ONNX whose name is `name`.
pub(super) fn decode<M: Message + Default>(name: &str, bytes: Bytes) -> Result<M, String> {
    let allowed = bytes.len().saturating_add(STRUCTURE_BYTES_MAX);
    if memory(name, &bytes)? > allowed {
        return Err(format!(
            "its {} bytes would take more than {} MiB of memory: it holds far more nodes, attributes or numbers than a \
             model has",
            bytes.len(),
            allowed >> 20
        ));
    }
    M::decode(bytes).map_err(|error| error.to_string())
}

/// Bytes of memory that decoding takes, up to the place where the bytes break the format: decoding ends
/// there too.
fn memory(name: &str, bytes: &[u8]) -> Result<usize, String> {
    let root = LAYOUTS.iter().find(|layout| layout.name == name).ok_or_else(|| format!("no message '{name}'"))?;
    let mut total = root.size;
    let mut open = vec![(root, bytes.len())];
    let mut reader = Reader { bytes, position: 0 };
    while let Some(&(layout, end)) = open.last() {
        if reader.position >= end {
            open.pop();
            continue;
        }
        let Some((number, value)) = reader.field() else { return Ok(total) };
        let field = layout.fields.iter().find(|(known, _)| u64::from(*known) == number).map(|(_, field)| field);
        match (field, value) {
            (_, Value::Group) => return Err("it holds a group, which no ONNX message has".to_owned()),
            (Some(Field::Message(index)), Value::Bytes(start)) => {
                let inner = &LAYOUTS[*index];
                total = total.saturating_add(inner.size);
                if open.len() > DEPTH_MAX {
                    return Ok(total);
                }
                open.push((inner, reader.position));
                reader.position = start;
            }
            (Some(Field::List(List::Texts(size))), Value::Bytes(start)) => {
                total = total.saturating_add(size + reader.position - start);
            }
            (Some(Field::List(List::Varints(size))), Value::Bytes(start)) => {
                let last_bytes = bytes[start..reader.position].iter().filter(|byte| **byte < 0x80);
                total = total.saturating_add(last_bytes.count() * size);
            }
            (Some(Field::List(List::Fixed)), Value::Bytes(start)) => {
                total = total.saturating_add(reader.position - start);
            }
            (Some(Field::List(_)), Value::Number) => total = total.saturating_add(8),
            _ => {}
        }
    }
    Ok(total)
}

struct Reader<'b> {
    bytes: &'b [u8],
    position: usize,
}

enum Value {
    Number,
    /// From here to the reader's position.
    Bytes(usize),
    Group,
}

impl Reader<'_> {
    /// The number of the next field, read to its end; `None` where the format is broken.
    fn field(&mut self) -> Option<(u64, Value)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => {
                self.varint()?;
                Value::Number
            }
            1 => self.skip(8, Value::Number)?,
            2 => {
                let len = usize::try_from(self.varint()?).ok()?;
                let start = self.position;
                self.skip(len, Value::Bytes(start))?
            }
            3 | 4 => Value::Group,
            5 => self.skip(4, Value::Number)?,
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    fn skip(&mut self, len: usize, value: Value) -> Option<Value> {
        self.position = self.position.checked_add(len).filter(|end| *end <= self.bytes.len())?;
        Some(value)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.position)?;
            self.position += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, TensorProto};

    fn field(number: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        prost::encoding::encode_key(number, prost::encoding::WireType::LengthDelimited, &mut bytes);
        prost::encoding::encode_varint(content.len() as u64, &mut bytes);
        bytes.extend_from_slice(content);
        bytes
    }

    #[test]
    fn nodes_without_content_are_counted() {
        let nodes = field(1, b"").repeat(1000);
        let model = field(7, &nodes);
        let expected = size_of::<ModelProto>() + size_of::<GraphProto>() + 1000 * size_of::<NodeProto>();
        assert_eq!(memory("ModelProto", &model), Ok(expected));
    }

    #[test]
    fn numbers_count_as_long_as_they_are_in_memory() {
        // int64_data, packed: one byte each.
        assert_eq!(memory("TensorProto", &field(7, &[1; 500])), Ok(size_of::<TensorProto>() + 500 * 8));
        // float_data is as long in memory as in the file.
        assert_eq!(memory("TensorProto", &field(4, &[1; 500])), Ok(size_of::<TensorProto>() + 500));
        // dims, one by one.
        assert_eq!(memory("TensorProto", &[8, 1].repeat(10)), Ok(size_of::<TensorProto>() + 80));
    }

    #[test]
    fn a_small_file_cannot_ask_for_gigabytes() {
        let nodes = field(1, b"").repeat(6 << 20);
        let error = decode::<ModelProto>("ModelProto", field(7, &nodes).into()).unwrap_err();
        assert!(error.contains("far more nodes"), "{error}");
    }

    #[test]
    fn broken_bytes_are_left_to_the_decoder() {
        let graph = GraphProto { name: Some("g".to_owned()), ..GraphProto::default() };
        let whole = ModelProto { graph: Some(graph), ..ModelProto::default() }.encode_to_vec();
        assert!(decode::<ModelProto>("ModelProto", whole.clone().into()).is_ok());
        assert!(memory("ModelProto", &whole[..whole.len() - 1]).is_ok());
        assert!(decode::<ModelProto>("ModelProto", whole[..whole.len() - 1].to_vec().into()).is_err());
        assert!(memory("ModelProto", &[0xff; 20]).is_ok());
        assert!(memory("ModelProto", &[0x0b]).unwrap_err().contains("group"));
    }
}
