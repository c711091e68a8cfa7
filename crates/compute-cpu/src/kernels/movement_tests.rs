//! The kernels that move elements, against the definitions, for every width.

use super::tests::check;
use halimede_graph::Op;
use halimede_graph::ops::*;
use halimede_tensor::{DType, Tensor};

/// One datatype of each width.
const WIDTHS: [DType; 5] = [DType::U8, DType::F16, DType::F32, DType::I64, DType::Complex128];

/// Elements that all differ, as far as their width allows.
fn counting(dtype: DType, shape: &[usize]) -> Tensor {
    let mut tensor = Tensor::zeros(dtype, shape).unwrap();
    let width = dtype.size();
    for (index, element) in tensor.bytes_mut().unwrap().chunks_exact_mut(width).enumerate() {
        for (place, byte) in element.iter_mut().enumerate().take(4) {
            *byte = (index >> (8 * place)) as u8;
        }
    }
    tensor
}

fn ints(numbers: &[i64]) -> Option<Tensor> {
    Some(Tensor::from_slice(&[numbers.len()], numbers).unwrap())
}

/// Compares for every width; what follows the data is constant, as in most models.
fn check_widths(op: Op, shape: &[usize], rest: &[Option<Tensor>]) {
    let constants: Vec<usize> = (1..=rest.len()).collect();
    for dtype in WIDTHS {
        let inputs: Vec<Option<Tensor>> = std::iter::once(Some(counting(dtype, shape))).chain(rest.to_vec()).collect();
        check(op.clone(), &inputs, &constants, 0.0);
    }
}

#[test]
fn axes_in_every_order() {
    let cases: &[(&[usize], &[usize])] = &[
        (&[5, 7], &[1, 0]),
        (&[40, 70], &[1, 0]),
        (&[3, 4, 5], &[0, 2, 1]),
        (&[3, 4, 5], &[2, 1, 0]),
        (&[2, 33, 3, 17], &[0, 2, 1, 3]),
        (&[2, 33, 3, 17], &[0, 2, 3, 1]),
        (&[2, 33, 3, 17], &[3, 0, 1, 2]),
        (&[2, 3, 4, 5, 6], &[4, 2, 0, 3, 1]),
        (&[1, 6, 1], &[2, 1, 0]),
        (&[0, 3], &[1, 0]),
        (&[300, 257], &[1, 0]),
        // Few elements a row: images.
        (&[2, 3, 29, 30], &[0, 2, 3, 1]),
        (&[2, 9001], &[1, 0]),
        (&[1, 4, 77], &[0, 2, 1]),
    ];
    for (shape, perm) in cases {
        check_widths(Op::Transpose(Transpose { perm: (*perm).into() }), shape, &[]);
    }
    check_widths(Op::Transpose(Transpose { perm: [].as_slice().into() }), &[], &[]);
}

#[test]
fn parts_forwards_and_backwards() {
    let slice = |shape: &[usize], starts: &[i64], ends: &[i64], axes: &[i64], steps: &[i64]| {
        check_widths(Op::Slice(Slice), shape, &[ints(starts), ints(ends), ints(axes), ints(steps)]);
    };
    slice(&[4, 9, 5], &[1], &[3], &[1], &[1]);
    slice(&[4, 9, 5], &[-1, 1], &[i64::MIN, 100], &[0, 2], &[-1, 2]);
    slice(&[4, 9, 5], &[8], &[0], &[-2], &[-3]);
    slice(&[4, 9], &[3], &[3], &[0], &[1]);
    slice(&[300, 400], &[5, 7], &[295, 390], &[0, 1], &[1, 1]);
    // Few elements of many rows, of several planes, which threads begin somewhere within.
    for count in 1..=6 {
        slice(&[3, 700, 9], &[2], &[2 + count], &[2], &[1]);
        slice(&[5, 300, 7], &[-1, 0, 0], &[i64::MIN, 299, count], &[0, 1, 2], &[-2, 1, 1]);
    }
    check_widths(Op::Slice(Slice), &[6, 4], &[ints(&[2]), ints(&[5])]);
}

