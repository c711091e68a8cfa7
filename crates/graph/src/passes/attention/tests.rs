//! Attention in the forms that exporters write, each against what the graph gave before.

use super::super::PassReport;
use super::super::tests::{floats, graph, number, optimized};
use super::super::{PassOptions, optimize};
use crate::ops::{
    Attention, Binary, Concat, Contract, Expand, Expr, Labels, Op, Range, ReduceKind, ShapeOf, Slice, Softmax, Unary,
};
use crate::{Builder, Dim, Fact, Graph, ValueId, reference};
use halimede_tensor::{DType, Tensor, Value};

const B: usize = 2;
const H: usize = 3;
const S: usize = 4;
const D: usize = 5;

/// `x [B, S, H · D]` as heads `[B, H, S, D]`, told apart by a factor.
fn heads(b: &mut Builder, x: ValueId, factor: f32) -> ValueId {
    let factor = b.constant(Tensor::from_slice(&[H * D], &[factor; H * D]).unwrap());
    let x = b.binary(Binary::Mul, x, factor).unwrap();
    let split = b.reshape(x, &[0, 0, H as i64, D as i64]).unwrap();
    b.transpose(split, &[0, 2, 1, 3]).unwrap()
}

fn matmul(b: &mut Builder, lhs: ValueId, rhs: ValueId) -> ValueId {
    b.add(Op::Contract(Contract::matmul(2)), &[lhs, rhs]).unwrap()
}

fn softmax(b: &mut Builder, x: ValueId) -> ValueId {
    b.add(Op::Softmax(Softmax { axis: 3, log: false }), &[x]).unwrap()
}

fn scaled(b: &mut Builder, function: Binary, x: ValueId, c: f32) -> ValueId {
    let c = number(b, c);
    b.binary(function, x, c).unwrap()
}

/// A condition on pairs of queries and keys; with `empty`, the first query sees nothing.
fn visible(b: &mut Builder, empty: bool) -> ValueId {
    let bits: Vec<bool> = (0..S * S).map(|i| i % S <= i / S && !(empty && i < S)).collect();
    b.constant(Tensor::from_bools(&[S, S], &bits).unwrap())
}

/// The same, known only once there is a request.
fn computed(b: &mut Builder, x: ValueId, empty: bool) -> ValueId {
    let (sum, condition) = (b.reduce(ReduceKind::Mean, x, [0, 1, 2], false).unwrap(), visible(b, empty));
    let limit = number(b, 1e30);
    let sane = b.binary(Binary::Less, sum, limit).unwrap();
    b.binary(Binary::And, condition, sane).unwrap()
}

fn chosen(b: &mut Builder, condition: ValueId, yes: Expr, no: Expr, inputs: &[ValueId]) -> ValueId {
    let inputs: Vec<ValueId> = inputs.iter().copied().chain([condition]).collect();
    let condition = Expr::input(inputs.len() - 1);
    b.add(Op::Map(condition.select(yes, no).map(DType::F32)), &inputs).unwrap()
}

fn guarded(b: &mut Builder, p: ValueId) -> ValueId {
    let nan = b.unary(Unary::IsNan, p).unwrap();
    chosen(b, nan, Expr::number(0.0), Expr::input(0), &[p])
}

/// The attention that is left, with its inputs.
fn attention(graph: &Graph) -> Option<(&Attention, &[Option<ValueId>])> {
    graph.nodes.iter().find_map(|node| match &node.op {
        Op::Attention(op) => Some((op, &node.inputs[..])),
        _ => None,
    })
}

/// Queries, keys and values; what lies between the first product and the softmax, and after it.
fn model(
    scores: impl FnOnce(&mut Builder, ValueId, ValueId) -> ValueId,
    after: impl FnOnce(&mut Builder, ValueId) -> ValueId,
) -> Graph {
    graph(&[B, S, H * D], |b, x| {
        let (q, k, v) = (heads(b, x, 0.1), heads(b, x, 0.07), heads(b, x, 0.3));
        let k = b.transpose(k, &[0, 1, 3, 2]).unwrap();
        let product = matmul(b, q, k);
        let scores = scores(b, x, product);
        let p = softmax(b, scores);
        let p = after(b, p);
        matmul(b, p, v)
    })
}

