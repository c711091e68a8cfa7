//! Changes of models that models ask for.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use parking_lot::MutexGuard;

use super::{Repository, State};
use crate::{
    error::Error,
    options::{ControlMode, LoadParameters},
};

/// How often a model that waits looks whether it is about to be changed itself.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Who wants models to change. No model waits for a change that may wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker<'a> {
    /// A client, or the server itself.
    Client,
    /// A model of this name that runs requests. It waits for changes of other models.
    RunningModel(&'a str),
    /// A model that is made or ended, which a change waits for. It waits for no other change.
    ChangingModel,
}

/// Loads and unloads models for models.
pub(crate) trait ModelControl: Send + Sync {
    /// As [`Server::load`](crate::Server::load).
    fn load(&self, model: &str, parameters: &LoadParameters, asker: Asker<'_>) -> Result<(), Error>;

    /// As [`Server::unload`](crate::Server::unload).
    fn unload(&self, model: &str, dependents: bool, asker: Asker<'_>) -> Result<(), Error>;
}

impl ModelControl for Repository {
    fn load(&self, model: &str, parameters: &LoadParameters, asker: Asker<'_>) -> Result<(), Error> {
        self.check_open()?;
        Repository::load(self, model, parameters, asker)
    }

    fn unload(&self, model: &str, dependents: bool, asker: Asker<'_>) -> Result<(), Error> {
        self.check_open()?;
        Repository::unload(self, model, dependents, asker)
    }
}

impl Repository {
    /// Whether models may change models: not while the server starts or ends.
    pub fn open_to_models(&self, is_open: bool) {
        self.is_open.store(is_open, SeqCst);
    }

    fn check_open(&self) -> Result<(), Error> {
        match self.is_open.load(SeqCst) {
            true => self.check_explicit(),
            false => Err(Error::unavailable("Server not ready")),
        }
    }

    /// Whether models are loaded and unloaded by those who ask for it.
    pub fn check_explicit(&self) -> Result<(), Error> {
        match self.options().control {
            ControlMode::Explicit => Ok(()),
            _ => Err(Error::unavailable("explicit model load / unload is not allowed if polling is enabled")),
        }
    }

    /// Waits until something changed that stands in the way of a change of `model`.
    ///
    /// # Errors
    /// Who asks cannot wait.
    pub(super) fn wait_for_others(
        &self,
        state: &mut MutexGuard<'_, State>,
        model: &str,
        asker: Asker<'_>,
    ) -> Result<(), Error> {
        let may_wait = match asker {
            Asker::Client => {
                self.changed.wait(state);
                return Ok(());
            }
            Asker::RunningModel(own) => !state.busy.iter().any(|id| id.name == own),
            Asker::ChangingModel => false,
        };
        if !may_wait {
            return Err(Error::unavailable(format!(
                "model '{model}', or one that belongs to it, is being loaded or unloaded, and that may wait for the model \
                 that asks: try again when it is over"
            )));
        }
        self.changed.wait_for(state, LOOK_INTERVAL);
        Ok(())
    }
}
