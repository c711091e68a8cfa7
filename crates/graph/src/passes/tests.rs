//! Each pass on a graph that needs it: what the graph becomes, and that it computes the same.

use super::*;
use crate::ops::{
    Binary, Cast, Contract, Conv, Expr, Instruction, NormKind, Op, Pad, PadMode, Padding, Reduce, ReduceKind, Unary,
};
use crate::{Builder, Dim, ValueId, reference};
use halimede_tensor::{DType, Tensor, Value};

/// A graph of one input `x` of that shape, written by `write`, whose result is the output.
pub(super) fn graph(shape: &[usize], write: impl FnOnce(&mut Builder, ValueId) -> ValueId) -> Graph {
    let mut graph = Graph::default();
    let x = graph.add_value("x", Fact::tensor(DType::F32, shape.iter().map(|&d| Dim::from(d))));
    graph.inputs.push(x);
    let mut builder = Builder::new(&mut graph);
    builder.at("n", "Test (opset 1)");
    let y = write(&mut builder, x);
    graph.outputs.push(y);
    graph
}

pub(super) fn floats(shape: &[usize], scale: f32) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|i| (i as f32 * 0.37 - 1.1) * scale).collect();
    Tensor::from_slice(shape, &values).unwrap()
}

/// Runs all passes, checks that the answer stays, and lists the operations that are left.
pub(super) fn optimized(mut graph: Graph) -> (Vec<&'static str>, Graph, Vec<PassReport>) {
    let shape = graph.fact(graph.inputs[0]).known_shape().unwrap();
    let x = [Value::Tensor(floats(&shape, 1.0))];
    let before = reference::run(&graph, &x).unwrap();
    let reports = optimize(&mut graph, &PassOptions::default());
    let after = reference::run(&graph, &x).unwrap();
    let read = |values: &[Value]| values[0].tensor().unwrap().to_f32s().unwrap();
    for (a, b) in read(&before).into_iter().zip(read(&after)) {
        assert!((a - b).abs() <= 1e-5 * (1.0 + a.abs()), "{a} became {b}");
    }
    assert_eq!(before[0].tensor().unwrap().shape(), after[0].tensor().unwrap().shape());
    let names = graph.nodes.iter().map(|node| node.op.name()).collect();
    (names, graph, reports)
}

pub(super) fn number(b: &mut Builder, value: f32) -> ValueId {
    b.constant(Tensor::scalar(value))
}

#[test]
fn transpositions_and_reshapes_cancel() {
    let (names, ..) = optimized(graph(&[2, 3, 4], |b, x| {
        let there = b.transpose(x, &[2, 0, 1]).unwrap();
        let back = b.transpose(there, &[1, 2, 0]).unwrap();
        let flat = b.reshape(back, &[6, 4]).unwrap();
        let again = b.reshape(flat, &[2, 12]).unwrap();
        b.unary(Unary::Neg, again).unwrap()
    }));
    assert_eq!(names, ["Reshape", "Map"]);
}

#[test]
fn a_reshape_that_copies_dimensions_is_left() {
    let (names, _, reports) = optimized(graph(&[2, 6], |b, x| {
        let flat = b.reshape(x, &[3, 4]).unwrap();
        let copied = b.reshape(flat, &[0, 2, 2]).unwrap();
        b.unary(Unary::Neg, copied).unwrap()
    }));
    assert_eq!(names, ["Reshape", "Reshape", "Map"]);
    assert!(reports.iter().flat_map(|r| &r.refusals).any(|r| r.reason.contains("copies dimensions")));
}

#[test]
fn equal_work_is_done_once() {
    let (names, ..) = optimized(graph(&[4], |b, x| {
        let (a, c) = (b.unary(Unary::Exp, x).unwrap(), b.unary(Unary::Exp, x).unwrap());
        let half = b.add(Op::Cast(Cast::to(DType::F16)), &[a]).unwrap();
        let other = b.add(Op::Cast(Cast::to(DType::F16)), &[c]).unwrap();
        b.binary(Binary::Sub, half, other).unwrap()
    }));
    assert_eq!(names.iter().filter(|name| **name == "Cast").count(), 1, "{names:?}");
}