fn reason(reports: &[PassReport]) -> String {
    let pass = reports.iter().find(|report| report.pass == "attention").unwrap();
    pass.refusals.first().map_or_else(String::new, |refusal| refusal.reason.clone())
}

#[test]
fn scales_and_masks_become_its_own() {
    type Scores = fn(&mut Builder, ValueId, ValueId) -> ValueId;
    // The scores, the scale, and the datatype of the mask.
    let cases: [(Scores, f32, Option<DType>); 6] = [
        (|_, _, x| x, 1.0, None),
        (|b, _, x| scaled(b, Binary::Div, x, 2.0), 0.5, None),
        (
            |b, _, x| {
                let bias = b.constant(floats(&[1, H, S, S], 0.2));
                b.binary(Binary::Add, x, bias).unwrap()
            },
            1.0,
            Some(DType::F32),
        ),
        (
            |b, _, x| {
                let bias = b.constant(floats(&[S, S], 0.2));
                let x = b.binary(Binary::Sub, x, bias).unwrap();
                scaled(b, Binary::Mul, x, 0.25)
            },
            0.25,
            Some(DType::F32),
        ),
        (
            |b, _, x| {
                let x = scaled(b, Binary::Div, x, 2.0);
                let condition = visible(b, false);
                chosen(b, condition, Expr::input(0), Expr::number(f64::NEG_INFINITY), &[x])
            },
            0.5,
            Some(DType::F32),
        ),
        // A row without keys: every key gets the same weight, as before.
        (
            |b, _, x| {
                let condition = visible(b, true);
                chosen(b, condition, Expr::input(0), Expr::number(f64::from(f32::MIN)), &[x])
            },
            1.0,
            Some(DType::F32),
        ),
    ];
    for (index, (scores, scale, mask)) in cases.into_iter().enumerate() {
        let (names, graph, reports) = optimized(model(scores, |_, p| p));
        let (op, inputs) = attention(&graph).unwrap_or_else(|| panic!("case {index}: {names:?} {reports:?}"));
        assert_eq!(op.scale, Some(scale), "case {index}");
        assert_eq!(inputs.get(3).map(|mask| graph.fact(mask.unwrap()).dtype.unwrap()), mask, "case {index}");
        assert!(!names.contains(&"Softmax") && !names.contains(&"Contract"), "case {index}: {names:?}");
        // Nothing is turned any more: keys were once, into heads.
        assert_eq!(op.tokens_first, [true, true, true, false], "case {index}");
        assert!(!names.contains(&"Transpose"), "case {index}: {names:?}");
    }
}

#[test]
fn a_guarded_row_without_keys_gives_zeros() {
    for inverted in [false, true] {
        for (fill, mask) in [(f64::NEG_INFINITY, DType::Bool), (f64::from(f32::MIN), DType::F32)] {
            let (names, graph, reports) = optimized(model(
                |b, x, scores| {
                    let mut condition = computed(b, x, true);
                    let (mut yes, mut no) = (Expr::number(0.0), Expr::number(fill));
                    if inverted {
                        condition = b.unary(Unary::Not, condition).unwrap();
                        (yes, no) = (no, yes);
                    }
                    let mask = b.add(Op::Map(Expr::input(0).select(yes, no).map(DType::F32)), &[condition]).unwrap();
                    b.binary(Binary::Add, scores, mask).unwrap()
                },
                guarded,
            ));
            let (_, inputs) = attention(&graph).unwrap_or_else(|| panic!("{names:?} {reports:?}"));
            assert_eq!(graph.fact(inputs[3].unwrap()).dtype, Some(mask), "{fill} {inverted}");
        }
    }
}

