use super::edit::{done, is_output, readers, refuse, remove};
use super::{Pass, PassOptions, PassReport};
use crate::ops::{Binary, Contract, Instruction, Map, Op, Scalar, TensorOp};
use crate::{Graph, Node, ValueId};
use halimede_tensor::{DType, Tensor};

/// Multiplies a factor per column into the constant weights of the product before it, and joins the terms
/// that are added after it: scaling and batch normalisation behind a linear layer cost nothing then.
///
/// ```text
/// (x · w) · f             = x · (w · f)
/// (x · w + b) · f         = x · (w · f) + b · f
/// (x · w + b) + t         = x · w + (b + t)
/// ```
pub(super) const PASS: Pass = Pass { name: "scale into products", run };

type Reason = &'static str;

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    let mut gone = vec![false; graph.nodes.len()];
    let (mut producers, readers) = (graph.producers(), readers(graph));
    for index in 0..graph.nodes.len() {
        let Some((function, before, constant)) = with_constant(graph, &graph.nodes[index]) else { continue };
        let Some(found) = Found::new(graph, before, &producers) else { continue };
        if function == Binary::Add && found.term.is_none() {
            // One term alone becomes the product's epilogue.
            continue;
        }
        let alone = |value: ValueId| readers[value.index()] == 1 && !is_output(graph, value);
        let between = found.term.as_ref().map_or(before, |(_, value, _)| *value);
        let made = match alone(before) && alone(between) {
            true => found.folded(graph, function, &constant),
            false => Err("something else reads what stands before it"),
        };
        let (weights, term) = match made {
            Ok(made) => made,
            Err(reason) => {
                refuse(graph, &graph.nodes[index], format!("it stays outside the product: {reason}"), report);
                continue;
            }
        };
        let name = graph.nodes[found.product].name.clone();
        if let Some(weights) = weights {
            let weights = graph.add_constant(format!("{name}/weights"), weights);
            graph.nodes[found.product].inputs[found.side] = Some(weights);
        }
        // The sum, or the product where there is none, now writes this node's result.
        let last = found.term.as_ref().map_or(found.product, |(node, ..)| *node);
        let mut node = graph.nodes[last].clone();
        if let (Some(term), Some((_, result, _))) = (term, &found.term) {
            let term = graph.add_constant(format!("{name}/bias"), term);
            (node.op, node.inputs) =
                (Op::Map(Map::binary(Binary::Add)), smallvec::smallvec![Some(*result), Some(term)]);
        }
        node.outputs = graph.nodes[index].outputs.clone();
        producers.resize(graph.values.len(), None);
        producers[node.outputs[0].index()] = Some(index);
        graph.nodes[index] = node;
        gone[last] = true;
        let what = match function {
            Binary::Mul => "a factor per column went into the weights",
            _ => "two terms became one",
        };
        done(graph, &graph.nodes[index], what, report);
    }
    remove(graph, &gone);
}

/// A product with constant weights, and the sum after it where there is one.
struct Found {
    /// Position of the product.
    product: usize,
    /// Which operand is the weights.
    side: usize,
    /// Position of the sum, the product's result, and what is added.
    term: Option<(usize, ValueId, Tensor)>,
}

impl Found {
    fn new(graph: &Graph, value: ValueId, producers: &[Option<usize>]) -> Option<Found> {
        let position = producers[value.index()]?;
        if let Op::Contract(_) = &graph.nodes[position].op {
            return Found::at(graph, position, None);
        }
        let (Binary::Add, result, term) = with_constant(graph, &graph.nodes[position])? else { return None };
        let product = producers[result.index()]?;
        Found::at(graph, product, Some((position, result, term)))
    }

    fn at(graph: &Graph, product: usize, term: Option<(usize, ValueId, Tensor)>) -> Option<Found> {
        let node = &graph.nodes[product];
        let Op::Contract(_) = &node.op else { return None };
        let constant = |side: &usize| node.inputs[*side].is_some_and(|value| graph.constant(value).is_some());
        let side = [1, 0].into_iter().find(constant)?;
        Some(Found { product, side, term })
    }

    /// New weights and a new term, each where it changes.
    fn folded(
        &self,
        graph: &Graph,
        function: Binary,
        constant: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>), Reason> {
        let node = &graph.nodes[self.product];
        let Op::Contract(op) = &node.op else { return Err("it follows no product") };
        if op.epilogue.is_some() {
            return Err("the product carries pointwise work already");
        }
        let weights = node.inputs[self.side].and_then(|value| graph.constant(value)).ok_or("no constant weights")?;
        if weights.dtype() != DType::F32 || constant.dtype() != DType::F32 {
            return Err("it is not of f32");
        }
        if !constant.to_f64s().is_ok_and(|numbers| numbers.iter().all(|number| number.is_finite())) {
            return Err("a number is infinite or NaN");
        }
        let weights = match function {
            Binary::Mul => Some(combine(Binary::Mul, weights, &turned(op, self.side, weights, constant)?)?),
            _ => None,
        };
        let term = self.term.as_ref().map(|(.., term)| combine(function, term, constant)).transpose()?;
        Ok((weights, term))
    }
}

/// A factor under the axes of the weights.
fn turned(op: &Contract, side: usize, weights: &Tensor, factor: &Tensor) -> Result<Tensor, Reason> {
    let (labels, other) = if side == 0 { (&op.lhs, &op.rhs) } else { (&op.rhs, &op.lhs) };
    let lead = op.out.len().checked_sub(factor.rank()).ok_or("the factor has more axes than the result")?;
    let mut shape = vec![1; labels.len()];
    let mut order = Vec::new();
    for (axis, &size) in factor.shape().iter().enumerate().filter(|&(_, &size)| size != 1) {
        let label = op.out[lead + axis];
        let place = labels.iter().position(|&known| known == label).filter(|_| !other.contains(&label));
        let place = place.filter(|&place| weights.shape()[place] == size).ok_or("the factor is not one per column")?;
        shape[place] = size;
        order.push(place);
    }
    if !order.is_sorted() {
        return Err("the weights have the factor's axes in another order");
    }
    factor.reshaped(&shape).map_err(|_| "the factor is not one per column")
}

