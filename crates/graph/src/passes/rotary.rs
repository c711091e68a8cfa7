use super::edit::{done, refuse};
use super::{Pass, PassOptions, PassReport};
use crate::ops::{Binary, Instruction, Map, Op, Rope, Slice, Unary};
use crate::{Builder, Dims, Graph, Node, ValueId};
use smallvec::smallvec;

/// Finds the rotary position embedding that exporters write out, and makes it one operation:
///
/// ```text
/// h(x) = concat(-x[.., R/2:], x[.., :R/2])
/// y    = x · cos + h(x) · sin                 cos, sin [B or 1, 1, S, R]
/// ```
///
/// The core operator reads half tables: both halves of `cos` and `sin` have to be the same, which shows
/// in the concatenation that they come from.
pub(super) const PASS: Pass = Pass { name: "rotary embedding", run };

type Reason = &'static str;

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    let mut index = 0;
    while index < graph.nodes.len() {
        if binary(&graph.nodes[index], Binary::Add).is_none() {
            index += 1;
            continue;
        }
        match (View { graph, producers: graph.producers() }).find(index) {
            None => {}
            Some(Err(reason)) => {
                refuse(graph, &graph.nodes[index], format!("rotary embedding stays apart: {reason}"), report);
            }
            Some(Ok(found)) => match found.write(graph, index) {
                Ok(place) => {
                    index = place;
                    done(graph, &graph.nodes[index], "one operation over half tables", report);
                }
                Err(reason) => refuse(graph, &graph.nodes[index], reason, report),
            },
        }
        index += 1;
    }
}

struct View<'g> {
    graph: &'g Graph,
    producers: Vec<Option<usize>>,
}

struct Found {
    x: ValueId,
    cos: ValueId,
    sin: ValueId,
    /// R.
    turned: i64,
}