#[test]
fn scales_and_transpositions_of_operands() {
    // As torch writes it: the root of the scale on both, keys transposed as three axes.
    let write = |b: &mut Builder, x: ValueId| {
        let (q, k, v) = (heads(b, x, 0.1), heads(b, x, 0.07), heads(b, x, 0.3));
        let joined = b.reshape(k, &[-1, S as i64, D as i64]).unwrap();
        let turned = b.transpose(joined, &[0, 2, 1]).unwrap();
        let k = b.reshape(turned, &[B as i64, H as i64, D as i64, S as i64]).unwrap();
        let (q, k) = (scaled(b, Binary::Mul, q, 0.5), scaled(b, Binary::Div, k, 2.0));
        let product = matmul(b, q, k);
        let p = softmax(b, product);
        matmul(b, p, v)
    };
    let (names, rewritten, reports) = optimized(graph(&[B, S, H * D], write));
    let (op, _) = attention(&rewritten).unwrap_or_else(|| panic!("{names:?} {reports:?}"));
    assert_eq!(op.scale, Some(0.25));
    assert_eq!(names.iter().filter(|name| **name == "Reshape").count(), 3, "{names:?}");
    // As an einsum writes it: labels in place of transpositions, the result in another order.
    let labels = |axes: [u8; 4]| Labels::from_slice(&axes);
    let (b_, h, s, t, d) = (0, 1, 2, 3, 4);
    let write = |b: &mut Builder, x: ValueId| {
        let x = b.reshape(x, &[0, 0, H as i64, D as i64]).unwrap();
        let (lhs, rhs, out) = (labels([b_, t, h, d]), labels([b_, s, h, d]), labels([b_, h, s, t]));
        let product = b.add(Op::Contract(Contract::new(lhs, rhs, out)), &[x, x]).unwrap();
        let product = scaled(b, Binary::Mul, product, 0.01);
        let p = softmax(b, product);
        let (lhs, rhs, out) = (labels([b_, h, s, t]), labels([b_, t, h, d]), labels([b_, s, h, d]));
        b.add(Op::Contract(Contract::new(lhs, rhs, out)), &[p, x]).unwrap()
    };
    let (names, rewritten, reports) = optimized(graph(&[B, S, H * D], write));
    assert!(attention(&rewritten).is_some(), "{names:?} {reports:?}");
    assert_eq!(names, ["Reshape", "Attention"]);
    assert_eq!(attention(&rewritten).map(|(op, _)| op.tokens_first), Some([true; 4]));
}

#[test]
fn heads_are_turned_only_for_others() {
    let attention_of = |b: &mut Builder, q: ValueId, k: ValueId, v: ValueId| {
        b.add(Op::Attention(Attention { scale: Some(0.3), ..Attention::default() }), &[q, k, v]).unwrap()
    };
    let turn = |b: &mut Builder, x: ValueId| b.transpose(x, &[0, 2, 1, 3]).unwrap();
    // The keys and the result are read by others too, as they were turned.
    let (names, rewritten, _) = optimized(graph(&[B, S, H * D], |b, x| {
        let (q, k, v) = (heads(b, x, 0.1), heads(b, x, 0.07), heads(b, x, 0.3));
        let made = attention_of(b, q, k, v);
        let (turned, sum) = (turn(b, made), b.binary(Binary::Add, made, k).unwrap());
        let sum = turn(b, sum);
        b.binary(Binary::Add, turned, sum).unwrap()
    }));
    assert_eq!(attention(&rewritten).map(|(op, _)| op.tokens_first), Some([true, true, true, false]), "{names:?}");
    // What reads tokens first already reads heads first where those lie so.
    let (names, rewritten, _) = optimized(graph(&[B, H, S, D], |b, x| {
        let tokens = turn(b, x);
        let op = Attention { scale: Some(0.3), tokens_first: [true, false, false, true], ..Attention::default() };
        let made = b.add(Op::Attention(op), &[tokens, x, x]).unwrap();
        turn(b, made)
    }));
    assert_eq!(names, ["Attention"]);
    assert_eq!(attention(&rewritten).map(|(op, _)| op.tokens_first), Some([false; 4]));
    // One behind the other: `optimized` runs both forms.
    let (names, _, _) = optimized(graph(&[B, H, S, D], |b, x| {
        let first = attention_of(b, x, x, x);
        let turned = turn(b, first);
        let second = attention_of(b, turned, turned, turned);
        turn(b, second)
    }));
    assert_eq!(names, ["Attention", "Attention"]);
}