/// `a ∘ b` where the result is no larger than the larger of both.
fn combine(function: Binary, a: &Tensor, b: &Tensor) -> Result<Tensor, Reason> {
    let shape = halimede_tensor::broadcast(a.shape(), b.shape()).map_err(|_| "the constants do not fit together")?;
    if shape.iter().product::<usize>() > a.len().max(b.len()) {
        return Err("joined, the constants would be larger");
    }
    let made = Map::binary(function).evaluate(&[Some(a), Some(b)]);
    made.map(|mut made| made.remove(0)).map_err(|_| "the constants do not fit together")
}

/// The function, the value and the number or constant of a product or a sum with one.
fn with_constant(graph: &Graph, node: &Node) -> Option<(Binary, ValueId, Tensor)> {
    let Op::Map(Map { instructions }) = &node.op else { return None };
    let [first, second, Instruction::Binary(function @ (Binary::Mul | Binary::Add), a, b)] = &instructions[..] else {
        return None;
    };
    let input = |instruction: &Instruction| match instruction {
        Instruction::Input(input) => node.inputs[*input],
        _ => None,
    };
    let constant = |instruction: &Instruction| match instruction {
        Instruction::Constant(Scalar::Float(number, dtype)) => Tensor::from_f64s(*dtype, &[], &[*number]).ok(),
        other => graph.constant(input(other)?).cloned(),
    };
    let value = |instruction: &Instruction| input(instruction).filter(|&value| graph.constant(value).is_none());
    let (value, constant) = match (value(first), value(second)) {
        (Some(value), None) => (value, constant(second)?),
        (None, Some(value)) => (value, constant(first)?),
        _ => return None,
    };
    // A constant that widens the result does more than scale it.
    let same = graph.fact(value).shape.is_some() && graph.fact(value).shape == graph.fact(node.outputs[0]).shape;
    (a != b && same).then_some((*function, value, constant))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{floats, graph, number, optimized};
    use super::super::{PassOptions, optimize};
    use crate::ops::{Binary, Contract, Op};
    use crate::{Builder, ValueId};

    fn linear(b: &mut Builder, x: ValueId) -> ValueId {
        let (w, bias) = (b.constant(floats(&[3, 4], 0.2)), b.constant(floats(&[4], 1.0)));
        let y = b.add(Op::Contract(Contract::matmul(0)), &[x, w]).unwrap();
        b.binary(Binary::Add, y, bias).unwrap()
    }

    #[test]
    fn a_normalisation_behind_a_linear_layer() {
        let (names, after, reports) = optimized(graph(&[2, 3], |b, x| {
            let y = linear(b, x);
            let (scale, shift) = (b.constant(floats(&[1, 4], 0.7)), b.constant(floats(&[4], 0.3)));
            let scaled = b.binary(Binary::Mul, scale, y).unwrap();
            let doubled = number(b, 2.0);
            let scaled = b.binary(Binary::Mul, scaled, doubled).unwrap();
            b.binary(Binary::Add, scaled, shift).unwrap()
        }));
        assert_eq!(names, ["Contract"]);
        let Op::Contract(op) = &after.nodes[0].op else { panic!("a product") };
        assert_eq!(op.epilogue.as_ref().map(|map| map.instructions.len()), Some(3), "one sum is left");
        let report = reports.iter().find(|report| report.pass == "scale into products").unwrap();
        assert_eq!((report.changed, report.rewrites.len()), (3, 3));
    }

    #[test]
    fn sums_behind_anything_else_are_left() {
        let (_, _, reports) = optimized(graph(&[2, 3], |b, x| {
            let y = b.unary(crate::ops::Unary::Exp, x).unwrap();
            let (one, two) = (number(b, 1.0), number(b, 2.0));
            let y = b.binary(Binary::Add, y, one).unwrap();
            b.binary(Binary::Mul, y, two).unwrap()
        }));
        assert_eq!(reports.iter().find(|report| report.pass == "scale into products").unwrap().changed, 0);
    }

    #[test]
    fn what_is_no_factor_per_column_is_left_with_its_reason() {
        type Write = fn(&mut Builder, ValueId) -> ValueId;
        let cases: [(Write, &str); 3] = [
            (
                |b, y| {
                    let rows = b.constant(floats(&[2, 1], 0.7));
                    b.binary(Binary::Mul, y, rows).unwrap()
                },
                "not one per column",
            ),
            (
                |b, y| {
                    let factor = b.constant(floats(&[4], 0.7));
                    let scaled = b.binary(Binary::Mul, y, factor).unwrap();
                    b.binary(Binary::Sub, scaled, y).unwrap()
                },
                "something else reads",
            ),
            (
                |b, y| {
                    let factor = number(b, f32::INFINITY);
                    b.binary(Binary::Mul, y, factor).unwrap()
                },
                "infinite or NaN",
            ),
        ];
        for (write, expected) in cases {
            let mut model = graph(&[2, 3], |b, x| {
                let y = linear(b, x);
                write(b, y)
            });
            let reports = optimize(&mut model, &PassOptions::default());
            let report = reports.iter().find(|report| report.pass == "scale into products").unwrap();
            assert_eq!(report.changed, 0, "{expected}");
            assert!(report.refusals[0].reason.contains(expected), "{:?}", report.refusals);
        }
    }
}
