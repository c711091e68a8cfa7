use super::common::required;
use crate::onnx::case::tensor;
use crate::onnx::{Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{Tensor, Value, element_count};
use smallvec::smallvec;

/// Adds the columns of sliding blocks back into an image of any number of axes (ONNX Col2Im, opset 18).
pub static OPERATOR: Operator = Operator::new("Col2Im").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let (x, image, block) = (required(inputs, 0)?, required(inputs, 1)?, required(inputs, 2)?);
    let (image, block) = (sizes("image_shape", &image.to_i64s()?)?, sizes("block_shape", &block.to_i64s()?)?);
    let axes = image.len();
    let list = |name: &str, default: i64, count: usize| -> Result<Vec<i64>, OpError> {
        let list = call.attributes.ints(name)?.map_or_else(|| vec![default; count], <[i64]>::to_vec);
        if list.len() == count {
            return Ok(list);
        }
        Err(OpError::invalid(format!("attribute '{name}' has {} entries instead of {count}", list.len())))
    };
    let (dilations, strides) =
        (sizes("dilations", &list("dilations", 1, axes)?)?, sizes("strides", &list("strides", 1, axes)?)?);
    let pads = list("pads", 0, 2 * axes)?;
    // How many blocks fit along each axis.
    let fits = |axis: usize| -> Option<usize> {
        let padded = (image[axis] as i64).checked_add(pads[axis])?.checked_add(pads[axes + axis])?;
        let reach = dilations[axis].checked_mul(block.get(axis)?.checked_sub(1)?)?.checked_add(1)?;
        Some(usize::try_from(padded).ok()?.checked_sub(reach)? / strides[axis] + 1)
    };
    let blocks: Option<Vec<usize>> = (0..axes).map(fits).collect();
    let (block_len, blocks) = (element_count(&block)?, blocks.unwrap_or_default());
    let valid = block.len() == axes && blocks.len() == axes && block_len > 0;
    let [batch, rows, columns] = *x.shape() else { return Err(OpError::invalid("the input must be [N, C·block, L]")) };
    if !valid || rows % block_len != 0 || columns != element_count(&blocks)? {
        let message =
            format!("columns of shape {:?} are not those of blocks {block:?} in an image {image:?}", x.shape());
        return Err(OpError::invalid(message));
    }
    let channels = rows / block_len;
    let pixels = element_count(&image)?;
    let numbers = x.to_f64s()?;
    let mut out = vec![0.0; element_count(&[batch, channels, pixels])?];
    for plane in 0..batch * channels {
        for within in 0..block_len {
            for column in 0..columns {
                let target =
                    pixel(&image, &place(within, &block), &place(column, &blocks), &strides, &dilations, &pads);
                if let Some(target) = target {
                    out[plane * pixels + target] += numbers[(plane * block_len + within) * columns + column];
                }
            }
        }
    }
    let shape: Vec<usize> = [batch, channels].into_iter().chain(image).collect();
    Ok(vec![Tensor::from_f64s(x.dtype(), &shape, &out)?.into()])
}

fn sizes(name: &str, list: &[i64]) -> Result<Vec<usize>, OpError> {
    let positive = |&size: &i64| usize::try_from(size).ok().filter(|&size| size > 0);
    list.iter()
        .map(|size| positive(size).ok_or_else(|| OpError::invalid(format!("{name} has {size}; each must be positive"))))
        .collect()
}

/// A flat index as one per axis.
fn place(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut place = vec![0; shape.len()];
    for axis in (0..shape.len()).rev() {
        place[axis] = flat % shape[axis];
        flat /= shape[axis];
    }
    place
}

/// The flat index of the pixel at a place of a block; `None` in the border.
fn pixel(
    image: &[usize],
    within: &[usize],
    block: &[usize],
    strides: &[usize],
    dilations: &[usize],
    pads: &[i64],
) -> Option<usize> {
    let mut flat = 0;
    for axis in 0..image.len() {
        let padded = (block[axis] * strides[axis] + within[axis] * dilations[axis]) as i64;
        let at = usize::try_from(padded - pads[axis]).ok().filter(|&at| at < image[axis])?;
        flat = flat * image[axis] + at;
    }
    Some(flat)
}

fn infer(_call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let [Some(x), Some(image), Some(block), ..] = inputs else { return Ok(Facts::new()) };
    let axes = image.shape.as_ref().and_then(|shape| shape.first()?.size());
    let (Some(dtype), Some(axes)) = (x.dtype, axes) else { return Ok(smallvec![Fact::of_dtype(x.dtype)]) };
    let image = image.dims().unwrap_or_else(|| vec![Dim::unknown(); axes]);
    let channels = match (x.shape.as_ref().and_then(|shape| shape.get(1)), block.ints()) {
        (Some(rows), Some(block)) => {
            let block = block.iter().try_fold(1i64, |product, &size| product.checked_mul(size));
            block.map_or_else(Dim::unknown, |block| rows.floor_div(&Dim::from(block)))
        }
        _ => Dim::unknown(),
    };
    let batch = x.shape.as_ref().and_then(|shape| shape.first().cloned()).unwrap_or_else(Dim::unknown);
    Ok(smallvec![Fact::tensor(dtype, [batch, channels].into_iter().chain(image))])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("overlapping blocks add up", &OPERATOR, 18)
            .input(tensor(&[1, 2, 2], &[1.0f32, 2.0, 3.0, 4.0]))
            .input(tensor(&[2], &[1i64, 3]))
            .input(tensor(&[2], &[1i64, 2]))
            .output(tensor(&[1, 1, 1, 3], &[1.0f32, 5.0, 4.0])),
    ]
}
