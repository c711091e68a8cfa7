//! Products of f16 against their definition: of few rows and of many, on every unit and by a library.

use super::tests::{check, ending, floats};
use halimede_graph::Op;
use halimede_graph::ops::*;
use halimede_tensor::{CastOptions, DType, Tensor};

fn contract(lhs: &[u8], rhs: &[u8], out: &[u8]) -> Contract {
    Contract { multiply: Some(Factors::F16), ..Contract::new(lhs.into(), rhs.into(), out.into()) }
}

/// Numbers that f16 has: where rows are not rounded, the product is the same.
fn halves(shape: &[usize], seed: u32) -> Tensor {
    let rounded = floats(shape, seed).cast(DType::F16, CastOptions::default()).unwrap();
    rounded.cast(DType::F32, CastOptions::default()).unwrap()
}

/// Rounding operands or not, of numbers without a pattern: those whose weights are not packed stay f32.
const ROUNDED: f32 = 1e-3;

#[test]
fn products_of_f16() {
    let plain = || Op::Contract(contract(&[0, 2], &[2, 1], &[0, 1]));
    for (m, n, k) in [(1, 1, 1), (1, 70, 33), (8, 33, 65), (9, 33, 65), (50, 40, 300), (13, 100, 1024), (40, 33, 0)] {
        let (a, b) = (halves(&[m, k], 1), halves(&[k, n], 2));
        let (at, bt) = (halves(&[k, m], 1), halves(&[n, k], 2));
        for weights in [&[][..], &[1]] {
            check(plain(), &[&a, &b].map(|x| Some(x.clone())), weights, 3e-6);
            check(
                Op::Contract(contract(&[2, 0], &[2, 1], &[0, 1])),
                &[&at, &b].map(|x| Some(x.clone())),
                weights,
                3e-6,
            );
            check(
                Op::Contract(contract(&[0, 2], &[1, 2], &[0, 1])),
                &[&a, &bt].map(|x| Some(x.clone())),
                weights,
                3e-6,
            );
        }
        check(plain(), &[floats(&[m, k], 3), floats(&[k, n], 4)].map(Some), &[1], ROUNDED);
    }
    // Rows in two axes, and more of the weights than are unpacked at a time.
    let batched = Op::Contract(contract(&[0, 1, 3], &[3, 2], &[0, 1, 2]));
    check(batched.clone(), &[halves(&[2, 3, 129], 1), halves(&[129, 65], 2)].map(Some), &[1], 3e-6);
    check(batched, &[halves(&[3, 7, 129], 1), halves(&[129, 65], 2)].map(Some), &[1], 3e-6);
    // A library is given several tasks.
    check(plain(), &[halves(&[513, 20], 1), halves(&[20, 130], 2)].map(Some), &[1], 3e-6);
}

#[test]
fn products_of_f16_of_every_small_size() {
    for (m, n) in (1..=9).flat_map(|m| [1, 7, 8, 31, 33, 40].map(|n| (m, n))) {
        let k = 1 + (m * 29 + n * 13) % 70;
        let op = Op::Contract(contract(&[0, 2], &[2, 1], &[0, 1]));
        check(op, &[halves(&[m, k], 1), halves(&[k, n], 2)].map(Some), &[1], 3e-6);
    }
}

#[test]
fn products_of_f16_have_epilogues() {
    for (rows, function) in [1, 45].into_iter().flat_map(|m| [(m, Unary::Abs), (m, Unary::GeluErf), (m, Unary::Silu)]) {
        let epilogue = Some(ending(DType::F32, function, false));
        let op = Contract { epilogue, ..contract(&[0, 2], &[2, 1], &[0, 1]) };
        let inputs = [halves(&[rows, 64], 1), halves(&[64, 70], 2), floats(&[rows, 70], 3)];
        check(Op::Contract(op), &inputs.map(Some), &[1], 3e-6);
    }
}

#[test]
fn products_of_f16_beside_each_other() {
    let parts =
        [40, 33].map(|n| ProductPart { name: n.to_string(), product: contract(&[0, 2], &[2, 1], &[0, 1]), inputs: 1 });
    for m in [1, 20] {
        let op = Op::Products(Products { parts: parts.to_vec() });
        let inputs = [halves(&[m, 50], 1), halves(&[50, 40], 2), halves(&[50, 33], 3)];
        check(op, &inputs.map(Some), &[1, 2], 3e-6);
    }
}

/// What is too large for f16 becomes infinite in data, rather than large.
#[test]
fn what_is_beyond_f16_is_infinite() {
    for (value, expected) in [(65519f32, 65504.0), (65520.0, f32::INFINITY), (-1e9, f32::NEG_INFINITY)] {
        let rows = Tensor::from_slice(&[1, 2], &[value, 0.0]).unwrap();
        let weights = Tensor::from_slice(&[2, 2], &[1f32, 1.0, 0.0, 0.0]).unwrap();
        let op = contract(&[0, 2], &[2, 1], &[0, 1]);
        let made = op.evaluate(&[Some(&rows), Some(&weights)]).unwrap().remove(0);
        assert_eq!(made.slice::<f32>().unwrap(), [expected; 2]);
        check(Op::Contract(op), &[Some(rows), Some(weights)], &[1], 0.0);
    }
}
