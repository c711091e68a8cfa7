//! What `halimede bench --suite` measures: the one list of kernels, each as a graph of one operation, of products in a chain, and of
//! small parts of models.

use halimede_compute::{CompileError, Precision};
use halimede_graph::{
    Builder, Dim, Fact, Graph, OpError, ValueId,
    ops::{
        Attention, Binary, Contract, Conv, Dequantize, Factors, Norm, NormKind, Op, Padding, Softmax, Transposed, Unary,
    },
};
use halimede_tensor::{DType, Tensor, Value};

use super::super::inputs;

/// What limits a kernel that is as good as it can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Roof {
    /// Multiplications and additions.
    Operations,
    /// Reading as many bytes as the kernel reads.
    Reading,
    /// Reading them from memory: between two runs other data have filled the caches.
    ReadingMemory,
}

/// How the weights of a product are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weights {
    /// As floats, as narrow as the precision.
    Floats,
    /// As integers of 8 bits, which data of 8 bits are multiplied by as they are.
    Integers,
    /// As integers of so many bits, of which so many rows share a scale; 0: all of a column.
    Groups { bits: usize, rows: usize },
}

/// A kernel on a size.
pub(super) struct Case {
    pub name: String,
    /// Multiplications and additions of one run.
    pub operations: f64,
    /// Elements of what goes in and comes out, in f32 whatever is computed in.
    activations: usize,
    /// Bits of the constant operand where no precision says so, its elements, and what it has beside them.
    bits: Option<usize>,
    weights: usize,
    scales: usize,
    pub roof: Roof,
    operation: Operation,
}

/// What a case computes.
enum Operation {
    /// `[rows, depth] x [depth, columns]`, the right side constant.
    Product {
        rows: usize,
        depth: usize,
        columns: usize,
        weights: Weights,
    },
    /// Products one behind the other by one square constant: all but the first and the last take and give what lies as the
    /// plan chooses.
    Chain {
        size: usize,
    },
    /// A convolution of an image whose channels lie last.
    Convolution(Layer, Groups),
    /// A bottleneck of ResNet-50: two convolutions of one pixel, one of nine between them, and what goes past them.
    Bottleneck {
        channels: usize,
        inner: usize,
        size: usize,
    },
    /// What follows attention in BERT-base: normalised, widened, narrowed, and added.
    FeedForward {
        rows: usize,
        width: usize,
        inner: usize,
    },
    /// 12 heads of 64.
    Attention {
        length: usize,
        causal: bool,
    },
    Layernorm {
        rows: usize,
        columns: usize,
    },
    RmsNorm {
        rows: usize,
        columns: usize,
    },
    /// Of images whose channels come first: over so many groups of channels, or over each channel.
    ImageNorm {
        kind: NormKind,
        channels: usize,
        size: usize,
    },
    Softmax {
        rows: usize,
        columns: usize,
    },
}

/// A convolution: channels in and out, size of the kernel, stride, size of the image.
#[derive(Clone, Copy)]
struct Layer(usize, usize, usize, usize, usize);

/// Which channels a convolution multiplies with each other.
#[derive(Clone, Copy, PartialEq)]
enum Groups {
    /// All.
    One,
    /// Those of as many groups.
    Many(usize),
    /// Those of as many groups, and the stride is that of the result.
    Transposed(usize),
}

