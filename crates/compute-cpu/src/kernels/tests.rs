//! Every kernel against the definition of its operator, on every instruction set and thread count.

use super::{Blocking, Kernels, Machine, takes_taps};
use crate::bnns::Bnns;
use crate::halves::{FEW_ROWS, Halves};
use crate::{Blas, BlockedLayouts, HalfMatrix, IntegerMatrix, Isa, Matrix, Winograd};
use halimede_compute::packed::{Key, Packer, Store};
use halimede_compute::{BandsOf, CompileOptions, Executable, Program};
use halimede_graph::ops::*;
use halimede_graph::{Builder, Fact, Graph, Op};
use halimede_tensor::{CastOptions, DType, Held, Tensor, Value};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs one operation as a program and by definition, and compares. `weights` are inputs that are
/// constants of the graph.
pub(super) fn check(op: Op, inputs: &[Option<Tensor>], weights: &[usize], tolerance: f32) {
    check_with(Winograd::default(), op, inputs, weights, tolerance);
}

/// Whether an emulator runs the tests, at a thirtieth of a processor's speed.
fn is_emulated() -> bool {
    std::env::var_os("HALIMEDE_EMULATED").is_some()
}

/// Whether `what`, which is large, is left out: an emulator takes minutes for it.
pub(super) fn is_left_out(what: impl std::fmt::Debug) -> bool {
    if is_emulated() {
        println!("skipped: {what:?}, too large for an emulator");
    }
    is_emulated()
}

/// The same as [`check`] with a choice for convolutions.
pub(super) fn check_with(winograd: Winograd, op: Op, inputs: &[Option<Tensor>], weights: &[usize], tolerance: f32) {
    check_by(winograd, op.clone(), inputs, weights, &|place, made, expected| {
        compare(&op, place, made, expected, tolerance);
    });
}

/// The same with another comparison: of where something was made, what was made there, and what the definition says.
pub(super) fn check_by(
    winograd: Winograd,
    op: Op,
    inputs: &[Option<Tensor>],
    weights: &[usize],
    compare: &dyn Fn(&str, &Tensor, &Tensor),
) {
    let values: Vec<Option<Value>> = inputs.iter().map(|input| input.clone().map(Value::from)).collect();
    let expected = op.evaluate(&values).unwrap_or_else(|error| panic!("{op:?}: {error}"));
    for machine in machines(&op).into_iter().map(|machine| Machine { winograd, ..machine }) {
        if stays_f32(&op, inputs, machine.isa) {
            continue;
        }
        let mut graph = Graph::default();
        let mut given = Vec::new();
        let mut ids = Vec::new();
        for (index, input) in inputs.iter().enumerate() {
            ids.push(input.as_ref().map(|tensor| {
                if weights.contains(&index) {
                    return graph.add_constant(format!("w{index}"), tensor.clone());
                }
                let shape = tensor.shape().iter().map(|&size| size.into());
                let id = graph.add_value(format!("x{index}"), Fact::tensor(tensor.dtype(), shape));
                graph.inputs.push(id);
                given.push(Value::from(tensor.clone()));
                id
            }));
        }
        let outputs = Builder::new(&mut graph).add_all(op.clone(), &ids).unwrap();
        graph.outputs = outputs.to_vec();
        let halves = machine.halves.map(|halves| halves.name());
        let units = (machine.matrix.map(Matrix::name), halves, machine.integers.name(), machine.blas.map(Blas::name));
        let place = format!("{} {units:?}", machine.isa.name());
        let kernels: Arc<dyn halimede_compute::Kernels> = Arc::new(Kernels::new(machine));
        let program = |packer: &Packer| Arc::new(Program::new(graph.clone(), &kernels, usize::MAX, packer).unwrap());
        let mut programs = vec![program(&Packer::default())];
        let packed = programs[0].packed_bytes();
        assert_eq!(programs[0].footprint(&graph).packed, Held { private: packed, mapped: 0 }, "{op:?}");
        // What is read from a file is the same whatever the processor is.
        if packed > 0 && !is_emulated() {
            programs.push(program(&in_a_file(&|packer| drop(program(packer)))));
        }
        for program in programs {
            let mut session = program.session();
            session.run(&given).unwrap_or_else(|error| panic!("{op:?}: {error}"));
            assert_eq!(session.coverage().reference, 0, "{op:?} ran by its definition");
            let made = session.take_outputs().unwrap();
            for (made, expected) in made.iter().zip(&expected) {
                compare(&place, made.tensor().unwrap(), expected.tensor().unwrap());
            }
        }
    }
}

