//! Instances: threads that take batches from the scheduler, run them and answer the requests.

pub(crate) mod batch;
mod direct;
mod expiry;
mod limited;
#[cfg(test)]
mod limited_tests;
mod memory;
mod ordering;
mod runner;
pub(crate) mod sender;
#[cfg(test)]
mod tests;
mod warmup;

pub(crate) use runner::{Runner, RunnerSettings};
pub(crate) use warmup::WarmUp;
