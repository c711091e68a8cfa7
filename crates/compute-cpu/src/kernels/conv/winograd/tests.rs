//! Every form against the definition, on every instruction set and thread count.

use super::Form;
use crate::kernels::tests::{check_by, check_with, floats, is_left_out, machines};
use crate::kernels::{Kernels, Machine};
use crate::unit::Winograd;
use halimede_compute::Kernels as _;
use halimede_compute::packed::Packer;
use halimede_graph::ops::{Binary, Conv, Factors, Instruction, Map, Padding, Scalar, Unary};
use halimede_graph::{Builder, Fact, Graph, Op};
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

const BORDER: &[i64] = &[1, 1, 1, 1];

/// Border, input, outputs.
const AWKWARD: &[(&[i64], [usize; 4], usize)] = &[
    (BORDER, [1, 1, 1, 3], 5),
    (BORDER, [2, 7, 7, 17], 64),
    (BORDER, [2, 5, 9, 3], 17),
    (BORDER, [1, 9, 5, 64], 33),
    (&[0, 0, 0, 0], [2, 6, 13, 20], 40),
    (&[2, 0, 1, 3], [1, 4, 11, 8], 70),
    (&[0, -1, 1, 1], [1, 8, 8, 2], 8),
    // More tiles than a block, more inputs than a piece of the sum.
    (BORDER, [2, 33, 31, 64], 40),
    (BORDER, [1, 4, 4, 300], 9),
    // An empty batch.
    (BORDER, [0, 7, 7, 17], 64),
];

#[test]
fn awkward_sizes() {
    for &form in &FORMS {
        for &(pads, x, outputs) in AWKWARD {
            let inputs = [Some(floats(&x, 1)), Some(floats(&[outputs, x[3], 3, 3], 2)), Some(floats(&[outputs], 3))];
            check_with(form, Op::Conv(conv(pads)), &inputs, &[1], bound(form));
            check_with(form, Op::Conv(conv(pads)), &inputs[..2], &[1], bound(form));
        }
    }
}

/// Data of 17 x 13 pixels with some elements of another size.
fn with_elements(elements: &[([usize; 3], f32)]) -> Tensor {
    let mut data = floats(&[2, 17, 13, 24], 1);
    let numbers = data.slice_mut::<f32>().unwrap();
    for &([image, row, column], element) in elements {
        // In the last channels, which do not fill a register.
        numbers[((image * 17 + row) * 13 + column) * 24 + 21] = element;
    }
    data
}

/// Where one tile begins, in its middle, in two tiles' common pixels, and in a border.
const PLACES: [[usize; 3]; 4] = [[0, 3, 3], [0, 9, 6], [1, 4, 5], [1, 16, 12]];

#[test]
fn elements_that_are_not_finite_stay_where_they_are_seen() {
    let mut zeros = floats(&[40, 24, 3, 3], 2);
    zeros.slice_mut::<f32>().unwrap().iter_mut().step_by(5).for_each(|weight| *weight = 0.0);
    let numbers = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let all: Vec<_> = PLACES.iter().copied().zip(numbers.into_iter().cycle()).collect();
    let near = [([0, 3, 3], f32::INFINITY), ([0, 3, 4], f32::NEG_INFINITY), ([0, 12, 1], f32::NAN)];
    for (form, elements) in FORMS.iter().flat_map(|&form| [&all[..], &near].map(|elements| (form, elements))) {
        // What lies in the part of the data that is cut off is seen by nobody.
        for pads in [&[1, 1, 1, 1], &[0, 0, -1, -1]] {
            let inputs = [Some(with_elements(elements)), Some(zeros.clone()), Some(floats(&[40], 3))];
            check_with(form, Op::Conv(conv(pads)), &inputs, &[1], bound(form));
        }
    }
}

