//! Ensembles: models made of other models.

mod plan;
mod run;
#[cfg(test)]
mod tests;

pub(crate) use plan::{Ensemble, Members};
