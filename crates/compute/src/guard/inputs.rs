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
    /// Around 0, and near their neighbours in images, as photographs are; where there is no image, [`Floats::Normal`].
    Smooth,
}

/// Where the generator of numbers begins.
const FIRST: u64 = 0x2545_f491_4f6c_dd1d;
/// The same for other numbers.
const SECOND: u64 = 0x9e37_79b9_7f4a_7c15;
const THIRD: u64 = 0xd1b5_4a32_d192_ed03;

/// Inputs and what a model answers to them.
type Pair = (Vec<Value>, Vec<Value>);

/// Inputs that a model has answers to, with those; the reason where it answers none of what is tried. Where it reads floats they are
/// several: ranges and differences of a single one say little of others, and those of noise little of images.
pub(super) fn made_up(
    graph: &Graph,
    answer: &dyn Fn(&[Value]) -> Result<Vec<Value>, String>,
) -> Result<Vec<Pair>, String> {
    let mut pairs = vec![answered(graph, Floats::Normal, FIRST, answer)?];
    if graph.inputs.iter().any(|&input| graph.fact(input).dtype.is_none_or(DType::is_float)) {
        let others = [(Floats::Positive, FIRST), (Floats::Normal, SECOND)];
        let images = graph.inputs.iter().any(|&input| is_image(graph.fact(input))).then_some((Floats::Smooth, THIRD));
        let others = others.into_iter().chain(images);
        pairs.extend(others.filter_map(|(floats, state)| answered(graph, floats, state, answer).ok()));
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
    if let Some([height, width]) = image_axes(&shape).filter(|_| floats == Floats::Smooth && dtype.is_float()) {
        return Tensor::from_f64s(dtype, &shape, &smooth(&shape, [height, width], &mut uniform));
    }
    if dtype.is_float() {
        let mut number = || match floats {
            // The sum of twelve has the deviation 1.
            Floats::Normal | Floats::Smooth => (0..12).map(|_| uniform()).sum::<f64>() - 6.0,
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

/// Sides from which on two axes are those of an image.
const SIDE_LEAST: usize = 8;
/// Channels, at most, that lie behind the pixels of an image.
const CHANNELS_MOST: usize = 4;
/// Waves of an image, and how often the fastest of them goes up and down in it.
const WAVES: usize = 6;
const FASTEST: f64 = 6.0;

/// Whether a value may be images of floats.
fn is_image(fact: &Fact) -> bool {
    fact.dtype.is_none_or(DType::is_float) && fact.shape.as_ref().is_some_and(|shape| shape.len() >= 4)
}

/// The axes of rows and columns of images of a batch, if it is one: the last two, or those before few channels.
fn image_axes(shape: &[usize]) -> Option<[usize; 2]> {
    let last = shape.len().checked_sub(1).filter(|&last| last >= 3)?;
    let axes = if shape[last] <= CHANNELS_MOST { [last - 2, last - 1] } else { [last - 1, last] };
    axes.iter().all(|&axis| shape[axis] >= SIDE_LEAST).then_some(axes)
}

/// Images of a few slow waves in each channel, whose numbers have the mean 0 and the deviation 1.
fn smooth(shape: &[usize], axes: [usize; 2], uniform: &mut dyn FnMut() -> f64) -> Vec<f64> {
    let count: usize = shape.iter().product();
    let strides = halimede_tensor::strides(shape);
    let [height, width] = axes.map(|axis| shape[axis]);
    let mut numbers = vec![0.0; count];
    // The first pixel of each channel of each image.
    let is_first = |at: &usize| axes.iter().all(|&axis| (at / strides[axis]).is_multiple_of(shape[axis]));
    for first in (0..count).filter(is_first) {
        for _ in 0..WAVES {
            let [strength, down, across, phase] = [(); 4].map(|()| uniform());
            // sin(a + b) = sin a · cos b + cos a · sin b, of a row and of a column.
            let angles = |size: usize, often: f64, phase: f64| -> Vec<(f64, f64)> {
                let turns = |at: usize| FASTEST * often * at as f64 / size as f64 + phase;
                (0..size).map(|at| (std::f64::consts::TAU * turns(at)).sin_cos()).collect()
            };
            let columns = angles(width, across, 0.0);
            for (y, row) in angles(height, down, phase).into_iter().enumerate() {
                for (x, column) in columns.iter().enumerate() {
                    let wave = row.0 * column.1 + row.1 * column.0;
                    numbers[first + y * strides[axes[0]] + x * strides[axes[1]]] += strength * wave;
                }
            }
        }
    }
    let mean = numbers.iter().sum::<f64>() / count.max(1) as f64;
    numbers.iter_mut().for_each(|number| *number -= mean);
    let deviation = (numbers.iter().map(|number| number * number).sum::<f64>() / count.max(1) as f64).sqrt();
    numbers.iter_mut().for_each(|number| *number /= deviation.max(f64::MIN_POSITIVE));
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smooth_images_are_smooth_and_differ_by_channel() {
        for (shape, apart) in [([2, 3, 40, 30], [30, 1, 1200]), ([2, 40, 30, 3], [90, 3, 1])] {
            let across = apart[1];
            let fact = Fact::tensor(DType::F32, shape.map(Into::into));
            assert!(is_image(&fact));
            let numbers = tensor(&fact, 1, Floats::Smooth, &mut 1).unwrap().to_f64s().unwrap();
            let mean_square = |numbers: &mut dyn Iterator<Item = f64>| {
                let (sum, count) = numbers.fold((0.0, 0), |(sum, count), number| (sum + number * number, count + 1));
                sum / f64::from(count)
            };
            assert!((mean_square(&mut numbers.iter().copied()) - 1.0).abs() < 1e-6);
            // Differences of the pixels of a row from those below, to the right, and in the next channel.
            let differences = apart.map(|apart| {
                let pixels = (0..28).map(|column| column * across);
                mean_square(&mut pixels.map(|at| numbers[at + apart] - numbers[at]))
            });
            let [below, beside, in_next] = differences;
            assert!(below < 0.5 && beside < 0.5 && in_next > 2.0 * below.max(beside), "{differences:?}");
        }
        // Neither tokens nor small kernels are images.
        assert!([&[1, 128, 768][..], &[8, 8, 3, 3], &[64, 64]].iter().all(|shape| image_axes(shape).is_none()));
    }

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
