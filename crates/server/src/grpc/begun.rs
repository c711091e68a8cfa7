//! Calls that came right before the end of their connection.
//!
//! H2 drops all calls of a connection as soon as it sees that the client is gone, even those that nobody has begun with. A
//! layer between it and the socket tells the end once they are begun, so that a client that asks for a change and leaves,
//! such as the load of a model, is heard. A call that its client cancels and says GOAWAY behind is dropped by h2 itself.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The calls of one connection.
#[derive(Debug, Default, Clone)]
pub(super) struct Calls(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// Calls that came.
    came: AtomicUsize,
    /// Those of them that nobody has begun with.
    waiting: AtomicUsize,
    /// Woken when there are none any more.
    end: Mutex<Option<Waker>>,
}

impl Calls {
    /// A call that came. It is begun once its answer was polled, with all that there is of its message.
    pub fn begin<F>(&self, answer: F) -> Beginning<F> {
        self.0.came.fetch_add(1, SeqCst);
        self.0.waiting.fetch_add(1, SeqCst);
        Beginning { answer, waits: Some(Waits(self.0.clone())) }
    }

    fn came(&self) -> usize {
        self.0.came.load(SeqCst)
    }

    /// Ready once all calls that came are begun or given up.
    fn poll_begun(&self, context: &mut Context<'_>) -> Poll<()> {
        // Who begins with the last one looks for the waker behind the count.
        *self.0.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        if self.0.waiting.load(SeqCst) == 0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// A call that nobody has begun with.
#[derive(Debug)]
struct Waits(Arc<Counts>);

impl Drop for Waits {
    fn drop(&mut self) {
        if self.0.waiting.fetch_sub(1, SeqCst) == 1 {
            let end = self.0.end.lock().unwrap_or_else(PoisonError::into_inner).take();
            end.into_iter().for_each(Waker::wake);
        }
    }
}

/// The answer to a call that is begun when this is polled.
#[derive(Debug)]
pub(super) struct Beginning<F> {
    answer: F,
    waits: Option<Waits>,
}

impl<F: Future + Unpin> Future for Beginning<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let polled = Pin::new(&mut self.answer).poll(context);
        self.waits = None;
        polled
    }
}

/// A connection whose end who reads from it hears once its calls are begun.
#[derive(Debug)]
pub(super) struct Heard<S> {
    stream: S,
    calls: Calls,
    /// Calls that had come when the end was read last.
    came: Option<usize>,
    /// How reading ended, until it is told.
    end: Option<io::Result<()>>,
    /// Whether nothing more can be written.
    is_broken: bool,
}

impl<S> Heard<S> {
    pub fn new(stream: S, calls: Calls) -> Self {
        Self { stream, calls, came: None, end: None, is_broken: false }
    }
}

