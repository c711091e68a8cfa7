use super::common::{evaluate_by_lowering, one};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Contract, Gather, Labels, Op, ReduceKind};
use crate::{Builder, OpError, ValueId};

/// Sums of products by Einstein's notation: implicit and explicit outputs, ellipses, diagonals, any
/// number of operands (ONNX Einsum, opset 12).
pub static OPERATOR: Operator = Operator::new("Einsum").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

/// An operand and the label of each of its axes.
struct Term {
    value: ValueId,
    labels: Labels,
}

/// Axes that an ellipsis stands for are labelled from here on, the last axis highest; letters are
/// labelled by their ASCII code.
const ELLIPSIS: u8 = 128;

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let equation = node.attributes.required("equation", node.attributes.text("equation")?)?;
    let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let operands: Vec<ValueId> = (0..node.inputs.len()).map(|i| node.input(i)).collect::<Result<_, _>>()?;
    let ranks: Option<Vec<usize>> = operands.iter().map(|&operand| b.rank(operand)).collect();
    let Some(ranks) = ranks else { return Ok(None) };

    let (labels, out) = parse(&equation, &ranks)?;
    let mut terms = Vec::with_capacity(operands.len());
    for (&value, labels) in operands.iter().zip(labels) {
        match diagonal(b, Term { value, labels })? {
            Some(term) => terms.push(term),
            None => return Ok(None),
        }
    }
    let mut rest = terms.into_iter();
    let Some(mut joined) = rest.next() else { return Err(OpError::invalid("Einsum needs an operand")) };
    while let Some(term) = rest.next() {
        let later: Labels = rest.as_slice().iter().flat_map(|term| term.labels.iter().copied()).collect();
        joined = contract(b, joined, term, &out, &later)?;
    }
    one(arrange(b, joined, &out)?)
}

