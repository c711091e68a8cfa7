//! One file per verb of the command line.

pub mod check;
pub mod serve;