#[test]
fn very_large_elements_stay_where_they_are_seen() {
    // They would be the scale of every comparison.
    let mut bounded = Map::default();
    let sum = bounded.push(Instruction::Input(0));
    let most = bounded.push(Instruction::Constant(Scalar::Float(8.0, DType::F32)));
    let least = bounded.push(Instruction::Constant(Scalar::Float(-8.0, DType::F32)));
    let below = bounded.push(Instruction::Binary(Binary::Min, sum, most));
    bounded.push(Instruction::Binary(Binary::Max, below, least));
    let op = Conv { epilogue: Some(bounded), ..conv(&[1, 1, 1, 1]) };
    for (form, large) in FORMS.iter().flat_map(|&form| [1e25, -1e30, f32::MAX].map(|large| (form, large))) {
        let data = with_elements(&PLACES.map(|place| (place, large)));
        let inputs = [Some(data), Some(floats(&[40, 24, 3, 3], 2))];
        // Of sums that are larger than what is left of them.
        check_with(form, Op::Conv(op.clone()), &inputs, &[1], 20.0 * bound(form));
    }
}

#[test]
fn weights_come_back_from_their_transforms() {
    use super::transform::{weight_factors, weight_inverse};
    for pairs in 1..=3 {
        let (forward, backward) = (weight_factors(pairs), weight_inverse(pairs));
        for (row, column) in (0..9).map(|index| (index / 3, index % 3)) {
            let found: f64 = forward.iter().zip(&backward[row]).map(|(factors, back)| factors[column] * back).sum();
            assert!((found - f64::from(u8::from(row == column))).abs() < 1e-12, "{pairs} {row} {column} {found}");
        }
    }
}

