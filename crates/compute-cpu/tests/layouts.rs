//! Values between products are blocked where that is asked for, and nothing else changes by it.

#![allow(clippy::unwrap_used, reason = "a test; its helpers fail with it")]

mod images;

use halimede_compute::{Model, ModelOptions, Precision, StepReport, calibrated};
use halimede_compute_cpu::{BlockedLayouts, CpuOptions, CpuUnit, Matrix, MatrixChoice, Winograd};
use halimede_graph::ops::{Binary, Concat, Contract, Conv, Op, Padding, Reduce, ReduceKind, Transposed, Unary};
use halimede_graph::passes::{PassOptions, optimize};
use halimede_graph::{Builder, Dim, Fact, Graph, ValueId};
use halimede_tensor::{DType, Tensor, Value};
use images::{conv_within, max_pool, numbers, relu, relu_6};

/// A graph whose input is any number of square images of so many channels.
fn graph_of_images(channels: usize, side: usize) -> (Graph, ValueId) {
    let mut graph = Graph::default();
    let shape = [Dim::symbol("batch"), channels.into(), side.into(), side.into()];
    let image = graph.add_value("image".to_owned(), Fact::tensor(DType::F32, shape));
    graph.inputs.push(image);
    (graph, image)
}

/// A convolution of so many channels to so many, of a square kernel, with a stride and a bias.
fn conv(b: &mut Builder, x: ValueId, inputs: usize, outputs: usize, size: usize, stride: usize) -> ValueId {
    conv_of_groups(b, x, (inputs, outputs, 1), size, stride)
}

fn conv_of_groups(
    b: &mut Builder,
    x: ValueId,
    (inputs, outputs, groups): (usize, usize, usize),
    size: usize,
    stride: usize,
) -> ValueId {
    let pad = (size / 2) as i64;
    conv_within(b, x, (inputs, outputs, groups), (size, stride), [pad; 4])
}

/// A transposed convolution that makes an image twice as high and wide.
fn doubled(b: &mut Builder, x: ValueId, inputs: usize, outputs: usize) -> ValueId {
    let op = Conv {
        strides: [2, 2].as_slice().into(),
        dilations: [1, 1].as_slice().into(),
        padding: Padding::Explicit([0; 4].as_slice().into()),
        groups: 1,
        transposed: Some(Transposed { output_padding: [0, 0].as_slice().into(), output_shape: [].as_slice().into() }),
        channels_last: false,
        multiply: None,
        epilogue: None,
    };
    let (weights, bias) = (b.constant(numbers(&[inputs, outputs, 2, 2], 1)), b.constant(numbers(&[outputs], 2)));
    b.add(Op::Conv(op), &[x, weights, bias]).unwrap()
}

/// A stem, a pool, two bottlenecks of which the second halves the image, the mean of each channel, a classifier.
fn images(side: usize, channels: usize) -> Graph {
    let (mut graph, image) = graph_of_images(3, side);
    let mut builder = Builder::new(&mut graph);
    let b = &mut builder;
    let stem = conv(b, image, 3, channels, 3, 1);
    let stem = relu(b, stem);
    let mut x = max_pool(b, stem, 3, 2, 1);
    for (inputs, outputs, stride) in [(channels, channels, 1), (channels, 2 * channels, 2)] {
        let y = conv(b, x, inputs, channels, 1, 1);
        let y = relu(b, y);
        let y = conv(b, y, channels, channels, 3, stride);
        let y = relu(b, y);
        let y = conv(b, y, channels, outputs, 1, 1);
        let shortcut = if stride == 1 { x } else { conv(b, x, inputs, outputs, 1, stride) };
        let sum = b.binary(Binary::Add, y, shortcut).unwrap();
        x = relu(b, sum);
    }
    let mean = Reduce { kind: ReduceKind::Mean, axes: [2, 3].as_slice().into(), keep_dims: false };
    let x = b.add(Op::Reduce(mean), &[x]).unwrap();
    let weights = b.constant(numbers(&[2 * channels, 10], 5));
    let scores = b.add(Op::Contract(Contract::matmul(0)), &[x, weights]).unwrap();
    graph.outputs = vec![scores];
    graph
}