#[test]
fn what_is_no_attention_stays_apart_with_its_reason() {
    type Part = fn(&mut Builder, ValueId, ValueId) -> ValueId;
    let (same_scores, same): (Part, fn(&mut Builder, ValueId) -> ValueId) = (|_, _, scores| scores, |_, p| p);
    let cases: [(Part, fn(&mut Builder, ValueId) -> ValueId, &str); 5] = [
        (|b, _, scores| b.unary(Unary::Tanh, scores).unwrap(), same, "only scaled and masked"),
        (
            |b, x, scores| {
                let condition = computed(b, x, false);
                chosen(b, condition, Expr::input(0), Expr::number(-1.0), &[scores])
            },
            same,
            "keep some weight",
        ),
        (
            |b, x, scores| {
                let sum = b.reduce(ReduceKind::Mean, x, [0, 1, 2], false).unwrap();
                b.binary(Binary::Mul, scores, sum).unwrap()
            },
            same,
            "not a number",
        ),
        (
            |b, _, scores| {
                let bias = b.constant(floats(&[S, S], 0.2));
                b.binary(Binary::Add, scores, bias).unwrap()
            },
            guarded,
            "no condition",
        ),
        (same_scores, |b, p| b.binary(Binary::Mul, p, p).unwrap(), ""),
    ];
    for (index, (scores, after, expected)) in cases.into_iter().enumerate() {
        let (names, _, reports) = optimized(model(scores, after));
        assert!(names.contains(&"Softmax") && !names.contains(&"Attention"), "case {index}: {names:?}");
        assert!(reason(&reports).contains(expected), "case {index}: {}", reason(&reports));
    }
    let mut shared = model(same_scores, same);
    let p = shared.nodes.iter().find(|node| matches!(node.op, Op::Softmax(_))).unwrap().outputs[0];
    shared.outputs.push(p);
    let (names, _, reports) = optimized(shared);
    assert!(names.contains(&"Softmax"), "{names:?}");
    assert!(reason(&reports).contains("something else reads the probabilities"), "{}", reason(&reports));
}

/// Keys or values of `groups` heads, each written out for `H / groups` query heads as exporters do.
fn grouped(b: &mut Builder, x: ValueId, groups: usize, factor: f32) -> ValueId {
    let (start, end, axis) = (b.ints(&[0]), b.ints(&[(groups * D) as i64]), b.ints(&[2]));
    let part = b.add(Op::Slice(Slice), &[x, start, end, axis]).unwrap();
    let part = scaled(b, Binary::Mul, part, factor);
    let split = b.reshape(part, &[0, 0, groups as i64, D as i64]).unwrap();
    let heads = b.transpose(split, &[0, 2, 1, 3]).unwrap();
    let (s, d, g) = (S as i64, D as i64, groups as i64);
    let narrow = b.reshape(heads, &[B as i64, g, 1, s, d]).unwrap();
    let target = b.ints(&[B as i64, g, 4 / g, s, d]);
    let wide = b.add(Op::Expand(Expand), &[narrow, target]).unwrap();
    b.reshape(wide, &[B as i64, 4, s, d]).unwrap()
}

#[test]
fn grouped_heads_are_read_where_they_are() {
    let model = |keys: usize, values: usize| {
        graph(&[B, S, 4 * D], move |b, x| {
            let q = b.reshape(x, &[0, 0, 4, D as i64]).unwrap();
            let q = b.transpose(q, &[0, 2, 1, 3]).unwrap();
            let (k, v) = (grouped(b, x, keys, 0.1), grouped(b, x, values, 0.3));
            let k = b.transpose(k, &[0, 1, 3, 2]).unwrap();
            let product = matmul(b, q, k);
            let p = softmax(b, product);
            matmul(b, p, v)
        })
    };
    let (names, graph, reports) = optimized(model(2, 2));
    let (op, inputs) = attention(&graph).unwrap_or_else(|| panic!("{names:?} {reports:?}"));
    let heads = |input: usize| graph.fact(inputs[input].unwrap()).known_shape().unwrap()[op.axes(input)[1]];
    assert_eq!((heads(0), heads(1), heads(2)), (4, 2, 2));
    assert!(!names.contains(&"Expand"), "{names:?}");
    let (names, _, reports) = optimized(model(2, 1));
    assert!(!names.contains(&"Attention"), "{names:?}");
    assert!(reason(&reports).contains("repeat differently"), "{}", reason(&reports));
}