impl<S: Unpin> Heard<S> {
    /// Writes with `write`; once that fails, `all` goes nowhere. The error would end the connection before what the client
    /// sent is read and begun.
    fn write<T>(
        &mut self,
        context: &mut Context<'_>,
        all: T,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.is_broken {
            return Poll::Ready(Ok(all));
        }
        let polled = write(Pin::new(&mut self.stream), context);
        if !matches!(polled, Poll::Ready(Err(_))) {
            return polled;
        }
        self.is_broken = true;
        // It is for who reads to find the end.
        context.waker().wake_by_ref();
        Poll::Ready(Ok(all))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.end.is_none() {
            let before = buffer.filled().len();
            let end = match Pin::new(&mut self.stream).poll_read(context, buffer) {
                Poll::Ready(Ok(())) if buffer.filled().len() > before => return Poll::Ready(Ok(())),
                Poll::Ready(end) => end,
                Poll::Pending if self.is_broken => Err(io::ErrorKind::BrokenPipe.into()),
                Poll::Pending => return Poll::Pending,
            };
            self.end = Some(end);
        }
        let came = self.calls.came();
        if self.came.replace(came) != Some(came) {
            // Each time that there is nothing to read, h2 hands over one call of those that it has.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.calls.poll_begun(context));
        Poll::Ready(self.end.take().unwrap_or(Ok(())))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(context, bytes.len(), |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let len = parts.iter().map(|part| part.len()).sum();
        self.write(context, len, |stream, context| stream.poll_write_vectored(context, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(context, (), |stream, context| stream.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(context, (), |stream, context| stream.poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use bytes::Bytes;
    use http_body_util::{BodyExt as _, Empty};
    use hyper::{Request, Response, body::Incoming, service::service_fn};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::{io::AsyncWriteExt as _, sync::mpsc};

    use super::*;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    const END_STREAM: u8 = 1;

    /// POST of `/` with a body of two bytes.
    fn call(stream: u8, end: u8) -> Vec<u8> {
        let headers = [b"\x00\x00\x06\x01\x04\x00\x00\x00", &[stream][..], b"\x83\x86\x84\x41\x01a"].concat();
        [&headers[..], b"\x00\x00\x02\x00", &[end], b"\x00\x00\x00", &[stream], b"{}"].concat()
    }

    /// Lengths of the bodies of calls that are begun, of a client that sends `bytes` and ends its half of the connection, or
    /// all of it. Nobody gets an answer.
    async fn begun(bytes: &[u8], is_half: bool) -> Vec<usize> {
        let (mut client, server) = tokio::io::duplex(1 << 12);
        client.write_all(bytes).await.unwrap();
        client.shutdown().await.unwrap();
        let client = is_half.then_some(client);
        let (begun, mut begins) = mpsc::unbounded_channel();
        let calls = Calls::default();
        let stream = TokioIo::new(Heard::new(server, calls.clone()));
        let service = service_fn(move |request: Request<Incoming>| {
            let begun = begun.clone();
            calls.begin(Box::pin(async move {
                if let Ok(body) = request.into_body().collect().await {
                    begun.send(body.to_bytes().len()).unwrap();
                    std::future::pending::<()>().await;
                }
                Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
            }))
        });
        let all = async {
            let _ =
                hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await;
            drop(client);
            let mut lens = Vec::new();
            while let Some(len) = begins.recv().await {
                lens.push(len);
            }
            lens
        };
        tokio::time::timeout(Duration::from_secs(30), all).await.expect("the connection and its calls end")
    }

    #[tokio::test]
    async fn what_is_asked_for_is_begun_although_the_client_is_gone() {
        let whole = |count: u8| (0..count).flat_map(|n| call(2 * n + 1, END_STREAM)).collect::<Vec<u8>>();
        let cases = [
            (Vec::new(), 0),
            (whole(1), 1),
            (whole(20), 20),
            // Its message has no end.
            (call(1, 0), 0),
            ([call(1, 0), call(3, END_STREAM)].concat(), 1),
            // A part of a frame.
            (whole(2)[..whole(2).len() - 1].to_vec(), 1),
        ];
        for (sent, expected) in cases {
            for is_half in [true, false] {
                let lens = begun(&[PREFACE, &sent].concat(), is_half).await;
                assert_eq!(lens, vec![2; expected], "half: {is_half}, {sent:?}");
            }
        }
        assert!(begun(&PREFACE[..10], true).await.is_empty());
        assert!(begun(b"", false).await.is_empty());
    }

    #[tokio::test]
    async fn nothing_is_waited_for_that_is_given_up() {
        let calls = Calls::default();
        let (client, server) = tokio::io::duplex(10);
        let mut stream = Heard::new(server, calls.clone());
        drop(client);
        let kept = calls.begin(std::future::pending::<()>());
        let mut buffer = [0; 10];
        let read = tokio::io::AsyncReadExt::read(&mut stream, &mut buffer);
        let (mut read, mut kept) = (std::pin::pin!(read), Some(kept));
        for _ in 0..3 {
            let waited = tokio::time::timeout(Duration::from_millis(10), read.as_mut()).await;
            assert!(waited.is_err(), "the end is told before the call is begun: {waited:?}");
        }
        drop(kept.take());
        assert_eq!(tokio::time::timeout(Duration::from_secs(30), read).await.unwrap().unwrap(), 0);
    }
}
