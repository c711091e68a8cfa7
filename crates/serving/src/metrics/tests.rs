use std::collections::BTreeMap;

use super::*;
use crate::{Code, Error};

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn numbers(all: &CustomMetrics) -> Vec<(String, Vec<f64>)> {
    let number = |sample: &Sample| match sample.value {
        Value::Number(number) => number,
        _ => f64::NAN,
    };
    let families = all.families().into_iter();
    families.map(|family| (family.name.into_owned(), family.samples.iter().map(number).collect())).collect()
}

#[test]
fn families_and_metrics_are_shared_until_the_last_user_lets_go() {
    let all = CustomMetrics::default();
    let first = all.family("requests", "first", Kind::Counter).unwrap();
    let second = all.family("requests", "second", Kind::Counter).unwrap();
    assert!(all.families().is_empty());
    let mine = first.metric(labels(&[("a", "1")]), None).unwrap();
    let same = second.metric(labels(&[("a", "1")]), None).unwrap();
    let other = second.metric(labels(&[]), None).unwrap();
    mine.increment(2.5).unwrap();
    same.increment(1.0).unwrap();
    other.increment(7.0).unwrap();
    assert_eq!(mine.value().unwrap(), 3.5);
    assert_eq!(numbers(&all), [("requests".to_owned(), vec![7.0, 3.5])]);
    assert_eq!(all.families()[0].help, "first");
    drop((first, second, mine));
    assert_eq!(same.value().unwrap(), 3.5);
    drop(same);
    assert_eq!(numbers(&all), [("requests".to_owned(), vec![7.0])]);
    // The name is taken for another kind until nobody uses it.
    assert!(all.family("requests", "", Kind::Gauge).is_err());
    drop(other);
    assert!(all.family("requests", "", Kind::Gauge).is_ok());
    assert!(all.families().is_empty());
}

#[test]
fn a_metric_does_what_its_kind_allows() {
    let all = CustomMetrics::default();
    let metric =
        |kind, bounds| all.family(&format!("{kind:?}"), "", kind).unwrap().metric(labels(&[]), bounds).unwrap();
    let text = |result: Result<(), Error>| result.unwrap_err().message;
    let counter = metric(Kind::Counter, None);
    assert!(text(counter.increment(-1.0)).contains("can only be incremented monotonically by non-negative values."));
    assert_eq!(text(counter.set(1.0)), "TRITONSERVER_METRIC_KIND_COUNTER does not support Set");
    assert_eq!(counter.observe(1.0).unwrap_err().code, Code::Unsupported);
    let gauge = metric(Kind::Gauge, None);
    gauge.set(5.0).unwrap();
    gauge.increment(-7.5).unwrap();
    assert_eq!(gauge.value().unwrap(), -2.5);
    assert_eq!(text(gauge.observe(1.0)), "TRITONSERVER_METRIC_KIND_GAUGE does not support Observe");
    let histogram = metric(Kind::Histogram, Some(vec![1.0, 2.0, f64::INFINITY]));
    for value in [0.5, 1.0, 1.5, 9.0] {
        histogram.observe(value).unwrap();
    }
    let expected = Value::Histogram { buckets: vec![(1.0, 2), (2.0, 3), (f64::INFINITY, 4)], sum: 12.0 };
    assert_eq!(all.families().iter().find(|family| family.kind == Kind::Histogram).unwrap().samples[0].value, expected);
    assert!(text(histogram.increment(1.0)).ends_with("HISTOGRAM does not support Increment"));
    assert!(text(histogram.value().map(drop)).ends_with("HISTOGRAM does not support Value"));
}

#[test]
fn what_cannot_be_a_metric_is_refused() {
    let all = CustomMetrics::default();
    for name in ["", "1a", "__a", "a b", "a-b", "\u{e4}", "a\n"] {
        assert_eq!(all.family(name, "", Kind::Gauge).unwrap_err().message, "Invalid metric name", "{name:?}");
    }
    assert!(all.family("vllm:running", "", Kind::Gauge).is_ok());
    let histogram = all.family("h", "", Kind::Histogram).unwrap();
    for (label, is_fine) in [("a:b", false), ("le", false), ("", false), ("quantile", true)] {
        let made = histogram.metric(labels(&[(label, "x")]), Some(Vec::new()));
        assert_eq!(made.is_ok(), is_fine, "{label:?}");
    }
    for bounds in [vec![2.0, 1.0], vec![1.0, 1.0], vec![f64::NAN], vec![f64::INFINITY, 1.0]] {
        let error = histogram.metric(labels(&[]), Some(bounds)).unwrap_err();
        assert_eq!(error.message, "Bucket Boundaries must be strictly sorted");
    }
    assert!(histogram.metric(labels(&[]), None).is_err());
    assert!(all.family("c", "", Kind::Counter).unwrap().metric(labels(&[]), Some(Vec::new())).is_err());
    assert!(all.families().is_empty(), "nothing is left of what was refused");
}
