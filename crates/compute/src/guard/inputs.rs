//! Inputs for a model that nobody gave any.

use crate::TensorDesc;
use halimede_graph::{Fact, Graph, Op, ValueId};
use halimede_tensor::{DType, Shape, Tensor, TensorError, Value};
use std::collections::HashSet;

/// Sizes that unknown dimensions are tried with: small ones first, then an image's.
const SIZES: [usize; 3] = [16, 64, 224];

/// Where made-up floats lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Floats {
    /// Around 0, as what was normalised.
    Normal,
    /// Above 0, up to 1: numbers that have a logarithm and a root, such as sizes and probabilities.
    Positive,
}

/// Where the generator of numbers begins.
const FIRST: u64 = 0x2545_f491_4f6c_dd1d;
/// The same for other numbers.
const SECOND: u64 = 0x9e37_79b9_7f4a_7c15;

/// Inputs and what a model answers to them.
type Pair = (Vec<Value>, Vec<Value>);

/// Inputs that a model has answers to, with those; the reason where it answers none of what is tried. Where it reads floats they are
/// several: ranges and differences of a single one say little of others.
pub(super) fn made_up(
    graph: &Graph,
    answer: &dyn Fn(&[Value]) -> Result<Vec<Value>, String>,
) -> Result<Vec<Pair>, String> {
    let mut pairs = vec![answered(graph, Floats::Normal, FIRST, answer)?];
    if graph.inputs.iter().any(|&input| graph.fact(input).dtype.is_none_or(DType::is_float)) {
        let others = [(Floats::Positive, FIRST), (Floats::Normal, SECOND)];
        pairs.extend(others.iter().filter_map(|&(floats, state)| answered(graph, floats, state, answer).ok()));
    }
    Ok(pairs)
}

/// Inputs of a size that a model answers to, with its answers.
fn answered(
    graph: &Graph,
    floats: Floats,
    state: u64,
    answer: &dyn Fn(&[Value]) -> Result<Vec<Value>, String>,
) -> Result<Pair, String> {
    let mut reason = String::new();
    for size in SIZES {
        let facts = graph.inputs.iter().map(|&input| graph.fact(input));
        let tried = of_facts_in(facts, size, floats, state).map_err(|error| error.to_string());
        match tried.and_then(|inputs| answer(&inputs).map(|outputs| (inputs, outputs))) {
            Ok(pair) => return Ok(pair),
            Err(error) => reason = error,
        }
    }
    Err(reason)
}

/// Names of the products that multiply inputs of floats as they come, at most moved.
pub(super) fn products_of_inputs(graph: &Graph) -> Vec<String> {
    let is_float = |&&input: &&ValueId| graph.fact(input).dtype.is_none_or(DType::is_float);
    let mut raw: HashSet<ValueId> = graph.inputs.iter().filter(is_float).copied().collect();
    let mut names = Vec::new();
    for node in &graph.nodes {
        let reads = |count: usize| node.inputs.iter().take(count).flatten().any(|value| raw.contains(value));
        match node.op {
            Op::Contract(_) | Op::Conv(_) if reads(2) => names.push(node.name.clone()),
            Op::Attention(_) if reads(3) => names.push(node.name.clone()),
            Op::Reshape(_) | Op::Transpose(_) | Op::Cast(_) | Op::Slice(_) | Op::Gather(_) | Op::Pad(_) if reads(1) => {
                raw.extend(&node.outputs);
            }
            Op::Concat(_) if reads(usize::MAX) => raw.extend(&node.outputs),
            _ => {}
        }
    }
    names
}

/// Made-up inputs, of which everything is known.
///
/// # Errors
/// There is no memory for them, or no way to make one up.
pub fn made_up_inputs(descs: &[TensorDesc]) -> Result<Vec<Value>, TensorError> {
    let facts = descs.iter().map(|desc| Fact::tensor(desc.dtype, desc.shape.iter().map(|&size| size.into())));
    of_facts(facts.collect::<Vec<_>>().iter(), 1)
}

/// The same for facts: floats around 0, integers 0 and 1 (which every table of indices has), true. Unknown dimensions are
/// `size`, the first of a shape 1.
pub(crate) fn of_facts<'f>(facts: impl Iterator<Item = &'f Fact>, size: usize) -> Result<Vec<Value>, TensorError> {
    of_facts_in(facts, size, Floats::Normal, FIRST)
}

fn of_facts_in<'f>(
    facts: impl Iterator<Item = &'f Fact>,
    size: usize,
    floats: Floats,
    mut state: u64,
) -> Result<Vec<Value>, TensorError> {
    facts.map(|fact| Ok(Value::Tensor(tensor(fact, size, floats, &mut state)?))).collect()
}

fn tensor(fact: &Fact, size: usize, floats: Floats, state: &mut u64) -> Result<Tensor, TensorError> {
    let dims = fact.shape.iter().flatten().enumerate();
    let shape: Shape = dims.map(|(axis, dim)| dim.size().unwrap_or(if axis == 0 { 1 } else { size })).collect();
    let count = halimede_tensor::element_count(&shape).unwrap_or(0);
    let dtype = fact.dtype.unwrap_or(DType::F32);
    // A linear congruential generator (Knuth, The Art of Computer Programming, volume 2, 3.3.4).
    let mut uniform = || {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 11) as f64 / (1u64 << 53) as f64
    };
    if dtype.is_float() {
        let mut number = || match floats {
            // The sum of twelve has the deviation 1.
            Floats::Normal => (0..12).map(|_| uniform()).sum::<f64>() - 6.0,
            Floats::Positive => 1.0 - uniform(),
        };
        let numbers: Vec<f64> = (0..count).map(|_| number()).collect();
        return Tensor::from_f64s(dtype, &shape, &numbers);
    }
    match dtype {
        DType::Bool => Tensor::from_bools(&shape, &vec![true; count]),
        _ => {
            let numbers: Vec<i64> = (0..count).map(|_| i64::from(uniform() < 0.5)).collect();
            Tensor::from_i64s(dtype, &shape, &numbers)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_inputs_fit_what_is_known() {
        let fact =
            |dtype| Fact::tensor(dtype, [halimede_graph::Dim::symbol("n"), 3.into(), halimede_graph::Dim::symbol("m")]);
        let mut state = 1;
        for dtype in [DType::F32, DType::F16, DType::I64, DType::Bool, DType::U8] {
            let tensor = tensor(&fact(dtype), 5, Floats::Normal, &mut state).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &[1, 3, 5][..]));
        }
        let numbers =
            |floats, state: &mut u64| tensor(&fact(DType::F32), 500, floats, state).unwrap().to_f64s().unwrap();
        assert!(numbers(Floats::Positive, &mut state).iter().all(|x| *x > 0.0 && *x <= 1.0));
        let numbers = numbers(Floats::Normal, &mut state);
        let deviation = (numbers.iter().map(|x| x * x).sum::<f64>() / numbers.len() as f64).sqrt();
        assert!((0.9..1.1).contains(&deviation), "{deviation}");
    }
}
