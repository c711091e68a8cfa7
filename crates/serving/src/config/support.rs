//! What a configuration asks for that this server does not do.
//!
//! A model whose answers would differ without it, or that counts on a protection, does not load; what
//! only concerns speed, or devices that are not there, is a warning.

use super::proto::{ModelConfig, ModelInstanceGroup, ModelOptimizationPolicy};
use crate::{Error, model::wants_cache, statistics::FIRST_RESPONSE};

/// The backend whose models see a batch as a whole: the others look at each request by itself, whatever its shape.
const BATCHING_BACKEND: &str = "onnxruntime";

/// Everything that keeps the model from being served, each as field and effect. Empty for a model that
/// can be served.
pub fn unsupported(config: &ModelConfig) -> Vec<String> {
    let mut found = Vec::new();
    let mut refuse = |field: &str, effect: &str| found.push(format!("{field} ({effect})"));

    if config.backend != BATCHING_BACKEND {
        if !config.batch_input.is_empty() {
            refuse("batch_input", "inputs computed from the batch, which are for models of the backend onnxruntime");
        }
        if !config.batch_output.is_empty() {
            refuse("batch_output", "outputs split by the shape of an input, as models of the backend onnxruntime have");
        }
    }
    if config.model_operations.as_ref().is_some_and(|operations| !operations.op_library_filename.is_empty()) {
        refuse("model_operations.op_library_filename", "custom operators from a library");
    }
    if config.model_repository_agents.as_ref().is_some_and(|agents| !agents.agents.is_empty()) {
        refuse("model_repository_agents", "agents that act, or check, when the model is loaded");
    }
    if config.parameters.contains_key("TRITON_BATCH_STRATEGY_PATH") {
        refuse("parameters TRITON_BATCH_STRATEGY_PATH", "a batching strategy from a library");
    }
    for group in &config.instance_group {
        let place = |field: &str| format!("instance_group '{}' {field}", group.name);
        if !group.secondary_devices.is_empty() {
            refuse(&place("secondary_devices"), "devices of NVIDIA's DLA");
        }
        if group.passive {
            refuse(&place("passive"), "instances that the scheduler leaves alone");
        }
    }
    found
}

/// Fails with all of [`unsupported`] in one text.
pub fn check_supported(config: &ModelConfig) -> Result<(), Error> {
    let found = unsupported(config);
    if found.is_empty() {
        return Ok(());
    }
    let text = format!(
        "model '{}' asks for what this server cannot do yet: {}. Remove it from the model's config.pbtxt to serve the \
         model without it",
        config.name,
        found.join("; ")
    );
    Err(Error::unsupported(text))
}

/// Refuses a `runtime` other than the one that the backend has anyway: backends are built in, and another
/// library or script would answer otherwise.
pub fn check_runtime(config: &ModelConfig) -> Result<(), Error> {
    let ModelConfig { name, runtime, backend, .. } = config;
    if runtime.is_empty() || *runtime == format!("libtriton_{backend}.so") {
        return Ok(());
    }
    if runtime.contains('/') {
        invalid!("backend library name '{runtime}' escapes backend directory, model '{name}'");
    }
    invalid!(
        "unable to find backend library '{runtime}' for model '{name}': the backends of this server are built in. Remove \
         'runtime' from the model's config.pbtxt to run it on the backend '{backend}'"
    )
}

/// What a server may have that configurations count on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerParts {
    /// Who decides which instances of all models run.
    pub rate_limiter: bool,
    /// A cache of responses.
    pub cache: bool,
}