/// The labels of each operand and of the output.
fn parse(equation: &str, ranks: &[usize]) -> Result<(Vec<Labels>, Labels), OpError> {
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (equation, None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != ranks.len() {
        let (terms, ranks) = (terms.len(), ranks.len());
        return Err(OpError::invalid(format!("equation '{equation}' has {terms} operands, the node {ranks}")));
    }
    let mut widest = 0;
    for (term, &rank) in terms.iter().zip(ranks) {
        if term.contains("...") {
            widest = widest.max(rank.saturating_sub(term.len() - 3));
        }
    }
    let labels: Vec<Labels> = terms
        .iter()
        .zip(ranks)
        .map(|(term, &rank)| {
            let covered = if term.contains("...") { rank.saturating_sub(term.len() - 3) } else { 0 };
            let labels = read_term(equation, term, covered, widest)?;
            match labels.len() == rank {
                true => Ok(labels),
                false => Err(OpError::invalid(format!(
                    "term '{term}' of equation '{equation}' meets an operand of rank {rank}"
                ))),
            }
        })
        .collect::<Result<_, _>>()?;
    let out = match right {
        Some(right) => read_term(equation, right, widest, widest)?,
        None => implicit_output(&labels),
    };
    for (position, label) in out.iter().enumerate() {
        if out[..position].contains(label) || !labels.iter().any(|term| term.contains(label)) {
            return Err(OpError::invalid(format!(
                "the output of equation '{equation}' repeats an index or names one that no operand has"
            )));
        }
    }
    Ok((labels, out))
}

/// One term; `covered` axes stand under its ellipsis, the last of `widest` in all.
fn read_term(equation: &str, term: &str, covered: usize, widest: usize) -> Result<Labels, OpError> {
    let wrong = || {
        OpError::invalid(format!(
            "equation '{equation}' holds '{term}', which is no list of letters with at most one ellipsis"
        ))
    };
    let (before, after) = term.split_once("...").map_or((term, None), |(before, after)| (before, Some(after)));
    let letters = before.chars().chain(after.unwrap_or("").chars());
    if !letters.clone().all(|c| c.is_ascii_alphabetic()) || widest > 64 {
        return Err(wrong());
    }
    let mut labels: Labels = before.bytes().collect();
    if let Some(after) = after {
        labels.extend((widest - covered..widest).map(|axis| ELLIPSIS + axis as u8));
        labels.extend(after.bytes());
    }
    Ok(labels)
}

/// The ellipsis, then every letter that stands once, in alphabetical order.
fn implicit_output(terms: &[Labels]) -> Labels {
    let mut all: Labels = terms.iter().flatten().copied().collect();
    all.sort_unstable();
    let once = |label: u8| all.iter().filter(|&&other| other == label).count() == 1;
    let mut ellipsis: Labels = all.iter().copied().filter(|&label| label >= ELLIPSIS).collect();
    ellipsis.dedup();
    ellipsis.extend(all.iter().copied().filter(|&label| label < ELLIPSIS && once(label)));
    ellipsis
}

/// A term without repeated labels: each repeated pair of axes is merged into one, of which the
/// elements on the diagonal are kept. `None` where a size is not known.
fn diagonal(b: &mut Builder, mut term: Term) -> Result<Option<Term>, OpError> {
    loop {
        let labels = &term.labels;
        let repeated =
            (0..labels.len()).find_map(|i| (i + 1..labels.len()).find(|&j| labels[j] == labels[i]).map(|j| (i, j)));
        let Some((first, second)) = repeated else { return Ok(Some(term)) };
        let size_of = |axis: usize| b.fact(term.value).shape.as_ref().and_then(|shape| shape[axis].known());
        let (Some(size), Some(other)) = (size_of(first), size_of(second)) else { return Ok(None) };
        if size != other {
            return Err(OpError::invalid(format!("a repeated index meets sizes {size} and {other}")));
        }
        let others = (0..labels.len()).filter(|&axis| axis != first && axis != second);
        let perm: Vec<usize> = others.chain([first, second]).collect();
        let mut merged: Vec<i64> = vec![0; labels.len() - 2];
        merged.push(size.saturating_mul(size));
        let moved = b.transpose(term.value, &perm)?;
        let flat = b.reshape(moved, &merged)?;
        let on_diagonal: Vec<i64> = (0..size).map(|i| i * (size + 1)).collect();
        let indices = b.ints(&on_diagonal);
        let axis = merged.len() - 1;
        let value = b.add(Op::Gather(Gather { axis }), &[flat, indices])?;
        term = Term { value, labels: perm[..perm.len() - 1].iter().map(|&axis| term.labels[axis]).collect() };
    }
}

/// The product of two terms, summed over what neither the output nor a later term needs.
fn contract(b: &mut Builder, x: Term, y: Term, out: &[u8], later: &[u8]) -> Result<Term, OpError> {
    let needed = |label: &u8| out.contains(label) || later.contains(label);
    let mut labels: Labels = x.labels.iter().copied().filter(needed).collect();
    labels.extend(y.labels.iter().copied().filter(|label| needed(label) && !x.labels.contains(label)));
    // The last product writes the output's own order.
    if later.is_empty() && labels.len() == out.len() {
        labels = out.into();
    }
    let op = Contract::new(x.labels, y.labels, labels.clone());
    Ok(Term { value: b.add(Op::Contract(op), &[x.value, y.value])?, labels })
}

/// One term summed over what the output lacks, in the output's order.
fn arrange(b: &mut Builder, term: Term, out: &[u8]) -> Result<ValueId, OpError> {
    let summed: Vec<usize> = (0..term.labels.len()).filter(|&axis| !out.contains(&term.labels[axis])).collect();
    let kept: Labels = term.labels.iter().copied().filter(|label| out.contains(label)).collect();
    let value = if summed.is_empty() { term.value } else { b.reduce(ReduceKind::Sum, term.value, summed, false)? };
    let place = |label: &u8| kept.iter().position(|k| k == label);
    let perm: Option<Vec<usize>> = out.iter().map(place).collect();
    let perm = perm.ok_or_else(|| OpError::invalid("an output index is in no operand"))?;
    b.transpose(value, &perm)
}

fn cases() -> Vec<Case> {
    let case = |name, equation: &str| {
        Case::new(name, &OPERATOR, 12).attribute("equation", Attribute::String(equation.as_bytes().to_vec()))
    };
    let a = || tensor(&[2, 2], &[1f32, 2.0, 3.0, 4.0]);
    let batch = || tensor(&[1, 2, 2], &[1f32, 0.0, 1.0, 1.0]);
    vec![
        case("implicit output", "ij, jk").input(a()).input(a()).output(tensor(&[2, 2], &[7f32, 10.0, 15.0, 22.0])),
        case("transposition", "ij->ji").input(a()).output(tensor(&[2, 2], &[1f32, 3.0, 2.0, 4.0])),
        case("trace", "ii").input(a()).output(tensor(&[], &[5f32])),
        case("diagonal under an ellipsis", "...ii->...i").input(a()).output(tensor(&[2], &[1f32, 4.0])),
        case("ellipsis", "...ij,jk->...ik")
            .input(batch())
            .input(a())
            .output(tensor(&[1, 2, 2], &[1f32, 2.0, 4.0, 6.0])),
        case("three operands", "i,ij,j->")
            .input(tensor(&[2], &[1f32, 2.0]))
            .input(a())
            .input(tensor(&[2], &[1f32, -1.0]))
            .output(tensor(&[], &[-3f32])),
        case("sum of an axis of one operand", "ij,j->i")
            .input(a())
            .input(tensor(&[2], &[1f32, 1.0]))
            .output(tensor(&[2], &[3f32, 7.0])),
    ]
}
