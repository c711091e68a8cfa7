//! What this machine can do at best: the shortest time that an operation could take.

use std::collections::BTreeMap;

use halimede_compute::CostHint;
use halimede_compute_cpu::{Matrix, rates};
use halimede_tensor::DType;

/// Blocks are read up to this size: from here on all of them come from memory.
const BYTES_MAX: usize = 64 << 20;

/// The best rates of this machine, measured when they are first needed.
pub(super) struct Roofs {
    threads: f64,
    /// Whether the matrix unit may be used.
    matrix: bool,
    /// Multiplications and additions a second of one thread, by what is multiplied.
    operations: BTreeMap<Option<DType>, f64>,
    /// Bytes a second that one thread reads from blocks of so many bytes.
    reading: BTreeMap<usize, f64>,
}

impl Roofs {
    pub(super) fn new(threads: usize, matrix: bool) -> Roofs {
        Roofs { threads: threads as f64, matrix, operations: BTreeMap::new(), reading: BTreeMap::new() }
    }

    /// The seconds that an operation takes at least: for its arithmetic, or for reading as many bytes as it moves,
    /// whichever is longer. `multiply` is what a product rounds its operands to.
    pub(super) fn seconds(&mut self, cost: &CostHint, multiply: Option<DType>) -> f64 {
        let matrix = self.matrix;
        let operations = *self.operations.entry(multiply).or_insert_with(|| {
            let unit = multiply.filter(|_| matrix).and_then(|_| Matrix::fastest());
            unit.map_or_else(rates::f32_operations, Matrix::peak)
        });
        let block = ((cost.bytes / self.threads) as usize).next_power_of_two().min(BYTES_MAX);
        let reading = *self.reading.entry(block).or_insert_with(|| rates::read(block));
        (cost.operations / operations).max(cost.bytes / reading) / self.threads
    }
}