#[test]
fn weights_that_are_not_finite_are_not_transformed() {
    for weight in [f32::INFINITY, f32::NAN, 1e30] {
        let mut weights = floats(&[40, 24, 3, 3], 2);
        weights.slice_mut::<f32>().unwrap()[100] = weight;
        assert!(!super::may_transform(&weights));
    }
    assert!(super::may_transform(&floats(&[40, 24, 3, 3], 2)));
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

/// Of transforms that are rounded to bf16, beside data and weights that are.
const NARROW_BOUND: f32 = 2e-2;

fn narrow(tensor: &Tensor) -> Tensor {
    tensor.cast(DType::Bf16, CastOptions::default()).unwrap()
}

#[test]
fn factors_of_bf16() {
    // Channels that fill no step behind some that do.
    let deep: &[(&[i64], [usize; 4], usize)] = &[(&[0, -1, 1, 1], [1, 8, 8, 40], 8), (BORDER, [1, 8, 8, 480], 40)];
    for &(pads, x, outputs) in AWKWARD.iter().chain(deep) {
        if x[1] * x[2] > 1000 && is_left_out(x) {
            continue;
        }
        let residual = [
            x[0],
            (x[1] as i64 + pads[0] + pads[2]) as usize - 2,
            (x[2] as i64 + pads[1] + pads[3]) as usize - 2,
            outputs,
        ];
        let (data, weights, bias) = (floats(&x, 1), floats(&[outputs, x[3], 3, 3], 2), floats(&[outputs], 3));
        let plain = Conv { multiply: Some(Factors::Bf16), ..conv(pads) };
        check_with(
            Winograd::F2OfBf16,
            Op::Conv(plain.clone()),
            &[Some(data.clone()), Some(weights.clone())],
            &[1],
            NARROW_BOUND,
        );
        let inputs = [Some(narrow(&data)), Some(weights), Some(bias), Some(narrow(&floats(&residual, 4)))];
        check_with(Winograd::F2OfBf16, Op::Conv(plain.clone()), &inputs[..3], &[1], NARROW_BOUND);
        if x.iter().product::<usize>() > 10_000 {
            continue;
        }
        // A residual and a bound, in bf16 as between convolutions, and through the program of an epilogue.
        for function in [None, Some(Unary::Silu)] {
            let mut epilogue = Map::default();
            let (result, other) = (epilogue.push(Instruction::Input(0)), epilogue.push(Instruction::Input(1)));
            let other = epilogue.push(Instruction::Cast(DType::F32, other));
            let sum = epilogue.push(Instruction::Binary(Binary::Add, result, other));
            let zero = epilogue.push(Instruction::Constant(Scalar::Float(0.0, DType::F32)));
            let bounded = match function {
                Some(function) => epilogue.push(Instruction::Unary(function, sum)),
                None => epilogue.push(Instruction::Binary(Binary::Max, sum, zero)),
            };
            epilogue.push(Instruction::Cast(DType::Bf16, bounded));
            let op = Conv { epilogue: Some(epilogue), ..plain.clone() };
            check_with(Winograd::F2OfBf16, Op::Conv(op), &inputs, &[1], NARROW_BOUND);
        }
    }
}

#[test]
fn what_is_chosen_runs() {
    let op = Op::Conv(Conv { multiply: Some(Factors::Bf16), ..conv(&[1, 1, 1, 1]) });
    for machine in machines(&op) {
        for winograd in [Winograd::Never, Winograd::WherePays, Winograd::F2OfBf16] {
            let unit = machine.matrix.unwrap();
            let mut graph = Graph::default();
            let x = graph.add_value("x", Fact::tensor(DType::F32, [1, 14, 14, 64].map(Into::into)));
            let w = graph.add_constant("w", floats(&[64, 64, 3, 3], 2));
            graph.outputs = Builder::new(&mut graph).add_all(op.clone(), &[Some(x), Some(w)]).unwrap().to_vec();
            let kernels = Kernels::new(Machine { winograd, ..machine.clone() });
            let kernel = kernels.kernel(&graph, &graph.nodes[0], &Packer::default()).unwrap();
            let is_taken = match winograd {
                Winograd::WherePays => unit.gains_by_winograd(),
                winograd => winograd == Winograd::F2OfBf16,
            };
            let name = kernel.name();
            assert_eq!(name.contains(&format!("Winograd's F(2x2, 3x3) {}", unit.name())), is_taken, "{name}");
            assert_eq!(kernel.packed_bytes() > 9 * 64 * 64 * 2, is_taken, "{name}: 16 numbers for 9");
        }
    }
}

/// The errors of `docs/benchmarks/winograd.md`, where results are rounded, too, and sums are longer.
#[test]
fn the_error_of_bf16_on_normal_data_is_what_is_said() {
    let op = Conv { multiply: Some(Factors::Bf16), ..conv(&[1, 1, 1, 1]) };
    for channels in [64, 256] {
        let inputs = [Some(normal(&[1, 12, 12, channels], 1)), Some(normal(&[32, channels, 3, 3], 2))];
        check_with(Winograd::F2OfBf16, Op::Conv(op.clone()), &inputs, &[1], 8e-3);
    }
}

/// What `docs/status.md` says: errors are those of the largest pixel that a tile sees, by whatever that is multiplied.
#[test]
fn errors_of_bf16_are_those_of_the_largest_pixel_of_a_tile() {
    // Each output is the pixel in its middle.
    let op = Op::Conv(Conv { multiply: Some(Factors::Bf16), ..conv(&[1, 1, 1, 1]) });
    let mut weights = Tensor::from_slice(&[32, 32, 3, 3], &[0f32; 32 * 32 * 9]).unwrap();
    for channel in 0..32 {
        weights.slice_mut::<f32>().unwrap()[(channel * 32 + channel) * 9 + 4] = 1.0;
    }
    let mut data = Tensor::from_slice(&[1, 8, 8, 32], &[3f32; 8 * 8 * 32]).unwrap();
    const LARGE: f32 = 1000.0;
    data.slice_mut::<f32>().unwrap()[(3 * 8 + 3) * 32 + 5] = LARGE;
    check_by(Winograd::F2OfBf16, op, &[Some(data), Some(weights)], &[1], &|place, made, expected| {
        for (at, (got, want)) in made.slice::<f32>().unwrap().iter().zip(expected.slice::<f32>().unwrap()).enumerate() {
            let (row, column, channel) = (at / 32 / 8, at / 32 % 8, at % 32);
            let sees = channel == 5 && (2..6).contains(&row) && (2..6).contains(&column);
            let bound = if sees { LARGE / 256.0 } else { 0.0 };
            assert!((got - want).abs() <= bound, "{place}, {at}: {got} instead of {want}");
        }
    });
}

/// What is not finite, or very large, is found where factors were rounded as well, and what sees it is made of weights as they
/// come back from rounded transforms.
#[test]
fn rounded_elements_stay_where_they_are_seen() {
    let op = Conv { multiply: Some(Factors::Bf16), ..conv(&[1, 1, 1, 1]) };
    let mut zeros = floats(&[40, 24, 3, 3], 2);
    zeros.slice_mut::<f32>().unwrap().iter_mut().step_by(5).for_each(|weight| *weight = 0.0);
    let numbers = [f32::INFINITY, f32::NAN, f32::NEG_INFINITY, 1e30];
    let elements: Vec<_> = PLACES.iter().copied().zip(numbers).collect();
    let inputs = [Some(with_elements(&elements)), Some(zeros), Some(floats(&[40], 3))];
    check_by(Winograd::F2OfBf16, Op::Conv(op), &inputs, &[1], &|place, made, expected| {
        let (made, expected) = (made.slice::<f32>().unwrap(), expected.slice::<f32>().unwrap());
        let mut tame = 0;
        for (at, (&got, &want)) in made.iter().zip(expected).enumerate() {
            // What is small beside others of its filter came back as 0: infinity times that is NaN, and 1e30 nothing.
            let is_right = match want.abs() {
                size if size < 1e3 => (want - got).abs() < 0.4,
                size if size.is_finite() => (want - got).abs() < 4e28,
                _ => !got.is_finite(),
            };
            assert!(is_right, "{place}, {at}: {got} instead of {want}");
            tame += usize::from(want.abs() < 1e3);
        }
        // All but those that see one of the four.
        assert!(tame > made.len() * 9 / 10, "{tame} of {}", made.len());
    });
}

#[test]
fn the_rule_in_bf16_follows_the_measurements() {
    let op = Conv { multiply: Some(Factors::Bf16), ..conv(&[1, 1, 1, 1]) };
    let choose = |channels: usize, image: [usize; 3]| {
        Form::choose(Winograd::WherePays, &op, &[channels, channels, 3, 3], Some(image))
    };
    for (channels, image, pays) in [
        (64, [1, 56, 56], true),
        (128, [1, 28, 28], true),
        (256, [1, 14, 14], true),
        (32, [1, 160, 160], false),
        (64, [1, 7, 7], false),
        (128, [1, 7, 7], true),
        (128, [1, 6, 6], true),
        (256, [1, 5, 5], false),
        // Large weights for few tiles.
        (512, [1, 7, 7], false),
        (512, [8, 7, 7], true),
        (512, [1, 16, 16], true),
        // Steps of which a quarter is zeros.
        (72, [1, 28, 28], false),
    ] {
        let form = pays.then_some(Form::F2OfBf16);
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
        (128, [1, 14, 14], Some(Form::F4)),
        (32, [1, 14, 14], Some(Form::F4)),
        (16, [1, 14, 14], None),
        (16, [1, 20, 20], Some(Form::F4)),
        (64, [1, 10, 10], Some(Form::F2)),
        (256, [1, 7, 7], Some(Form::F2)),
        (64, [1, 6, 6], None),
        (32, [1, 7, 7], None),
        (512, [1, 7, 7], None),
        (512, [8, 7, 7], Some(Form::F2)),
        (32, [1, 160, 160], Some(Form::F4)),
        (8, [1, 112, 112], None),
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
