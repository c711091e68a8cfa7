//! Convolutions against their definition, on every instruction set, matrix unit and thread count.

use super::tests::{check, check_with, conv, ending, floats, is_left_out, narrow, two};
use crate::Winograd;
use halimede_graph::Op;
use halimede_graph::ops::*;
use halimede_tensor::{CastOptions, DType, Tensor};

#[test]
fn convolutions_of_bf16() {
    let tiled = |op: Conv| Conv { channels_last: true, multiply: Some(Factors::Bf16), ..op };
    let cases: &[(Conv, &[usize], &[usize])] = &[
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 1), &[2, 9, 11, 3], &[40, 3, 3, 3]),
        (conv(&[2, 2], &[1, 1], &[3, 3, 3, 3], 1), &[1, 20, 17, 3], &[13, 3, 7, 7]),
        (conv(&[1, 1], &[1, 1], &[0, 0, 0, 0], 1), &[2, 19, 23, 40], &[70, 40, 1, 1]),
        // Half a panel behind a whole one, and alone.
        (conv(&[1, 1], &[1, 1], &[0, 0, 0, 0], 1), &[1, 19, 23, 40], &[48, 40, 1, 1]),
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 1), &[1, 9, 14, 40], &[16, 40, 3, 3]),
        // Three quarters of one.
        (conv(&[1, 1], &[1, 1], &[0, 0, 0, 0], 1), &[1, 19, 23, 40], &[56, 40, 1, 1]),
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 1), &[1, 9, 14, 40], &[24, 40, 3, 3]),
        (conv(&[2, 2], &[1, 1], &[0, 0, 0, 0], 1), &[1, 9, 9, 8], &[9, 8, 1, 1]),
        (conv(&[1, 1], &[1, 1], &[1, 6, 1, 6], 1), &[1, 7, 15, 3], &[9, 3, 3, 13]),
        (conv(&[1, 2], &[2, 3], &[2, 0, 1, 5], 1), &[1, 12, 14, 4], &[9, 4, 3, 2]),
        (conv(&[1, 2], &[2, 3], &[2, 0, 1, 5], 1), &[1, 12, 14, 20], &[9, 20, 3, 2]),
        (conv(&[2, 2], &[1, 1], &[1, 1, 1, 1], 1), &[2, 14, 13, 64], &[33, 64, 3, 3]),
        // Few channels; strides, dilations and borders mixed.
        (conv(&[2, 2], &[1, 1], &[0, 0, 1, 1], 1), &[2, 21, 34, 3], &[13, 3, 3, 3]),
        (conv(&[1, 1], &[3, 1], &[2, 0, 2, 3], 1), &[1, 9, 10, 4], &[9, 4, 2, 2]),
        (conv(&[2, 1], &[2, 1], &[5, 0, 4, 0], 1), &[1, 20, 7, 3], &[8, 3, 5, 1]),
        (conv(&[1, 3], &[1, 2], &[-1, 1, 0, 2], 1), &[1, 6, 23, 2], &[5, 2, 3, 3]),
        // Windows a period of the first-level cache apart.
        (conv(&[1, 1024], &[1, 1], &[0, 0, 0, 0], 1), &[1, 2, 5000, 1], &[9, 1, 1, 3]),
        // The border cuts away the whole width.
        (conv(&[1, 1], &[1, 1], &[1, -3, 1, 4], 1), &[1, 3, 2, 3], &[5, 3, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[1, -3, 1, 4], 1), &[1, 3, 2, 40], &[5, 40, 3, 3]),
        // More steps than a pass, more rows than a task.
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 1), &[1, 3, 4, 200], &[33, 200, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 1), &[1, 40, 40, 96], &[35, 96, 3, 3]),
        (conv(&[1], &[1], &[1, 1], 1), &[2, 30, 5], &[9, 5, 3]),
        // Rows of one or more tiles, whole or nearly so.
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 1), &[2, 5, 16, 70], &[33, 70, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 1), &[2, 3, 31, 40], &[40, 40, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 1), &[1, 4, 48, 64], &[64, 64, 3, 3]),
        (conv(&[2, 2], &[1, 1], &[1, 1, 1, 1], 1), &[2, 6, 32, 64], &[33, 64, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[-1, 0, 0, -1], 1), &[1, 8, 8, 20], &[8, 20, 3, 3]),
        // The kernel is larger than the image.
        (conv(&[1, 1], &[1, 1], &[4, 4, 4, 4], 1), &[1, 2, 2, 32], &[8, 32, 5, 5]),
        // Pixels a period of the cache apart.
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 1), &[1, 5, 3, 1024], &[8, 1024, 3, 3]),
        // So few pixels that threads take columns of all of them; images in groups, of which the last has fewer.
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 1), &[5, 2, 3, 40], &[100, 40, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 1), &[16, 3, 3, 40], &[33, 40, 3, 3]),
    ];
    for (op, x, w) in cases {
        if x[1] * x[2] > 1000 && is_left_out(x) {
            continue;
        }
        let (x, w, bias) = (floats(x, 1), floats(w, 2), floats(&w[..1], 3));
        // BFDOT rounds a sum of two products before it adds it: over 9216 terms that is more than 3e-6 of the largest result.
        let of_narrow = [Some(narrow(&x)), Some(w.clone()), Some(bias)];
        check_with(Winograd::Never, Op::Conv(tiled(op.clone())), &two(x, w), &[1], 5e-6);
        check_with(Winograd::Never, Op::Conv(tiled(op.clone())), &of_narrow, &[1], 5e-6);
    }
    for rounded in [false, true] {
        for function in [Unary::Abs, Unary::Silu] {
            let residual = if rounded { DType::Bf16 } else { DType::F32 };
            let plain = tiled(conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 1));
            let op = Conv { epilogue: Some(ending(residual, function, rounded)), ..plain };
            let other = floats(&[1, 7, 9, 40], 3).cast(residual, CastOptions::default()).unwrap();
            let bias = floats(&[40], 4);
            let inputs = [floats(&[1, 7, 9, 24], 1), floats(&[40, 24, 3, 3], 2), bias, other];
            check(Op::Conv(op), &inputs.map(Some), &[1], 3e-6);
        }
    }
}

