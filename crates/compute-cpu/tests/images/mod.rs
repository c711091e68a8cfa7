//! Parts of networks on images that several tests are made of.

#![allow(dead_code, reason = "each test is a program of its own and uses some of them")]

use halimede_graph::ops::{Binary, Conv, Op, Padding, Pool, PoolKind};
use halimede_graph::{Builder, ValueId};
use halimede_tensor::Tensor;

/// Numbers between -1 and 1, others for each seed.
pub fn numbers(shape: &[usize], seed: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let elements: Vec<f32> = (0..count).map(|i| ((i + seed) * 37 % 101) as f32 * 0.02 - 1.0).collect();
    Tensor::from_slice(shape, &elements).unwrap()
}

/// A convolution of groups of channels, of a square kernel, with a stride, a bias and so many pixels above, left of, below and right of
/// the image.
pub fn conv_within(
    b: &mut Builder,
    x: ValueId,
    (inputs, outputs, groups): (usize, usize, usize),
    (size, stride): (usize, usize),
    pads: [i64; 4],
) -> ValueId {
    let op = Conv {
        strides: [stride, stride].as_slice().into(),
        dilations: [1, 1].as_slice().into(),
        padding: Padding::Explicit(pads.as_slice().into()),
        groups,
        transposed: None,
        channels_last: false,
        multiply: None,
        epilogue: None,
    };
    let weights = b.constant(numbers(&[outputs, inputs / groups, size, size], outputs + size));
    let bias = b.constant(numbers(&[outputs], 3));
    b.add(Op::Conv(op), &[x, weights, bias]).unwrap()
}

/// No less than 0.
pub fn relu(b: &mut Builder, x: ValueId) -> ValueId {
    let zero = b.constant(Tensor::scalar(0f32));
    b.binary(Binary::Max, x, zero).unwrap()
}

/// Within 0 and 6, as infinity is afterwards.
pub fn relu_6(b: &mut Builder, x: ValueId) -> ValueId {
    let x = relu(b, x);
    let six = b.constant(Tensor::scalar(6f32));
    b.binary(Binary::Min, x, six).unwrap()
}

/// The largest of a square window, with a stride and a border.
pub fn max_pool(b: &mut Builder, x: ValueId, size: usize, stride: usize, pad: i64) -> ValueId {
    let pool = Pool {
        kind: PoolKind::Max { column_major: false },
        kernel: [size, size].as_slice().into(),
        strides: [stride, stride].as_slice().into(),
        dilations: [1, 1].as_slice().into(),
        padding: Padding::Explicit([pad; 4].as_slice().into()),
        ceil_mode: false,
        outputs: 1,
        channels_last: false,
    };
    b.add(Op::Pool(pool), &[x]).unwrap()
}
