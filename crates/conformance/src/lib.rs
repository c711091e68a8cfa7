//! Runs operator cases and ONNX backend test directories on anything that can run a model.
//!
//! [`discover`] finds test cases on disk, [`check`] runs them on a [`Runner`] and compares what comes
//! back, [`Report`] says what passed, what failed and why. [`run_cases`] does the same for the examples
//! that every operator's file carries.

#![forbid(unsafe_code)]

mod caught;
mod check;
mod compare;
mod discover;
mod expected;
mod operator_cases;
mod report;
mod runner;

pub use caught::caught;
pub use check::{CheckOptions, check};
pub use compare::{Mismatch, Tolerance, compare};
pub use discover::{DataSet, DiscoverError, TestCase, discover};
pub use expected::ExpectedFailures;
pub use operator_cases::run_cases;
pub use report::{Failure, Report};
pub use runner::{Computed, Failed, Loaded, ReferenceRunner, Runner, UnitRunner};