/// Whether a machine's precisions leave the data f32 that are bf16 here: of groups wider than two of its registers.
fn stays_f32(op: &Op, inputs: &[Option<Tensor>], isa: Isa) -> bool {
    let (Op::Conv(op), Some(Some(x)), Some(Some(w))) = (op, inputs.first(), inputs.get(1)) else { return false };
    let is_narrow = x.dtype() == DType::Bf16 && op.channels_last && op.multiply.is_none();
    is_narrow && op.narrow_groups(w.shape()).is_some() && !takes_taps(op, w.shape(), isa)
}

/// What `pack` packs, mapped from a file that has lost its name.
fn in_a_file(pack: &dyn Fn(&Packer)) -> Packer {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("halimede-kernels-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let folder = std::env::temp_dir().join(name);
    let (store, key) = (Store::new(folder.clone(), u64::MAX), Key::new(0, "", &CompileOptions::default()));
    let writer = store.writer(key).unwrap();
    pack(&writer);
    writer.finish().unwrap();
    // Packing again from the file takes all of it, and nothing else.
    let again = store.find(key).unwrap().unwrap();
    pack(&again);
    again.finish().unwrap();
    let packer = store.find(key).unwrap().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    packer
}

/// Every machine that an operation's kernel may meet here: instruction sets, matrix units for products in
/// fewer bits, the system's library for those of f32, and threads.
pub(super) fn machines(op: &Op) -> Vec<Machine> {
    let narrow = op.multiply() == Some(Factors::Bf16);
    let whole = op.multiply() == Some(Factors::Integers);
    let is_halved = op.multiply() == Some(Factors::F16);
    // Products of all rows by the unit, of few alone, and of none, the others by a library or what stands in for it.
    let halves: Vec<Option<Halves>> = match is_halved {
        true => [HalfMatrix::PORTABLE]
            .into_iter()
            .chain(HalfMatrix::available())
            .flat_map(|unit| {
                let libraries = [Some(Bnns::double()), Bnns::available()].into_iter().flatten();
                let shared = libraries.flat_map(|library| [0, FEW_ROWS].map(|few| Some((few, library))));
                std::iter::once(None).chain(shared).map(move |library| Halves { unit, library })
            })
            .map(Some)
            .collect(),
        false => vec![None],
    };
    let matrices = match narrow {
        true => [Matrix::PORTABLE].into_iter().chain(Matrix::available()).map(Some).collect(),
        false => vec![None],
    };
    let integers = match whole {
        true => [IntegerMatrix::PORTABLE].into_iter().chain(IntegerMatrix::available()).collect(),
        false => vec![IntegerMatrix::PORTABLE],
    };
    // With portable instructions around it a unit does what it does anywhere.
    let isas = match narrow || whole || is_halved {
        true if is_emulated() => vec![Isa::detect()],
        true => vec![Isa::PORTABLE, Isa::detect()],
        false => Isa::available(),
    };
    let mut machines = Vec::new();
    for (isa, threads) in isas.into_iter().flat_map(|isa| [1, 3].map(|threads| (isa, threads))) {
        let pool = Arc::new(crate::Pool::new(threads));
        let others = halves.iter().flat_map(|halves| integers.iter().map(move |unit| (halves, unit)));
        for (&matrix, (&halves, &integers)) in
            matrices.iter().flat_map(|matrix| others.clone().map(move |others| (matrix, others)))
        {
            machines.push(Machine {
                isa,
                matrix,
                halves,
                integers,
                blas: None,
                winograd: Winograd::default(),
                blocked: BlockedLayouts::default(),
                bands: BandsOf::default(),
                pool: pool.clone(),
                choices: Arc::default(),
                blocking: Blocking::default(),
            });
        }
    }
    // Whole matrices by the system's library, where there is one.
    if let (Op::Contract(_) | Op::Conv(_), Some(blas)) = (op, Blas::available())
        && !narrow
        && !whole
    {
        let widest: Vec<Machine> = machines.iter().filter(|machine| machine.isa == Isa::detect()).cloned().collect();
        machines.extend(widest.into_iter().map(|machine| Machine { blas: Some(blas), ..machine }));
    }
    machines
}

pub(super) fn compare(op: &Op, place: &str, made: &Tensor, expected: &Tensor, tolerance: f32) {
    assert_eq!((made.dtype(), made.shape()), (expected.dtype(), expected.shape()), "{op:?}");
    if made.dtype() == DType::Bf16 {
        // Sums that differ in their last bits may round to neighbours.
        let wide = |tensor: &Tensor| tensor.cast(DType::F32, CastOptions::default()).unwrap();
        return compare(op, place, &wide(made), &wide(expected), tolerance.max(1.0 / 128.0));
    }
    if made.dtype() != DType::F32 {
        assert_eq!(made.bytes().unwrap(), expected.bytes().unwrap(), "{op:?} on {}", place);
        return;
    }
    let (made, expected) = (made.slice::<f32>().unwrap(), expected.slice::<f32>().unwrap());
    let scale = expected.iter().filter(|x| x.is_finite()).fold(1f32, |max, x| max.max(x.abs()));
    for (index, (a, b)) in made.iter().zip(expected).enumerate() {
        let same = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * scale;
        assert!(same, "{op:?} on {}: element {index} is {a}, expected {b}", place);
    }
}

/// Numbers between -2 and 2 without a pattern that sums could hide.
pub(super) fn floats(shape: &[usize], seed: u32) -> Tensor {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let count: usize = shape.iter().product();
    let elements: Vec<f32> = (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 22) as f32 - 2.0
        })
        .collect();
    Tensor::from_slice(shape, &elements).unwrap()
}

