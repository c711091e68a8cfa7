//! Products of integers against their definition, on every unit.

use super::tests::{check, floats};
use halimede_graph::Op;
use halimede_graph::ops::*;
use halimede_tensor::{CastOptions, DType, Tensor};

/// Integers of the whole range.
fn bytes(dtype: DType, shape: &[usize], seed: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let byte = |i: usize| if i.is_multiple_of(11) { 128 } else { (i * 151 + i / 7 + seed * 37) as u8 };
    match dtype {
        DType::U8 => Tensor::from_slice(shape, &(0..count).map(byte).collect::<Vec<u8>>()),
        _ => Tensor::from_slice(shape, &(0..count).map(|i| byte(i) as i8).collect::<Vec<i8>>()),
    }
    .unwrap()
}

fn zero_point(dtype: DType) -> Tensor {
    if dtype == DType::U8 { Tensor::scalar(131u8) } else { Tensor::scalar(-7i8) }
}

/// What follows a product in a quantised model. Inputs: a scale, a bias and a residual.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Ending {
    /// The sums.
    Plain,
    /// A scale and a bias, in f32.
    Scaled,
    /// And quantised.
    Quantized(DType),
    /// The same without a bias.
    Unbiased(DType),
    /// A quantised residual between two quantisations, and bounds.
    Residual(DType),
    /// A residual and what has no form of its own.
    General(DType),
}

impl Ending {
    fn map(self) -> Option<Map> {
        if self == Ending::Plain {
            return None;
        }
        let mut map = Map::default();
        let sum = map.push(Instruction::Input(0));
        let sum = map.push(Instruction::Cast(DType::F32, sum));
        let scale = map.push(Instruction::Input(1));
        let scaled = map.push(Instruction::Binary(Binary::Mul, sum, scale));
        if let Ending::Unbiased(to) = self {
            map.push_quantize(scaled, 0.03, 5, to);
            return Some(map);
        }
        let bias = map.push(Instruction::Input(2));
        let mut x = map.push(Instruction::Binary(Binary::Add, scaled, bias));
        if let Ending::Residual(dtype) | Ending::General(dtype) = self {
            if self == Ending::General(dtype) {
                x = map.push(Instruction::Unary(Unary::Abs, x));
            }
            x = map.push_snap(x, 0.05, 100, DType::U8);
            let residual = map.push(Instruction::Input(3));
            let residual = map.push_dequantize(residual, 0.04, 3);
            x = map.push(Instruction::Binary(Binary::Add, x, residual));
            let zero = map.push(Instruction::Constant(Scalar::Float(0.0, DType::F32)));
            x = map.push(Instruction::Binary(Binary::Max, x, zero));
        }
        if let Ending::Quantized(to) | Ending::Residual(to) | Ending::General(to) = self {
            map.push_quantize(x, 0.03, 5, to);
        }
        Some(map)
    }
}

const ENDINGS: [Ending; 9] = [
    Ending::Plain,
    Ending::Scaled,
    Ending::Quantized(DType::U8),
    Ending::Quantized(DType::I8),
    Ending::Unbiased(DType::U8),
    Ending::Unbiased(DType::I8),
    Ending::Residual(DType::U8),
    Ending::Residual(DType::I8),
    Ending::General(DType::U8),
];

/// Scales of a power of two: then no sum lies so near a tie that the order of operations decides.
fn scale(columns: usize) -> Tensor {
    let scales: Vec<f32> = (0..columns).map(|column| 1.0 / (1 << (11 + column % 3)) as f32).collect();
    Tensor::from_slice(&[columns], &scales).unwrap()
}

#[test]
fn products() {
    for (m, n, k) in [(1, 1, 3), (5, 70, 33), (48, 40, 128), (13, 100, 1100), (40, 33, 0), (200, 48, 64)] {
        for (dtype, ending) in [DType::U8, DType::I8].into_iter().flat_map(|dtype| ENDINGS.map(|e| (dtype, e))) {
            let op = Contract { multiply: Some(Factors::Integers), epilogue: ending.map(), ..Contract::matmul(0) };
            let residual =
                if let Ending::Residual(dtype) | Ending::General(dtype) = ending { dtype } else { DType::U8 };
            let mut inputs = vec![
                Some(bytes(dtype, &[m, k], 1)),
                Some(bytes(DType::I8, &[k, n], 2)),
                (k != 33).then(|| zero_point(dtype)),
            ];
            if ending != Ending::Plain {
                inputs.extend([scale(n), floats(&[n], 3), bytes(residual, &[m, n], 4)].map(Some));
            }
            check(Op::Contract(op), &inputs, &[1], 1e-6);
        }
    }
}

