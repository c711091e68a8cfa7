//! Waiting for SIGINT and SIGTERM, with or without an async runtime.
//!
//! The handler does one thing that is allowed inside a handler: it writes the signal's number
//! into a pipe. A [`SignalListener`] reads the other end, from a plain thread
//! ([`wait`](SignalListener::wait)) or, as it is a file descriptor that never blocks, from an
//! event loop ([`AsFd`] and [`next`](SignalListener::next)).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use crate::Error;
use crate::unix;

/// A request of the outside world to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signal {
    /// SIGINT: Ctrl-C in a terminal.
    Interrupt,
    /// SIGTERM: what `kill`, init systems and container runtimes send.
    Terminate,
}

impl Signal {
    const ALL: [Self; 2] = [Self::Interrupt, Self::Terminate];

    /// The system's number of this signal.
    pub fn number(self) -> i32 {
        match self {
            Self::Interrupt => libc::SIGINT,
            Self::Terminate => libc::SIGTERM,
        }
    }

    /// The system's name of this signal.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }
}

/// Ends this process where nobody reads what it prints any more, as programs do whose output goes to `head`: Rust has its
/// programs see an error instead, at which printing panics. For programs that print and do nothing else that would be left half
/// done.
pub fn end_with_reader() {
    // SAFETY: no handler runs, and only the disposition of this signal changes.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Lets this process live on where a file would become larger than its limit (`ulimit -f`): writing is an error then, which can be
/// told, while the signal would end it without a line. Programs that it starts are ended as ever, since a handler is not handed
/// on to them.
pub fn outlive_file_size_limit() {
    extern "C" fn do_nothing(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = do_nothing;
    // SAFETY: the handler does nothing, which is allowed at any moment.
    unsafe { libc::signal(libc::SIGXFSZ, handler as *const () as libc::sighandler_t) };
}

/// Where the handler writes: a descriptor, or one of the two states below. A signal handler has
/// no argument of its own, so this has to be global; nothing but the handler reads it.
static HANDLER_PIPE: AtomicI32 = AtomicI32::new(NO_LISTENER);
const NO_LISTENER: i32 = -1;
const BEING_INSTALLED: i32 = -2;

/// Catches SIGINT and SIGTERM from its creation until it is dropped; one per process at a time.
#[derive(Debug)]
pub struct SignalListener {
    pipe: OwnedFd,
    previous: Vec<(Signal, libc::sigaction)>,
}

impl SignalListener {
    /// Takes over SIGINT and SIGTERM.
    ///
    /// # Errors
    /// When the process has a listener already, or the system refuses a pipe or a handler.
    pub fn install() -> Result<Self, Error> {
        let failed = |cause| Error::new("listen for", "SIGINT and SIGTERM", cause);
        if HANDLER_PIPE.compare_exchange(NO_LISTENER, BEING_INSTALLED, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(failed(io::Error::new(io::ErrorKind::AlreadyExists, "this process has a listener already")));
        }
        let (read, write) = match unix::pipe() {
            Ok(ends) => ends,
            Err(cause) => {
                HANDLER_PIPE.store(NO_LISTENER, Ordering::Release);
                return Err(failed(cause));
            }
        };
        // The writing end stays open for ever: a handler on another thread may have read the
        // number just before the listener is dropped, and the number must not name another file.
        HANDLER_PIPE.store(std::os::fd::IntoRawFd::into_raw_fd(write), Ordering::Release);
        let mut listener = Self { pipe: read, previous: Vec::with_capacity(Signal::ALL.len()) };
        for signal in Signal::ALL {
            // A failure drops `listener`, which restores the handlers set so far.
            let previous = set_handler(signal).map_err(failed)?;
            listener.previous.push((signal, previous));
        }
        Ok(listener)
    }

    /// Blocks until a signal arrives.
    pub fn wait(&self) -> Result<Signal, Error> {
        loop {
            if let Some(signal) = self.wait_timeout(Duration::from_secs(3600))? {
                return Ok(signal);
            }
        }
    }

    /// Blocks until a signal arrives or `timeout` has passed (`None`).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<Signal>, Error> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(signal) = self.next()? {
                return Ok(Some(signal));
            }
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            // Rounded up, so that the last round sleeps rather than spins.
            let milliseconds = i32::try_from(left.as_millis().saturating_add(1)).unwrap_or(i32::MAX);
            let mut poll = libc::pollfd { fd: self.pipe.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid `pollfd`.
            match unix::check(unsafe { libc::poll(&mut poll, 1, milliseconds) }) {
                Err(cause) if cause.kind() != io::ErrorKind::Interrupted => {
                    return Err(Error::new("wait for", "SIGINT and SIGTERM", cause));
                }
                _ => {}
            }
        }
    }

    /// The next signal that has arrived, if any; never blocks. Each arrival counts once, so a
    /// second Ctrl-C can mean more than the first.
    pub fn next(&self) -> Result<Option<Signal>, Error> {
        loop {
            let mut number = 0u8;
            // SAFETY: room for the one byte that is read.
            let count = unsafe { libc::read(self.pipe.as_raw_fd(), (&raw mut number).cast(), 1) };
            match count {
                1 => {
                    let signal = Signal::ALL.into_iter().find(|signal| signal.number() == i32::from(number));
                    if signal.is_some() {
                        return Ok(signal);
                    }
                }
                0 => {
                    let cause = io::ErrorKind::UnexpectedEof.into();
                    return Err(Error::new("read from", "the signal pipe", cause));
                }
                _ => {
                    let cause = io::Error::last_os_error();
                    match cause.kind() {
                        io::ErrorKind::WouldBlock => return Ok(None),
                        io::ErrorKind::Interrupted => {}
                        _ => return Err(Error::new("read from", "the signal pipe", cause)),
                    }
                }
            }
        }
    }
}

