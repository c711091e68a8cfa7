//! Stored tensors: typed fields, raw bytes, external files, packed and sparse forms.

use super::file::External;
use crate::onnx::proto::{SparseTensorProto, TensorProto, tensor_proto::DataLocation};
use bytes::Bytes;
use halimede_tensor::{Buffer, DType, Tensor, element_count};

/// Rank that no real tensor has; a shape this long is an attack on whoever multiplies it out.
const MAX_RANK: usize = 64;

/// The datatype of ONNX's number for it (`TensorProto.DataType`).
pub fn dtype_from_code(code: i64) -> Option<DType> {
    Some(match code {
        1 => DType::F32,
        2 => DType::U8,
        3 => DType::I8,
        4 => DType::U16,
        5 => DType::I16,
        6 => DType::I32,
        7 => DType::I64,
        8 => DType::String,
        9 => DType::Bool,
        10 => DType::F16,
        11 => DType::F64,
        12 => DType::U32,
        13 => DType::U64,
        14 => DType::Complex64,
        15 => DType::Complex128,
        16 => DType::Bf16,
        17 => DType::F8E4M3Fn,
        18 => DType::F8E4M3FnUz,
        19 => DType::F8E5M2,
        20 => DType::F8E5M2FnUz,
        21 => DType::U4,
        22 => DType::I4,
        23 => DType::F4E2M1,
        24 => DType::F8E8M0,
        25 => DType::U2,
        26 => DType::I2,
        _ => return None,
    })
}

/// Sizes as the model writes them, checked.
pub(super) fn shape(dims: &[i64]) -> Result<Vec<usize>, String> {
    if dims.len() > MAX_RANK {
        return Err(format!("{} dimensions; at most {MAX_RANK} are read", dims.len()));
    }
    dims.iter()
        .map(|&dim| usize::try_from(dim).map_err(|_| format!("shape {dims:?} has a negative dimension")))
        .collect()
}

/// The tensor that a message holds.
pub(super) fn read(proto: &TensorProto, external: &mut External) -> Result<Tensor, String> {
    let code = proto.data_type();
    let dtype =
        dtype_from_code(code.into()).ok_or_else(|| format!("datatype {code} is not one of ONNX's (1 to 26)"))?;
    if proto.segment.is_some() {
        return Err("split into segments, which no ONNX tool writes".to_owned());
    }
    let shape = shape(&proto.dims)?;
    let count = element_count(&shape).map_err(|error| error.to_string())?;
    if dtype == DType::String {
        return strings(proto, &shape, count);
    }
    if proto.data_location() == DataLocation::External {
        let bytes = external_bytes(proto, external)?;
        return from_raw(dtype, &shape, count, bytes);
    }
    match &proto.raw_data {
        Some(raw) => from_raw(dtype, &shape, count, raw.clone()),
        None => from_fields(proto, dtype, &shape, count),
    }
}

fn strings(proto: &TensorProto, shape: &[usize], count: usize) -> Result<Tensor, String> {
    if proto.string_data.len() != count {
        return Err(format!("shape {shape:?} needs {count} strings, the model holds {}", proto.string_data.len()));
    }
    let strings = proto.string_data.iter().map(|string| string.to_vec()).collect();
    Tensor::from_strings(shape, strings).map_err(|error| error.to_string())
}

pub(super) fn external_bytes(proto: &TensorProto, external: &mut External) -> Result<Bytes, String> {
    let value = |key: &str| proto.external_data.iter().find(|entry| entry.key() == key).map(|entry| entry.value());
    let number = |key: &str| {
        value(key)
            .map(|text| text.trim().parse::<u64>().map_err(|_| format!("external data has the {key} '{text}'")))
            .transpose()
    };
    let location = value("location").ok_or("external data without a location")?;
    external.read(location, number("offset")?.unwrap_or(0), number("length")?)
}

/// A tensor over little-endian bytes, which are shared where they lie as they are needed.
fn from_raw(dtype: DType, shape: &[usize], count: usize, bytes: Bytes) -> Result<Tensor, String> {
    let expected = count.checked_mul(dtype.bits()).ok_or("too large")?.div_ceil(8);
    if bytes.len() != expected {
        return Err(format!("{dtype} of shape {shape:?} needs {expected} bytes, the model holds {}", bytes.len()));
    }
    let buffer = match dtype.bits() {
        8.. => Buffer::foreign(bytes),
        bits => Buffer::copied(&unpack(&bytes, bits, dtype.is_signed_integer(), count)).map_err(|e| e.to_string())?,
    };
    Tensor::from_buffer(dtype, shape, buffer).map_err(|error| error.to_string())
}

