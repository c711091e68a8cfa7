//! One file per verb of the command line, and what several of them share.

pub mod bench;
pub mod check;
pub mod doctor;
pub mod explain;
mod inputs;
mod model;
pub mod run;
pub mod serve;
mod steady;