#[test]
fn scales_that_a_request_brings() {
    // As models write them that quantise their data by its own range.
    let mut map = Map::default();
    let sum = map.push(Instruction::Input(0));
    let bias = map.push(Instruction::Input(3));
    let sum = map.push(Instruction::Binary(Binary::Add, sum, bias));
    let sum = map.push(Instruction::Cast(DType::F32, sum));
    let (one, row) = (map.push(Instruction::Input(1)), map.push(Instruction::Input(2)));
    let scale_of_both = map.push(Instruction::Binary(Binary::Mul, one, row));
    map.push(Instruction::Binary(Binary::Mul, sum, scale_of_both));
    let op = Contract { multiply: Some(Factors::Integers), epilogue: Some(map), ..Contract::matmul(1) };
    // One matrix of weights for a batch.
    let op = Contract { rhs: [3, 2].as_slice().into(), ..op };
    let bias = Tensor::from_slice(&[37], &(0..37).map(|i| i * 1000 - 9000).collect::<Vec<i32>>()).unwrap();
    let inputs = [
        bytes(DType::U8, &[2, 9, 70], 1),
        bytes(DType::I8, &[70, 37], 2),
        zero_point(DType::U8),
        Tensor::from_slice(&[1], &[0.125f32]).unwrap(),
        scale(37),
        bias,
    ];
    check(Op::Contract(op), &inputs.map(Some), &[1], 1e-6);
}

#[test]
fn convolutions() {
    let plain = |stride: usize, dilation: usize, border: i64| Conv {
        strides: [stride; 2].as_slice().into(),
        dilations: [dilation; 2].as_slice().into(),
        padding: Padding::Explicit([border; 4].as_slice().into()),
        groups: 1,
        transposed: None,
        channels_last: true,
        multiply: Some(Factors::Integers),
        epilogue: None,
    };
    // Images, channels, output channels, size, kernel, stride, dilation, border.
    let cases = [
        // Columns for each thread, and groups of images.
        (3, 70, 100, 4, 3, 1, 1, 1),
        (16, 70, 33, 3, 3, 1, 1, 1),
        (2, 3, 20, 9, 7, 2, 1, 3),
        (2, 3, 20, 19, 3, 2, 1, 1),
        (2, 2, 33, 17, 4, 1, 2, 2),
        (2, 64, 40, 6, 1, 1, 1, 0),
        (2, 70, 33, 7, 3, 1, 1, 1),
        // Rows that are tiles.
        (2, 70, 33, 16, 3, 1, 1, 1),
        (2, 40, 64, 8, 3, 2, 1, 1),
        (2, 33, 8, 9, 3, 1, 2, 2),
        (2, 64, 16, 7, 1, 2, 1, 0),
    ];
    for (images, channels, outputs, size, kernel, stride, dilation, border) in cases {
        for (dtype, ending) in [DType::U8, DType::I8].into_iter().flat_map(|dtype| ENDINGS.map(|e| (dtype, e))) {
            let op = Conv { epilogue: ending.map(), ..plain(stride, dilation, border) };
            let out = (size + 2 * border as usize - (kernel - 1) * dilation - 1) / stride + 1;
            let residual =
                if let Ending::Residual(dtype) | Ending::General(dtype) = ending { dtype } else { DType::U8 };
            let mut inputs = vec![
                Some(bytes(dtype, &[images, size, size, channels], 1)),
                Some(bytes(DType::I8, &[outputs, channels, kernel, kernel], 2)),
                Some(zero_point(dtype)),
            ];
            if ending != Ending::Plain {
                let residual = bytes(residual, &[images, out, out, outputs], 4);
                inputs.extend([scale(outputs), floats(&[outputs], 3), residual].map(Some));
            }
            check(Op::Conv(op), &inputs, &[1], 1e-6);
        }
    }
}

