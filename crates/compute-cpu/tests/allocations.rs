//! A run on the shapes of the run before allocates nothing.
//!
//! A program of its own, without the test harness: the harness's main thread allocates whenever it
//! gets the processor, and the count is of the whole process.

#![allow(clippy::unwrap_used, reason = "a test; its helpers fail with it")]

use halimede_compute::{CompileOptions, Model, ModelOptions, Precision};
use halimede_compute_cpu::{CpuOptions, CpuUnit, Matrix, MatrixChoice};
use halimede_graph::ops::{
    Attention, Binary, Contract, Conv, Map, Norm, NormKind, Op, Padding, Pool, PoolKind, Reduce, ReduceKind, Softmax,
    Unary,
};
use halimede_graph::{Builder, Fact, Graph, ValueId};
use halimede_tensor::{DType, Tensor, Value};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn input(graph: &mut Graph, shape: &[usize]) -> ValueId {
    let name = format!("x{}", graph.values.len());
    let id = graph.add_value(name, Fact::tensor(DType::F32, shape.iter().map(|&size| size.into())));
    graph.inputs.push(id);
    id
}

fn weights(b: &mut Builder, shape: &[usize]) -> ValueId {
    let count: usize = shape.iter().product();
    let elements: Vec<f32> = (0..count).map(|i| (i % 17) as f32 * 0.05 - 0.4).collect();
    b.constant(Tensor::from_slice(shape, &elements).unwrap())
}

/// A convolutional head and an attention block: one of each kind of kernel.
fn graph() -> Graph {
    let mut graph = Graph::default();
    let (image, tokens) = (input(&mut graph, &[2, 3, 24, 24]), input(&mut graph, &[2, 4, 30, 16]));
    let mut builder = Builder::new(&mut graph);
    let b = &mut builder;
    let w = weights(b, &[64, 3, 3, 3]);
    let conv = Conv {
        strides: [1, 1].as_slice().into(),
        dilations: [1, 1].as_slice().into(),
        padding: Padding::Explicit([1, 1, 1, 1].as_slice().into()),
        groups: 1,
        transposed: None,
        channels_last: false,
        multiply: None,
        epilogue: None,
    };
    let x = b.add(Op::Conv(conv.clone()), &[image, w]).unwrap();
    let x = b.unary(Unary::Silu, x).unwrap();
    // Of a size for Winograd's algorithm.
    let w = weights(b, &[64, 64, 3, 3]);
    let x = b.add(Op::Conv(conv), &[x, w]).unwrap();
    let pool = Pool {
        kind: PoolKind::Max { column_major: false },
        kernel: [2, 2].as_slice().into(),
        strides: [2, 2].as_slice().into(),
        dilations: [1, 1].as_slice().into(),
        padding: Padding::Explicit([0, 0, 0, 0].as_slice().into()),
        ceil_mode: false,
        outputs: 1,
        channels_last: false,
    };
    let x = b.add(Op::Pool(pool), &[x]).unwrap();
    let mean = Reduce { kind: ReduceKind::Mean, axes: [2, 3].as_slice().into(), keep_dims: false };
    let x = b.add(Op::Reduce(mean), &[x]).unwrap();
    let w = weights(b, &[64, 10]);
    let x = b.add(Op::Contract(Contract::matmul(0)), &[x, w]).unwrap();
    let scores = b.add(Op::Softmax(Softmax { axis: 1, log: false }), &[x]).unwrap();

    let attention = Attention { causal: true, ..Attention::default() };
    let tokens = b.unary(Unary::Tanh, tokens).unwrap();
    let y = b.add(Op::Attention(attention), &[tokens, tokens, tokens]).unwrap();
    let y = b.binary(Binary::Add, y, tokens).unwrap();
    let norm = Norm { kind: NormKind::Layer { axis: 3 }, epsilon: 1e-5, epilogue: None, quantize: None };
    let (scale, bias) = (weights(b, &[16]), weights(b, &[16]));
    let y = b.add(Op::Norm(norm), &[y, scale, bias]).unwrap();
    let y = b.add(Op::Map(Map::unary(Unary::GeluErf)), &[y]).unwrap();
    graph.outputs = vec![scores, y];
    graph
}

fn main() {
    println!("\nrunning 1 test");
    // A panic ends the program with its message and a status that cargo takes for a failed test.
    a_second_run_allocates_nothing();
    println!("test a_second_run_allocates_nothing ... ok\n");
    println!("test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
}

fn a_second_run_allocates_nothing() {
    for (threads, precision) in
        [(1, Precision::Exact), (2, Precision::Exact), (1, Precision::Balanced), (2, Precision::Balanced)]
    {
        // Any matrix unit: whether the machine has a fast one is no matter here.
        let matrix = MatrixChoice::Only(Matrix::available().last().copied().unwrap_or(Matrix::PORTABLE));
        let unit = CpuUnit::new(&CpuOptions { threads: Some(threads), matrix: matrix.into(), ..CpuOptions::default() });
        let options = ModelOptions { compile: CompileOptions::from(precision), ..ModelOptions::default() };
        let model = Model::compile(graph(), &unit, &options).unwrap();
        let mut session = model.session();
        let numbers = |shape: &[usize]| {
            let count: usize = shape.iter().product();
            let elements: Vec<f32> = (0..count).map(|i| (i % 23) as f32 * 0.1 - 1.0).collect();
            Value::from(Tensor::from_slice(shape, &elements).unwrap())
        };
        let inputs = [numbers(&[2, 3, 24, 24]), numbers(&[2, 4, 30, 16])];
        for _ in 0..3 {
            session.run(&inputs).unwrap();
        }
        assert_eq!(session.coverage().reference, 0, "every step should have a kernel");
        let first = session.output(1).map(|(_, bytes)| bytes.to_vec());
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..5 {
            session.run(&inputs).unwrap();
        }
        let count = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(count, 0, "{count} allocations in five runs on {threads} threads, {precision:?}");
        assert_eq!(session.output(1).map(|(_, bytes)| bytes.to_vec()), first);
    }
}
