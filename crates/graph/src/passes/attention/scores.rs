//! The way from the product to the softmax: `scale · product + bias`.

use super::super::maps::operands;
use super::{Reason, View};
use crate::ops::{Binary, Instruction, Map, Op, Reg, Scalar};
use crate::{Builder, Node, OpError, ValueId};
use halimede_tensor::DType;
use smallvec::SmallVec;

/// Pointwise operations between product and softmax, at most.
const MAX_STEPS: usize = 8;
/// A number that hides a key: added to any score of a sane model it stays what it is.
pub(super) const HIDES: f64 = -1e30;

/// What is added to the scores, as a program of values that broadcast to them.
#[derive(Default)]
pub(super) struct Bias {
    map: Map,
    inputs: SmallVec<[ValueId; 4]>,
    result: Option<Reg>,
}

impl Bias {
    /// Whether nothing is added.
    pub(super) fn is_empty(&self) -> bool {
        self.result.is_none()
    }

    /// The value, where the bias is one as it stands.
    pub(super) fn value(&self) -> Option<ValueId> {
        match self.map.instructions[self.result?] {
            Instruction::Input(input) => Some(self.inputs[input]),
            _ => None,
        }
    }

    /// The bias as a value.
    pub(super) fn write(mut self, builder: &mut Builder) -> Result<Option<ValueId>, OpError> {
        let Some(result) = self.result else { return Ok(None) };
        if let Some(value) = self.value() {
            return Ok(Some(value));
        }
        // The last instruction is the result of a whole program.
        if result + 1 != self.map.instructions.len() {
            let again = self.map.instructions[result].clone();
            self.map.push(again);
        }
        builder.add(Op::Map(self.map), &self.inputs).map(Some)
    }

    /// See [`View::condition`], where the bias is a program of its own.
    pub(super) fn condition(&self) -> Option<(ValueId, bool, f64)> {
        let inputs: SmallVec<[Option<ValueId>; 4]> = self.inputs.iter().map(|&input| Some(input)).collect();
        condition(&self.map, &inputs)
    }

    /// The program with the bias as its result; `None` where nothing is added.
    pub(super) fn program(&self) -> Option<(Map, SmallVec<[Option<ValueId>; 4]>)> {
        let mut map = self.map.clone();
        map.instructions.truncate(self.result? + 1);
        Some((map, self.inputs.iter().map(|&input| Some(input)).collect()))
    }

    fn push(&mut self, instruction: Instruction) -> Reg {
        let known = self.map.instructions.iter().position(|earlier| *earlier == instruction);
        known.unwrap_or_else(|| self.map.push(instruction))
    }

    fn number(&mut self, value: f64) -> Reg {
        self.push(Instruction::Constant(Scalar::Float(value, DType::F32)))
    }

    /// Copies what a register of another program needs.
    fn copy(&mut self, node: &Node, map: &Map, register: Reg) -> Option<Reg> {
        let copied = match map.instructions[register] {
            Instruction::Input(input) => {
                let value = node.inputs[input]?;
                let place = self.inputs.iter().position(|&known| known == value).unwrap_or_else(|| {
                    self.inputs.push(value);
                    self.inputs.len() - 1
                });
                Instruction::Input(place)
            }
            Instruction::Constant(scalar) => Instruction::Constant(scalar),
            Instruction::Unary(f, a) => Instruction::Unary(f, self.copy(node, map, a)?),
            Instruction::Binary(f, a, b) => Instruction::Binary(f, self.copy(node, map, a)?, self.copy(node, map, b)?),
            Instruction::Select(c, a, b) => {
                Instruction::Select(self.copy(node, map, c)?, self.copy(node, map, a)?, self.copy(node, map, b)?)
            }
            Instruction::Cast(to, a) => Instruction::Cast(to, self.copy(node, map, a)?),
        };
        Some(self.push(copied))
    }

    fn add(&mut self, function: Binary, term: Reg) {
        let before = match (self.result, function) {
            (None, Binary::Add) => {
                self.result = Some(term);
                return;
            }
            (None, _) => self.number(0.0),
            (Some(before), _) => before,
        };
        self.result = Some(self.push(Instruction::Binary(function, before, term)));
    }

    fn multiply(&mut self, factor: f64) {
        if let Some(before) = self.result {
            let factor = self.number(factor);
            self.result = Some(self.push(Instruction::Binary(Binary::Mul, before, factor)));
        }
    }
}

