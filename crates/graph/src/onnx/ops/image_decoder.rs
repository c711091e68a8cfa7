use super::common::required;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{DType, Tensor, Value};
use image::{DynamicImage, ImageReader};
use smallvec::smallvec;
use std::io::Cursor;

/// The pixels `[height, width, channels]` of a BMP, JPEG, PNG, PNM, TIFF or WebP file (ONNX
/// ImageDecoder, opset 20). JPEG 2000 is not supported; JPEG may differ from other decoders by a few
/// steps, which its standard allows.
pub static OPERATOR: Operator = Operator::new("ImageDecoder").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let file = required(inputs, 0)?.slice::<u8>()?;
    let image = decode(file).map_err(|error| OpError::invalid(format!("the image cannot be decoded: {error}")))?;
    let (width, height) = (image.width() as usize, image.height() as usize);
    let mut pixels = image.into_rgb8().into_raw();
    let channels = channels(call)?;
    match pixel_format(call)? {
        "RGB" => {}
        "BGR" => pixels.chunks_exact_mut(3).for_each(|pixel| pixel.swap(0, 2)),
        _ => pixels = pixels.chunks_exact(3).map(|pixel| luma([pixel[0], pixel[1], pixel[2]])).collect(),
    }
    Ok(vec![Tensor::from_slice(&[height, width, channels], &pixels)?.into()])
}

/// The reader's own limits keep a small file from asking for all memory.
fn decode(file: &[u8]) -> Result<DynamicImage, image::ImageError> {
    ImageReader::new(Cursor::new(file)).with_guessed_format()?.decode()
}

/// Brightness by ITU-R BT.601, in 16-bit fractions.
fn luma([red, green, blue]: [u8; 3]) -> u8 {
    ((u32::from(red) * 19595 + u32::from(green) * 38470 + u32::from(blue) * 7471 + 0x8000) >> 16) as u8
}

fn pixel_format(call: &Call) -> Result<&str, OpError> {
    match call.attributes.text_or("pixel_format", "RGB")? {
        known @ ("RGB" | "BGR" | "Grayscale") => Ok(known),
        other => Err(OpError::invalid(format!("pixel_format is '{other}'; ONNX knows RGB, BGR and Grayscale"))),
    }
}

fn channels(call: &Call) -> Result<usize, OpError> {
    Ok(if pixel_format(call)? == "Grayscale" { 1 } else { 3 })
}

fn infer(call: &Call, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    Ok(smallvec![Fact::tensor(DType::U8, [Dim::unknown(), Dim::unknown(), Dim::from(channels(call)?)])])
}

fn cases() -> Vec<Case> {
    // A portable pixmap, the plainest of the formats: one pixel.
    let file = b"P6\n1 1\n255\n\x0a\x14\x1e";
    vec![
        Case::new("blue first", &OPERATOR, 20)
            .attribute("pixel_format", Attribute::String("BGR".into()))
            .input(tensor(&[file.len()], file))
            .output(tensor(&[1, 1, 3], &[30u8, 20, 10])),
    ]
}
