//! The way of the one response to a request, from an instance's thread to the task of a connection.

use std::thread::{self, ThreadId};

use halimede_serving::{Error, Reply, Responder, Response};
use tokio::sync::oneshot;

/// A response, and when it came.
#[derive(Debug)]
pub(crate) struct Answered {
    pub response: Response,
    /// Whether the server answered while it took the request: an error is then one of the request itself,
    /// and no model ran.
    pub at_once: bool,
}

/// The end at which a response arrives. Dropping it cancels the request.
#[derive(Debug)]
pub(crate) struct Waiting(oneshot::Receiver<Answered>);

/// Both ends of the way of a response. The request has to be handed to the server on this thread.
pub(crate) fn channel() -> (Responder, Waiting) {
    let (sender, receiver) = oneshot::channel();
    let ends = Sending { sender: Some(sender), thread: thread::current().id() };
    (Responder::new(ends), Waiting(receiver))
}

impl Waiting {
    /// The response, if it is there already.
    pub fn try_response(&mut self) -> Option<Answered> {
        self.0.try_recv().ok()
    }

    /// Waits for the response.
    pub async fn response(self) -> Result<Answered, Error> {
        // The responder sees to it that there is one.
        self.0.await.map_err(|_| Error::internal("the request ended without a response"))
    }
}

struct Sending {
    sender: Option<oneshot::Sender<Answered>>,
    /// The thread that hands the request to the server; instances have threads of their own.
    thread: ThreadId,
}

impl Reply for Sending {
    fn send(&mut self, response: Response, _last: bool) {
        if let Some(sender) = self.sender.take() {
            let at_once = thread::current().id() == self.thread;
            // Without a receiver the client has gone.
            let _ = sender.send(Answered { response, at_once });
        }
    }

    fn is_cancelled(&self) -> bool {
        self.sender.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}