#[test]
fn depthwise_convolutions() {
    // Image, channels of a group, kernel, stride, dilation, borders: every form of block, widths that they leave over, few channels.
    let cases: &[(&[usize], usize, usize, usize, usize, [i64; 4])] = &[
        (&[1, 5, 14, 64], 1, 3, 1, 1, [1; 4]),
        (&[2, 6, 9, 40], 1, 5, 1, 1, [2; 4]),
        (&[1, 9, 15, 144], 1, 3, 2, 1, [1; 4]),
        (&[1, 8, 19, 48], 1, 5, 2, 1, [1, 2, 2, 1]),
        (&[1, 7, 6, 17], 1, 3, 1, 2, [2; 4]),
        (&[1, 23, 66, 96], 1, 3, 1, 1, [1; 4]),
        (&[1, 3, 2, 32], 1, 3, 1, 1, [1; 4]),
        (&[1, 12, 12, 33], 1, 11, 1, 1, [5; 4]),
        (&[2, 4, 8, 9], 1, 7, 1, 1, [3; 4]),
        (&[1, 5, 14, 64], 4, 3, 1, 1, [1; 4]),
        (&[1, 9, 15, 40], 8, 3, 2, 1, [1; 4]),
        (&[1, 7, 6, 18], 2, 3, 1, 2, [2; 4]),
    ];
    for &(x, width, kernel, stride, dilation, pads) in cases {
        let channels = x[3];
        let out = |size: usize, before: i64, after: i64| {
            ((size as i64 + before + after) as usize - (kernel - 1) * dilation - 1) / stride + 1
        };
        let y = [x[0], out(x[1], pads[0], pads[2]), out(x[2], pads[1], pads[3]), channels];
        for (dtype, ending) in [DType::U8, DType::I8].into_iter().flat_map(|dtype| ENDINGS.map(|e| (dtype, e))) {
            let op = Conv {
                strides: [stride; 2].as_slice().into(),
                dilations: [dilation; 2].as_slice().into(),
                padding: Padding::Explicit(pads.as_slice().into()),
                groups: channels / width,
                transposed: None,
                channels_last: true,
                multiply: Some(Factors::Integers),
                epilogue: ending.map(),
            };
            let residual =
                if let Ending::Residual(dtype) | Ending::General(dtype) = ending { dtype } else { DType::U8 };
            let weights = bytes(DType::I8, &[channels, width, kernel, kernel], 2);
            let mut inputs = vec![Some(bytes(dtype, x, 1)), Some(weights), Some(zero_point(dtype))];
            if ending != Ending::Plain {
                inputs.extend([scale(channels), floats(&[channels], 3), bytes(residual, &y, 4)].map(Some));
            }
            check(Op::Conv(op), &inputs, &[1], 1e-6);
        }
    }
}

#[test]
fn sums_of_as_many_taps_as_there_may_be() {
    // The farthest that a sum may be from zero, on either side.
    for (zero, x) in [(0u8, 255u8), (255, 0)] {
        let op = Conv {
            strides: [1, 1].as_slice().into(),
            dilations: [1, 1].as_slice().into(),
            padding: Padding::Explicit([0; 4].as_slice().into()),
            groups: 40,
            transposed: None,
            channels_last: true,
            multiply: Some(Factors::Integers),
            epilogue: None,
        };
        let x = Tensor::from_slice(&[1, 8, 24, 40], &[x; 8 * 24 * 40]).unwrap();
        let w = Tensor::from_slice(&[40, 1, 8, 16], &[-128i8; 40 * 8 * 16]).unwrap();
        check(Op::Conv(op), &[Some(x), Some(w), Some(Tensor::scalar(zero))], &[1], 0.0);
    }
}

#[test]
fn maps_that_quantise() {
    // A number, or the sum of one and of a quantised number, bounded or not, as it is written and the other way round; and what no product ends with.
    for (count, dtype, to) in [(5, DType::F32, DType::U8), (300, DType::Bf16, DType::I8), (9000, DType::F32, DType::I8)]
    {
        for form in 0..5 {
            let mut map = Map::default();
            let (data, other) = if form == 2 { (1, 0) } else { (0, 1) };
            let mut x = map.push(Instruction::Input(data));
            if dtype != DType::F32 {
                x = map.push(Instruction::Cast(DType::F32, x));
            }
            if form > 0 {
                let residual = map.push(Instruction::Input(other));
                let residual = map.push_dequantize(residual, 0.04, 3);
                x = map.push(Instruction::Binary(if form == 3 { Binary::Mul } else { Binary::Add }, x, residual));
            }
            if form == 4 {
                let low = map.push(Instruction::Constant(Scalar::Float(-0.5, DType::F32)));
                x = map.push(Instruction::Binary(Binary::Max, x, low));
            }
            map.push_quantize(x, 0.03, 5, to);
            let mut inputs =
                vec![floats(&[count], 1).cast(dtype, CastOptions::default()).unwrap(), bytes(to, &[count], 2)];
            if form == 2 {
                inputs.swap(0, 1);
            }
            let inputs: Vec<_> = inputs.into_iter().take(if form == 0 { 1 } else { 2 }).map(Some).collect();
            check(Op::Map(map), &inputs, &[], 0.0);
        }
    }
}