/// Convolutions with groups: depthwise ones of MobileNetV2 and EfficientNet-B0, those of ResNeXt-50 (32x4d), one of AlexNet, and how U-Net
/// and others double their images.
const GROUPED: [(Layer, Groups); 13] = [
    (Layer(96, 96, 3, 2, 112), Groups::Many(96)),
    (Layer(144, 144, 3, 1, 56), Groups::Many(144)),
    (Layer(384, 384, 3, 1, 14), Groups::Many(384)),
    (Layer(240, 240, 5, 1, 28), Groups::Many(240)),
    (Layer(672, 672, 5, 1, 14), Groups::Many(672)),
    (Layer(128, 128, 3, 1, 56), Groups::Many(32)),
    (Layer(256, 256, 3, 1, 28), Groups::Many(32)),
    (Layer(512, 512, 3, 1, 14), Groups::Many(32)),
    (Layer(1024, 1024, 3, 1, 7), Groups::Many(32)),
    (Layer(96, 256, 5, 1, 27), Groups::Many(2)),
    (Layer(128, 64, 2, 2, 64), Groups::Transposed(1)),
    (Layer(64, 64, 2, 2, 56), Groups::Transposed(4)),
    (Layer(64, 64, 2, 2, 56), Groups::Transposed(64)),
];

/// The convolutions of ResNet-50, each once.
const RESNET_50: [Layer; 22] = [
    Layer(3, 64, 7, 2, 224),
    Layer(64, 64, 1, 1, 56),
    Layer(64, 64, 3, 1, 56),
    Layer(64, 256, 1, 1, 56),
    Layer(256, 64, 1, 1, 56),
    Layer(256, 128, 1, 1, 56),
    Layer(128, 128, 3, 2, 56),
    Layer(256, 512, 1, 2, 56),
    Layer(128, 512, 1, 1, 28),
    Layer(512, 128, 1, 1, 28),
    Layer(128, 128, 3, 1, 28),
    Layer(512, 256, 1, 1, 28),
    Layer(256, 256, 3, 2, 28),
    Layer(512, 1024, 1, 2, 28),
    Layer(256, 1024, 1, 1, 14),
    Layer(1024, 256, 1, 1, 14),
    Layer(256, 256, 3, 1, 14),
    Layer(1024, 512, 1, 1, 14),
    Layer(512, 512, 3, 2, 14),
    Layer(512, 2048, 1, 1, 7),
    Layer(2048, 512, 1, 1, 7),
    Layer(512, 512, 3, 1, 7),
];

/// The weights that a vector is multiplied by.
const VECTORS: [(&str, Weights); 4] = [
    ("", Weights::Floats),
    (" int8", Weights::Integers),
    (" int8 columns", Weights::Groups { bits: 8, rows: 0 }),
    (" int4 groups", Weights::Groups { bits: 4, rows: 32 }),
];

/// Products of a [chain](Operation::Chain).
const CHAINED: usize = 16;

const HEADS: usize = 12;
const HEAD_WIDTH: usize = 64;

/// Every kernel of the suite.
pub(super) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for size in [512, 1024, 2048] {
        cases.push(product(format!("product {size}"), [size; 3], Weights::Floats, Roof::Operations));
    }
    cases.extend([512, 1024, 2048].map(chain));
    for (depth, columns) in [(768, 3072), (4096, 4096)] {
        for (name, weights) in VECTORS {
            for (place, roof) in [("", Roof::Reading), (" from memory", Roof::ReadingMemory)] {
                cases.push(product(
                    format!("vector {depth}x{columns}{name}{place}"),
                    [1, depth, columns],
                    weights,
                    roof,
                ));
            }
        }
    }
    cases.extend(RESNET_50.map(|layer| convolution(layer, Groups::One)));
    cases.extend(GROUPED.map(|(layer, groups)| convolution(layer, groups)));
    for causal in [false, true] {
        for length in [128, 512, 2048] {
            cases.push(attention(length, causal));
        }
    }
    let (rows, columns) = (512, 768);
    let rowwise = [
        ("layernorm", rows, columns, Operation::Layernorm { rows, columns }),
        ("rmsnorm", rows, columns, Operation::RmsNorm { rows, columns }),
        ("softmax", HEADS * 512, 512, Operation::Softmax { rows: HEADS * 512, columns: 512 }),
    ];
    for (name, rows, columns, operation) in rowwise {
        let elements = rows * columns;
        cases.push(Case::of_floats(
            format!("{name} {rows}x{columns}"),
            // Of the order of what each element takes; the roof is another.
            5.0 * elements as f64,
            (2 * elements, 0),
            Roof::Reading,
            operation,
        ));
    }
    for (name, kind) in [("groupnorm", NormKind::Group { groups: 32 }), ("instancenorm", NormKind::Instance)] {
        let (channels, size) = (256, 32);
        let elements = channels * size * size;
        cases.push(Case::of_floats(
            format!("{name} {channels}x{size}x{size}"),
            5.0 * elements as f64,
            (2 * elements, 0),
            Roof::Reading,
            Operation::ImageNorm { kind, channels, size },
        ));
    }
    cases.extend([(256, 64, 56), (1024, 256, 14)].map(bottleneck));
    cases.push(feed_forward(128, 768, 3072));
    cases
}