/// Two blocks that widen the channels, see each by itself, and narrow them; the first adds what it was given.
fn light_images(side: usize) -> Graph {
    let (mut graph, image) = graph_of_images(32, side);
    let mut builder = Builder::new(&mut graph);
    let b = &mut builder;
    let mut x = conv(b, image, 32, 32, 1, 1);
    for (size, stride) in [(3, 1), (5, 2)] {
        let y = conv(b, x, 32, 96, 1, 1);
        let wide = relu(b, y);
        let y = conv_of_groups(b, wide, (96, 96, 96), size, stride);
        let mut y = b.unary(Unary::HardSwish, y).unwrap();
        if stride == 1 {
            // What a convolution of channels by themselves adds.
            y = b.binary(Binary::Add, y, wide).unwrap();
        }
        let y = conv(b, y, 96, 32, 1, 1);
        x = if stride == 1 { b.binary(Binary::Add, y, x).unwrap() } else { y };
    }
    let mean = Reduce { kind: ReduceKind::Mean, axes: [2, 3].as_slice().into(), keep_dims: false };
    graph.outputs = vec![b.add(Op::Reduce(mean), &[x]).unwrap()];
    graph
}

/// As [`light_images`], with bounds alone behind channels that are seen by themselves, and channels that fill no whole lines.
fn narrow_images(side: usize) -> Graph {
    let (mut graph, image) = graph_of_images(24, side);
    let mut builder = Builder::new(&mut graph);
    let b = &mut builder;
    let x = conv(b, image, 24, 27, 1, 1);
    let mut x = relu_6(b, x);
    for (wide, size, stride) in [(144, 3, 1), (59, 5, 2)] {
        let y = conv(b, x, 27, wide, 1, 1);
        let y = relu_6(b, y);
        let y = conv_of_groups(b, y, (wide, wide, wide), size, stride);
        let y = relu_6(b, y);
        let y = conv(b, y, wide, 27, 1, 1);
        x = if stride == 1 { b.binary(Binary::Add, y, x).unwrap() } else { y };
    }
    let mean = Reduce { kind: ReduceKind::Mean, axes: [2, 3].as_slice().into(), keep_dims: false };
    graph.outputs = vec![b.add(Op::Reduce(mean), &[x]).unwrap()];
    graph
}

/// Products of pixels whose channels fill no whole lines, neither of bytes nor of bf16.
fn odd_channels(side: usize) -> Graph {
    let (mut graph, image) = graph_of_images(96, side);
    let mut builder = Builder::new(&mut graph);
    let b = &mut builder;
    let mut x = image;
    // So many that every machine takes them as integers.
    for (inputs, outputs) in [(96, 328), (328, 296), (296, 264)] {
        let y = conv(b, x, inputs, outputs, 1, 1);
        x = relu(b, y);
    }
    graph.outputs = vec![x];
    graph
}

/// Many channels that a convolution copies, then the largest number of each channel.
fn small_images() -> Graph {
    let (mut graph, image) = graph_of_images(32, 6);
    let mut builder = Builder::new(&mut graph);
    let b = &mut builder;
    let x = conv(b, image, 32, 1024, 1, 1);
    let x = relu(b, x);
    let x = conv(b, x, 1024, 32, 3, 1);
    let x = relu(b, x);
    let x = conv(b, x, 32, 64, 1, 1);
    let x = relu(b, x);
    let x = max_pool(b, x, 6, 1, 0);
    graph.outputs = vec![conv(b, x, 64, 10, 1, 1)];
    graph
}

