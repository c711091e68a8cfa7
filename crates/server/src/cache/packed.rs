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
        let dims =
            shape.chunks(8).map(|dim| dim.try_into().ok().map(i64::from_le_bytes)).collect::<Option<Vec<_>>>()?;
        let data;
        (data, end) = part()?;
        if !wire::fits(dtype, &dims, &data) {
            return None;
        }
        outputs.push(OutputTensor { name, dtype, shape: dims, data });
    }
    // A response has outputs.
    (!outputs.is_empty()).then_some(outputs)
}

#[cfg(test)]
mod tests {
    use halimede_tensor::DType;
    use proptest::prelude::*;

    use super::*;

    fn outputs() -> impl Strategy<Value = Vec<OutputTensor>> {
        let dtype = prop::sample::select(vec![DType::F32, DType::I8, DType::Bf16, DType::Bool]);
        let whole = (".{0,8}", dtype, prop::collection::vec(0i64..4, 0..4)).prop_map(|(name, dtype, shape)| {
            let bytes = shape.iter().product::<i64>() as usize * dtype.size();
            OutputTensor {
                name,
                dtype,
                shape,
                data: Buffer::foreign((0..bytes).map(|at| at as u8).collect::<Vec<_>>()),
            }
        });
        let strings = (".{0,8}", prop::collection::vec(".{0,8}", 0..4)).prop_map(|(name, strings)| {
            let wire = |text: &String| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
            let data: Vec<u8> = strings.iter().flat_map(wire).collect();
            OutputTensor { name, dtype: DType::String, shape: vec![strings.len() as i64], data: Buffer::foreign(data) }
        });
        let output = prop_oneof![whole, strings];
        prop::collection::vec(output, 1..4)
    }

    fn same(a: &[OutputTensor], b: &[OutputTensor]) -> bool {
        let same = |a: &OutputTensor, b: &OutputTensor| {
            (&a.name, a.dtype, &a.shape, &a.data[..]) == (&b.name, b.dtype, &b.shape, &b.data[..])
        };
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
    }

    #[test]
    fn what_is_no_tensor_is_refused() {
        let output = |dtype, shape: &[i64], data: &[u8]| {
            let data = Buffer::foreign(data.to_vec());
            OutputTensor { name: "y".to_owned(), dtype, shape: shape.to_vec(), data }
        };
        let is_read = |outputs: &[OutputTensor]| unpack(pack(outputs)).is_ok();
        assert!(is_read(&[output(DType::F32, &[1], &[0; 4])]) && is_read(&[output(DType::String, &[1], &[0; 4])]));
        assert!(!is_read(&[]));
        assert!(!is_read(&[output(DType::F32, &[1_000_000_000], &[0; 4])]));
        assert!(!is_read(&[output(DType::F32, &[-1, -1], &[0; 4])]));
        assert!(!is_read(&[output(DType::F32, &[i64::MAX, i64::MAX], &[0; 4])]));
        assert!(!is_read(&[output(DType::String, &[2], &[0; 4])]));
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