fn bottleneck((channels, inner, size): (usize, usize, usize)) -> Case {
    let weights = 2 * channels * inner + 9 * inner * inner;
    Case::of_floats(
        format!("model bottleneck {channels}-{inner} {size}"),
        2.0 * (weights * size * size) as f64,
        (2 * channels * size * size, weights),
        Roof::Operations,
        Operation::Bottleneck { channels, inner, size },
    )
}

fn feed_forward(rows: usize, width: usize, inner: usize) -> Case {
    Case::of_floats(
        format!("model feed-forward {rows}x{width}"),
        4.0 * (rows * width * inner) as f64,
        (2 * rows * width, 2 * width * inner),
        Roof::Operations,
        Operation::FeedForward { rows, width, inner },
    )
}

fn product(name: String, [rows, depth, columns]: [usize; 3], weights: Weights, roof: Roof) -> Case {
    let (bits, scales) = match weights {
        Weights::Floats => (None, 0),
        Weights::Integers => (Some(8), 0),
        Weights::Groups { bits, rows: 0 } => (Some(bits), columns),
        Weights::Groups { bits, rows } => (Some(bits), depth.div_ceil(rows) * columns),
    };
    Case {
        name,
        operations: 2.0 * (rows * depth * columns) as f64,
        activations: rows * depth + rows * columns,
        bits,
        weights: depth * columns,
        scales,
        roof,
        operation: Operation::Product { rows, depth, columns, weights },
    }
}

fn chain(size: usize) -> Case {
    Case::of_floats(
        format!("products in a chain {size}"),
        2.0 * (CHAINED * size.pow(3)) as f64,
        (2 * size.pow(2), size.pow(2)),
        Roof::Operations,
        Operation::Chain { size },
    )
}

fn convolution(layer: Layer, groups: Groups) -> Case {
    let Layer(from, to, kernel, stride, size) = layer;
    let (kind, out, seen) = match groups {
        Groups::One => ("conv", size / stride, from),
        Groups::Many(groups) if groups == from => ("depthwise", size / stride, 1),
        Groups::Many(groups) => ("grouped", size / stride, from / groups),
        Groups::Transposed(1) => ("transposed", size * stride, from),
        Groups::Transposed(groups) if groups == from => ("depthwise transposed", size * stride, 1),
        Groups::Transposed(groups) => ("grouped transposed", size * stride, from / groups),
    };
    // A transposed convolution multiplies each pixel of the data by all taps.
    let pixels = if matches!(groups, Groups::Transposed(_)) { size * size } else { out * out };
    let weights = kernel * kernel * seen * to;
    Case::of_floats(
        format!("{kind} {kernel}x{kernel}/{stride} {from}-{to} {size}"),
        2.0 * (pixels * weights) as f64,
        (size * size * from + out * out * to, weights),
        Roof::Operations,
        Operation::Convolution(layer, groups),
    )
}

