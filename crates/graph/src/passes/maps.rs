//! Pointwise work: numbers into programs, programs into one another, formulas into functions.

use super::edit::{done, is_output, readers, refuse, remove};
use super::{Pass, PassOptions, PassReport};
use crate::ops::{Binary, Expr, Instruction, Map, Op, Reg, Scalar, Unary};
use crate::{Graph, ValueId};
use halimede_tensor::{DType, Tensor};
use smallvec::SmallVec;

/// Writes constants of one element into the programs that read them.
pub(super) const SCALARS: Pass = Pass { name: "scalars into maps", run: scalars };
/// Grafts a program onto the one program that reads its result.
pub(super) const FUSION: Pass = Pass { name: "pointwise fusion", run: fusion };
/// Finds GELU (erf, tanh, quick), SiLU, hard-swish and sigmoid in what exporters write out.
pub(super) const ACTIVATIONS: Pass = Pass { name: "activations", run: activations };

/// Longer programs are not joined.
const MAX_INSTRUCTIONS: usize = 64;
/// Programs that would read more are not joined.
const MAX_INPUTS: usize = 8;

fn scalars(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let Op::Map(map) = &node.op else { continue };
        let output_rank = graph.fact(node.outputs[0]).rank();
        let number = |input: usize| {
            let tensor = graph.constant(node.inputs[input]?)?;
            // A constant of one element but more axes than the others widens the result.
            let others = (0..node.inputs.len()).filter(|&other| other != input);
            let widest = others.filter_map(|other| graph.fact(node.inputs[other]?).rank()).max();
            (tensor.len() == 1 && widest.is_some() && widest == output_rank && tensor.rank() <= widest?)
                .then(|| scalar(tensor))?
        };
        let numbers: Vec<Option<Scalar>> = (0..node.inputs.len()).map(number).collect();
        // At least one input must stay to say the shape.
        if numbers.iter().all(Option::is_none) || numbers.iter().all(Option::is_some) {
            continue;
        }
        let mut map = map.clone();
        let kept: Vec<usize> = (0..numbers.len()).filter(|&input| numbers[input].is_none()).collect();
        for instruction in &mut map.instructions {
            if let Instruction::Input(input) = *instruction {
                *instruction = match numbers[input] {
                    Some(number) => Instruction::Constant(number),
                    None => Instruction::Input(kept.partition_point(|&k| k < input)),
                };
            }
        }
        let inputs = kept.iter().map(|&input| node.inputs[input]).collect();
        let node = &mut graph.nodes[index];
        (node.op, node.inputs) = (Op::Map(map), inputs);
        report.changed += 1;
    }
}

fn scalar(tensor: &Tensor) -> Option<Scalar> {
    let dtype = tensor.dtype();
    match dtype {
        DType::Bool => Some(Scalar::Bool(tensor.to_i64s().ok()?[0] != 0)),
        _ if dtype.is_integer() => Some(Scalar::Int(tensor.to_i64s().ok()?[0], dtype)),
        _ if dtype.is_float() => Some(Scalar::Float(tensor.to_f64s().ok()?[0], dtype)),
        _ => None,
    }
}

fn fusion(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    let mut gone = vec![false; graph.nodes.len()];
    let mut readers = readers(graph);
    let producers = graph.producers();
    for index in 0..graph.nodes.len() {
        // Again and again, since what was grafted may itself read a program.
        while let Some((producer, merged, inputs)) = candidate(graph, index, &producers, &readers, &gone, report) {
            for input in graph.nodes[producer].inputs.iter().chain(&graph.nodes[index].inputs).flatten() {
                readers[input.index()] -= 1;
            }
            let node = &mut graph.nodes[index];
            (node.op, node.inputs) = (Op::Map(merged), inputs);
            node.inputs.iter().flatten().for_each(|input| readers[input.index()] += 1);
            gone[producer] = true;
            report.changed += 1;
        }
    }
    remove(graph, &gone);
}

type Merged = (usize, Map, SmallVec<[Option<ValueId>; 4]>);

/// A program that only the one at `index` reads, and both as one.
fn candidate(
    graph: &Graph,
    index: usize,
    producers: &[Option<usize>],
    readers: &[usize],
    gone: &[bool],
    report: &mut PassReport,
) -> Option<Merged> {
    let node = &graph.nodes[index];
    let Op::Map(reader) = &node.op else { return None };
    for &value in node.inputs.iter().flatten() {
        let Some(producer) = producers[value.index()].filter(|&producer| !gone[producer]) else { continue };
        let Op::Map(inner) = &graph.nodes[producer].op else { continue };
        let uses = node.inputs.iter().flatten().filter(|&&input| input == value).count();
        if readers[value.index()] != uses || is_output(graph, value) {
            continue;
        }
        let shape = |value: ValueId| graph.fact(value).shape.as_ref();
        if shape(value).is_none() || shape(value) != shape(node.outputs[0]) {
            refuse(
                graph,
                &graph.nodes[producer],
                "its result broadcasts, and would be computed again and again",
                report,
            );
            continue;
        }
        let (map, inputs) = merge(inner, &graph.nodes[producer].inputs, reader, &node.inputs, value);
        if map.instructions.len() > MAX_INSTRUCTIONS || inputs.len() > MAX_INPUTS {
            refuse(graph, &graph.nodes[producer], "the joined program would be too long", report);
            continue;
        }
        return Some((producer, map, inputs));
    }
    None
}

