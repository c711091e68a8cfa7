//! Batches that are run in slices answer as each of their images does.

#![allow(clippy::unwrap_used, reason = "a test; its helpers fail with it")]

mod images;

use half::bf16;
use halimede_compute::{CompileOptions, Model, ModelOptions, Precision, Session};
use halimede_compute_cpu::{CpuOptions, CpuUnit};
use halimede_graph::ops::{
    Binary, Concat, Contract, Instruction, Map, Op, Padding, Pool, PoolKind, Reduce, ReduceKind, Unary,
};
use halimede_graph::{Builder, Dim, Fact, Graph, ValueId};
use halimede_tensor::{DType, Tensor, Value};
use images::{conv_within, numbers};

const SIDE: usize = 48;
const CHANNELS: usize = 32;

fn conv(b: &mut Builder, x: ValueId, (inputs, outputs, size): (usize, usize, usize)) -> ValueId {
    conv_within(b, x, (inputs, outputs, 1), (size, 1), [(size / 2) as i64; 4])
}

/// A stem, a residual block, a pool and a concatenation, all of large images and small weights; then a classifier. The
/// stem's result is an output, too.
fn graph() -> Graph {
    let mut graph = Graph::default();
    let shape = [Dim::symbol("batch"), 3.into(), SIDE.into(), SIDE.into()];
    let image = graph.add_value("image".to_owned(), Fact::tensor(DType::F32, shape));
    graph.inputs.push(image);
    let mut builder = Builder::new(&mut graph);
    let b = &mut builder;
    let stem = conv(b, image, (3, CHANNELS, 3));
    let stem = b.unary(Unary::HardSwish, stem).unwrap();
    let x = conv(b, stem, (CHANNELS, CHANNELS, 3));
    let x = b.unary(Unary::Silu, x).unwrap();
    let x = conv(b, x, (CHANNELS, CHANNELS, 1));
    let x = b.binary(Binary::Add, x, stem).unwrap();
    let x = b.unary(Unary::HardSwish, x).unwrap();
    let y = conv(b, x, (CHANNELS, CHANNELS, 1));
    let x = b.add(Op::Concat(Concat { axis: 1 }), &[x, y]).unwrap();
    let pool = Pool {
        kind: PoolKind::Max { column_major: false },
        kernel: [3, 3].as_slice().into(),
        strides: [2, 2].as_slice().into(),
        dilations: [1, 1].as_slice().into(),
        padding: Padding::Explicit([1, 1, 1, 1].as_slice().into()),
        ceil_mode: false,
        outputs: 1,
        channels_last: false,
    };
    let x = b.add(Op::Pool(pool), &[x]).unwrap();
    let mean = Reduce { kind: ReduceKind::Mean, axes: [2, 3].as_slice().into(), keep_dims: false };
    let x = b.add(Op::Reduce(mean), &[x]).unwrap();
    let weights = b.constant(numbers(&[2 * CHANNELS, 10], 5));
    let scores = b.add(Op::Contract(Contract::matmul(0)), &[x, weights]).unwrap();
    graph.outputs = vec![scores, stem];
    graph
}

fn outputs(session: &mut Session, image: Tensor) -> [Vec<f32>; 2] {
    session.run(&[Value::from(image)]).unwrap();
    let made = session.take_outputs().unwrap();
    [0, 1].map(|index| made[index].tensor().unwrap().slice::<f32>().unwrap().to_vec())
}

