//! Compute units, plans and arenas: how a graph becomes steps that run.
//!
//! A [`ComputeUnit`] compiles a graph into an [`Executable`]. Units that run kernels one by one share
//! the [`Program`] of this crate: it asks the unit for a [`Kernel`] per node once, lays out a
//! [`Plan`] per set of input shapes, and runs it over one block of memory without allocating.

#![forbid(unsafe_code)]

mod arena;
mod calibrate;
mod control;
mod cost;
mod error;
pub mod fingerprint;
mod footprint;
mod guard;
mod kernel;
mod late;
pub mod layout;
mod memory;
mod model;
pub mod packed;
mod plan;
mod program;
mod session;
mod specialise;
pub mod tuning;
mod unit;

pub use calibrate::{CalibrationError, calibrated, output_ranges};
pub use error::{CompileError, RunError};
pub use footprint::Footprint;
pub use guard::{Budget, Comparison, Difference, Guard, Verdict, made_up_inputs};
pub use halimede_platform::{
    memory::{process as process_memory, release as release_memory},
    threads::{QualityOfService, set_quality_of_service},
};
pub use kernel::{Arguments, Kernel, Prepared, Step, Tasks, TensorDesc};
pub use model::{Model, ModelOptions};
pub use plan::bands::{BandsOf, UnknownBands};
pub use plan::{Plan, StepReport};
pub use program::{Kernels, Program};
pub use session::{Coverage, Session, StepTime};
pub use unit::{Capabilities, CompileOptions, ComputeUnit, CostHint, Executable, OpDesc, Precision, UnknownPrecision};
