//! The sockets to a process: one for messages, and one over which the process gets memory, so that it can read the first without
//! looking for descriptors, which takes longer. Whoever has a message hands it over and goes on: what a socket does not take at
//! once is written when the process has read. One task of the runtime reads.

use std::{
    collections::VecDeque,
    io,
    net::Shutdown,
    os::{fd::AsFd as _, unix::net},
    sync::Arc,
};

use halimede_platform::shared_memory::send_with_descriptor;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, Interest},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime::Handle,
};

use crate::protocol::{Encoded, Incoming, Message};

/// The ways of messages and of memory to the process.
pub(crate) struct Link {
    messages: Arc<Way>,
    memory: Arc<Way>,
}

/// A way to the process.
struct Way {
    socket: OwnedWriteHalf,
    /// The socket of messages, to be closed without waiting.
    closing: Arc<net::UnixStream>,
    outgoing: Mutex<Outgoing>,
    /// Where tasks of this run.
    runtime: Handle,
}

/// What the socket did not take yet.
#[derive(Default)]
struct Outgoing {
    parts: VecDeque<Encoded>,
    /// Bytes of the first that are written.
    written: usize,
}

/// The way of messages from the process.
pub(crate) struct Messages {
    socket: OwnedReadHalf,
    incoming: Incoming,
}

/// Both ways of a connected socket; `runtime` serves it. The first byte that the process reads there comes with the socket of
/// memory.
pub(crate) fn open(socket: net::UnixStream, runtime: &Handle) -> io::Result<(Link, Messages)> {
    let (memory, theirs) = net::UnixStream::pair()?;
    send_with_descriptor(socket.as_fd(), &[0], theirs.as_fd())?;
    let closing = Arc::new(socket.try_clone()?);
    socket.set_nonblocking(true)?;
    memory.set_nonblocking(true)?;
    let _context = runtime.enter();
    let (from, to) = UnixStream::from_std(socket)?.into_split();
    let messages = Arc::new(Way::new(to, &closing, runtime));
    let (_, memory) = UnixStream::from_std(memory)?.into_split();
    let memory = Arc::new(Way::new(memory, &closing, runtime));
    Ok((Link { messages, memory }, Messages { socket: from, incoming: Incoming::default() }))
}

impl Link {
    /// Sends a message, and the segment that it speaks of, as [`Way::send`] does.
    pub fn send(&self, message: Encoded) {
        let Encoded { bytes, segment } = message;
        if let Some(segment) = segment {
            self.memory.send(Encoded { bytes: segment.number().to_le_bytes().to_vec(), segment: Some(segment) });
        }
        self.messages.send(Encoded { bytes, segment: None });
    }

    /// Both ends find the end of the bytes.
    pub fn close(&self) {
        self.messages.close();
    }
}

impl Way {
    fn new(socket: OwnedWriteHalf, closing: &Arc<net::UnixStream>, runtime: &Handle) -> Self {
        Self { socket, closing: closing.clone(), outgoing: Mutex::default(), runtime: runtime.clone() }
    }

    /// Sends a message behind those before it, and does not wait. Whether it arrives is heard of where messages are
    /// read: a process that does not read any more has ended, or will be ended.
    fn send(self: &Arc<Self>, message: Encoded) {
        let mut outgoing = self.outgoing.lock();
        let is_idle = outgoing.parts.is_empty();
        outgoing.parts.push_back(message);
        // Otherwise somebody waits already.
        if is_idle && self.write(&mut outgoing) {
            self.runtime.spawn(self.clone().flush());
        }
    }

    /// Writes as much as the socket takes; whether the rest is to be written later.
    fn write(&self, outgoing: &mut Outgoing) -> bool {
        let Err(error) = outgoing.write(self.socket.as_ref()) else { return false };
        if error.kind() == io::ErrorKind::WouldBlock {
            return true;
        }
        if !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) {
            // What it is not told it would be waited for without end.
            tracing::error!("cannot send to a Python process, which is ended: {error}");
            self.close();
        }
        false
    }

    /// Writes what was not taken at once.
    async fn flush(self: Arc<Self>) {
        while self.socket.as_ref().writable().await.is_ok() && self.write(&mut self.outgoing.lock()) {}
    }

    fn close(&self) {
        // One that is closed already needs no closing.
        let _ = self.closing.shutdown(Shutdown::Both);
    }
}