#[test]
fn pixels_between_taps_are_not_seen() {
    // Few channels, of which what a pixel sees of a row would be a step of the matrix unit.
    let plain = conv(&[1, 1], &[1, 2], &[0, 0, 0, 0], 1);
    let op = Conv { channels_last: true, multiply: Some(Factors::Bf16), ..plain };
    let shape = [1, 2, 5, 3];
    let mut x = floats(&shape, 1).slice::<f32>().unwrap().to_vec();
    // A pixel that the second output sees, and the first does not.
    x[3] = f32::INFINITY;
    let inputs = [Tensor::from_slice(&shape, &x).unwrap(), floats(&[4, 3, 1, 2], 2)];
    check(Op::Conv(op), &inputs.map(Some), &[1], 3e-6);
}

#[test]
fn pixels_beside_a_window_are_not_seen() {
    // Nine numbers of a row, which are no whole groups: the tenth is its neighbour's, seen by some pixels of the output alone.
    let plain = conv(&[2, 2], &[1, 1], &[1, 1, 1, 1], 1);
    let op = Conv { channels_last: true, multiply: Some(Factors::Bf16), ..plain };
    let shape = [2, 9, 40, 3];
    for odd in [f32::INFINITY, f32::NAN] {
        for pixel in [0, 2, 21, 39] {
            let mut x = floats(&shape, 1).slice::<f32>().unwrap().to_vec();
            x[(9 * 40 + 4 * 40 + pixel) * 3] = odd;
            let inputs = [Tensor::from_slice(&shape, &x).unwrap(), floats(&[33, 3, 3, 3], 2)];
            check(Op::Conv(op.clone()), &inputs.map(Some), &[1], 3e-6);
        }
    }
}

