//! Every form against the definition, on every instruction set and thread count.

use super::Form;
use crate::kernels::tests::{check_with, floats};
use crate::unit::Winograd;
use halimede_graph::Op;
use halimede_graph::ops::{Binary, Conv, Factors, Instruction, Map, Padding, Scalar, Unary};
use halimede_tensor::{CastOptions, DType, Tensor};

const FORMS: [Winograd; 3] = [Winograd::F2, Winograd::F4, Winograd::F6];

/// The bound that `exact` sets on a layer: the largest error over the largest element.
const BUDGET: f32 = 1e-5;

/// F(6x6, 3x3) is not inside it for every order of additions, which is why `pays` never chooses it.
fn bound(form: Winograd) -> f32 {
    if form == Winograd::F6 { 3.0 * BUDGET } else { BUDGET }
}

fn conv(pads: &[i64]) -> Conv {
    Conv {
        strides: [1, 1].as_slice().into(),
        dilations: [1, 1].as_slice().into(),
        padding: Padding::Explicit(pads.into()),
        groups: 1,
        transposed: None,
        channels_last: true,
        epilogue: None,
        multiply: None,
    }
}

/// Normally distributed numbers: each the sum of twelve uniform ones.
fn normal(shape: &[usize], seed: u32) -> Tensor {
    let parts: Vec<Tensor> = (0..12).map(|part| floats(shape, seed * 12 + part)).collect();
    let parts: Vec<&[f32]> = parts.iter().map(|part| part.slice().unwrap()).collect();
    let elements: Vec<f32> =
        (0..parts[0].len()).map(|at| parts.iter().map(|part| part[at]).sum::<f32>() / 4.0).collect();
    Tensor::from_slice(shape, &elements).unwrap()
}

#[test]
fn awkward_sizes() {
    let border = &[1, 1, 1, 1];
    // Border, input, outputs.
    let cases: &[(&[i64], [usize; 4], usize)] = &[
        (border, [1, 1, 1, 3], 5),
        (border, [2, 7, 7, 17], 64),
        (border, [2, 5, 9, 3], 17),
        (border, [1, 9, 5, 64], 33),
        (&[0, 0, 0, 0], [2, 6, 13, 20], 40),
        (&[2, 0, 1, 3], [1, 4, 11, 8], 70),
        (&[0, -1, 1, 1], [1, 8, 8, 2], 8),
        // More tiles than a block, more inputs than a piece of the sum.
        (border, [2, 33, 31, 64], 40),
        (border, [1, 4, 4, 300], 9),
    ];
    for &form in &FORMS {
        for &(pads, x, outputs) in cases {
            let inputs = [Some(floats(&x, 1)), Some(floats(&[outputs, x[3], 3, 3], 2)), Some(floats(&[outputs], 3))];
            check_with(form, Op::Conv(conv(pads)), &inputs, &[1], bound(form));
            check_with(form, Op::Conv(conv(pads)), &inputs[..2], &[1], bound(form));
        }
    }
}

#[test]
fn epilogues() {
    let mut bounded = Map::default();
    let (result, residual) = (bounded.push(Instruction::Input(0)), bounded.push(Instruction::Input(1)));
    let sum = bounded.push(Instruction::Binary(Binary::Add, result, residual));
    let zero = bounded.push(Instruction::Constant(Scalar::Float(0.0, DType::F32)));
    bounded.push(Instruction::Binary(Binary::Max, sum, zero));
    let mut program = Map::default();
    let (result, residual) = (program.push(Instruction::Input(0)), program.push(Instruction::Input(1)));
    let sum = program.push(Instruction::Binary(Binary::Add, result, residual));
    program.push(Instruction::Unary(Unary::Silu, sum));
    for (epilogue, shapes) in [(bounded, &[[2, 19, 18, 40]][..]), (program, &[[2, 19, 18, 40], [1, 1, 1, 40]])] {
        let op = Conv { epilogue: Some(epilogue), ..conv(&[1, 1, 1, 1]) };
        for (form, residual) in FORMS.iter().flat_map(|form| shapes.iter().map(move |shape| (form, shape))) {
            let inputs = [[2, 19, 18, 24].as_slice(), &[40, 24, 3, 3], &[40], residual];
            let inputs: Vec<_> = (1..).zip(inputs).map(|(seed, shape)| Some(floats(shape, seed))).collect();
            check_with(*form, Op::Conv(op.clone()), &inputs, &[1, 2], bound(*form));
        }
    }
}

/// Of data and weights rounded to bf16, which the definition rounds and this does not.
const NARROW_BOUND: f32 = 2e-2;

