//! Checks of ensembles: the data flow inside one configuration, and what the members' configurations
//! say about the tensors that go between them.

mod graph;
mod members;

pub use graph::run_order;
pub(super) use graph::validate_scheduling;
pub use members::{Dependencies, dependencies, validate_members};

use super::proto::{ModelConfig, model_config::SchedulingChoice, model_ensembling::Step};

/// The steps of an ensemble; none for other models.
pub fn steps(config: &ModelConfig) -> &[Step] {
    match &config.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(ensemble)) => &ensemble.step,
        _ => &[],
    }
}
