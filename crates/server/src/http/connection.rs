//! A connection of HTTP/1: its requests one after the other, heads that come in time, and an end that waits for answers
//! and for nothing else.
//!
//! Hyper could limit the time for a head too, but would count from the answer before: connections that clients keep
//! for later would be closed. So a layer between it and the socket sees when a head begins. Hyper also drops a request as
//! soon as it sees its client's end, even before anybody has begun with it; the layer tells the end one poll later, so that a
//! client that asks for a change and leaves, such as the load of a model, is heard.

use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::{
    Request, Response,
    body::{Body as HttpBody, Frame, Incoming, SizeHint},
    header::{CONNECTION, HeaderValue},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    time::{Sleep, sleep, timeout},
};

use super::Body;
use crate::listen::Stop;

/// How long a client may take for the head of a request, from its first byte.
const HEAD_MAX: Duration = Duration::from_secs(30);

/// How long requests are still begun after [`Stop`]: what was sent before may not have been read yet, and who reads it does not
/// know when it was sent. Each answer says that it is the last.
const LAST_CALL: Duration = Duration::from_millis(100);

/// How long a connection that is closed from here stays half open, at most: what was sent before its client knew arrives
/// within that, and ends nowhere.
const LINGER: Duration = Duration::from_millis(100);

/// Answers requests with `answer` until the connection ends; after [`Stop`], to the end of the current one, or of one that has
/// been sent.
pub(crate) async fn serve<S, A, F>(stream: S, stop: Stop, answer: A)
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<Body>>,
{
    serve_within(HEAD_MAX, stream, stop, answer).await;
}

async fn serve_within<S, A, F>(head_max: Duration, mut stream: S, stop: Stop, answer: A)
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<Body>>,
{
    answer_all(head_max, &mut stream, stop, answer).await;
    // How a connection ends is the client's affair, and so is whether it does in time.
    let _ = timeout(LINGER, close(&mut stream)).await;
}