/// Everything that is ignored without harm, each as one line for the log, on a server that has these parts.
pub fn ignored(config: &ModelConfig, server: ServerParts) -> Vec<String> {
    let mut found = Vec::new();
    let mut ignore = |field: &str, reason: &str| {
        found.push(format!("model '{}': {field} is ignored: {reason}", config.name));
    };
    if let Some(optimization) = &config.optimization {
        ignored_optimizations(optimization, &mut ignore);
    }
    for group in &config.instance_group {
        ignored_in_group(group, server.rate_limiter, &mut ignore);
    }
    if config.backend == "onnxruntime" {
        ignored_parameters(config, &mut ignore);
    }
    if wants_cache(config) && !server.cache {
        let way_out = "this server has no response cache: start it with --cache-config=local,size=BYTES, or remove \
                       response_cache from the model's config.pbtxt";
        ignore("response_cache", way_out);
    }
    if !config.cc_model_filenames.is_empty() {
        ignore("cc_model_filenames", "it is for CUDA devices; default_model_filename is used");
    }
    let controls = config.model_metrics.iter().flat_map(|metrics| &metrics.metric_control);
    for identifier in controls.filter_map(|control| control.metric_identifier.as_ref()) {
        if identifier.family != FIRST_RESPONSE {
            ignore(&format!("model_metrics '{}'", identifier.family), "it is no metric with buckets");
        }
    }
    found
}

fn ignored_optimizations(optimization: &ModelOptimizationPolicy, ignore: &mut impl FnMut(&str, &str)) {
    if optimization.cuda.is_some() {
        ignore("optimization.cuda", "it is for CUDA devices");
    }
    if let Some(accelerators) = &optimization.execution_accelerators {
        let gpu = accelerators.gpu_execution_accelerator.iter();
        for accelerator in gpu.chain(&accelerators.cpu_execution_accelerator) {
            let field = format!("execution accelerator '{}'", accelerator.name);
            ignore(&field, "models run on this server's own engine");
        }
    }
    if optimization.priority != 0 {
        ignore("optimization.priority", "all models have the same priority");
    }
    if optimization.eager_batching {
        ignore("optimization.eager_batching", "batches are gathered when an instance is free");
    }
    if optimization.gather_kernel_buffer_threshold != 0 {
        ignore("optimization.gather_kernel_buffer_threshold", "it is for CUDA devices");
    }
}

/// Parameters of Triton's ONNX Runtime backend without effect here, and why.
const IGNORED_PARAMETERS: [(&str, &str); 10] = [
    ("inter_op_thread_count", "an instance runs one operator at a time, on the threads of intra_op_thread_count"),
    ("execution_mode", "an instance runs one operator at a time"),
    ("enable_mem_arena", "memory is planned ahead in one arena per instance"),
    ("enable_mem_pattern", "memory is planned ahead in one arena per instance"),
    ("memory.enable_memory_arena_shrinkage", "memory is planned ahead in one arena per instance"),
    ("arena_extend_strategy", "memory is planned ahead in one arena per instance"),
    ("session.use_device_allocator_for_initializers", "weights are mapped from the file"),
    ("gpu_mem_limit", "it is for CUDA devices"),
    ("cudnn_conv_algo_search", "it is for CUDA devices"),
    ("do_copy_in_default_stream", "it is for CUDA devices"),
];

fn ignored_parameters(config: &ModelConfig, ignore: &mut impl FnMut(&str, &str)) {
    for (name, reason) in IGNORED_PARAMETERS {
        // A value that asks for nothing.
        let is_default = |value: &str| match name {
            "inter_op_thread_count" | "execution_mode" => value.trim() == "0",
            _ => false,
        };
        if config.parameters.get(name).is_some_and(|parameter| !is_default(&parameter.string_value)) {
            ignore(&format!("parameter '{name}'"), reason);
        }
    }
}

fn ignored_in_group(group: &ModelInstanceGroup, has_rate_limiter: bool, ignore: &mut impl FnMut(&str, &str)) {
    let place = |field: &str| format!("instance_group '{}' {field}", group.name);
    if group.rate_limiter.is_some() && !has_rate_limiter {
        ignore(&place("rate_limiter"), "the rate limiter is off, as by default (--rate-limit)");
    }
    if !group.host_policy.is_empty() {
        ignore(&place("host_policy"), "instances are not bound to cores or memory nodes");
    }
}