fn attention(length: usize, causal: bool) -> Case {
    let pairs = if causal { length * (length + 1) / 2 } else { length * length };
    Case::of_floats(
        format!("attention {} {length}", if causal { "causal" } else { "full" }),
        4.0 * (HEADS * HEAD_WIDTH * pairs) as f64,
        (4 * HEADS * HEAD_WIDTH * length, 0),
        Roof::Operations,
        Operation::Attention { length, causal },
    )
}

/// What stops a graph from being built.
#[derive(Debug, thiserror::Error)]
pub(super) enum CaseError {
    #[error(transparent)]
    Operation(#[from] OpError),
    #[error("{0}")]
    Numbers(String),
    #[error(transparent)]
    Compile(#[from] CompileError),
}

impl Case {
    /// One whose operands are all floats: elements that go in and come out, and of its constant operand.
    fn of_floats(
        name: String,
        operations: f64,
        (activations, weights): (usize, usize),
        roof: Roof,
        operation: Operation,
    ) -> Case {
        Case { name, operations, activations, bits: None, weights, scales: 0, roof, operation }
    }

    /// Bytes of operands and results, constants as narrow as a precision keeps them.
    pub(super) fn bytes(&self, precision: Precision) -> usize {
        let bits = self.bits.unwrap_or(match precision {
            Precision::Exact => 32,
            Precision::Balanced => 16,
            Precision::Fast => 8,
        });
        size_of::<f32>() * (self.activations + self.scales) + bits * self.weights / 8
    }

    /// The graph and its inputs.
    pub(super) fn build(&self) -> Result<(Graph, Vec<Value>), CaseError> {
        let mut made = Made::default();
        match self.operation {
            Operation::Product { rows, depth, columns, weights } => {
                let (left, right) = ([rows, depth], [depth, columns]);
                match weights {
                    Weights::Floats => {
                        let operands = [made.input(&left)?, made.constant(&right)?];
                        made.add(Op::Contract(Contract::matmul(0)), &operands)
                    }
                    Weights::Integers => {
                        let operands = [made.integer_input(&left)?, made.integers(&right, 8)?];
                        let op = Contract { multiply: Some(Factors::Integers), ..Contract::matmul(0) };
                        made.add(Op::Contract(op), &operands)
                    }
                    Weights::Groups { bits, rows } => {
                        let (axis, scales) = match rows {
                            0 => (1, vec![columns]),
                            rows => (0, vec![depth.div_ceil(rows), columns]),
                        };
                        let operands = [made.input(&left)?, made.integers(&right, bits)?, made.constant(&scales)?];
                        let dequantize = Some(Dequantize { to: None, axis, block: rows });
                        made.add(Op::Contract(Contract { dequantize, ..Contract::matmul(0) }), &operands)
                    }
                }
            }
            Operation::Chain { size } => {
                let (mut value, weights) = (made.input(&[size; 2])?, made.constant(&[size; 2])?);
                for at in 0..CHAINED {
                    let name = format!("product{at}");
                    let product = Op::Contract(Contract::matmul(0));
                    value = Builder::new(&mut made.graph).at(&name, "MatMul").add(product, &[value, weights])?;
                }
                made.graph.outputs.push(value);
                Ok(())
            }
            Operation::Convolution(layer, groups) => {
                let image = made.input(&[1, layer.4, layer.4, layer.0])?;
                let (conv, operands) = made.conv(image, layer, groups)?;
                made.add(Op::Conv(conv), &operands)
            }
            Operation::Bottleneck { channels, inner, size } => {
                let image = made.input(&[1, size, size, channels])?;
                let layers = [
                    Layer(channels, inner, 1, 1, size),
                    Layer(inner, inner, 3, 1, size),
                    Layer(inner, channels, 1, 1, size),
                ];
                let mut value = image;
                for (at, layer) in layers.into_iter().enumerate() {
                    let (conv, operands) = made.conv(value, layer, Groups::One)?;
                    let name = format!("conv{at}");
                    value = Builder::new(&mut made.graph).at(&name, "Conv").add(Op::Conv(conv), &operands)?;
                    if at + 1 < layers.len() {
                        value = made.relu(value)?;
                    }
                }
                let sum = Builder::new(&mut made.graph).binary(Binary::Add, value, image)?;
                let result = made.relu(sum)?;
                made.graph.outputs.push(result);
                Ok(())
            }
            Operation::FeedForward { rows, width, inner } => {
                let x = made.input(&[rows, width])?;
                let (scale, bias) = (made.constant(&[width])?, made.constant(&[width])?);
                let operands = [made.constant(&[width, inner])?, made.constant(&[inner, width])?];
                let mut builder = Builder::new(&mut made.graph);
                let mut value = builder.add(Op::Norm(norm(NormKind::Layer { axis: 1 })), &[x, scale, bias])?;
                for (at, weights) in operands.into_iter().enumerate() {
                    let product = Op::Contract(Contract::matmul(0));
                    value = builder.at(&format!("product{at}"), "MatMul").add(product, &[value, weights])?;
                    if at == 0 {
                        value = builder.unary(Unary::GeluErf, value)?;
                    }
                }
                let sum = builder.binary(Binary::Add, value, x)?;
                made.graph.outputs.push(sum);
                Ok(())
            }
            Operation::Attention { length, causal } => {
                let shape = [1, HEADS, length, HEAD_WIDTH];
                let operands = [made.input(&shape)?, made.input(&shape)?, made.input(&shape)?];
                let attention = Attention { causal, ..Attention::default() };
                made.add(Op::Attention(attention), &operands)
            }
            Operation::Layernorm { rows, columns } => {
                let operands = [made.input(&[rows, columns])?, made.constant(&[columns])?, made.constant(&[columns])?];
                made.add(Op::Norm(norm(NormKind::Layer { axis: 1 })), &operands)
            }
            Operation::RmsNorm { rows, columns } => {
                let operands = [made.input(&[rows, columns])?, made.constant(&[columns])?];
                made.add(Op::Norm(norm(NormKind::Rms { axis: 1 })), &operands)
            }
            Operation::ImageNorm { ref kind, channels, size } => {
                let image = made.input(&[1, channels, size, size])?;
                let operands = [image, made.constant(&[channels])?, made.constant(&[channels])?];
                made.add(Op::Norm(norm(kind.clone())), &operands)
            }
            Operation::Softmax { rows, columns } => {
                let x = made.input(&[rows, columns])?;
                made.add(Op::Softmax(Softmax { axis: 1, log: false }), &[x])
            }
        }?;
        Ok((made.graph, made.inputs))
    }
}

fn norm(kind: NormKind) -> Norm {
    Norm { kind, epsilon: 1e-5, epilogue: None, quantize: None }
}

/// A graph as it grows, with numbers for its inputs.
#[derive(Default)]
struct Made {
    graph: Graph,
    inputs: Vec<Value>,
}

impl Made {
    fn random(shape: &[usize]) -> Result<Tensor, CaseError> {
        inputs::random(shape).map_err(CaseError::Numbers)
    }

    fn input(&mut self, shape: &[usize]) -> Result<ValueId, CaseError> {
        let dims = shape.iter().map(|&size| Dim::from(size));
        let value = self.graph.add_value(format!("input{}", self.inputs.len()), Fact::tensor(DType::F32, dims));
        self.graph.inputs.push(value);
        self.inputs.push(Made::random(shape)?.into());
        Ok(value)
    }

    fn constant(&mut self, shape: &[usize]) -> Result<ValueId, CaseError> {
        let tensor = Made::random(shape)?;
        Ok(Builder::new(&mut self.graph).constant(tensor))
    }

    /// A constant of all integers with a sign that have so many bits.
    fn integers(&mut self, shape: &[usize], bits: usize) -> Result<ValueId, CaseError> {
        let (dtype, count) = (if bits == 4 { DType::I4 } else { DType::I8 }, 1 << bits);
        let numbers: Vec<i64> =
            (0..shape.iter().product::<usize>()).map(|i| (i * 37 % count) as i64 - (count / 2) as i64).collect();
        let tensor =
            Tensor::from_i64s(dtype, shape, &numbers).map_err(|error| CaseError::Numbers(error.to_string()))?;
        Ok(Builder::new(&mut self.graph).constant(tensor))
    }

    /// An input of integers without a sign.
    fn integer_input(&mut self, shape: &[usize]) -> Result<ValueId, CaseError> {
        let numbers: Vec<u8> = (0..shape.iter().product::<usize>()).map(|i| (i * 37 % 256) as u8).collect();
        let tensor = Tensor::from_slice(shape, &numbers).map_err(|error| CaseError::Numbers(error.to_string()))?;
        let value = self.graph.add_value(
            format!("input{}", self.inputs.len()),
            Fact::tensor(DType::U8, shape.iter().map(|&size| Dim::from(size))),
        );
        self.graph.inputs.push(value);
        self.inputs.push(tensor.into());
        Ok(value)
    }

    /// A convolution and its operands, with a border that keeps the size.
    fn conv(&mut self, image: ValueId, layer: Layer, groups: Groups) -> Result<(Conv, [ValueId; 3]), CaseError> {
        let Layer(from, to, kernel, stride, _) = layer;
        let weights = match groups {
            Groups::One => [to, from, kernel, kernel],
            Groups::Many(groups) => [to, from / groups, kernel, kernel],
            Groups::Transposed(groups) => [from, to / groups, kernel, kernel],
        };
        let transposed = matches!(groups, Groups::Transposed(_));
        let border = if transposed { 0 } else { (kernel / 2) as i64 };
        let conv = Conv {
            strides: [stride; 2].into(),
            dilations: [1; 2].into(),
            padding: Padding::Explicit([border; 4].into()),
            groups: match groups {
                Groups::One => 1,
                Groups::Many(groups) | Groups::Transposed(groups) => groups,
            },
            transposed: transposed.then(Transposed::default),
            channels_last: true,
            multiply: None,
            epilogue: None,
        };
        Ok((conv, [image, self.constant(&weights)?, self.constant(&[to])?]))
    }

    fn relu(&mut self, value: ValueId) -> Result<ValueId, CaseError> {
        let mut builder = Builder::new(&mut self.graph);
        let zero = builder.constant(Tensor::scalar(0f32));
        Ok(builder.binary(Binary::Max, value, zero)?)
    }

    fn add(&mut self, op: Op, operands: &[ValueId]) -> Result<(), CaseError> {
        // What is known of values that become integers is known by names.
        let output = Builder::new(&mut self.graph).at("kernel", "").add(op, operands)?;
        self.graph.outputs.push(output);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_differ_and_sizes_are_those_of_the_graph() {
        let cases = all();
        let names: HashSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), cases.len());
        // The largest ones take long to fill with numbers.
        for case in cases.iter().filter(|case| case.bytes(Precision::Exact) < 4 << 20) {
            let (graph, inputs) = case.build().unwrap();
            let elements = |value: ValueId| graph.fact(value).count().unwrap();
            let constants = graph.values.iter().filter_map(|value| value.fact.constant.as_ref()).map(Tensor::len);
            let read: usize = inputs.iter().map(|input| input.tensor().unwrap().len()).sum::<usize>();
            let written: usize = graph.outputs.iter().map(|&value| elements(value)).sum();
            let bytes = size_of::<f32>() * (read + written + constants.sum::<usize>());
            if case.bits.is_some() {
                assert!(case.bytes(Precision::Exact) < bytes / 2, "{}", case.name);
                continue;
            }
            // Scales and biases are not counted.
            assert!((0.98..=1.0).contains(&(case.bytes(Precision::Exact) as f64 / bytes as f64)), "{}", case.name);
        }
    }
}
