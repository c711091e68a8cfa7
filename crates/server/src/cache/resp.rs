//! The protocol of Redis servers, RESP2, as far as the cache speaks it.

use std::{
    fmt, io,
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// Longest value that a server may send: Redis allows no longer ones.
const BULK_BYTES_MAX: usize = 512 << 20;
/// Longest line: status and error replies.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// What a server answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// `OK`, `PONG`.
    Status(String),
    /// A value; `None` where there is none.
    Bulk(Option<Vec<u8>>),
    Integer(i64),
}

/// Why a command has no reply.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection is of no use any more.
    Broken(io::Error),
    /// The server refuses the command.
    Refused(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Broken(error) => error.fmt(f),
            Failure::Refused(text) => f.write_str(text),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Broken(error)
    }
}

/// A connection to a server.
#[derive(Debug)]
pub(super) struct Connection {
    stream: BufReader<Socket>,
}

/// A socket on which nothing lasts beyond a moment, however many reads and writes it takes.
#[derive(Debug)]
struct Socket {
    stream: TcpStream,
    until: Instant,
}

impl Connection {
    /// Opens a connection, within `timeout` for the name of the host and all its addresses.
    pub fn open(host: &str, port: u16, timeout: Duration) -> io::Result<Self> {
        let until = Instant::now() + timeout;
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses(host, port, until)? {
            match left(until).and_then(|left| TcpStream::connect_timeout(&address, left)) {
                Ok(stream) => {
                    // Commands are whole messages.
                    stream.set_nodelay(true)?;
                    return Ok(Self { stream: BufReader::new(Socket { stream, until }) });
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Sends a command and waits for its whole reply, until `until`.
    pub fn call(&mut self, command: &[&[u8]], until: Instant) -> Result<Reply, Failure> {
        self.stream.get_mut().until = until;
        self.stream.get_mut().write_all(&encode(command))?;
        read(&mut self.stream)
    }
}

/// The addresses of a host.
fn addresses(host: &str, port: u16, until: Instant) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let name = host.to_owned();
    let found = within(until, move || (name.as_str(), port).to_socket_addrs().map(Vec::from_iter))?;
    found.unwrap_or_else(|| Err(io::Error::new(io::ErrorKind::TimedOut, format!("{host} is not found in time"))))
}

/// What `work` gives, if it does in time. The system's lookup of names has no limit of its own and cannot be ended: a thread
/// waits for it, as long as it takes.
fn within<T: Send + 'static>(until: Instant, work: impl FnOnce() -> T + Send + 'static) -> io::Result<Option<T>> {
    let (done, heard) = mpsc::channel();
    let left = left(until)?;
    thread::Builder::new().name("halimede-lookup".to_owned()).spawn(move || {
        // Nobody hears what comes too late.
        let _ = done.send(work());
    })?;
    Ok(heard.recv_timeout(left).ok())
}

/// The time until a moment.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(late()) } else { Ok(left) }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it takes too long to answer")
}

/// A socket's own timeout has another name on some systems.
fn named(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { late() } else { error }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.until)?))?;
        self.stream.read(buffer).map_err(named)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(left(self.until)?))?;
        self.stream.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// A command on the wire: its parts, each with its length.
fn encode(command: &[&[u8]]) -> Vec<u8> {
    let mut wire = format!("*{}\r\n", command.len()).into_bytes();
    for part in command {
        wire.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        wire.extend_from_slice(part);
        wire.extend_from_slice(b"\r\n");
    }
    wire
}

