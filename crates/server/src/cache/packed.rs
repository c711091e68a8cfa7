//! Outputs as bytes, for caches outside this process.

use halimede_serving::{Error, OutputTensor, wire};
use halimede_tensor::Buffer;

/// The first byte; another means another form.
const FORM: u8 = 1;

/// The form in front, then of each output its name, datatype, shape and elements, each with its length in front.
pub(super) fn pack(outputs: &[OutputTensor]) -> Vec<u8> {
    let mut bytes = vec![FORM];
    let mut part = |content: &[u8]| {
        bytes.extend_from_slice(&(content.len() as u64).to_le_bytes());
        bytes.extend_from_slice(content);
    };
    for output in outputs {
        part(output.name.as_bytes());
        part(wire::datatype_name(output.dtype).as_bytes());
        let shape: Vec<u8> = output.shape.iter().flat_map(|dim| dim.to_le_bytes()).collect();
        part(&shape);
        part(&output.data);
    }
    bytes
}

/// The outputs of [`pack`]. They share `bytes`.
///
/// # Errors
/// The bytes are something else.
pub(super) fn unpack(bytes: Vec<u8>) -> Result<Vec<OutputTensor>, Error> {
    let all = Buffer::foreign(bytes);
    read(&all).ok_or_else(|| Error::internal("what the cache holds is no response"))
}

fn read(all: &Buffer) -> Option<Vec<OutputTensor>> {
    let mut at = 1usize;
    let mut part = || {
        let length = all.get(at..at.checked_add(8)?)?;
        let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
        let part = all.part(at + 8, length)?;
        at += 8 + length;
        Some((part, at))
    };
    let text = |part: Buffer| String::from_utf8(part.to_vec()).ok();
    let mut outputs = Vec::new();
    let mut end = 1usize;
    all.first().filter(|form| **form == FORM)?;
    while end < all.len() {
        let name = text(part()?.0)?;
        let dtype = wire::datatype(&text(part()?.0)?)?;
        let shape = part()?.0;
        let dims = shape.chunks(8).map(|dim| dim.try_into().ok().map(i64::from_le_bytes)).collect::<Option<_>>()?;
        let data;
        (data, end) = part()?;
        outputs.push(OutputTensor { name, dtype, shape: dims, data });
    }
    Some(outputs)
}

#[cfg(test)]
mod tests {
    use halimede_tensor::DType;
    use proptest::prelude::*;

    use super::*;

    fn outputs() -> impl Strategy<Value = Vec<OutputTensor>> {
        let dtype = prop::sample::select(vec![DType::F32, DType::I8, DType::String, DType::Bf16, DType::Bool]);
        let shape = prop::collection::vec(any::<i64>(), 0..4);
        let data = prop::collection::vec(any::<u8>(), 0..50);
        let output = (".{0,8}", dtype, shape, data).prop_map(|(name, dtype, shape, data)| OutputTensor {
            name,
            dtype,
            shape,
            data: Buffer::foreign(data),
        });
        prop::collection::vec(output, 0..4)
    }

    fn same(a: &[OutputTensor], b: &[OutputTensor]) -> bool {
        let same = |a: &OutputTensor, b: &OutputTensor| {
            (&a.name, a.dtype, &a.shape, &a.data[..]) == (&b.name, b.dtype, &b.shape, &b.data[..])
        };
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
    }

    proptest! {
        #[test]
        fn outputs_come_back(outputs in outputs()) {
            prop_assert!(same(&unpack(pack(&outputs)).unwrap(), &outputs));
        }

        #[test]
        fn what_is_cut_off_is_refused(outputs in outputs(), cut in 1usize..40) {
            let bytes = pack(&outputs);
            prop_assume!(cut < bytes.len());
            let whole = bytes.len() - cut;
            if let Ok(read) = unpack(bytes[..whole].to_vec()) {
                prop_assert!(read.len() < outputs.len(), "a part of an output was taken for a whole one");
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = unpack([&[FORM][..], &bytes].concat());
            let _ = unpack(bytes);
        }
    }
}