#[test]
fn constants_fold_within_the_budget() {
    let write = |b: &mut Builder, x: ValueId| {
        // Too large for the builder itself to fold.
        let w = b.constant(floats(&[300, 400], 0.1));
        let turned = b.transpose(w, &[1, 0]).unwrap();
        b.add(Op::Contract(Contract::matmul(0)), &[x, turned]).unwrap()
    };
    let (names, ..) = optimized(graph(&[1, 400], write));
    assert_eq!(names, ["Contract"]);
    let mut kept = graph(&[1, 300], |b, x| {
        let w = b.constant(floats(&[300, 400], 0.1));
        let bounded = b.unary(Unary::Tanh, w).unwrap();
        let first = b.add(Op::Contract(Contract::matmul(0)), &[x, bounded]).unwrap();
        let second = b.add(Op::Contract(Contract::matmul(0)), &[x, w]).unwrap();
        b.binary(Binary::Sub, first, second).unwrap()
    });
    let options = PassOptions { fold_bytes_max: 1000, ..PassOptions::default() };
    let reports = optimize(&mut kept, &options);
    assert_eq!(kept.nodes.len(), 3);
    let folding = reports.iter().find(|report| report.pass == folding::PASS.name).unwrap();
    assert!(folding.refusals[0].reason.contains("byte budget"));
}

#[test]
fn pointwise_work_becomes_one_program_on_its_producer() {
    let (names, graph, _) = optimized(graph(&[2, 3], |b, x| {
        let w = b.constant(floats(&[3, 3], 0.3));
        let bias = b.constant(floats(&[3], 1.0));
        let product = b.add(Op::Contract(Contract::matmul(0)), &[x, w]).unwrap();
        let sum = b.binary(Binary::Add, product, bias).unwrap();
        let zero = number(b, 0.0);
        b.binary(Binary::Max, sum, zero).unwrap()
    }));
    assert_eq!(names, ["Contract"]);
    let Op::Contract(op) = &graph.nodes[0].op else { panic!("a product") };
    let program = &op.epilogue.as_ref().unwrap().instructions;
    assert!(matches!(program.last(), Some(Instruction::Binary(Binary::Max, ..))), "{program:?}");
    assert_eq!(graph.nodes[0].inputs.len(), 3);
}

#[test]
fn what_others_read_is_left() {
    let (names, _, reports) = optimized(graph(&[2, 2], |b, x| {
        let w = b.constant(floats(&[2, 2], 0.3));
        let product = b.add(Op::Contract(Contract::matmul(0)), &[x, w]).unwrap();
        let exp = b.unary(Unary::Exp, product).unwrap();
        b.add(Op::Contract(Contract::matmul(0)), &[exp, product]).unwrap()
    }));
    assert_eq!(names, ["Contract", "Map", "Contract"]);
    assert!(reports.iter().flat_map(|r| &r.refusals).any(|r| r.reason.contains("something else reads")));
}

#[test]
fn broadcast_work_is_not_repeated() {
    let (names, _, reports) = optimized(graph(&[3], |b, x| {
        let exp = b.unary(Unary::Exp, x).unwrap();
        let wide = b.constant(floats(&[4, 3], 1.0));
        b.binary(Binary::Mul, exp, wide).unwrap()
    }));
    assert_eq!(names, ["Map", "Map"]);
    assert!(reports.iter().flat_map(|r| &r.refusals).any(|r| r.reason.contains("broadcasts")));
}

