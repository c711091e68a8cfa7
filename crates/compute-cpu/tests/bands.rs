//! Images that go through several steps in bands of rows answer as they do when they are whole.

#![allow(clippy::unwrap_used, reason = "a test; its helpers fail with it")]

mod images;

use halimede_compute::{BandsOf, Model, ModelOptions, Precision, calibrated};
use halimede_compute_cpu::{BlockedLayouts, CpuOptions, CpuUnit, Matrix, MatrixChoice, Winograd};
use halimede_graph::ops::{Binary, Conv, Op, Padding, Reshape};
use halimede_graph::passes::{PassOptions, optimize};
use halimede_graph::{Builder, Dim, Fact, Graph, ValueId};
use halimede_tensor::{DType, Tensor, Value};
use images::{conv_within, max_pool, numbers, relu_6};

/// One layer of a chain.
#[derive(Clone, Copy, Debug)]
enum Layer {
    /// To so many channels, of a kernel, with a stride and so many pixels above, left, below and right.
    Conv(usize, usize, usize, [i64; 4]),
    /// The same of each channel by itself.
    Depthwise(usize, usize, [i64; 4]),
    /// The same of so many neighbouring channels at a time.
    Grouped(usize, usize, [i64; 4]),
    MaxPool(usize, usize, i64),
    /// Added to what was so many layers before.
    Add(usize),
}

/// A convolution whose results lie within 0 and 6.
fn conv(
    b: &mut Builder,
    x: ValueId,
    channels: (usize, usize, usize),
    kernel: (usize, usize),
    pads: [i64; 4],
) -> ValueId {
    let x = conv_within(b, x, channels, kernel, pads);
    relu_6(b, x)
}

fn graph(layers: &[Layer], channels: usize, size: [usize; 2]) -> Graph {
    let mut graph = Graph::default();
    let shape = [Dim::symbol("batch"), channels.into(), size[0].into(), size[1].into()];
    let image = graph.add_value("image".to_owned(), Fact::tensor(DType::F32, shape));
    graph.inputs.push(image);
    let mut builder = Builder::new(&mut graph);
    let b = &mut builder;
    let mut made = vec![(image, channels)];
    for layer in layers {
        let &(x, channels) = made.last().unwrap();
        made.push(match *layer {
            Layer::Conv(outputs, size, stride, pads) => {
                (conv(b, x, (channels, outputs, 1), (size, stride), pads), outputs)
            }
            Layer::Depthwise(size, stride, pads) => {
                (conv(b, x, (channels, channels, channels), (size, stride), pads), channels)
            }
            Layer::Grouped(width, stride, pads) => {
                (conv(b, x, (channels, channels, channels / width), (3, stride), pads), channels)
            }
            Layer::MaxPool(size, stride, pad) => (max_pool(b, x, size, stride, pad), channels),
            Layer::Add(back) => (b.binary(Binary::Add, x, made[made.len() - 1 - back].0).unwrap(), channels),
        });
    }
    let last = made.last().unwrap().0;
    graph.outputs = vec![last];
    optimize(&mut graph, &PassOptions::default());
    graph
}

const SAME: [i64; 4] = [1; 4];
const NONE: [i64; 4] = [0; 4];

