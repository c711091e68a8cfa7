mod causal;
mod heads;
mod operands;
mod scores;

use self::causal::Causal;
pub(super) use self::heads::PASS as HEADS;
use self::operands::Operand;
use self::scores::Bias;
use super::edit::{done, is_output, refuse};
use super::{Pass, PassOptions, PassReport};
use crate::ops::{Attention, Contract, Instruction, Map, Op, Scalar, Transpose, Unary};
use crate::{Builder, Dim, Fact, Graph, Node, OpError, ValueId};
use halimede_tensor::DType;
use smallvec::{SmallVec, smallvec};

/// Finds attention that exporters write out:
///
/// ```text
/// scores = scale · Q Kᵀ + mask        Q and K may each carry a part of the scale, K may be transposed,
/// p      = softmax(scores)            the mask may be added or chosen: where(visible, scores, -∞)
/// out    = p V                        p may be guarded: where(isnan(p), 0, p)
/// ```
///
/// A mask that hides the keys behind each query and nothing else becomes a flag: it is never written then,
/// and what it hides is not computed. Heads of `K` and `V` may be grouped: written out once for each query head that reads them.
///
/// A mask stays the float that is added, so that a row without any key still gives what softmax gives
/// for it. Behind a guard such a row gives zeros, as it does under a Bool mask: there the condition
/// itself becomes the mask. A guard without use is left out; a NaN in `Q` or `K` then shows in the result.
pub(super) const PASS: Pass = Pass { name: "attention", run };

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    let mut index = 0;
    while index < graph.nodes.len() {
        if matches!(graph.nodes[index].op, Op::Softmax(_)) {
            let found = View::new(graph).find(index);
            match found {
                Ok(Some(found)) => {
                    // What comes before the place moved; a softmax behind it is still ahead.
                    index = index.saturating_sub(found.gone.len());
                    let (node, what) = (graph.nodes[found.place].clone(), found.describe());
                    if let Err(reason) = found.write(graph) {
                        refuse(graph, &graph.nodes[index], reason, report);
                        return;
                    }
                    done(graph, &node, what, report);
                    continue;
                }
                Ok(None) => {}
                Err(reason) => refuse(graph, &graph.nodes[index], format!("attention stays apart: {reason}"), report),
            }
        }
        index += 1;
    }
}

/// A graph with who writes and who reads each value.
struct View<'g> {
    graph: &'g Graph,
    producers: Vec<Option<usize>>,
    consumers: Vec<Vec<usize>>,
}

/// An attention in its parts.
struct Found {
    q: Operand,
    k: Operand,
    v: Operand,
    scale: f32,
    bias: Bias,
    /// The mask is this condition instead of the bias; whether it is true where a key is hidden.
    condition: Option<(ValueId, bool)>,
    /// The mask says no more than this.
    causal: Option<Causal>,
    /// Where each axis of the result lies in `[B, H, S, E]`.
    out: [usize; 4],
    /// Position of the product with `V`, where everything is at hand.
    place: usize,
    /// Positions of what this replaces.
    gone: Vec<usize>,
}

type Reason = &'static str;

impl<'g> View<'g> {
    fn new(graph: &'g Graph) -> View<'g> {
        View { graph, producers: graph.producers(), consumers: graph.consumers() }
    }

    fn producer(&self, value: ValueId) -> Option<&'g Node> {
        self.producers[value.index()].map(|index| &self.graph.nodes[index])
    }

    /// Whether only one operation reads a value, once.
    fn read_once(&self, value: ValueId) -> bool {
        self.consumers[value.index()].len() == 1 && !is_output(self.graph, value)
    }

