//! Steps of optimisers (`ai.onnx.preview.training`), one file each.

pub(super) mod adagrad;
pub(super) mod adam;
pub(super) mod momentum;
mod steps;
