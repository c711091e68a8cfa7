//! Tensors into segments and out of them.

use std::{collections::HashMap, sync::Arc};

use halimede_platform::shared_memory::SharedMemoryError;
use halimede_serving::{Error, InputTensor, OutputTensor, config::DataType, wire};
use halimede_tensor::{Buffer, DType};

use crate::{
    protocol::{IN_MESSAGE, TensorEntry},
    segment::{ALIGNMENT, Segment, aligned},
};

/// Bytes that tensors take in a segment, each at a place of its own.
pub(crate) fn bytes_of<'a>(tensors: impl Iterator<Item = &'a Buffer>) -> usize {
    tensors.fold(0, |end, data| aligned(end).saturating_add(data.len()))
}

/// Writes an input into `segment` at `place`, which moves on.
pub(crate) fn write(input: &InputTensor, segment: &Segment, place: &mut usize) -> Result<TensorEntry, Error> {
    let InputTensor { name, dtype, shape, data } = input;
    let dtype = dtype.ok_or_else(|| Error::internal(format!("input '{name}' has no datatype")))?;
    write_data(name, dtype, shape, data, segment, place)
}

/// Writes an output of another model into `segment` at `place`, which moves on.
pub(crate) fn write_output(output: &OutputTensor, segment: &Segment, place: &mut usize) -> Result<TensorEntry, Error> {
    write_data(&output.name, output.dtype, &output.shape, &output.data, segment, place)
}

/// Puts an output of another model behind the `bytes` that come with a message.
pub(crate) fn append_output(output: &OutputTensor, bytes: &mut Vec<u8>) -> TensorEntry {
    let OutputTensor { name, dtype, shape, data } = output;
    let number = DataType::from_dtype(*dtype) as i32;
    if data.is_empty() {
        return (name.clone(), number, shape.clone(), 0, 0, 0);
    }
    let offset = aligned(bytes.len());
    bytes.resize(offset, 0);
    bytes.extend_from_slice(data);
    (name.clone(), number, shape.clone(), IN_MESSAGE, offset, data.len())
}

fn write_data(
    name: &str,
    dtype: DType,
    shape: &[i64],
    data: &[u8],
    segment: &Segment,
    place: &mut usize,
) -> Result<TensorEntry, Error> {
    let number = DataType::from_dtype(dtype) as i32;
    if data.is_empty() {
        return Ok((name.to_owned(), number, shape.to_vec(), 0, 0, 0));
    }
    let offset = aligned(*place);
    segment.write(ALIGNMENT + offset, data).map_err(|error| Error::internal(error.to_string()))?;
    *place = offset + data.len();
    Ok((name.to_owned(), number, shape.to_vec(), segment.number(), ALIGNMENT + offset, data.len()))
}

/// The output that an entry of the host names, copied.
pub(crate) fn read(entry: TensorEntry, segments: &HashMap<u32, Arc<Segment>>) -> Result<OutputTensor, Error> {
    let (name, number, shape, segment, offset, length) = entry;
    let dtype = DataType::try_from(number).ok().and_then(DataType::to_dtype);
    let dtype = dtype.ok_or_else(|| Error::internal(format!("output '{name}' has the unknown datatype {number}")))?;
    let wrong = |what: &str| Error::internal(format!("output '{name}' of the Python model {what}"));
    let mut data = Buffer::zeroed(0)?;
    if length > 0 {
        let segment = segments.get(&segment).filter(|segment| segment.contains(offset, length));
        let segment = segment.ok_or_else(|| wrong("lies outside its memory"))?;
        let read = |error: SharedMemoryError| Error::internal(error.to_string());
        data = Buffer::filled(length, |target| segment.read(offset, target).map_err(read))?;
    }
    if !wire::fits(dtype, &shape, &data) {
        return Err(wrong("does not have the bytes that its shape says"));
    }
    Ok(OutputTensor { name, dtype, shape, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments() -> HashMap<u32, Arc<Segment>> {
        HashMap::from([(3, Arc::new(Segment::create(3, 1000).unwrap()))])
    }

    #[test]
    fn what_was_written_is_read() {
        let segments = segments();
        let input = |name: &str, dtype, shape: &[i64], bytes: &[u8]| InputTensor {
            name: name.into(),
            dtype: Some(dtype),
            shape: shape.to_vec(),
            data: Buffer::copied(bytes).unwrap(),
        };
        let inputs = [
            input("a", DType::U8, &[3], b"abc"),
            input("b", DType::F32, &[0], b""),
            input("c", DType::String, &[2], b"\x01\0\0\0x\0\0\0\0"),
        ];
        assert_eq!(bytes_of(inputs.iter().map(|input| &input.data)), 64 + 9);
        let mut place = 0;
        for input in &inputs {
            let entry = write(input, &segments[&3], &mut place).unwrap();
            assert_eq!(entry.4 % ALIGNMENT, 0);
            let output = read(entry, &segments).unwrap();
            assert_eq!((&output.name, Some(output.dtype)), (&input.name, input.dtype));
            assert_eq!((&output.shape, &*output.data), (&input.shape, &*input.data));
        }
    }

    #[test]
    fn hosts_copy_what_the_next_batch_might_change() {
        let host = include_str!("../python/halimede_host/tensor.py");
        let line = host.lines().find_map(|line| line.strip_prefix("LED_BYTES_MAX = ")).unwrap();
        let bytes = line.split_once(" << ").unwrap();
        let (number, bits): (usize, u32) = (bytes.0.parse().unwrap(), bytes.1.parse().unwrap());
        assert_eq!(number << bits, halimede_serving::backend::LED_BYTES_MAX);
    }

    #[test]
    fn wrong_entries_are_errors() {
        let segments = segments();
        let read = |dtype, shape: &[i64], segment, offset, length| {
            read(("out".to_owned(), dtype, shape.to_vec(), segment, offset, length), &segments)
        };
        assert!(read(11, &[2], 3, 64, 8).is_ok());
        for (dtype, shape, segment, offset, length) in [
            (11, &[2][..], 4, 64, 8),
            (11, &[2], 3, usize::MAX, 8),
            (11, &[2], 3, 64, usize::MAX),
            (11, &[2], 3, 1 << 16, 8),
            (11, &[2], 3, 64, 12),
            (11, &[-2], 3, 64, 8),
            (11, &[i64::MAX, i64::MAX], 3, 64, 8),
            (11, &[2], 0, 0, 0),
            (0, &[2], 3, 64, 8),
            (99, &[2], 3, 64, 8),
            (13, &[2], 3, 64, 4),
        ] {
            assert!(read(dtype, shape, segment, offset, length).is_err(), "{dtype} {shape:?} {offset} {length}");
        }
        // Zeros: one empty string.
        assert!(read(13, &[1], 3, 64, 4).is_ok());
    }
}
