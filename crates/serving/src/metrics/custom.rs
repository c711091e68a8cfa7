//! Metrics that models make for themselves.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt,
    sync::Arc,
};

use parking_lot::Mutex;

use super::{Family, Kind, Sample, Value};
use crate::error::Error;

/// Names of labels and their values, by which a metric is known in its family.
type Labels = BTreeMap<String, String>;

/// The metrics that the models of a server made. Families of one name are one family, and metrics of one family with
/// the same labels are one metric, whoever made them; both are gone when the last who made them let go.
#[derive(Debug, Clone, Default)]
pub struct CustomMetrics(Arc<Mutex<BTreeMap<String, State>>>);

#[derive(Debug)]
struct State {
    help: String,
    kind: Kind,
    /// Those who made the family, and metrics in it.
    users: usize,
    metrics: BTreeMap<Labels, Counted>,
}

#[derive(Debug)]
struct Counted {
    users: usize,
    reading: Reading,
}

#[derive(Debug)]
enum Reading {
    Number(f64),
    Observations {
        /// Upper bounds, ascending; what is above the last is counted behind it.
        bounds: Vec<f64>,
        counts: Vec<u64>,
        sum: f64,
    },
}

/// A family that somebody made.
#[derive(Debug)]
pub struct CustomFamily(Arc<Membership>);

/// A metric that somebody made.
#[derive(Debug)]
pub struct CustomMetric {
    family: Arc<Membership>,
    labels: Labels,
}

/// One of the users of a family.
struct Membership {
    all: CustomMetrics,
    name: String,
    kind: Kind,
}

impl CustomMetrics {
    /// The family `name`, made where there is none; the first description stays.
    ///
    /// # Errors
    /// The name is none for a metric, or that of a family of another kind, or models cannot make metrics of this kind.
    pub fn family(&self, name: &str, help: &str, kind: Kind) -> Result<CustomFamily, Error> {
        if kind == Kind::Summary {
            return Err(Error::invalid("Unsupported kind passed to MetricFamily constructor."));
        }
        if !is_name(name, |c| c == ':') {
            return Err(Error::invalid("Invalid metric name"));
        }
        let mut families = self.0.lock();
        let state = families.entry(name.to_owned());
        let state = state.or_insert_with(|| State { help: help.to_owned(), kind, users: 0, metrics: BTreeMap::new() });
        if state.kind != kind {
            return Err(Error::invalid("Family name already exists with different type"));
        }
        state.users += 1;
        drop(families);
        Ok(CustomFamily(Arc::new(Membership { all: self.clone(), name: name.to_owned(), kind })))
    }

    /// What is counted now. Families without metrics are left out.
    pub fn families(&self) -> Vec<Family> {
        let families = self.0.lock();
        let used = families.iter().filter(|(_, state)| !state.metrics.is_empty());
        used.map(|(name, state)| Family {
            name: name.clone().into(),
            help: state.help.clone().into(),
            kind: state.kind,
            samples: state.metrics.iter().map(|(labels, metric)| metric.reading.sample(labels)).collect(),
        })
        .collect()
    }
}

impl CustomFamily {
    /// The metric with these labels, made where there is none. A histogram has the upper bounds of its buckets, of which
    /// the first ones stay.
    ///
    /// # Errors
    /// A label has a name that cannot be one, or bounds are missing, do not ascend, or are none of this kind of metric.
    pub fn metric(&self, labels: BTreeMap<String, String>, bounds: Option<Vec<f64>>) -> Result<CustomMetric, Error> {
        let kind = self.0.kind;
        let reading = match (kind, bounds) {
            (Kind::Histogram, Some(bounds)) => Reading::histogram(bounds)?,
            (Kind::Histogram, None) => return Err(Error::invalid("Bucket boundaries not found in Metric args.")),
            (_, None) => Reading::Number(0.0),
            (_, Some(_)) => {
                let kind = if kind == Kind::Counter { "counter" } else { "gauge" };
                return Err(Error::invalid(format!("Unexpected args found in {kind} Metric constructor.")));
            }
        };
        let is_label = |name: &String| is_name(name, |_| false) && !(kind == Kind::Histogram && name == "le");
        if !labels.keys().all(is_label) {
            return Err(Error::invalid("Invalid label name"));
        }
        self.0.change(|family| {
            family.users += 1;
            match family.metrics.entry(labels.clone()) {
                Entry::Occupied(metric) => metric.into_mut().users += 1,
                Entry::Vacant(place) => {
                    place.insert(Counted { users: 1, reading });
                }
            }
        });
        Ok(CustomMetric { family: self.0.clone(), labels })
    }
}

