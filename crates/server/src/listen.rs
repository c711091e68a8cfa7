//! Sockets: taken before the models are loaded, opened after.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use halimede_serving::Error;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream, lookup_host},
    sync::{mpsc, watch},
};

use crate::{event_loops::Connections, wakes::absorbed};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// Where a connection cannot be accepted, this long after it is tried again, and told.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
const TELL_AGAIN: Duration = Duration::from_secs(10);

/// A socket that has its address and is not open yet.
#[derive(Debug)]
pub(crate) struct Endpoint {
    socket: TcpSocket,
    name: String,
}

impl Endpoint {
    /// Takes `address:port`.
    ///
    /// # Errors
    /// The address is none, or another program has the port.
    pub async fn bind(address: &str, port: u16, reuse_port: bool) -> Result<Self, Error> {
        let name = format!("{address}:{port}");
        let in_use = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => Error::unavailable(format!("Socket '{name}' already in use ")),
            _ => Error::unavailable(format!("cannot listen at '{name}': {error}")),
        };
        let host = address.trim_start_matches('[').trim_end_matches(']');
        let mut addresses = lookup_host((host, port)).await.map_err(in_use)?;
        let address = addresses.next().ok_or_else(|| Error::unavailable(format!("'{name}' is no address")))?;
        let socket = Self::socket(address, reuse_port).map_err(in_use)?;
        Ok(Self { socket, name })
    }

    fn socket(address: SocketAddr, reuse_port: bool) -> io::Result<TcpSocket> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        if reuse_port {
            socket.set_reuseport(true)?;
        }
        socket.bind(address)?;
        Ok(socket)
    }

    /// Opens the socket: from now on clients can connect.
    pub fn listen(self) -> Result<(TcpListener, SocketAddr), Error> {
        let name = self.name;
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => Error::unavailable(format!("Socket '{name}' already in use ")),
            _ => Error::unavailable(format!("cannot listen at '{name}': {error}")),
        };
        let listener = self.socket.listen(BACKLOG).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok((listener, address))
    }
}

/// How far the server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Open,
    /// No new connections; those there are go on.
    Closed,
    /// Connections end after their current request.
    Ending,
}

/// Tells connections that the server ends.
#[derive(Debug, Clone)]
pub(crate) struct Stop(watch::Receiver<Phase>);

impl Stop {
    /// Returns once connections shall end.
    pub async fn requested(&mut self) {
        self.reached(Phase::Ending).await;
    }

    async fn reached(&mut self, phase: Phase) {
        // A sender that is gone means the same.
        let _ = self.0.wait_for(|now| *now >= phase).await;
    }
}

/// The services of the server: whoever holds this can end them.
#[derive(Debug)]
pub(crate) struct Services {
    phase: watch::Sender<Phase>,
    /// A copy lives in each service and connection.
    alive: mpsc::Sender<()>,
    ended: mpsc::Receiver<()>,
    /// Open connections by the name of their service.
    connections: Vec<(&'static str, Arc<AtomicUsize>)>,
    /// What serves them.
    places: Connections,
}

impl Services {
    /// Connections are served where `places` says.
    pub fn new(places: Connections) -> Self {
        let (alive, ended) = mpsc::channel(1);
        Self { phase: watch::Sender::new(Phase::Open), alive, ended, connections: Vec::new(), places }
    }

    /// Accepts connections on the loop that this is called on, and serves each with `serve`, in the background.
    pub fn spawn<F, S>(&mut self, name: &'static str, listener: TcpListener, serve: F)
    where
        F: Fn(TcpStream, Stop) -> S + Send + Sync + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        let count = Arc::<AtomicUsize>::default();
        self.connections.push((name, count.clone()));
        let (mut stop, alive, serve) = (Stop(self.phase.subscribe()), self.alive.clone(), Arc::new(serve));
        let places = self.places.clone();
        tokio::spawn(async move {
            let connection_stop = stop.clone();
            let accept = async {
                let mut told: Option<Instant> = None;
                loop {
                    let accepted = listener.accept().await.and_then(|(stream, _)| places.place(stream));
                    match accepted {
                        Ok((stream, turn)) => {
                            // Answers are whole messages; waiting for more to send only delays them.
                            let _ = stream.set_nodelay(true);
                            let (connection, alive) = (serve(stream, connection_stop.clone()), alive.clone());
                            let count = count.clone();
                            count.fetch_add(1, Relaxed);
                            turn.runtime().clone().spawn(async move {
                                absorbed(connection).await;
                                count.fetch_sub(1, Relaxed);
                                drop((alive, turn));
                            });
                        }
                        Err(error) => {
                            // Out of descriptors, mostly: connections that end give some back.
                            if told.is_none_or(|told| told.elapsed() >= TELL_AGAIN) {
                                told = Some(Instant::now());
                                tracing::warn!(
                                    "cannot accept connections ({name}), they wait: {error}. Open files are bounded by \
                                     the hard limit of `ulimit -n`, LimitNOFILE of systemd"
                                );
                            }
                            tokio::time::sleep(ACCEPT_AGAIN).await;
                        }
                    }
                }
            };
            tokio::select! {
                () = accept => {}
                () = stop.reached(Phase::Closed) => {}
            }
        });
    }

    /// What a connection is told, for tests that have no socket.
    #[cfg(test)]
    pub fn requested_stop(&self) -> Stop {
        Stop(self.phase.subscribe())
    }

    /// Closes the sockets. Open connections go on.
    pub fn close(&self) {
        self.phase.send_replace(Phase::Closed);
    }

    /// Closes the sockets and asks connections to end after their current request.
    pub fn stop(&self) {
        self.phase.send_replace(Phase::Ending);
    }

    /// Names of services with the number of their open connections.
    pub fn open_connections(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.connections.iter().map(|(name, count)| (*name, count.load(Relaxed))).filter(|(_, count)| *count > 0)
    }

    /// Returns once all connections ended.
    pub async fn ended(mut self) {
        drop(self.alive);
        while self.ended.recv().await.is_some() {}
    }
}
