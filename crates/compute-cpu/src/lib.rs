//! The CPU unit: kernels, micro-kernels and the thread pool.
//!
//! [`CpuUnit`] compiles a graph into a program of kernels. A kernel is written once, generic over the
//! instruction set ([`Isa`]), and splits its work over the unit's [`Pool`].

mod blas;
mod bnns;
mod gemm;
mod grouped;
mod halves;
mod isa;
mod kernels;
mod map;
mod matrix;
mod matrix_units;
mod pool;
mod precision;
mod prefetch;
pub mod rates;
mod real;
mod unit;
mod vector;

pub use blas::Blas;
pub use isa::Isa;
pub use kernels::VERSION as KERNELS_VERSION;
pub use matrix::{HalfMatrix, IntegerMatrix, Matrix};
pub use matrix_units::{MatrixChoice, MatrixUnits};
pub use pool::Pool;
pub use unit::{BlockedLayouts, CpuOptions, CpuUnit, UnknownLayouts, Winograd};
