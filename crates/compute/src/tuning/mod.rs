//! Which configuration of a kernel is the fastest for an operation, as measured.
//!
//! ```text
//! Kernel::tunable   the operation, the configurations that there are, what each would cost
//!       │
//!   Strategy        which of them to measure next
//!       │
//!    search         turns taken with the default, slow moments dropped, the winner confirmed in pairs;
//!       │           a Bench runs them, while it is Quiet
//!       │
//!    Record ──────► Database: lines of JSON that are only ever added to
//!                       │
//!                    Choices ──────► kernels, when a plan is made
//! ```
//!
//! An [`Operator`] is a value, so what was found out about one model holds for every other with the same
//! operation. A record counts for one unit, one chip and one version of the unit's kernels. Nothing here runs
//! inside a request: a kernel only looks up what is known.

mod agenda;
mod bench;
mod choices;
mod config;
mod database;
mod operator;
mod part;
mod probe;
mod record;
mod search;
mod space;
mod strategy;
mod tunable;

pub use agenda::Agenda;
pub use bench::{BenchError, NothingElse, PartBench, Quiet, Stopped};
pub use choices::Choices;
pub use config::{Config, Setting, WrongConfig};
pub use database::{BYTES_MAX, Damage, Database, DatabaseError};
pub use operator::{Epilogue, Operator};
pub use part::Part;
pub use probe::Probe;
pub use record::{Origin, Probed, Record, Timing};
pub use search::{Bench, Effort, Found, Heat, Winner, search};
pub use space::{Grid, Space};
pub use strategy::{CostModelTopK, Exhaustive, Measured, Strategy};
pub use tunable::{Cost, Tunable};