pub(super) fn two(a: Tensor, b: Tensor) -> Vec<Option<Tensor>> {
    vec![Some(a), Some(b)]
}

#[test]
fn products_of_every_layout() {
    let contract = |lhs: &[u8], rhs: &[u8], out: &[u8]| Op::Contract(Contract::new(lhs.into(), rhs.into(), out.into()));
    for (m, n, k) in [(1, 1, 1), (3, 5, 7), (1, 70, 33), (70, 1, 33), (50, 40, 300), (13, 100, 1024)] {
        let (a, b) = (floats(&[m, k], 1), floats(&[k, n], 2));
        let (at, bt) = (floats(&[k, m], 1), floats(&[n, k], 2));
        for weights in [&[][..], &[1]] {
            check(contract(&[0, 2], &[2, 1], &[0, 1]), &two(a.clone(), b.clone()), weights, 3e-6);
            check(contract(&[2, 0], &[2, 1], &[0, 1]), &two(at.clone(), b.clone()), weights, 3e-6);
            check(contract(&[0, 2], &[1, 2], &[0, 1]), &two(a.clone(), bt.clone()), weights, 3e-6);
            check(contract(&[0, 2], &[1, 2], &[1, 0]), &two(a.clone(), bt.clone()), weights, 3e-6);
        }
    }
    // Batches: shared, broadcast on either side, moved inside the output.
    let (a, b) = (floats(&[2, 3, 5, 8], 3), floats(&[2, 3, 8, 9], 4));
    check(contract(&[0, 1, 2, 4], &[0, 1, 4, 3], &[0, 1, 2, 3]), &two(a.clone(), b.clone()), &[], 3e-6);
    check(contract(&[0, 1, 2, 4], &[0, 1, 4, 3], &[0, 2, 1, 3]), &two(a.clone(), b), &[], 3e-6);
    check(contract(&[0, 1, 2, 4], &[0, 1, 4, 3], &[0, 1, 2, 3]), &two(a.clone(), floats(&[1, 3, 8, 9], 5)), &[], 3e-6);
    check(contract(&[0, 1, 2, 4], &[4, 3], &[0, 1, 2, 3]), &two(a.clone(), floats(&[8, 9], 6)), &[1], 1e-6);
    check(contract(&[4, 3], &[0, 1, 2, 4], &[0, 1, 2, 3]), &two(floats(&[8, 9], 6), a), &[], 3e-6);
    // Vectors, an empty sum, an empty output.
    check(contract(&[1], &[1, 0], &[0]), &two(floats(&[9], 7), floats(&[9, 4], 8)), &[], 3e-6);
    check(contract(&[0], &[0], &[]), &two(floats(&[9], 7), floats(&[9], 8)), &[], 3e-6);
    check(contract(&[0, 2], &[2, 1], &[0, 1]), &two(floats(&[3, 0], 1), floats(&[0, 4], 2)), &[], 0.0);
    check(contract(&[0, 2], &[2, 1], &[0, 1]), &two(floats(&[0, 3], 1), floats(&[3, 4], 2)), &[], 0.0);
}

#[test]
fn integer_products_wrap() {
    let ints = |shape: &[usize], start: i32| {
        let count: usize = shape.iter().product();
        Tensor::from_slice(shape, &(0..count as i32).map(|i| i.wrapping_mul(77_777_777) + start).collect::<Vec<_>>())
            .unwrap()
    };
    check(Op::Contract(Contract::matmul(0)), &two(ints(&[4, 6], 3), ints(&[6, 5], -9)), &[], 0.0);
}