/// Steps on slices whose operand is there for the whole batch, being read behind them: a pool, a sum, channels by themselves.
fn whole_operands(side: usize) -> Graph {
    let mut graph = Graph::default();
    let image = graph.add_value("image".to_owned(), Fact::tensor(DType::F32, [4, 32, side, side].map(Dim::from)));
    graph.inputs.push(image);
    let mut builder = Builder::new(&mut graph);
    let b = &mut builder;
    let stem = conv(b, image, 32, 64, 3, 1);
    let stem = relu(b, stem);
    let pool = max_pool(b, stem, 3, 1, 1);
    let x = conv(b, pool, 64, 64, 1, 1);
    let sum = b.binary(Binary::Add, x, stem).unwrap();
    let sum = relu(b, sum);
    let x = conv(b, sum, 64, 64, 1, 1);
    let x = relu(b, x);
    let each = conv_of_groups(b, stem, (64, 64, 64), 3, 1);
    let each = conv(b, each, 64, 64, 1, 1);
    let each = relu(b, each);
    let x = b.binary(Binary::Add, x, each).unwrap();
    let x = conv(b, x, 64, 64, 1, 1);
    let mean = Reduce { kind: ReduceKind::Mean, axes: [2, 3].as_slice().into(), keep_dims: false };
    // So many weights that it has no slices.
    let last = conv(b, stem, 64, 1024, 3, 8);
    graph.outputs = [x, last].map(|x| b.add(Op::Reduce(mean.clone()), &[x]).unwrap()).to_vec();
    graph
}

/// An image that is halved, and made large again beside what it was: a convolution of both, twice, the second of which
/// reads what the first read too.
fn joined_images(side: usize) -> Graph {
    let (mut graph, image) = graph_of_images(32, side);
    let mut builder = Builder::new(&mut graph);
    let b = &mut builder;
    let x = conv(b, image, 32, 64, 3, 1);
    let near = relu(b, x);
    let far = max_pool(b, near, 2, 2, 0);
    let far = conv(b, far, 64, 96, 3, 1);
    let far = relu(b, far);
    let far = doubled(b, far, 96, 32);
    let join = |b: &mut Builder, parts: &[ValueId]| b.add(Op::Concat(Concat { axis: 1 }), parts).unwrap();
    let both = join(b, &[near, far]);
    let x = conv(b, both, 96, 32, 3, 1);
    let x = relu(b, x);
    // A part of two wholes can be made in one of them alone, and so can one that stands twice in one.
    let all = join(b, &[both, x, x]);
    let again = join(b, &[near, x]);
    let x = conv(b, all, 160, 64, 1, 1);
    let y = conv(b, again, 96, 64, 1, 1);
    let x = b.binary(Binary::Add, x, y).unwrap();
    graph.outputs = vec![conv(b, x, 64, 4, 1, 1)];
    graph
}

/// What convolutions see beyond their pixels, by who writes and reads it: residuals, kernels of two sizes, a pool, a transposed
/// convolution and what is joined, and one with a stride, which copies what it sees.
fn seen_beyond(side: usize) -> Graph {
    let (mut graph, image) = graph_of_images(32, side);
    let mut builder = Builder::new(&mut graph);
    let b = &mut builder;
    let x = conv(b, image, 32, 64, 3, 1);
    let x = relu(b, x);
    let y = conv(b, x, 64, 96, 3, 1);
    let y = relu(b, y);
    let y = conv(b, y, 96, 64, 3, 1);
    let sum = b.binary(Binary::Add, y, x).unwrap();
    let sum = relu(b, sum);
    let wide = conv(b, sum, 64, 32, 5, 1);
    let near = relu(b, wide);
    let far = max_pool(b, sum, 2, 2, 0);
    let far = conv(b, far, 64, 64, 3, 1);
    let far = relu(b, far);
    let far = doubled(b, far, 64, 32);
    let both = b.add(Op::Concat(Concat { axis: 1 }), &[near, far]).unwrap();
    let x = conv(b, both, 64, 32, 3, 1);
    let halved = conv(b, sum, 64, 32, 3, 2);
    let mean = Reduce { kind: ReduceKind::Mean, axes: [2, 3].as_slice().into(), keep_dims: false };
    let [x, y] = [x, halved].map(|x| b.add(Op::Reduce(mean.clone()), &[x]).unwrap());
    graph.outputs = vec![b.binary(Binary::Add, x, y).unwrap()];
    graph
}

/// Convolutions that see every second pixel, or every third, and the same of what is beside it.
fn halved_images(side: usize, stride: usize, (size, pads): (usize, [i64; 4])) -> Graph {
    let (mut graph, image) = graph_of_images(32, side);
    let mut builder = Builder::new(&mut graph);
    let b = &mut builder;
    let x = conv(b, image, 32, 64, 1, 1);
    let x = relu(b, x);
    let wide = conv_within(b, x, (64, 32, 1), (size, stride), pads);
    let near = conv(b, x, 64, 32, 1, stride);
    let sum = b.binary(Binary::Add, wide, near).unwrap();
    let sum = relu(b, sum);
    let x = conv(b, sum, 32, 64, 5, stride);
    let mean = Reduce { kind: ReduceKind::Mean, axes: [2, 3].as_slice().into(), keep_dims: false };
    graph.outputs = vec![b.add(Op::Reduce(mean), &[x]).unwrap()];
    graph
}

