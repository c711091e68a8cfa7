//! Where the memory of a model goes.

use halimede_graph::ops::Factors;
use halimede_graph::{Graph, Op};
use halimede_tensor::{DType, Held, Tensor};
use std::collections::{BTreeMap, BTreeSet};

/// What a compiled model holds for all its instances, in bytes; what several share counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// The least that it needs: its constants, each once in every datatype that it is read or multiplied in.
    pub weights: usize,
    /// Weights in the layouts of the unit's kernels.
    pub packed: Held,
    /// Constants that steps read as they are.
    pub constants: Held,
    /// Constants that no step reads: what weights were packed from, kept so that the model can be compiled again. Pages of
    /// the model's file that nobody touches leave memory.
    pub sources: Held,
    /// Lists of steps, and constants that are known for the shapes of a plan, for the plans that are kept. What steps
    /// remember beside their settings is not counted.
    pub plans: usize,
}

impl Footprint {
    /// Bytes of this process alone.
    pub fn private(&self) -> usize {
        self.packed.private + self.constants.private + self.sources.private + self.plans
    }

    /// Bytes in mapped files.
    pub fn mapped(&self) -> usize {
        self.packed.mapped + self.constants.mapped + self.sources.mapped
    }
}

/// Counts tensors, each buffer once.
#[derive(Debug, Default)]
pub(crate) struct Tally(BTreeSet<usize>);

impl Tally {
    /// Bytes of a tensor; none where its buffer was counted.
    pub fn held(&mut self, tensor: &Tensor) -> Held {
        if self.0.insert(address(tensor)) { tensor.held() } else { Held::default() }
    }
}

/// What tells buffers apart.
pub(crate) fn address(tensor: &Tensor) -> usize {
    match tensor.strings() {
        Ok(strings) => strings.as_ptr().addr(),
        Err(_) => tensor.bytes().map_or(0, |bytes| bytes.as_ptr().addr()),
    }
}

/// The datatype in which an operation multiplies a constant that it is given.
pub(crate) fn multiplied(op: &Op, constant: &Tensor) -> DType {
    match op.multiply() {
        Some(Factors::Bf16) => DType::Bf16,
        Some(Factors::F16) => DType::F16,
        Some(Factors::Integers) => DType::I8,
        None => constant.dtype(),
    }
}

/// Bytes of the constants that operations read, each once in every datatype that it is read or multiplied in.
pub(crate) fn weight_bytes(graph: &Graph) -> usize {
    let mut weights: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for node in &graph.nodes {
        for constant in node.inputs.iter().flatten().filter_map(|&value| graph.constant(value)) {
            // Weights of few bits are no wider for being multiplied as floats of 16.
            let bits = multiplied(&node.op, constant).bits().min(constant.dtype().bits());
            let bytes = match constant.dtype() {
                DType::String => constant.held().total(),
                _ => constant.len().saturating_mul(bits).div_ceil(8),
            };
            weights.insert((address(constant), bits), bytes);
        }
    }
    weights.values().sum()
}
