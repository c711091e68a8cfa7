//! Which instances of which models run now, where they share resources (`--rate-limit=execution_count`).
//!
//! An instance asks when it has something to run (`Place::ask`), and gives back what it got when it has run
//! (`Place::give_back`). Among those that ask, the one comes next that ran least often, its runs counted as
//! often as its `priority` says; the others wait behind it, also those for whom there would be enough, so that nobody
//! who needs much waits for ever.

mod resources;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use parking_lot::Mutex;

pub use resources::{Available, Device};
use resources::{Needs, Resources};

use crate::{config::proto::ModelRateLimiter, error::Error};

/// The device of instances on the CPU.
const CPU: i32 = 0;

/// What an instance has run when it joins: in Triton its initialisation and its warm-up are two runs.
const RUNS_AT_FIRST: u64 = 2;

/// The instances of all models.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    resources: Resources,
    members: BTreeMap<u64, Member>,
    next_member: u64,
    next_turn: u64,
}

/// An instance that the limiter knows.
struct Member {
    needs: Needs,
    priority: u64,
    runs: u64,
    state: Turn,
    right: Arc<AtomicBool>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

/// How far an instance is with its next run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It has nothing to run.
    Idle,
    /// It asks since this turn.
    Asks(u64),
    /// It has its resources.
    Runs,
}

/// An instance's place in the limiter; left when it is dropped.
pub(crate) struct Place {
    limiter: Arc<RateLimiter>,
    id: u64,
    /// Whether it may run.
    right: Arc<AtomicBool>,
}

impl RateLimiter {
    /// A limiter of instances that share `available`; where that is empty, as much of each resource as the instance
    /// needs that needs most.
    pub fn new(available: Available) -> Self {
        let resources = Resources::new(available);
        Self { state: Mutex::new(State { resources, members: BTreeMap::new(), next_member: 0, next_turn: 0 }) }
    }

    /// Takes an instance in. `wake` is called, outside all locks of this, when it may run.
    ///
    /// # Errors
    /// There will never be enough for it, or a resource would be both global and of a device.
    pub fn join(
        self: &Arc<Self>,
        config: &ModelRateLimiter,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Result<Place, Error> {
        let needs = Needs::new(config, CPU);
        let mut state = self.state.lock();
        state.resources.check(state.members.values().map(|member| &member.needs).chain([&needs]))?;
        let id = state.next_member;
        state.next_member += 1;
        let right = Arc::<AtomicBool>::default();
        let member = Member {
            needs,
            // A priority of 0 is 1.
            priority: u64::from(config.priority.max(1)),
            runs: RUNS_AT_FIRST,
            state: Turn::Idle,
            right: right.clone(),
            wake: Arc::new(wake),
        };
        state.members.insert(id, member);
        state.measure();
        Ok(Place { limiter: self.clone(), id, right })
    }

    /// Instances that ask and have not got what they need.
    #[cfg(test)]
    pub fn asking(&self) -> usize {
        self.state.lock().members.values().filter(|member| matches!(member.state, Turn::Asks(_))).count()
    }

    /// Changes one member, and wakes those whose turn it is then.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        let woken = state.grant();
        drop(state);
        woken.into_iter().for_each(|wake| wake());
    }
}

impl State {
    /// How much there is of each resource for the members there are.
    fn measure(&mut self) {
        let Self { resources, members, .. } = self;
        resources.measure(members.values().map(|member| &member.needs));
        tracing::debug!("\nMax Resource Map===>\n{resources}");
    }

    /// Gives resources to those who ask, in the order of their priority, until one finds too little.
    fn grant(&mut self) -> Vec<Arc<dyn Fn() + Send + Sync>> {
        let mut woken = Vec::new();
        loop {
            let next = self.members.values_mut().filter_map(|member| match member.state {
                Turn::Asks(turn) => Some(((member.runs * member.priority, turn), member)),
                _ => None,
            });
            let Some((_, member)) = next.min_by_key(|(order, _)| *order) else { return woken };
            if !self.resources.take(&member.needs) {
                return woken;
            }
            member.state = Turn::Runs;
            member.right.store(true, SeqCst);
            woken.push(member.wake.clone());
        }
    }
}

impl Place {
    /// Whether the instance may run.
    pub fn may_run(&self) -> bool {
        self.right.load(SeqCst)
    }

    /// The instance has something to run. It is woken when it may.
    pub fn ask(&self) {
        self.limiter.change(|state| {
            let turn = state.next_turn;
            state.next_turn += 1;
            if let Some(member) = state.members.get_mut(&self.id)
                && member.state == Turn::Idle
            {
                member.state = Turn::Asks(turn);
            }
        });
    }

    /// Gives back what the instance was given. `has_run` says that it ran; `asks` that it has more to run.
    pub fn give_back(&self, has_run: bool, asks: bool) {
        self.right.store(false, SeqCst);
        self.limiter.change(|state| {
            let turn = state.next_turn;
            state.next_turn += 1;
            let State { resources, members, .. } = state;
            let Some(member) = members.get_mut(&self.id) else { return };
            if member.state == Turn::Runs {
                resources.give_back(&member.needs);
                member.runs += u64::from(has_run);
                member.state = if asks { Turn::Asks(turn) } else { Turn::Idle };
            }
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.limiter.change(|state| {
            let Some(member) = state.members.remove(&self.id) else { return };
            if member.state == Turn::Runs {
                state.resources.give_back(&member.needs);
            }
            state.measure();
        });
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("needs", &self.needs).field("state", &self.state).finish_non_exhaustive()
    }
}