impl CustomMetric {
    /// Adds to a counter or a gauge.
    ///
    /// # Errors
    /// It is a histogram, or a counter would become smaller.
    pub fn increment(&self, by: f64) -> Result<(), Error> {
        match self.family.kind {
            Kind::Counter if by < 0.0 => Err(Error::invalid(
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.",
            )),
            Kind::Counter | Kind::Gauge => {
                self.change_number(|number| *number += by);
                Ok(())
            }
            Kind::Histogram | Kind::Summary => Err(self.unsupported("Increment")),
        }
    }

    /// Sets a gauge.
    ///
    /// # Errors
    /// It is no gauge.
    pub fn set(&self, to: f64) -> Result<(), Error> {
        match self.family.kind {
            Kind::Gauge => {
                self.change_number(|number| *number = to);
                Ok(())
            }
            Kind::Counter | Kind::Histogram | Kind::Summary => Err(self.unsupported("Set")),
        }
    }

    /// Counts an observation in a histogram.
    ///
    /// # Errors
    /// It is no histogram.
    pub fn observe(&self, value: f64) -> Result<(), Error> {
        match self.family.kind {
            Kind::Histogram => {
                self.change(|reading| reading.observe(value));
                Ok(())
            }
            Kind::Counter | Kind::Gauge | Kind::Summary => Err(self.unsupported("Observe")),
        }
    }

    /// The value of a counter or a gauge.
    ///
    /// # Errors
    /// It is a histogram.
    pub fn value(&self) -> Result<f64, Error> {
        match self.family.kind {
            Kind::Counter | Kind::Gauge => {
                let mut value = 0.0;
                self.change_number(|number| value = *number);
                Ok(value)
            }
            Kind::Histogram | Kind::Summary => Err(self.unsupported("Value")),
        }
    }

    fn unsupported(&self, operation: &str) -> Error {
        let kind = match self.family.kind {
            Kind::Counter => "COUNTER",
            Kind::Gauge => "GAUGE",
            Kind::Histogram => "HISTOGRAM",
            Kind::Summary => "SUMMARY",
        };
        Error::unsupported(format!("TRITONSERVER_METRIC_KIND_{kind} does not support {operation}"))
    }

    fn change_number(&self, change: impl FnOnce(&mut f64)) {
        self.change(|reading| {
            if let Reading::Number(number) = reading {
                change(number);
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut Reading)) {
        self.family.change(|family| {
            if let Some(metric) = family.metrics.get_mut(&self.labels) {
                change(&mut metric.reading);
            }
        });
    }
}

impl Drop for CustomMetric {
    fn drop(&mut self) {
        self.family.change(|family| {
            if let Some(metric) = family.metrics.get_mut(&self.labels) {
                metric.users -= 1;
                if metric.users == 0 {
                    family.metrics.remove(&self.labels);
                }
            }
        });
        self.family.leave();
    }
}

impl Drop for CustomFamily {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Membership {
    fn change(&self, change: impl FnOnce(&mut State)) {
        if let Some(family) = self.all.0.lock().get_mut(&self.name) {
            change(family);
        }
    }

    fn leave(&self) {
        let mut families = self.all.0.lock();
        if let Some(family) = families.get_mut(&self.name) {
            family.users -= 1;
            if family.users == 0 {
                families.remove(&self.name);
            }
        }
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("name", &self.name).field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Reading {
    fn histogram(mut bounds: Vec<f64>) -> Result<Self, Error> {
        // Everything is below infinity, which is always the last bound.
        bounds.pop_if(|bound| *bound == f64::INFINITY);
        if bounds.iter().any(|bound| bound.is_nan()) || !bounds.is_sorted_by(|a, b| a < b) {
            return Err(Error::invalid("Bucket Boundaries must be strictly sorted"));
        }
        let counts = vec![0; bounds.len() + 1];
        Ok(Reading::Observations { bounds, counts, sum: 0.0 })
    }

    fn observe(&mut self, value: f64) {
        if let Reading::Observations { bounds, counts, sum } = self {
            counts[bounds.partition_point(|bound| *bound < value)] += 1;
            *sum += value;
        }
    }

    fn sample(&self, labels: &Labels) -> Sample {
        let value = match self {
            Reading::Number(number) => Value::Number(*number),
            Reading::Observations { bounds, counts, sum } => {
                let mut below = 0;
                let below = counts.iter().map(|count| {
                    below += count;
                    below
                });
                let bounds = bounds.iter().copied().chain([f64::INFINITY]);
                Value::Histogram { buckets: bounds.zip(below).collect(), sum: *sum }
            }
        };
        Sample { labels: labels.iter().map(|(name, value)| (name.clone(), value.clone())).collect(), value }
    }
}

/// Whether Prometheus takes a name.
fn is_name(name: &str, is_also_allowed: impl Fn(char) -> bool) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || is_also_allowed(c);
    !name.is_empty()
        && !name.starts_with("__")
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(is_allowed)
}