#[test]
fn convolutions_of_every_kind() {
    let cases: &[(Conv, &[usize], &[usize])] = &[
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 1), &[2, 3, 9, 11], &[5, 3, 3, 3]),
        (conv(&[2, 2], &[1, 1], &[3, 3, 3, 3], 1), &[1, 3, 20, 17], &[13, 3, 7, 7]),
        (conv(&[1, 1], &[1, 1], &[0, 0, 0, 0], 1), &[2, 40, 7, 7], &[70, 40, 1, 1]),
        (conv(&[2, 2], &[1, 1], &[0, 0, 0, 0], 1), &[1, 8, 9, 9], &[6, 8, 1, 1]),
        (conv(&[1, 2], &[2, 3], &[2, 0, 1, 5], 1), &[1, 4, 12, 14], &[6, 4, 3, 2]),
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 2), &[1, 6, 8, 8], &[8, 3, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 6), &[2, 6, 10, 9], &[6, 1, 3, 3]),
        (conv(&[2, 2], &[1, 1], &[2, 2, 2, 2], 6), &[1, 6, 11, 12], &[12, 1, 5, 5]),
        (conv(&[1], &[1], &[1, 1], 1), &[2, 5, 30], &[4, 5, 3]),
        (conv(&[1, 2, 1], &[1, 1, 2], &[1, 1, 1, 1, 1, 1], 1), &[1, 2, 5, 6, 7], &[3, 2, 2, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[-1, 0, 0, -1], 1), &[1, 2, 8, 8], &[3, 2, 3, 3]),
    ];
    for (op, x, w) in cases {
        let (x, w, bias) = (floats(x, 1), floats(w, 2), floats(&w[..1], 3));
        for weights in [&[][..], &[1]] {
            check(Op::Conv(op.clone()), &two(x.clone(), w.clone()), weights, 2e-6);
            check(Op::Conv(op.clone()), &[Some(x.clone()), Some(w.clone()), Some(bias.clone())], weights, 2e-6);
        }
    }
}

#[test]
fn convolutions_with_the_channels_last() {
    let last = |op: Conv| Conv { channels_last: true, ..op };
    let cases: &[(Conv, &[usize], &[usize])] = &[
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 1), &[2, 9, 11, 3], &[40, 3, 3, 3]),
        (conv(&[2, 2], &[1, 1], &[3, 3, 3, 3], 1), &[1, 20, 17, 3], &[13, 3, 7, 7]),
        // One product over all pixels, more than a block of them.
        (conv(&[1, 1], &[1, 1], &[0, 0, 0, 0], 1), &[2, 19, 23, 40], &[70, 40, 1, 1]),
        (conv(&[2, 2], &[1, 1], &[0, 0, 0, 0], 1), &[1, 9, 9, 8], &[9, 8, 1, 1]),
        (conv(&[1, 1], &[1, 1], &[1, 6, 1, 6], 1), &[1, 7, 15, 3], &[9, 3, 3, 13]),
        (conv(&[1, 2], &[2, 3], &[2, 0, 1, 5], 1), &[1, 12, 14, 4], &[9, 4, 3, 2]),
        // A run longer than a piece, a row wider than a block.
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 1), &[1, 3, 4, 200], &[33, 200, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 1), &[1, 2, 230, 2], &[9, 2, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 2), &[1, 8, 8, 6], &[16, 3, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 70), &[2, 10, 9, 70], &[70, 1, 3, 3]),
        (conv(&[2, 2], &[1, 2], &[2, 2, 2, 2], 32), &[1, 11, 12, 32], &[32, 1, 5, 5]),
        (conv(&[1], &[1], &[1, 1], 1), &[2, 30, 5], &[9, 5, 3]),
        (conv(&[1, 1], &[1, 1], &[-1, 0, 0, -1], 1), &[1, 8, 8, 2], &[8, 2, 3, 3]),
        // The kernel is larger than the image.
        (conv(&[1, 1], &[1, 1], &[4, 4, 4, 4], 1), &[1, 2, 2, 3], &[8, 3, 5, 5]),
    ];
    for (op, x, w) in cases {
        let (x, w, bias) = (floats(x, 1), floats(w, 2), floats(&w[..1], 3));
        check(Op::Conv(last(op.clone())), &two(x.clone(), w.clone()), &[1], 2e-6);
        check(Op::Conv(last(op.clone())), &[Some(x), Some(w), Some(bias)], &[1], 2e-6);
    }
    let mut epilogue = Map::default();
    let (result, residual) = (epilogue.push(Instruction::Input(0)), epilogue.push(Instruction::Input(1)));
    let sum = epilogue.push(Instruction::Binary(Binary::Add, result, residual));
    epilogue.push(Instruction::Unary(Unary::Silu, sum));
    for (groups, w) in [(1, [40, 40, 3, 3]), (40, [40, 1, 3, 3])] {
        let op = Conv { epilogue: Some(epilogue.clone()), ..conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], groups) };
        let (x, w) = (floats(&[2, 19, 19, 40], 1), floats(&w, 2));
        // A residual as large as the result, and one number per channel.
        for residual in [&[2, 19, 19, 40][..], &[1, 1, 1, 40]] {
            let inputs = [Some(x.clone()), Some(w.clone()), Some(floats(&[40], 9)), Some(floats(residual, 3))];
            check(Op::Conv(last(op.clone())), &inputs, &[1, 2], 2e-6);
        }
    }
}

