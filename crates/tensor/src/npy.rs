//! NumPy's files: `.npy` with one array, `.npz` with several.

use std::{
    collections::BTreeMap,
    fs,
    io::{Cursor, Read},
    path::{Path, PathBuf},
};

use crate::{Buffer, DType, Tensor};
use flate2::read::DeflateDecoder;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Codes of NumPy for the datatypes that both know.
const CODES: [(&str, DType); 12] = [
    ("b1", DType::Bool),
    ("u1", DType::U8),
    ("i1", DType::I8),
    ("u2", DType::U16),
    ("i2", DType::I16),
    ("u4", DType::U32),
    ("i4", DType::I32),
    ("u8", DType::U64),
    ("i8", DType::I64),
    ("f2", DType::F16),
    ("f4", DType::F32),
    ("f8", DType::F64),
];

/// Reads the array of an `.npy` file.
pub fn read(bytes: &[u8]) -> Result<Tensor, String> {
    let cut = || "the file ends early".to_owned();
    let rest = bytes.strip_prefix(MAGIC).ok_or("not an .npy file")?;
    let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(cut)?;
    let (len, rest) = if version[0] == 1 {
        let (len, rest) = rest.split_first_chunk::<2>().ok_or_else(cut)?;
        (usize::from(u16::from_le_bytes(*len)), rest)
    } else {
        let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        (u32::from_le_bytes(*len) as usize, rest)
    };
    let (header, data) = rest.split_at_checked(len).ok_or_else(cut)?;
    let header = std::str::from_utf8(header).map_err(|_| "the header is no text")?;
    if entry(header, "fortran_order")?.starts_with("True") {
        return Err("arrays in Fortran order are not read: save numpy.ascontiguousarray(a)".to_owned());
    }
    let shape = shape(entry(header, "shape")?)?;
    let code = entry(header, "descr")?.split(['\'', '"']).nth(1).unwrap_or_default();
    let count = shape.iter().try_fold(1usize, |count, dim| count.checked_mul(*dim)).ok_or("the shape is too large")?;
    if let Some(width) = code.strip_prefix("|S") {
        let width: usize = width.parse().map_err(|_| format!("datatype {code}"))?;
        if Some(data.len()) != count.checked_mul(width) {
            return Err(format!("{} bytes of data do not fit the shape {shape:?}", data.len()));
        }
        let strings = (0..count).map(|index| {
            let string = &data[index * width..(index + 1) * width];
            let end = string.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            string[..end].to_vec()
        });
        return Tensor::from_strings(&shape, strings.collect()).map_err(|error| error.to_string());
    }
    let dtype = code
        .strip_prefix(['<', '|', '='])
        .and_then(|code| CODES.iter().find(|row| row.0 == code))
        .ok_or_else(|| format!("datatype '{code}' is not read; there are booleans, numbers in little endian and |S"))?
        .1;
    if Some(data.len()) != count.checked_mul(dtype.size()) {
        return Err(format!("{} bytes of data do not fit the shape {shape:?}", data.len()));
    }
    let buffer = Buffer::copied(data).map_err(|error| error.to_string())?;
    Tensor::from_buffer(dtype, &shape, buffer).map_err(|error| error.to_string())
}

/// What follows a key of the header, which is a Python dictionary.
fn entry<'h>(header: &'h str, key: &str) -> Result<&'h str, String> {
    let missing = || format!("the header has no '{key}'");
    let start = header.find(&format!("'{key}'")).ok_or_else(missing)?;
    let rest = &header[start + key.len() + 2..];
    rest.split_once(':').map(|(_, value)| value.trim_start()).ok_or_else(missing)
}

fn shape(text: &str) -> Result<Vec<usize>, String> {
    let inside = text.strip_prefix('(').and_then(|text| text.split_once(')')).ok_or("the shape is no tuple")?.0;
    let dims = inside.split(',').map(str::trim).filter(|dim| !dim.is_empty());
    dims.map(|dim| dim.parse().map_err(|_| format!("dimension '{dim}'"))).collect()
}

/// The `.npy` file of a tensor.
pub fn write(tensor: &Tensor) -> Result<Vec<u8>, String> {
    let (code, data) = if tensor.dtype() == DType::String {
        let strings = tensor.strings().map_err(|error| error.to_string())?;
        let width = strings.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let mut data = Vec::with_capacity(width * strings.len());
        for string in strings {
            data.extend_from_slice(string);
            data.resize(data.len() + width - string.len(), 0);
        }
        (format!("|S{width}"), data)
    } else {
        let row = CODES.iter().find(|row| row.1 == tensor.dtype());
        let code = row.ok_or_else(|| format!("NumPy has no datatype for {}", tensor.dtype()))?.0;
        let order = if tensor.dtype().size() == 1 { '|' } else { '<' };
        (format!("{order}{code}"), tensor.bytes().map_err(|error| error.to_string())?.to_vec())
    };
    let dims: String = tensor.shape().iter().map(|dim| format!("{dim}, ")).collect();
    let mut header = format!("{{'descr': '{code}', 'fortran_order': False, 'shape': ({}), }}", dims.trim_end());
    // Magic, version, length and header together are a multiple of 64 bytes, the last one a new line.
    let fixed = MAGIC.len() + 4;
    header.extend(std::iter::repeat_n(' ', 63 - (fixed + header.len()) % 64));
    header.push('\n');
    let len = u16::try_from(header.len()).map_err(|_| "the shape is too long for the header")?;
    let mut file = MAGIC.to_vec();
    file.extend_from_slice(&[1, 0]);
    file.extend_from_slice(&len.to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&data);
    Ok(file)
}

