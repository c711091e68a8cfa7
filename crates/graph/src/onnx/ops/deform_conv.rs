use super::common::groups;
use crate::onnx::case::tensor;
use crate::onnx::{Attributes, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Fact, OpError};
use halimede_tensor::{Tensor, Value};
use smallvec::smallvec;

/// Convolution whose taps are moved by offsets and weighed by a mask (ONNX DeformConv, opset 22), over
/// two spatial axes as in the reference implementation.
pub static OPERATOR: Operator = Operator::new("DeformConv").evaluate(evaluate).infer(infer).cases(cases);

/// The shapes and attributes of one convolution.
struct Setting {
    strides: [f64; 2],
    dilations: [f64; 2],
    starts: [f64; 2],
    groups: usize,
    offset_groups: usize,
    kernel: [usize; 2],
}

impl Setting {
    fn read(attributes: &Attributes, kernel: [usize; 2]) -> Result<Setting, OpError> {
        let pair = |name: &str, default: i64| -> Result<[f64; 2], OpError> {
            match attributes.ints(name)? {
                None => Ok([default as f64; 2]),
                Some(&[a, b, ..]) => Ok([a as f64, b as f64]),
                Some(list) => {
                    Err(OpError::unsupported(format!("DeformConv with {name} {list:?}; two spatial axes are built")))
                }
            }
        };
        let pads = pair("pads", 0)?;
        Ok(Setting {
            strides: pair("strides", 1)?,
            dilations: pair("dilations", 1)?,
            starts: [-pads[0], -pads[1]],
            groups: groups(attributes, "group")?,
            offset_groups: groups(attributes, "offset_group")?,
            kernel,
        })
    }
}

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let input = |index: usize| inputs.get(index).and_then(Option::as_ref).map(Value::tensor).transpose();
    let required = |index: usize| input(index)?.ok_or_else(|| OpError::invalid(format!("input {index} is missing")));
    let (x, weights, offset) = (required(0)?, required(1)?, required(2)?);
    let (&[batch, channels, height, width], &[filters, per_group, kh, kw], &[_, offset_channels, rows, columns]) =
        (x.shape(), weights.shape(), offset.shape())
    else {
        return Err(OpError::unsupported("DeformConv over other than two spatial axes"));
    };
    let setting = Setting::read(&call.attributes, [kh, kw])?;
    let taps = kh * kw;
    let fits = channels == per_group * setting.groups
        && filters % setting.groups == 0
        && channels % setting.offset_groups == 0
        && offset.shape()[0] == batch
        && offset_channels == setting.offset_groups * taps * 2;
    if !fits {
        let shapes = (x.shape(), weights.shape(), offset.shape());
        return Err(OpError::invalid(format!(
            "DeformConv's input, weights and offset have shapes {shapes:?}, which do not fit"
        )));
    }
    let (data, kernel, moved) = (x.to_f64s()?, weights.to_f64s()?, offset.to_f64s()?);
    let bias = input(3)?.map(Tensor::to_f64s).transpose()?;
    let mask = input(4)?.map(Tensor::to_f64s).transpose()?;
    let cells = rows * columns;
    let sizes = [
        bias.as_ref().map(|b| (b.len(), filters)),
        mask.as_ref().map(|m| (m.len(), batch * setting.offset_groups * taps * cells)),
    ];
    if sizes.iter().flatten().any(|(actual, expected)| actual != expected) {
        return Err(OpError::invalid("DeformConv's bias or mask has not the size that its weights and offset ask for"));
    }

    let mut y = vec![0.0; batch * filters * cells];
    for (index, result) in y.iter_mut().enumerate() {
        let (image, filter, row, column) =
            (index / (filters * cells), index / cells % filters, index / columns % rows, index % columns);
        let mut sum = bias.as_ref().map_or(0.0, |bias| bias[filter]);
        let group = filter / (filters / setting.groups);
        for channel in 0..per_group {
            let source = group * per_group + channel;
            let plane = &data[(image * channels + source) * height * width..][..height * width];
            let offset_group = source / (channels / setting.offset_groups);
            for tap in 0..taps {
                let at = |part: usize| {
                    let channel = (offset_group * taps + tap) * 2 + part;
                    moved[((image * offset_channels + channel) * rows + row) * columns + column]
                };
                let place = |axis: usize, cell: usize, tap: usize| {
                    setting.starts[axis] + setting.strides[axis] * cell as f64 + setting.dilations[axis] * tap as f64
                };
                let y_at = place(0, row, tap / setting.kernel[1]) + at(0);
                let x_at = place(1, column, tap % setting.kernel[1]) + at(1);
                let weight = kernel[(filter * per_group + channel) * taps + tap];
                let masked = mask.as_ref().map_or(1.0, |mask| {
                    mask[((image * setting.offset_groups + offset_group) * taps + tap) * cells + row * columns + column]
                });
                sum += weight * masked * sample(plane, [height, width], y_at, x_at);
            }
        }
        *result = sum;
    }
    Ok(vec![Tensor::from_f64s(x.dtype(), &[batch, filters, rows, columns], &y)?.into()])
}

/// The plane between its elements, linear along both axes; zeros outside.
fn sample(plane: &[f64], [height, width]: [usize; 2], y: f64, x: f64) -> f64 {
    let element = |row: f64, column: f64| {
        let inside = row >= 0.0 && column >= 0.0 && row < height as f64 && column < width as f64;
        if inside { plane[row as usize * width + column as usize] } else { 0.0 }
    };
    let (top, left) = (y.floor(), x.floor());
    let (down, right) = (y - top, x - left);
    element(top, left) * (1.0 - down) * (1.0 - right)
        + element(top, left + 1.0) * (1.0 - down) * right
        + element(top + 1.0, left) * down * (1.0 - right)
        + element(top + 1.0, left + 1.0) * down * right
}

fn infer(_: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let [Some(x), Some(weights), Some(offset), ..] = inputs else {
        return Err(OpError::invalid("DeformConv needs an input, weights and offsets"));
    };
    // The offsets have one place per output element.
    let shape = match (&weights.shape, &offset.shape) {
        (Some(weights), Some(offset)) if !weights.is_empty() && offset.len() > 2 => {
            let mut shape = offset.clone();
            shape[1] = weights[0].clone();
            Some(shape)
        }
        _ => None,
    };
    Ok(smallvec![Fact { dtype: x.dtype, shape, ..Fact::default() }])
}

fn cases() -> Vec<Case> {
    let case = Case::new("a tap moved half a step", &OPERATOR, 22)
        .input(tensor(&[1, 1, 2, 2], &[1f32, 2.0, 3.0, 4.0]))
        .input(tensor(&[1, 1, 1, 1], &[1f32]))
        .input(tensor(&[1, 2, 2, 2], &[0f32, 0.0, 0.0, 0.0, 0.5, 0.5, 0.0, -1.0]))
        .input(tensor(&[1], &[1f32]));
    vec![case.output(tensor(&[1, 1, 2, 2], &[2.5f32, 2.0, 4.0, 4.0]))]
}