#[test]
fn depthwise_convolutions_with_the_channels_last() {
    // Borders, strides and taps for every form of block; widths that blocks of seven and of four leave over.
    let cases: &[(Conv, &[usize], &[usize])] = &[
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 64), &[1, 5, 14, 64], &[64, 1, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[2, 2, 2, 2], 40), &[2, 6, 9, 40], &[40, 1, 5, 5]),
        (conv(&[2, 2], &[1, 1], &[1, 1, 1, 1], 96), &[1, 9, 15, 96], &[96, 1, 3, 3]),
        (conv(&[2, 1], &[1, 1], &[0, 3, 1, 2], 17), &[1, 7, 6, 17], &[17, 1, 5, 5]),
        (conv(&[2, 2], &[1, 1], &[1, 2, 2, 1], 48), &[2, 8, 19, 48], &[48, 1, 5, 5]),
        // More than one strip of rows.
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 96), &[1, 23, 66, 96], &[96, 1, 3, 3]),
        (conv(&[1, 1], &[2, 3], &[2, 3, 2, 3], 33), &[1, 6, 11, 33], &[33, 1, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 32), &[1, 3, 2, 32], &[32, 1, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[3, 3, 3, 3], 9), &[1, 4, 8, 9], &[9, 1, 7, 7]),
        (conv(&[1, 1], &[1, 1], &[-1, -1, 0, 1], 3), &[1, 6, 8, 3], &[3, 1, 3, 3]),
        (conv(&[1], &[1], &[2, 0], 16), &[2, 10, 16], &[16, 1, 3]),
        // Borders wider than the kernel, on either side.
        (conv(&[1, 1], &[1, 1], &[1, 4, 1, 0], 32), &[1, 4, 10, 32], &[32, 1, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[1, 0, 1, 5], 32), &[1, 4, 10, 32], &[32, 1, 3, 3]),
        (conv(&[2, 2], &[1, 1], &[2, 7, 2, 6], 64), &[1, 5, 20, 64], &[64, 1, 5, 5]),
        // Groups of several channels: whole blocks, ones that share channels, and fewer than the least block has.
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 32), &[1, 5, 14, 64], &[64, 2, 3, 3]),
        (conv(&[2, 2], &[1, 1], &[1, 1, 1, 1], 20), &[2, 9, 15, 80], &[80, 4, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 9), &[1, 5, 12, 72], &[72, 8, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 7), &[1, 6, 9, 112], &[112, 16, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[2, 2, 2, 2], 6), &[1, 6, 9, 24], &[24, 4, 5, 5]),
        (conv(&[1, 2], &[2, 1], &[2, 1, 2, 1], 3), &[1, 6, 9, 12], &[12, 4, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[0, 0, 0, 0], 3), &[1, 3, 8, 6], &[6, 2, 1, 1]),
        (conv(&[1, 1], &[1, 1], &[1, 4, 1, 0], 16), &[1, 4, 10, 64], &[64, 4, 3, 3]),
        (conv(&[1], &[1], &[1, 1], 2), &[2, 10, 32], &[32, 16, 3]),
    ];
    for (op, x, w) in cases {
        let op = Conv { channels_last: true, ..op.clone() };
        let (x, w, bias) = (floats(x, 1), floats(w, 2), floats(&w[..1], 3));
        for x in [narrow(&x), x] {
            check(Op::Conv(op.clone()), &two(x.clone(), w.clone()), &[1], 2e-6);
            check(Op::Conv(op.clone()), &[Some(x), Some(w.clone()), Some(bias.clone())], &[1], 2e-6);
        }
    }
    let plain = Conv { channels_last: true, ..conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 40) };
    let (x, w, bias) = (floats(&[2, 7, 9, 40], 1), floats(&[40, 1, 3, 3], 2), floats(&[40], 4));
    for (residual, function, rounded) in [
        (DType::F32, Unary::Abs, false),
        (DType::F32, Unary::Silu, true),
        (DType::Bf16, Unary::Abs, true),
        (DType::Bf16, Unary::Silu, false),
    ] {
        let op = Conv { epilogue: Some(ending(residual, function, rounded)), ..plain.clone() };
        let other = floats(&[2, 7, 9, 40], 3).cast(residual, CastOptions::default()).unwrap();
        for x in [narrow(&x), x.clone()] {
            let inputs = [Some(x), Some(w.clone()), Some(bias.clone()), Some(other.clone())];
            check(Op::Conv(op.clone()), &inputs, &[1, 2], 2e-6);
        }
    }
    // The residual behind the function.
    for rounded in [false, true] {
        let mut map = Map::default();
        let (result, residual) = (map.push(Instruction::Input(0)), map.push(Instruction::Input(1)));
        let residual = map.push(Instruction::Cast(DType::F32, residual));
        let active = map.push(Instruction::Unary(Unary::Silu, result));
        let sum = map.push(Instruction::Binary(Binary::Add, residual, active));
        if rounded {
            map.push(Instruction::Cast(DType::Bf16, sum));
        }
        let other = Some(narrow(&floats(&[2, 7, 9, 40], 3)));
        let inputs = [Some(x.clone()), Some(w.clone()), Some(bias.clone()), other];
        check(Op::Conv(Conv { epilogue: Some(map.clone()), ..plain.clone() }), &inputs, &[1, 2], 2e-6);
        let op = Conv { epilogue: Some(map), groups: 1, multiply: Some(Factors::Bf16), ..plain.clone() };
        let [x, _, bias, other] = inputs;
        check(Op::Conv(op), &[x, Some(floats(&[40, 40, 3, 3], 2)), bias, other], &[1, 2], 3e-6);
    }
    // Bounds alone are applied before sums leave their registers.
    for rounded in [false, true] {
        let mut relu = Map::default();
        let (sum, zero) = (Instruction::Input(0), Instruction::Constant(Scalar::Float(0.0, DType::F32)));
        let (sum, zero) = (relu.push(sum), relu.push(zero));
        let last = relu.push(Instruction::Binary(Binary::Max, sum, zero));
        if rounded {
            relu.push(Instruction::Cast(DType::Bf16, last));
        }
        let op = Conv { epilogue: Some(relu), ..plain.clone() };
        check(Op::Conv(op), &two(narrow(&x), w.clone()), &[1], 2e-6);
    }
}