impl View<'_> {
    /// The positions of a product, of the pointwise operations that its result runs through, and of the
    /// one that gives `value`.
    pub(super) fn path_to_product(&self, value: ValueId, steps: usize) -> Option<Vec<usize>> {
        let at = self.producers[value.index()]?;
        let node = &self.graph.nodes[at];
        match &node.op {
            Op::Contract(_) => Some(vec![at]),
            Op::Map(_) if steps < MAX_STEPS => {
                // The scores are never broadcast.
                let shape = self.graph.fact(value).shape.as_ref()?;
                let whole = |input: &&ValueId| self.graph.fact(**input).shape.as_ref() == Some(shape);
                let mut inputs = node.inputs.iter().flatten().filter(whole);
                let mut path = inputs.find_map(|&input| self.path_to_product(input, steps + 1))?;
                path.push(at);
                Some(path)
            }
            _ => None,
        }
    }

    /// Scale and bias that a path applies.
    pub(super) fn scores(&self, path: &[usize]) -> Result<(f64, Bias), Reason> {
        let (mut scale, mut bias) = (1.0, Bias::default());
        for pair in path.windows(2) {
            let score = self.graph.nodes[pair[0]].outputs[0];
            let node = &self.graph.nodes[pair[1]];
            scale *= step(node, score, &mut bias)?;
        }
        Ok((scale, bias))
    }

    /// The condition of a mask that is 0 for a visible key and one other number for a hidden one, whether
    /// it is true for the hidden ones, and the number.
    pub(super) fn condition(&self, mask: ValueId) -> Option<(ValueId, bool, f64)> {
        let node = self.producer(mask)?;
        let Op::Map(map) = &node.op else { return None };
        condition(map, &node.inputs)
    }
}

fn condition(map: &Map, inputs: &[Option<ValueId>]) -> Option<(ValueId, bool, f64)> {
    let &Instruction::Select(test, yes, no) = map.instructions.last()? else { return None };
    let number = |register: Reg| match map.instructions[register] {
        Instruction::Constant(Scalar::Float(number, _)) => Some(number),
        _ => None,
    };
    let Instruction::Input(input) = map.instructions[test] else { return None };
    match (number(yes)?, number(no)?) {
        (0.0, fill) => Some((inputs[input]?, false, fill)),
        (fill, 0.0) => Some((inputs[input]?, true, fill)),
        _ => None,
    }
}

const OTHER: Reason = "the scores are not only scaled and masked";

/// Follows the scores through one program: gives the factor and adds to the bias.
fn step(node: &Node, score: ValueId, bias: &mut Bias) -> Result<f64, Reason> {
    let Op::Map(map) = &node.op else { return Err("something stands between product and softmax") };
    // For registers that hold the scores, the factor so far.
    let mut scores: Vec<Option<f64>> = Vec::with_capacity(map.instructions.len());
    let number = |register: Reg| match map.instructions[register] {
        Instruction::Constant(Scalar::Float(number, _)) => Some(number),
        _ => None,
    };
    for instruction in &map.instructions {
        // Only the newest form of the scores goes on: the bias belongs to that one.
        let newest = scores.iter().rposition(Option::is_some);
        let scored = |register: Reg| scores[register];
        let reads_old = operands(instruction).into_iter().any(|of| scored(of).is_some() && Some(of) != newest);
        if reads_old {
            return Err(OTHER);
        }
        let factor = match *instruction {
            Instruction::Input(input) if node.inputs[input] == Some(score) => match newest {
                Some(_) => return Err(OTHER),
                None => Some(1.0),
            },
            Instruction::Input(_) | Instruction::Constant(_) => None,
            Instruction::Unary(_, a) | Instruction::Cast(_, a) => match scored(a) {
                Some(_) => return Err(OTHER),
                None => None,
            },
            Instruction::Binary(function, a, b) => match (function, scored(a), scored(b)) {
                (_, None, None) => None,
                (Binary::Mul, Some(factor), None) | (Binary::Mul, None, Some(factor)) => {
                    let c = number(a).or_else(|| number(b)).ok_or("the scale is not a number")?;
                    bias.multiply(c);
                    Some(factor * c)
                }
                (Binary::Div, Some(factor), None) => {
                    let c = number(b).filter(|&c| c != 0.0).ok_or("the scale is not a number")?;
                    bias.multiply(1.0 / c);
                    Some(factor / c)
                }
                (Binary::Add | Binary::Sub, Some(factor), None) => {
                    let term = bias.copy(node, map, b).ok_or(OTHER)?;
                    bias.add(function, term);
                    Some(factor)
                }
                (Binary::Add, None, Some(factor)) => {
                    let term = bias.copy(node, map, a).ok_or(OTHER)?;
                    bias.add(Binary::Add, term);
                    Some(factor)
                }
                _ => return Err(OTHER),
            },
            Instruction::Select(c, yes, no) => match (scored(c), scored(yes), scored(no)) {
                (None, None, None) => None,
                (None, Some(factor), None) | (None, None, Some(factor)) => {
                    let fill = number(yes).or_else(|| number(no));
                    let fill = fill.filter(|&fill| fill <= HIDES).ok_or("hidden keys keep some weight")?;
                    let condition = bias.copy(node, map, c).ok_or(OTHER)?;
                    let before = bias.result.unwrap_or_else(|| bias.number(0.0));
                    let fill = bias.number(fill);
                    let (yes, no) = if scored(yes).is_some() { (before, fill) } else { (fill, before) };
                    bias.result = Some(bias.push(Instruction::Select(condition, yes, no)));
                    Some(factor)
                }
                _ => return Err(OTHER),
            },
        };
        scores.push(factor);
    }
    scores.last().copied().flatten().ok_or(OTHER)
}
