//! Bodies: reading one within limits, and one to send that consists of parts.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use halimede_serving::Error;
use halimede_tensor::Buffer;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::traces::Record;

/// Most chunks of a body whose length was not announced.
const CHUNKS_MAX: usize = 1 << 16;

/// Room that is made at once for a body of announced length; more only as bytes arrive.
const RESERVED_BYTES_MAX: usize = 64 << 20;

/// Most bytes of a body that are read although nobody wants them.
const DISCARDED_BYTES_MAX: u64 = 1 << 30;

/// Why a body was not read to its end.
#[derive(Debug)]
pub(super) enum Refusal {
    TooLarge(Error),
    TooManyChunks(Error),
    /// The client sent something else than a body, or went away.
    Broken,
}

/// What a body is, for the text that says that it is too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Json,
    /// JSON with binary tensors behind it.
    Mixed,
    /// The tensor of a model with one input.
    Raw,
}

/// Bytes of a read, on average, that is not counted as a small chunk.
const READ_BYTES_LEAST: usize = 512;

/// A body on its way here, and how far it has come.
#[derive(Debug)]
pub(super) struct Arriving {
    body: Incoming,
    /// Whether any of it was asked for.
    is_begun: bool,
    is_broken: bool,
    /// Pieces that came, and their bytes.
    chunks: usize,
    bytes: usize,
}

impl Arriving {
    pub fn new(body: Incoming) -> Self {
        Self { body, is_begun: false, is_broken: false, chunks: 0, bytes: 0 }
    }

    /// Reads a body of up to `bytes_max`. One that arrives in one piece is not copied.
    pub async fn read(&mut self, kind: Kind, bytes_max: usize) -> Result<Bytes, Refusal> {
        let announced = self.body.size_hint().exact();
        if let Some(len) = announced {
            check_size(len, kind, bytes_max)?;
        }
        let Some(first) = self.next().await? else { return Ok(Bytes::new()) };
        if announced == Some(first.len() as u64) {
            return Ok(first);
        }
        let expected = announced.map_or(first.len() * 2, |len| len as usize);
        let mut all = BytesMut::with_capacity(expected.min(RESERVED_BYTES_MAX).max(first.len()));
        all.extend_from_slice(&first);
        while let Some(data) = self.next().await? {
            check_size((all.len() + data.len()) as u64, kind, bytes_max)?;
            all.extend_from_slice(&data);
            if self.has_many_chunks() {
                return Err(Refusal::TooManyChunks(Error::invalid(format!(
                    "Chunked request body exceeds maximum of {CHUNKS_MAX} non-empty chunks. Send fewer or larger HTTP \
                     chunks."
                ))));
            }
        }
        Ok(all.freeze())
    }

    /// Reads what is left and keeps nothing; whether all of it has come. One that is very long, or of very many pieces, is left,
    /// and so is one whose client first `asks` whether it should send it.
    pub async fn finish(&mut self, asks: bool) -> bool {
        if self.body.is_end_stream() {
            return true;
        }
        let is_long = self.body.size_hint().exact().is_some_and(|len| len > DISCARDED_BYTES_MAX);
        if self.is_broken || is_long || (asks && !self.is_begun) {
            return false;
        }
        let most = self.bytes.saturating_add(DISCARDED_BYTES_MAX as usize);
        loop {
            match self.next().await {
                Ok(None) => return true,
                Ok(Some(_)) if self.bytes <= most && !self.has_many_chunks() => {}
                _ => return false,
            }
        }
    }

    /// Whether a body whose length was not announced comes in many small pieces. A long chunk comes in several reads, which are
    /// counted here: many that are not small are no harm.
    fn has_many_chunks(&self) -> bool {
        let is_announced = self.body.size_hint().exact().is_some();
        !is_announced && self.chunks > CHUNKS_MAX && self.bytes < self.chunks * READ_BYTES_LEAST
    }

    /// The next piece of data; trailers are no data.
    async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        self.is_begun = true;
        while let Some(frame) = self.body.frame().await {
            let Ok(frame) = frame else {
                self.is_broken = true;
                return Err(Refusal::Broken);
            };
            match frame.into_data() {
                Ok(data) if !data.is_empty() => {
                    self.chunks += 1;
                    self.bytes = self.bytes.saturating_add(data.len());
                    return Ok(Some(data));
                }
                _ => {}
            }
        }
        Ok(None)
    }
}

