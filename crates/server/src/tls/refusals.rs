//! What the log says of connections that were not opened. Whoever turns certificates on has to see why clients fail; whoever
//! sends nonsense to the port must not fill the log.

use std::{
    fmt::Display,
    io,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How often the log says so.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// The refusals of one port.
#[derive(Debug)]
pub(crate) struct Refusals {
    protocol: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    told: Option<Instant>,
    /// Refusals since then of which nothing was said.
    untold: u64,
}

impl Refusals {
    pub fn new(protocol: &str) -> Self {
        Self { protocol: protocol.to_owned(), state: Mutex::default() }
    }

    /// A connection from `peer` was refused.
    pub fn tell(&self, peer: io::Result<SocketAddr>, why: &dyn Display) {
        let Some(untold) = self.untold(Instant::now()) else { return };
        let peer = peer.map_or_else(|_| "a client".to_owned(), |peer| peer.to_string());
        let before = if untold == 0 { String::new() } else { format!("; {untold} others before it") };
        tracing::warn!("the TLS connection of {peer} to the {} port was refused: {why}{before}", self.protocol);
    }

    /// How many went by in silence, where it is time to speak again.
    fn untold(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.told.is_some_and(|told| now.saturating_duration_since(told) < TOLD_EVERY) {
            state.untold += 1;
            return None;
        }
        state.told = Some(now);
        Some(std::mem::take(&mut state.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_speaks_now_and_then_and_counts_in_between() {
        let refusals = Refusals::new("grpc");
        let start = Instant::now();
        let at = |seconds| refusals.untold(start + Duration::from_secs(seconds));
        assert_eq!(
            [at(0), at(1), at(9), at(10), at(11), at(30), at(60)],
            [Some(0), None, None, Some(2), None, Some(1), Some(0)]
        );
    }
}
