//! The threads that serve connections, each with an event loop of its own.
//!
//! A connection stays on the loop that it was given to. One runtime with several threads would share its tasks among
//! them: where two requests come together, the thread that finds them wakes another, and both find code and data out of
//! their caches, again and again. For requests that take some microseconds that costs more than they do. So the first loop gets
//! the first connections, and another one only gets some where those before it have [`GROUP`].

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::{
    net::TcpStream,
    runtime::{Builder, Handle, Runtime, RuntimeFlavor},
    task,
};

/// Connections that a loop gets before the next one gets some. More of them save processor time where requests are short;
/// fewer leave less to wait for each other where they are long.
const GROUP: usize = 4;

/// Tasks that are run before a loop looks what has come: a connection whose client sends requests without waiting for answers always has
/// work, and is polled again and again for some dozens of them at a time.
const EVENT_INTERVAL: u32 = 4;

/// Bytes of text, or of what becomes text, that a loop reads and writes itself: they take it less than a millisecond.
pub(crate) const TEXT_BYTES_MAX: usize = 32 << 10;

/// Bytes of other messages that a loop decodes itself.
pub(crate) const BYTES_MAX: usize = 2 << 20;

/// Does work for a connection. Where that is long another thread takes the loop meanwhile, so that the other connections, and those
/// that come, need not wait. Changing threads costs some ten microseconds.
pub(crate) fn aside<T>(is_long: bool, work: impl FnOnce() -> T) -> T {
    let is_on_loop = || Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if is_long && is_on_loop() { task::block_in_place(work) } else { work() }
}

/// The loops, which run until this is dropped.
#[derive(Debug)]
pub(crate) struct EventLoops {
    runtimes: Vec<Runtime>,
}

impl EventLoops {
    /// Starts as many.
    ///
    /// # Errors
    /// The system gives no more threads or files.
    pub fn start(count: usize) -> io::Result<Self> {
        let start = |_| {
            // Of the kind with several threads, so that another one can take the place of the only one where work takes long.
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(1).event_interval(EVENT_INTERVAL).thread_name("halimede-io").enable_all().build()
        };
        Ok(Self { runtimes: (0..count.max(1)).map(start).collect::<io::Result<_>>()? })
    }

    /// The loop that also does what belongs to no connection.
    pub fn first(&self) -> &Runtime {
        // There is at least one.
        &self.runtimes[0]
    }

    /// Shares connections out among the loops.
    pub fn connections(&self) -> Connections {
        Connections(self.runtimes.iter().map(|runtime| Place::new(runtime.handle().clone())).collect())
    }
}

/// Which loop has how many connections.
#[derive(Debug, Clone)]
pub(crate) struct Connections(Arc<[Place]>);

#[derive(Debug)]
struct Place {
    runtime: Handle,
    connections: AtomicUsize,
}

impl Place {
    fn new(runtime: Handle) -> Self {
        Self { runtime, connections: AtomicUsize::new(0) }
    }
}

impl Connections {
    /// All on the loop that this is called on.
    #[cfg(test)]
    pub fn here() -> Self {
        Self([Place::new(Handle::current())].into())
    }

    /// Gives a connection that another loop accepted to the one whose turn it is.
    ///
    /// # Errors
    /// The system lets nobody listen to it.
    pub fn place(&self, stream: TcpStream) -> io::Result<(TcpStream, Turn)> {
        let turn = self.turn();
        let runtime = turn.runtime();
        if runtime.id() == Handle::current().id() {
            return Ok((stream, turn));
        }
        let stream = stream.into_std()?;
        let _context = runtime.enter();
        Ok((TcpStream::from_std(stream)?, turn))
    }

    /// The first of the loops that have the fewest whole groups.
    fn turn(&self) -> Turn {
        let groups = |(_, place): &(usize, &Place)| place.connections.load(Relaxed) / GROUP;
        let index = self.0.iter().enumerate().min_by_key(groups).map_or(0, |(index, _)| index);
        self.0[index].connections.fetch_add(1, Relaxed);
        Turn { connections: self.clone(), index }
    }
}

/// A connection's place on a loop, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    connections: Connections,
    index: usize,
}

impl Turn {
    /// The loop.
    pub fn runtime(&self) -> &Handle {
        &self.connections.0[self.index].runtime
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.connections.0[self.index].connections.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    #[test]
    fn the_first_loop_is_filled_first_and_all_get_as_many_in_the_end() {
        let loops = EventLoops::start(3).unwrap();
        let connections = loops.connections();
        let mut turns: Vec<Turn> = (0..6 * GROUP).map(|_| connections.turn()).collect();
        let indices: Vec<usize> = turns.iter().map(|turn| turn.index).collect();
        let expected: Vec<usize> = (0..6 * GROUP).map(|number| number / GROUP % 3).collect();
        assert_eq!(indices, expected);
        // A connection that ends leaves its place to the next.
        turns.remove(GROUP);
        assert_eq!(connections.turn().index, 1);
    }

    #[test]
    fn others_are_heard_beside_who_always_has_work() {
        let loops = EventLoops::start(1).unwrap();
        let runtime = loops.first();
        let polls = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            let is_read = Arc::<AtomicUsize>::default();
            let seen = is_read.clone();
            let (waits, waiting) = tokio::sync::oneshot::channel();
            let reader = runtime.spawn(async move {
                waits.send(()).unwrap();
                stream.read_u8().await.unwrap();
                seen.store(1, Relaxed);
            });
            waiting.await.unwrap();
            let mut polls = 0;
            let busy = runtime.spawn(std::future::poll_fn(move |context| {
                polls += 1;
                if polls == 10 {
                    std::io::Write::write_all(&mut client, b"x").unwrap();
                }
                if is_read.load(Relaxed) == 1 {
                    return std::task::Poll::Ready(polls - 10);
                }
                // The system may take a moment to bring the byte.
                std::thread::sleep(std::time::Duration::from_millis(1));
                context.waker().wake_by_ref();
                std::task::Poll::Pending
            }));
            reader.await.unwrap();
            busy.await.unwrap()
        });
        // Of a runtime's own 61 tasks it would be as many.
        assert!(polls <= 4 * EVENT_INTERVAL, "{polls}");
    }

    #[test]
    fn others_go_on_beside_long_work() {
        let loops = EventLoops::start(1).unwrap();
        let (there, arrives) = std::sync::mpsc::channel();
        let runtime = loops.first();
        // Waits for what only the same loop's next task does.
        let long = runtime.spawn(async move { aside(true, || arrives.recv().unwrap()) });
        runtime.spawn(async move { there.send(7).unwrap() });
        assert_eq!(runtime.block_on(long).unwrap(), 7);
        assert_eq!(aside(true, || 8), 8);
    }

    #[test]
    fn a_connection_is_served_by_the_loop_that_it_is_given_to() {
        let loops = EventLoops::start(2).unwrap();
        let connections = loops.connections();
        let first: Vec<Turn> = (0..GROUP).map(|_| connections.turn()).collect();
        loops.first().block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
            let (mut stream, turn) = connections.place(accepted.unwrap().0).unwrap();
            assert_eq!(turn.index, 1);
            let loop_of_turn = turn.runtime().id();
            let served = turn.runtime().clone().spawn(async move {
                stream.write_all(b"here").await.unwrap();
                drop(turn);
                Handle::current().id()
            });
            let mut text = String::new();
            client.unwrap().read_to_string(&mut text).await.unwrap();
            assert_eq!((text.as_str(), served.await.unwrap()), ("here", loop_of_turn));
        });
        drop(first);
        assert!(connections.0.iter().all(|place| place.connections.load(Relaxed) == 0));
    }
}
