//! The metrics of the models that are ready.

use std::{sync::Arc, time::Instant};

use super::Repository;
use crate::{
    backend::{ModelMemory, OperatorWork, TuningWork},
    metadata::ModelState,
    metrics::{Family, Kind, Sample, Value},
    model::Model,
    statistics::{
        Duration, FIRST_RESPONSE, FailureReason, Histogram, ModelStatistics, SUMMARIES as SUMMARY_COUNT, SummaryValues,
    },
};

/// A model and what is read from it once for all metrics.
struct Reading {
    model: Arc<Model>,
    statistics: ModelStatistics,
    labels: Vec<(String, String)>,
    summaries: Option<[SummaryValues; SUMMARY_COUNT]>,
    operators: Vec<OperatorWork>,
    memory: Option<ModelMemory>,
    tuning: Option<TuningWork>,
}

/// Microseconds as the counters show them.
fn us(duration: Duration) -> f64 {
    (duration.ns / 1000) as f64
}

/// Counters of requests: name, help, value.
const COUNTERS: [(&str, &str, fn(&ModelStatistics) -> f64); 3] = [
    ("nv_inference_request_success", "Number of successful inference requests, all batch sizes", |all| {
        all.inference.success.count as f64
    }),
    ("nv_inference_count", "Number of inferences performed (does not include cached requests)", |all| {
        all.inference_count as f64
    }),
    ("nv_inference_exec_count", "Number of model executions performed (does not include cached requests)", |all| {
        all.execution_count as f64
    }),
];

/// Counters of time: name, help, value.
const DURATIONS: [(&str, &str, fn(&ModelStatistics) -> f64); 5] = [
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        |all| us(all.inference.success),
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        |all| us(all.inference.queue),
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        |all| us(all.inference.compute_input),
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        |all| us(all.inference.compute_infer),
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        |all| us(all.inference.compute_output),
    ),
];

/// What the cache did for a model whose configuration asks for one: name, help, value.
const CACHE: [(&str, &str, fn(&ModelStatistics) -> f64); 4] = [
    ("nv_cache_num_hits_per_model", "Number of cache hits per model", |all| all.inference.cache_hit.count as f64),
    ("nv_cache_hit_duration_per_model", "Total cache hit duration per model, in microseconds", |all| {
        us(all.inference.cache_hit)
    }),
    ("nv_cache_num_misses_per_model", "Number of cache misses per model", |all| all.inference.cache_miss.count as f64),
    (
        "nv_cache_miss_duration_per_model",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        |all| us(all.inference.cache_miss),
    ),
];

/// What is known of the operators of a model, in the executions that were measured: one a second at most.
const OPERATORS: [(&str, &str, Kind, fn(&OperatorWork) -> f64); 5] = [
    (
        "halimede_operator_duration_us",
        "Cumulative time of the operators of a kind in measured executions, one a second at most, in microseconds",
        Kind::Counter,
        |work| work.time.as_secs_f64() * 1e6,
    ),
    (
        "halimede_operator_operations",
        "Cumulative multiplications and additions of the operators of a kind in measured executions",
        Kind::Counter,
        |work| work.operations,
    ),
    (
        "halimede_operator_bytes",
        "Cumulative bytes that the operators of a kind read and write at least in measured executions",
        Kind::Counter,
        |work| work.bytes,
    ),
    (
        "halimede_operator_flops",
        "Multiplications and additions per second that the operators of a kind reached in measured executions",
        Kind::Gauge,
        |work| work.operations / work.time.as_secs_f64(),
    ),
    (
        "halimede_operator_bytes_per_second",
        "Bytes per second that the operators of a kind read and wrote at least in measured executions",
        Kind::Gauge,
        |work| work.bytes / work.time.as_secs_f64(),
    ),
];