#[test]
fn convolutions_in_groups_of_bf16() {
    // Whole blocks and others, single pixels, strides, several images, gaps, other channels out than in.
    let cases: &[(Conv, &[usize], &[usize])] = &[
        (conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 4), &[1, 9, 14, 128], &[128, 32, 3, 3]),
        (conv(&[2, 2], &[1, 1], &[1, 1, 1, 1], 3), &[2, 9, 15, 120], &[120, 40, 3, 3]),
        (conv(&[1, 1], &[1, 1], &[0, 0, 0, 0], 2), &[2, 7, 9, 48], &[140, 24, 1, 1]),
        (conv(&[1, 2], &[2, 1], &[2, 1, 2, 1], 2), &[1, 9, 11, 160], &[64, 80, 3, 3]),
        (conv(&[1], &[1], &[1, 1], 5), &[2, 30, 85], &[95, 17, 3]),
    ];
    let map = |rounded| ending(DType::Bf16, Unary::Silu, rounded);
    for (op, x, w) in cases {
        let op = Conv { channels_last: true, multiply: Some(Factors::Bf16), ..op.clone() };
        let (x, w, bias) = (floats(x, 1), floats(w, 2), floats(&w[..1], 3));
        for x in [narrow(&x), x] {
            check(Op::Conv(op.clone()), &two(x.clone(), w.clone()), &[1], 3e-6);
            check(Op::Conv(op.clone()), &[Some(x.clone()), Some(w.clone()), Some(bias.clone())], &[1], 3e-6);
            let shape = op.evaluate(&[Some(&floats(x.shape(), 1)), Some(&w)]).unwrap()[0].shape().to_vec();
            for rounded in [false, true] {
                let op = Conv { epilogue: Some(map(rounded)), ..op.clone() };
                let other = Some(narrow(&floats(&shape, 4)));
                let inputs = [Some(x.clone()), Some(w.clone()), Some(bias.clone()), other];
                check(Op::Conv(op), &inputs, &[1, 2], 3e-6);
            }
        }
    }
}

