use super::common::required;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Attributes, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{Tensor, Value, element_count};
use smallvec::smallvec;

/// The largest element of each cell of regions `[batch, x1, y1, x2, y2]` (ONNX MaxRoiPool, opset 22).
pub static OPERATOR: Operator = Operator::new("MaxRoiPool").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let (x, regions) = (required(inputs, 0)?, required(inputs, 1)?);
    let (&[batch_size, channels, height, width], &[count, 5]) = (x.shape(), regions.shape()) else {
        return Err(OpError::invalid("the input must be [N, C, H, W] and the regions [R, 5]"));
    };
    let [rows, columns] = pooled_shape(&call.attributes)?;
    let scale = f64::from(call.attributes.float_or("spatial_scale", 1.0)?);
    let pixels = x.to_f64s()?;
    let mut out = Vec::with_capacity(element_count(&[count, channels, rows, columns])?);
    for region in regions.to_f64s()?.chunks_exact(5) {
        let batch = region[0] as usize;
        if region[0] < 0.0 || batch >= batch_size {
            return Err(OpError::invalid(format!("batch index {} lies outside {batch_size}", region[0])));
        }
        // Edges fall on whole pixels, and both belong to the region.
        let edge = |index: usize| (region[index] * scale).round();
        let cells = |from: f64, to: f64, cells: usize, size: usize| -> Vec<(usize, usize)> {
            let cell = (to - from + 1.0).max(1.0) / cells as f64;
            let clip = |at: f64| (at + from).clamp(0.0, size as f64) as usize;
            (0..cells).map(|i| (clip((i as f64 * cell).floor()), clip(((i + 1) as f64 * cell).ceil()))).collect()
        };
        let (across, down) = (cells(edge(1), edge(3), columns, width), cells(edge(2), edge(4), rows, height));
        for channel in 0..channels {
            let plane = &pixels[(batch * channels + channel) * height * width..][..height * width];
            for &(top, bottom) in &down {
                for &(left, right) in &across {
                    let row = |y: usize| plane[y * width + left..y * width + right.max(left)].iter().copied();
                    out.push((top..bottom).flat_map(row).reduce(f64::max).unwrap_or(0.0));
                }
            }
        }
    }
    Ok(vec![Tensor::from_f64s(x.dtype(), &[count, channels, rows, columns], &out)?.into()])
}

fn pooled_shape(attributes: &Attributes) -> Result<[usize; 2], OpError> {
    let shape = attributes.required("pooled_shape", attributes.ints("pooled_shape")?)?;
    match *shape {
        [rows, columns] if rows > 0 && columns > 0 => Ok([rows as usize, columns as usize]),
        _ => Err(OpError::invalid(format!("pooled_shape {shape:?} must be two positive sizes"))),
    }
}

fn infer(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let [Some(x), Some(regions), ..] = inputs else { return Ok(Facts::new()) };
    let Some(dtype) = x.dtype else { return Ok(Facts::new()) };
    let size = |fact: &Fact, axis: usize| {
        fact.shape.as_ref().and_then(|shape| shape.get(axis).cloned()).unwrap_or_else(Dim::unknown)
    };
    let [rows, columns] = pooled_shape(&call.attributes)?;
    Ok(smallvec![Fact::tensor(dtype, [size(regions, 0), size(x, 1), Dim::from(rows), Dim::from(columns)])])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("quarters", &OPERATOR, 22)
            .attribute("pooled_shape", Attribute::Ints(vec![1, 2]))
            .input(tensor(&[1, 1, 2, 4], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]))
            .input(tensor(&[1, 5], &[0.0f32, 0.0, 0.0, 3.0, 1.0]))
            .output(tensor(&[1, 1, 1, 2], &[6.0f32, 8.0])),
    ]
}
