//! Which values a graph takes on its way, so that 8 bits can stand for them.

use crate::packed::Packer;
use crate::{CompileError, CompileOptions, ComputeUnit, Precision, RunError};
use halimede_graph::passes::{quantizable, residuals};
use halimede_graph::{Graph, Range, ValueId};
use halimede_tensor::{DType, TensorError, Value};
use std::collections::BTreeMap;

/// Why ranges could not be had.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CalibrationError {
    /// The graph cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A sample is not what the graph takes.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A value cannot be read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A value is of another datatype than f32.
    #[error("'{name}' is of {dtype}, not of f32")]
    NoFloats {
        /// Name of the value.
        name: String,
        /// Its datatype.
        dtype: DType,
    },
}

/// The ranges of a graph's outputs over all samples, each of which is a value for every input; computed exactly.
pub fn output_ranges(
    graph: &Graph,
    unit: &dyn ComputeUnit,
    samples: &[Vec<Value>],
) -> Result<Vec<Range>, CalibrationError> {
    let mut ranges = vec![Range::EMPTY; graph.outputs.len()];
    let mut session = unit.compile(graph, &CompileOptions::default(), &Packer::default())?.session();
    for inputs in samples {
        session.run(inputs)?;
        for ((range, value), id) in ranges.iter_mut().zip(session.take_outputs()?).zip(&graph.outputs) {
            let tensor = value.tensor()?;
            if tensor.dtype() != DType::F32 {
                let name = graph.values[id.index()].name.clone();
                return Err(CalibrationError::NoFloats { name, dtype: tensor.dtype() });
            }
            *range = range.with(tensor.slice::<f32>()?);
        }
    }
    Ok(ranges)
}

/// The options in fast precision for a graph whose passes have run: every product that can multiplies integers, but
/// for the exact ones, by what it multiplies over all samples. Others stay what they are.
pub fn calibrated(
    graph: &Graph,
    unit: &dyn ComputeUnit,
    mut options: CompileOptions,
    samples: &[Vec<Value>],
) -> Result<CompileOptions, CalibrationError> {
    if options.precision == Precision::Fast {
        options.integers = integer_products(graph, unit, samples)?;
        options.integers.retain(|name, _| !options.exact_nodes.contains(name));
    }
    Ok(options)
}

/// The products that multiply integers with profit on a unit, by name, with what they multiply.
pub(crate) fn products_of_integers<'g>(graph: &'g Graph, unit: &dyn ComputeUnit) -> Vec<(&'g str, ValueId)> {
    quantizable(graph, unit.factors_of_integers(), &|node| unit.is_as_fast_in_floats(graph, node))
}

/// The products that can multiply integers, by name, with the ranges of what they multiply over all samples, and those of what
/// they add.
fn integer_products(
    graph: &Graph,
    unit: &dyn ComputeUnit,
    samples: &[Vec<Value>],
) -> Result<BTreeMap<String, Range>, CalibrationError> {
    let products = products_of_integers(graph, unit);
    if products.is_empty() {
        return Ok(BTreeMap::new());
    }
    let residuals = residuals(graph, &products);
    let products = products.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(residuals);
    let products: Vec<(String, ValueId)> = products.collect();
    let mut values: Vec<ValueId> = products.iter().map(|(_, value)| *value).collect();
    values.sort_unstable();
    values.dedup();
    let observed = Graph { outputs: values.clone(), ..graph.clone() };
    let known: BTreeMap<ValueId, Range> = values.into_iter().zip(output_ranges(&observed, unit, samples)?).collect();
    let mut ranges: BTreeMap<String, Range> = BTreeMap::new();
    for (name, value) in products {
        let Range { min, max } = known[&value];
        // Nodes that a model gave one name share a range.
        let range = ranges.entry(name).or_insert(Range::EMPTY);
        *range = range.with(&[min, max]);
    }
    Ok(ranges)
}
