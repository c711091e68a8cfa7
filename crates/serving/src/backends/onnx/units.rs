//! The compute units of a server: one for all models that ask for the same, all told the same about their kernels.

use std::{collections::BTreeMap, sync::Arc};

use halimede_compute::{
    ComputeUnit,
    tuning::{Choices, Config, Operator},
};
use parking_lot::Mutex;

use crate::error::Error;

/// What a model asks of its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wish {
    /// Threads that an operation runs on; `None` leaves the number to the unit.
    pub threads: Option<usize>,
    /// Whether matrix units may be used, where the server uses them.
    pub matrix: bool,
}

/// Makes a unit whose kernels are told these configurations.
type Make = dyn Fn(Wish, Arc<Choices>) -> Result<Arc<dyn ComputeUnit>, String> + Send + Sync;

/// Models that ask for the same share a unit.
pub(super) struct Units {
    make: Box<Make>,
    state: Mutex<State>,
}

struct State {
    made: BTreeMap<Wish, Arc<dyn ComputeUnit>>,
    /// What the units were told.
    told: Arc<Choices>,
    /// The same with what was found out since.
    known: Arc<Choices>,
}

impl Units {
    pub fn new(
        known: Arc<Choices>,
        make: impl Fn(Wish, Arc<Choices>) -> Result<Arc<dyn ComputeUnit>, String> + Send + Sync + 'static,
    ) -> Self {
        let state = State { made: BTreeMap::new(), told: known.clone(), known };
        Self { make: Box::new(make), state: Mutex::new(state) }
    }

    /// The unit for a wish.
    pub fn get(&self, wish: Wish) -> Result<Arc<dyn ComputeUnit>, Error> {
        let mut state = self.state.lock();
        if let Some(unit) = state.made.get(&wish) {
            return Ok(unit.clone());
        }
        let unit = (self.make)(wish, state.told.clone()).map_err(Error::internal)?;
        state.made.insert(wish, unit.clone());
        Ok(unit)
    }

    /// What is known about an operator.
    pub fn known(&self, operator: &Operator) -> Option<Config> {
        let known = self.state.lock().known.clone();
        known.known(operator)
    }

    /// Keeps what was found out about an operator. Units hear of it by [`Units::renew`].
    pub fn note(&self, operator: &Operator, config: Config) {
        let mut state = self.state.lock();
        state.known = Arc::new(state.known.with(operator, config));
    }

    /// Tells the units what was found out, where that changes anything: new ones take their places, on the same
    /// threads. Models that were compiled before keep theirs.
    pub fn renew(&self) {
        let mut state = self.state.lock();
        if state.known.fingerprint() != state.told.fingerprint() {
            state.told = state.known.clone();
            let told = state.told.clone();
            state.made.values_mut().for_each(|unit| *unit = unit.tuned(told.clone()));
        }
    }
}
