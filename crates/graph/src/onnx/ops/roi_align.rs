use super::common::required;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{Tensor, Value, element_count};
use smallvec::smallvec;

/// Pools regions of feature maps into grids of one size, reading between pixels (ONNX RoiAlign, opset
/// 22; opset 10 had no half-pixel shift).
pub static OPERATOR: Operator = Operator::new("RoiAlign").evaluate(evaluate).infer(infer).cases(cases);

/// Four pixels around a point with their weights.
type Sample = [(usize, f64); 4];

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let (x, regions, batches) = (required(inputs, 0)?, required(inputs, 1)?, required(inputs, 2)?);
    let (&[batch_size, channels, height, width], &[count, 4]) = (x.shape(), regions.shape()) else {
        return Err(OpError::invalid("the input must be [N, C, H, W] and the regions [R, 4]"));
    };
    if batches.len() != count {
        return Err(OpError::invalid(format!("{} batch indices for {count} regions", batches.len())));
    }
    let [rows, columns] = grid(call)?;
    let scale = f64::from(call.attributes.float_or("spatial_scale", 1.0)?);
    let samples = call.attributes.int_or("sampling_ratio", 0)?;
    let average = match call.attributes.text_or("mode", "avg")? {
        "avg" => true,
        "max" => false,
        other => return Err(OpError::invalid(format!("mode is '{other}'; ONNX knows avg and max"))),
    };
    let default = if call.opset < 16 { "output_half_pixel" } else { "half_pixel" };
    let half_pixel = match call.attributes.text_or("coordinate_transformation_mode", default)? {
        "half_pixel" => true,
        "output_half_pixel" => false,
        other => return Err(OpError::invalid(format!("coordinate_transformation_mode '{other}' is not one of ONNX"))),
    };
    let pixels = x.to_f64s()?;
    let regions = regions.to_f64s()?;
    let mut out = Vec::with_capacity(element_count(&[count, channels, rows, columns])?);
    for (region, batch) in regions.chunks_exact(4).zip(batches.to_i64s()?) {
        let outside = || OpError::invalid(format!("batch index {batch} lies outside {batch_size}"));
        let batch = usize::try_from(batch).ok().filter(|&batch| batch < batch_size).ok_or_else(outside)?;
        let shift = if half_pixel { 0.5 } else { 0.0 };
        let edge = |index: usize| region[index] * scale - shift;
        let (left, top) = (edge(0), edge(1));
        let mut size = [edge(3) - top, edge(2) - left];
        if !half_pixel {
            // A region smaller than a pixel counts as one.
            size = size.map(|side| side.max(1.0));
        }
        let cell = [size[0] / rows as f64, size[1] / columns as f64];
        let per_cell = cell.map(|side| if samples > 0 { samples as usize } else { side.ceil().max(0.0) as usize });
        // As many as the pixels of the largest maps there are; a region may claim to be of any size.
        const SAMPLES_MAX: usize = 1 << 24;
        let samples = [rows, columns, per_cell[1]].iter().fold(per_cell[0], |all, part| all.saturating_mul(*part));
        if samples > SAMPLES_MAX {
            let [height, width] = size;
            return Err(OpError::invalid(format!(
                "a region of {height} x {width} takes more than {SAMPLES_MAX} samples"
            )));
        }
        let cells: Vec<Vec<Sample>> = (0..rows * columns)
            .map(|index| {
                let (row, column) = (index / columns, index % columns);
                let along = |from: f64, cell: f64, index: usize, part: usize, of: usize| {
                    from + index as f64 * cell + (part as f64 + 0.5) * cell / of as f64
                };
                let places = (0..per_cell[0]).flat_map(|i| (0..per_cell[1]).map(move |j| (i, j)));
                let point = |(i, j)| {
                    let y = along(top, cell[0], row, i, per_cell[0]);
                    sample(y, along(left, cell[1], column, j, per_cell[1]), height, width)
                };
                places.map(point).collect()
            })
            .collect();
        for channel in 0..channels {
            let plane = &pixels[(batch * channels + channel) * height * width..][..height * width];
            out.extend(cells.iter().map(|samples| pool(plane, samples, average)));
        }
    }
    Ok(vec![Tensor::from_f64s(x.dtype(), &[count, channels, rows, columns], &out)?.into()])
}

fn pool(plane: &[f64], samples: &[Sample], average: bool) -> f64 {
    let parts = |sample: &Sample| sample.map(|(pixel, weight)| plane.get(pixel).map_or(0.0, |value| value * weight));
    if average {
        let sum: f64 = samples.iter().map(|sample| parts(sample).iter().sum::<f64>()).sum();
        return sum / samples.len().max(1) as f64;
    }
    // The largest weighted pixel, not the largest interpolated value: ONNX kept it so.
    samples.iter().flat_map(parts).reduce(f64::max).unwrap_or(0.0)
}

/// Bilinear weights of a point; all zero outside the map.
fn sample(y: f64, x: f64, height: usize, width: usize) -> Sample {
    if !(-1.0..=height as f64).contains(&y) || !(-1.0..=width as f64).contains(&x) {
        return [(0, 0.0); 4];
    }
    let axis = |at: f64, size: usize| {
        let last = size.saturating_sub(1);
        let at = at.max(0.0);
        let low = (at as usize).min(last);
        let part = if low == last { 0.0 } else { at - low as f64 };
        (low, (low + 1).min(last), part)
    };
    let (top, bottom, down) = axis(y, height);
    let (left, right, across) = axis(x, width);
    [
        (top * width + left, (1.0 - down) * (1.0 - across)),
        (top * width + right, (1.0 - down) * across),
        (bottom * width + left, down * (1.0 - across)),
        (bottom * width + right, down * across),
    ]
}

fn grid(call: &Call) -> Result<[usize; 2], OpError> {
    let size = |name: &str| {
        let size = call.attributes.int_or(name, 1)?;
        let positive = usize::try_from(size).ok().filter(|&size| size > 0);
        positive.ok_or_else(|| OpError::invalid(format!("{name} is {size}; it must be positive")))
    };
    Ok([size("output_height")?, size("output_width")?])
}

fn infer(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let [Some(x), Some(regions), ..] = inputs else { return Ok(Facts::new()) };
    let Some(dtype) = x.dtype else { return Ok(Facts::new()) };
    let size = |fact: &Fact, axis: usize| {
        fact.shape.as_ref().and_then(|shape| shape.get(axis).cloned()).unwrap_or_else(Dim::unknown)
    };
    let [rows, columns] = grid(call)?;
    Ok(smallvec![Fact::tensor(dtype, [size(regions, 0), size(x, 1), Dim::from(rows), Dim::from(columns)])])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("the middle of four pixels", &OPERATOR, 16)
            .attribute("sampling_ratio", Attribute::Int(1))
            .input(tensor(&[1, 1, 2, 2], &[1.0f32, 2.0, 3.0, 4.0]))
            .input(tensor(&[1, 4], &[0.0f32, 0.0, 2.0, 2.0]))
            .input(tensor(&[1], &[0i64]))
            .output(tensor(&[1, 1, 1, 1], &[2.5f32])),
    ]
}