impl AsFd for SignalListener {
    /// Readable when [`next`](Self::next) has a signal.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

impl AsRawFd for SignalListener {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.pipe.as_raw_fd()
    }
}

impl Drop for SignalListener {
    fn drop(&mut self) {
        for (signal, previous) in &self.previous {
            // SAFETY: an action that `sigaction` itself filled in; no old one is asked for.
            unsafe { libc::sigaction(signal.number(), previous, std::ptr::null_mut()) };
        }
        HANDLER_PIPE.store(NO_LISTENER, Ordering::Release);
    }
}

fn set_handler(signal: Signal) -> io::Result<libc::sigaction> {
    let handler: extern "C" fn(libc::c_int) = on_signal;
    // SAFETY: all zero bytes are a valid `sigaction`: default handler, empty mask, no flags.
    let (mut action, mut previous): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: both structures are valid; `on_signal` only makes async-signal-safe calls.
    unix::check(unsafe { libc::sigaction(signal.number(), &action, &mut previous) })?;
    Ok(previous)
}

/// Runs between any two instructions of any thread: no allocation, no lock, no formatting.
/// It makes one `write` and leaves `errno` as it was.
extern "C" fn on_signal(number: libc::c_int) {
    let pipe = HANDLER_PIPE.load(Ordering::Acquire);
    if pipe < 0 {
        return;
    }
    let byte = number as u8;
    let errno = crate::system::errno_location();
    // SAFETY: `errno` is this thread's own and always exists, `byte` is one readable byte, and the writing end of the
    // pipe is never closed. A full pipe holds thousands of signals already: losing one is right.
    unsafe {
        let saved = *errno;
        libc::write(pipe, (&raw const byte).cast(), 1);
        *errno = saved;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(signal: Signal) {
        // SAFETY: sends a signal, for which the test has a handler, to this process.
        assert_eq!(unsafe { libc::kill(libc::getpid(), signal.number()) }, 0);
    }

    /// One test, as there is one listener per process and tests run in parallel.
    #[test]
    fn signals_arrive_one_by_one_until_the_listener_is_dropped() {
        let listener = SignalListener::install().unwrap();
        assert_eq!(listener.wait_timeout(Duration::from_millis(10)).unwrap(), None);
        send(Signal::Terminate);
        assert_eq!(listener.wait().unwrap(), Signal::Terminate);
        send(Signal::Interrupt);
        assert_eq!(listener.wait_timeout(Duration::from_secs(10)).unwrap(), Some(Signal::Interrupt));
        assert_eq!(listener.next().unwrap(), None);

        let second = SignalListener::install().unwrap_err();
        assert!(second.to_string().contains("a listener already"), "{second}");

        // A thread that waits is woken by a signal that another thread receives.
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| listener.wait());
            send(Signal::Interrupt);
            assert_eq!(waiter.join().unwrap().unwrap(), Signal::Interrupt);
        });

        drop(listener);
        let again = SignalListener::install().unwrap();
        send(Signal::Terminate);
        assert_eq!(again.wait().unwrap(), Signal::Terminate);
        assert_eq!(again.next().unwrap(), None);
    }
}