#[test]
fn products_with_an_epilogue() {
    let mut epilogue = Map::default();
    let product = epilogue.push(Instruction::Input(0));
    let bias = epilogue.push(Instruction::Input(1));
    let residual = epilogue.push(Instruction::Input(2));
    let sum = epilogue.push(Instruction::Binary(Binary::Add, product, bias));
    let active = epilogue.push(Instruction::Unary(Unary::GeluErf, sum));
    epilogue.push(Instruction::Binary(Binary::Add, active, residual));
    let op = Op::Contract(Contract { epilogue: Some(epilogue), ..Contract::matmul(1) });
    let inputs = [floats(&[2, 30, 40], 1), floats(&[2, 40, 70], 2), floats(&[70], 3), floats(&[2, 30, 70], 4)];
    check(op, &inputs.map(Some), &[2], 1e-6);
}

pub(super) fn narrow(tensor: &Tensor) -> Tensor {
    tensor.cast(DType::Bf16, CastOptions::default()).unwrap()
}

/// `(result + bias of its column + residual)` through a function, rounded to bf16 where that is said.
pub(super) fn ending(residual: DType, function: Unary, rounded: bool) -> Map {
    let mut map = Map::default();
    let result = map.push(Instruction::Input(0));
    let mut other = map.push(Instruction::Input(1));
    if residual != DType::F32 {
        other = map.push(Instruction::Cast(DType::F32, other));
    }
    let sum = map.push(Instruction::Binary(Binary::Add, result, other));
    let last = match function {
        Unary::Abs => {
            let zero = map.push(Instruction::Constant(Scalar::Float(0.0, DType::F32)));
            map.push(Instruction::Binary(Binary::Max, sum, zero))
        }
        function => map.push(Instruction::Unary(function, sum)),
    };
    if rounded {
        map.push(Instruction::Cast(DType::Bf16, last));
    }
    map
}

#[test]
fn products_of_bf16() {
    let contract = |lhs: &[u8], rhs: &[u8], out: &[u8]| Contract {
        multiply: Some(Factors::Bf16),
        ..Contract::new(lhs.into(), rhs.into(), out.into())
    };
    for (m, n, k) in [(1, 1, 1), (1, 70, 33), (50, 40, 300), (50, 40, 96), (13, 100, 1024), (40, 33, 0), (200, 48, 64)]
    {
        let (a, b) = (floats(&[m, k], 1), floats(&[k, n], 2));
        let (at, bt) = (floats(&[k, m], 1), floats(&[n, k], 2));
        for weights in [&[][..], &[1]] {
            let plain = Op::Contract(contract(&[0, 2], &[2, 1], &[0, 1]));
            check(plain.clone(), &two(a.clone(), b.clone()), weights, 3e-6);
            check(plain, &two(narrow(&a), b.clone()), weights, 3e-6);
            check(Op::Contract(contract(&[2, 0], &[2, 1], &[0, 1])), &two(at.clone(), b.clone()), weights, 3e-6);
            check(Op::Contract(contract(&[0, 2], &[1, 2], &[0, 1])), &two(a.clone(), bt.clone()), weights, 3e-6);
        }
        check(Op::Contract(contract(&[0, 2], &[1, 2], &[1, 0])), &two(narrow(&a), narrow(&bt)), &[], 3e-6);
    }
    let (a, b) = (floats(&[2, 3, 5, 8], 3), floats(&[2, 3, 8, 9], 4));
    let batched = contract(&[0, 1, 2, 4], &[0, 1, 4, 3], &[0, 2, 1, 3]);
    check(Op::Contract(batched), &two(a, narrow(&b)), &[], 3e-6);
    for (residual, function, rounded) in [
        (DType::F32, Unary::Abs, false),
        (DType::Bf16, Unary::Abs, true),
        (DType::Bf16, Unary::GeluErf, true),
        (DType::Bf16, Unary::GeluTanh, true),
        (DType::F32, Unary::Silu, false),
    ] {
        let op = Contract {
            epilogue: Some(ending(residual, function, rounded)),
            multiply: Some(Factors::Bf16),
            ..Contract::matmul(0)
        };
        let other = floats(&[45, 70], 3).cast(residual, CastOptions::default()).unwrap();
        let inputs = [floats(&[45, 64], 1), floats(&[64, 70], 2), other];
        check(Op::Contract(op), &inputs.map(Some), &[1], 3e-6);
    }
}

