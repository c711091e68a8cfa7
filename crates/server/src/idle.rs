//! What a server gives back while nobody asks anything.
//!
//! The allocator keeps the memory of requests and answers for the next ones, which then come by it without the system clearing
//! its pages: some mebibytes for each thread that reads or writes them. Once nobody has asked for a while, they go back. Giving
//! them back while a server works would take that time again with every request.

use std::{sync::Weak, time::Duration};

use halimede_platform::memory;
use halimede_serving::Server;
use tokio::{task, time};

const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Looks without a request until memory goes back.
const QUIET_LOOKS: u32 = 5;

/// Gives freed memory back to the system whenever nobody has asked `server` for some seconds, until it is gone.
pub(crate) async fn release_memory(server: Weak<Server>) {
    let mut quiet = Quiet::default();
    let mut looks = time::interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let Some(server) = server.upgrade() else { return };
        let is_due = quiet.is_due(server.requests(), || server.in_flight() == 0);
        drop(server);
        // It takes a moment, in which the thread that serves connections would not.
        if is_due && task::spawn_blocking(memory::release).await.is_err() {
            return;
        }
    }
}

/// How long nobody has asked.
#[derive(Debug, Default)]
struct Quiet {
    requests: u64,
    looks: u32,
}

impl Quiet {
    /// Whether memory is to go back now, which it is once between two requests. There were so many of them so far; whether all are
    /// answered is only asked when it would go back, since that asks every model.
    fn is_due(&mut self, requests: u64, are_answered: impl FnOnce() -> bool) -> bool {
        if requests != self.requests {
            *self = Self { requests, looks: 0 };
            return false;
        }
        self.looks = self.looks.saturating_add(1);
        if self.looks != QUIET_LOOKS {
            return false;
        }
        let is_due = are_answered();
        if !is_due {
            self.looks = 0;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_back_once_in_each_quiet_time() {
        let mut quiet = Quiet::default();
        let mut due = |requests: u64, are_answered: bool, looks: u32| {
            (0..looks).filter(|_| quiet.is_due(requests, || are_answered)).count()
        };
        assert_eq!(due(0, true, QUIET_LOOKS - 1), 0);
        assert_eq!(due(0, true, 100), 1, "nobody has asked since the models were loaded");
        assert_eq!(due(1, false, 101), 0, "a request is under way");
        assert_eq!(due(1, true, QUIET_LOOKS), 1, "and answered");
        assert_eq!(due(2, true, QUIET_LOOKS), 0, "somebody asked between two looks");
        assert_eq!(due(2, true, 100), 1);
    }
}
