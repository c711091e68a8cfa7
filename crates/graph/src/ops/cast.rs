use super::inputs::{required, typed};
use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::{CastOptions, DType, ExponentRounding, Tensor};
use smallvec::smallvec;

/// Conversion between datatypes (ONNX Cast, opset 25): numbers, Bool, strings, 8- and 4-bit floats.
#[derive(Debug, Clone, PartialEq)]
pub struct Cast {
    /// Datatype of the output.
    pub to: DType,
    /// Out-of-range values become the largest finite one of an 8-bit float instead of NaN or infinity.
    pub saturate: bool,
    /// How a number becomes a power of two (ONNX `round_mode`, f8e8m0 only).
    pub exponent_rounding: ExponentRounding,
}

impl Cast {
    /// The conversion with ONNX's defaults.
    pub fn to(to: DType) -> Cast {
        Cast { to, saturate: true, exponent_rounding: ExponentRounding::Up }
    }
}

impl TensorOp for Cast {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let data = required(inputs, 0)?;
        Ok(smallvec![typed(Some(self.to), data.shape.clone()).and_elements(self.elements(data))])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let options = CastOptions { saturate: self.saturate, exponent_rounding: self.exponent_rounding };
        Ok(smallvec![required(inputs, 0)?.cast(self.to, options)?])
    }
}

impl Cast {
    /// Sizes stay what they are in types that hold them.
    fn elements(&self, data: &Fact) -> Option<Vec<crate::Dim>> {
        let wide = matches!(self.to, DType::I64 | DType::I32 | DType::U64 | DType::U32);
        data.dims().filter(|_| wide)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dim;

    #[test]
    fn sizes_pass() {
        let n = Dim::symbol("n");
        let shape = Fact::tensor(DType::I64, [Dim::from(1)]).and_elements(Some(vec![n.clone()]));
        let cast = |to| Cast::to(to).infer(&[Some(&shape)]).unwrap().remove(0);
        assert_eq!(cast(DType::I32).dims(), Some(vec![n]));
        assert_eq!(cast(DType::I8).dims(), None);
        assert_eq!(cast(DType::F32), Fact::tensor(DType::F32, [Dim::from(1)]));
    }

    #[test]
    fn values_convert() {
        let floats = Tensor::from_slice(&[2], &[1.9f32, -1.9]).unwrap();
        let whole = Cast::to(DType::I32).evaluate(&[Some(&floats)]).unwrap().remove(0);
        assert_eq!(whole, Tensor::from_slice(&[2], &[1i32, -1]).unwrap());
    }
}
