//! Masks that are nothing but causality, whatever they are written with.
//!
//! A mask is followed backwards through ranges, comparisons and choices as a matrix that holds one number
//! where `key - query <= bound` and another elsewhere. Nothing is evaluated: what is found holds for every
//! length.

use super::View;
use super::scores::HIDES;
use crate::ops::{Binary, Instruction, Map, Op, Scalar, Unary};
use crate::{Dim, ValueId};
use halimede_tensor::DType;

/// Operations on the way from a mask to its ranges, at most.
const MAX_DEPTH: usize = 24;

/// A matrix over queries (the last axis but one) and keys (the last axis).
#[derive(Debug, Clone, PartialEq)]
enum Form {
    /// `query · q + key · k + offset`, of integers.
    Linear { q: i64, k: i64, offset: Dim, sizes: Sizes },
    /// The same number everywhere.
    Number(f64),
    /// One number where `key - query <= bound`, another elsewhere.
    Triangle { bound: Dim, inside: f64, outside: f64, sizes: Sizes },
}

/// How many queries and keys the positions that a form was made of count, so that none was broadcast.
type Sizes = [Option<Dim>; 2];

/// Which keys a query sees: those up to its own position, counted from the first or from the last key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Causal {
    pub from_end: bool,
}

impl View<'_> {
    /// How a mask is causal, where that is all that it says of `queries` and `keys`.
    pub(super) fn causal(&self, map: &Map, inputs: &[Option<ValueId>], queries: &Dim, keys: &Dim) -> Option<Causal> {
        self.triangle(self.program(map, inputs, 0)?, queries, keys, |inside, outside| inside == 0.0 && outside <= HIDES)
    }

    /// The same of a condition that is true for keys that take part, or for those that do not.
    pub(super) fn causal_condition(
        &self,
        visible: ValueId,
        inverted: bool,
        queries: &Dim,
        keys: &Dim,
    ) -> Option<Causal> {
        let wanted = if inverted { (0.0, 1.0) } else { (1.0, 0.0) };
        self.triangle(self.form(visible, 0)?, queries, keys, |inside, outside| (inside, outside) == wanted)
    }

    fn triangle(&self, form: Form, queries: &Dim, keys: &Dim, fits: impl Fn(f64, f64) -> bool) -> Option<Causal> {
        let Form::Triangle { bound, inside, outside, sizes } = form else { return None };
        if !fits(inside, outside) || sizes != [Some(queries.clone()), Some(keys.clone())] {
            return None;
        }
        match bound {
            bound if bound.known() == Some(0) => Some(Causal { from_end: false }),
            bound if bound == keys.clone() - queries.clone() => Some(Causal { from_end: true }),
            _ => None,
        }
    }

    fn form(&self, value: ValueId, depth: usize) -> Option<Form> {
        if depth > MAX_DEPTH {
            return None;
        }
        if let Some(number) = self.number(value) {
            return Some(Form::Number(number));
        }
        let fact = self.graph.fact(value);
        // One size known as an expression.
        if let Some([offset]) = fact.elements.as_deref() {
            return Some(Form::Linear { q: 0, k: 0, offset: offset.clone(), sizes: [None, None] });
        }
        let node = self.producer(value)?;
        let input = |at: usize| node.inputs.get(at).copied().flatten();
        match &node.op {
            Op::Range(_) => {
                let one = self.number(input(2)?)? == 1.0;
                let start = self.graph.fact(input(0)?).dims()?.into_iter().next()?;
                let sizes = [None, fact.shape.as_ref()?.first().cloned()];
                (one && fact.dtype == Some(DType::I64)).then_some(Form::Linear { q: 0, k: 1, offset: start, sizes })
            }
            Op::Reshape(_) => self.moved(input(0)?, value, depth),
            // Broadcasting adds leading axes or repeats what does not depend on an axis.
            Op::Expand(_) => self.form(input(0)?, depth + 1),
            Op::Cast(op) if kept(op.to) => self.form(input(0)?, depth + 1),
            Op::Map(map) => self.program(map, &node.inputs, depth + 1),
            _ => None,
        }
    }

    /// A number that every element has.
    fn number(&self, value: ValueId) -> Option<f64> {
        let numbers = self.graph.constant(value).filter(|tensor| tensor.len() == 1)?.to_f64s().ok()?;
        numbers.first().copied()
    }

    /// Positions along one axis after a reshape that only adds or drops axes of size 1.
    fn moved(&self, from: ValueId, to: ValueId, depth: usize) -> Option<Form> {
        let long = |value: ValueId| {
            let shape = self.graph.fact(value).shape.as_ref()?;
            let axes: Vec<usize> = (0..shape.len()).filter(|&axis| shape[axis].known() != Some(1)).collect();
            Some((shape.len(), axes, shape.clone()))
        };
        let form = self.form(from, depth + 1)?;
        let ((rank, axes, shape), (new_rank, new_axes, new_shape)) = (long(from)?, long(to)?);
        match (form, &axes[..], &new_axes[..]) {
            (Form::Linear { q, k, offset, sizes: [queries, keys] }, &[axis], &[new])
                if shape[axis] == new_shape[new] =>
            {
                // Positions along one axis alone, which becomes that of keys or that of queries.
                let (factor, other, size) = if axis + 1 == rank { (k, q, keys) } else { (q, k, queries) };
                match (new_rank - new, other) {
                    (1, 0) => Some(Form::Linear { q: 0, k: factor, offset, sizes: [None, size] }),
                    (2, 0) => Some(Form::Linear { q: factor, k: 0, offset, sizes: [size, None] }),
                    _ => None,
                }
            }
            // An axis of one position may be either.
            (Form::Linear { .. }, [], _) => None,
            // Axes of size 1 alone in front of the same two.
            (form, axes, new_axes) if axes.len() == new_axes.len() => {
                let from_end = |rank: usize, axes: &[usize]| axes.iter().map(|axis| rank - axis).collect::<Vec<_>>();
                let same = axes.iter().zip(new_axes).all(|(&a, &b)| shape[a] == new_shape[b]);
                (same && from_end(rank, axes) == from_end(new_rank, new_axes)).then_some(form)
            }
            _ => None,
        }
    }

    /// What a program gives.
    fn program(&self, map: &Map, inputs: &[Option<ValueId>], depth: usize) -> Option<Form> {
        let mut forms: Vec<Option<Form>> = Vec::with_capacity(map.instructions.len());
        for instruction in &map.instructions {
            let at = |register: usize| forms[register].clone();
            let form = match *instruction {
                Instruction::Input(input) => inputs[input].and_then(|value| self.form(value, depth + 1)),
                Instruction::Constant(Scalar::Float(number, _)) => Some(Form::Number(number)),
                Instruction::Constant(Scalar::Int(number, _)) => Some(Form::Number(number as f64)),
                Instruction::Constant(Scalar::Bool(truth)) => Some(Form::Number(f64::from(u8::from(truth)))),
                Instruction::Cast(to, a) => at(a).filter(|_| kept(to)),
                Instruction::Unary(Unary::Not, a) => each(at(a), |x| f64::from(u8::from(x == 0.0))),
                Instruction::Unary(Unary::Neg, a) => match at(a) {
                    Some(Form::Linear { q, k, offset, sizes }) => {
                        Some(Form::Linear { q: -q, k: -k, offset: -offset, sizes })
                    }
                    other => each(other, |x| -x),
                },
                Instruction::Unary(..) => None,
                Instruction::Binary(function, a, b) => binary(function, at(a), at(b)),
                Instruction::Select(c, yes, no) => select(at(c), at(yes), at(no)),
            };
            forms.push(form);
        }
        forms.pop()?
    }
}

