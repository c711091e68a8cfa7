//! Metrics as plain data; whoever serves them chooses the format.

mod custom;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

pub use custom::{CustomFamily, CustomMetric, CustomMetrics};

/// All samples of one metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// Name of the metric, such as `nv_inference_count`.
    pub name: Cow<'static, str>,
    /// What is counted.
    pub help: Cow<'static, str>,
    /// What kind of metric.
    pub kind: Kind,
    /// The samples, one per set of labels.
    pub samples: Vec<Sample>,
}

/// Kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number that grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Observations by bucket.
    Histogram,
    /// Estimated quantiles of observations.
    Summary,
}

/// The values of a metric for one set of labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Label names and values, sorted by name.
    pub labels: Vec<(String, String)>,
    /// What was measured.
    pub value: Value,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A counter or a gauge.
    Number(f64),
    /// A histogram.
    Histogram {
        /// Upper bound of each bucket and the observations at or below it; the last bound is infinite.
        buckets: Vec<(f64, u64)>,
        /// Sum of the observations.
        sum: f64,
    },
    /// A summary.
    Summary {
        /// Each quantile and its estimate; NaN without recent observations.
        quantiles: Vec<(f64, f64)>,
        /// Sum of the observations.
        sum: f64,
        /// Number of observations.
        count: u64,
    },
}