/// What widens, looks around and narrows again, in a row, some with a stride; what adds itself; a pool behind a large convolution.
fn chains(side: usize) -> Vec<(Vec<Layer>, usize, [usize; 2])> {
    use Layer::{Add, Conv, Depthwise, Grouped, MaxPool};
    vec![
        (
            vec![
                Conv(32, 3, 2, SAME),
                Depthwise(3, 1, SAME),
                Conv(16, 1, 1, NONE),
                Conv(96, 1, 1, NONE),
                Depthwise(3, 2, SAME),
                Conv(24, 1, 1, NONE),
                Conv(144, 1, 1, NONE),
                Depthwise(3, 1, SAME),
                Conv(24, 1, 1, NONE),
                Add(3),
                Conv(64, 1, 1, NONE),
            ],
            3,
            [side, side],
        ),
        (
            vec![
                Conv(64, 7, 2, [3; 4]),
                MaxPool(3, 2, 1),
                Conv(256, 1, 1, NONE),
                Conv(64, 1, 1, NONE),
                Conv(64, 3, 1, SAME),
                Conv(256, 1, 1, NONE),
                Add(3),
                Conv(64, 1, 1, NONE),
                Conv(64, 3, 1, SAME),
                Conv(256, 1, 1, NONE),
                Add(3),
                Conv(128, 1, 1, NONE),
                Conv(128, 3, 2, SAME),
            ],
            3,
            [side, side - 12],
        ),
        (
            vec![
                Conv(128, 1, 1, NONE),
                Grouped(4, 1, SAME),
                Conv(64, 1, 1, NONE),
                Conv(256, 1, 1, NONE),
                Grouped(8, 2, SAME),
                Conv(96, 1, 1, NONE),
                Grouped(16, 1, SAME),
                Conv(128, 1, 1, NONE),
                Grouped(32, 1, SAME),
                Conv(32, 1, 1, NONE),
            ],
            32,
            [side - 4, side],
        ),
        // More below than above, the other way round, rows that nobody sees, and images that bands do not divide.
        (
            vec![
                Conv(64, 3, 1, [0, 1, 2, 1]),
                Conv(64, 3, 1, [2, 1, 0, 1]),
                Conv(64, 5, 3, [2, 2, 0, 2]),
                Conv(128, 1, 1, NONE),
                Depthwise(5, 1, [2; 4]),
                Conv(32, 1, 1, NONE),
            ],
            32,
            [side - 5, side / 2 + 7],
        ),
        // Single pixels that see rows of border, or leave rows out, in several lines of channels.
        (
            vec![
                Conv(64, 1, 1, NONE),
                Conv(96, 1, 1, [1, 0, 2, 0]),
                Conv(64, 1, 1, NONE),
                Conv(96, 1, 1, [-2, 0, -1, 0]),
                Conv(64, 1, 1, NONE),
                Conv(64, 3, 1, SAME),
                Conv(64, 1, 2, NONE),
            ],
            64,
            [side, side / 2],
        ),
    ]
}

/// The answer, and how many steps went through bands.
fn run(graph: &Graph, options: &CpuOptions, precision: Precision, image: &Tensor) -> (Vec<f32>, usize) {
    let unit = CpuUnit::new(options);
    let value = [Value::from(image.clone())];
    let compile = calibrated(graph, &unit, precision.into(), &[value.to_vec()]).unwrap();
    let model = Model::compile(graph.clone(), &unit, &ModelOptions { passes: None, compile }).unwrap();
    let mut session = model.session();
    // Twice: the first finds nothing in memory, the second what the first has left.
    let mut answers = [0; 2].map(|_| {
        session.run(&value).unwrap();
        let made = session.take_outputs().unwrap();
        made[0].tensor().unwrap().slice::<f32>().unwrap().to_vec()
    });
    let banded = session.steps().iter().filter(|step| step.bands > 1).count();
    let [first, second] = &mut answers;
    assert!(first == second, "a second run answers otherwise");
    (std::mem::take(first), banded)
}

/// By the machine's own units: the system's library, where there is one, knows no bands.
fn options(bands: BandsOf) -> CpuOptions {
    let matrix = MatrixChoice::Only(Matrix::available().first().copied().unwrap_or(Matrix::PORTABLE)).into();
    CpuOptions { threads: Some(1), winograd: Winograd::Never, matrix, bands, ..CpuOptions::default() }
}