#[test]
fn borders_of_every_kind() {
    for mode in [PadMode::Constant, PadMode::Edge, PadMode::Reflect, PadMode::Wrap] {
        check_widths(Op::Pad(Pad { mode }), &[3, 4, 5], &[ints(&[0, 1, 2, 0, 2, 3])]);
        check_widths(Op::Pad(Pad { mode }), &[3, 4, 5], &[ints(&[2, 1]), None, ints(&[-2])]);
        check_widths(Op::Pad(Pad { mode }), &[3, 6], &[ints(&[1, -2, 0, -1])]);
        check_widths(Op::Pad(Pad { mode }), &[1, 130, 120], &[ints(&[0, 3, 3, 0, 3, 3])]);
        check_widths(Op::Pad(Pad { mode }), &[3, 130, 60], &[ints(&[1, 3, 3, 0, 3, 3])]);
    }
    let nine = Some(Tensor::scalar(9.0f32));
    let data = Some(counting(DType::F32, &[2, 2]));
    check(Op::Pad(Pad { mode: PadMode::Constant }), &[data, ints(&[1, 0, 0, 1]), nine], &[1, 2], 0.0);
}

#[test]
fn repeats() {
    check_widths(Op::Tile(Tile), &[2, 3], &[ints(&[2, 3])]);
    check_widths(Op::Tile(Tile), &[2, 1, 4], &[ints(&[1, 5, 1])]);
    check_widths(Op::Tile(Tile), &[2, 3], &[ints(&[0, 1])]);
    check_widths(Op::Expand(Expand), &[3, 1], &[ints(&[2, 1, 5])]);
    check_widths(Op::Expand(Expand), &[], &[ints(&[2, 2])]);
    check_widths(Op::Expand(Expand), &[1, 300], &[ints(&[200, 1])]);
}

#[test]
fn joins() {
    for (axis, shapes) in [
        (0, [[2, 3, 4], [1, 3, 4], [5, 3, 4]]),
        (1, [[2, 3, 4], [2, 0, 4], [2, 7, 4]]),
        (2, [[2, 3, 1], [2, 3, 4], [2, 3, 2]]),
        (2, [[40, 30, 10], [40, 30, 40], [40, 30, 20]]),
        (0, [[40, 30, 10], [4, 30, 10], [1, 30, 10]]),
    ] {
        for dtype in WIDTHS {
            let inputs: Vec<_> = shapes.iter().map(|shape| Some(counting(dtype, shape))).collect();
            check(Op::Concat(Concat { axis }), &inputs, &[], 0.0);
        }
    }
}

#[test]
fn gathering() {
    let at = |shape: &[usize], numbers: &[i64]| Some(Tensor::from_slice(shape, numbers).unwrap());
    for axis in 0..3 {
        let op = Op::Gather(Gather { axis });
        check_widths(op.clone(), &[4, 5, 3], &[at(&[2, 2], &[0, -1, 2, 1])]);
        check_widths(op.clone(), &[4, 5, 3], &[at(&[], &[2])]);
        check_widths(op, &[4, 5, 3], &[at(&[0], &[])]);
        let op = Op::GatherElements(GatherElements { axis });
        check_widths(op, &[3, 3, 3], &[at(&[2, 1, 3], &[0, -1, 2, 1, 1, -3])]);
    }
    check_widths(Op::GatherNd(GatherNd { batch_dims: 0 }), &[3, 4, 5], &[at(&[2, 2], &[0, -1, 2, 3])]);
    check_widths(Op::GatherNd(GatherNd { batch_dims: 1 }), &[2, 4, 5], &[at(&[2, 3, 1], &[0, 1, 2, 3, -1, -2])]);
    check_widths(Op::GatherNd(GatherNd { batch_dims: 0 }), &[3, 4], &[at(&[1, 2, 2], &[0, 0, 2, 3])]);
    let wide = Op::Gather(Gather { axis: 0 });
    check_widths(wide, &[300, 200], &[at(&[250], &(0..250).map(|i| i * 7 % 300 - 150).collect::<Vec<_>>())]);
}

