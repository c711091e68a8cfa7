//! Traces as spans, sent to a collector of OpenTelemetry: OTLP over HTTP, as Triton sends them, or over gRPC.

mod environment;
mod messages;
mod post;
mod spans;

use std::{
    collections::VecDeque,
    fmt,
    time::{Duration, Instant},
};

use hyper::header::HeaderMap;
use prost::Message;

use self::{
    environment::Environment,
    messages::{ExportTraceServiceRequest, InstrumentationScope, KeyValue, Resource, ResourceSpans, ScopeSpans, Span},
};
use super::{
    context::{Names, new_id},
    files::Outcome,
    record::Event,
    render::Epoch,
};

/// What the server says of itself where nobody says otherwise.
const OWN_RESOURCE: [(&str, &str); 4] = [
    ("service.name", "triton-inference-server"),
    ("telemetry.sdk.language", "rust"),
    ("telemetry.sdk.name", "halimede"),
    ("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
];

/// Triton's name for what makes the spans, by which collectors choose them.
const SCOPE: &str = "triton-server";

/// Where spans go, and in which portions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Collector {
    pub url: hyper::Uri,
    pub protocol: Protocol,
    /// What the server says of itself, by the flags and the environment.
    pub resource: Vec<(String, String)>,
    /// What goes along with each message.
    pub headers: HeaderMap,
    /// Spans that may wait.
    pub queue_max: usize,
    /// How long the first of them waits at most.
    pub delay: Duration,
    /// Spans that are sent at once.
    pub batch_max: usize,
    /// Names and values of the flags, as the settings print them.
    pub printed: Vec<(String, String)>,
}

/// How spans are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Grpc,
}

/// What the flags say of a collector, `--trace-config opentelemetry,NAME=VALUE`.
#[derive(Debug, Clone)]
pub(crate) struct CollectorFlags {
    url: Option<String>,
    protocol: Protocol,
    resource: Vec<(String, String)>,
    queue_max: Option<u32>,
    delay_ms: Option<u32>,
    batch_max: Option<u32>,
}

impl Default for CollectorFlags {
    fn default() -> Self {
        Self {
            url: None,
            protocol: Protocol::Http,
            resource: Vec::new(),
            queue_max: None,
            delay_ms: None,
            batch_max: None,
        }
    }
}

/// A number of a variable of OpenTelemetry's.
fn variable(name: &str, value: Option<String>, default: u32) -> Result<u32, String> {
    let Some(text) = value.filter(|text| !text.is_empty()) else { return Ok(default) };
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("Bad option: \"{name}\".\n'{text}' is no number above 0")),
    }
}