/// Datatypes that hold positions and conditions without loss.
fn kept(dtype: DType) -> bool {
    matches!(dtype, DType::I64 | DType::I32 | DType::F32 | DType::F64 | DType::Bool)
}

/// A function of every number.
fn each(form: Option<Form>, f: impl Fn(f64) -> f64) -> Option<Form> {
    match form? {
        Form::Number(x) => Some(Form::Number(f(x))),
        Form::Triangle { bound, inside, outside, sizes } => {
            Some(Form::Triangle { bound, inside: f(inside), outside: f(outside), sizes })
        }
        Form::Linear { .. } => None,
    }
}

/// A function of numbers of which at most one triangle decides.
fn pairs(a: &Form, b: &Form, f: impl Fn(f64, f64) -> f64) -> Option<Form> {
    let (bound, sizes) = match (a, b) {
        (Form::Number(a), Form::Number(b)) => return Some(Form::Number(f(*a, *b))),
        (Form::Triangle { bound, sizes, .. }, Form::Number(_)) => (bound, sizes),
        (Form::Number(_), Form::Triangle { bound, sizes, .. }) => (bound, sizes),
        (Form::Triangle { bound, sizes, .. }, Form::Triangle { bound: other, sizes: of, .. })
            if bound == other && sizes == of =>
        {
            (bound, sizes)
        }
        _ => return None,
    };
    let side = |form: &Form, within: bool| match form {
        Form::Triangle { inside, outside, .. } => Some(if within { *inside } else { *outside }),
        Form::Number(x) => Some(*x),
        Form::Linear { .. } => None,
    };
    let (inside, outside) = (f(side(a, true)?, side(b, true)?), f(side(a, false)?, side(b, false)?));
    Some(Form::Triangle { bound: bound.clone(), inside, outside, sizes: sizes.clone() })
}

