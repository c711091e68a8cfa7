//! The metrics service: everything that is counted, in the text format of Prometheus.

use std::{
    fmt::Write,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use halimede_platform::{memory, utilization::CpuMeter};
use halimede_serving::metrics::{Family, Kind, Sample, Value};
use hyper::{Method, Request, Response, body::Incoming};
use tokio::net::TcpStream;

use crate::{
    http::{Body, ContentType, Reply, connection},
    listen::Stop,
    services::Services,
};

/// What the metrics are made of.
#[derive(Debug)]
pub(crate) struct Metrics {
    services: Arc<Services>,
    pinned_pool_bytes: u64,
    /// The machine; `None` where nobody wants to know.
    machine: Option<Mutex<Machine>>,
}

/// The load of the processor, measured again once `interval` has passed.
#[derive(Debug)]
struct Machine {
    meter: CpuMeter,
    interval: Duration,
    measured: Instant,
    utilization: f64,
}

impl Metrics {
    pub fn new(services: Arc<Services>, pinned_pool_bytes: u64, machine_interval: Option<Duration>) -> Self {
        let machine = machine_interval.map(|interval| {
            let meter = CpuMeter::start();
            Mutex::new(Machine { meter, interval, measured: Instant::now(), utilization: 0.0 })
        });
        Self { services, pinned_pool_bytes, machine }
    }

    fn families(&self) -> Vec<Family> {
        let mut families = self.services.server.metrics();
        families.extend(self.services.tracing.metrics());
        let mut gauge = |name: &'static str, help: &'static str, value: f64| {
            let samples = vec![Sample { labels: Vec::new(), value: Value::Number(value) }];
            families.push(Family { name: name.into(), help: help.into(), kind: Kind::Gauge, samples });
        };
        gauge(
            "nv_pinned_memory_pool_total_bytes",
            "Pinned memory pool total memory size, in bytes",
            self.pinned_pool_bytes as f64,
        );
        gauge("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", 0.0);
        let own = memory::process();
        if let Some(bytes) = own.private {
            gauge(
                "halimede_process_private_bytes",
                "Memory of the server that no file stands behind, in bytes",
                bytes as f64,
            );
        }
        if let Some(bytes) = own.resident {
            gauge("halimede_process_resident_bytes", "Memory of the server with its files, in bytes", bytes as f64);
        }
        if let Some(machine) = &self.machine {
            let mut machine = machine.lock().unwrap_or_else(PoisonError::into_inner);
            gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", machine.utilization());
            let memory = memory::machine();
            if let (Some(total), Some(available)) = (memory.total, memory.available) {
                gauge("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", total as f64);
                gauge(
                    "nv_cpu_memory_used_bytes",
                    "CPU used memory (RAM), in bytes",
                    total.saturating_sub(available) as f64,
                );
            }
        }
        add(&mut families, self.services.server.custom_metrics());
        families
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        if request.method() != Method::GET {
            return Reply::failed(405, "Method Not Allowed").into_response();
        }
        let body = match request.uri().path() {
            "/metrics" | "/metrics/" => text(&self.families()),
            _ => String::new(),
        };
        Reply::ok(body.into_bytes()).of_type(ContentType::Metrics).into_response()
    }
}

impl Machine {
    fn utilization(&mut self) -> f64 {
        if self.measured.elapsed() >= self.interval
            && let Some(fraction) = self.meter.sample()
        {
            self.utilization = fraction;
            self.measured = Instant::now();
        }
        self.utilization
    }
}

/// Serves the requests of one connection.
pub(crate) async fn serve_connection(stream: TcpStream, metrics: Arc<Metrics>, stop: Stop) {
    connection::serve(stream, stop, |request| std::future::ready(metrics.answer(&request))).await;
}

/// Adds what models count. What they count under a name of the server's is told there, if it is of the same kind: two
/// families of one name are none for whoever reads them.
fn add(families: &mut Vec<Family>, custom: Vec<Family>) {
    for custom in custom {
        match families.iter_mut().find(|family| family.name == custom.name) {
            None => families.push(custom),
            Some(family) if family.kind == custom.kind => family.samples.extend(custom.samples),
            Some(_) => {}
        }
    }
}

/// The exposition format, version 0.0.4.
fn text(families: &[Family]) -> String {
    let mut out = String::new();
    for family in families {
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
        };
        // Writing to a string does not fail, here and below.
        let _ = write!(out, "# HELP {} {}\n# TYPE {} {kind}\n", family.name, line(&family.help), family.name);
        for sample in &family.samples {
            write_sample(&mut out, &family.name, sample);
        }
    }
    out
}