/// Closes a connection in a way that tells what was answered, and that nothing else will be. A socket that is closed
/// while bytes lie unread in it resets the connection: a client, or a balancer, that sent a request on a connection it
/// held for open could not tell that nobody has begun with it, and might lose the answer before.
async fn close(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    stream.shutdown().await?;
    let mut unread = [0; 4096];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

async fn answer_all<S, A, F>(head_max: Duration, stream: S, mut stop: Stop, answer: A)
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<Body>>,
{
    let progress = Arc::<Progress>::default();
    let service = service_fn(|request| {
        let (answered, progress) = (Answering::begin(&progress), progress.clone());
        let response = answer(request);
        async move {
            let mut response = response.await.map(|body| Sending { body, _answered: answered });
            if progress.is_last.load(Relaxed) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let stream = Timed::new(stream, head_max, progress.clone());
    let builder = hyper::server::conn::http1::Builder::new();
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.requested() => {}
    }
    progress.is_last.store(true, Relaxed);
    if timeout(LAST_CALL, connection.as_mut()).await.is_ok() {
        return;
    }
    connection.as_mut().graceful_shutdown();
    // A connection on which a head has begun would go on until it is there.
    let ended = poll_fn(|context| match connection.as_mut().poll(context) {
        Poll::Pending if progress.is_done() => Poll::Ready(()),
        polled => polled.map(drop),
    });
    ended.await;
}

/// How far the current request of a connection is.
#[derive(Debug, Default)]
struct Progress {
    /// Requests whose heads are there.
    heads: AtomicU64,
    /// Whether the last of them is not yet answered.
    is_answering: AtomicBool,
    /// Whether something may still be on its way into the socket.
    is_writing: AtomicBool,
    /// Whether the next answer is the last.
    is_last: AtomicBool,
}

impl Progress {
    /// Whether nothing is to be done for any request.
    fn is_done(&self) -> bool {
        !self.is_answering.load(Relaxed) && !self.is_writing.load(Relaxed)
    }
}

/// A request whose head is there, until nothing of its answer is left to make.
struct Answering(Arc<Progress>);

impl Answering {
    fn begin(progress: &Arc<Progress>) -> Self {
        progress.heads.fetch_add(1, Relaxed);
        progress.is_answering.store(true, Relaxed);
        Self(progress.clone())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        // What was made last is written before anything else happens to the connection.
        self.0.is_writing.store(true, Relaxed);
        self.0.is_answering.store(false, Relaxed);
    }
}

/// The body of an answer.
struct Sending {
    body: Body,
    _answered: Answering,
}

impl HttpBody for Sending {
    type Data = <Body as HttpBody>::Data;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream on which heads come in time, and no end before what came ahead of it is begun.
struct Timed<S> {
    stream: S,
    head_max: Duration,
    head: Head,
    /// Heads that had come when `head` was looked at.
    heads: u64,
    /// Whether the client's end was seen while a request was answered.
    is_ended: bool,
    progress: Arc<Progress>,
}

impl<S> Timed<S> {
    fn new(stream: S, head_max: Duration, progress: Arc<Progress>) -> Self {
        Timed { stream, head_max, head: Head::Awaited, heads: 0, is_ended: false, progress }
    }
}

/// The head that comes next.
enum Head {
    /// Nothing of it is there.
    Awaited,
    /// Most come in one piece, and nobody waits for the rest.
    Begun,
    /// Its rest has to come in time.
    Waiting(Pin<Box<Sleep>>),
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let heads = self.progress.heads.load(Relaxed);
        if heads != self.heads {
            (self.heads, self.head) = (heads, Head::Awaited);
        }
        if self.progress.is_answering.load(Relaxed) {
            let is_end = polled.is_ready() && buffer.filled().len() == before;
            if is_end && !std::mem::replace(&mut self.is_ended, true) {
                // Who answers is polled, with all that there is of the body, and then the end is read again.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            return polled;
        }
        if polled.is_ready() {
            if buffer.filled().len() > before && matches!(self.head, Head::Awaited) {
                self.head = Head::Begun;
            }
            return polled;
        }
        if matches!(self.head, Head::Begun) {
            self.head = Head::Waiting(Box::pin(sleep(self.head_max)));
        }
        if let Head::Waiting(end) = &mut self.head {
            ready!(end.as_mut().poll(context));
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the head of a request takes too long")));
        }
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.progress.is_writing.store(true, Relaxed);
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.progress.is_writing.store(true, Relaxed);
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Hyper flushes once it has written everything.
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(context));
        self.progress.is_writing.store(false, Relaxed);
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::BodyExt as _;
    use tokio::{
        io::DuplexStream,
        net::{TcpListener, TcpStream},
        sync::mpsc,
        task::JoinHandle,
    };

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    /// The client's end of a connection whose answers consist of what comes through the channel.
    fn connect(
        head_max: Duration,
    ) -> (DuplexStream, crate::listen::Services, mpsc::UnboundedSender<Bytes>, JoinHandle<()>) {
        let (client, server) = tokio::io::duplex(1 << 16);
        let services = crate::listen::Services::new(crate::event_loops::Connections::here());
        let (parts, made) = mpsc::unbounded_channel();
        let made = Arc::new(std::sync::Mutex::new(Some(made)));
        let answer = move |_| {
            let made = made.lock().unwrap().take();
            async move { Response::new(made.map_or(Body::default(), Body::stream)) }
        };
        let task = tokio::spawn(serve_within(head_max, server, services.requested_stop(), answer));
        (client, services, parts, task)
    }

    async fn answer(client: &mut DuplexStream, end: &[u8]) {
        let mut text = Vec::new();
        while !text.ends_with(end) {
            assert!(client.read_buf(&mut text).await.unwrap() > 0, "the connection ended: {text:?}");
        }
    }

    #[tokio::test]
    async fn a_head_that_does_not_come_to_its_end_ends_the_connection() {
        let (mut client, _services, parts, task) = connect(Duration::from_millis(50));
        drop(parts);
        // What is kept for later is not closed, however long it takes.
        client.write_all(REQUEST).await.unwrap();
        answer(&mut client, b"0\r\n\r\n").await;
        sleep(Duration::from_millis(200)).await;
        client.write_all(REQUEST).await.unwrap();
        answer(&mut client, b"\r\n\r\n").await;
        // A byte now and then is not enough.
        client.write_all(b"GET / HTTP/1.1\r\nx: ").await.unwrap();
        let drip = async {
            while client.write_all(b"a").await.is_ok() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), drip).await.expect("the connection goes on");
        task.await.unwrap();
    }

    #[tokio::test]
    async fn the_time_of_a_head_ends_with_it() {
        let (mut client, server) = tokio::io::duplex(1 << 10);
        let progress = Arc::<Progress>::default();
        let head_max = Duration::from_millis(50);
        let mut stream = Timed::new(server, head_max, progress.clone());
        let mut buffer = [0; 100];
        client.write_all(REQUEST).await.unwrap();
        assert_eq!(stream.read(&mut buffer).await.unwrap(), REQUEST.len());
        drop(Answering::begin(&progress));
        let idle = tokio::time::timeout(head_max * 4, stream.read(&mut buffer)).await;
        assert!(idle.is_err(), "a connection between requests is not timed: {idle:?}");
        client.write_all(b"GET").await.unwrap();
        assert_eq!(stream.read(&mut buffer).await.unwrap(), 3);
        assert_eq!(stream.read(&mut buffer).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_request_that_crosses_the_end_is_answered_or_not_begun() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        for _ in 0..100 {
            let services = crate::listen::Services::new(crate::event_loops::Connections::here());
            let stop = services.requested_stop();
            let (client, accepted) =
                tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
            let (mut client, (server, _)) = (client.unwrap(), accepted.unwrap());
            let task = tokio::spawn(serve(server, stop, |_| async { Response::new(Body::default()) }));
            client.write_all(REQUEST).await.unwrap();
            let mut first = [0; 12];
            client.read_exact(&mut first).await.unwrap();
            services.stop();
            client.write_all(REQUEST).await.unwrap();
            client.read_to_end(&mut Vec::new()).await.expect("an answer or an end");
            // What a balancer looks at first.
            assert!(client.take_error().unwrap().is_none(), "the connection was reset");
            drop(client);
            task.await.unwrap();
        }
    }

    #[tokio::test]
    async fn what_was_sent_before_the_end_is_answered_and_told_that_it_is_the_last() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        for _ in 0..50 {
            let services = crate::listen::Services::new(crate::event_loops::Connections::here());
            let (client, accepted) =
                tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
            let (mut client, (server, _)) = (client.unwrap(), accepted.unwrap());
            let task =
                tokio::spawn(serve(server, services.requested_stop(), |_| async { Response::new(Body::default()) }));
            client.write_all(REQUEST).await.unwrap();
            client.read_exact(&mut [0; 12]).await.unwrap();
            // Nobody has looked at the socket since.
            client.write_all(REQUEST).await.unwrap();
            services.stop();
            let mut rest = String::new();
            client.read_to_string(&mut rest).await.unwrap();
            let (_, last) = rest.split_once("HTTP/1.1 200").expect("an answer");
            assert!(last.contains("connection: close\r\n"), "{last}");
            task.await.unwrap();
        }
    }

    #[tokio::test]
    async fn what_is_asked_for_is_begun_although_the_client_is_gone() {
        const POST: &[u8] = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";
        let cases =
            [(REQUEST, Some(0)), (POST, Some(2)), (&POST[..POST.len() - 1], None), (&POST[..POST.len() - 2], None)];
        for (sent, expected) in cases {
            let (mut client, server) = tokio::io::duplex(1 << 10);
            client.write_all(sent).await.unwrap();
            drop(client);
            let (begun, mut begins) = mpsc::unbounded_channel();
            let answer = move |request: Request<Incoming>| {
                let begun = begun.clone();
                async move {
                    let Ok(body) = request.into_body().collect().await else {
                        return Response::new(Body::default());
                    };
                    begun.send(body.to_bytes().len()).unwrap();
                    std::future::pending().await
                }
            };
            let services = crate::listen::Services::new(crate::event_loops::Connections::here());
            let served =
                tokio::time::timeout(Duration::from_secs(30), serve(server, services.requested_stop(), answer));
            served.await.expect("nobody waits for the answer");
            assert_eq!(begins.try_recv().ok(), expected, "{}", String::from_utf8_lossy(sent));
        }
    }

    #[tokio::test]
    async fn half_a_head_does_not_delay_the_end_and_an_answer_does() {
        let (mut client, services, parts, task) = connect(Duration::from_secs(3600));
        client.write_all(REQUEST).await.unwrap();
        parts.send(Bytes::from_static(b"first")).unwrap();
        answer(&mut client, b"first\r\n").await;
        services.stop();
        parts.send(Bytes::from_static(b"second")).unwrap();
        answer(&mut client, b"second\r\n").await;
        drop(parts);
        answer(&mut client, b"0\r\n\r\n").await;
        task.await.unwrap();

        // Nothing yet, a part of the first head, a part of the second.
        for sent in [&[], &REQUEST[..10], &[REQUEST, &REQUEST[..10]].concat()] {
            let (mut client, services, parts, task) = connect(Duration::from_secs(3600));
            drop(parts);
            client.write_all(sent).await.unwrap();
            if sent.len() > REQUEST.len() {
                answer(&mut client, b"0\r\n\r\n").await;
            }
            services.stop();
            let ended = tokio::time::timeout(Duration::from_secs(30), task).await;
            ended.expect("half a head is waited for").unwrap();
        }
    }
}