pub(super) fn conv(strides: &[usize], dilations: &[usize], pads: &[i64], groups: usize) -> Conv {
    Conv {
        strides: strides.into(),
        dilations: dilations.into(),
        padding: Padding::Explicit(pads.into()),
        groups,
        transposed: None,
        channels_last: false,
        multiply: None,
        epilogue: None,
    }
}

#[test]
fn softmax_along_any_axis() {
    for axis in 0..3 {
        for log in [false, true] {
            check(Op::Softmax(Softmax { axis, log }), &[Some(floats(&[7, 33, 40], 1))], &[], 3e-6);
            check(Op::Softmax(Softmax { axis, log }), &[Some(floats(&[2, 1, 3], 1))], &[], 3e-6);
        }
    }
}

#[test]
fn normalisations() {
    let norm = |kind| Op::Norm(Norm { kind, epsilon: 1e-5, epilogue: None, quantize: None });
    let x = floats(&[3, 8, 5, 4], 1);
    for axis in 1..4 {
        let own = &x.shape()[axis..];
        let inputs = [Some(x.clone()), Some(floats(own, 2)), Some(floats(own, 3))];
        check(norm(NormKind::Layer { axis }), &inputs, &[], 2e-6);
        check(norm(NormKind::Layer { axis }), &inputs[..2], &[], 2e-6);
        check(norm(NormKind::Rms { axis }), &inputs[..2], &[], 2e-6);
        let kind = NormKind::Layer { axis };
        let quantized = Norm { kind, epsilon: 1e-5, epilogue: None, quantize: Some((0.07, 90)) };
        check(Op::Norm(quantized), &inputs, &[], 2e-6);
    }
    let inputs = [Some(x), Some(floats(&[8], 2)), Some(floats(&[8], 3))];
    check(norm(NormKind::Group { groups: 4 }), &inputs, &[], 2e-6);
    check(norm(NormKind::Group { groups: 1 }), &inputs, &[], 2e-6);
    check(norm(NormKind::Instance), &inputs, &[], 2e-6);
}

#[test]
fn reductions_of_any_axes() {
    use ReduceKind::*;
    for kind in [Sum, Mean, Max, Min, Product, SumSquare, L1, L2, LogSumExp] {
        for axes in [&[0][..], &[2], &[0, 2], &[1], &[1, 2], &[0, 1, 2], &[]] {
            for keep_dims in [false, true] {
                let op = Op::Reduce(Reduce { kind, axes: axes.into(), keep_dims });
                check(op.clone(), &[Some(floats(&[3, 17, 6], 1))], &[], 1e-5);
                if !matches!(kind, L2 | LogSumExp | Mean) {
                    let ints: Vec<i32> = (0..3 * 17 * 6).map(|i| (i * 37) % 23 - 11).collect();
                    check(op, &[Some(Tensor::from_slice(&[3, 17, 6], &ints).unwrap())], &[], 0.0);
                }
            }
        }
    }
}

#[test]
fn reductions_of_many_rows() {
    use ReduceKind::*;
    // Groups of rows, what is left of one, and several planes; columns of four registers, two, one and none of each size; few rows of which
    // threads take columns.
    let shapes = [
        [2, 8, 40, 32],
        [1, 9, 29, 95],
        [1, 16, 16, 16],
        [1, 130, 1, 130],
        [1, 5, 13, 1],
        [3, 1, 64, 129],
        [1, 7, 7, 480],
    ];
    let kinds = [Sum, Mean, Max, Min, SumSquare, L1, L2];
    for (shape, kind) in shapes.into_iter().flat_map(|shape| kinds.map(|kind| (shape, kind))) {
        let op = Op::Reduce(Reduce { kind, axes: [1, 2].as_slice().into(), keep_dims: true });
        for (x, tolerance) in [(floats(&shape, 1), 1e-5), (narrow(&floats(&shape, 1)), 4e-3)] {
            let known = RefCell::new(BTreeMap::new());
            check_by(Winograd::default(), op.clone(), &[Some(x)], &[], &|place, made, expected| {
                compare(&op, place, made, expected, tolerance);
                // By one thread and several.
                let (bytes, mut known) = (made.bytes().unwrap().to_vec(), known.borrow_mut());
                assert!(*known.entry(place.to_owned()).or_insert_with(|| bytes.clone()) == bytes, "{op:?} on {place}");
            });
        }
    }
}

