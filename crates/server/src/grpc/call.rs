//! What the verbose log tells of inference calls, and pauses that tests ask for.

use std::{
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    task::{Context, Poll},
    time::Duration,
};

use tokio_stream::Stream;
use tonic::Status;

/// Pauses that variables of the environment ask for, so that tests meet a call at a certain point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pauses {
    /// Before any answer but those of inference.
    pub other: Duration,
    /// Before the answer of an inference call with one request.
    pub infer: Duration,
}

impl Pauses {
    /// Those of Triton's variables that `variable` knows. The two for inference stop at points of Triton's own that are
    /// one here: between a response and its way to the client.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name| variable(name).and_then(|text| text.parse().ok()).unwrap_or(0);
        Self {
            other: Duration::from_secs(number("TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC")),
            infer: Duration::from_millis(number("TRITONSERVER_DELAY_RESPONSE_COMPLETE_EXEC"))
                + Duration::from_millis(number("TRITONSERVER_DELAY_RESPONSE_COMPLETION")),
        }
    }
}

/// Waits; at once where there is nothing to wait for, without a timer.
pub(super) async fn pause(duration: Duration) {
    if !duration.is_zero() {
        tokio::time::sleep(duration).await;
    }
}

/// An inference call. Dropped before it [is answered](Call::answered), it was cancelled.
#[derive(Debug)]
pub(super) struct Call {
    kind: &'static str,
    number: u64,
    is_answered: bool,
}

impl Call {
    /// A call of `kind`, the name of Triton's handler; `numbers` counts the calls.
    pub fn new(kind: &'static str, numbers: &AtomicU64) -> Self {
        Self { kind, number: numbers.fetch_add(1, Relaxed), is_answered: false }
    }

    pub fn answered(&mut self) {
        self.is_answered = true;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.is_answered {
            tracing::debug!("Cancellation notification received for {}, call {}", self.kind, self.number);
        }
        tracing::trace!("StateRelease, {} Step FINISH", self.number);
    }
}

/// The responses of a call.
#[derive(Debug)]
pub(super) struct Followed<S> {
    responses: Pin<Box<S>>,
    call: Call,
}

impl<S> Followed<S> {
    pub fn new(responses: S, call: Call) -> Self {
        Self { responses: Box::pin(responses), call }
    }
}

impl<S: Stream<Item = Result<T, Status>>, T> Stream for Followed<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let polled = self.responses.as_mut().poll_next(context);
        // A status ends the call too.
        if let Poll::Ready(None | Some(Err(_))) = polled {
            self.call.answered();
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_read() {
        let of = |wanted: &'static str, value: &'static str| {
            Pauses::read(move |name| (name == wanted).then(|| value.to_owned()))
        };
        assert_eq!(of("TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC", "2").other, Duration::from_secs(2));
        assert_eq!(of("TRITONSERVER_DELAY_RESPONSE_COMPLETION", "5").infer, Duration::from_millis(5));
        assert_eq!(of("TRITONSERVER_DELAY_RESPONSE_COMPLETE_EXEC", "7").infer, Duration::from_millis(7));
        assert_eq!(of("TRITONSERVER_DELAY_RESPONSE_COMPLETION", "long"), Pauses::default());
    }
}