/// A form as positions, where it is one or a whole number.
fn linear(form: &Form) -> Option<(i64, i64, Dim, Sizes)> {
    match form {
        Form::Linear { q, k, offset, sizes } => Some((*q, *k, offset.clone(), sizes.clone())),
        Form::Number(x) if x.fract() == 0.0 && x.abs() < 1e9 => Some((0, 0, Dim::from(*x as i64), [None, None])),
        _ => None,
    }
}

/// The sizes of two forms; `None` where they differ.
fn joint([a, b]: Sizes, [c, d]: Sizes) -> Option<Sizes> {
    let one = |x: Option<Dim>, y: Option<Dim>| match (x, y) {
        (Some(x), Some(y)) if x != y => None,
        (x, y) => Some(x.or(y)),
    };
    Some([one(a, c)?, one(b, d)?])
}

fn binary(function: Binary, a: Option<Form>, b: Option<Form>) -> Option<Form> {
    let (a, b) = (a?, b?);
    if matches!(a, Form::Linear { .. }) || matches!(b, Form::Linear { .. }) {
        let ((q, k, offset, sizes), (q2, k2, offset2, sizes2)) = (linear(&a)?, linear(&b)?);
        let sizes = joint(sizes, sizes2)?;
        if function == Binary::Add {
            return Some(Form::Linear { q: q + q2, k: k + k2, offset: offset + offset2, sizes });
        }
        let (q, k, offset) = (q - q2, k - k2, offset - offset2);
        return match function {
            Binary::Sub => Some(Form::Linear { q, k, offset, sizes }),
            Binary::LessOrEqual => at_most(q, k, offset, 0, sizes),
            Binary::Less => at_most(q, k, offset, -1, sizes),
            Binary::Greater => each(at_most(q, k, offset, 0, sizes), |x| 1.0 - x),
            Binary::GreaterOrEqual => each(at_most(q, k, offset, -1, sizes), |x| 1.0 - x),
            _ => None,
        };
    }
    let truth = |test: fn(f64, f64) -> bool| move |a: f64, b: f64| f64::from(u8::from(test(a, b)));
    match function {
        Binary::Add => pairs(&a, &b, |a, b| a + b),
        Binary::Sub => pairs(&a, &b, |a, b| a - b),
        Binary::Mul => pairs(&a, &b, |a, b| a * b),
        Binary::And => pairs(&a, &b, truth(|a, b| a != 0.0 && b != 0.0)),
        Binary::Or => pairs(&a, &b, truth(|a, b| a != 0.0 || b != 0.0)),
        Binary::Equal => pairs(&a, &b, truth(|a, b| a == b)),
        Binary::Less => pairs(&a, &b, truth(|a, b| a < b)),
        Binary::Greater => pairs(&a, &b, truth(|a, b| a > b)),
        _ => None,
    }
}

/// Whether `query · q + key · k + offset <= limit`.
fn at_most(q: i64, k: i64, offset: Dim, limit: i64, sizes: Sizes) -> Option<Form> {
    let limit = Dim::from(limit);
    match (q, k) {
        // key - query <= limit - offset
        (-1, 1) => Some(Form::Triangle { bound: limit - offset, inside: 1.0, outside: 0.0, sizes }),
        // query - key <= limit - offset, which is key - query > offset - limit - 1
        (1, -1) => Some(Form::Triangle { bound: offset - limit - Dim::from(1), inside: 0.0, outside: 1.0, sizes }),
        _ => None,
    }
}

fn select(condition: Option<Form>, yes: Option<Form>, no: Option<Form>) -> Option<Form> {
    let (condition, yes, no) = (condition?, yes?, no?);
    let Form::Triangle { bound, inside, outside, sizes } = condition else { return None };
    // Each side is a number where the condition chooses it.
    let side = |form: &Form, within: bool| match form {
        Form::Number(x) => Some(*x),
        Form::Triangle { bound: own, inside, outside, sizes: counted } if *own == bound && *counted == sizes => {
            Some(if within { *inside } else { *outside })
        }
        _ => None,
    };
    let chosen = |truth: f64, within: bool| side(if truth != 0.0 { &yes } else { &no }, within);
    let (inside, outside) = (chosen(inside, true)?, chosen(outside, false)?);
    Some(Form::Triangle { bound, inside, outside, sizes })
}
