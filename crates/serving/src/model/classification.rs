//! The classification extension: the largest values of an output as text.

use std::cmp::Ordering;

use halimede_tensor::{Buffer, DType};

use super::signature::OutputSpec;
use crate::{error::Error, response::OutputTensor, wire};

/// Larger outputs are not sorted for a client.
const ELEMENTS_MAX: usize = 1_000_000;

/// Replaces an output by its `count` largest values per batch element, each as `value:index[:label]`.
pub(crate) fn classify(
    output: OutputTensor,
    spec: &OutputSpec,
    count: u32,
    is_batched: bool,
) -> Result<OutputTensor, Error> {
    let batch_size = output.shape.first().filter(|_| is_batched).copied();
    let dims = &output.shape[usize::from(batch_size.is_some())..];
    let row_len: usize = dims.iter().map(|dim| usize::try_from(*dim).unwrap_or(0)).product();
    if row_len > ELEMENTS_MAX {
        return Err(Error::invalid("classification output tensor too large"));
    }
    let rows = usize::try_from(batch_size.unwrap_or(1)).unwrap_or(0).max(1);
    let classes = row_len.min(count as usize);
    let row_bytes = row_len * output.dtype.size();
    let mut data = Vec::new();
    for row in 0..rows {
        let bytes = output.data.get(row * row_bytes..(row + 1) * row_bytes).unwrap_or_default();
        for (value, index) in top(output.dtype, bytes, classes)? {
            let label = spec.labels.get(index).filter(|label| !label.is_empty());
            let mut text = format!("{value}:{index}").into_bytes();
            if let Some(label) = label {
                text.push(b':');
                text.extend(label);
            }
            wire::push_string(&mut data, &text)
                .ok_or_else(|| Error::internal("a label is longer than a string can be"))?;
        }
    }
    let shape = batch_size.filter(|size| *size > 0).into_iter().chain([classes as i64]).collect();
    Ok(OutputTensor { dtype: DType::String, shape, data: Buffer::foreign(data), ..output })
}

/// The `count` largest elements as text, with their indices; equal ones in order of index.
fn top(dtype: DType, bytes: &[u8], count: usize) -> Result<Vec<(String, usize)>, Error> {
    macro_rules! top {
        ($type:ty, $compare:expr) => {{
            let (chunks, _) = bytes.as_chunks::<{ size_of::<$type>() }>();
            let values: Vec<$type> = chunks.iter().map(|chunk| <$type>::from_le_bytes(*chunk)).collect();
            let mut order: Vec<usize> = (0..values.len()).collect();
            let compare: fn(&$type, &$type) -> Ordering = $compare;
            order.sort_by(|&a, &b| compare(&values[b], &values[a]));
            order.into_iter().take(count).map(|index| (text(&values[index]), index)).collect()
        }};
    }
    /// C++'s `std::to_string`: integers plainly, floats with six decimals.
    fn text(value: &impl Text) -> String {
        value.text()
    }
    Ok(match dtype {
        DType::U8 => top!(u8, Ord::cmp),
        DType::U16 => top!(u16, Ord::cmp),
        DType::U32 => top!(u32, Ord::cmp),
        DType::U64 => top!(u64, Ord::cmp),
        DType::I8 => top!(i8, Ord::cmp),
        DType::I16 => top!(i16, Ord::cmp),
        DType::I32 => top!(i32, Ord::cmp),
        DType::I64 => top!(i64, Ord::cmp),
        DType::F32 => top!(f32, f32::total_cmp),
        DType::F64 => top!(f64, f64::total_cmp),
        other => {
            let name = wire::datatype_name(other);
            let text = format!("class result not available for output due to unsupported type '{name}'");
            return Err(Error::invalid(text));
        }
    })
}

trait Text {
    fn text(&self) -> String;
}

macro_rules! integers {
    ($($type:ty)*) => { $(impl Text for $type {
        fn text(&self) -> String {
            self.to_string()
        }
    })* };
}

macro_rules! floats {
    ($($type:ty)*) => { $(impl Text for $type {
        fn text(&self) -> String {
            match self.is_finite() {
                true => format!("{self:.6}"),
                false => match (self.is_nan(), self.is_sign_negative()) {
                    (true, false) => "nan".to_owned(),
                    (true, true) => "-nan".to_owned(),
                    (false, false) => "inf".to_owned(),
                    (false, true) => "-inf".to_owned(),
                },
            }
        }
    })* };
}

integers!(u8 u16 u32 u64 i8 i16 i32 i64);
floats!(f32 f64);

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(labels: &[&str]) -> OutputSpec {
        let labels = labels.iter().map(|label| label.as_bytes().to_vec()).collect();
        OutputSpec { name: "p".into(), dtype: DType::F32, dims: vec![3], reshape: None, labels }
    }

    fn output(shape: &[i64], values: &[f32]) -> OutputTensor {
        let data = Buffer::copied(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>()).unwrap();
        OutputTensor { name: "p".into(), dtype: DType::F32, shape: shape.to_vec(), data }
    }

    fn texts(output: &OutputTensor) -> Vec<String> {
        wire::strings(&output.data).map(|s| String::from_utf8(s.unwrap().to_vec()).unwrap()).collect()
    }

    #[test]
    fn largest_values_first_with_labels() {
        let values = [0.5, 2.0, -1.0, 7.0, 7.0, 1.5];
        let result = classify(output(&[2, 3], &values), &spec(&["a", "b"]), 2, true).unwrap();
        assert_eq!((result.dtype, &result.shape[..]), (DType::String, &[2, 2][..]));
        assert_eq!(texts(&result), ["2.000000:1:b", "0.500000:0:a", "7.000000:0:a", "7.000000:1:b"]);
    }

    #[test]
    fn more_classes_than_values_are_cut_and_strange_values_kept() {
        let result = classify(output(&[3], &[f32::INFINITY, 1.0, f32::NEG_INFINITY]), &spec(&[]), 9, false).unwrap();
        assert_eq!(
            (texts(&result), &result.shape[..]),
            (vec!["inf:0".into(), "1.000000:1".into(), "-inf:2".into()], &[3][..])
        );
        let strings = OutputTensor { dtype: DType::String, ..output(&[1], &[0.0]) };
        assert!(classify(strings, &spec(&[]), 1, false).unwrap_err().message.contains("unsupported type 'BYTES'"));
    }
}