#[test]
fn pooling() {
    let pool = |kind, ceil_mode, outputs| {
        Op::Pool(Pool {
            kind,
            kernel: [3, 2].as_slice().into(),
            strides: [2, 1].as_slice().into(),
            dilations: [1, 2].as_slice().into(),
            padding: Padding::Explicit([1, 0, 1, 1].as_slice().into()),
            ceil_mode,
            outputs,
            channels_last: false,
        })
    };
    let last = |op| match op {
        Op::Pool(op) => Op::Pool(Pool { channels_last: true, ..op }),
        op => op,
    };
    for (channels, ceil_mode) in [(35, false), (35, true), (87, false)] {
        let pixels = floats(&[2, 10, 9, channels], 1);
        // What is written in bf16 was rounded once.
        for (pixels, rounding) in [(narrow(&pixels), 4e-3), (pixels, 0.0)] {
            let pixels = [Some(pixels)];
            check(last(pool(PoolKind::Max { column_major: false }, ceil_mode, 1)), &pixels, &[], 0.0);
            for count_include_pad in [false, true] {
                let average = PoolKind::Average { count_include_pad };
                check(last(pool(average, ceil_mode, 1)), &pixels, &[], 3e-6 + rounding);
            }
            check(last(pool(PoolKind::Lp { p: 2 }, ceil_mode, 1)), &pixels, &[], 1e-5 + rounding);
        }
    }
    let values: Vec<i64> = (0..2 * 10 * 9 * 35).map(|index| index * 37 % 251).collect();
    for (dtype, lowest) in [(DType::U8, 0), (DType::I8, -128)] {
        let bytes: Vec<i64> = values.iter().map(|value| value + lowest).collect();
        let pixels = [Some(Tensor::from_i64s(dtype, &[2, 10, 9, 35], &bytes).unwrap())];
        check(last(pool(PoolKind::Max { column_major: false }, true, 1)), &pixels, &[], 0.0);
    }
    let x = [Some(floats(&[2, 3, 10, 9], 1))];
    for ceil_mode in [false, true] {
        for column_major in [false, true] {
            check(pool(PoolKind::Max { column_major }, ceil_mode, 2), &x, &[], 0.0);
        }
        for count_include_pad in [false, true] {
            check(pool(PoolKind::Average { count_include_pad }, ceil_mode, 1), &x, &[], 3e-6);
        }
        check(pool(PoolKind::Lp { p: 3 }, ceil_mode, 1), &x, &[], 1e-5);
    }
}

#[test]
fn attention_with_masks_and_groups() {
    let exact = Attention::default();
    // Weights are rounded to bf16 as well: by half a part in 256.
    let narrow = (Attention { multiply: Some(Factors::Bf16), ..exact.clone() }, 4e-3);
    for (dtype, (base, tolerance)) in
        [(DType::F32, (exact.clone(), 3e-6)), (DType::F32, narrow.clone()), (DType::Bf16, narrow)]
    {
        for (queries, keys) in [(1, 1), (5, 7), (3, 0), (64, 128), (60, 300), (130, 70)] {
            if keys > 100 && is_left_out((queries, keys)) {
                continue;
            }
            let operand =
                |shape: &[usize], seed| Some(floats(shape, seed).cast(dtype, CastOptions::default()).unwrap());
            let q = operand(&[2, 4, queries, 16], 1);
            let plain = [q, operand(&[2, 2, keys, 16], 2), operand(&[2, 2, keys, 24], 3)];
            let with = |mask: Tensor| [plain.clone().to_vec(), vec![Some(mask)]].concat();
            check(Op::Attention(base.clone()), &plain, &[], tolerance);
            let capped = Attention { scale: Some(0.3), softcap: 2.0, ..base.clone() };
            check(Op::Attention(capped), &plain, &[], tolerance);
            check(Op::Attention(Attention { scale: Some(-0.3), ..base.clone() }), &plain, &[], tolerance);
            for causal_from_end in [false, true] {
                let op = Attention { causal: true, causal_from_end, ..base.clone() };
                check(Op::Attention(op), &plain, &[], tolerance);
            }
            check(Op::Attention(base.clone()), &with(floats(&[2, 1, 1, keys], 4)), &[], tolerance);
            check(Op::Attention(base.clone()), &with(floats(&[4, queries, keys], 4)), &[], tolerance);
            let bools: Vec<bool> = (0..queries * keys).map(|i| i % 3 != 0 && i >= keys).collect();
            let mask = Tensor::from_bools(&[queries, keys], &bools).unwrap();
            check(Op::Attention(base.clone()), &with(mask), &[], tolerance);
            // The least number hides no key where it hides all.
            let lowest = vec![f32::MIN; keys];
            let mask = Tensor::from_slice(&[1, keys], &lowest).unwrap();
            check(Op::Attention(base.clone()), &with(mask), &[], tolerance);
            let turned = |at: usize| {
                let perm = halimede_graph::ops::Transpose { perm: [0, 2, 1, 3].as_slice().into() };
                perm.evaluate(&[plain[at].as_ref()]).unwrap().remove(0)
            };
            for tokens_first in [[true; 4], [true, false, true, false], [false, true, false, true]] {
                let operands: Vec<_> =
                    (0..3).map(|at| if tokens_first[at] { Some(turned(at)) } else { plain[at].clone() }).collect();
                check(Op::Attention(Attention { tokens_first, ..base.clone() }), &operands, &[], tolerance);
            }
        }
    }
}