impl View<'_> {
    /// The embedding whose sum stands at `index`; `None` where nothing looks like one.
    fn find(&self, index: usize) -> Option<Result<Found, Reason>> {
        let (a, b) = binary(&self.graph.nodes[index], Binary::Add)?;
        [(a, b), (b, a)].into_iter().find_map(|(straight, turned)| {
            let (p, q) = binary(self.producer(straight)?, Binary::Mul)?;
            let (r, s) = binary(self.producer(turned)?, Binary::Mul)?;
            [(p, q, r, s), (q, p, r, s), (p, q, s, r), (q, p, s, r)].into_iter().find_map(|(x, cos, half, sin)| {
                let turned = self.half_turn(half, x)?;
                Some(self.check(x, cos, sin, turned))
            })
        })
    }

    fn check(&self, x: ValueId, cos: ValueId, sin: ValueId, turned: i64) -> Result<Found, Reason> {
        let shape = |value: ValueId| self.graph.fact(value).shape.as_ref().filter(|shape| shape.len() == 4);
        let x_shape = shape(x).ok_or("heads have not four axes")?;
        let table = |value: ValueId| -> Result<&Dims, Reason> {
            let table = shape(value).ok_or("the tables have not four axes")?;
            let batch = table[0].known() == Some(1) || table[0] == x_shape[0];
            if table[1].known() != Some(1) || table[2] != x_shape[2] || !batch {
                return Err("the tables are not one row per position");
            }
            if table[3].known() != Some(turned) {
                return Err("the tables have another width than heads");
            }
            Ok(table)
        };
        if table(cos)? != table(sin)? {
            return Err("the tables differ in shape");
        }
        if !self.doubled(cos, turned, 0) || !self.doubled(sin, turned, 0) {
            return Err("the halves of the tables are not known to be the same");
        }
        Ok(Found { x, cos, sin, turned })
    }

    /// The width of `concat(-x[.., R/2:], x[.., :R/2])`.
    fn half_turn(&self, value: ValueId, x: ValueId) -> Option<i64> {
        let node = self.producer(value)?;
        let Op::Concat(op) = &node.op else { return None };
        let width = self.graph.fact(x).shape.as_ref()?.last()?.known()?;
        let last = self.graph.fact(x).rank()? - 1;
        let [Some(first), Some(second)] = node.inputs[..] else { return None };
        let negated = self.producer(first)?;
        let Op::Map(map) = &negated.op else { return None };
        let upper = negated.inputs[0].filter(|_| *map == Map::unary(Unary::Neg))?;
        let half = width / 2;
        let halves = self.part(upper, x, last, half, width) && self.part(second, x, last, 0, half);
        (op.axis == last && width % 2 == 0 && halves).then_some(width)
    }

    /// Whether `value` is `x[.., start..end]` along an axis.
    fn part(&self, value: ValueId, x: ValueId, axis: usize, start: i64, end: i64) -> bool {
        let Some(node) = self.producer(value) else { return false };
        let ints = |at: usize| node.inputs.get(at).copied().flatten().and_then(|v| self.graph.fact(v).ints());
        let one = |at: usize| ints(at).filter(|list| list.len() == 1).map(|list| list[0]);
        let rank = axis as i64 + 1;
        let from_front = |place: i64| if place < 0 { place + self.width(x) } else { place.min(self.width(x)) };
        matches!(node.op, Op::Slice(_))
            && node.inputs[0] == Some(x)
            && one(3).is_some_and(|own| own.rem_euclid(rank) == axis as i64)
            && one(1).is_some_and(|own| from_front(own) == start)
            && one(2).is_some_and(|own| from_front(own) == end)
            && (node.inputs.get(4).copied().flatten().is_none() || one(4) == Some(1))
    }

    fn width(&self, x: ValueId) -> i64 {
        self.graph.fact(x).shape.as_ref().and_then(|shape| shape.last()?.known()).unwrap_or(0)
    }

    /// Whether both halves of the last axis of a table are known to hold the same numbers.
    fn doubled(&self, value: ValueId, width: i64, steps: usize) -> bool {
        let last = |value: ValueId| self.graph.fact(value).shape.as_ref().and_then(|shape| shape.last()?.known());
        if let Some(tensor) = self.graph.constant(value) {
            let half = width as usize / 2;
            let row = |row: &[f64]| row[..half] == row[half..];
            return tensor.to_f64s().is_ok_and(|numbers| numbers.chunks_exact(2 * half).all(row));
        }
        let (Some(node), true) = (self.producer(value), steps < 12) else { return false };
        let inner = |at: usize| node.inputs.get(at).copied().flatten();
        let kept = |at: usize| inner(at).is_some_and(|v| last(v) == Some(width) && self.doubled(v, width, steps + 1));
        match &node.op {
            Op::Concat(op) => {
                let along = self.graph.fact(value).rank() == Some(op.axis + 1);
                along && node.inputs.len() == 2 && inner(0).is_some() && inner(0) == inner(1)
            }
            Op::Map(_) => (0..node.inputs.len()).all(|at| {
                // What broadcasts along the last axis is the same in both halves.
                inner(at).is_some_and(|v| self.graph.fact(v).rank() == Some(0) || last(v) == Some(1)) || kept(at)
            }),
            // The last axis stays what it is.
            Op::Reshape(_) | Op::Cast(_) | Op::Expand(_) => kept(0),
            Op::Gather(op) => op.axis == 0 && self.graph.fact(value).rank() > Some(1) && kept(0),
            Op::Slice(_) => {
                let axes = inner(3).and_then(|axes| self.graph.fact(axes).ints());
                let rank = self.graph.fact(value).rank().unwrap_or(0) as i64;
                axes.is_some_and(|axes| axes.iter().all(|axis| axis.rem_euclid(rank.max(1)) + 1 != rank)) && kept(0)
            }
            Op::Transpose(op) => op.perm.last() == Some(&(op.perm.len() - 1)) && kept(0),
            _ => false,
        }
    }

    fn producer(&self, value: ValueId) -> Option<&Node> {
        self.producers[value.index()].map(|index| &self.graph.nodes[index])
    }
}

/// The operands of a program that is one function of two inputs.
fn binary(node: &Node, function: Binary) -> Option<(ValueId, ValueId)> {
    let Op::Map(map) = &node.op else { return None };
    match map.instructions[..] {
        [Instruction::Input(0), Instruction::Input(1), Instruction::Binary(f, 0, 1)] if f == function => {
            Some((node.inputs[0]?, node.inputs[1]?))
        }
        _ => None,
    }
}