fn write_sample(out: &mut String, name: &str, sample: &Sample) {
    let mut line = |suffix: &str, extra: Option<(&str, f64)>, value: f64| {
        out.push_str(name);
        out.push_str(suffix);
        let own = sample.labels.iter().map(|(name, value)| (&**name, escaped(value)));
        let labels = own.chain(extra.map(|(name, value)| (name, number(value))));
        for (index, (name, value)) in labels.enumerate() {
            let _ = write!(out, "{}{name}=\"{value}\"", if index == 0 { '{' } else { ',' });
        }
        if !sample.labels.is_empty() || extra.is_some() {
            out.push('}');
        }
        let _ = writeln!(out, " {}", number(value));
    };
    match &sample.value {
        Value::Number(value) => line("", None, *value),
        Value::Histogram { buckets, sum } => {
            line("_count", None, buckets.last().map_or(0.0, |bucket| bucket.1 as f64));
            line("_sum", None, *sum);
            buckets.iter().for_each(|(bound, count)| line("_bucket", Some(("le", *bound)), *count as f64));
        }
        Value::Summary { quantiles, sum, count } => {
            line("_count", None, *count as f64);
            line("_sum", None, *sum);
            quantiles.iter().for_each(|(quantile, value)| line("", Some(("quantile", *quantile)), *value));
        }
    }
}

fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "Nan".to_owned(),
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        value => value.to_string(),
    }
}

/// A text that stays on its line.
fn line(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

fn escaped(value: &str) -> String {
    line(value).replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_prints() {
        let labels = vec![("model".to_owned(), "a\"b".to_owned()), ("version".to_owned(), "1".to_owned())];
        let family = |name: &'static str, kind, value| Family {
            name: name.into(),
            help: "Help.".into(),
            kind,
            samples: vec![Sample { labels: labels.clone(), value }],
        };
        let bare = vec![Sample { labels: Vec::new(), value: Value::Number(2.5) }];
        let printed = text(&[
            family("c", Kind::Counter, Value::Number(25_274_793_984.0)),
            Family { name: "g".into(), help: "Help\nme.".into(), kind: Kind::Gauge, samples: bare },
            family("h", Kind::Histogram, Value::Histogram { buckets: vec![(100.0, 1), (f64::INFINITY, 3)], sum: 7.0 }),
            family("s", Kind::Summary, Value::Summary { quantiles: vec![(0.5, f64::NAN)], sum: 7.0, count: 2 }),
        ]);
        let expected = r#"# HELP c Help.
# TYPE c counter
c{model="a\"b",version="1"} 25274793984
# HELP g Help\nme.
# TYPE g gauge
g 2.5
# HELP h Help.
# TYPE h histogram
h_count{model="a\"b",version="1"} 3
h_sum{model="a\"b",version="1"} 7
h_bucket{model="a\"b",version="1",le="100"} 1
h_bucket{model="a\"b",version="1",le="+Inf"} 3
# HELP s Help.
# TYPE s summary
s_count{model="a\"b",version="1"} 2
s_sum{model="a\"b",version="1"} 7
s{model="a\"b",version="1",quantile="0.5"} Nan
"#;
        assert_eq!(printed, expected);
    }
}