#[test]
fn groups_do_not_see_each_other() {
    // What is infinite in one group is nothing to the others.
    let op = Conv { channels_last: true, ..conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 16) };
    let x: Vec<f32> =
        (0..7 * 9 * 64).map(|i| if i % 64 == 13 { f32::INFINITY } else { (i % 19) as f32 - 9.0 }).collect();
    let (x, w) = (Tensor::from_slice(&[1, 7, 9, 64], &x).unwrap(), floats(&[64, 4, 3, 3], 2));
    for x in [narrow(&x), x] {
        check(Op::Conv(op.clone()), &two(x, w.clone()), &[1], 2e-6);
    }
}

#[test]
fn convolutions_with_an_epilogue() {
    let mut epilogue = Map::default();
    let result = epilogue.push(Instruction::Input(0));
    let residual = epilogue.push(Instruction::Input(1));
    let sum = epilogue.push(Instruction::Binary(Binary::Add, result, residual));
    epilogue.push(Instruction::Unary(Unary::Silu, sum));
    for (groups, w) in [(1, [6, 6, 3, 3]), (6, [6, 1, 3, 3])] {
        let op = Conv { epilogue: Some(epilogue.clone()), ..conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], groups) };
        let (x, w, residual) = (floats(&[2, 6, 19, 19], 1), floats(&w, 2), floats(&[2, 6, 19, 19], 3));
        let inputs = [Some(x), Some(w), Some(floats(&[6], 9)), Some(residual)];
        check(Op::Conv(op), &inputs, &[1, 2], 2e-6);
    }
}

#[test]
fn transposed_convolutions() {
    for (stride, output_padding, groups) in [(1, 0, 1), (2, 1, 1), (3, 2, 2)] {
        let op = Conv {
            transposed: Some(Transposed {
                output_padding: [output_padding; 2].as_slice().into(),
                ..Default::default()
            }),
            ..conv(&[stride, stride], &[1, 1], &[1, 0, 1, 1], groups)
        };
        let inputs = [Some(floats(&[2, 4, 5, 6], 1)), Some(floats(&[4, 3, 3, 3], 2)), Some(floats(&[3 * groups], 3))];
        check(Op::Conv(op.clone()), &inputs, &[], 2e-6);
        let mut epilogue = Map::default();
        let result = epilogue.push(Instruction::Input(0));
        epilogue.push(Instruction::Unary(Unary::Silu, result));
        check(Op::Conv(Conv { epilogue: Some(epilogue), ..op }), &inputs, &[], 2e-6);
    }
}

