//! What this machine can do at best: the shortest time that an operation could take.

use std::collections::{BTreeMap, HashMap};

use halimede_compute::CostHint;
use halimede_compute_cpu::{Blas, HalfMatrix, IntegerMatrix, Matrix, rates};
use halimede_graph::ops::Factors;

/// Blocks are read up to this size: from here on all of them come from memory.
const BYTES_MAX: usize = 64 << 20;

/// The best rates of this machine, measured when they are first needed.
pub(super) struct Roofs {
    threads: f64,
    /// Whether the matrix unit may be used.
    matrix: bool,
    /// Multiplications and additions a second of one thread, by what is multiplied.
    operations: HashMap<Option<Factors>, f64>,
    /// Bytes a second that one thread reads from blocks of so many bytes.
    reading: BTreeMap<usize, f64>,
}

/// Multiplications and additions a second of such factors on one thread, with the matrix unit or without it; nothing where they are
/// multiplied as f32.
pub(super) fn peak(factors: Factors, matrix: bool) -> Option<f64> {
    match factors {
        Factors::Bf16 => Matrix::fastest().filter(|_| matrix).map(Matrix::peak),
        Factors::F16 => HalfMatrix::available().into_iter().filter(|_| matrix).map(HalfMatrix::peak).reduce(f64::max),
        Factors::Integers => Some(IntegerMatrix::choose(matrix).peak()),
    }
}

impl Roofs {
    pub(super) fn new(threads: usize, matrix: bool) -> Roofs {
        Roofs { threads: threads as f64, matrix, operations: HashMap::new(), reading: BTreeMap::new() }
    }

    /// The seconds that an operation takes at least: for its arithmetic, or for reading as many bytes as it moves,
    /// whichever is longer. `multiply` is what a product takes its operands as.
    pub(super) fn seconds(&mut self, cost: &CostHint, multiply: Option<Factors>) -> f64 {
        let matrix = self.matrix;
        let operations = *self.operations.entry(multiply).or_insert_with(|| {
            let rate = match multiply {
                Some(factors) => peak(factors, matrix),
                None => Blas::fastest().filter(|_| matrix).map(Blas::peak),
            };
            rate.unwrap_or_else(rates::f32_operations)
        });
        let block = ((cost.bytes / self.threads) as usize).next_power_of_two().min(BYTES_MAX);
        let reading = *self.reading.entry(block).or_insert_with(|| rates::read(block));
        (cost.operations / operations).max(cost.bytes / reading) / self.threads
    }
}