fn check_size(len: u64, kind: Kind, bytes_max: usize) -> Result<(), Refusal> {
    if len <= bytes_max as u64 {
        return Ok(());
    }
    let what = match kind {
        Kind::Json => format!("request JSON size of {len} bytes exceeds the maximum allowed input size"),
        Kind::Mixed => format!("request size of {len} bytes exceeds the maximum allowed input size"),
        Kind::Raw => format!("Raw input has a byte_size ({len} bytes) that exceeds the maximum allowed value"),
    };
    Err(Refusal::TooLarge(Error::invalid(format!(
        "{what} of {bytes_max} bytes. Use --http-max-input-size to increase the limit."
    ))))
}

/// A body to send: pieces that were made elsewhere and are not joined.
#[derive(Default)]
pub(crate) struct Body {
    /// In reverse order.
    parts: Vec<Bytes>,
    len: u64,
    /// What follows, piece by piece as it is made.
    rest: Option<UnboundedReceiver<Bytes>>,
    /// The trace that is told when each piece of `rest` is sent.
    traced: Option<TracedPieces>,
    /// What is done once nothing of the body is left to send.
    #[allow(dead_code, reason = "it acts when it is dropped")]
    sent: Option<Sent>,
}

/// Tells a trace when pieces are sent, one after another.
struct TracedPieces {
    record: Arc<Record>,
    is_sending: bool,
}

impl TracedPieces {
    fn begin(&mut self) {
        self.record.mark("HTTP_SEND_START", Instant::now());
        self.is_sending = true;
    }

    /// Whoever sends the piece asks for the next one, or for none.
    fn end(&mut self) {
        if std::mem::take(&mut self.is_sending) {
            self.record.mark("HTTP_SEND_END", Instant::now());
        }
    }
}

impl Drop for TracedPieces {
    fn drop(&mut self) {
        self.end();
    }
}

/// Does something when it is dropped.
struct Sent(Option<Box<dyn FnOnce() + Send>>);

impl Drop for Sent {
    fn drop(&mut self) {
        if let Some(then) = self.0.take() {
            then();
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("parts", &self.parts).field("rest", &self.rest).finish_non_exhaustive()
    }
}

impl Body {
    /// A body of these pieces.
    pub fn from_parts(mut parts: Vec<Bytes>) -> Self {
        parts.retain(|part| !part.is_empty());
        let len = parts.iter().map(|part| part.len() as u64).sum();
        parts.reverse();
        Self { parts, len, ..Self::default() }
    }

    /// A body of pieces that are still to be made. Whoever makes them finds the channel closed when the client
    /// goes away.
    pub fn stream(rest: UnboundedReceiver<Bytes>) -> Self {
        Self { rest: Some(rest), ..Self::default() }
    }

    /// Tells a trace when each piece of a stream is sent.
    pub fn traced(self, record: Arc<Record>) -> Self {
        Self { traced: Some(TracedPieces { record, is_sending: false }), ..self }
    }

    /// Calls `then` once nothing of the body is left to send, or nobody wants it any more.
    pub fn sent_then(self, then: impl FnOnce() + Send + 'static) -> Self {
        Self { sent: Some(Sent(Some(Box::new(then)))), ..self }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() {
            Self::default()
        } else {
            Self { len: bytes.len() as u64, parts: vec![bytes], ..Self::default() }
        }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let body = &mut *self;
        if let Some(rest) = &mut body.rest {
            body.traced.iter_mut().for_each(TracedPieces::end);
            let part = rest.poll_recv(context);
            if let (Poll::Ready(Some(_)), Some(traced)) = (&part, &mut body.traced) {
                traced.begin();
            }
            return part.map(|part| part.map(|part| Ok(Frame::data(part))));
        }
        let part = self.parts.pop();
        self.len -= part.as_ref().map_or(0, |part| part.len() as u64);
        Poll::Ready(part.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty() && self.rest.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        if self.rest.is_some() { SizeHint::default() } else { SizeHint::with_exact(self.len) }
    }
}

/// The bytes of a tensor, shared and not copied.
pub(crate) fn share(buffer: Buffer) -> Bytes {
    struct Owner(Buffer);

    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    Bytes::from_owner(Owner(buffer))
}
