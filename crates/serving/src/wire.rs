//! Tensors as the protocols carry them: raw little-endian elements; strings as a 4-byte little-endian
//! length followed by the bytes.

use halimede_tensor::DType;

use crate::config::DataType;

/// The name that the protocols give a datatype, such as `FP32` or `BYTES`; `<invalid>` for one they
/// do not have.
pub fn datatype_name(dtype: DType) -> &'static str {
    DataType::from_dtype(dtype).wire_name()
}

/// The datatype that the protocols call `name`.
pub fn datatype(name: &str) -> Option<DType> {
    DataType::from_wire_name(name)?.to_dtype()
}

/// Bytes in front of each string.
pub const LENGTH_BYTES: usize = 4;

/// Appends one string in wire form. `None` where its length does not fit 32 bits; nothing is written.
pub fn push_string(wire: &mut Vec<u8>, string: &[u8]) -> Option<()> {
    let length = u32::try_from(string.len()).ok()?;
    wire.extend_from_slice(&length.to_le_bytes());
    wire.extend_from_slice(string);
    Some(())
}

/// Whether these are the bytes of a tensor of this datatype and shape.
pub fn fits(dtype: DType, shape: &[i64], wire: &[u8]) -> bool {
    let count = shape.iter().try_fold(1usize, |count, &dim| count.checked_mul(usize::try_from(dim).ok()?));
    let Some(count) = count else { return false };
    if dtype != DType::String {
        return count.checked_mul(dtype.size()) == Some(wire.len());
    }
    let mut strings = strings(wire);
    strings.by_ref().take(count).filter(Result::is_ok).count() == count && strings.next().is_none()
}

/// The strings of a tensor in wire form, in order.
///
/// A string whose length indicator or bytes are cut off yields [`Truncated`] and ends the iteration.
pub fn strings(wire: &[u8]) -> Strings<'_> {
    Strings { rest: wire }
}

/// What [`strings`] finds where the bytes end inside a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncated {
    /// Bytes that were left where a length indicator or a string should be.
    pub available: usize,
    /// The length of the string that is cut off; `None` where its length indicator is.
    pub length: Option<usize>,
}

/// Iterator over strings in wire form; see [`strings`].
#[derive(Debug, Clone)]
pub struct Strings<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Strings<'a> {
    type Item = Result<&'a [u8], Truncated>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.rest);
        let Some((length, rest)) = rest.split_first_chunk::<LENGTH_BYTES>() else {
            return Some(Err(Truncated { available: rest.len(), length: None }));
        };
        let length = u32::from_le_bytes(*length) as usize;
        let Some((string, rest)) = rest.split_at_checked(length) else {
            return Some(Err(Truncated { available: rest.len(), length: Some(length) }));
        };
        self.rest = rest;
        Some(Ok(string))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_protocols() {
        for (dtype, name) in [(DType::F32, "FP32"), (DType::String, "BYTES"), (DType::Bf16, "BF16")] {
            assert_eq!((datatype(name), datatype_name(dtype)), (Some(dtype), name));
        }
        assert_eq!(datatype_name(DType::Complex64), "<invalid>");
        assert_eq!(datatype("STRING"), None);
    }

    #[test]
    fn strings_are_read_back_and_cuts_are_seen() {
        let mut wire = Vec::new();
        for string in [&b"a"[..], b"", b"\0\xff"] {
            push_string(&mut wire, string).unwrap();
        }
        let all: Result<Vec<_>, _> = strings(&wire).collect();
        assert_eq!(all.unwrap(), [&b"a"[..], b"", b"\0\xff"]);
        assert_eq!(strings(&wire[..wire.len() - 1]).last(), Some(Err(Truncated { available: 1, length: Some(2) })));
        assert_eq!(strings(&wire[..3]).last(), Some(Err(Truncated { available: 3, length: None })));
        assert_eq!(strings(&[]).next(), None);
    }
}