#[test]
fn resampling() {
    use super::tests::floats;
    let nearest = ResizeMode::Nearest(NearestRounding::RoundPreferFloor);
    for mode in [nearest, ResizeMode::Linear, ResizeMode::Cubic { coefficient: -0.75 }] {
        for transform in
            [CoordinateTransform::HalfPixel, CoordinateTransform::AlignCorners, CoordinateTransform::Asymmetric]
        {
            for antialias in [false, true] {
                let op = Resize { antialias, axes: [2, 3].as_slice().into(), ..Resize::new(mode, transform) };
                let x = Some(floats(&[2, 3, 7, 9], 1));
                for scales in [[2.0f32, 3.0], [0.6, 1.0], [1.3, 0.4]] {
                    let scales = Some(Tensor::from_slice(&[2], &scales).unwrap());
                    check(Op::Resize(op.clone()), &[x.clone(), None, scales], &[2], 1e-6);
                }
                check(Op::Resize(op), &[x, None, None, ints(&[12, 5])], &[3], 1e-6);
            }
        }
    }
    let twice = Resize::new(nearest, CoordinateTransform::Asymmetric);
    for dtype in [DType::U8, DType::I16, DType::F32, DType::F64] {
        let inputs = [Some(counting(dtype, &[2, 3, 5])), None, None, ints(&[2, 6, 7])];
        check(Op::Resize(twice.clone()), &inputs, &[3], 0.0);
    }
}

#[test]
fn recurrent_layers() {
    use super::tests::floats;
    use RnnActivation::{HardSigmoid, Relu, Sigmoid, Tanh};
    let (length, batch, width, hidden) = (5, 3, 4, 6);
    let kinds = [
        (RnnKind::Rnn, 1, vec![Relu]),
        (RnnKind::Gru { linear_before_reset: false }, 3, vec![Sigmoid, Tanh]),
        (RnnKind::Gru { linear_before_reset: true }, 3, vec![HardSigmoid(0.2, 0.5), Tanh]),
        (RnnKind::Lstm { input_forget: false }, 4, vec![Sigmoid, Tanh, Tanh]),
        (RnnKind::Lstm { input_forget: true }, 4, vec![Sigmoid, Tanh, Relu]),
    ];
    for (kind, gates, activations) in kinds {
        for direction in [RnnDirection::Forward, RnnDirection::Reverse, RnnDirection::Bidirectional] {
            for batch_first in [false, true] {
                let directions = if direction == RnnDirection::Bidirectional { 2 } else { 1 };
                let lstm = matches!(kind, RnnKind::Lstm { .. });
                let op = Op::Rnn(Rnn {
                    kind,
                    direction,
                    hidden,
                    activations: activations.repeat(directions),
                    clip: if batch_first { 1.5 } else { 0.0 },
                    batch_first,
                });
                let x = if batch_first { [batch, length, width] } else { [length, batch, width] };
                let state = if batch_first { [batch, directions, hidden] } else { [directions, batch, hidden] };
                let mut inputs = vec![
                    Some(floats(&x, 1)),
                    Some(floats(&[directions, gates * hidden, width], 2)),
                    Some(floats(&[directions, gates * hidden, hidden], 3)),
                ];
                check(op.clone(), &inputs, &[1, 2], 1e-5);
                let lengths = Tensor::from_slice(&[batch], &[5i32, 0, 3]).unwrap();
                inputs.extend([
                    Some(floats(&[directions, 2 * gates * hidden], 4)),
                    Some(lengths),
                    Some(floats(&state, 5)),
                ]);
                if lstm {
                    inputs.extend([Some(floats(&state, 6)), Some(floats(&[directions, 3 * hidden], 7))]);
                }
                check(op, &inputs, &[1, 2, 3], 1e-5);
            }
        }
    }
}