    /// The attention around the softmax at `index`; `None` where nothing looks like one.
    fn find(&self, index: usize) -> Result<Option<Found>, Reason> {
        let softmax = &self.graph.nodes[index];
        let Op::Softmax(op) = &softmax.op else { return Ok(None) };
        let (Some(input), probability) = (softmax.inputs[0], softmax.outputs[0]) else { return Ok(None) };
        let Some(path) = self.path_to_product(input, 0) else { return Ok(None) };
        let Some(reader) = self.product_after(probability) else { return Ok(None) };
        let fact = self.graph.fact(input);
        if op.log || fact.rank() != Some(4) || op.axis != 3 {
            return Err("the softmax is not along the last of four axes");
        }
        if fact.dtype != Some(DType::F32) {
            return Err("it is not of f32");
        }
        let Some(reader) = reader else { return Err("something else reads the probabilities") };
        if path.iter().any(|&at| !self.read_once(self.graph.nodes[at].outputs[0])) {
            return Err("something else reads the scores");
        }
        let (q, k) = self.queries_and_keys(&self.graph.nodes[path[0]])?;
        let (v, out) = self.values(&self.graph.nodes[reader.place], reader.probability)?;
        self.check_shapes(&q, &k, &v)?;
        let (factor, bias) = self.scores(&path)?;
        let scale = (factor * q.factor * k.factor) as f32;
        let condition = match (reader.guard.is_empty(), bias.value()) {
            (true, _) => None,
            (false, None) if bias.is_empty() => None,
            (false, mask) => match mask.and_then(|mask| self.condition(mask)).or_else(|| bias.condition()) {
                Some((condition, hidden, f64::NEG_INFINITY)) => Some((condition, hidden)),
                // A finite number keeps the row from NaN: the guard never acts.
                Some((.., fill)) if fill.is_finite() => None,
                _ => return Err("rows without keys are guarded, and the mask is no condition"),
            },
        };
        let causal = self.causal_mask(&bias, condition, &q, &k);
        let mut gone = path;
        gone.push(index);
        gone.extend(reader.guard);
        gone.push(reader.place);
        Ok(Some(Found { q, k, v, scale, bias, condition, causal, out, place: reader.place, gone }))
    }

    /// How the mask is causal, where it is nothing else. Every query sees the first key then, so that no
    /// row is empty.
    fn causal_mask(&self, bias: &Bias, condition: Option<(ValueId, bool)>, q: &Operand, k: &Operand) -> Option<Causal> {
        let (queries, keys) = (q.shape(self.graph)?[2].clone(), k.shape(self.graph)?[2].clone());
        let found = match condition {
            Some((visible, inverted)) => self.causal_condition(visible, inverted, &queries, &keys),
            None => {
                let (map, inputs) = bias.program()?;
                self.causal(&map, &inputs, &queries, &keys)
            }
        }?;
        // With fewer keys than queries, counted from the end, the first queries would see nothing.
        (!found.from_end || (keys - queries).is_non_negative()).then_some(found)
    }

    /// The product that reads the probabilities, and the guard between; the inner `None` where there is
    /// a product, but not alone.
    fn product_after(&self, probability: ValueId) -> Option<Option<Reader>> {
        let is_product = |at: usize| matches!(self.graph.nodes[at].op, Op::Contract(_));
        let uses = &self.consumers[probability.index()];
        let guard: SmallVec<[usize; 2]> = match uses[..] {
            [one] if is_product(one) => SmallVec::new(),
            [one] => smallvec![one],
            [a, b] if self.is_guard(b, probability) => smallvec![a, b],
            [a, b] if self.is_guard(a, probability) => smallvec![b, a],
            _ => return uses.iter().any(|&at| is_product(at)).then_some(None),
        };
        if is_output(self.graph, probability) {
            return Some(None);
        }
        let Some(&last) = guard.last() else { return Some(Some(Reader { place: uses[0], probability, guard })) };
        if !self.is_guard(last, probability) {
            return uses.iter().any(|&at| is_product(at)).then_some(None);
        }
        let guarded = self.graph.nodes[last].outputs[0];
        match self.consumers[guarded.index()][..] {
            [place] if is_product(place) && !is_output(self.graph, guarded) => {
                Some(Some(Reader { place, probability: guarded, guard }))
            }
            ref uses => uses.iter().any(|&at| is_product(at)).then_some(None),
        }
    }

    /// Whether an operation gives `p`, and 0 where `p` is NaN.
    fn is_guard(&self, at: usize, p: ValueId) -> bool {
        let node = &self.graph.nodes[at];
        let Op::Map(map) = &node.op else { return false };
        let input = |register: usize| match map.instructions[register] {
            Instruction::Input(input) => node.inputs[input],
            _ => None,
        };
        let Some(&Instruction::Select(test, zero, kept)) = map.instructions.last() else { return false };
        let tests = match map.instructions[test] {
            Instruction::Unary(Unary::IsNan, of) => input(of) == Some(p),
            Instruction::Input(_) => input(test).is_some_and(|test| self.is_nan_test(test, p)),
            _ => false,
        };
        let zero = matches!(map.instructions[zero], Instruction::Constant(Scalar::Float(0.0, _)));
        tests && zero && input(kept) == Some(p)
    }

    fn is_nan_test(&self, test: ValueId, p: ValueId) -> bool {
        self.read_once(test)
            && self.producer(test).is_some_and(|node| {
                node.inputs[..] == [Some(p)] && matches!(&node.op, Op::Map(map) if *map == Map::unary(Unary::IsNan))
            })
    }