/// `reader` with `inner` in place of the input `value`.
fn merge(
    inner: &Map,
    inner_inputs: &[Option<ValueId>],
    reader: &Map,
    reader_inputs: &[Option<ValueId>],
    value: ValueId,
) -> (Map, SmallVec<[Option<ValueId>; 4]>) {
    let mut inputs: SmallVec<[Option<ValueId>; 4]> = SmallVec::new();
    let mut map = Map::default();
    let mut place = |input: Option<ValueId>| {
        inputs.iter().position(|&known| known == input).unwrap_or_else(|| {
            inputs.push(input);
            inputs.len() - 1
        })
    };
    let result = append(&mut map, inner, &mut |_, input| Instruction::Input(place(inner_inputs[input])), None);
    append(
        &mut map,
        reader,
        &mut |_, input| Instruction::Input(place(reader_inputs[input])),
        Some((&|input| reader_inputs[input] == Some(value), result)),
    );
    (map, inputs)
}

/// Appends a program to another and gives the register of its result. Equal instructions are one.
/// `known` tells inputs that are a register already.
pub(super) fn append(
    map: &mut Map,
    program: &Map,
    input_at: &mut dyn FnMut(&mut Map, usize) -> Instruction,
    known: Option<(&dyn Fn(usize) -> bool, Reg)>,
) -> Reg {
    let mut registers: Vec<Reg> = Vec::with_capacity(program.instructions.len());
    for instruction in &program.instructions {
        let moved = match *instruction {
            Instruction::Input(input) => match known {
                Some((is_known, register)) if is_known(input) => {
                    registers.push(register);
                    continue;
                }
                _ => input_at(map, input),
            },
            Instruction::Constant(scalar) => Instruction::Constant(scalar),
            Instruction::Unary(function, a) => Instruction::Unary(function, registers[a]),
            Instruction::Binary(function, a, b) => Instruction::Binary(function, registers[a], registers[b]),
            Instruction::Select(c, a, b) => Instruction::Select(registers[c], registers[a], registers[b]),
            Instruction::Cast(to, a) => Instruction::Cast(to, registers[a]),
        };
        let register = map.instructions.iter().position(|earlier| *earlier == moved);
        registers.push(register.unwrap_or_else(|| map.push(moved)));
    }
    let last = registers.last().copied().unwrap_or(0);
    // The last instruction is the result of a whole program.
    if last + 1 != map.instructions.len() {
        let again = map.instructions[last].clone();
        return map.push(again);
    }
    last
}

fn activations(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    for index in 0..graph.nodes.len() {
        let float = graph.fact(graph.nodes[index].outputs[0]).dtype.is_some_and(DType::is_float);
        let Op::Map(map) = &graph.nodes[index].op else { continue };
        // What is quantised behind them are floats, too.
        if !float && !map.quantizes() {
            continue;
        }
        let (mut map, mut functions) = (map.clone(), Vec::new());
        for root in (1..map.instructions.len()).rev() {
            let found = (0..root).find_map(|base| recognise(&map, root, base).map(|function| (base, function)));
            if let Some((base, function)) = found {
                map.instructions[root] = Instruction::Unary(function, base);
                functions.push(function);
            }
        }
        for function in functions {
            done(graph, &graph.nodes[index], format!("{function:?} as one function"), report);
        }
        graph.nodes[index].op = Op::Map(live(&map));
    }
}

/// Where all these functions are constants, or lines, but for what is lost in rounding: a bound, or a small number that keeps a
/// logarithm finite, shows there.
const FAR: [f64; 8] = [-1e4, -100.0, -40.0, -20.0, 20.0, 40.0, 100.0, 1e4];