#[test]
fn activations_as_exporters_write_them() {
    type Write = fn(&mut Builder, ValueId) -> ValueId;
    let cases: [(Unary, Write); 8] = [
        (Unary::GeluErf, |b, x| {
            let (root, one, half) = (number(b, 2f32.sqrt()), number(b, 1.0), number(b, 0.5));
            let scaled = b.binary(Binary::Div, x, root).unwrap();
            let erf = b.unary(Unary::Erf, scaled).unwrap();
            let sum = b.binary(Binary::Add, erf, one).unwrap();
            let product = b.binary(Binary::Mul, x, sum).unwrap();
            b.binary(Binary::Mul, product, half).unwrap()
        }),
        (Unary::GeluTanh, |b, x| {
            let (three, c, k) = (number(b, 3.0), number(b, 0.044715), number(b, 0.797_884_6));
            let (one, half) = (number(b, 1.0), number(b, 0.5));
            let cube = b.binary(Binary::Pow, x, three).unwrap();
            let term = b.binary(Binary::Mul, cube, c).unwrap();
            let sum = b.binary(Binary::Add, x, term).unwrap();
            let inner = b.binary(Binary::Mul, sum, k).unwrap();
            let tanh = b.unary(Unary::Tanh, inner).unwrap();
            let more = b.binary(Binary::Add, tanh, one).unwrap();
            let halved = b.binary(Binary::Mul, x, half).unwrap();
            b.binary(Binary::Mul, halved, more).unwrap()
        }),
        (Unary::Silu, |b, x| {
            let gate = b.unary(Unary::Sigmoid, x).unwrap();
            b.binary(Binary::Mul, gate, x).unwrap()
        }),
        (Unary::QuickGelu, |b, x| {
            let factor = number(b, 1.702);
            let scaled = b.binary(Binary::Mul, x, factor).unwrap();
            let gate = b.unary(Unary::Sigmoid, scaled).unwrap();
            b.binary(Binary::Mul, x, gate).unwrap()
        }),
        // As torch writes it: x · relu6(x + 3) / 6.
        (Unary::HardSwish, |b, x| {
            let (three, six, zero) = (number(b, 3.0), number(b, 6.0), number(b, 0.0));
            let sum = b.binary(Binary::Add, x, three).unwrap();
            let low = b.binary(Binary::Max, sum, zero).unwrap();
            let clipped = b.binary(Binary::Min, low, six).unwrap();
            let product = b.binary(Binary::Mul, x, clipped).unwrap();
            b.binary(Binary::Div, product, six).unwrap()
        }),
        // As its own operator is lowered.
        (Unary::HardSwish, |b, x| {
            let formula = Expr::input(0) * (Expr::input(0) * (1.0 / 6.0) + 0.5).min(1.0).max(0.0);
            b.map(&formula, &[x]).unwrap()
        }),
        (Unary::Sigmoid, |b, x| {
            let one = number(b, 1.0);
            let minus = b.unary(Unary::Neg, x).unwrap();
            let exp = b.unary(Unary::Exp, minus).unwrap();
            let sum = b.binary(Binary::Add, exp, one).unwrap();
            b.unary(Unary::Reciprocal, sum).unwrap()
        }),
        (Unary::Sigmoid, |b, x| b.unary(Unary::Sigmoid, x).unwrap()),
    ];
    for (function, write) in cases {
        let (names, graph, _) = optimized(graph(&[11], write));
        assert_eq!(names, ["Map"], "{function:?}");
        let Op::Map(map) = &graph.nodes[0].op else { panic!("a map") };
        assert_eq!(map.instructions, [Instruction::Input(0), Instruction::Unary(function, 0)]);
    }
}

