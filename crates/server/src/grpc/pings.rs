//! Clients that probe too often. gRPC servers count the PING frames that come too soon after each other with
//! nothing sent between, and end the connection of a client that goes on. Hyper answers every PING and
//! counts none, so a layer between it and the socket watches the frames go by.

use std::{
    collections::BTreeSet,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::tls::Stream;

/// How often clients may probe.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PingLimits {
    /// The shortest time between PINGs with nothing sent between.
    pub interval_min: Duration,
    /// How many may come too soon before the connection ends; 0: any number.
    pub strikes_max: u32,
    /// Whether the interval holds for connections without calls too; otherwise it is two hours there.
    pub permit_without_calls: bool,
}

const INTERVAL_WITHOUT_CALLS: Duration = Duration::from_secs(2 * 60 * 60);

/// The PINGs of one connection.
#[derive(Debug)]
struct Pings {
    limits: PingLimits,
    last: Option<Instant>,
    strikes: u32,
}

impl Pings {
    /// Something was sent: the client may ask again.
    fn sent(&mut self) {
        self.last = None;
        self.strikes = 0;
    }

    /// A PING came; whether it is one too many.
    fn is_too_many(&mut self, now: Instant, has_calls: bool) -> bool {
        let needs_interval = has_calls || self.limits.permit_without_calls;
        let interval = if needs_interval { self.limits.interval_min } else { INTERVAL_WITHOUT_CALLS };
        let is_early = self.last.is_some_and(|last| now.saturating_duration_since(last) < interval);
        self.last = Some(now);
        self.strikes += u32::from(is_early);
        is_early && self.limits.strikes_max != 0 && self.strikes > self.limits.strikes_max
    }
}

const FRAME_HEAD: usize = 9;
/// What a client sends before its first frame.
const PREFACE: usize = 24;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;

/// GOAWAY of all streams with the code ENHANCE_YOUR_CALM, as gRPC servers send it.
const TOO_MANY_PINGS: &[u8] = b"\x00\x00\x16\x07\x00\x00\x00\x00\x00\x7f\xff\xff\xff\x00\x00\x00\x0btoo_many_pings";

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
}

/// Finds the frames in the bytes of one direction.
#[derive(Debug)]
struct Frames {
    /// Bytes until the next head.
    skip: usize,
    head: [u8; FRAME_HEAD],
    filled: usize,
}

impl Frames {
    fn new(skip: usize) -> Self {
        Self { skip, head: [0; FRAME_HEAD], filled: 0 }
    }

    /// Whether all bytes so far make whole frames.
    fn is_at_boundary(&self) -> bool {
        self.skip == 0 && self.filled == 0
    }

    fn feed(&mut self, mut bytes: &[u8], mut found: impl FnMut(Frame)) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return;
            }
            let taken = (FRAME_HEAD - self.filled).min(bytes.len());
            self.head[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == FRAME_HEAD {
                let [a, b, c, kind, flags, stream @ ..] = self.head;
                self.filled = 0;
                self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
                found(Frame { kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff });
            }
        }
    }
}

/// A connection whose PINGs are counted.
#[derive(Debug)]
pub(super) struct Watched {
    stream: Stream,
    received: Frames,
    sent: Frames,
    calls: BTreeSet<u32>,
    call_last: u32,
    pings: Pings,
    has_begun: Arc<AtomicBool>,
}

impl Watched {
    pub fn new(stream: Stream, limits: PingLimits) -> Self {
        Self {
            has_begun: Arc::default(),
            stream,
            received: Frames::new(PREFACE),
            sent: Frames::new(0),
            calls: BTreeSet::new(),
            call_last: 0,
            pings: Pings { limits, last: None, strikes: 0 },
        }
    }

    /// Whether the client has sent what comes before its calls.
    pub fn has_begun(&self) -> Arc<AtomicBool> {
        self.has_begun.clone()
    }

    /// Looks at bytes from the client.
    fn look_at_received(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Self { received, calls, call_last, pings, has_begun, .. } = self;
        let mut is_too_many = false;
        received.feed(bytes, |frame| match frame.kind {
            // Trailers come on a stream that is known.
            HEADERS if frame.stream > *call_last => {
                *call_last = frame.stream;
                calls.insert(frame.stream);
            }
            RST_STREAM => drop(calls.remove(&frame.stream)),
            PING if frame.flags & ACK == 0 => is_too_many |= pings.is_too_many(Instant::now(), !calls.is_empty()),
            _ => {}
        });
        if received.skip == 0 && !has_begun.load(Relaxed) {
            has_begun.store(true, Relaxed);
        }
        if !is_too_many {
            return Ok(());
        }
        if self.sent.is_at_boundary() {
            self.stream.try_write_last(TOO_MANY_PINGS);
        }
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the client sends too many pings"))
    }

    /// Looks at bytes to the client.
    fn look_at_sent(&mut self, bytes: &[u8]) {
        let Self { sent, calls, pings, .. } = self;
        sent.feed(bytes, |frame| match frame.kind {
            DATA | HEADERS => {
                pings.sent();
                if frame.flags & END_STREAM != 0 {
                    calls.remove(&frame.stream);
                }
            }
            RST_STREAM => drop(calls.remove(&frame.stream)),
            _ => {}
        });
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        Poll::Ready(self.look_at_received(&buf.filled()[before..]))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.look_at_sent(&buf[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bufs))?;
        let mut left = written;
        for buf in bufs {
            let part = left.min(buf.len());
            self.look_at_sent(&buf[..part]);
            left -= part;
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_however_the_bytes_arrive() {
        let bytes =
            [&[7; PREFACE][..], b"\x00\x00\x02\x06\x01\x00\x00\x00\x00ab", b"\x00\x00\x00\x01\x05\x80\x00\x00\x03"]
                .concat();
        let expected = [Frame { kind: PING, flags: 1, stream: 0 }, Frame { kind: HEADERS, flags: 5, stream: 3 }];
        for size in 1..bytes.len() {
            let (mut frames, mut found) = (Frames::new(PREFACE), Vec::new());
            bytes.chunks(size).for_each(|chunk| frames.feed(chunk, |frame| found.push(frame)));
            assert_eq!(found, expected, "in pieces of {size}");
            assert!(frames.is_at_boundary());
        }
        let mut frames = Frames::new(0);
        frames.feed(TOO_MANY_PINGS, |frame| assert_eq!((frame.kind, frame.stream), (7, 0)));
        assert!(frames.is_at_boundary(), "the length of the frame is right");
    }

    #[test]
    fn early_pings_are_counted_until_something_is_sent() {
        let limits = PingLimits { interval_min: Duration::from_secs(10), strikes_max: 2, permit_without_calls: false };
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pings = Pings { limits, last: None, strikes: 0 };
        let seen = |pings: &mut Pings, seconds, has_calls| pings.is_too_many(at(seconds), has_calls);
        assert_eq!([0, 10, 20, 21, 22].map(|now| seen(&mut pings, now, true)), [false; 5], "two strikes are allowed");
        assert!(seen(&mut pings, 23, true));
        pings.sent();
        assert_eq!([24, 25, 26].map(|now| seen(&mut pings, now, true)), [false; 3]);
        pings.sent();
        assert_eq!([100, 1000, 2000].map(|now| seen(&mut pings, now, false)), [false; 3]);
        assert!(seen(&mut pings, 3000, false), "without calls the interval is two hours");
        let limits = PingLimits { strikes_max: 0, ..limits };
        let mut pings = Pings { limits, last: None, strikes: 0 };
        assert!((0..100).all(|_| !seen(&mut pings, 0, true)), "0 is no limit");
    }
}