    /// The core operator reads heads of one batch; products broadcast.
    fn check_shapes(&self, q: &Operand, k: &Operand, v: &Operand) -> Result<(), Reason> {
        let shape = |operand: &Operand| operand.shape(self.graph).ok_or("a shape is not known");
        let repeats = (k.repeats, v.repeats);
        if q.repeats != 1 || repeats.0 != repeats.1 {
            return Err("heads of queries, keys and values repeat differently");
        }
        let (q, k, v) = (shape(q)?, shape(k)?, shape(v)?);
        if q[0] != k[0] || q[0] != v[0] {
            return Err("queries, keys and values differ in their batch");
        }
        let heads = k[1].clone() * Dim::from(repeats.0);
        if k[1] != v[1] || (q[1] != heads && heads.known() != Some(1)) {
            return Err("queries, keys and values differ in their heads");
        }
        Ok(())
    }
}

/// What reads the probabilities.
struct Reader {
    place: usize,
    /// The value that the product reads.
    probability: ValueId,
    guard: SmallVec<[usize; 2]>,
}

impl Found {
    /// For people.
    fn describe(&self) -> String {
        let mask = match (self.causal, self.condition, self.bias.is_empty()) {
            (Some(_), ..) => "causal",
            (None, Some(_), _) => "masked by a condition",
            (None, None, false) => "a mask that is added",
            (None, None, true) => "no mask",
        };
        let heads = match self.k.repeats {
            1 => String::new(),
            repeats => format!(", every head of keys read by {repeats} of queries"),
        };
        format!("attention as one operation: scale {}, {mask}{heads}", self.scale)
    }

    /// Puts the core operator in the place of the parts.
    fn write(self, graph: &mut Graph) -> Result<(), String> {
        let last = &graph.nodes[self.place];
        let (name, origin, output) = (last.name.clone(), last.origin.clone(), last.outputs[0]);
        let count = graph.nodes.len();
        let mut builder = Builder::new(graph);
        builder.at(&name, &origin);
        let (condition, bias) = match self.causal {
            Some(_) => (None, Bias::default()),
            None => (self.condition, self.bias),
        };
        let inputs = operands_and_mask(&mut builder, [self.q, self.k, self.v], condition, bias);
        let mut added = graph.nodes.split_off(count);
        let inputs = inputs.map_err(|error| error.to_string())?;
        let attention = Attention {
            scale: Some(self.scale),
            causal: self.causal.is_some(),
            causal_from_end: self.causal.is_some_and(|causal| causal.from_end),
            ..Attention::default()
        };
        let turned = self.out != [0, 1, 2, 3];
        let result = match turned {
            true => graph.add_value(format!("{name}/attention"), Fact::of_dtype(Some(DType::F32))),
            false => output,
        };
        let node = |op, inputs, output| Node {
            name: name.clone(),
            origin: origin.clone(),
            op,
            inputs,
            outputs: smallvec![output],
        };
        added.push(node(Op::Attention(attention), inputs, result));
        if turned {
            let transpose = Transpose { perm: self.out.as_slice().into() };
            added.push(node(Op::Transpose(transpose), smallvec![Some(result)], output));
        }
        let mut nodes = Vec::with_capacity(count);
        for (index, node) in std::mem::take(&mut graph.nodes).into_iter().enumerate() {
            if index == self.place {
                nodes.append(&mut added);
            } else if !self.gone.contains(&index) {
                nodes.push(node);
            }
        }
        graph.nodes = nodes;
        Ok(())
    }
}

/// The inputs of the core operator, with the transpositions and pointwise work that they need.
fn operands_and_mask(
    builder: &mut Builder,
    operands: [Operand; 3],
    condition: Option<(ValueId, bool)>,
    bias: Bias,
) -> Result<SmallVec<[Option<ValueId>; 4]>, OpError> {
    let mut inputs = SmallVec::new();
    for operand in operands {
        inputs.push(Some(builder.transpose(operand.value, &operand.perm)?));
    }
    let mask = match condition {
        Some((visible, false)) => Some(visible),
        Some((hidden, true)) => Some(builder.unary(Unary::Not, hidden)?),
        None => bias.write(builder)?,
    };
    inputs.extend(mask.map(Some));
    Ok(inputs)
}

/// A product without pointwise work of its own.
fn product(node: &Node) -> Result<&Contract, Reason> {
    match &node.op {
        Op::Contract(op) if op.epilogue.is_none() => Ok(op),
        _ => Err("a product carries pointwise work already"),
    }
}

#[cfg(test)]
mod tests;