/// The function that the register `root` is of the register `base` and of numbers alone.
///
/// Exporters write one formula in many ways (`x / √2` or `x · 0.7071`, `x³` as a power or as products),
/// so the program is compared with the formula by its values; the program must contain the formula's
/// own transcendental function.
fn recognise(map: &Map, root: Reg, base: Reg) -> Option<Unary> {
    let x = || Expr::input(0);
    let part = subprogram(map, root, base)?;
    // Most pairs of registers hold nothing that a formula is made of.
    let marker = part.instructions.iter().find_map(|instruction| match *instruction {
        Instruction::Unary(f @ (Unary::Erf | Unary::Tanh | Unary::Sigmoid | Unary::Exp), _) => Some(Some(f)),
        _ => None,
    });
    let clipped = |f: Binary| part.instructions.iter().any(|i| matches!(*i, Instruction::Binary(g, ..) if f == g));
    let formulas: Vec<(Unary, Expr)> = match marker {
        Some(Some(Unary::Erf)) => {
            let erf = (x() * std::f64::consts::FRAC_1_SQRT_2).apply(Unary::Erf);
            vec![(Unary::GeluErf, x() * 0.5 * (erf + 1.0))]
        }
        Some(Some(Unary::Tanh)) => {
            let cube = x() * x() * x();
            let tanh = ((x() + cube * 0.044715) * (2.0 / std::f64::consts::PI).sqrt()).apply(Unary::Tanh);
            vec![(Unary::GeluTanh, x() * 0.5 * (tanh + 1.0))]
        }
        Some(_) => vec![
            (Unary::Silu, x() * x().apply(Unary::Sigmoid)),
            (Unary::QuickGelu, x() * (x() * 1.702).apply(Unary::Sigmoid)),
            (Unary::Sigmoid, x().apply(Unary::Sigmoid)),
        ],
        None if clipped(Binary::Min) && clipped(Binary::Max) => {
            vec![(Unary::HardSwish, x() * (x() * (1.0 / 6.0) + 0.5).min(1.0).max(0.0))]
        }
        None => return None,
    };
    if matches!(map.instructions[root], Instruction::Unary(f, _) if formulas.iter().any(|(known, _)| *known == f)) {
        return None;
    }
    let near = (-24..=24).map(|step| f64::from(step) * 0.375 + 0.01);
    let points: Vec<f64> = FAR.into_iter().chain(near).collect();
    let x = Tensor::from_slice(&[points.len()], &points).ok()?;
    let values = |map: &Map| {
        use crate::ops::TensorOp;
        map.evaluate(&[Some(&x)]).ok()?.remove(0).to_f64s().ok()
    };
    let close = |(at, (a, b)): (usize, (&f64, &f64))| {
        let bound = if at < FAR.len() { 5e-8 * b.abs() + 1e-15 } else { 1e-5 * (1.0 + b.abs()).min(2.0) };
        (a - b).abs() <= bound
    };
    let actual = values(&part)?;
    formulas.into_iter().find_map(|(function, formula)| {
        let expected = values(&formula.map(DType::F64))?;
        actual.iter().zip(&expected).enumerate().all(close).then_some(function)
    })
}

/// The instructions between two registers as a program of one f64 input; `None` where they read
/// anything else but numbers.
fn subprogram(map: &Map, root: Reg, base: Reg) -> Option<Map> {
    let mut needed = vec![false; root + 1];
    needed[root] = true;
    for register in (0..=root).rev().filter(|&register| register != base) {
        if needed[register] {
            operands(&map.instructions[register]).into_iter().for_each(|operand| needed[operand] = true);
        }
    }
    if !needed[base] {
        return None;
    }
    let mut registers: Vec<Reg> = vec![usize::MAX; root + 1];
    let mut part = Map::default();
    for register in (0..=root).filter(|&register| needed[register]) {
        let moved = match map.instructions[register] {
            _ if register == base => Instruction::Input(0),
            Instruction::Constant(Scalar::Float(value, _)) => Instruction::Constant(Scalar::Float(value, DType::F64)),
            Instruction::Unary(function, a) => Instruction::Unary(function, registers[a]),
            Instruction::Binary(function, a, b) if !is_comparison(function) => {
                Instruction::Binary(function, registers[a], registers[b])
            }
            _ => return None,
        };
        registers[register] = part.push(moved);
    }
    Some(part)
}

fn is_comparison(function: Binary) -> bool {
    use Binary::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual};
    matches!(function, Equal | Less | LessOrEqual | Greater | GreaterOrEqual)
}

/// The registers that an instruction reads.
pub(super) fn operands(instruction: &Instruction) -> SmallVec<[Reg; 3]> {
    match *instruction {
        Instruction::Input(_) | Instruction::Constant(_) => SmallVec::new(),
        Instruction::Unary(_, a) | Instruction::Cast(_, a) => SmallVec::from_slice(&[a]),
        Instruction::Binary(_, a, b) => SmallVec::from_slice(&[a, b]),
        Instruction::Select(c, a, b) => SmallVec::from_slice(&[c, a, b]),
    }
}

/// The program without the instructions that nothing reads; inputs stay, since they say the shape.
fn live(map: &Map) -> Map {
    let count = map.instructions.len();
    let mut needed = vec![false; count];
    needed[count - 1] = true;
    for register in (0..count).rev() {
        if matches!(map.instructions[register], Instruction::Input(_)) {
            needed[register] = true;
        }
        if needed[register] {
            operands(&map.instructions[register]).into_iter().for_each(|operand| needed[operand] = true);
        }
    }
    let mut registers = vec![0; count];
    let mut out = Map::default();
    for register in (0..count).filter(|&register| needed[register]) {
        let moved = match map.instructions[register] {
            Instruction::Unary(function, a) => Instruction::Unary(function, registers[a]),
            Instruction::Binary(function, a, b) => Instruction::Binary(function, registers[a], registers[b]),
            Instruction::Select(c, a, b) => Instruction::Select(registers[c], registers[a], registers[b]),
            Instruction::Cast(to, a) => Instruction::Cast(to, registers[a]),
            ref leaf => leaf.clone(),
        };
        registers[register] = out.push(moved);
    }
    out
}
