//! Metrics that a process makes.

use std::collections::{BTreeMap, HashMap};

use halimede_serving::{
    Error,
    metrics::{CustomFamily, CustomMetric, CustomMetrics, Kind},
};
use serde_json::Value;

use crate::protocol::MetricCall;

/// The metrics and families of a process, by the numbers that it knows them by. They are gone with it.
#[derive(Debug, Default)]
pub(crate) struct ProcessMetrics {
    all: CustomMetrics,
    count: u64,
    families: HashMap<u64, CustomFamily>,
    metrics: HashMap<u64, CustomMetric>,
}

impl ProcessMetrics {
    pub fn new(all: CustomMetrics) -> Self {
        Self { all, ..Self::default() }
    }

    /// Does what the process asks for; the number of what was made, or the value that was asked for as a text.
    ///
    /// # Errors
    /// It cannot be done with this metric; texts are Triton's.
    pub fn answer(&mut self, call: MetricCall) -> Result<Value, Error> {
        match call {
            MetricCall::NewFamily { name, description, kind } => {
                let kind = match kind {
                    0 => Kind::Counter,
                    1 => Kind::Gauge,
                    2 => Kind::Histogram,
                    _ => return Err(Error::invalid("Unknown metric kind")),
                };
                let family = self.all.family(&name, &description, kind)?;
                self.count += 1;
                self.families.insert(self.count, family);
                Ok(Value::from(self.count))
            }
            MetricCall::NewMetric { family, labels, bounds } => {
                let family = self.families.get(&family).ok_or_else(unknown)?;
                let bounds = bounds.map(|bounds| bounds.iter().map(|bound| number(bound)).collect()).transpose()?;
                let metric = family.metric(labels_of(labels)?, bounds)?;
                self.count += 1;
                self.metrics.insert(self.count, metric);
                Ok(Value::from(self.count))
            }
            MetricCall::Increment { metric, by } => self.metric(metric)?.increment(number(&by)?).map(|()| Value::Null),
            MetricCall::Set { metric, to } => self.metric(metric)?.set(number(&to)?).map(|()| Value::Null),
            MetricCall::Observe { metric, value } => {
                self.metric(metric)?.observe(number(&value)?).map(|()| Value::Null)
            }
            // JSON has no numbers that are none.
            MetricCall::Value { metric } => Ok(Value::from(self.metric(metric)?.value()?.to_string())),
        }
    }

    /// The process let go of a metric or a family.
    pub fn forget(&mut self, number: u64) {
        self.metrics.remove(&number);
        self.families.remove(&number);
    }

    fn metric(&self, number: u64) -> Result<&CustomMetric, Error> {
        self.metrics.get(&number).ok_or_else(unknown)
    }
}

fn unknown() -> Error {
    Error::internal("there is no such metric")
}

fn number(text: &str) -> Result<f64, Error> {
    text.parse().map_err(|_| Error::invalid(format!("'{text}' is no number")))
}

fn labels_of(labels: Value) -> Result<BTreeMap<String, String>, Error> {
    let Value::Object(labels) = labels else { return Ok(BTreeMap::new()) };
    let text = |(name, value): (String, Value)| match value {
        Value::String(value) => Ok((name, value)),
        _ => Err(Error::invalid(format!("the label '{name}' of a metric has a value that is no string"))),
    };
    labels.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(text: &str) -> MetricCall {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn what_a_process_made_goes_with_it() {
        let all = CustomMetrics::default();
        let mut mine = ProcessMetrics::new(all.clone());
        let family = r#"{"metric_call":"new_family","name":"g","description":"d","kind":1}"#;
        assert_eq!(mine.answer(call(family)).unwrap(), 1);
        let metric = r#"{"metric_call":"new_metric","family":1,"labels":{"a":"b"},"bounds":null}"#;
        assert_eq!(mine.answer(call(metric)).unwrap(), 2);
        mine.answer(call(r#"{"metric_call":"set","metric":2,"to":"-inf"}"#)).unwrap();
        let value = r#"{"metric_call":"value","metric":2}"#;
        assert_eq!(mine.answer(call(value)).unwrap(), "-inf");
        mine.forget(1);
        assert_eq!(all.families().len(), 1);
        mine.forget(2);
        assert!(all.families().is_empty());
        assert!(mine.answer(call(value)).is_err());
        assert_eq!(mine.answer(call(family)).unwrap(), 3);
        assert_eq!(mine.answer(call(&metric.replace(":1", ":3"))).unwrap(), 4);
        assert_eq!(all.families().len(), 1);
        drop(mine);
        assert!(all.families().is_empty());
    }

    #[test]
    fn what_is_no_metric_is_an_error() {
        let mut mine = ProcessMetrics::default();
        for wrong in [
            r#"{"metric_call":"new_family","name":"g","description":"d","kind":7}"#,
            r#"{"metric_call":"new_metric","family":9,"labels":null,"bounds":null}"#,
            r#"{"metric_call":"increment","metric":9,"by":"1"}"#,
        ] {
            assert!(mine.answer(call(wrong)).is_err(), "{wrong}");
        }
        mine.answer(call(r#"{"metric_call":"new_family","name":"h","description":"","kind":2}"#)).unwrap();
        for (labels, bounds) in [(r#"{"a":1}"#, "[]"), ("null", r#"["one"]"#)] {
            let text = format!(r#"{{"metric_call":"new_metric","family":1,"labels":{labels},"bounds":{bounds}}}"#);
            assert!(mine.answer(call(&text)).is_err(), "{text}");
        }
    }
}