/// Bytes with the labels that tell them apart.
type Bytes = Vec<(Vec<(&'static str, String)>, usize)>;

/// Where the memory of models goes.
const MEMORY: [(&str, &str, fn(&ModelMemory) -> Bytes); 3] = [
    (
        "halimede_model_weights_bytes",
        "Bytes of a model's weights in the datatypes that they are multiplied in: the least that it needs",
        |memory| vec![(Vec::new(), memory.weights)],
    ),
    (
        "halimede_model_memory_bytes",
        "Bytes that a model holds for all its instances, by what they are for and what stands behind them",
        |memory| {
            let labels = |part, backing: &str| vec![("part", String::from(part)), ("backing", backing.to_owned())];
            let parts = memory.parts.iter();
            parts
                .flat_map(|part| {
                    [(labels(part.name, "private"), part.private), (labels(part.name, "mapped"), part.mapped)]
                })
                .collect()
        },
    ),
    (
        "halimede_instance_memory_bytes",
        "Bytes that an instance of a model holds for itself: its arena and its outputs",
        |memory| {
            let instances = memory.instances.iter();
            instances.map(|(index, bytes)| (vec![("instance", index.to_string())], *bytes)).collect()
        },
    ),
];

/// How far models are tuned while they serve, of those that are.
const TUNING: [(&str, &str, Kind, fn(&TuningWork) -> f64); 5] = [
    ("halimede_tuning_active", "1 while a model waits to be tuned or is being tuned, else 0", Kind::Gauge, |work| {
        f64::from(u8::from(work.is_active))
    }),
    ("halimede_tuning_waiting_operators", "Operators that are still to be measured", Kind::Gauge, |work| {
        work.waiting as f64
    }),
    ("halimede_tuning_operators", "Number of operators that were measured", Kind::Counter, |work| work.tuned as f64),
    (
        "halimede_tuning_won_operators",
        "Number of operators for which a faster configuration was found",
        Kind::Counter,
        |work| work.won as f64,
    ),
    (
        "halimede_tuning_duration_us",
        "Cumulative time of measuring operators in microseconds (does not include waiting for moments without requests)",
        Kind::Counter,
        |work| work.time.as_secs_f64() * 1e6,
    ),
];

/// Summaries, in the order of the recorder: name, help, and for which models, by whether they want a cache.
const SUMMARIES: [(&str, &str, fn(bool) -> bool); SUMMARY_COUNT] = [
    (
        "nv_inference_request_summary_us",
        "Summary of inference request duration in microseconds (includes cached requests)",
        // Of an answer that is kept afterwards, Triton does not know the whole duration.
        |wants_cache| !wants_cache,
    ),
    (
        "nv_inference_queue_summary_us",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
        |_| true,
    ),
    (
        "nv_inference_compute_input_summary_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        |_| true,
    ),
    (
        "nv_inference_compute_infer_summary_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        |_| true,
    ),
    (
        "nv_inference_compute_output_summary_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        |_| true,
    ),
    (
        "nv_cache_hit_summary_per_model",
        "Summary of cache hit counts/durations per model, in microseconds.",
        |wants_cache| wants_cache,
    ),
    (
        "nv_cache_miss_summary_per_model",
        "Summary of cache miss counts/durations per model, in microseconds.",
        |wants_cache| wants_cache,
    ),
];

impl Repository {
    /// The metrics that models made for themselves.
    pub fn custom_metrics(&self) -> Vec<Family> {
        self.loader.custom_metrics.families()
    }

    /// The metrics of all models that are ready.
    pub fn metrics(&self, now: Instant) -> Vec<Family> {
        let options = &self.options().metrics;
        let quantiles: Vec<f64> = options.summary_quantiles.iter().map(|(quantile, _)| *quantile).collect();
        let readings: Vec<Reading> = self.readings(&quantiles, now);
        let family = |name: &'static str, help: &'static str, kind, value: &dyn Fn(&Reading) -> Value| Family {
            name: name.into(),
            help: help.into(),
            kind,
            samples: readings
                .iter()
                .map(|reading| Sample { labels: reading.labels.clone(), value: value(reading) })
                .collect(),
        };
        let number = |name, help, kind, value: &dyn Fn(&Reading) -> f64| {
            family(name, help, kind, &|reading| Value::Number(value(reading)))
        };
        let counter = |(name, help, value): (_, _, fn(&ModelStatistics) -> f64)| {
            number(name, help, Kind::Counter, &|reading| value(&reading.statistics))
        };

        let mut families: Vec<Family> = COUNTERS.into_iter().map(counter).collect();
        families.insert(1, failures(&readings));
        if options.counter_latencies {
            families.extend(DURATIONS.into_iter().map(counter));
            let families_of_cache = CACHE.into_iter().map(|(name, help, value)| {
                let readings = readings.iter().filter(|reading| reading.model.wants_cache());
                let sample = |reading: &Reading| {
                    let value = Value::Number(value(&reading.statistics));
                    Sample { labels: reading.labels.clone(), value }
                };
                let samples = readings.map(sample).collect();
                Family { name: name.into(), help: help.into(), kind: Kind::Counter, samples }
            });
            families.extend(families_of_cache.filter(|family| !family.samples.is_empty()));
        }
        if options.histogram_latencies {
            families.push(family(
                FIRST_RESPONSE,
                "Duration from request to first response in milliseconds",
                Kind::Histogram,
                &|reading| {
                    let read = reading.model.recorder.first_responses().map(Histogram::read);
                    let (buckets, sum) = read.unwrap_or_default();
                    Value::Histogram { buckets, sum }
                },
            ));
        }
        families.extend(self.options().cache.iter().flat_map(|cache| cache.metrics()));
        families.push(number(
            "nv_inference_pending_request_count",
            "Instantaneous number of pending requests awaiting execution per-model.",
            Kind::Gauge,
            &|reading| reading.model.recorder.pending_count() as f64,
        ));
        families.push(number("nv_model_load_duration_secs", "Model load time in seconds", Kind::Gauge, &|reading| {
            reading.model.recorder.load_seconds()
        }));
        if options.summary_latencies {
            let summaries = SUMMARIES.into_iter().enumerate().map(|(index, (name, help, is_of))| {
                let readings = readings.iter().filter(|reading| is_of(reading.model.wants_cache()));
                let sample = |reading: &Reading| {
                    let value = reading.summary(index, &quantiles);
                    Sample { labels: reading.labels.clone(), value }
                };
                let samples = readings.map(sample).collect();
                Family { name: name.into(), help: help.into(), kind: Kind::Summary, samples }
            });
            families.extend(summaries.filter(|family| !family.samples.is_empty()));
        }
        families.extend(OPERATORS.map(|(name, help, kind, value)| {
            let samples = readings.iter().flat_map(|reading| reading.of_operators(value)).collect();
            Family { name: name.into(), help: help.into(), kind, samples }
        }));
        families.extend(MEMORY.map(|(name, help, samples)| {
            let samples = readings.iter().flat_map(|reading| reading.of_memory(samples)).collect();
            Family { name: name.into(), help: help.into(), kind: Kind::Gauge, samples }
        }));
        families.extend(TUNING.map(|(name, help, kind, value)| {
            let sample = |reading: &Reading| {
                let value = Value::Number(value(reading.tuning.as_ref()?));
                Some(Sample { labels: reading.labels.clone(), value })
            };
            let samples = readings.iter().filter_map(sample).collect();
            Family { name: name.into(), help: help.into(), kind, samples }
        }));
        families.extend(self.loader.admission.iter().flat_map(|admission| admission.metrics(now)));
        families
    }

    fn readings(&self, quantiles: &[f64], now: Instant) -> Vec<Reading> {
        let mut readings = Vec::new();
        for (id, versions) in self.table.all() {
            for (version, slot) in versions {
                let Some(model) = slot.model.filter(|_| slot.state == ModelState::Ready) else { continue };
                let mut labels =
                    vec![("model".to_owned(), id.name.clone()), ("version".to_owned(), version.to_string())];
                if self.options().model_namespacing {
                    labels.push(("namespace".to_owned(), id.namespace.clone()));
                }
                let tags = model.config().metric_tags.clone();
                labels.extend(tags.into_iter().map(|(name, value)| (format!("_{name}"), value)));
                labels.sort();
                readings.push(Reading {
                    statistics: model.recorder.snapshot(&id.name, version),
                    summaries: model.recorder.summaries(quantiles, now),
                    operators: model.operator_work(),
                    memory: model.memory(),
                    tuning: model.tuning_work(),
                    model,
                    labels,
                });
            }
        }
        readings
    }
}

fn failures(readings: &[Reading]) -> Family {
    let sample = |reading: &Reading, reason: FailureReason| {
        let mut labels = reading.labels.clone();
        labels.push(("reason".to_owned(), reason.name().to_owned()));
        labels.sort();
        Sample { labels, value: Value::Number(reading.model.recorder.failure_count(reason) as f64) }
    };
    Family {
        name: "nv_inference_request_failure".into(),
        help: "Number of failed inference requests, all batch sizes".into(),
        kind: Kind::Counter,
        samples: readings.iter().flat_map(|reading| FailureReason::ALL.map(|reason| sample(reading, reason))).collect(),
    }
}

impl Reading {
    /// A sample for each kind of operator that took any time.
    fn of_operators(&self, value: fn(&OperatorWork) -> f64) -> impl Iterator<Item = Sample> {
        self.operators.iter().filter(|work| !work.time.is_zero()).map(move |work| {
            let mut labels = self.labels.clone();
            labels.push(("operator".to_owned(), work.operator.clone()));
            labels.push(("factors".to_owned(), work.factors.to_owned()));
            labels.sort();
            Sample { labels, value: Value::Number(value(work)) }
        })
    }

    fn of_memory(&self, bytes: fn(&ModelMemory) -> Bytes) -> Vec<Sample> {
        let sample = |(own, bytes): (Vec<(&str, String)>, usize)| {
            let mut labels = self.labels.clone();
            labels.extend(own.into_iter().map(|(name, value)| (name.to_owned(), value)));
            labels.sort();
            Sample { labels, value: Value::Number(bytes as f64) }
        };
        self.memory.iter().flat_map(bytes).map(sample).collect()
    }

    fn summary(&self, index: usize, quantiles: &[f64]) -> Value {
        let Some(values) = self.summaries.as_ref().map(|summaries| &summaries[index]) else {
            return Value::Summary { quantiles: Vec::new(), sum: 0.0, count: 0 };
        };
        let quantiles = quantiles.iter().copied().zip(values.quantiles.iter().copied()).collect();
        Value::Summary { quantiles, sum: values.sum_us, count: values.count }
    }
}