#[test]
fn transposed_convolutions_of_many_shapes() {
    // Data, weights, strides, dilations, borders, groups: volumes, signals, blocks of pixels, parts of channels, sums in several pieces.
    let cases: &[(&[usize], &[usize], &[usize], &[usize], &[i64], usize)] = &[
        (&[2, 6, 4, 5, 7], &[6, 5, 2, 3, 2], &[2, 1, 3], &[1, 2, 1], &[0, 1, 1, 1, 0, 0], 1),
        (&[1, 8, 5, 6, 9], &[8, 3, 3, 2, 2], &[1, 2, 2], &[2, 1, 3], &[1, 0, 2, 0, 1, 1], 4),
        (&[2, 3, 300], &[3, 70, 4], &[2], &[1], &[3, 0], 1),
        (&[1, 300, 20, 21], &[300, 30, 3, 3], &[2, 2], &[1, 1], &[1, 1, 1, 1], 1),
        (&[1, 4, 6, 5], &[4, 1, 3, 3], &[4, 5], &[1, 1], &[0, 0, 0, 0], 4),
        // A border wider than what is made on either side.
        (&[1, 2, 3, 4], &[2, 3, 5, 5], &[1, 2], &[1, 1], &[4, 3, 2, 5], 1),
    ];
    for &(x, w, strides, dilations, pads, groups) in cases {
        let op = Conv { transposed: Some(Transposed::default()), ..conv(strides, dilations, pads, groups) };
        let inputs = [Some(floats(x, 1)), Some(floats(w, 2)), Some(floats(&[w[1] * groups], 3))];
        check(Op::Conv(op.clone()), &inputs, &[], 2e-6);
        let mut epilogue = Map::default();
        let result = epilogue.push(Instruction::Input(0));
        epilogue.push(Instruction::Unary(Unary::Silu, result));
        check(Op::Conv(Conv { epilogue: Some(epilogue), ..op }), &inputs[..2], &[1], 2e-6);
    }
}

#[test]
fn transposed_convolutions_with_the_channels_last() {
    // Stride, taps, border, added to the end.
    let even = [(1, 3, 1, 0), (2, 2, 0, 0), (2, 3, 1, 1), (2, 4, 1, 0), (3, 2, 0, 1), (3, 5, 2, 2), (2, 3, -1, 0)];
    let even = even.map(|(stride, taps, border, end)| ([stride; 2], taps, border, end));
    // Of lines of an odd number of pixels, every second one.
    for (strides, taps, border, end) in even.into_iter().chain([([1, 2], 3, 1, 0)]) {
        let op = Conv {
            transposed: Some(Transposed { output_padding: [end; 2].as_slice().into(), ..Default::default() }),
            channels_last: true,
            ..conv(&strides, &[1, 1], &[border, border, 0, border], 1)
        };
        let inputs = [Some(floats(&[2, 5, 6, 7], 1)), Some(floats(&[7, 40, taps, taps], 2)), Some(floats(&[40], 3))];
        check(Op::Conv(op.clone()), &inputs, &[1], 2e-6);
        check(Op::Conv(op.clone()), &inputs[..2], &[1], 2e-6);
        let mut epilogue = Map::default();
        let (result, scale) = (epilogue.push(Instruction::Input(0)), epilogue.push(Instruction::Input(1)));
        epilogue.push(Instruction::Binary(Binary::Mul, result, scale));
        let scaled = [inputs.to_vec(), vec![Some(floats(&[1, 1, 1, 40], 4))]].concat();
        check(Op::Conv(Conv { epilogue: Some(epilogue), ..op.clone() }), &scaled, &[1, 2], 2e-6);
        // Products of bf16, of few channels and of whole steps.
        let [_, _, bias] = inputs;
        for channels in [7, 40] {
            let op = Conv { multiply: Some(Factors::Bf16), ..op.clone() };
            let (x, w) = (floats(&[2, 5, 6, channels], 1), floats(&[channels, 40, taps, taps], 2));
            check(Op::Conv(op.clone()), &[Some(x.clone()), Some(w.clone()), bias.clone()], &[1], 3e-6);
            let mut rounded = Map::default();
            let result = rounded.push(Instruction::Input(0));
            rounded.push(Instruction::Cast(DType::Bf16, result));
            let op = Conv { epilogue: Some(rounded), ..op };
            check(Op::Conv(op), &[Some(narrow(&x)), Some(w), bias.clone()], &[1], 3e-6);
        }
    }
}