fn read(stream: &mut impl BufRead) -> Result<Reply, Failure> {
    let mut line = Vec::new();
    stream.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    let line = line.strip_suffix(b"\r\n").ok_or_else(|| wrong("a line that does not end"))?;
    let (kind, rest) = line.split_first().ok_or_else(|| wrong("an empty line"))?;
    let text = || String::from_utf8_lossy(rest).into_owned();
    let number = || text().parse::<i64>().map_err(|_| wrong("no number where one belongs"));
    match kind {
        b'+' => Ok(Reply::Status(text())),
        b'-' => Err(Failure::Refused(text())),
        b':' => number().map(Reply::Integer).map_err(Failure::from),
        b'$' => match number()? {
            -1 => Ok(Reply::Bulk(None)),
            length => {
                let length = usize::try_from(length).ok().filter(|length| *length <= BULK_BYTES_MAX);
                let length = length.ok_or_else(|| wrong("a value that is too long"))?;
                let mut bytes = Vec::new();
                // Grows with what comes, not with what is announced.
                stream.by_ref().take(length as u64 + 2).read_to_end(&mut bytes)?;
                if bytes.len() != length + 2 || !bytes.ends_with(b"\r\n") {
                    return Err(wrong("a value that is cut off").into());
                }
                bytes.truncate(length);
                Ok(Reply::Bulk(Some(bytes)))
            }
        },
        _ => Err(wrong("a kind of reply that no command here has").into()),
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the server sends {what}"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_reply_that_drips_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // Each byte comes in time, and the whole reply far too late.
            for byte in b"+PONG12345\r\n" {
                if stream.write_all(&[*byte]).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(50));
            }
        });
        let mut connection = Connection::open("127.0.0.1", port, Duration::from_secs(10)).unwrap();
        let failure = connection.call(&[b"PING"], Instant::now() + Duration::from_millis(200)).unwrap_err();
        assert!(matches!(&failure, Failure::Broken(error) if error.kind() == io::ErrorKind::TimedOut), "{failure}");
        drop(connection);
        server.join().unwrap();
    }

    #[test]
    fn a_lookup_that_takes_too_long_is_not_waited_for() {
        let (end, ends) = mpsc::channel::<()>();
        let soon = || Instant::now() + Duration::from_millis(50);
        assert_eq!(within(soon(), move || ends.recv().is_ok()).unwrap(), None);
        drop(end);
        assert_eq!(within(Instant::now() + Duration::from_secs(60), || 7).unwrap(), Some(7));
        let found = addresses("localhost", 6379, Instant::now() + Duration::from_secs(60)).unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 6379), "{found:?}");
        assert!(addresses("::1", 6379, Instant::now()).unwrap()[0].is_ipv6());
    }

    fn reply(bytes: &[u8]) -> Result<Reply, String> {
        read(&mut &bytes[..]).map_err(|failure| failure.to_string())
    }

    #[test]
    fn replies() {
        assert_eq!(reply(b"+OK\r\n"), Ok(Reply::Status("OK".to_owned())));
        assert_eq!(reply(b":-12\r\n"), Ok(Reply::Integer(-12)));
        assert_eq!(reply(b"$-1\r\n"), Ok(Reply::Bulk(None)));
        assert_eq!(reply(b"$4\r\na\r\nb\r\n"), Ok(Reply::Bulk(Some(b"a\r\nb".to_vec()))));
        assert_eq!(reply(b"-NOAUTH Authentication required.\r\n"), Err("NOAUTH Authentication required.".to_owned()));
        for broken in [
            &b""[..],
            b"+OK",
            b"\r\n",
            b"$x\r\n",
            b"$-2\r\n",
            b"$5\r\nabc\r\n",
            b"$2\r\nabcd",
            b"*1\r\n$1\r\na\r\n",
            b"$99999999999\r\n",
        ] {
            assert!(reply(broken).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn a_command_is_its_parts() {
        assert_eq!(encode(&[b"SET", b"k", b"a\r\n"]), b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\na\r\n\r\n");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0usize..5) {
            let mut wire = vec![b"+-:$*"[kind]];
            wire.extend(bytes);
            let _ = reply(&wire);
        }

        #[test]
        fn values_come_back(value in prop::collection::vec(any::<u8>(), 0..500)) {
            let wire = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
            prop_assert_eq!(reply(&wire), Ok(Reply::Bulk(Some(value))));
        }
    }
}
