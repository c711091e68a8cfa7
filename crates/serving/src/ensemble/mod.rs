//! Ensembles: models made of other models.

mod flow;
mod limit;
mod plan;
mod reply;
mod run;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tests;

pub(crate) use plan::{Ensemble, Members};