#[test]
fn attention_of_small_and_of_large_scores() {
    // In bf16 no maximum is taken away from scores that cannot be large. In one block of keys, several, and more than are
    // weighed at a time; in lengths that fill no block.
    let times = |x: &Tensor, factor: f32| {
        let numbers: Vec<f32> = x.slice::<f32>().unwrap().iter().map(|x| x * factor).collect();
        Tensor::from_slice(x.shape(), &numbers).unwrap()
    };
    for (queries, keys) in [(3, 7), (40, 130), (33, 1100)] {
        if keys > 200 && is_left_out((queries, keys)) {
            continue;
        }
        for (factor, softcap) in [(0.3, 0.0), (1.0, 0.0), (9.0, 0.0), (30.0, 0.0), (30.0, 20.0)] {
            let [q, k, v] =
                [(queries, 1), (keys, 2), (keys, 3)].map(|(tokens, seed)| floats(&[1, 2, tokens, 32], seed));
            let plain = [Some(times(&q, factor)), Some(k), Some(v)];
            let plain = plain.map(|x| Some(narrow(&x?).cast(DType::Bf16, CastOptions::default()).unwrap()));
            let op = Attention { multiply: Some(Factors::Bf16), softcap, ..Attention::default() };
            check(Op::Attention(op.clone()), &plain, &[], 4e-3);
            check(Op::Attention(Attention { causal: true, ..op.clone() }), &plain, &[], 4e-3);
            let bools: Vec<bool> = (0..queries * keys).map(|i| i % 3 != 0 && i >= keys).collect();
            let mask = Tensor::from_bools(&[queries, keys], &bools).unwrap();
            check(Op::Attention(op), &[plain.to_vec(), vec![Some(mask)]].concat(), &[], 4e-3);
        }
    }
}

#[test]
fn a_score_that_is_no_number_shows() {
    // One block of keys, and several: in the first of them, and in the last.
    for (keys, at) in [(5, 2), (300, 3), (300, 290)] {
        let [q, v] = [(3, 1), (keys, 3)].map(|(tokens, seed)| floats(&[1, 1, tokens, 16], seed));
        let mut k = floats(&[1, 1, keys, 16], 2);
        k.slice_mut::<f32>().unwrap()[at * 16] = f32::from_bits(0x7fff_ffff);
        check(Op::Attention(Attention::default()), &[Some(q), Some(k), Some(v)], &[], 3e-6);
    }
    let mut x = floats(&[3, 40], 1);
    x.slice_mut::<f32>().unwrap()[45] = f32::from_bits(0xffff_ffff);
    for axis in [0, 1] {
        check(Op::Softmax(Softmax { axis, log: false }), &[Some(x.clone())], &[], 3e-6);
    }
}

