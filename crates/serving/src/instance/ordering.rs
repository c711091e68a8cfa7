//! Keeps responses in the order in which their requests were taken from the queue.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::{request::Request, response::Response};

/// Holds responses back until all earlier ones were sent.
#[derive(Debug, Default)]
pub(crate) struct Ordering(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    held: BTreeMap<u64, (Request, Response)>,
    /// Whether a thread sends what may be sent. Others leave theirs to it: it may be the same thread, for what a
    /// response sets off may bring the next one.
    is_sending: bool,
}

impl Ordering {
    /// Sends the response to the request that was taken as number `ticket`, counted from 0 without gaps,
    /// and those that waited for it.
    pub fn send(&self, ticket: u64, request: Request, response: Response) {
        let mut state = self.0.lock();
        state.held.insert(ticket, (request, response));
        if state.is_sending {
            return;
        }
        while let Some((mut request, response)) = state.take_next() {
            state.is_sending = true;
            drop(state);
            request.responder.send(response, true);
            // What it owned may have an end of its own.
            drop(request);
            state = self.0.lock();
            state.is_sending = false;
        }
    }
}

impl State {
    fn take_next(&mut self) -> Option<(Request, Response)> {
        let next = self.held.remove(&self.next)?;
        self.next += 1;
        Some(next)
    }
}
