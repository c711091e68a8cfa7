use super::edit::{done, readers, refuse};
use super::{Pass, PassOptions, PassReport};
use crate::ops::{Binary, Instruction, Norm, NormKind, Op, ReduceKind, Scalar, Softmax, Unary};
use crate::{Graph, ValueId};
use halimede_tensor::DType;

/// Finds the layer and mean-square normalisations that older exporters write out:
///
/// ```text
/// d = x - mean(x)    y = d / sqrt(mean(d²) + ε)    LayerNorm
///                    y = x / sqrt(mean(x²) + ε)    RMSNorm
/// ```
///
/// Scale and bias of its elements that follow become its inputs, other work the epilogue.
pub(super) const PASS: Pass = Pass { name: "normalisations", run };

/// Finds the softmax that exporters write out: `e / sum(e)` with `e = exp(x - max(x))`.
pub(super) const SOFTMAX: Pass = Pass { name: "softmax", run: softmax };

fn softmax(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    let producers = graph.producers();
    for index in 0..graph.nodes.len() {
        let view = View { graph, producers: &producers };
        let Some((x, axes)) = view.softmax(graph.nodes[index].outputs[0]) else { continue };
        let [axis] = axes[..] else {
            refuse(graph, &graph.nodes[index], "a softmax over more than one axis", report);
            continue;
        };
        let node = &mut graph.nodes[index];
        (node.op, node.inputs) = (Op::Softmax(Softmax { axis, log: false }), smallvec::smallvec![Some(x)]);
        done(graph, &graph.nodes[index], "a softmax as one operation", report);
    }
}

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    let producers = graph.producers();
    for index in 0..graph.nodes.len() {
        let view = View { graph, producers: &producers };
        let output = graph.nodes[index].outputs[0];
        let Some((d, epsilon, axes)) = view.quotient(output) else { continue };
        let centred = view.centred(d).filter(|(_, over)| *over == axes).map(|(x, _)| x);
        let rank = graph.fact(d).rank();
        // Statistics run over an axis and all after it.
        let Some(axis) = axes.first().copied().filter(|&first| rank.is_some_and(|r| axes.iter().copied().eq(first..r)))
        else {
            refuse(graph, &graph.nodes[index], "a normalisation over axes that are not the last ones", report);
            continue;
        };
        let (x, kind) = match centred {
            Some(x) => (x, NormKind::Layer { axis }),
            None => (d, NormKind::Rms { axis }),
        };
        let what = if centred.is_some() { "LayerNorm as one operation" } else { "RMSNorm as one operation" };
        let node = &mut graph.nodes[index];
        node.op = Op::Norm(Norm { kind, epsilon, epilogue: None, quantize: None });
        node.inputs = smallvec::smallvec![Some(x)];
        done(graph, &graph.nodes[index], what, report);
    }
    affine(graph, report);
}

/// Constants that the elements of a normalised row are multiplied by, and then those that are added to them, become inputs of the
/// normalisation, as they are of the operators of newer models.
fn affine(graph: &mut Graph, report: &mut PassReport) {
    // What becomes an input stands where it stood: nodes keep their outputs.
    let (producers, readers) = (graph.producers(), readers(graph));
    for index in 0..graph.nodes.len() {
        let view = View { graph, producers: &producers };
        let Some((function, a, b)) = view.binary(graph.nodes[index].outputs[0]) else { continue };
        let (place, what) = match function {
            Binary::Mul => (1, "the scale of a normalisation"),
            Binary::Add => (2, "the bias of a normalisation"),
            _ => continue,
        };
        let found = view.row_of_norm(a, b, place, &readers).or_else(|| view.row_of_norm(b, a, place, &readers));
        let Some((norm, row)) = found else { continue };
        let (op, mut inputs) = (graph.nodes[norm].op.clone(), graph.nodes[norm].inputs.clone());
        inputs.push(Some(row));
        let node = &mut graph.nodes[index];
        (node.op, node.inputs) = (op, inputs);
        done(graph, &graph.nodes[index], what, report);
    }
}

/// What an operand of one instruction is.
#[derive(Clone, Copy, PartialEq)]
enum Operand {
    Value(ValueId),
    Number(f64),
}

struct View<'g> {
    graph: &'g Graph,
    producers: &'g [Option<usize>],
}