#[test]
fn numbers_kept_in_bf16() {
    let x = narrow(&floats(&[3, 5, 40], 1));
    for kind in
        [NormKind::Layer { axis: 2 }, NormKind::Rms { axis: 2 }, NormKind::Instance, NormKind::Group { groups: 5 }]
    {
        let count = if matches!(kind, NormKind::Layer { .. } | NormKind::Rms { .. }) { 40 } else { 5 };
        let (scale, bias) = (floats(&[count], 2), floats(&[count], 3));
        for (dtype, rounded) in [(DType::Bf16, true), (DType::Bf16, false), (DType::F32, true)] {
            let epilogue = match (dtype, rounded) {
                (DType::Bf16, true) => None,
                _ => {
                    let mut map = Map::default();
                    let mut result = map.push(Instruction::Input(0));
                    if dtype == DType::Bf16 {
                        result = map.push(Instruction::Cast(DType::F32, result));
                    }
                    let last = map.push(Instruction::Unary(Unary::Silu, result));
                    if rounded {
                        map.push(Instruction::Cast(DType::Bf16, last));
                    }
                    Some(map)
                }
            };
            let op = Op::Norm(Norm { kind: kind.clone(), epsilon: 1e-5, epilogue, quantize: None });
            let x = x.cast(dtype, CastOptions::default()).unwrap();
            // The definition rounds before the epilogue too, the kernel only what it writes.
            check(op, &[Some(x), Some(scale.clone()), Some(bias.clone())], &[], 4e-3);
        }
    }
    let pixels = [Some(narrow(&floats(&[2, 9, 8, 40], 1)))];
    for kind in [PoolKind::Max { column_major: false }, PoolKind::Average { count_include_pad: true }] {
        let op = Pool {
            kind,
            kernel: [3, 2].as_slice().into(),
            strides: [2, 2].as_slice().into(),
            dilations: [1, 1].as_slice().into(),
            padding: Padding::Explicit([1, 0, 1, 0].as_slice().into()),
            ceil_mode: false,
            outputs: 1,
            channels_last: true,
        };
        check(Op::Pool(op), &pixels, &[], 4e-3);
    }
    // Columns of whole vectors and fewer, more rows than a short sum.
    for (shape, kind) in [([2, 9, 10, 70], ReduceKind::Mean), ([1, 3, 5, 8], ReduceKind::Max)] {
        let op = Reduce { kind, axes: [1, 2].as_slice().into(), keep_dims: true };
        check(Op::Reduce(op), &[Some(narrow(&floats(&shape, 1)))], &[], 4e-3);
    }
}

#[test]
fn maps_that_broadcast() {
    let shapes: &[(&[usize], &[usize])] = &[
        (&[2, 3, 300], &[2, 3, 300]),
        (&[2, 3, 300], &[300]),
        (&[2, 3, 300], &[3, 1]),
        (&[2, 1, 7], &[5, 1]),
        (&[], &[4, 5]),
        (&[600, 700], &[600, 1]),
        (&[0, 4], &[4]),
    ];
    for (a, b) in shapes {
        for function in [Binary::Add, Binary::Div, Binary::Max, Binary::Less] {
            check(Op::Map(Map::binary(function)), &two(floats(a, 1), floats(b, 2)), &[], 3e-6);
        }
        // Numbers of bf16 are computed in f32, and rounded where they are stored.
        let mut map = Map::default();
        let operands = [0, 1].map(|input| {
            let narrow = map.push(Instruction::Input(input));
            map.push(Instruction::Cast(DType::F32, narrow))
        });
        let product = map.push(Instruction::Binary(Binary::Mul, operands[0], operands[1]));
        map.push(Instruction::Cast(DType::Bf16, product));
        check(Op::Map(map), &two(narrow(&floats(a, 1)), narrow(&floats(b, 2))), &[], 0.0);
    }
}

#[test]
fn maps_by_rows_that_others_share() {
    let shapes: [[&[usize]; 2]; 5] = [
        // Gates of images, a bias, rows that end within a register, and enough for all threads.
        [&[2, 3, 5, 40], &[2, 1, 1, 40]],
        [&[7, 64], &[64]],
        [&[3, 2, 4, 21], &[2, 1, 21]],
        [&[2, 3, 2, 17], &[2, 3, 1, 17]],
        [&[2, 200, 96], &[2, 1, 96]],
    ];
    let types = [DType::F32, DType::Bf16];
    for (data, shared) in types.into_iter().flat_map(|data| types.map(|shared| (data, shared))) {
        for (function, output) in [(Binary::Add, DType::F32), (Binary::Mul, DType::F32), (Binary::Mul, DType::Bf16)] {
            for [a, b] in shapes {
                for swapped in [false, true] {
                    let mut map = Map::default();
                    let mut inputs = [(a, data), (b, shared)];
                    if swapped {
                        inputs.reverse();
                    }
                    let operands = [0, 1].map(|input| match inputs[input].1 {
                        DType::F32 => map.push(Instruction::Input(input)),
                        _ => {
                            let narrow = map.push(Instruction::Input(input));
                            map.push(Instruction::Cast(DType::F32, narrow))
                        }
                    });
                    let result = map.push(Instruction::Binary(function, operands[0], operands[1]));
                    if output == DType::Bf16 {
                        map.push(Instruction::Cast(DType::Bf16, result));
                    }
                    let tensors =
                        inputs.map(|(shape, dtype)| floats(shape, 1).cast(dtype, CastOptions::default()).unwrap());
                    check(Op::Map(map), &tensors.map(Some), &[], 0.0);
                }
            }
        }
    }
}
