//! Responses in a Redis server, which several servers may share.

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use halimede_serving::{
    Error, OutputTensor,
    cache::{CacheKey, Deferral, Insertion, ResponseCache, Work},
    metrics::{self, Family, Sample, Value},
};

use super::{
    availability::{Availability, Refusals},
    check_names,
    packed::{pack, unpack},
    resp::{Connection, Failure, Reply},
};

/// In front of every key, with the form of what is kept under it.
const PREFIX: &str = "halimede:response:1:";
/// Questions and answers that may wait for a connection; beyond, models answer without the cache.
const WAITING_MAX: usize = 1024;
const SETTINGS: [&str; 8] =
    ["host", "port", "user", "password", "db", "connect_timeout", "socket_timeout", "pool_size"];
/// Where user and password come from that no setting names.
const USER_VARIABLE: &str = "TRITONCACHE_REDIS_USERNAME";
const PASSWORD_VARIABLE: &str = "TRITONCACHE_REDIS_PASSWORD";

/// Responses in a Redis server.
pub(super) struct RedisCache {
    server: Server,
    idle: Mutex<Vec<Connection>>,
    availability: Mutex<Availability>,
    /// Of lookups and of insertions: a server that is full still finds what it has.
    refusals: [Mutex<Refusals>; 2],
    works: SyncSender<Work>,
    skipped: AtomicU64,
}

/// How the server is reached.
#[derive(Clone)]
struct Server {
    host: String,
    port: u16,
    user: Option<String>,
    password: Option<String>,
    db: u32,
    connect_timeout: Duration,
    socket_timeout: Duration,
}

impl RedisCache {
    /// Reads the settings, which are those of Triton's cache, and looks whether the server answers.
    ///
    /// # Errors
    /// A setting is wrong, or the server does not answer.
    pub fn connect(settings: &BTreeMap<String, String>) -> Result<Self, Error> {
        let failed = |why: String| Error::internal(format!("Failed to initialize RedisCache: {why}"));
        let get = |name: &str| settings.get(name).map(String::as_str);
        let (Some(host), Some(port)) = (get("host"), get("port")) else {
            return Err(Error::invalid(
                "Failed to initialize RedisCache, didn't specify address. Must at a minimum specify 'host' and 'port' in \
                 the configuration - e.g. tritonserver --cache-config redis,host=redis --cache-config redis,port=6379 \
                 --model-repository=/models ...",
            ));
        };
        check_names("RedisCache", settings, &SETTINGS)?;
        let number = |name: &str, default: u32| match get(name) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| failed(format!("'{name}' is no number: '{text}'"))),
        };
        let milliseconds = |name| number(name, 1000).map(|ms| Duration::from_millis(u64::from(ms.max(1))));
        let own_or = |name: &str, variable: &str| {
            let variable = || std::env::var(variable).ok();
            get(name).map(str::to_owned).or_else(variable).filter(|text| !text.is_empty())
        };
        let server = Server {
            host: host.to_owned(),
            // As Triton: what is no number is port 0, at which nobody listens.
            port: port.parse().unwrap_or(0),
            user: own_or("user", USER_VARIABLE),
            password: own_or("password", PASSWORD_VARIABLE),
            db: number("db", 0)?,
            connect_timeout: milliseconds("connect_timeout")?,
            socket_timeout: milliseconds("socket_timeout")?,
        };
        let connections = number("pool_size", 4)?.clamp(1, 256);
        let first = server.open().map(|(connection, _)| connection).map_err(|failure| match failure {
            Failure::Broken(error) => failed(format!("Failed to connect to Redis: {error} ({host}:{port})")),
            Failure::Refused(text) => failed(text),
        })?;
        tracing::info!("Response Cache is in the Redis server at {host}:{port}");
        let (works, received) = sync_channel(WAITING_MAX);
        let received = Arc::new(Mutex::new(received));
        for index in 0..connections {
            let received = received.clone();
            let thread = thread::Builder::new().name(format!("redis-{index}"));
            thread.spawn(move || work(&received)).map_err(|error| failed(format!("cannot start a thread: {error}")))?;
        }
        Ok(Self {
            server,
            idle: Mutex::new(vec![first]),
            availability: Mutex::default(),
            refusals: Default::default(),
            works,
            skipped: AtomicU64::new(0),
        })
    }

    /// Sends a command, unless the server is known not to answer.
    fn call(&self, kind: Kind, command: &[&[u8]]) -> Result<Reply, Error> {
        let Some(attempt) = lock(&self.availability).attempt(Instant::now()) else {
            return Err(Error::unavailable("the Redis server could not be reached a moment ago"));
        };
        let reply = self.exchange(command);
        let (mut availability, now) = (lock(&self.availability), Instant::now());
        match &reply {
            Err(Failure::Broken(error)) => {
                if let Some(news) = availability.failed(attempt, now) {
                    tracing::error!("the Redis server {news}: {error}");
                }
            }
            Ok(_) | Err(Failure::Refused(_)) => {
                if let Some(news) = availability.succeeded(attempt, now) {
                    tracing::warn!("the Redis server {news}");
                }
            }
        }
        drop(availability);
        let refusal = match &reply {
            Err(Failure::Refused(text)) => Some(text),
            _ => None,
        };
        let is_answered = !matches!(&reply, Err(Failure::Broken(_)));
        if is_answered && lock(&self.refusals[kind as usize]).is_news(refusal.is_some()) {
            match refusal {
                Some(text) => tracing::error!("the Redis server refuses {}: {text}", kind.name()),
                None => tracing::warn!("the Redis server accepts {} again", kind.name()),
            }
        }
        reply.map_err(|failure| Error::unavailable(format!("the Redis server: {failure}")))
    }

    /// Sends a command on a connection that is free, or on a new one.
    fn exchange(&self, command: &[&[u8]]) -> Result<Reply, Failure> {
        let idle = lock(&self.idle).pop();
        if let Some(mut connection) = idle {
            let reply = connection.call(command, Instant::now() + self.server.socket_timeout);
            match &reply {
                // The connection may have ended while it was idle: one more try, on a new one.
                Err(Failure::Broken(error)) if error.kind() != io::ErrorKind::TimedOut => {}
                Err(Failure::Broken(_)) => return reply,
                // A server that refuses has answered: the connection is as good as before.
                Ok(_) | Err(Failure::Refused(_)) => {
                    lock(&self.idle).push(connection);
                    return reply;
                }
            }
        }
        let (mut connection, until) = self.server.open()?;
        let reply = connection.call(command, until);
        if !matches!(reply, Err(Failure::Broken(_))) {
            lock(&self.idle).push(connection);
        }
        reply
    }
}