/// Convolutions of large images by few weights.
fn large_images(side: usize) -> Graph {
    let mut graph = Graph::default();
    let image = graph.add_value("image".to_owned(), Fact::tensor(DType::F32, [4, 32, side, side].map(Dim::from)));
    graph.inputs.push(image);
    let mut builder = Builder::new(&mut graph);
    let b = &mut builder;
    let mut x = conv(b, image, 32, 64, 3, 2);
    for _ in 0..4 {
        x = relu(b, x);
        x = conv(b, x, 64, 64, 1, 1);
    }
    let mean = Reduce { kind: ReduceKind::Mean, axes: [2, 3].as_slice().into(), keep_dims: false };
    graph.outputs = vec![b.add(Op::Reduce(mean), &[x]).unwrap()];
    graph
}

/// Two layers of which the second adds what the first was given.
fn rows() -> Graph {
    let mut graph = Graph::default();
    let x = graph.add_value("x".to_owned(), Fact::tensor(DType::F32, [Dim::symbol("batch"), 128.into()]));
    graph.inputs.push(x);
    let mut b = Builder::new(&mut graph);
    let product = |b: &mut Builder, x, k, n| {
        let (weights, bias) = (b.constant(numbers(&[k, n], n)), b.constant(numbers(&[n], 7)));
        let product = b.add(Op::Contract(Contract::matmul(0)), &[x, weights]).unwrap();
        b.binary(Binary::Add, product, bias).unwrap()
    };
    let first = product(&mut b, x, 128, 256);
    let first = b.unary(Unary::Tanh, first).unwrap();
    let second = product(&mut b, first, 256, 256);
    let sum = b.binary(Binary::Add, second, first).unwrap();
    graph.outputs = vec![product(&mut b, sum, 256, 33)];
    graph
}

fn units() -> Vec<Matrix> {
    [Matrix::PORTABLE].into_iter().chain(Matrix::available()).collect()
}

/// Whether a unit reads whole tiles: what is around an image then can be multiplied where it is.
fn reads_tiles(matrix: Matrix) -> bool {
    !matrix.name().starts_with("avx")
}

/// Steps whose result is blocked, with a border or without.
fn blocked(steps: &[StepReport]) -> usize {
    let is_blocked = |step: &&StepReport| [" blocked", " bordered"].iter().any(|end| step.outputs[0].ends_with(end));
    steps.iter().filter(is_blocked).count()
}

/// Those whose result has a border.
fn bordered(steps: &[StepReport]) -> usize {
    steps.iter().filter(|step| step.outputs[0].ends_with(" bordered")).count()
}

/// Answers of a model in both layouts, and the steps of the second.
fn both(
    graph: &Graph,
    precision: Precision,
    matrix: Matrix,
    threads: usize,
    input: &Tensor,
) -> (Tensor, Tensor, Vec<StepReport>) {
    let run = |layouts: BlockedLayouts| {
        let matrix = MatrixChoice::Only(matrix);
        let unit = CpuUnit::new(&CpuOptions {
            threads: Some(threads),
            matrix: matrix.into(),
            blocked: layouts,
            // It has no layouts.
            winograd: Winograd::Never,
            ..CpuOptions::default()
        });
        let mut graph = graph.clone();
        optimize(&mut graph, &PassOptions::default());
        let compile = calibrated(&graph, &unit, precision.into(), &[vec![Value::from(input.clone())]]).unwrap();
        let model = Model::compile(graph, &unit, &ModelOptions { passes: None, compile }).unwrap();
        let mut session = model.session();
        // A second run finds in the arena what the first left there.
        for _ in 0..2 {
            session.run(&[Value::from(input.clone())]).unwrap();
        }
        let steps = session.steps();
        (session.take_outputs().unwrap()[0].tensor().unwrap().clone(), steps)
    };
    let ((plain, none), (made, steps)) = (run(BlockedLayouts::Never), run(BlockedLayouts::Everywhere));
    assert_eq!(blocked(&none), 0);
    (plain, made, steps)
}