impl Messages {
    /// Waits for more, and reads it; false at the end. What was read is kept where nobody waits for it any more.
    pub async fn read(&mut self) -> io::Result<bool> {
        Ok(self.socket.read_buf(self.incoming.room()).await? > 0)
    }

    /// The next message of what was read.
    pub fn next(&mut self) -> io::Result<Option<Message>> {
        self.incoming.next()
    }
}

impl Outgoing {
    /// Writes as much as the socket takes.
    ///
    /// # Errors
    /// `WouldBlock`: it takes no more now. Otherwise nobody reads it any more, and nothing is left here.
    fn write(&mut self, socket: &UnixStream) -> io::Result<()> {
        while let Some(Encoded { bytes, segment }) = self.parts.front() {
            let written = match segment.as_ref().filter(|_| self.written == 0) {
                Some(segment) => socket.try_io(Interest::WRITABLE, || segment.send(socket.as_fd(), bytes)),
                None => socket.try_write(&bytes[self.written..]),
            };
            match written {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if error.kind() != io::ErrorKind::WouldBlock {
                        *self = Self::default();
                    }
                    return Err(error);
                }
            }
            if self.written == bytes.len() {
                self.parts.pop_front();
                self.written = 0;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn opened() -> (tokio::runtime::Runtime, Link, Messages, net::UnixStream) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (ours, mut theirs) = net::UnixStream::pair().unwrap();
        let (link, messages) = open(ours, runtime.handle()).unwrap();
        // The socket of memory comes with it, which nobody takes here.
        theirs.read_exact(&mut [0]).unwrap();
        (runtime, link, messages, theirs)
    }

    fn message(bytes: impl Into<Vec<u8>>) -> Encoded {
        Encoded { bytes: bytes.into(), segment: None }
    }

    #[test]
    fn nobody_waits_for_a_process_that_does_not_read() {
        let (_runtime, link, _messages, mut theirs) = opened();
        let messages: Vec<Vec<u8>> = (0..100).map(|number| vec![number; 100_000]).collect();
        for bytes in &messages {
            link.send(message(bytes.clone()));
        }
        let mut read = vec![0; 100 * 100_000];
        theirs.read_exact(&mut read).unwrap();
        assert!(read == messages.concat());
        assert!(link.messages.outgoing.lock().parts.is_empty());
        link.send(message("and on"));
        theirs.read_exact(&mut read[..6]).unwrap();
        assert_eq!(&read[..6], b"and on");
    }

    #[test]
    fn what_nobody_will_read_is_not_kept() {
        let (runtime, link, _messages, theirs) = opened();
        link.send(message(vec![0; 10 << 20]));
        drop(theirs);
        // The task that waits for the process to read ends, and so does its hold on the link.
        runtime.block_on(async {
            while Arc::strong_count(&link.messages) > 1 {
                tokio::task::yield_now().await;
            }
        });
        link.send(message(vec![0; 10]));
        assert!(link.messages.outgoing.lock().parts.is_empty());
    }

    #[test]
    fn messages_are_read_in_pieces_and_to_the_end() {
        use std::io::Write as _;
        let (runtime, _link, mut messages, mut theirs) = opened();
        let text = br#"{"forget_metric":{"number":7}}"#;
        theirs.write_all(&(text.len() as u32).to_le_bytes()).unwrap();
        assert!(runtime.block_on(messages.read()).unwrap() && messages.next().unwrap().is_none());
        theirs.write_all(text).unwrap();
        assert!(runtime.block_on(messages.read()).unwrap());
        assert!(matches!(messages.next(), Ok(Some(Message::ForgetMetric { number: 7 }))));
        drop(theirs);
        assert!(!runtime.block_on(messages.read()).unwrap());
    }
}
