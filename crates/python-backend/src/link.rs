//! The socket to a process. Whoever has a message hands it over and goes on: what the socket does not take at once is
//! written when the process has read. One task of the runtime reads.

use std::{collections::VecDeque, io, net::Shutdown, os::unix::net, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    io::AsyncReadExt as _,
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime::Handle,
};

use crate::protocol::{Incoming, Message};

/// The way of messages to the process.
pub(crate) struct Link {
    socket: OwnedWriteHalf,
    /// The same, to be closed without waiting.
    closing: net::UnixStream,
    outgoing: Mutex<Outgoing>,
    /// Where tasks of this run.
    runtime: Handle,
}

/// What the socket did not take yet.
#[derive(Default)]
struct Outgoing {
    messages: VecDeque<Vec<u8>>,
    /// Bytes of the first that are written.
    written: usize,
}

/// The way of messages from the process.
pub(crate) struct Messages {
    socket: OwnedReadHalf,
    incoming: Incoming,
}

/// Both ways of a connected socket; `runtime` serves it.
pub(crate) fn open(socket: net::UnixStream, runtime: &Handle) -> io::Result<(Link, Messages)> {
    let closing = socket.try_clone()?;
    socket.set_nonblocking(true)?;
    let _context = runtime.enter();
    let (from, to) = UnixStream::from_std(socket)?.into_split();
    let link = Link { socket: to, closing, outgoing: Mutex::default(), runtime: runtime.clone() };
    Ok((link, Messages { socket: from, incoming: Incoming::default() }))
}

impl Link {
    /// Sends a message behind those before it, and does not wait. Whether it arrives is heard of where messages are
    /// read: a process that does not read any more has ended, or will be ended.
    pub fn send(self: &Arc<Self>, message: Vec<u8>) {
        let mut outgoing = self.outgoing.lock();
        let is_idle = outgoing.messages.is_empty();
        outgoing.messages.push_back(message);
        // Otherwise somebody waits already.
        if is_idle && outgoing.write(&self.socket).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.runtime.spawn(self.clone().flush());
        }
    }

    /// Writes what was not taken at once.
    async fn flush(self: Arc<Self>) {
        loop {
            let writable = self.socket.writable().await;
            let written = writable.and_then(|()| self.outgoing.lock().write(&self.socket));
            match written {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(()) | Err(_) => return,
            }
        }
    }

    /// Both ends find the end of the bytes.
    pub fn close(&self) {
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
    fn write(&mut self, socket: &OwnedWriteHalf) -> io::Result<()> {
        while let Some(message) = self.messages.front() {
            match socket.try_write(&message[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if error.kind() != io::ErrorKind::WouldBlock {
                        *self = Self::default();
                    }
                    return Err(error);
                }
            }
            if self.written == message.len() {
                self.messages.pop_front();
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

    fn opened() -> (tokio::runtime::Runtime, Arc<Link>, Messages, net::UnixStream) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (ours, theirs) = net::UnixStream::pair().unwrap();
        let (link, messages) = open(ours, runtime.handle()).unwrap();
        (runtime, Arc::new(link), messages, theirs)
    }

    #[test]
    fn nobody_waits_for_a_process_that_does_not_read() {
        let (_runtime, link, _messages, mut theirs) = opened();
        let messages: Vec<Vec<u8>> = (0..100).map(|number| vec![number; 100_000]).collect();
        for message in &messages {
            link.send(message.clone());
        }
        let mut read = vec![0; 100 * 100_000];
        theirs.read_exact(&mut read).unwrap();
        assert!(read == messages.concat());
        assert!(link.outgoing.lock().messages.is_empty());
        link.send(b"and on".to_vec());
        theirs.read_exact(&mut read[..6]).unwrap();
        assert_eq!(&read[..6], b"and on");
    }

    #[test]
    fn what_nobody_will_read_is_not_kept() {
        let (runtime, link, _messages, theirs) = opened();
        link.send(vec![0; 10 << 20]);
        drop(theirs);
        // The task that waits for the process to read ends, and so does its hold on the link.
        runtime.block_on(async {
            while Arc::strong_count(&link) > 1 {
                tokio::task::yield_now().await;
            }
        });
        link.send(vec![0; 10]);
        assert!(link.outgoing.lock().messages.is_empty());
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
