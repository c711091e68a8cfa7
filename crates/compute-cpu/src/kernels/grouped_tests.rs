//! Products with weights of few bits against the definition: dequantised, then multiplied.

use super::tests::{check, floats};
use halimede_graph::Op;
use halimede_graph::ops::{Binary, Contract, Dequantize, Factors, Instruction, Map, Unary};
use halimede_tensor::{CastOptions, DType, Tensor};

/// Weights and what they are read by: columns, depth, block (0: a scale for each column), datatype.
#[derive(Clone, Copy)]
struct Weights {
    n: usize,
    k: usize,
    block: usize,
    dtype: DType,
    has_zeros: bool,
    rows_first: bool,
}

impl Weights {
    /// Numbers of all values of a datatype of so many bits.
    fn integers(dtype: DType, shape: &[usize], seed: i64) -> Tensor {
        let (count, bits) = (shape.iter().product::<usize>() as i64, dtype.bits() as u32);
        let low = if dtype.is_signed_integer() { -(1 << (bits - 1)) } else { 0 };
        let numbers: Vec<i64> = (0..count).map(|i| low + (i * 37 + i / 7 + seed) % (1 << bits)).collect();
        Tensor::from_i64s(dtype, shape, &numbers).unwrap()
    }

    /// The shape of as many numbers as there are for each column.
    fn shape(&self, rows: usize) -> [usize; 2] {
        if self.rows_first { [rows, self.n] } else { [self.n, rows] }
    }

    fn op(&self) -> Contract {
        let axis = usize::from(self.rows_first == (self.block == 0));
        let rhs: &[u8] = if self.rows_first { &[2, 1] } else { &[1, 2] };
        let dequantize = Some(Dequantize { to: None, axis, block: self.block });
        Contract { rhs: rhs.into(), dequantize, ..Contract::matmul(0) }
    }

    /// The codes, scales and zero points.
    fn inputs(&self) -> [Option<Tensor>; 3] {
        let scales = match self.block {
            0 => vec![self.n],
            block => self.shape(self.k.div_ceil(block)).to_vec(),
        };
        let zeros = self.has_zeros.then(|| Weights::integers(self.dtype, &scales, 5));
        let scales = floats(&scales, 9);
        [Some(Weights::integers(self.dtype, &self.shape(self.k), 3)), Some(scales), zeros]
    }
}

fn check_product(op: Contract, x: Tensor, weights: Weights, extra: &[Tensor], tolerance: f32) {
    let inputs: Vec<Option<Tensor>> =
        [Some(x)].into_iter().chain(weights.inputs()).chain(extra.iter().cloned().map(Some)).collect();
    check(Op::Contract(op), &inputs, &[1, 2, 3], tolerance);
}

/// Awkward sizes: blocks and depths that are no whole lines, columns that are no whole panels.
const SIZES: [(usize, usize, usize); 6] =
    [(1, 3, 0), (5, 20, 16), (33, 100, 32), (70, 50, 12), (40, 37, 0), (64, 288, 128)];

#[test]
fn every_width_order_and_number_of_rows() {
    for (index, (n, k, block)) in SIZES.into_iter().enumerate() {
        for (dtype, has_zeros) in [
            (DType::I4, false),
            (DType::U4, true),
            (DType::U2, true),
            (DType::I8, false),
            (DType::I8, true),
            (DType::U8, true),
        ] {
            let weights = Weights { n, k, block, dtype, has_zeros, rows_first: (index + k) % 2 == 0 };
            for m in [1, 2, 3, 4, 7, 15, 17] {
                check_product(weights.op(), floats(&[m, k], 1), weights, &[], 3e-6);
            }
            let other = Weights { rows_first: !weights.rows_first, ..weights };
            check_product(other.op(), floats(&[5, k], 1), other, &[], 3e-6);
        }
    }
}

#[test]
fn one_scale_for_all_and_no_rows_at_all() {
    let weights = Weights { n: 9, k: 10, block: 0, dtype: DType::I8, has_zeros: false, rows_first: true };
    let one = Tensor::from_slice(&[1], &[0.25f32]).unwrap();
    for k in [10, 0] {
        let codes = Weights::integers(DType::I8, &[k, 9], 1);
        let inputs = [floats(&[3, k], 1), codes, one.clone()].map(Some);
        check(Op::Contract(weights.op()), &inputs, &[1, 2], 3e-6);
    }
    let inputs = [floats(&[0, 10], 1), Weights::integers(DType::I8, &[10, 9], 1), one].map(Some);
    check(Op::Contract(weights.op()), &inputs, &[1, 2], 0.0);
}

#[test]
fn epilogues_follow() {
    let mut map = Map::default();
    let sum = map.push(Instruction::Input(0));
    let bias = map.push(Instruction::Input(1));
    let sum = map.push(Instruction::Binary(Binary::Add, sum, bias));
    map.push(Instruction::Unary(Unary::GeluErf, sum));
    let weights = Weights { n: 45, k: 64, block: 32, dtype: DType::U4, has_zeros: true, rows_first: false };
    for m in [3, 20] {
        let op = Contract { epilogue: Some(map.clone()), ..weights.op() };
        check_product(op, floats(&[m, 64], 1), weights, &[floats(&[45], 2)], 3e-6);
    }
}

/// Few rows multiply the weights as they are, not rounded to bf16: nearer to the numbers that they stand for than
/// the definition.
const ROUNDED: f32 = 4e-3;

#[test]
fn products_of_bf16() {
    for (n, k, block) in SIZES {
        let weights = Weights { n, k, block, dtype: DType::U4, has_zeros: true, rows_first: true };
        let op = Contract { multiply: Some(Factors::Bf16), ..weights.op() };
        for m in [1, 6, 17, 40] {
            let x = floats(&[m, k], 1);
            check_product(op.clone(), x.clone(), weights, &[], if m > 15 { 3e-6 } else { ROUNDED });
            let narrow = x.cast(DType::Bf16, CastOptions::default()).unwrap();
            check_product(op.clone(), narrow, weights, &[], if m > 15 { 3e-6 } else { ROUNDED });
        }
    }
}

#[test]
fn numbers_that_are_no_multiples_of_a_step() {
    let weights = Weights { n: 40, k: 64, block: 32, dtype: DType::I4, has_zeros: false, rows_first: false };
    for number in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e33] {
        let mut x = floats(&[2, 64], 1);
        x.slice_mut::<f32>().unwrap()[40] = number;
        check_product(weights.op(), x, weights, &[], 3e-6);
    }
    let tiny = Tensor::from_slice(&[1, 64], &[1e-36f32; 64]).unwrap();
    check_product(weights.op(), tiny, weights, &[], 1e-40);
}