#[test]
fn images_answer_alike() {
    for (matrix, threads) in units().into_iter().flat_map(|matrix| [(matrix, 1), (matrix, 3)]) {
        // One image, and several of which none ends with a tile; rows that are one, whole and nearly.
        for (side, batch) in [(18, 1), (21, 3), (32, 1), (30, 2)] {
            let input = numbers(&[batch, 3, side, side], batch);
            let (plain, made, steps) = both(&images(side, 64), Precision::Balanced, matrix, threads, &input);
            assert_eq!(plain.slice::<f32>().unwrap(), made.slice::<f32>().unwrap(), "{} {batch}", matrix.name());
            assert_eq!(blocked(&steps), 9, "{} {batch}", matrix.name());
            // What the 3 x 3 with a stride of one reads, where it is at least as wide as a tile.
            let expected = usize::from(reads_tiles(matrix) && side.div_ceil(2) >= 16);
            assert_eq!(bordered(&steps), expected, "{} {steps:?}", matrix.name());
        }
    }
}

#[test]
fn channels_by_themselves_answer_alike() {
    for (matrix, threads) in units().into_iter().flat_map(|matrix| [(matrix, 1), (matrix, 3)]) {
        for batch in [1, 3] {
            let input = numbers(&[batch, 32, 11, 11], batch);
            let (plain, made, steps) = both(&light_images(11), Precision::Balanced, matrix, threads, &input);
            assert_eq!(plain.slice::<f32>().unwrap(), made.slice::<f32>().unwrap(), "{} {batch}", matrix.name());
            // What the mean reads is in f32.
            assert_eq!(blocked(&steps), 6, "{steps:?}");
        }
    }
}

#[test]
fn lines_that_are_filled_up_answer_alike() {
    for (matrix, threads) in units().into_iter().flat_map(|matrix| [(matrix, 1), (matrix, 3)]) {
        for (batch, odd) in [(1, None), (3, None), (3, Some(f32::INFINITY)), (2, Some(f32::NAN))] {
            let mut input = numbers(&[batch, 24, 11, 11], batch);
            if let Some(odd) = odd {
                // What weights of zero make of it must not spread, though the next bounds make it a number again.
                let mut elements = input.slice::<f32>().unwrap().to_vec();
                elements[1234] = odd;
                input = Tensor::from_slice(&[batch, 24, 11, 11], &elements).unwrap();
            }
            let (plain, made, steps) = both(&narrow_images(11), Precision::Balanced, matrix, threads, &input);
            let numbers =
                |tensor: &Tensor| tensor.slice::<f32>().unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(numbers(&plain), numbers(&made), "{} {batch} {odd:?}", matrix.name());
            // What the mean reads is in f32.
            assert_eq!(blocked(&steps), 6, "{steps:?}");
        }
    }
}

#[test]
fn slices_answer_alike() {
    let input = numbers(&[4, 32, 130, 130], 1);
    let (plain, made, steps) = both(&large_images(130), Precision::Balanced, units()[units().len() - 1], 1, &input);
    assert_eq!(plain.slice::<f32>().unwrap(), made.slice::<f32>().unwrap());
    // What a run of slices reads or writes as a whole is row-major.
    let sliced: Vec<&StepReport> = steps.iter().filter(|step| step.slices > 1).collect();
    let whole = |step: &&StepReport| !step.outputs[0].ends_with("blocked");
    assert!(sliced.len() > 3 && blocked(&steps) > 2, "{steps:?}");
    assert!(sliced.last().is_some_and(whole) && steps.iter().filter(|step| step.slices == 1).all(|step| whole(&step)));
}

#[test]
fn operands_of_whole_batches_are_row_major() {
    for threads in [1, 2] {
        let input = numbers(&[4, 32, 65, 65], 1);
        let (plain, made, steps) =
            both(&whole_operands(65), Precision::Balanced, units()[units().len() - 1], threads, &input);
        assert_eq!(plain.slice::<f32>().unwrap(), made.slice::<f32>().unwrap());
        let outputs: Vec<_> = steps.iter().map(|step| (step.slices, &step.outputs)).collect();
        assert!(steps.iter().any(|step| step.slices > 1), "{outputs:?}");
    }
}

