//! The way of the one response to a request, from an instance's thread to the task of a connection.

use halimede_serving::{Error, Reply, Responder, Response};
use tokio::sync::oneshot;

/// The end at which a response arrives. Dropping it cancels the request.
#[derive(Debug)]
pub(crate) struct Waiting(oneshot::Receiver<Response>);

/// Both ends of the way of a response.
pub(crate) fn channel() -> (Responder, Waiting) {
    let (sender, receiver) = oneshot::channel();
    (Responder::new(Sending { sender: Some(sender) }), Waiting(receiver))
}

impl Waiting {
    /// The response, if it is there already.
    pub fn try_response(&mut self) -> Option<Response> {
        self.0.try_recv().ok()
    }

    /// Waits for the response.
    pub async fn response(self) -> Result<Response, Error> {
        // The responder sees to it that there is one.
        self.0.await.map_err(|_| Error::internal("the request ended without a response"))
    }
}

struct Sending {
    sender: Option<oneshot::Sender<Response>>,
}

impl Reply for Sending {
    fn send(&mut self, response: Response, _last: bool) {
        if let Some(sender) = self.sender.take() {
            // Without a receiver the client has gone.
            let _ = sender.send(response);
        }
    }

    fn end(&mut self) {
        self.sender = None;
    }

    fn is_cancelled(&self) -> bool {
        self.sender.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}