impl Found {
    /// Puts the operation in the place of the sum at `index`; what nothing reads any more is dead code.
    /// Gives the place.
    fn write(self, graph: &mut Graph, index: usize) -> Result<usize, String> {
        let node = graph.nodes[index].clone();
        let count = graph.nodes.len();
        let mut builder = Builder::new(graph);
        builder.at(&node.name, &node.origin);
        let tables = [self.cos, self.sin].map(|table| half(&mut builder, table, self.turned / 2));
        let mut added = graph.nodes.split_off(count);
        let [cos, sin] = tables;
        let (cos, sin) = (cos.map_err(|e| e.to_string())?, sin.map_err(|e| e.to_string())?);
        let place = index + added.len();
        added.push(Node {
            op: Op::Rope(Rope { interleaved: false, rotary_dim: 0 }),
            inputs: smallvec![Some(self.x), Some(cos), Some(sin)],
            ..node
        });
        graph.nodes.splice(index..=index, added);
        Ok(place)
    }
}

/// `table [B, 1, S, R]` as `[B, S, R/2]`.
fn half(builder: &mut Builder, table: ValueId, half: i64) -> Result<ValueId, crate::OpError> {
    let (start, end, axis) = (builder.ints(&[0]), builder.ints(&[half]), builder.ints(&[3]));
    let part = builder.add(Op::Slice(Slice), &[table, start, end, axis])?;
    let shape = builder.ints(&[0, -1, half]);
    builder.add(Op::Reshape(crate::ops::Reshape { allow_zero: false }), &[part, shape])
}

#[cfg(test)]
mod tests {
    use super::super::tests::{floats, graph, number, optimized};
    use crate::ops::{Binary, Concat, Op, Slice, Unary};
    use crate::{Builder, ValueId};

    const B: usize = 2;
    const H: usize = 3;
    const S: usize = 4;
    const D: usize = 6;

    fn part(b: &mut Builder, x: ValueId, start: i64, end: i64) -> ValueId {
        let (start, end, axis) = (b.ints(&[start]), b.ints(&[end]), b.ints(&[-1]));
        b.add(Op::Slice(Slice), &[x, start, end, axis]).unwrap()
    }

    fn concat(b: &mut Builder, parts: [ValueId; 2], axis: usize) -> ValueId {
        b.add(Op::Concat(Concat { axis }), &parts).unwrap()
    }

    /// `x [B, H, S, D]` turned by angles that depend on the input, as Hugging Face's Llama writes it.
    fn model(doubled: bool, negated: bool) -> crate::Graph {
        graph(&[B, H, S, D], |b, x| {
            let angles = b.constant(floats(&[1, S, D / 2], 0.3));
            let sum = b.reduce(crate::ops::ReduceKind::Mean, x, [0, 1, 2, 3], false).unwrap();
            let angles = b.binary(Binary::Add, angles, sum).unwrap();
            let other = if doubled { angles } else { b.unary(Unary::Neg, angles).unwrap() };
            let both = concat(b, [angles, other], 2);
            let table = |b: &mut Builder, function| {
                let factor = number(b, 1.5);
                let table = b.unary(function, both).unwrap();
                let table = b.binary(Binary::Mul, table, factor).unwrap();
                b.reshape(table, &[1, 1, S as i64, D as i64]).unwrap()
            };
            let (cos, sin) = (table(b, Unary::Cos), table(b, Unary::Sin));
            let (low, high) = (part(b, x, 0, D as i64 / 2), part(b, x, D as i64 / 2, i64::MAX));
            let high = if negated { b.unary(Unary::Neg, high).unwrap() } else { high };
            let half = concat(b, [high, low], 3);
            let (straight, turned) =
                (b.binary(Binary::Mul, x, cos).unwrap(), b.binary(Binary::Mul, half, sin).unwrap());
            b.binary(Binary::Add, straight, turned).unwrap()
        })
    }

    #[test]
    fn as_exporters_write_it() {
        let (names, _, reports) = optimized(model(true, true));
        assert_eq!(names.iter().filter(|name| **name == "Rope").count(), 1, "{names:?}");
        // The join of the two equal halves of angles is all that is left.
        assert_eq!(names.iter().filter(|name| **name == "Concat").count(), 1, "{names:?}");
        assert!(reports.iter().any(|r| r.pass == "rotary embedding" && r.changed == 1));
    }

    #[test]
    fn tables_with_different_halves_are_left() {
        let (names, _, reports) = optimized(model(false, true));
        assert!(!names.contains(&"Rope"), "{names:?}");
        assert!(reports.iter().flat_map(|r| &r.refusals).any(|r| r.reason.contains("not known to be the same")));
        let (names, ..) = optimized(model(true, false));
        assert!(!names.contains(&"Rope"), "{names:?}");
    }
}
