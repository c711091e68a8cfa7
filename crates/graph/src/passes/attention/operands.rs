//! Queries, keys and values: which operand of a product is which, behind scales and transpositions.

use super::{Reason, View, product};
use crate::ops::{Binary, Instruction, Op, Scalar};
use crate::{Dim, Dims, Graph, Node, ValueId};

/// An operand: `factor` times a value with its axes in the order `perm`, whose every head stands for
/// `repeats` heads that follow each other.
pub(super) struct Operand {
    pub(super) value: ValueId,
    pub(super) perm: [usize; 4],
    pub(super) factor: f64,
    pub(super) repeats: i64,
}

const IN_ORDER: [usize; 4] = [0, 1, 2, 3];

impl Operand {
    /// The shape in the order of the core operator, where batch and heads are known or have a name.
    pub(super) fn shape(&self, graph: &Graph) -> Option<Dims> {
        let shape = graph.fact(self.value).shape.as_ref().filter(|shape| shape.len() == 4)?;
        let shape: Dims = self.perm.iter().map(|&axis| shape[axis].clone()).collect();
        (!shape[0].is_unknown() && !shape[1].is_unknown()).then_some(shape)
    }
}

impl View<'_> {
    /// `Q [B, H, S, D]` and `K [B, H, T, D]` of the product that gives `[B, H, S, T]`.
    pub(super) fn queries_and_keys(&self, node: &Node) -> Result<(Operand, Operand), Reason> {
        let op = product(node)?;
        let [b, h, s, t] = op.out[..] else { return Err("the scores have not four axes") };
        let (q, k) = if op.lhs.contains(&s) { (0, 1) } else { (1, 0) };
        let labels = [&op.lhs, &op.rhs];
        let depth = labels[q].iter().copied().find(|label| !op.out.contains(label) && labels[k].contains(label));
        let depth = depth.ok_or("the product sums over nothing")?;
        let operand = |side: usize, wanted: [u8; 4]| -> Result<Operand, Reason> {
            let value = node.inputs[side].ok_or("an operand is missing")?;
            Ok(self.past(value, order(labels[side], wanted)?, true))
        };
        Ok((operand(q, [b, h, s, depth])?, operand(k, [b, h, t, depth])?))
    }

    /// `V [B, H, T, E]` of the product with `probability`, and where the axes of its result lie in
    /// `[B, H, S, E]`.
    pub(super) fn values(&self, node: &Node, probability: ValueId) -> Result<(Operand, [usize; 4]), Reason> {
        let op = product(node)?;
        let p = usize::from(node.inputs[0] != Some(probability));
        let labels = [&op.lhs, &op.rhs];
        let [b, h, s, t] = labels[p][..] else { return Err("the probabilities have not four axes") };
        let free = labels[1 - p].iter().copied().find(|label| !labels[p].contains(label));
        let e = free.filter(|_| !op.out.contains(&t)).ok_or("the second product is not over the keys")?;
        let value = node.inputs[1 - p].ok_or("an operand is missing")?;
        let v = self.past(value, order(labels[1 - p], [b, h, t, e])?, false);
        let axis = |label: &u8| [b, h, s, e].iter().position(|known| known == label);
        let out: Option<Vec<usize>> = op.out.iter().map(axis).collect();
        let out = out.and_then(|out| <[usize; 4]>::try_from(out).ok()).ok_or("the result has not four axes")?;
        Ok((v, out))
    }

    /// The operand past factors (where `scaled`), past heads that are written out several times and, as
    /// long as its axes are out of order, past transpositions.
    fn past(&self, value: ValueId, perm: [usize; 4], scaled: bool) -> Operand {
        let mut operand = Operand { value, perm, factor: 1.0, repeats: 1 };
        while let Some(node) = self.producer(operand.value) {
            let turned = operand.perm != IN_ORDER;
            match &node.op {
                Op::Map(_) if scaled => {
                    let Some((value, factor)) = factor(node) else { break };
                    (operand.value, operand.factor) = (value, operand.factor * factor);
                }
                Op::Transpose(op) if turned && op.perm.len() == 4 => {
                    let Some(value) = node.inputs[0] else { break };
                    (operand.value, operand.perm) = (value, operand.perm.map(|axis| op.perm[axis]));
                }
                Op::Reshape(_) => {
                    if let Some((value, repeats)) = self.repeated(node).filter(|_| operand.perm[1] == 1) {
                        (operand.value, operand.repeats) = (value, operand.repeats * repeats);
                    } else if let Some(value) = self.swapped(node).filter(|_| turned) {
                        (operand.value, operand.perm) = (value, operand.perm.map(|axis| [0, 1, 3, 2][axis]));
                    } else {
                        break;
                    }
                }
                _ => break,
            }
        }
        operand
    }

    /// `x [B, G, T, D]` and `r` where the node gives `[B, G · r, T, D]`, every head `r` times: grouped heads
    /// as exporters write them, by a new axis that is expanded and merged.
    fn repeated(&self, node: &Node) -> Option<(ValueId, i64)> {
        let wide = node.inputs[0]?;
        let expand = self.producer(wide)?;
        let (Op::Expand(_) | Op::Tile(_), narrow) = (&expand.op, expand.inputs[0]?) else { return None };
        let split = self.producer(narrow)?;
        let (Op::Reshape(_), x) = (&split.op, split.inputs[0]?) else { return None };
        let shape = |value: ValueId| self.graph.fact(value).shape.as_deref();
        let ([b, g, t, d], [b1, g1, one, t1, d1]) = (shape(x)?, shape(narrow)?) else { return None };
        let ([b2, g2, r, t2, d2], [b3, h, t3, d3]) = (shape(wide)?, shape(node.outputs[0])?) else { return None };
        let same = |a: &Dim, others: [&Dim; 3]| !a.is_unknown() && others.iter().all(|other| *other == a);
        let kept = same(b, [b1, b2, b3]) && same(t, [t1, t2, t3]) && same(d, [d1, d2, d3]);
        let grouped = g == g1 && g == g2 && one.known() == Some(1) && g.known()?.checked_mul(r.known()?) == h.known();
        (kept && grouped).then_some((x, r.known()?))
    }

    /// `x` where the node gives `x` with its last two of four axes exchanged, batch and heads being one
    /// axis on the way (as dynamo-based exporters write a transposition).
    fn swapped(&self, node: &Node) -> Option<ValueId> {
        let turned = node.inputs[0]?;
        let transpose = self.producer(turned)?;
        let Op::Transpose(op) = &transpose.op else { return None };
        let joined = transpose.inputs[0]?;
        let reshape = self.producer(joined)?;
        let (Op::Reshape(_), [0, 2, 1]) = (&reshape.op, &op.perm[..]) else { return None };
        let x = reshape.inputs[0]?;
        let shape = |value: ValueId| self.graph.fact(value).shape.as_deref();
        let (Some([b, h, t, d]), Some([_, t1, d1])) = (shape(x), shape(joined)) else { return None };
        let same = t == t1 && d == d1 && shape(node.outputs[0])? == [b.clone(), h.clone(), d.clone(), t.clone()];
        same.then_some(x)
    }
}

