//! HTTP, gRPC, metrics and the command line.

#![forbid(unsafe_code)]

pub mod cli;
mod commands;
pub mod units;
