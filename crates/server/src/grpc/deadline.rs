//! Deadlines of calls (the header `grpc-timeout`): as gRPC's own servers do, a call is ended once its time is over, whether its
//! client says so or not. Where a client does not read what a stream sends it, nobody looks at the time until it does.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::{
    HeaderMap,
    body::{Body as HttpBody, Frame, SizeHint},
};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tonic::{Status, body::Body};

use super::Answer;

/// How long a call may take, as its client says. A value that breaks the format counts for none.
pub(super) fn of(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    // At most eight digits, by gRPC's specification of HTTP/2.
    if number.is_empty() || number.len() > 8 || !number.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// The answer, or the end of the call once its time is over. What runs for it is then dropped, as if its client had cancelled.
pub(super) fn within(time: Duration, answer: Answer) -> Answer {
    let end = Instant::now() + time;
    Box::pin(async move {
        let Ok(response) = timeout_at(end, answer).await else { return Ok(exceeded().into_http()) };
        Ok(response?.map(|body| match body.is_end_stream() {
            true => body,
            false => Body::new(Timed { body: Some(body), end: Box::pin(sleep_until(end)) }),
        }))
    })
}

fn exceeded() -> Status {
    Status::deadline_exceeded("Deadline Exceeded")
}

/// Responses that end with the time of their call.
struct Timed {
    /// `None` once the time is over.
    body: Option<Body>,
    end: Pin<Box<Sleep>>,
}

impl HttpBody for Timed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        // First: a stream that always has something more would never end.
        let is_over = self.end.as_mut().poll(context).is_ready();
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        if !is_over {
            return Pin::new(body).poll_frame(context);
        }
        self.body = None;
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(exceeded().add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use hyper::Response;

    use super::*;

    fn header(value: &str) -> Option<Duration> {
        of(&HeaderMap::from_iter([(hyper::header::HeaderName::from_static("grpc-timeout"), value.parse().unwrap())]))
    }

    #[test]
    fn times_of_clients_are_read() {
        assert_eq!(header("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(header("3M"), Some(Duration::from_secs(180)));
        assert_eq!(header("99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(header("15m"), Some(Duration::from_millis(15)));
        assert_eq!(header("20u"), Some(Duration::from_micros(20)));
        assert_eq!(header("7n"), Some(Duration::from_nanos(7)));
        for wrong in ["", "S", "5", "5s", "-5S", "+5S", "5.0S", "123456789S", "5SS", "é"] {
            assert_eq!(header(wrong), None, "{wrong}");
        }
        assert_eq!(of(&HeaderMap::new()), None);
    }

    #[tokio::test]
    async fn an_answer_that_does_not_come_is_a_status() {
        let never: Answer = Box::pin(std::future::pending());
        let response = within(Duration::from_millis(5), never).await.unwrap();
        assert_eq!(response.headers()["grpc-status"], "4");
    }

    #[tokio::test]
    async fn responses_end_with_the_time() {
        let (parts, made) = tokio::sync::mpsc::unbounded_channel();
        let frames = tokio_stream::StreamExt::map(
            tokio_stream::wrappers::UnboundedReceiverStream::new(made),
            |part: &'static [u8]| Ok::<_, Status>(Frame::data(Bytes::from_static(part))),
        );
        let answer = Response::new(Body::new(http_body_util::StreamBody::new(frames)));
        let response = within(Duration::from_millis(300), Box::pin(async { Ok(answer) })).await.unwrap();
        let mut body = response.into_body();
        parts.send(b"one").unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
        let last = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
        assert_eq!((&last["grpc-status"], parts.is_closed()), (&"4".parse().unwrap(), true));
        assert!(body.frame().await.is_none());
    }
}
