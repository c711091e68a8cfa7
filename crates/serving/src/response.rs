//! Responses, and the way they take back to the client.

use std::fmt;

use halimede_tensor::{Buffer, DType};

use crate::{error::Error, request::Parameter};

/// One response to one request.
#[derive(Debug, Clone)]
pub struct Response {
    /// Name of the model that answered.
    pub model: String,
    /// Version of the model that answered; 0 where the request failed before the version was known.
    pub version: i64,
    /// The identifier of the request. Empty: none.
    pub id: String,
    /// Parameters that the model added, in order.
    pub parameters: Vec<(String, Parameter)>,
    /// Output tensors.
    pub outputs: Vec<OutputTensor>,
    /// Why the request failed; the outputs are then empty.
    pub error: Option<Error>,
    /// Whether the request failed before any queue took it, for what is wrong with it or because it came
    /// at the wrong time.
    pub is_refusal: bool,
}

/// One output of a response.
#[derive(Debug, Clone)]
pub struct OutputTensor {
    /// Name of the output.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions with the batch dimension, outermost first.
    pub shape: Vec<i64>,
    /// The elements in the wire form of [`crate::wire`]; may be a view of a larger buffer.
    pub data: Buffer,
}

/// Where the responses to a request go: a channel to the connection that it came from.
pub trait Reply: Send {
    /// Takes a response. `last` says that no other follows. Called on an instance's thread, or on one that serves
    /// connections, so it hands the response over and does not wait for the client.
    fn send(&mut self, response: Response, last: bool);

    /// No response follows, and the last one was not sent as such; there may have been none. For models that
    /// answer any number of times.
    fn end(&mut self);

    /// Whether nobody waits for the response any more: the client went away or cancelled. A request in a
    /// queue is then dropped, and one that runs may stop early. Asked often, so it must be cheap.
    fn is_cancelled(&self) -> bool {
        false
    }

    /// Whether [`send`](Self::send) may have to wait until there is room for what the response leads to.
    fn may_wait(&self) -> bool {
        false
    }
}

/// The sender of responses that travels inside a request. It sees to it that the client hears a last
/// response exactly once, whatever happens to the request.
pub struct Responder {
    /// `None` after the last response.
    reply: Option<Box<dyn Reply>>,
}

impl Responder {
    /// Sends through `reply`.
    pub fn new(reply: impl Reply + 'static) -> Self {
        Self { reply: Some(Box::new(reply)) }
    }

    /// One that sends nothing: of a request whose responder was taken, or is given later.
    pub fn closed() -> Self {
        Self { reply: None }
    }

    /// The same way back, on which `observe` sees each response before it is sent on.
    pub(crate) fn observed(&mut self, observe: impl FnMut(&Response) + Send + 'static) {
        let responder = std::mem::replace(self, Self::closed());
        *self = Self::new(Observed { observe, responder });
    }

    /// Hands `response` to the client. Nothing is sent after the last response.
    pub fn send(&mut self, response: Response, last: bool) {
        if let Some(reply) = &mut self.reply {
            reply.send(response, last);
            if last {
                self.reply = None;
            }
        }
    }

    /// Says that no response follows those that were sent.
    pub fn end(&mut self) {
        if let Some(mut reply) = self.reply.take() {
            reply.end();
        }
    }

    /// Whether the client gave up.
    pub fn is_cancelled(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| reply.is_cancelled())
    }

    /// Whether to send may take as long as others need to make room.
    pub fn may_wait(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| reply.may_wait())
    }

    /// Whether the last response was sent.
    pub fn is_answered(&self) -> bool {
        self.reply.is_none()
    }
}

/// A way back on which somebody sees the responses pass.
struct Observed<F> {
    observe: F,
    responder: Responder,
}

impl<F: FnMut(&Response) + Send> Reply for Observed<F> {
    fn send(&mut self, response: Response, last: bool) {
        (self.observe)(&response);
        self.responder.send(response, last);
    }

    fn end(&mut self) {
        self.responder.end();
    }

    fn is_cancelled(&self) -> bool {
        self.responder.is_cancelled()
    }

    fn may_wait(&self) -> bool {
        self.responder.may_wait()
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if let Some(mut reply) = self.reply.take() {
            let error = Error::internal("the request was dropped without a response");
            reply.send(Response::failed(String::new(), 0, String::new(), error), true);
        }
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder").field("answered", &self.is_answered()).finish()
    }
}

impl Response {
    /// A response that says why a request failed.
    pub fn failed(model: String, version: i64, id: String, error: Error) -> Self {
        Self { model, version, id, parameters: Vec::new(), outputs: Vec::new(), error: Some(error), is_refusal: false }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    struct Channel(mpsc::Sender<(Response, bool)>);

    impl Reply for Channel {
        fn send(&mut self, response: Response, last: bool) {
            self.0.send((response, last)).unwrap();
        }

        fn end(&mut self) {}
    }

    fn ok() -> Response {
        Response {
            model: "m".into(),
            version: 1,
            id: String::new(),
            parameters: Vec::new(),
            outputs: Vec::new(),
            error: None,
            is_refusal: false,
        }
    }

    #[test]
    fn exactly_one_response_is_the_last() {
        let (sender, receiver) = mpsc::channel();
        let mut responder = Responder::new(Channel(sender));
        responder.send(ok(), false);
        responder.send(ok(), true);
        responder.send(ok(), true);
        drop(responder);
        let last: Vec<bool> = receiver.iter().map(|(_, last)| last).collect();
        assert_eq!(last, [false, true]);
    }

    #[test]
    fn nothing_follows_the_end() {
        let (sender, receiver) = mpsc::channel();
        let mut responder = Responder::new(Channel(sender));
        responder.send(ok(), false);
        responder.end();
        responder.send(ok(), true);
        drop(responder);
        assert_eq!(receiver.iter().count(), 1);
    }

    #[test]
    fn a_dropped_request_is_answered() {
        let (sender, receiver) = mpsc::channel();
        drop(Responder::new(Channel(sender)));
        let (response, last) = receiver.recv().unwrap();
        assert!(last && response.error.is_some());
    }
}
