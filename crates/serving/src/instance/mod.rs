//! Instances: threads that take batches from the scheduler, run them and answer the requests.

mod ahead;
#[cfg(test)]
mod ahead_tests;
pub(crate) mod batch;
mod direct;
mod expiry;
mod gather;
mod limited;
#[cfg(test)]
mod limited_tests;
mod memory;
#[cfg(test)]
mod ragged_tests;
mod runner;
mod scatter;
pub(crate) mod sender;
pub(crate) mod submitted;
#[cfg(test)]
mod submitted_tests;
#[cfg(test)]
mod tests;
mod warmup;

pub(crate) use runner::{Runner, RunnerSettings};
pub(crate) use warmup::WarmUp;
