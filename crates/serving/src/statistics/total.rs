//! What the steps of a request of an ensemble spend together.

use std::fmt;

use parking_lot::Mutex;

use super::ComputeDurations;

/// Adds up what the requests spend that hold it, and tells the sum when the last of them is gone.
#[derive(Default)]
pub(crate) struct ComputeTotal {
    spent: Mutex<ComputeDurations>,
    then: Mutex<Option<Then>>,
}

type Then = Box<dyn FnOnce(ComputeDurations) + Send>;

impl ComputeTotal {
    /// An execution spent `durations` for one of the requests.
    pub fn add(&self, durations: ComputeDurations) {
        *self.spent.lock() += durations;
    }

    /// The sum so far.
    pub fn spent(&self) -> ComputeDurations {
        *self.spent.lock()
    }

    /// Calls `then` with the sum when nobody can add to it any more. The executions of decoupled models may last
    /// longer than their responses.
    pub fn finally(&self, then: impl FnOnce(ComputeDurations) + Send + 'static) {
        *self.then.lock() = Some(Box::new(then));
    }
}

impl Drop for ComputeTotal {
    fn drop(&mut self) {
        let spent = *self.spent.get_mut();
        if let Some(then) = self.then.get_mut().take() {
            then(spent);
        }
    }
}

impl fmt::Debug for ComputeTotal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ComputeTotal").field("spent", &self.spent).finish_non_exhaustive()
    }
}