#[test]
fn factors_that_may_be_of_bf16() {
    let narrow = |tensor: Tensor| tensor.cast(DType::Bf16, CastOptions::default()).unwrap();
    let mut narrowed = Map::default();
    let sum = narrowed.push(Instruction::Input(0));
    let zero = narrowed.push(Instruction::Constant(Scalar::Float(0.0, DType::F32)));
    let positive = narrowed.push(Instruction::Binary(Binary::Max, sum, zero));
    narrowed.push(Instruction::Cast(DType::Bf16, positive));
    for &form in &FORMS[..2] {
        for (x, outputs) in [([1, 9, 5, 64], 33), ([2, 33, 31, 64], 40), ([1, 4, 4, 300], 9), ([2, 7, 7, 17], 64)] {
            for (epilogue, is_narrow) in [(None, false), (None, true), (Some(&narrowed), true)] {
                let data = floats(&x, 1);
                let data = if is_narrow { narrow(data) } else { data };
                let inputs = [Some(data), Some(floats(&[outputs, x[3], 3, 3], 2)), Some(floats(&[outputs], 3))];
                let op = Conv { multiply: Some(Factors::Bf16), epilogue: epilogue.cloned(), ..conv(&[1, 1, 1, 1]) };
                check_with(form, Op::Conv(op), &inputs, &[1], NARROW_BOUND);
            }
        }
    }
}

#[test]
fn the_rule_beside_bf16_follows_the_measurements() {
    let op = Conv { multiply: Some(Factors::Bf16), ..conv(&[1, 1, 1, 1]) };
    let choose = |channels: usize, image: [usize; 3]| {
        Form::choose(Winograd::WherePays, &op, &[channels, channels, 3, 3], Some(image))
    };
    for (channels, image, form) in [
        (64, [1, 56, 56], Some(Form::F4)),
        (128, [1, 28, 28], Some(Form::F4)),
        (256, [1, 14, 14], None),
        (256, [1, 20, 20], Some(Form::F4)),
        (32, [1, 160, 160], None),
        (512, [1, 16, 16], None),
    ] {
        assert_eq!(choose(channels, image), form, "{channels} channels, {image:?}");
    }
    let integers = Conv { multiply: Some(Factors::Integers), ..op.clone() };
    assert_eq!(Form::choose(Winograd::F4, &integers, &[64, 64, 3, 3], None), None);
}

#[test]
fn the_error_on_normal_data_is_inside_the_budget() {
    for (form, bound) in [(Winograd::F2, 1e-6), (Winograd::F4, BUDGET / 2.0)] {
        for channels in [64, 256] {
            let inputs = [Some(normal(&[1, 12, 12, channels], 1)), Some(normal(&[32, channels, 3, 3], 2))];
            check_with(form, Op::Conv(conv(&[1, 1, 1, 1])), &inputs, &[1], bound);
        }
    }
}

#[test]
fn other_convolutions_are_left_alone() {
    let plain = conv(&[1, 1, 1, 1]);
    let choose = |op: &Conv, weights: &[usize]| Form::choose(Winograd::F4, op, weights, None);
    assert_eq!(choose(&plain, &[8, 8, 3, 3]), Some(Form::F4));
    assert_eq!(choose(&plain, &[8, 8, 1, 1]), None);
    assert_eq!(choose(&plain, &[8, 8, 3]), None);
    let two = || [2, 2].as_slice().into();
    for op in [
        Conv { strides: two(), ..plain.clone() },
        Conv { dilations: two(), ..plain.clone() },
        Conv { groups: 2, ..plain.clone() },
        Conv { channels_last: false, ..plain.clone() },
        Conv { transposed: Some(Default::default()), ..plain.clone() },
    ] {
        assert_eq!(choose(&op, &[8, 8, 3, 3]), None);
    }
    assert_eq!(Form::choose(Winograd::Never, &plain, &[64, 64, 3, 3], Some([1, 56, 56])), None);
}

#[test]
fn the_rule_follows_the_measurements() {
    let choose = |channels: usize, image: [usize; 3]| {
        Form::choose(Winograd::WherePays, &conv(&[1, 1, 1, 1]), &[channels, channels, 3, 3], Some(image))
    };
    for (channels, image, form) in [
        (64, [1, 56, 56], Some(Form::F4)),
        (128, [1, 28, 28], Some(Form::F4)),
        (256, [1, 14, 14], Some(Form::F2)),
        (512, [1, 7, 7], None),
        (32, [1, 160, 160], Some(Form::F4)),
        (32, [1, 28, 28], None),
        (3, [1, 224, 224], None),
        // Transformed weights of four times the size are kept for small ones.
        (512, [1, 20, 20], Some(Form::F2)),
        (512, [0, 7, 7], None),
    ] {
        assert_eq!(choose(channels, image), form, "{channels} channels, {image:?}");
    }
    let unknown = Form::choose(Winograd::WherePays, &conv(&[1, 1, 1, 1]), &[64, 64, 3, 3], None);
    assert_eq!(unknown, None);
}