#[test]
fn heads_merged_with_the_batch() {
    let (s, d, n) = (S as i64, D as i64, (B * H) as i64);
    // As Bart's and OPT's exporters write it: batches of heads, and a mask added between two reshapes.
    let write = |masked: bool| {
        graph(&[B, S, H * D], move |b, x| {
            let merged = |b: &mut Builder, factor: f32| {
                let heads = heads(b, x, factor);
                b.reshape(heads, &[n, s, d]).unwrap()
            };
            let (q, k, v) = (merged(b, 0.1), merged(b, 0.07), merged(b, 0.3));
            let k = b.transpose(k, &[0, 2, 1]).unwrap();
            let bmm = |b: &mut Builder, lhs, rhs| b.add(Op::Contract(Contract::matmul(1)), &[lhs, rhs]).unwrap();
            let mut scores = bmm(b, q, k);
            if masked {
                let split = b.reshape(scores, &[B as i64, H as i64, s, s]).unwrap();
                let condition = computed(b, x, false);
                let (hidden, shown) = (Expr::number(f64::from(f32::MIN)), Expr::number(0.0));
                let mask = b.add(Op::Map(Expr::input(0).select(shown, hidden).map(DType::F32)), &[condition]).unwrap();
                let sum = b.binary(Binary::Add, split, mask).unwrap();
                scores = b.reshape(sum, &[n, s, s]).unwrap();
            }
            let p = b.add(Op::Softmax(Softmax { axis: 2, log: false }), &[scores]).unwrap();
            bmm(b, p, v)
        })
    };
    for masked in [false, true] {
        let (names, graph, reports) = optimized(write(masked));
        let (op, inputs) = attention(&graph).unwrap_or_else(|| panic!("{names:?} {reports:?}"));
        let shape = graph.fact(inputs[0].unwrap()).known_shape().unwrap();
        assert_eq!(op.axes(0).map(|axis| shape[axis]), [B, H, S, D]);
        assert!(!names.contains(&"Softmax") && !names.contains(&"Contract"), "{names:?}");
    }
    // Batches that come from nowhere become heads of one batch.
    let (names, graph, reports) = optimized(graph(&[B * H, S, D], |b, x| {
        let turned = b.transpose(x, &[0, 2, 1]).unwrap();
        let scores = b.add(Op::Contract(Contract::matmul(1)), &[x, turned]).unwrap();
        let scores = scaled(b, Binary::Mul, scores, 0.1);
        let mask = b.constant(floats(&[B * H, S, S], 0.2));
        let scores = b.binary(Binary::Add, scores, mask).unwrap();
        let p = b.add(Op::Softmax(Softmax { axis: 2, log: false }), &[scores]).unwrap();
        b.add(Op::Contract(Contract::matmul(1)), &[p, x]).unwrap()
    }));
    let (op, inputs) = attention(&graph).unwrap_or_else(|| panic!("{names:?} {reports:?}"));
    assert_eq!(op.scale, Some(0.1));
    assert_eq!(graph.fact(inputs[0].unwrap()).known_shape().unwrap()[..2], [1, B * H]);
}

/// Positions `0, 1, …` of a length that is known only with a request, from `start` on.
fn positions(b: &mut Builder, length: ValueId, start: ValueId, shape: &[i64]) -> ValueId {
    let one = b.constant(Tensor::scalar(1i64));
    let end = b.binary(Binary::Add, start, length).unwrap();
    let range = b.add(Op::Range(Range), &[start, end, one]).unwrap();
    b.reshape(range, shape).unwrap()
}

/// Attention of `x [2, H, s, D]` with `past [2, H, p, D]` before it; the mask is written by `mask`, given
/// the positions of keys `[t]` and of queries `[s, 1]`.
fn dynamic(mask: impl FnOnce(&mut Builder, ValueId, ValueId, ValueId) -> ValueId, past: bool) -> Graph {
    let mut graph = Graph::default();
    let heads = |axis: &str| Fact::tensor(DType::F32, [Dim::from(2), Dim::from(H), Dim::symbol(axis), Dim::from(D)]);
    let (x, before) = (graph.add_value("x", heads("s")), graph.add_value("past", heads("p")));
    graph.inputs = if past { vec![x, before] } else { vec![x] };
    let mut builder = Builder::new(&mut graph);
    let b = &mut builder;
    b.at("n", "Test (opset 1)");
    let keys = if past { b.add(Op::Concat(Concat { axis: 2 }), &[before, x]).unwrap() } else { x };
    let size = |b: &mut Builder, of: ValueId| {
        let size = b.add(Op::ShapeOf(ShapeOf { start: 2, end: Some(3) }), &[of]).unwrap();
        b.reshape(size, &[]).unwrap()
    };
    let zero = b.constant(Tensor::scalar(0i64));
    let (s, t) = (size(b, x), size(b, keys));
    let first = if past { size(b, before) } else { zero };
    let (queries, columns) = (positions(b, s, first, &[-1, 1]), positions(b, t, zero, &[-1]));
    let mask = mask(b, columns, queries, t);
    let turned = b.transpose(keys, &[0, 1, 3, 2]).unwrap();
    let product = matmul(b, x, turned);
    let scores = scaled(b, Binary::Mul, product, 0.3);
    let scores = b.binary(Binary::Add, scores, mask).unwrap();
    let p = softmax(b, scores);
    let y = matmul(b, p, keys);
    graph.outputs = vec![y];
    graph
}