/// Reads the arrays of an `.npz` file by name.
pub fn read_all(bytes: &[u8]) -> Result<BTreeMap<String, Tensor>, String> {
    let mut arrays = BTreeMap::new();
    for (name, file) in unzip(bytes)? {
        let name = name.strip_suffix(".npy").unwrap_or(&name).to_owned();
        let array = read(&file).map_err(|error| format!("array '{name}': {error}"))?;
        arrays.insert(name, array);
    }
    Ok(arrays)
}

/// The `.npz` files of a folder in the order of their names.
///
/// # Errors
/// The folder cannot be read, or has none.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| error.to_string())?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "npz"));
    files.sort();
    if files.is_empty() {
        Err("no .npz file, each with one array per input of the model".to_owned())
    } else {
        Ok(files)
    }
}

/// The files of a ZIP archive as NumPy writes it: stored or deflated.
fn unzip(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>, String> {
    let wrong = || "not an .npz file".to_owned();
    let u16_at = |at: usize| Some(usize::from(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?)));
    let u32_at = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?) as usize);
    let end = bytes.windows(4).rposition(|window| window == b"PK\x05\x06").ok_or_else(wrong)?;
    let count = u16_at(end + 10).ok_or_else(wrong)?;
    let mut entry = u32_at(end + 16).ok_or_else(wrong)?;
    let mut files = Vec::new();
    for _ in 0..count {
        if bytes.get(entry..entry.saturating_add(4)) != Some(b"PK\x01\x02") {
            return Err(wrong());
        }
        let field16 = |offset| u16_at(entry + offset).ok_or_else(wrong);
        let field32 = |offset| u32_at(entry + offset).ok_or_else(wrong);
        let (method, packed, size) = (field16(10)?, field32(20)?, field32(24)?);
        let (name_len, extra_len, comment_len) = (field16(28)?, field16(30)?, field16(32)?);
        let local = field32(42)?;
        let name = bytes.get(entry + 46..entry + 46 + name_len).ok_or_else(wrong)?;
        let name = String::from_utf8_lossy(name).into_owned();
        // The data follows a second header with lengths of its own.
        let header = 30 + u16_at(local + 26).ok_or_else(wrong)? + u16_at(local + 28).ok_or_else(wrong)?;
        let data = bytes.get(local + header..local + header + packed);
        let data = data.ok_or_else(|| format!("'{name}' is larger than archives of 4 GiB allow, or cut off"))?;
        files.push((name, inflate(method, data, size)?));
        entry += 46 + name_len + extra_len + comment_len;
    }
    Ok(files)
}

fn inflate(method: usize, data: &[u8], size: usize) -> Result<Vec<u8>, String> {
    match method {
        0 => Ok(data.to_vec()),
        8 => {
            let mut file = Vec::new();
            let mut decoder = DeflateDecoder::new(Cursor::new(data)).take(size as u64);
            decoder.read_to_end(&mut file).map_err(|error| format!("the archive is broken: {error}"))?;
            Ok(file)
        }
        other => Err(format!("compression method {other} is not read")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_read_back() {
        for tensor in [
            Tensor::from_slice::<f32>(&[2, 2], &[1.0, -2.0, 0.5, f32::NAN]).unwrap(),
            Tensor::from_slice::<i64>(&[], &[7]).unwrap(),
            Tensor::from_slice::<u8>(&[3], &[1, 2, 3]).unwrap(),
            Tensor::from_strings(&[2], vec![b"abc".to_vec(), b"".to_vec()]).unwrap(),
        ] {
            let file = write(&tensor).unwrap();
            let again = read(&file).unwrap();
            assert_eq!((again.dtype(), again.shape()), (tensor.dtype(), tensor.shape()));
            match tensor.dtype() {
                DType::String => assert_eq!(again.strings().unwrap(), tensor.strings().unwrap()),
                _ => assert_eq!(again.bytes().unwrap(), tensor.bytes().unwrap()),
            }
            for len in 0..file.len() {
                assert!(read(&file[..len]).is_err());
            }
        }
        assert!(read_all(b"PK").is_err());
    }
}
