//! Checks of a configuration by itself, in Triton's words and order (`ValidateModelConfig`).

mod instance_group;
mod io;
mod scheduling;

pub use instance_group::validate_instance_groups;
pub use io::validate_io;

use super::ensemble;
use super::proto::{ModelConfig, ModelMetrics, model_metrics::metric_control::MetricOptions};
use crate::Error;

/// The platform of an ensemble.
pub(super) const ENSEMBLE: &str = "ensemble";
/// The platform of TensorRT engines.
pub(super) const TENSORRT_PLAN: &str = "tensorrt_plan";

/// Checks everything but inputs, outputs and instance groups, which may be completed later.
pub fn validate(config: &ModelConfig) -> Result<(), Error> {
    let name = &config.name;
    if name.is_empty() {
        invalid!("model configuration must specify 'name'");
    }
    let (platform, backend) = (&config.platform, &config.backend);
    if backend.is_empty() && platform != ENSEMBLE {
        invalid!("unexpected platform type '{platform}' for {name}");
    }
    if !backend.is_empty() && platform == ENSEMBLE {
        invalid!("Ensemble model '{name}' must have platform type '{platform}' and empty backend type");
    }
    if !platform_fits(platform, backend) {
        invalid!("unexpected 'platform' and 'backend' pair, got:{platform}, {backend}");
    }
    if config.max_batch_size < 0 {
        invalid!("'max_batch_size' must be non-negative value for {name}");
    }
    if config.version_policy.is_none() {
        invalid!("must specify 'version policy' for {name}");
    }

    scheduling::validate(config)?;
    if config.is_ensemble() {
        ensemble::validate_scheduling(config)?;
    } else if platform == ENSEMBLE {
        invalid!("ensemble scheduling must be set for ensemble {name} whose platform is {ENSEMBLE}");
    }

    if config.is_decoupled() && scheduling::response_cache_enabled(config) {
        invalid!(
            "Response Cache does not currently support model {name} with 'decoupled' transaction policy. Please \
             disable the response cache."
        );
    }
    config.model_metrics.as_ref().map_or(Ok(()), validate_metrics)
}

/// Whether a backend that is known to Triton goes with the platform; unknown backends go with any.
fn platform_fits(platform: &str, backend: &str) -> bool {
    match backend {
        "tensorflow" => ["tensorflow_graphdef", "tensorflow_savedmodel"].contains(&platform),
        "tensorrt" => platform == TENSORRT_PLAN,
        "onnxruntime" => platform == "onnxruntime_onnx",
        "pytorch" => ["pytorch_libtorch", "torch_aoti"].contains(&platform),
        _ => true,
    }
}

fn validate_metrics(metrics: &ModelMetrics) -> Result<(), Error> {
    for control in &metrics.metric_control {
        match &control.metric_identifier {
            None => invalid!("metric control must specify 'metric_identifier'"),
            Some(identifier) if identifier.family.is_empty() => {
                invalid!("metric identifier must specify non-empty 'family'")
            }
            Some(_) => {}
        }
        match &control.metric_options {
            None => invalid!("metric control must specify 'histogram_options'"),
            Some(MetricOptions::HistogramOptions(options)) if options.buckets.is_empty() => {
                invalid!("histogram options must specify non-empty 'buckets'")
            }
            Some(_) => {}
        }
    }
    Ok(())
}