fn chosen_number(b: &mut Builder, condition: ValueId, yes: f64, no: f64) -> ValueId {
    b.add(Op::Map(Expr::input(0).select(Expr::number(yes), Expr::number(no)).map(DType::F32)), &[condition]).unwrap()
}

#[test]
fn a_mask_that_is_only_causal_becomes_a_flag() {
    type Mask = fn(&mut Builder, ValueId, ValueId, ValueId) -> ValueId;
    let cases: [(Mask, bool); 4] = [
        // As dynamo writes it: key <= query, widened, chosen.
        (
            |b, keys, queries, _| {
                let seen = b.binary(Binary::LessOrEqual, keys, queries).unwrap();
                let target = b.ints(&[2, 1, 1, 1]);
                let wide = b.add(Op::Expand(Expand), &[seen, target]).unwrap();
                chosen_number(b, wide, 0.0, f64::NEG_INFINITY)
            },
            true,
        ),
        // As TorchScript writes it: the lower triangle of ones, where it is zero.
        (
            |b, keys, queries, _| {
                let zero = b.constant(Tensor::scalar(0i64));
                let kept = (Expr::input(0) - Expr::input(1)).with(Binary::LessOrEqual, Expr::input(2));
                let kept = b.map(&kept, &[keys, queries, zero]).unwrap();
                let ones = number(b, 1.0);
                let lower =
                    b.add(Op::Map(Expr::input(0).select(Expr::input(1), 0.0).map(DType::F32)), &[kept, ones]).unwrap();
                let none = number(b, 0.0);
                let absent = b.binary(Binary::Equal, lower, none).unwrap();
                chosen_number(b, absent, f64::NEG_INFINITY, 0.0)
            },
            true,
        ),
        // A window: the same triangle, and another one.
        (
            |b, keys, queries, _| {
                let seen = b.binary(Binary::LessOrEqual, keys, queries).unwrap();
                let two = b.constant(Tensor::scalar(2i64));
                let first = b.binary(Binary::Sub, queries, two).unwrap();
                let near = b.binary(Binary::Less, first, keys).unwrap();
                let both = b.binary(Binary::And, seen, near).unwrap();
                chosen_number(b, both, 0.0, f64::NEG_INFINITY)
            },
            false,
        ),
        // Keys before the query alone: the first query sees nothing that way, and is no flag.
        (
            |b, keys, queries, _| {
                let seen = b.binary(Binary::Less, keys, queries).unwrap();
                chosen_number(b, seen, 0.0, f64::from(f32::MIN))
            },
            false,
        ),
    ];
    for (index, (mask, expected)) in cases.into_iter().enumerate() {
        for past in [false, true] {
            let model = dynamic(mask, past);
            let mut after = model.clone();
            let reports = optimize(&mut after, &PassOptions::default());
            let (op, inputs) = attention(&after).unwrap_or_else(|| panic!("case {index}: {reports:?}"));
            assert_eq!((op.causal, inputs.len() == 3), (expected, expected), "case {index}, past {past}: {reports:?}");
            assert!(!(op.causal && past) || op.causal_from_end, "case {index}");
            for s in [1, 4] {
                let mut given = vec![Value::Tensor(floats(&[2, H, s, D], 0.03))];
                given.extend(past.then(|| Value::Tensor(floats(&[2, H, 3, D], 0.05))));
                let run = |graph| reference::run(graph, &given).unwrap()[0].tensor().unwrap().to_f32s().unwrap();
                for (a, b) in run(&model).into_iter().zip(run(&after)) {
                    assert!((a - b).abs() <= 1e-5, "case {index}: {a} became {b}");
                }
            }
        }
    }
}
