//! Keeps responses in the order in which their requests came, those from the cache included.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::response::{Responder, Response};

/// Holds responses back until all earlier ones were sent.
#[derive(Debug, Default)]
pub(super) struct InOrder(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The next ticket to give away.
    next: u64,
    /// The next ticket whose response is to be sent.
    first: u64,
    held: BTreeMap<u64, (Responder, Option<Response>)>,
    /// Whether a thread sends what may be sent. Others leave theirs to it: it may be the same thread, for what a
    /// response sets off may bring the next one.
    is_sending: bool,
}

impl InOrder {
    /// The place of a request that just came.
    pub fn take_ticket(&self) -> u64 {
        let mut state = self.0.lock();
        state.next += 1;
        state.next - 1
    }

    /// Answers the request with that ticket once all earlier ones are answered; `None` says that no response
    /// follows.
    pub fn send(&self, ticket: u64, responder: Responder, response: Option<Response>) {
        let mut state = self.0.lock();
        state.held.insert(ticket, (responder, response));
        if state.is_sending {
            return;
        }
        while let Some((mut responder, response)) = state.take_first() {
            state.is_sending = true;
            drop(state);
            match response {
                Some(response) => responder.send(response, true),
                None => responder.end(),
            }
            state = self.0.lock();
            state.is_sending = false;
        }
    }
}

impl State {
    fn take_first(&mut self) -> Option<(Responder, Option<Response>)> {
        let first = self.held.remove(&self.first)?;
        self.first += 1;
        Some(first)
    }
}
