//! The kernels that compute along axes and between datatypes, against the definitions.

use super::tests::{check, floats};
use halimede_graph::Op;
use halimede_graph::ops::*;
use halimede_tensor::{DType, Tensor};

/// Small whole numbers with repetitions, as any number type.
fn numbers(dtype: DType, shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let low = if dtype.is_unsigned_integer() { 0 } else { -5 };
    Tensor::from_i64s(dtype, shape, &(0..count as i64).map(|i| i * 7 % 11 + low).collect::<Vec<_>>()).unwrap()
}

fn ints(numbers: &[i64]) -> Option<Tensor> {
    Some(Tensor::from_slice(&[numbers.len()], numbers).unwrap())
}

const NUMBERS: [DType; 8] =
    [DType::F16, DType::Bf16, DType::F32, DType::F64, DType::U8, DType::I16, DType::I64, DType::U64];

#[test]
fn casts_between_all_number_types() {
    let real = |dtype: &DType| !matches!(dtype, DType::String | DType::Complex64 | DType::Complex128);
    let wide = [DType::F32, DType::F64, DType::I32, DType::I64];
    for from in DType::ALL.into_iter().filter(real) {
        let x = Tensor::from_f64s(from, &[7, 9], &(0..63).map(|i| f64::from(i) * 1.75 - 50.0).collect::<Vec<_>>());
        let x = x.unwrap();
        for to in DType::ALL.into_iter().filter(real) {
            // From 32 and 64 bits to less than 8 only where models do it.
            let narrow = to.bits() < 8 || halimede_tensor::convert::MiniFloat::of(to).is_some();
            if narrow && from.size() > 2 && !wide.contains(&from) {
                continue;
            }
            check(Op::Cast(Cast::to(to)), &[Some(x.clone())], &[], 0.0);
        }
    }
}

#[test]
fn ranges() {
    for dtype in NUMBERS {
        let scalar = |number: i64| Some(Tensor::from_i64s(dtype, &[], &[number]).unwrap());
        check(Op::Range(Range), &[scalar(3), scalar(100), scalar(2)], &[0, 1, 2], 0.0);
    }
    let scalar = |number: f32| Some(Tensor::scalar(number));
    check(Op::Range(Range), &[scalar(1.0), scalar(-2.0), scalar(-0.3)], &[0, 1, 2], 0.0);
}

#[test]
fn running_totals() {
    for dtype in NUMBERS {
        for kind in [CumulativeKind::Sum, CumulativeKind::Product] {
            for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
                let op = Op::Cumulative(Cumulative { kind, exclusive, reverse });
                for axis in [0, 1, -1] {
                    let axis = Some(Tensor::scalar(axis as i64));
                    check(op.clone(), &[Some(numbers(dtype, &[3, 4, 5])), axis], &[], 1e-6);
                }
            }
        }
    }
    let sum = Op::Cumulative(Cumulative { kind: CumulativeKind::Sum, exclusive: false, reverse: false });
    check(sum, &[Some(floats(&[300, 500], 1)), Some(Tensor::scalar(1i32))], &[1], 1e-6);
}

#[test]
fn places_of_the_largest() {
    for dtype in NUMBERS {
        for axis in 0..3 {
            for (largest, last) in [(true, false), (true, true), (false, false)] {
                let op = Op::ArgReduce(ArgReduce { largest, axis, keep_dims: last, last });
                check(op, &[Some(numbers(dtype, &[4, 23, 3]))], &[], 0.0);
            }
        }
    }
    let op = Op::ArgReduce(ArgReduce { largest: true, axis: 1, keep_dims: false, last: false });
    check(op, &[Some(floats(&[300, 500], 1))], &[], 0.0);
}

#[test]
fn the_k_largest() {
    for dtype in NUMBERS {
        for (axis, k) in [(0, 1), (1, 5), (1, 23), (2, 0), (2, 3)] {
            for largest in [true, false] {
                let op = Op::TopK(TopK { axis, largest, sorted: true });
                check(op, &[Some(numbers(dtype, &[4, 23, 3])), ints(&[k])], &[1], 0.0);
            }
        }
    }
    let op = Op::TopK(TopK { axis: 1, largest: true, sorted: true });
    check(op, &[Some(floats(&[100, 1000], 1)), ints(&[40])], &[1], 0.0);
    let nan = Tensor::from_slice(&[4], &[1.0f32, f32::NAN, f32::INFINITY, -0.0]).unwrap();
    check(Op::TopK(TopK { axis: 0, largest: true, sorted: true }), &[Some(nan), ints(&[4])], &[1], 0.0);
}