#[test]
fn bounds_and_small_numbers_beside_activations_stay() {
    type Write = fn(&mut Builder, ValueId) -> ValueId;
    let cases: [Write; 4] = [
        // Bounds that no small number shows.
        |b, x| {
            let gate = b.unary(Unary::Sigmoid, x).unwrap();
            let silu = b.binary(Binary::Mul, gate, x).unwrap();
            let most = number(b, 10.0);
            b.binary(Binary::Min, silu, most).unwrap()
        },
        |b, x| {
            let gelu = b.unary(Unary::GeluErf, x).unwrap();
            let (least, most) = (number(b, -10.0), number(b, 10.0));
            let low = b.binary(Binary::Max, gelu, least).unwrap();
            b.binary(Binary::Min, low, most).unwrap()
        },
        // What keeps a logarithm finite, on either side.
        |b, x| {
            let (gate, small) = (b.unary(Unary::Sigmoid, x).unwrap(), number(b, 1e-6));
            b.binary(Binary::Add, gate, small).unwrap()
        },
        |b, x| {
            let (gate, most) = (b.unary(Unary::Sigmoid, x).unwrap(), number(b, 1.0 - 1e-6));
            b.binary(Binary::Min, gate, most).unwrap()
        },
    ];
    for (index, write) in cases.into_iter().enumerate() {
        let (_, graph, _) = optimized(graph(&[11], write));
        let Op::Map(map) = &graph.nodes[0].op else { panic!("a map") };
        assert!(map.instructions.len() > 2, "case {index}: {:?}", map.instructions);
    }
}

/// `x` over the root of the mean square of `of`, and its reciprocal form.
fn over_root(b: &mut Builder, of: ValueId, reciprocal: bool) -> ValueId {
    let (two, epsilon) = (number(b, 2.0), number(b, 1e-5));
    let square = b.binary(Binary::Pow, of, two).unwrap();
    let variance = mean(b, square);
    let sum = b.binary(Binary::Add, variance, epsilon).unwrap();
    let root = b.unary(Unary::Sqrt, sum).unwrap();
    if reciprocal {
        let inverse = b.unary(Unary::Reciprocal, root).unwrap();
        return b.binary(Binary::Mul, of, inverse).unwrap();
    }
    b.binary(Binary::Div, of, root).unwrap()
}

fn mean(b: &mut Builder, x: ValueId) -> ValueId {
    let axes = smallvec::smallvec![b.rank(x).unwrap() - 1];
    b.add(Op::Reduce(Reduce { kind: ReduceKind::Mean, axes, keep_dims: true }), &[x]).unwrap()
}

#[test]
fn normalisations_that_exporters_write_out() {
    let (names, graph, _) = optimized(graph(&[2, 3, 8], |b, x| {
        let average = mean(b, x);
        let centred = b.binary(Binary::Sub, x, average).unwrap();
        let normal = over_root(b, centred, false);
        let (scale, bias) = (b.constant(floats(&[8], 0.5)), b.constant(floats(&[8], 2.0)));
        let scaled = b.binary(Binary::Mul, normal, scale).unwrap();
        b.binary(Binary::Add, scaled, bias).unwrap()
    }));
    assert_eq!(names, ["Norm"]);
    let Op::Norm(op) = &graph.nodes[0].op else { panic!("a normalisation") };
    assert_eq!((&op.kind, op.epsilon, &op.epilogue), (&NormKind::Layer { axis: 2 }, 1e-5, &None));
    assert_eq!(graph.nodes[0].inputs.len(), 3);
    let (names, graph, _) = optimized(self::graph(&[2, 8], |b, x| over_root(b, x, true)));
    assert_eq!(names, ["Norm"]);
    let Op::Norm(op) = &graph.nodes[0].op else { panic!("a normalisation") };
    assert_eq!(op.kind, NormKind::Rms { axis: 1 });
}