/// Where the `wanted` labels lie.
fn order(labels: &[u8], wanted: [u8; 4]) -> Result<[usize; 4], Reason> {
    let mut perm = IN_ORDER;
    for (place, label) in perm.iter_mut().zip(wanted) {
        *place = labels.iter().position(|&known| known == label).ok_or("an operand lacks an axis")?;
    }
    if labels.len() == 4 { Ok(perm) } else { Err("an operand has not four axes") }
}

/// `x` and `c` of `c · x` and `x / c`.
fn factor(node: &Node) -> Option<(ValueId, f64)> {
    let Op::Map(map) = &node.op else { return None };
    let [first, second, Instruction::Binary(function, a, b)] = &map.instructions[..] else { return None };
    let operand = |register: usize| [first, second].get(register).copied();
    match (function, operand(*a)?, operand(*b)?) {
        (Binary::Mul, Instruction::Input(x), Instruction::Constant(Scalar::Float(c, _)))
        | (Binary::Mul, Instruction::Constant(Scalar::Float(c, _)), Instruction::Input(x)) => {
            Some((node.inputs[*x]?, *c))
        }
        (Binary::Div, Instruction::Input(x), Instruction::Constant(Scalar::Float(c, _))) if *c != 0.0 => {
            Some((node.inputs[*x]?, 1.0 / c))
        }
        _ => None,
    }
}