#[test]
fn transposed_convolutions_in_groups_and_with_gaps() {
    // Strides, dilations, size of the kernel, border, groups, and channels of each in and out: narrow ones, others, ones of one.
    let cases = [
        ([2, 2], [1, 1], 3, 1, 4, [16, 16]),
        ([2, 1], [1, 1], 4, 1, 16, [1, 1]),
        ([2, 2], [1, 1], 4, 1, 40, [1, 1]),
        ([3, 2], [1, 1], 2, 0, 9, [4, 4]),
        ([1, 1], [2, 2], 3, 2, 1, [24, 20]),
        ([2, 3], [3, 2], 3, 2, 2, [8, 8]),
        ([2, 2], [2, 1], 3, 0, 3, [5, 12]),
    ];
    for (strides, dilations, taps, border, groups, [from, to]) in cases {
        let op = Conv {
            transposed: Some(Transposed { output_padding: [1, 0].as_slice().into(), ..Default::default() }),
            channels_last: true,
            ..conv(&strides, &dilations, &[border, border, 0, border], groups)
        };
        let (inputs, outputs) = (groups * from, groups * to);
        let w = floats(&[inputs, to, taps, taps], 2);
        let (x, bias) = (floats(&[2, 5, 9, inputs], 1), floats(&[outputs], 3));
        let is_narrow = op.narrow_groups(w.shape()).is_some();
        assert_eq!(is_narrow, from == to && from.is_power_of_two() && groups > 1);
        for x in is_narrow.then(|| narrow(&x)).into_iter().chain([x.clone()]) {
            check(Op::Conv(op.clone()), &[Some(x.clone()), Some(w.clone()), Some(bias.clone())], &[1], 2e-6);
            check(Op::Conv(op.clone()), &two(x.clone(), w.clone()), &[1], 2e-6);
            // What ends sums in registers, by rows of blocks, and by rows of all channels.
            let shape = op.evaluate(&[Some(&floats(x.shape(), 1)), Some(&w)]).unwrap()[0].shape().to_vec();
            for (residual, function) in [(&shape[..], Unary::Silu), (&[1, 1, 1, outputs], Unary::Abs)] {
                let op = Conv { epilogue: Some(ending(DType::F32, function, false)), ..op.clone() };
                let inputs = [Some(x.clone()), Some(w.clone()), Some(bias.clone()), Some(floats(residual, 5))];
                check(Op::Conv(op), &inputs, &[1, 2], 3e-6);
            }
        }
        if groups == 1 {
            // The second has pixels that no tap falls on.
            for strides in [strides, [2, 2]] {
                let strides = strides.as_slice().into();
                let op = Conv { multiply: Some(Factors::Bf16), strides, ..op.clone() };
                check(Op::Conv(op), &[Some(x.clone()), Some(w.clone()), Some(bias.clone())], &[1], 3e-6);
            }
        }
    }
}

#[test]
fn transposed_convolutions_that_enlarge_images() {
    // A phase of them has a single tap, and an image as large as the data. Lines of 15 pixels have 8 of one phase and 7 of the other.
    for (strides, end, x, out) in [
        ([2, 2], [1, 1], [2, 5, 6], [2, 10, 12]),
        ([2, 2], [1, 1], [1, 2, 2], [1, 4, 4]),
        ([1, 2], [0, 0], [1, 4, 8], [1, 4, 15]),
    ] {
        let op = Conv {
            transposed: Some(Transposed { output_padding: end.as_slice().into(), ..Default::default() }),
            channels_last: true,
            multiply: Some(Factors::Bf16),
            ..conv(&strides, &[1, 1], &[1, 1, 1, 1], 1)
        };
        let shape = |[batch, height, width]: [usize; 3], channels| [batch, height, width, channels];
        let (x, w, bias) = (floats(&shape(x, 64), 1), floats(&[64, 64, 3, 3], 2), floats(&[64], 3));
        let residual = narrow(&floats(&shape(out, 64), 4));
        check(Op::Conv(op.clone()), &[Some(x.clone()), Some(w.clone())], &[1], 3e-6);
        for bias in [None, Some(bias)] {
            let mut rounded = Map::default();
            let (result, added) = (rounded.push(Instruction::Input(0)), rounded.push(Instruction::Input(1)));
            let added = rounded.push(Instruction::Cast(DType::F32, added));
            let sum = rounded.push(Instruction::Binary(Binary::Add, result, added));
            rounded.push(Instruction::Cast(DType::Bf16, sum));
            let op = Conv { epilogue: Some(rounded), ..op.clone() };
            let inputs = [Some(narrow(&x)), Some(w.clone()), bias, Some(residual.clone())];
            check(Op::Conv(op), &inputs, &[1], 3e-6);
        }
    }
}
