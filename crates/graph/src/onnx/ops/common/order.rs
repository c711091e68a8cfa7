use crate::OpError;
use halimede_tensor::{DType, Tensor};
use std::cmp::Ordering;

/// How two elements of a tensor, by flat index, compare: numbers by value with NaN last, strings by
/// their bytes.
pub fn element_order(tensor: &Tensor) -> Result<Box<dyn Fn(usize, usize) -> Ordering + '_>, OpError> {
    match tensor.dtype() {
        DType::String => {
            let strings = tensor.strings()?;
            Ok(Box::new(move |a, b| strings[a].cmp(&strings[b])))
        }
        DType::U64 => {
            let numbers = tensor.slice::<u64>()?;
            Ok(Box::new(move |a, b| numbers[a].cmp(&numbers[b])))
        }
        dtype if dtype.is_float() => {
            let numbers = tensor.to_f64s()?;
            let order = |a: f64, b: f64| a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
            Ok(Box::new(move |a, b| order(numbers[a], numbers[b])))
        }
        _ => {
            let numbers = tensor.to_i64s()?;
            Ok(Box::new(move |a, b| numbers[a].cmp(&numbers[b])))
        }
    }
}