impl CollectorFlags {
    /// Takes a setting; whether it is one.
    ///
    /// # Errors
    /// Its value is wrong.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, String> {
        let number = || match value.parse() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("Bad option: \"--trace-config opentelemetry,{name}\".\n'{value}' is no number above 0")),
        };
        match name {
            "url" => self.url = Some(value.to_owned()),
            "protocol" => {
                self.protocol = match value {
                    "http/protobuf" => Protocol::Http,
                    "grpc" => Protocol::Grpc,
                    _ => {
                        return Err(format!(
                            "invalid value for trace protocol option: {value}. Available options are \"http/protobuf\" and \"grpc\""
                        ));
                    }
                }
            }
            "resource" => {
                let (key, value) = value.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(|| {
                    format!("--trace-config option format is 'opentelemetry,resource=<name>=<value>'. Got {value}")
                })?;
                self.resource.push((key.to_owned(), value.to_owned()));
            }
            "bsp_max_queue_size" => self.queue_max = Some(number()?),
            "bsp_schedule_delay" => self.delay_ms = Some(number()?),
            "bsp_max_export_batch_size" => self.batch_max = Some(number()?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The collector. What no flag says, OpenTelemetry's variables do.
    ///
    /// # Errors
    /// Its address is none that can be used, or a variable is wrong.
    pub fn collector(&self) -> Result<Collector, String> {
        let number = |flag: Option<u32>, name: &str, default| match flag {
            Some(number) => Ok(number),
            None => variable(name, std::env::var(name).ok(), default),
        };
        let queue_max = number(self.queue_max, "OTEL_BSP_MAX_QUEUE_SIZE", 2048)?;
        let delay_ms = number(self.delay_ms, "OTEL_BSP_SCHEDULE_DELAY", 5000)?;
        let batch_max = number(self.batch_max, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)?;
        let default = match self.protocol {
            Protocol::Http => "http://localhost:4318/v1/traces",
            Protocol::Grpc => "http://localhost:4317",
        };
        let given = self.url.as_deref().unwrap_or(default);
        // Triton's default has no scheme either.
        let text = if given.contains("://") { given.to_owned() } else { format!("http://{given}") };
        let url: hyper::Uri =
            text.parse().map_err(|error| format!("the address of the collector, '{given}': {error}"))?;
        match url.scheme_str() {
            Some("http") if url.host().is_some_and(|host| !host.is_empty()) => {
                let authority = url.authority().map_or("", |authority| authority.as_str());
                // What is in it is shown to whoever asks for the settings.
                if authority.contains('@') {
                    return Err(
                        "the address of the collector must not contain a user or a password: they are not sent"
                            .to_owned(),
                    );
                }
                let port = authority.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
                if let Some(port) = port.filter(|_| url.port_u16().is_none_or(|port| port == 0)) {
                    return Err(format!(
                        "the address of the collector, '{given}': '{port}' is no port, which is a number from 1 to 65535"
                    ));
                }
            }
            _ => {
                return Err(format!(
                    "the address of the collector, '{given}', is not of the form http://host:port/path; encrypted \
                     connections are not supported: send to a collector on this machine, which sends on"
                ));
            }
        }
        let environment = Environment::read(|name| std::env::var_os(name).map(|value| value.into_string().ok()));
        for (name, reason) in environment.wrong {
            // What it says may be a secret.
            tracing::warn!("the variable {name} of the environment counts as not set: {reason}");
        }
        let mut resource = OWN_RESOURCE.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        for (key, value) in environment.resource.iter().chain(&self.resource) {
            match resource.iter_mut().find(|(known, _)| known == key) {
                Some((_, known)) => known.clone_from(value),
                None => resource.push((key.clone(), value.clone())),
            }
        }
        let mut printed = vec![
            ("bsp_max_export_batch_size".to_owned(), batch_max.to_string()),
            ("bsp_max_queue_size".to_owned(), queue_max.to_string()),
            ("bsp_schedule_delay".to_owned(), delay_ms.to_string()),
            ("url".to_owned(), given.to_owned()),
        ];
        let all: Vec<String> = self.resource.iter().map(|(key, value)| format!("{key}={value}")).collect();
        if !all.is_empty() {
            printed.push(("resource".to_owned(), all.join(",")));
        }
        Ok(Collector {
            url,
            protocol: self.protocol,
            resource,
            headers: environment.headers,
            queue_max: queue_max as usize,
            delay: Duration::from_millis(u64::from(delay_ms)),
            batch_max: batch_max as usize,
            printed,
        })
    }
}

/// How long a collector may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Spans on their way to a collector; used by one thread.
pub(super) struct Exporter {
    collector: Collector,
    runtime: tokio::runtime::Runtime,
    waiting: VecDeque<Span>,
    /// When the first of them came.
    oldest: Option<Instant>,
    outcome: Outcome,
    /// Whether the last portion was refused.
    is_failing: bool,
    /// Whether a portion that is not taken is the last that is tried.
    is_ending: bool,
    has_given_up: bool,
}

impl Exporter {
    pub fn new(collector: Collector) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (waiting, outcome) = (VecDeque::new(), Outcome::default());
        let (is_failing, is_ending, has_given_up) = (false, false, false);
        Ok(Self { collector, runtime, waiting, oldest: None, outcome, is_failing, is_ending, has_given_up })
    }

    /// Takes a trace; sends what waits where that is a whole portion.
    pub fn add(&mut self, events: &[Event], names: Names, epoch: Epoch) {
        let spans = spans::spans(events, names, epoch, &mut new_id);
        if spans.len() > self.collector.queue_max {
            // It would never find room among others.
            self.flush();
        } else if self.waiting.len() + spans.len() > self.collector.queue_max {
            self.outcome.dropped += 1;
            return;
        }
        self.oldest.get_or_insert_with(Instant::now);
        self.waiting.extend(spans);
        while self.waiting.len() >= self.collector.batch_max {
            self.send();
        }
    }

    /// How long until what waits has to be sent; `None` where nothing waits.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        let oldest = self.oldest?;
        Some((oldest + self.collector.delay).saturating_duration_since(now))
    }

    /// Sends everything that waits.
    pub fn flush(&mut self) {
        while !self.waiting.is_empty() {
            self.send();
        }
    }

    /// From now on a portion that is not taken is the last that is tried: the server waits for the end.
    pub fn end(&mut self) {
        self.is_ending = true;
    }

    /// What became of traces since this was last asked.
    pub fn take_outcome(&mut self) -> Outcome {
        std::mem::take(&mut self.outcome)
    }

    fn send(&mut self) {
        let count = self.waiting.len().min(self.collector.batch_max);
        let spans: Vec<Span> = self.waiting.drain(..count).collect();
        if self.waiting.is_empty() {
            self.oldest = None;
        }
        let traces = spans.iter().filter(|span| span.name == spans::ROOT).count() as u64;
        if self.has_given_up {
            self.outcome.failed += traces;
            return;
        }
        let attributes = self.collector.resource.iter().map(|(key, value)| KeyValue::text(key, value)).collect();
        // Triton's has no version either; the resource says which software this is.
        let scope = InstrumentationScope { name: SCOPE.to_owned(), version: String::new() };
        let message = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(Resource { attributes }),
                scope_spans: vec![ScopeSpans { scope: Some(scope), spans }],
            }],
        };
        let (url, message) = (&self.collector.url, message.encode_to_vec());
        // The clock is the runtime's: it has to run where the limit is set.
        let sent = self.runtime.block_on(async {
            let sending = post::post(&self.collector, message);
            tokio::time::timeout(TIMEOUT, sending).await
        });
        let sent = sent.unwrap_or_else(|_| Err(format!("no answer within {} s", TIMEOUT.as_secs())));
        match sent {
            Ok(()) => {
                if self.is_failing {
                    tracing::info!("the collector at '{url}' takes traces again");
                }
                self.outcome.written += traces;
                self.is_failing = false;
            }
            Err(reason) => {
                if !self.is_failing {
                    tracing::warn!("traces are lost, for the collector at '{url}' does not take them: {reason}");
                }
                self.outcome.failed += traces;
                self.is_failing = true;
                self.has_given_up = self.is_ending;
            }
        }
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter").field("collector", &self.collector).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn at_the_end_a_portion_that_is_not_taken_is_the_last() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut flags = CollectorFlags::default();
        flags.set("url", &format!("http://{}/v1", listener.local_addr().unwrap())).unwrap();
        flags.set("bsp_max_export_batch_size", "1").unwrap();
        let mut exporter = Exporter::new(flags.collector().unwrap()).unwrap();
        // It takes connections, and ends them.
        let (seen, connections) = std::sync::mpsc::channel();
        std::thread::spawn(move || listener.incoming().try_for_each(|_| seen.send(())));
        let tries = |exporter: &mut Exporter, traces| {
            let root = Span { name: spans::ROOT.to_owned(), ..Span::default() };
            exporter.waiting.extend(std::iter::repeat_n(root, traces));
            exporter.flush();
            assert_eq!(exporter.take_outcome().failed, traces as u64);
            connections.try_iter().count()
        };
        assert_eq!(tries(&mut exporter, 3), 3);
        exporter.end();
        assert_eq!(tries(&mut exporter, 3), 1);
        assert_eq!(tries(&mut exporter, 3), 0);
    }
}