#[test]
fn small_images_answer_alike() {
    for (matrix, batch) in units().into_iter().flat_map(|matrix| [(matrix, 1), (matrix, 3)]) {
        let input = numbers(&[batch, 32, 6, 6], batch);
        let (plain, made, steps) = both(&small_images(), Precision::Balanced, matrix, 1, &input);
        assert_eq!(plain.slice::<f32>().unwrap(), made.slice::<f32>().unwrap(), "{} {batch}", matrix.name());
        assert_eq!(blocked(&steps), 3, "{steps:?}");
    }
}

#[test]
fn joined_images_answer_alike() {
    for (matrix, threads) in units().into_iter().flat_map(|matrix| [(matrix, 1), (matrix, 3)]) {
        for batch in [1, 3] {
            let input = numbers(&[batch, 32, 14, 14], batch);
            let (plain, made, steps) = both(&joined_images(14), Precision::Balanced, matrix, threads, &input);
            assert_eq!(plain.slice::<f32>().unwrap(), made.slice::<f32>().unwrap(), "{} {batch}", matrix.name());
            let joins: Vec<&str> =
                steps.iter().filter(|step| step.operator == "Concat").map(|step| step.kernel.as_str()).collect();
            let expected = ["concat, 2 of 2 in place", "concat, 2 of 3 in place", "concat"];
            assert_eq!(joins, expected, "{} {batch}", matrix.name());
        }
    }
    // What is joined is quantised afterwards.
    for (threads, batch) in [(1, 1), (3, 3)] {
        let input = numbers(&[batch, 32, 14, 14], batch);
        let (plain, made, steps) = both(&joined_images(14), Precision::Fast, Matrix::PORTABLE, threads, &input);
        assert_eq!(plain.slice::<f32>().unwrap(), made.slice::<f32>().unwrap(), "{batch}");
        let joins = steps.iter().filter(|step| step.kernel.ends_with("in place")).count();
        assert!(joins > 0 && steps.iter().any(|step| step.operator == "Quantize"), "{steps:?}");
    }
}

#[test]
fn what_is_seen_beyond_pixels_answers_alike() {
    for (matrix, threads) in units().into_iter().flat_map(|matrix| [(matrix, 1), (matrix, 3)]) {
        // Rows of whole tiles and of more, of which a half is less than a tile; one image, and several.
        for (side, batch) in [(16, 3), (18, 1), (32, 1)] {
            let input = numbers(&[batch, 32, side, side], batch);
            let (plain, made, steps) = both(&seen_beyond(side), Precision::Balanced, matrix, threads, &input);
            assert_eq!(plain.slice::<f32>().unwrap(), made.slice::<f32>().unwrap(), "{} {side}", matrix.name());
            // All but what the transposed convolution and the means read: what a pool makes has a border where what it reads does.
            assert_eq!(bordered(&steps), if reads_tiles(matrix) { 7 } else { 0 }, "{} {steps:?}", matrix.name());
        }
    }
}

#[test]
fn pixels_with_others_between_them_answer_alike() {
    for (matrix, threads) in units().into_iter().flat_map(|matrix| [(matrix, 1), (matrix, 3)]) {
        // Results whose last tile is full or nearly, and one of which it is nearly empty; sides that leave a pixel over.
        // The same with more pixels behind the image than before it, or with none there.
        let even = (3, [1; 4]);
        for (side, stride, batch, kernel, expected) in [
            (32, 2, 1, even, 1),
            (31, 2, 2, even, 1),
            (59, 2, 1, even, 3),
            (34, 2, 3, even, 0),
            (48, 3, 2, even, 1),
            (47, 3, 1, even, 1),
            (30, 2, 1, (3, [0, 0, 1, 1]), 1),
            (32, 2, 1, (5, [1, 1, 2, 2]), 1),
            (32, 2, 2, (3, [1, 1, 0, 0]), 1),
        ] {
            let input = numbers(&[batch, 32, side, side], batch);
            let graph = halved_images(side, stride, kernel);
            let (plain, made, steps) = both(&graph, Precision::Balanced, matrix, threads, &input);
            assert_eq!(plain.slice::<f32>().unwrap(), made.slice::<f32>().unwrap(), "{} {side}", matrix.name());
            // What the first two see, and with what they make what the last one sees where that makes nearly a tile.
            let expected = if reads_tiles(matrix) { expected } else { 0 };
            assert_eq!(bordered(&steps), expected, "{} {side} {steps:?}", matrix.name());
        }
    }
}