#[test]
fn what_has_an_element_for_each_of_a_normalised_row_is_its_scale() {
    // The shape of the constant, whether it comes first and whether the normalised row is read again; whether it is the scale.
    for (shape, first, read_again, expected) in [
        (&[8][..], false, false, true),
        (&[8], true, false, true),
        (&[1, 8], true, false, true),
        (&[1, 1, 8], false, false, true),
        (&[1], false, false, false),
        (&[3, 1], false, false, false),
        (&[3, 8], false, false, false),
        (&[1, 1, 1, 8], false, false, false),
        (&[8], false, true, false),
    ] {
        let (_, graph, _) = optimized(graph(&[2, 3, 8], |b, x| {
            let (normal, scale) = (over_root(b, x, true), b.constant(floats(shape, 0.5)));
            let (left, right) = if first { (scale, normal) } else { (normal, scale) };
            let scaled = b.binary(Binary::Mul, left, right).unwrap();
            if read_again { b.binary(Binary::Sub, scaled, normal).unwrap() } else { scaled }
        }));
        let Op::Norm(op) = &graph.nodes[0].op else { panic!("a normalisation: {:?}", graph.nodes[0].op) };
        let found = (op.epilogue.is_none() && graph.nodes.len() == 1, graph.nodes[0].inputs.len());
        assert_eq!(found == (true, 2), expected, "{shape:?}, first {first}, read again {read_again}: {found:?}");
    }
}

#[test]
fn a_border_of_zeros_goes_into_the_convolution() {
    let convolve = |mode| {
        graph(&[1, 1, 4, 4], move |b, x| {
            let pads = b.ints(&[0, 0, 1, 0, 0, 0, 1, 2]);
            let padded = b.add(Op::Pad(Pad { mode }), &[x, pads]).unwrap();
            let w = b.constant(floats(&[2, 1, 3, 3], 0.2));
            let conv = Conv {
                strides: smallvec::smallvec![1, 1],
                dilations: smallvec::smallvec![1, 1],
                padding: Padding::Explicit(smallvec::smallvec![0, 1, 0, 0]),
                groups: 1,
                transposed: None,
                channels_last: false,
                multiply: None,
                epilogue: None,
            };
            b.add(Op::Conv(conv), &[padded, w]).unwrap()
        })
    };
    let (names, graph, _) = optimized(convolve(PadMode::Constant));
    assert_eq!(names, ["Conv"]);
    let Op::Conv(op) = &graph.nodes[0].op else { panic!("a convolution") };
    assert_eq!(op.padding, Padding::Explicit(smallvec::smallvec![1, 1, 1, 2]));
    let (names, _, reports) = optimized(convolve(PadMode::Reflect));
    assert_eq!(names, ["Pad", "Conv"]);
    assert!(reports.iter().flat_map(|r| &r.refusals).any(|r| r.reason.contains("not of zeros")));
}

#[test]
fn factors_per_channel_go_into_the_weights() {
    let normalised = |channels: [usize; 4], read_twice: bool| {
        graph(&[1, 2, 4, 4], move |b, x| {
            let conv = Conv {
                strides: smallvec::smallvec![1, 1],
                dilations: smallvec::smallvec![1, 1],
                padding: Padding::Explicit(smallvec::smallvec![0, 0, 0, 0]),
                groups: 1,
                transposed: None,
                channels_last: false,
                multiply: None,
                epilogue: None,
            };
            let (w, bias) = (b.constant(floats(&[3, 2, 2, 2], 0.2)), b.constant(floats(&[3], 1.0)));
            let y = b.add(Op::Conv(conv), &[x, w, bias]).unwrap();
            let (scale, shift) = (b.constant(floats(&channels, 0.7)), b.constant(floats(&[3, 1, 1], 0.3)));
            let scaled = b.binary(Binary::Mul, y, scale).unwrap();
            let shifted = b.binary(Binary::Add, shift, scaled).unwrap();
            if read_twice { b.binary(Binary::Sub, shifted, y).unwrap() } else { shifted }
        })
    };
    let (names, graph, _) = optimized(normalised([1, 3, 1, 1], false));
    assert_eq!(names, ["Conv"]);
    assert!(matches!(&graph.nodes[0].op, Op::Conv(op) if op.epilogue.is_none()));
    for (model, expected) in [
        (normalised([1, 1, 1, 3], false), "not one number per channel"),
        (normalised([1, 3, 1, 1], true), "something else reads"),
    ] {
        let (_, _, reports) = optimized(model);
        let report = reports.iter().find(|report| report.pass == "scale into weights").unwrap();
        assert_eq!(report.changed, 0);
        assert!(report.refusals[0].reason.contains(expected), "{:?}", report.refusals);
    }
}

