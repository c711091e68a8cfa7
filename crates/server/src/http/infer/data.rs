//! Tensor data in JSON.

use halimede_serving::{Error, OutputTensor, wire};
use halimede_tensor::DType;

use crate::json::{Scalar, Value, Writer};

/// Most arrays around a value.
const NESTING_MAX: usize = 100;

const WRONG_COUNT: &str = "Unable to parse 'data': Shape does not match true shape of 'data' field";

/// The tensor `data` in wire form: any nesting of arrays, read in order.
pub(super) fn from_json(
    name: &str,
    dtype: Option<DType>,
    shape: &[i64],
    data: Value<'_>,
    bytes_max: usize,
) -> Result<Vec<u8>, Error> {
    if element_count(name, shape)? == 0 {
        return Ok(Vec::new());
    }
    data.elements()
        .map(drop)
        .map_err(|error| Error { message: format!("Unable to parse 'data': {}", error.message), ..error })?;
    of_elements(name, dtype, shape, data, bytes_max)
}

/// The same of a value that may be a single element.
pub(in super::super) fn of_elements(
    name: &str,
    dtype: Option<DType>,
    shape: &[i64],
    data: Value<'_>,
    bytes_max: usize,
) -> Result<Vec<u8>, Error> {
    // A scalar has no dimensions, and one element.
    let count = if shape.is_empty() { 1 } else { element_count(name, shape)? };
    let reader = Reader { name, data, count, bytes_max };
    match dtype {
        None => Err(Error::invalid(format!("invalid datatype for input {name}"))),
        Some(DType::Bool) => reader.read(|value| Ok([u8::from(value.boolean()?)])),
        Some(DType::U8) => reader.read(|value| Ok((value.unsigned()? as u8).to_le_bytes())),
        Some(DType::U16) => reader.read(|value| Ok((value.unsigned()? as u16).to_le_bytes())),
        Some(DType::U32) => reader.read(|value| Ok((value.unsigned()? as u32).to_le_bytes())),
        Some(DType::U64) => reader.read(|value| Ok(value.unsigned()?.to_le_bytes())),
        Some(DType::I8) => reader.read(|value| Ok((value.signed()? as i8).to_le_bytes())),
        Some(DType::I16) => reader.read(|value| Ok((value.signed()? as i16).to_le_bytes())),
        Some(DType::I32) => reader.read(|value| Ok((value.signed()? as i32).to_le_bytes())),
        Some(DType::I64) => reader.read(|value| Ok(value.signed()?.to_le_bytes())),
        Some(DType::F32) => reader.read(|value| Ok((value.double()? as f32).to_le_bytes())),
        Some(DType::F64) => reader.read(|value| Ok(value.double()?.to_le_bytes())),
        Some(DType::String) => reader.read_strings(),
        Some(other) => Err(Error::invalid(format!(
            "receiving {} data via JSON is not supported. Please use the binary data format for input {name}",
            wire::datatype_name(other)
        ))),
    }
}

/// Number of elements; 0 without dimensions, as in Triton.
fn element_count(name: &str, shape: &[i64]) -> Result<usize, Error> {
    if shape.is_empty() {
        return Ok(0);
    }
    let mut count: i64 = 1;
    for dim in shape {
        count = count.checked_mul(*dim).ok_or_else(|| {
            let shape: Vec<String> = shape.iter().map(i64::to_string).collect();
            Error::invalid(format!(
                "invalid shape for input '{name}': shape [{}] causes total element count to exceed maximum size of {}",
                shape.join(","),
                i64::MAX
            ))
        })?;
    }
    usize::try_from(count)
        .map_err(|_| Error::invalid(format!("shape for input '{name}' contains one or more invalid dimensions")))
}

struct Reader<'d> {
    name: &'d str,
    data: Value<'d>,
    count: usize,
    bytes_max: usize,
}