/// Three convolutions over one axis, of which two look beyond what the one before makes.
fn signals(length: usize) -> Graph {
    let mut graph = Graph::default();
    let signal = graph.add_value("signal".to_owned(), Fact::tensor(DType::F32, [2, 32, length].map(Dim::from)));
    graph.inputs.push(signal);
    let mut b = Builder::new(&mut graph);
    let mut x = signal;
    for (inputs, outputs) in [(32, 64), (64, 96), (96, 32)] {
        let op = Conv {
            strides: [1].as_slice().into(),
            dilations: [1].as_slice().into(),
            padding: Padding::Explicit([1; 2].as_slice().into()),
            groups: 1,
            transposed: None,
            channels_last: false,
            multiply: None,
            epilogue: None,
        };
        let weights = b.constant(numbers(&[outputs, inputs, 3], outputs));
        let bias = b.constant(numbers(&[outputs], 3));
        x = b.add(Op::Conv(op), &[x, weights, bias]).unwrap();
        x = relu(&mut b, x);
    }
    graph.outputs = vec![x];
    graph
}

#[test]
fn signals_answer_alike() {
    for (matrix, threads) in units().into_iter().flat_map(|matrix| [(matrix, 1), (matrix, 3)]) {
        let input = numbers(&[2, 32, 40], 1);
        let (plain, made, steps) = both(&signals(40), Precision::Balanced, matrix, threads, &input);
        assert_eq!(plain.slice::<f32>().unwrap(), made.slice::<f32>().unwrap(), "{}", matrix.name());
        // They are no images.
        assert_eq!(bordered(&steps), 0, "{} {steps:?}", matrix.name());
    }
}

#[test]
fn rows_answer_alike() {
    for (matrix, threads) in units().into_iter().flat_map(|matrix| [(matrix, 1), (matrix, 3)]) {
        for batch in [1, 16, 49, 70] {
            let input = numbers(&[batch, 128], batch);
            let (plain, made, steps) = both(&rows(), Precision::Balanced, matrix, threads, &input);
            assert_eq!(plain.slice::<f32>().unwrap(), made.slice::<f32>().unwrap(), "{} {batch}", matrix.name());
            // Fewer rows are no tile.
            assert_eq!(blocked(&steps), if batch < 16 { 0 } else { 2 }, "{} {batch}", matrix.name());
        }
    }
}

#[test]
fn integers_answer_alike() {
    for threads in [1, 3] {
        let input = numbers(&[2, 3, 12, 12], 1);
        let (plain, made, steps) = both(&images(12, 128), Precision::Fast, Matrix::PORTABLE, threads, &input);
        assert_eq!(plain.slice::<f32>().unwrap(), made.slice::<f32>().unwrap());
        // Lines of 64 numbers, of which products end 32 at a time.
        let is_of_bytes =
            |step: &&StepReport| step.outputs[0].starts_with("u8") && step.outputs[0].ends_with("blocked");
        assert!(steps.iter().filter(is_of_bytes).count() > 0, "{steps:?}");
        // Lines that are filled up: behind a block, and where two blocks share one.
        let input = numbers(&[2, 96, 17, 17], 1);
        let (plain, made, steps) = both(&odd_channels(17), Precision::Fast, Matrix::PORTABLE, threads, &input);
        assert_eq!(plain.slice::<f32>().unwrap(), made.slice::<f32>().unwrap());
        assert!(steps.iter().filter(is_of_bytes).count() > 0, "{steps:?}");
        // A residual whose lines are half as long.
        let (plain, made, _) = both(&rows(), Precision::Fast, Matrix::PORTABLE, threads, &numbers(&[49, 128], 1));
        assert_eq!(plain.slice::<f32>().unwrap(), made.slice::<f32>().unwrap());
    }
}