#[test]
fn scattering() {
    let at = |shape: &[usize], numbers: &[i64]| Some(Tensor::from_slice(shape, numbers).unwrap());
    use ScatterReduction as R;
    for dtype in NUMBERS {
        for reduction in [R::None, R::Add, R::Mul, R::Max, R::Min] {
            for axis in 0..2 {
                let op = Op::ScatterElements(ScatterElements { axis, reduction });
                let inputs =
                    [Some(numbers(dtype, &[4, 3])), at(&[2, 3], &[0, 1, -1, 0, 1, 2]), Some(numbers(dtype, &[2, 3]))];
                check(op, &inputs, &[], 1e-6);
            }
            let op = Op::ScatterNd(ScatterNd { reduction });
            let inputs =
                [Some(numbers(dtype, &[4, 3, 2])), at(&[3, 2], &[0, 1, -1, 0, 0, 1]), Some(numbers(dtype, &[3, 2]))];
            check(op, &inputs, &[], 1e-6);
        }
    }
    let op = Op::ScatterNd(ScatterNd { reduction: R::None });
    check(op, &[Some(floats(&[200, 300], 1)), at(&[2, 1], &[7, 199]), Some(floats(&[2, 300], 2))], &[], 0.0);
}

#[test]
fn quantisation() {
    let x = floats(&[4, 6, 300], 1);
    let scale = |shape: &[usize]| {
        let count: usize = shape.iter().product();
        Some(Tensor::from_slice(shape, &(0..count).map(|i| 0.01 + 0.003 * (i % 7) as f32).collect::<Vec<_>>()).unwrap())
    };
    for to in [DType::I8, DType::U8, DType::I16, DType::U16, DType::I4, DType::U4, DType::F8E4M3Fn, DType::F4E2M1] {
        let layouts: [(usize, usize, &[usize]); 5] =
            [(1, 0, &[]), (1, 0, &[6]), (2, 0, &[300]), (2, 32, &[4, 6, 10]), (1, 4, &[4, 2, 300])];
        for (axis, block, shape) in layouts {
            let quantize = Quantize { to, axis, block, saturate: true, precision: None };
            let zero = to.is_integer().then(|| numbers(to, shape));
            check(Op::Quantize(quantize), &[Some(x.clone()), scale(shape), zero.clone()], &[1, 2], 0.0);
            let dequantize = Dequantize { to: None, axis, block };
            check(Op::Dequantize(dequantize), &[Some(numbers(to, &[4, 6, 300])), scale(shape), zero], &[1, 2], 0.0);
        }
    }
    let half = x.cast(DType::F16, Default::default()).unwrap();
    let half_scale = Tensor::from_f32s(DType::F16, &[], &[0.02]).unwrap();
    let quantize = Quantize { to: DType::I8, axis: 0, block: 0, saturate: true, precision: None };
    check(Op::Quantize(quantize), &[Some(half), Some(half_scale)], &[], 0.0);
}

#[test]
fn rotary_embedding() {
    for interleaved in [false, true] {
        for (rotary_dim, half) in [(0, 8), (6, 3)] {
            let op = Op::Rope(Rope { interleaved, rotary_dim });
            let x = Some(floats(&[2, 3, 5, 16], 1));
            let (cos, sin) = (floats(&[2, 5, half], 2), floats(&[2, 5, half], 3));
            check(op.clone(), &[x.clone(), Some(cos), Some(sin)], &[], 1e-6);
            let (cos, sin) = (floats(&[1, 5, half], 2), floats(&[1, 5, half], 3));
            check(op.clone(), &[x.clone(), Some(cos), Some(sin)], &[], 1e-6);
            let (cos, sin) = (floats(&[9, half], 2), floats(&[9, half], 3));
            let positions = Tensor::from_slice(&[2, 5], &[0i64, 1, 2, 3, 8, 5, 5, 0, 1, 7]).unwrap();
            check(op, &[x, Some(cos), Some(sin), Some(positions)], &[], 1e-6);
        }
    }
}
