use crate::OpError;
use crate::eight_bits::{column_scales, in_steps};
use halimede_tensor::{DType, Tensor};
use std::borrow::Cow;

/// What the factors of a sum of products ([`super::Contract`], [`super::Conv`]) are, where they are not
/// multiplied as they stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Factors {
    /// bf16: factors in f32 are rounded to it, sums and result are f32.
    Bf16,
    /// f16, IEEE 754's binary16: factors in f32 are rounded to it, sums and result are f32. What is 65520 or more
    /// becomes infinite, as a conversion makes it.
    F16,
    /// Integers of 8 bits. The left factors (data: U8 or I8) are read less their zero point, one number of
    /// their datatype that is an input of its own, or nothing where that is missing; the border of a
    /// convolution then is 0. The right ones (weights) are I8, or F32 that count as [`whole_weights`]. Sums and result
    /// are I32 and wrap.
    Integers,
}

impl Factors {
    /// The datatype of floats that factors are rounded to; `None` for integers.
    pub fn rounded(self) -> Option<DType> {
        match self {
            Factors::Bf16 => Some(DType::Bf16),
            Factors::F16 => Some(DType::F16),
            Factors::Integers => None,
        }
    }

    /// Refuses what cannot be a factor; gives the datatype of the result.
    pub(crate) fn result(self, left: Option<DType>, right: Option<DType>) -> Result<DType, OpError> {
        let fits = |left: bool, dtype: DType| match (self, left) {
            (Factors::Bf16, _) => matches!(dtype, DType::F32 | DType::Bf16),
            (Factors::F16, _) => matches!(dtype, DType::F32 | DType::F16),
            (Factors::Integers, true) => matches!(dtype, DType::U8 | DType::I8),
            (Factors::Integers, false) => matches!(dtype, DType::I8 | DType::F32),
        };
        for (is_left, dtype) in [(true, left), (false, right)] {
            if let Some(dtype) = dtype.filter(|&dtype| !fits(is_left, dtype)) {
                return Err(OpError::invalid(format!("a factor of {dtype} in a product of {self:?}")));
            }
        }
        Ok(match self {
            Factors::Bf16 | Factors::F16 => DType::F32,
            Factors::Integers => DType::I32,
        })
    }
}

/// Right factors of [`Factors::Integers`] as I8: those of F32 are rounded to steps of 1/127 of the largest of their
/// column, an index of `axis`.
///
/// # Errors
/// They are of F32 and cannot be read.
pub fn whole_weights(weights: &Tensor, axis: usize) -> Result<Cow<'_, Tensor>, OpError> {
    if weights.dtype() != DType::F32 {
        return Ok(Cow::Borrowed(weights));
    }
    let scales = column_scales(weights, axis)?;
    Ok(Cow::Owned(in_steps(weights, axis, &scales)?))
}

/// Weights of integers as [`Factors::Integers`] wants them: I8, less their zero points, of which there is one or
/// one for each index of `axis`. `None` where they do not fit.
pub(crate) fn integer_weights(weights: &Tensor, zeros: Option<&Tensor>, axis: usize) -> Option<Tensor> {
    if !matches!(weights.dtype(), DType::U8 | DType::I8) {
        return None;
    }
    let zeros = zeros.map(|zeros| zeros.to_i64s()).transpose().ok()?.unwrap_or_default();
    if weights.dtype() == DType::I8 && zeros.iter().all(|&zero| zero == 0) {
        return Some(weights.clone());
    }
    let (&columns, inner) = (weights.shape().get(axis)?, weights.shape()[axis + 1..].iter().product::<usize>());
    let zero = |index: usize| match zeros[..] {
        [] => Some(0),
        [one] => Some(one),
        ref each => each.get(index / inner % columns).copied().filter(|_| each.len() == columns),
    };
    let values = weights.to_i64s().ok()?;
    let moved = values.iter().enumerate().map(|(index, value)| i8::try_from(value - zero(index)?).ok());
    Tensor::from_slice(weights.shape(), &moved.collect::<Option<Vec<i8>>>()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use halimede_tensor::{Buffer, Held};

    #[test]
    fn weights_of_a_file_are_rounded_without_a_copy_that_stays() {
        let numbers = [127f32, -12.7, 63.5, 0.0].map(f32::to_ne_bytes).concat();
        // Of four places in a row three are those where no f32 may lie.
        for offset in 0..4 {
            let file = Buffer::foreign([&vec![0; offset], &numbers[..]].concat());
            let weights = Tensor::from_buffer(DType::F32, &[2, 2], file.part(offset, 16).unwrap()).unwrap();
            assert_eq!(whole_weights(&weights, 1).unwrap().slice::<i8>().unwrap(), [127, -127, 64, 0]);
            assert_eq!(weights.held(), Held { private: 0, mapped: 16 });
        }
    }

    #[test]
    fn weights_less_their_zero_points() {
        let weights = Tensor::from_slice(&[2, 2], &[0u8, 255, 128, 100]).unwrap();
        let moved = |zeros: &[u8], axis| {
            integer_weights(&weights, Some(&Tensor::from_slice(&[zeros.len()], zeros).unwrap()), axis)
        };
        let expected = |values: [i8; 4]| Some(Tensor::from_slice(&[2, 2], &values).unwrap());
        assert_eq!(moved(&[128], 0), expected([-128, 127, 0, -28]));
        assert_eq!(moved(&[128, 130], 0), expected([-128, 127, -2, -30]));
        assert_eq!(moved(&[128, 130], 1), expected([-128, 125, 0, -30]));
        assert_eq!(moved(&[120], 0), None, "255 - 120 has more than 8 bits");
        assert_eq!(moved(&[1, 2, 3], 0), None);
    }
}