impl View<'_> {
    /// `d`, `ε` and the axes of `d / sqrt(mean(d²) + ε)`, in any of the ways to write the quotient.
    fn quotient(&self, y: ValueId) -> Option<(ValueId, f32, Vec<usize>)> {
        let (d, root) = match self.binary(y)? {
            (Binary::Div, Operand::Value(d), Operand::Value(root)) => (d, self.unary(root, Unary::Sqrt)?),
            (Binary::Mul, Operand::Value(a), Operand::Value(b)) => match (self.inverse_root(b), self.inverse_root(a)) {
                (Some(root), _) => (a, root),
                (None, Some(root)) => (b, root),
                _ => return None,
            },
            _ => return None,
        };
        let (square, epsilon) = match self.binary(root)? {
            (Binary::Add, Operand::Value(mean), Operand::Number(epsilon)) => (mean, epsilon),
            (Binary::Add, Operand::Number(epsilon), Operand::Value(mean)) => (mean, epsilon),
            _ => return None,
        };
        let (square, axes) = self.mean(square)?;
        let squared = match self.binary(square)? {
            (Binary::Pow, Operand::Value(v), Operand::Number(2.0)) => v,
            (Binary::Mul, Operand::Value(a), Operand::Value(b)) if a == b => a,
            _ => return None,
        };
        (squared == d).then_some((d, epsilon as f32, axes))
    }

    /// The normalisation that gives `result` for one reader, has as many inputs and nothing that follows, and the constant `row` if it
    /// has an element for each of a normalised row.
    fn row_of_norm(&self, result: Operand, row: Operand, inputs: usize, readers: &[usize]) -> Option<(usize, ValueId)> {
        let (Operand::Value(result), Operand::Value(row)) = (result, row) else { return None };
        let index = self.producers[result.index()]?;
        let node = &self.graph.nodes[index];
        let Op::Norm(Norm {
            kind: NormKind::Layer { axis } | NormKind::Rms { axis },
            epilogue: None,
            quantize: None,
            ..
        }) = node.op
        else {
            return None;
        };
        let constant = self.graph.constant(row).filter(|constant| constant.dtype() == DType::F32)?;
        let shape = self.graph.fact(result).shape.as_ref()?;
        let normalised: Option<Vec<usize>> =
            shape[axis..].iter().map(|dim| usize::try_from(dim.known()?).ok()).collect();
        // Ones in front broadcast, as far as the result goes.
        let (ones, sizes) =
            constant.shape().split_at_checked(constant.shape().len().checked_sub(shape.len() - axis)?)?;
        let fits = ones.len() <= axis && ones.iter().all(|&one| one == 1) && *sizes == *normalised?;
        (fits && node.inputs.len() == inputs && readers[result.index()] == 1).then_some((index, row))
    }

    /// `v` of `1 / sqrt(v)`.
    fn inverse_root(&self, value: ValueId) -> Option<ValueId> {
        if let Some(root) = self.unary(value, Unary::Reciprocal) {
            return self.unary(root, Unary::Sqrt);
        }
        match self.binary(value)? {
            (Binary::Div, Operand::Number(1.0), Operand::Value(root)) => self.unary(root, Unary::Sqrt),
            (Binary::Pow, Operand::Value(v), Operand::Number(-0.5)) => Some(v),
            _ => None,
        }
    }

    /// `x` and the axes of `x - mean(x)`.
    fn centred(&self, d: ValueId) -> Option<(ValueId, Vec<usize>)> {
        let (Binary::Sub, Operand::Value(x), Operand::Value(mean)) = self.binary(d)? else { return None };
        self.mean(mean).filter(|(of, _)| *of == x)
    }

    /// `x` and the axes of a softmax. Without the maximum it could overflow where softmax does not, and
    /// stays as it is.
    fn softmax(&self, y: ValueId) -> Option<(ValueId, Vec<usize>)> {
        let (Binary::Div, Operand::Value(e), Operand::Value(sum)) = self.binary(y)? else { return None };
        let (summed, axes) = self.reduced(sum, ReduceKind::Sum)?;
        let shifted = self.unary(e, Unary::Exp).filter(|_| summed == e)?;
        let (Binary::Sub, Operand::Value(x), Operand::Value(max)) = self.binary(shifted)? else { return None };
        (self.reduced(max, ReduceKind::Max)? == (x, axes.clone())).then_some((x, axes))
    }

    /// `x` and the axes of a mean that keeps its axes.
    fn mean(&self, value: ValueId) -> Option<(ValueId, Vec<usize>)> {
        self.reduced(value, ReduceKind::Mean)
    }

    /// `x` and the axes of a reduction that keeps its axes.
    fn reduced(&self, value: ValueId, kind: ReduceKind) -> Option<(ValueId, Vec<usize>)> {
        let node = &self.graph.nodes[self.producers[value.index()]?];
        match &node.op {
            Op::Reduce(op) if op.kind == kind && op.keep_dims && !op.axes.is_empty() => {
                Some((node.inputs[0]?, op.axes.to_vec()))
            }
            _ => None,
        }
    }

    /// The operand of a program that is one function of one input.
    fn unary(&self, value: ValueId, function: Unary) -> Option<ValueId> {
        let node = &self.graph.nodes[self.producers[value.index()]?];
        let Op::Map(map) = &node.op else { return None };
        match map.instructions[..] {
            [Instruction::Input(input), Instruction::Unary(f, 0)] if f == function => node.inputs[input],
            _ => None,
        }
    }

    /// A program that is one function of two inputs or numbers.
    fn binary(&self, value: ValueId) -> Option<(Binary, Operand, Operand)> {
        let node = &self.graph.nodes[self.producers[value.index()]?];
        let Op::Map(map) = &node.op else { return None };
        let (last, before) = map.instructions.split_last()?;
        let Instruction::Binary(function, a, b) = *last else { return None };
        let operand = |register: usize| match before.get(register)? {
            Instruction::Input(input) => node.inputs[*input].map(Operand::Value),
            Instruction::Constant(Scalar::Float(number, _)) => Some(Operand::Number(*number)),
            _ => None,
        };
        Some((function, operand(a)?, operand(b)?)).filter(|_| before.len() <= 2)
    }
}