#[test]
fn slices_answer_as_single_images_do() {
    for (precision, threads) in [Precision::Exact, Precision::Balanced].into_iter().flat_map(|p| [(p, 1), (p, 2)]) {
        let unit = CpuUnit::new(&CpuOptions { threads: Some(threads), ..CpuOptions::default() });
        let options = ModelOptions { compile: CompileOptions::from(precision), ..ModelOptions::default() };
        let model = Model::compile(graph(), &unit, &options).unwrap();
        let mut single = model.session();
        // A prime number of images has one slice for each; 12 are cut so that each thread has some.
        for batch in [7, 12] {
            let mut session = model.session();
            let images = numbers(&[batch, 3, SIDE, SIDE], batch);
            let together = outputs(&mut session, images.clone());
            let slices: Vec<usize> = session.steps().iter().map(|step| step.slices).collect();
            assert!(slices.iter().any(|&slices| slices > 1), "{precision:?}, {threads} threads: {slices:?}");
            assert_eq!(slices.last(), Some(&1), "the classifier reads all images at once");
            let elements = images.slice::<f32>().unwrap();
            for (index, image) in elements.chunks_exact(elements.len() / batch).enumerate() {
                let alone = outputs(&mut single, Tensor::from_slice(&[1, 3, SIDE, SIDE], image).unwrap());
                for (together, alone) in together.iter().zip(&alone) {
                    let together = &together[index * alone.len()..][..alone.len()];
                    let most = together.iter().zip(alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    let largest = alone.iter().fold(0f32, |most, x| most.max(x.abs()));
                    assert!(most <= 1e-4 * largest, "{precision:?}, image {index} of {batch}: {most} of {largest}");
                }
            }
        }
    }
}

#[test]
fn slices_take_less_memory() {
    let unit = CpuUnit::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() });
    let model = Model::compile(graph(), &unit, &ModelOptions::default()).unwrap();
    let mut session = model.session();
    let mut arena = |batch: usize| {
        session.run(&[Value::from(numbers(&[batch, 3, SIDE, SIDE], 1))]).unwrap();
        session.arena_bytes()
    };
    // As a whole, the concatenation alone would read and write so much.
    let concatenation = 4 * CHANNELS * SIDE * SIDE * size_of::<f32>();
    let (few, many) = (arena(8), arena(16));
    assert!((many - few) / 8 < concatenation / 2, "{few} bytes for 8 images, {many} for 16");
}

/// One slice of numbers of four bytes is as long as two of two bytes, which no step may take for the same memory.
#[test]
fn a_slice_does_not_stand_for_a_batch() {
    let mut graph = Graph::default();
    let shape = [Dim::symbol("batch"), CHANNELS.into(), (2 * SIDE).into(), SIDE.into()];
    let image = graph.add_value("image".to_owned(), Fact::tensor(DType::F32, shape));
    graph.inputs.push(image);
    let mut builder = Builder::new(&mut graph);
    let both = builder.add(Op::Concat(Concat { axis: 1 }), &[image, image]).unwrap();
    let mut map = Map::default();
    let number = map.push(Instruction::Input(0));
    let number = map.push(Instruction::Unary(Unary::Silu, number));
    map.push(Instruction::Cast(DType::Bf16, number));
    let narrow = builder.add(Op::Map(map), &[both]).unwrap();
    graph.outputs = vec![narrow];
    let unit = CpuUnit::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() });
    let model = Model::compile(graph, &unit, &ModelOptions::default()).unwrap();
    let run = |images: Tensor| {
        let mut session = model.session();
        session.run(&[Value::from(images)]).unwrap();
        let slices: Vec<usize> = session.steps().iter().map(|step| step.slices).collect();
        let made = session.take_outputs().unwrap();
        (slices, made[0].tensor().unwrap().slice::<bf16>().unwrap().to_vec())
    };
    let shape = [2, CHANNELS, 2 * SIDE, SIDE];
    let images = numbers(&shape, 1);
    let (slices, together) = run(images.clone());
    assert_eq!(slices, [2, 2]);
    let elements = images.slice::<f32>().unwrap();
    let alone = elements
        .chunks_exact(elements.len() / 2)
        .flat_map(|image| run(Tensor::from_slice(&[1, shape[1], shape[2], shape[3]], image).unwrap()).1);
    assert!(alone.eq(together));
}
