//! The input shapes that a model is served with, as far as its configuration says.

use halimede_compute::TensorDesc;
use halimede_tensor::{DType, Shape};

use super::EngineInput;
use crate::config::{ModelConfig, proto::model_config::SchedulingChoice};

/// Datatypes and shapes of a model's inputs, in the engine's order.
pub(super) type Descs = Vec<TensorDesc>;

/// More batch sizes of a configuration than this are not looked at.
const BATCHES_MAX: usize = 4;

/// The inputs in every batch size that a configuration names: one, preferred ones, the largest. None where other
/// dimensions vary: only requests tell those.
pub(super) fn configured(config: &ModelConfig, inputs: &[EngineInput]) -> Vec<Descs> {
    let batches: Vec<Option<usize>> = match usize::try_from(config.max_batch_size) {
        Ok(most) if most > 0 => {
            let preferred = match &config.scheduling_choice {
                Some(SchedulingChoice::DynamicBatching(batching)) => &batching.preferred_batch_size[..],
                _ => &[],
            };
            let preferred = preferred.iter().filter_map(|&size| usize::try_from(size).ok());
            let mut sizes: Vec<usize> = Vec::new();
            for size in [1, most].into_iter().chain(preferred) {
                if !sizes.contains(&size) {
                    sizes.push(size);
                }
            }
            sizes.into_iter().take(BATCHES_MAX).map(Some).collect()
        }
        _ => vec![None],
    };
    let descs = |batch: &Option<usize>| inputs.iter().map(|input| desc(config, input, *batch)).collect();
    batches.iter().filter_map(descs).collect()
}

/// `None` where a dimension varies, or the datatype is not known.
fn desc(config: &ModelConfig, input: &EngineInput, batch: Option<usize>) -> Option<TensorDesc> {
    let Some(io) = config.input.iter().find(|io| io.name == input.name) else {
        let default = input.default.as_ref()?;
        return Some(TensorDesc { dtype: default.dtype(), shape: default.shape().into() });
    };
    let dtype = input.dtype.filter(|dtype| *dtype != DType::String)?;
    if input.is_scalar {
        return Some(TensorDesc { dtype, shape: Shape::new() });
    }
    if io.allow_ragged_batch {
        // Its one dimension holds all elements of a batch.
        return None;
    }
    let dims = io.reshape.as_ref().map_or(&io.dims, |reshape| &reshape.shape);
    let sizes = dims.iter().map(|&dim| usize::try_from(dim).ok());
    let shape: Option<Shape> = batch.map(Some).into_iter().chain(sizes).collect();
    Some(TensorDesc { dtype, shape: shape? })
}