/// That every choice of bands answers as whole images do, of so many channels as the graph has; and in each some steps are in bands.
fn assert_alike(
    chain: &(Vec<Layer>, usize, [usize; 2]),
    batch: usize,
    precision: Precision,
    of: &dyn Fn(BandsOf) -> CpuOptions,
    choices: &[BandsOf],
) {
    let (layers, channels, [height, width]) = chain;
    let graph = graph(layers, *channels, [*height, *width]);
    let image = numbers(&[batch, *channels, *height, *width], batch);
    let (whole, none) = run(&graph, &of(BandsOf::None), precision, &image);
    assert_eq!(none, 0);
    for &choice in choices {
        let (bands, some) = run(&graph, &of(choice), precision, &image);
        let what = format!("{layers:?} {precision}, {batch} images, {choice:?}");
        assert!(some > 1, "nothing in bands: {what}");
        assert!(whole == bands, "{what}");
    }
}

#[test]
fn bands_answer_as_whole_images_do() {
    for chain in &chains(56) {
        for (threads, precision) in
            [(1, Precision::Exact), (2, Precision::Exact), (1, Precision::Balanced), (2, Precision::Fast)]
        {
            let of = |bands| CpuOptions { threads: Some(threads), ..options(bands) };
            assert_alike(chain, 1, precision, &of, &[BandsOf::Rows(1), BandsOf::Rows(5)]);
        }
    }
}

#[test]
fn blocked_bands_answer_as_whole_images_do() {
    for matrix in [Matrix::PORTABLE].into_iter().chain(Matrix::available()) {
        for (chain, precision) in
            chains(56).iter().flat_map(|chain| [(chain, Precision::Balanced), (chain, Precision::Fast)])
        {
            let of = |bands| CpuOptions {
                matrix: MatrixChoice::Only(matrix).into(),
                blocked: if bands == BandsOf::None { BlockedLayouts::Never } else { BlockedLayouts::Everywhere },
                ..options(bands)
            };
            assert_alike(chain, 1, precision, &of, &[BandsOf::Rows(3), BandsOf::Rows(4)]);
        }
    }
}

#[test]
fn large_images_go_through_bands_by_themselves() {
    let chain = &chains(224)[0];
    for batch in [1, 2] {
        assert_alike(chain, batch, Precision::Exact, &options, &[BandsOf::WherePays]);
    }
    let (layers, channels, _) = chain;
    let small = numbers(&[1, *channels, 64, 64], 1);
    let (_, some) = run(&graph(layers, *channels, [64, 64]), &options(BandsOf::WherePays), Precision::Exact, &small);
    assert_eq!(some, 0, "what is near anyway");
}

/// Two convolutions with the channels last, between which every row becomes two.
fn under_another_shape() -> Graph {
    let mut graph = Graph::default();
    let image =
        graph.add_value("image".to_owned(), Fact::tensor(DType::F32, [1.into(), 16.into(), 8.into(), 64.into()]));
    graph.inputs.push(image);
    let mut b = Builder::new(&mut graph);
    let conv = |b: &mut Builder, x, size: usize| {
        let pad = (size / 2) as i64;
        let op = Conv {
            strides: [1, 1].as_slice().into(),
            dilations: [1, 1].as_slice().into(),
            padding: Padding::Explicit([pad; 4].as_slice().into()),
            groups: 1,
            transposed: None,
            channels_last: true,
            multiply: None,
            epilogue: None,
        };
        let weights = b.constant(numbers(&[64, 64, size, size], size));
        b.add(Op::Conv(op), &[x, weights]).unwrap()
    };
    let x = conv(&mut b, image, 1);
    let x = conv(&mut b, x, 3);
    let shape = b.constant(Tensor::from_slice(&[4], &[1i64, 32, 4, 64]).unwrap());
    let x = b.add(Op::Reshape(Reshape { allow_zero: false }), &[x, shape]).unwrap();
    let x = conv(&mut b, x, 3);
    graph.outputs = vec![conv(&mut b, x, 3)];
    graph
}

#[test]
fn rows_of_another_shape_are_others() {
    let (graph, image) = (under_another_shape(), numbers(&[1, 16, 8, 64], 1));
    let (whole, _) = run(&graph, &options(BandsOf::None), Precision::Exact, &image);
    for rows in [1, 3] {
        let (bands, _) = run(&graph, &options(BandsOf::Rows(rows)), Precision::Exact, &image);
        assert!(whole == bands, "{rows} rows");
    }
}