impl<'d> Reader<'d> {
    /// Every value, flattened; objects are values of no type.
    fn values(&self) -> impl Iterator<Item = Result<Scalar<'d>, Error>> {
        self.data.flattened().map(|(value, nesting)| match nesting {
            0..NESTING_MAX => Ok(value.unwrap_or(Scalar::Null)),
            _ => Err(Error::invalid(format!("JSON nesting depth exceeds maximum allowed limit ({NESTING_MAX})"))),
        })
    }

    fn in_data(error: Error) -> Error {
        Error { message: format!("Unable to parse 'data': {}", error.message), ..error }
    }

    fn check_size(&self, bytes: usize) -> Result<(), Error> {
        if bytes <= self.bytes_max {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "JSON input '{}' has a byte_size ({bytes} bytes) that exceeds the maximum allowed value of {} bytes. Use \
             --http-max-input-size to increase the limit.",
            self.name, self.bytes_max
        )))
    }

    fn read<const N: usize>(&self, convert: impl Fn(Scalar<'d>) -> Result<[u8; N], Error>) -> Result<Vec<u8>, Error> {
        let bytes = self.count.checked_mul(N).filter(|bytes| i64::try_from(*bytes).is_ok()).ok_or_else(|| {
            Error::invalid(format!(
                "byte size overflow for input '{}': element count ({}) * data type size ({N}) exceeds maximum allowed \
                 size ({})",
                self.name,
                self.count,
                i64::MAX
            ))
        })?;
        self.check_size(bytes)?;
        // The shape may promise more than there is.
        let mut bytes = Vec::with_capacity(self.count.min(self.data.size()) * N);
        for value in self.values() {
            if bytes.len() == self.count * N {
                return Err(Error::internal(WRONG_COUNT));
            }
            bytes.extend_from_slice(&value.and_then(&convert).map_err(Self::in_data)?);
        }
        if bytes.len() != self.count * N { Err(Error::internal(WRONG_COUNT)) } else { Ok(bytes) }
    }

    /// Strings are counted by the model.
    fn read_strings(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        for value in self.values() {
            let string = value?.bytes().map_err(|error| Error {
                message: format!("Unable to parse JSON bytes array: {}", error.message),
                ..error
            })?;
            self.check_size(bytes.len() + wire::LENGTH_BYTES + string.len())?;
            wire::push_string(&mut bytes, string)
                .ok_or_else(|| Error::invalid(format!("a string of input '{}' has 4 GiB or more", self.name)))?;
        }
        Ok(bytes)
    }
}

/// Prints an output as one flat array.
pub(in super::super) fn to_json(writer: &mut Writer, output: &OutputTensor) -> Result<(), Error> {
    let count = output.shape.iter().try_fold(1i64, |count, dim| count.checked_mul(*dim));
    let wrong_size =
        || Error::internal(format!("output tensor shape does not match size of output for '{}'", output.name));
    let count = count.and_then(|count| usize::try_from(count).ok()).ok_or_else(wrong_size)?;
    let bytes = &*output.data;
    if !matches!(output.dtype, DType::String) && bytes.len() != count.saturating_mul(output.dtype.size()) {
        return Err(wrong_size());
    }

    macro_rules! elements {
        ($type:ty, |$value:ident| $print:expr) => {{
            let (chunks, _) = bytes.as_chunks::<{ size_of::<$type>() }>();
            for chunk in chunks {
                let $value = <$type>::from_le_bytes(*chunk);
                $print;
            }
        }};
    }
    writer.begin_array();
    match output.dtype {
        DType::Bool => bytes.iter().for_each(|byte| writer.boolean(*byte != 0)),
        DType::U8 => elements!(u8, |value| writer.unsigned(value.into())),
        DType::U16 => elements!(u16, |value| writer.unsigned(value.into())),
        DType::U32 => elements!(u32, |value| writer.unsigned(value.into())),
        DType::U64 => elements!(u64, |value| writer.unsigned(value)),
        DType::I8 => elements!(i8, |value| writer.signed(value.into())),
        DType::I16 => elements!(i16, |value| writer.signed(value.into())),
        DType::I32 => elements!(i32, |value| writer.signed(value.into())),
        DType::I64 => elements!(i64, |value| writer.signed(value)),
        DType::F32 => elements!(f32, |value| writer.double(value.into())),
        DType::F64 => elements!(f64, |value| writer.double(value)),
        DType::String => {
            let mut strings = wire::strings(bytes);
            for _ in 0..count {
                writer.string(strings.next().and_then(Result::ok).ok_or_else(wrong_size)?);
            }
        }
        other => {
            return Err(Error::invalid(format!(
                "sending {} data via JSON is not supported. Please use the binary data format for output",
                wire::datatype_name(other)
            )));
        }
    }
    writer.end_array();
    Ok(())
}
