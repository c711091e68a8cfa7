//! Fills what a configuration leaves out, as Triton's `NormalizeModelConfig` and
//! `NormalizeInstanceGroup` do. What is filled is visible in the configuration that clients fetch.

use super::Gpus;
use super::proto::{
    DataType, ModelConfig, ModelInstanceGroup, ModelVersionPolicy, model_config::SchedulingChoice,
    model_instance_group::Kind, model_optimization_policy::PinnedMemoryBuffer, model_sequence_batching::StrategyChoice,
    model_version_policy,
};

/// Time after which an idle sequence is ended, where the configuration names none.
const SEQUENCE_IDLE_MICROSECONDS: u64 = 1_000_000;

/// Fills the version policy, preferred batch sizes, the idle time of sequences and the flags of pinned
/// memory. May be applied again after the model has completed its configuration.
pub fn normalize(config: &mut ModelConfig) {
    let latest = model_version_policy::Latest { num_versions: 1 };
    let latest = Some(model_version_policy::PolicyChoice::Latest(latest));
    config.version_policy.get_or_insert(ModelVersionPolicy { policy_choice: latest });

    let max_batch_size = config.max_batch_size;
    let prefer_largest = |sizes: &mut Vec<i32>| {
        if sizes.is_empty() && max_batch_size > 0 {
            sizes.push(max_batch_size);
        }
    };
    match &mut config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => prefer_largest(&mut batching.preferred_batch_size),
        Some(SchedulingChoice::SequenceBatching(batching)) => {
            if batching.max_sequence_idle_microseconds == 0 {
                batching.max_sequence_idle_microseconds = SEQUENCE_IDLE_MICROSECONDS;
            }
            if let Some(StrategyChoice::Oldest(oldest)) = &mut batching.strategy_choice {
                prefer_largest(&mut oldest.preferred_batch_size);
            }
        }
        // An ensemble has no instances, so there is nothing to optimise.
        Some(SchedulingChoice::EnsembleScheduling(_)) => return,
        None => {}
    }

    let optimization = config.optimization.get_or_insert_default();
    optimization.input_pinned_memory.get_or_insert(PinnedMemoryBuffer { enable: true });
    optimization.output_pinned_memory.get_or_insert(PinnedMemoryBuffer { enable: true });
}

/// Makes sure that there is an instance group and gives every group a name, a kind and a count.
pub fn normalize_instance_groups(config: &mut ModelConfig, gpus: &Gpus) {
    if config.is_ensemble() {
        return;
    }
    if config.instance_group.is_empty() {
        config.instance_group.push(ModelInstanceGroup { name: config.name.clone(), ..Default::default() });
    }
    for (index, group) in config.instance_group.iter_mut().enumerate() {
        if group.name.is_empty() {
            group.name = format!("{}_{index}", config.name);
        }
        if group.kind() == Kind::Auto {
            let usable = !gpus.ids().is_empty() && group.gpus.iter().all(|id| gpus.ids().contains(id));
            group.set_kind(if usable { Kind::Gpu } else { Kind::Cpu });
        }
        if group.count < 1 {
            group.count = default_instance_count(group.kind(), &config.backend);
        }
        if group.kind() == Kind::Gpu && group.gpus.is_empty() {
            group.gpus.extend(gpus.ids());
        }
    }
}

/// Two instances on the CPU for backends that profit from it.
fn default_instance_count(kind: Kind, backend: &str) -> i32 {
    if kind == Kind::Cpu && ["onnxruntime", "tensorflow"].contains(&backend) { 2 } else { 1 }
}

impl ModelConfig {
    /// Whether the model is made of other models.
    pub fn is_ensemble(&self) -> bool {
        matches!(self.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_)))
    }

    /// Whether responses of the model come in any number and order.
    pub fn is_decoupled(&self) -> bool {
        self.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled)
    }

    /// Whether going from this configuration to `new` needs the model to be loaded again. Instance
    /// groups and the version policy can change without.
    pub fn requires_reload(&self, new: &ModelConfig) -> bool {
        let comparable =
            |config: &ModelConfig| ModelConfig { instance_group: Vec::new(), version_policy: None, ..config.clone() };
        comparable(self) != comparable(new)
    }
}

impl ModelInstanceGroup {
    /// Whether an instance of this group can serve as an instance of `other`: equal but for name and
    /// count.
    pub fn is_equivalent(&self, other: &ModelInstanceGroup) -> bool {
        let comparable =
            |group: &ModelInstanceGroup| ModelInstanceGroup { name: String::new(), count: 0, ..group.clone() };
        comparable(self) == comparable(other)
    }
}

/// The full shape of a tensor of the configuration: `dims` with the batch dimension in front where the
/// model batches.
pub fn full_shape(max_batch_size: i32, dims: &[i64]) -> Vec<i64> {
    let batch: &[i64] = if max_batch_size > 0 { &[-1] } else { &[] };
    [batch, dims].concat()
}

/// The name of a datatype number in a configuration, such as `TYPE_FP32`; the number itself where it
/// has no name.
pub(super) fn data_type_name(number: i32) -> String {
    DataType::try_from(number).map_or_else(|_| number.to_string(), |data_type| data_type.as_str_name().to_owned())
}

/// `[1,-1,3]`, as Triton prints shapes.
pub(super) fn shape_text(dims: &[i64]) -> String {
    let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
    format!("[{}]", dims.join(","))
}