/// What commands are for.
#[derive(Debug, Clone, Copy)]
enum Kind {
    LookUp,
    Insert,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::LookUp => "lookups",
            Kind::Insert => "insertions",
        }
    }
}

/// What one thread does as long as the cache lives.
fn work(received: &Mutex<Receiver<Work>>) {
    loop {
        let next = lock(received).recv();
        match next {
            Ok(work) => work(),
            Err(_) => return,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// A connection on which the server accepts commands, and until when the first of them is to be answered: what
    /// opens the connection counts as one exchange with it.
    fn open(&self) -> Result<(Connection, Instant), Failure> {
        let mut connection = Connection::open(&self.host, self.port, self.connect_timeout)?;
        let until = Instant::now() + self.socket_timeout;
        if let Some(password) = &self.password {
            let mut command: Vec<&[u8]> = vec![b"AUTH"];
            command.extend(self.user.as_ref().map(String::as_bytes));
            command.push(password.as_bytes());
            connection.call(&command, until)?;
        }
        if self.db != 0 {
            connection.call(&[b"SELECT", self.db.to_string().as_bytes()], until)?;
        }
        connection.call(&[b"PING"], until)?;
        Ok((connection, until))
    }
}

impl ResponseCache for RedisCache {
    fn look_up(&self, key: &CacheKey) -> Result<Option<Vec<OutputTensor>>, Error> {
        match self.call(Kind::LookUp, &[b"GET", format!("{PREFIX}{key}").as_bytes()])? {
            Reply::Bulk(None) => Ok(None),
            Reply::Bulk(Some(bytes)) => unpack(bytes).map(Some),
            other => Err(Error::internal(format!("the Redis server answers GET with {other:?}"))),
        }
    }

    fn insert(&self, key: &CacheKey, outputs: &[OutputTensor]) -> Result<Insertion, Error> {
        let key = format!("{PREFIX}{key}");
        match self.call(Kind::Insert, &[b"SET", key.as_bytes(), &pack(outputs), b"NX"])? {
            Reply::Bulk(None) => Ok(Insertion::AlreadyThere),
            _ => Ok(Insertion::Done),
        }
    }

    fn metrics(&self) -> Vec<Family> {
        let value = Value::Number(self.skipped.load(Relaxed) as f64);
        vec![Family {
            name: "halimede_cache_skipped".into(),
            help: "Number of lookups and insertions left out because too many waited for the response cache".into(),
            kind: metrics::Kind::Counter,
            samples: vec![Sample { labels: Vec::new(), value }],
        }]
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn defer(&self, work: Work) -> Deferral {
        match self.works.try_send(work) {
            Ok(()) => Deferral::Later,
            Err(_) => {
                self.skipped.fetch_add(1, Relaxed);
                Deferral::Full
            }
        }
    }
}

/// The password is a secret.
impl fmt::Debug for RedisCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Server { host, port, db, .. } = &self.server;
        f.debug_struct("RedisCache").field("host", host).field("port", port).field("db", db).finish_non_exhaustive()
    }
}