/// Elements of 4 or 2 bits, the first in the lowest bits, one to a byte.
fn unpack(bytes: &[u8], bits: usize, signed: bool, count: usize) -> Vec<u8> {
    let per_byte = 8 / bits;
    (0..count)
        .map(|index| {
            let element = bytes[index / per_byte] >> (index % per_byte * bits) & ((1 << bits) - 1);
            // Shifted up and down again, the sign bit fills the byte.
            if signed { ((element << (8 - bits)) as i8 >> (8 - bits)) as u8 } else { element }
        })
        .collect()
}

fn from_fields(proto: &TensorProto, dtype: DType, shape: &[usize], count: usize) -> Result<Tensor, String> {
    fn bytes<S: Copy, const N: usize>(source: &[S], to_bytes: impl Fn(S) -> [u8; N]) -> Vec<u8> {
        source.iter().flat_map(|&element| to_bytes(element)).collect()
    }
    let ints = &proto.int32_data;
    let raw: Vec<u8> = match dtype {
        DType::F32 | DType::Complex64 => bytes(&proto.float_data, f32::to_le_bytes),
        DType::F64 | DType::Complex128 => bytes(&proto.double_data, f64::to_le_bytes),
        DType::I64 => bytes(&proto.int64_data, i64::to_le_bytes),
        DType::U64 => bytes(&proto.uint64_data, u64::to_le_bytes),
        DType::U32 => bytes(&proto.uint64_data, |v| (v as u32).to_le_bytes()),
        DType::I32 => bytes(ints, i32::to_le_bytes),
        DType::U16 | DType::I16 | DType::F16 | DType::Bf16 => bytes(ints, |v| (v as u16).to_le_bytes()),
        _ => bytes(ints, |v| [v as u8]),
    };
    // A field of packed elements holds one byte per entry, whole ones otherwise: `from_raw` checks both. What it makes
    // lies in memory of its own: nothing has to be copied once more to outlive the file.
    from_raw(dtype, shape, count, raw.into())?.owned().map_err(|error| error.to_string())
}

/// A sparse tensor written out; its elements besides the stored ones are zero.
pub(super) fn read_sparse(proto: &SparseTensorProto, external: &mut External) -> Result<Tensor, String> {
    let values = read(proto.values.as_ref().ok_or("a sparse tensor without values")?, external)?;
    let indices = read(proto.indices.as_ref().ok_or("a sparse tensor without indices")?, external)?;
    let shape = shape(&proto.dims)?;
    let indices_error = || format!("indices of {} {:?} for {} values", indices.dtype(), indices.shape(), values.len());
    let positions = indices.slice::<i64>().map_err(|_| indices_error())?;
    let width = match *indices.shape() {
        [count] if count == values.len() => 1,
        [count, rank] if count == values.len() && rank == shape.len() => rank,
        _ => return Err(indices_error()),
    };
    if values.dtype() == DType::String {
        return Err("a sparse tensor of strings".to_owned());
    }
    // The stored form may be tiny and the written-out one enormous.
    const MAX_BYTES: usize = 1 << 31;
    let count = element_count(&shape).map_err(|error| error.to_string())?;
    let size = values.dtype().size();
    if count.saturating_mul(size) > MAX_BYTES {
        return Err(format!("a sparse tensor of shape {shape:?} is over 2 GiB when written out"));
    }
    let mut dense = Tensor::zeros(values.dtype(), &shape).map_err(|error| error.to_string())?;
    let strides = halimede_tensor::strides(&shape);
    let (source, target) = (values.bytes().map_err(|e| e.to_string())?, dense.bytes_mut().map_err(|e| e.to_string())?);
    for (index, element) in source.chunks_exact(size).enumerate() {
        let outside = || format!("index {index} lies outside shape {shape:?}");
        let flat = if indices.rank() == 1 {
            usize::try_from(positions[index]).ok().filter(|&flat| flat < count).ok_or_else(outside)?
        } else {
            let mut flat = 0;
            for (axis, &position) in positions[index * width..][..width].iter().enumerate() {
                let position = usize::try_from(position).ok().filter(|&p| p < shape[axis]).ok_or_else(outside)?;
                flat += position * strides[axis];
            }
            flat
        };
        target[flat * size..][..size].copy_from_slice(element);
    }
    Ok(dense)
}
