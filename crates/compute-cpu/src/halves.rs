//! What multiplies f16, and for how many rows that pays: found out by measurements.
//!
//! FMLAL makes as many products an instruction as FMLA makes of f32, so that many rows gain little by it, and lose where
//! a coprocessor multiplies f32 (predicted): there the system's library may multiply f16, too. A product of few rows takes as long as
//! its weights take to come, and those of f16 have half the bytes. So products of blocks are measured, in
//! f16 and in f32, and where the library gains, one row by weights that no cache holds.
//!
//! Where a row alone would gain nothing is of f16. Products of more rows would then be of f32, and a guard whose samples have many rows
//! would never see what overflows in requests that have few.

use crate::blas::{Lying, Sizes};
use crate::bnns::Bnns;
use crate::gemm::{self, Micro};
use crate::matrix::HalfMatrix;
use crate::rates::{self, Work};
use crate::{Blas, Isa};
use std::hint::black_box;

/// What multiplies f16 faster than f32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Halves {
    pub unit: HalfMatrix,
    /// What is faster than the unit for more rows than so many.
    pub library: Option<(usize, Bnns)>,
}

/// Rows that are few: those of one strip. As they take 32 FMLAL for 16 weights, which come no faster in f32 once those
/// have been written as that before (predicted).
pub(crate) const FEW_ROWS: usize = 8;
/// Times as fast as f32 that a row has to be: it is rounded before, and the choice is to be the same at the next start.
const WORTH_ROUNDING: f64 = 1.25;
/// Bytes of weights in f32 of a row that is measured: the caches of few chips hold them.
const WEIGHTS_BYTES: usize = 48 << 20;
/// Columns and rows of those.
const SIZE: usize = 2048;
const COUNT: usize = WEIGHTS_BYTES / size_of::<f32>() / SIZE;

impl Halves {
    /// The fastest of this machine, where that is worth rounding for: some hundred microseconds, and where the library is the fastest
    /// some tenths of a second, and [`WEIGHTS_BYTES`] once and a half.
    pub fn fastest() -> Option<Halves> {
        let unit = HalfMatrix::available().into_iter().next()?;
        let (blas, bnns) = (Blas::fastest(), Bnns::available());
        let f32_work = blas.map_or_else(rates::f32_work, Blas::work).times(WORTH_ROUNDING);
        let blocks = rates::in_turns([f32_work, unit.work()].into_iter().chain(bnns.map(Bnns::work)));
        let by_library = blocks.get(2).copied().unwrap_or_default();
        if blocks[1] > blocks[0].max(by_library) {
            return Some(Halves { unit, library: None });
        }
        let bnns = bnns.filter(|_| by_library > blocks[0])?;
        let f32_row = blas.map_or_else(row_of_f32, row_by_blas).times(WORTH_ROUNDING);
        let rows = rates::in_turns([f32_row, unit.row_work(WEIGHTS_BYTES / 2)]);
        let few = if rows[1] > rows[0] { FEW_ROWS } else { 0 };
        Some(Halves { unit, library: Some((few, bnns)) })
    }

    /// What multiplies so many rows, where it is not the unit.
    pub fn by_library(&self, rows: usize) -> Option<Bnns> {
        self.library.filter(|&(few, _)| rows > few).map(|(_, bnns)| bnns)
    }

    /// The name in listings, another one for each form.
    pub fn name(&self) -> String {
        match self.library {
            None => self.unit.name().to_owned(),
            Some((0, bnns)) => bnns.name().to_owned(),
            Some((_, bnns)) => format!("{}, {}", self.unit.name(), bnns.name()),
        }
    }
}

/// One row by such weights on the unit's own kernels: multiplications and additions.
fn row_of_f32() -> Work<'static> {
    let micro = Micro::new(Isa::detect());
    let (row, panels) = (vec![1f32; micro.mr * COUNT], vec![1f32; COUNT * SIZE.next_multiple_of(micro.nr)]);
    let mut to = vec![0f32; micro.mr * micro.nr];
    Work::new(2 * panels.len(), move || {
        for panel in panels.chunks_exact(COUNT * micro.nr) {
            let c = (black_box(&mut to).as_mut_ptr(), micro.nr);
            let runs = [(0, COUNT)];
            let product = gemm::Product::new(&runs, (row.as_ptr(), COUNT, 1), panel.as_ptr(), c);
            let product = gemm::Product { ahead: gemm::Ahead::stream(&micro, panel.as_ptr()), ..product };
            // SAFETY: a row, a panel as deep as it and a tile.
            unsafe { micro.tile(1, &product) };
        }
    })
}

/// The same by the system's library.
fn row_by_blas(blas: Blas) -> Work<'static> {
    let (row, weights, mut to) = (vec![1f32; COUNT], vec![1f32; COUNT * SIZE], vec![0f32; SIZE]);
    let sizes = Sizes { m: 1, n: SIZE, k: COUNT };
    Work::new(2 * weights.len(), move || {
        let (a, b) = ((row.as_ptr(), Lying::rows(COUNT)), (weights.as_ptr(), Lying::rows(SIZE)));
        // SAFETY: a row, a matrix and a row of those sizes.
        unsafe { blas.multiply(sizes, a, b, (black_box(&mut to).as_mut_ptr(), SIZE)) };
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blas::tests::expected;

    #[test]
    fn rows_are_measured() {
        let rate = |work: Work<'_>| work.rate() / 1e9;
        println!("a row of f32: {:.1} GFLOP/s", rate(row_of_f32()));
        if let Some(blas) = expected() {
            println!("by {}: {:.1}", blas.name(), rate(row_by_blas(blas)));
        }
        for unit in HalfMatrix::available() {
            println!("of f16 by {}: {:.1}", unit.name(), rate(unit.row_work(WEIGHTS_BYTES / 2)));
        }
        let fastest = Halves::fastest();
        println!("fastest: {fastest:?}");
        assert!(fastest.is_none() || !HalfMatrix::available().is_empty());
    }
}