#[test]
fn softmax_as_exporters_write_it() {
    let write = |axes: &'static [usize], kind| {
        graph(&[2, 3, 4], move |b, x| {
            let max = b.reduce(kind, x, axes.iter().copied(), true).unwrap();
            let shifted = b.binary(Binary::Sub, x, max).unwrap();
            let e = b.unary(Unary::Exp, shifted).unwrap();
            let sum = b.reduce(ReduceKind::Sum, e, axes.iter().copied(), true).unwrap();
            b.binary(Binary::Div, e, sum).unwrap()
        })
    };
    let (names, graph, _) = optimized(write(&[1], ReduceKind::Max));
    assert_eq!(names, ["Softmax"]);
    assert!(matches!(&graph.nodes[0].op, Op::Softmax(op) if op.axis == 1 && !op.log));
    let (names, ..) = optimized(write(&[1], ReduceKind::Mean));
    assert!(!names.contains(&"Softmax"), "{names:?}");
    let (names, _, reports) = optimized(write(&[1, 2], ReduceKind::Max));
    assert!(!names.contains(&"Softmax"), "{names:?}");
    assert!(reports.iter().flat_map(|r| &r.refusals).any(|r| r.reason.contains("more than one axis")));
}

#[test]
fn a_gate_of_another_slope_is_left() {
    let (_, graph, _) = optimized(graph(&[11], |b, x| {
        let slope = number(b, 1.6);
        let scaled = b.binary(Binary::Mul, x, slope).unwrap();
        let gate = b.unary(Unary::Sigmoid, scaled).unwrap();
        b.binary(Binary::Mul, x, gate).unwrap()
    }));
    let Op::Map(map) = &graph.nodes[0].op else { panic!("a map") };
    assert!(map.instructions.iter().any(|i| matches!(i, Instruction::Unary(Unary::Sigmoid, _))), "{map:?}");
}

#[test]
fn something_like_gelu_is_left() {
    let (_, graph, _) = optimized(graph(&[11], |b, x| {
        let (root, one) = (number(b, 1.5), number(b, 1.0));
        let scaled = b.binary(Binary::Div, x, root).unwrap();
        let erf = b.unary(Unary::Erf, scaled).unwrap();
        let sum = b.binary(Binary::Add, erf, one).unwrap();
        b.binary(Binary::Mul, x, sum).unwrap()
    }));
    let Op::Map(map) = &graph.nodes[0].op else { panic!("a map") };
    assert!(map.instructions.iter().any(|i| matches!(i, Instruction::Unary(Unary::Erf, _))));
}

#[test]
fn a_pass_that_breaks_shapes_is_undone() {
    let pass = Pass {
        name: "vandal",
        run: |graph, _, report| {
            graph.nodes.clear();
            report.changed = 1;
        },
    };
    let mut broken = graph(&[2], |b, x| b.unary(Unary::Exp, x).unwrap());
    broken.values[1].fact.dtype = Some(DType::F32);
    let pass_without_nodes = run(&pass, &mut broken, &PassOptions::default());
    // Nothing writes the output any more, so nothing is known of its shape.
    assert_eq!((broken.nodes.len(), pass_without_nodes.changed), (1, 0));
    assert!(pass_without_nodes.refusals[0].reason.starts_with("undone"));
}

#[test]
fn passes_can_be_left_out() {
    let mut kept = graph(&[2], |b, x| {
        let exp = b.unary(Unary::Exp, x).unwrap();
        b.unary(Unary::Neg, exp).unwrap()
    });
    let without = PASSES.iter().map(|pass| pass.name.to_owned()).collect();
    assert!(optimize(&mut kept, &PassOptions { without, ..PassOptions::default() }).is_empty());
    assert_eq!(kept.nodes.len(), 2);
}
