use super::common::{integer, number, required, room};
use crate::onnx::case::tensor;
use crate::onnx::{Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{DType, Tensor, Value};
use smallvec::smallvec;

/// Weights that turn a spectrogram into mel bands, `[bins, bands]` (ONNX MelWeightMatrix, opset 17).
pub static OPERATOR: Operator = Operator::new("MelWeightMatrix").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let whole = |index: usize| integer(required(inputs, index)?);
    let (bands, length, rate) = (whole(0)?, whole(1)?, whole(2)?);
    let (low, high) = (number(required(inputs, 3)?)?, number(required(inputs, 4)?)?);
    let (Ok(bands), Ok(length), true) = (usize::try_from(bands), usize::try_from(length), rate > 0) else {
        return Err(OpError::invalid(format!("{bands} bands, transform length {length} and sample rate {rate}")));
    };
    let bins = length / 2 + 1;
    let mut weights = vec![0.0; room(&[bins, bands])?];

    // The edges of the bands lie evenly on the mel scale.
    let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let step = (mel(high) - mel(low)) / (bands + 2) as f64;
    let edge = |index: usize| -> Result<usize, OpError> {
        let hertz = 700.0 * (10f64.powf((index as f64 * step + mel(low)) / 2595.0) - 1.0);
        let bin = ((length as f64 + 1.0) * hertz / rate as f64).floor();
        if bin >= 0.0 && bin < bins as f64 {
            return Ok(bin as usize);
        }
        Err(OpError::invalid(format!("{hertz} Hz lies outside a spectrum of {bins} bins at {rate} Hz")))
    };
    for band in 0..bands {
        let (left, centre, right) = (edge(band)?, edge(band + 1)?, edge(band + 2)?);
        if left == centre {
            weights[centre * bands + band] = 1.0;
        }
        for bin in left..=centre {
            if left < centre {
                weights[bin * bands + band] = (bin - left) as f64 / (centre - left) as f64;
            }
        }
        for bin in centre..right {
            weights[bin * bands + band] = (right - bin) as f64 / (right - centre) as f64;
        }
    }
    Ok(vec![Tensor::from_f64s(dtype(call)?, &[bins, bands], &weights)?.into()])
}

fn dtype(call: &Call) -> Result<DType, OpError> {
    let code = call.attributes.int_or("output_datatype", 1)?;
    DType::from_onnx(code)
        .ok_or_else(|| OpError::invalid(format!("output_datatype is {code}, which is no datatype of ONNX")))
}

fn infer(call: &Call, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    Ok(smallvec![Fact::tensor(dtype(call)?, [Dim::unknown(), Dim::unknown()])])
}

fn cases() -> Vec<Case> {
    let whole = |number: i64| tensor(&[], &[number]);
    let hertz = |number: f32| tensor(&[], &[number]);
    vec![
        Case::new("one band", &OPERATOR, 17)
            .input(whole(1))
            .input(whole(4))
            .input(whole(8))
            .input(hertz(0.0))
            .input(hertz(4.0))
            .output(tensor(&[3, 1], &[1.0f32, 0.0, 0.0])),
    ]
}
