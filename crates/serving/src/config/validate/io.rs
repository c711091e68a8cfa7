//! Checks of inputs, outputs and the tensors computed from a batch (`ValidateModelIOConfig`).

use std::collections::HashSet;

use super::super::proto::{
    BatchInput, BatchOutput, DataType, ModelConfig, ModelInput, ModelOutput, ModelTensorReshape, batch_input,
    batch_output, model_input::Format,
};
use super::TENSORRT_PLAN;
use crate::Error;

/// Checks all inputs and outputs. They must be complete: call it after completion from the model.
pub fn validate_io(config: &ModelConfig) -> Result<(), Error> {
    let inputs = config.input.iter().try_for_each(|input| validate_input(input, config));
    let outputs = || config.output.iter().try_for_each(|output| validate_output(output, config));
    inputs
        .and_then(|()| outputs())
        .and_then(|()| validate_batch_io(config))
        .map_err(|error| Error { message: format!("{} for {}", error.message, config.name), ..error })
}

fn validate_input(input: &ModelInput, config: &ModelConfig) -> Result<(), Error> {
    let tensor = Tensor {
        prefix: "model input ",
        name: &input.name,
        data_type: input.data_type,
        dims: &input.dims,
        reshape: input.reshape.as_ref(),
    };
    tensor.validate(config.max_batch_size)?;
    if matches!(input.format(), Format::Nhwc | Format::Nchw) && input.dims.len() != 3 {
        invalid!("model input NHWC/NCHW require 3 dims");
    }
    validate_tensorrt_only(config, input.is_shape_tensor, input.is_non_linear_format_io, "input", &input.dims)
}

fn validate_output(output: &ModelOutput, config: &ModelConfig) -> Result<(), Error> {
    let tensor = Tensor {
        prefix: "model output ",
        name: &output.name,
        data_type: output.data_type,
        dims: &output.dims,
        reshape: output.reshape.as_ref(),
    };
    tensor.validate(config.max_batch_size)?;
    validate_tensorrt_only(config, output.is_shape_tensor, output.is_non_linear_format_io, "output", &output.dims)
}

fn validate_tensorrt_only(
    config: &ModelConfig,
    is_shape_tensor: bool,
    is_non_linear: bool,
    direction: &str,
    dims: &[i64],
) -> Result<(), Error> {
    let is_tensorrt = config.platform == TENSORRT_PLAN;
    if is_shape_tensor && !is_tensorrt {
        invalid!("shape tensors are only supported for TensorRT platform");
    }
    if is_non_linear && !is_tensorrt {
        invalid!("Non-linear IO format is only supported for the TensorRT platform");
    }
    if is_non_linear && dims.len() != 3 {
        invalid!("Non-linear IO format {direction} requires 3 dims");
    }
    Ok(())
}

/// What inputs and outputs have in common.
struct Tensor<'a> {
    prefix: &'a str,
    name: &'a str,
    data_type: i32,
    dims: &'a [i64],
    reshape: Option<&'a ModelTensorReshape>,
}

impl Tensor<'_> {
    fn validate(&self, max_batch_size: i32) -> Result<(), Error> {
        if self.name.is_empty() {
            invalid!("{}must specify 'name'", self.prefix);
        }
        let tensor = format!("{}'{}'", self.prefix, self.name);
        if self.data_type == DataType::TypeInvalid as i32 {
            invalid!("{tensor} must specify 'data_type'");
        }
        if self.dims.is_empty() {
            invalid!("{tensor} must specify 'dims'");
        }
        let reshape = self.reshape.map(|reshape| reshape.shape.as_slice());
        if reshape.is_some_and(<[i64]>::is_empty) && max_batch_size == 0 {
            invalid!("{tensor} cannot have empty reshape for non-batching model as scalar tensors are not supported");
        }
        let is_dim = |dim: &i64| *dim >= 1 || *dim == -1;
        if !self.dims.iter().all(is_dim) {
            invalid!("{tensor} dimension must be integer >= 1, or -1 to indicate a variable-size dimension");
        }
        let Some(reshape) = reshape else {
            return Ok(());
        };
        if !reshape.iter().all(is_dim) {
            invalid!("{tensor} reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension");
        }
        self.validate_reshape(reshape, &tensor)
    }

    /// Both shapes have the same number of elements. Where they are variable, the parts between the
    /// variable dimensions have: from [2,4,-1,6] to [8,-1,1,6], since 2*4 = 8 and 6 = 1*6.
    fn validate_reshape(&self, reshape: &[i64], tensor: &str) -> Result<(), Error> {
        let different = || Error::invalid(format!("{tensor} has different size for dims and reshape"));
        let dims_parts = self.element_counts(self.dims, "dims")?;
        let reshape_parts = self.element_counts(reshape, "reshape")?;
        let is_variable = dims_parts.len() > 1;
        if is_variable != (reshape_parts.len() > 1) {
            return Err(different());
        }
        if dims_parts.len() != reshape_parts.len() {
            invalid!("{tensor} has different number of variable-size dimensions for dims and reshape");
        }
        if dims_parts != reshape_parts {
            return Err(different());
        }
        Ok(())
    }

    /// Products of the dimensions between the variable ones.
    fn element_counts(&self, shape: &[i64], what: &str) -> Result<Vec<i64>, Error> {
        shape
            .split(|dim| *dim == -1)
            .map(|part| part.iter().try_fold(1_i64, |count, dim| count.checked_mul(*dim)))
            .collect::<Option<_>>()
            .ok_or_else(|| {
                Error::invalid(format!(
                    "element count for tensor '{} {what}' exceeds maximum size of {}",
                    self.name,
                    i64::MAX
                ))
            })
    }
}

fn validate_batch_io(config: &ModelConfig) -> Result<(), Error> {
    let inputs: HashSet<&str> = config.input.iter().map(|input| input.name.as_str()).collect();
    let outputs: HashSet<&str> = config.output.iter().map(|output| output.name.as_str()).collect();
    config.batch_input.iter().try_for_each(|computed| validate_batch_input(computed, &inputs))?;
    config.batch_output.iter().try_for_each(|split| validate_batch_output(split, &inputs, &outputs))
}

fn validate_batch_input(computed: &BatchInput, inputs: &HashSet<&str>) -> Result<(), Error> {
    let Ok(kind) = batch_input::Kind::try_from(computed.kind) else {
        invalid!("unknown batch input kind '{}'", computed.kind);
    };
    if computed.source_input.len() != 1 {
        let (kind, count) = (kind.as_str_name(), computed.source_input.len());
        invalid!("batch input kind '{kind}' expects 1 source input, got {count}");
    }
    if !matches!(computed.data_type(), DataType::TypeInt32 | DataType::TypeFp32) {
        invalid!("batch input data type must be TYPE_INT32 or TYPE_FP32");
    }
    validate_sources(&computed.source_input, inputs)
}

fn validate_batch_output(split: &BatchOutput, inputs: &HashSet<&str>, outputs: &HashSet<&str>) -> Result<(), Error> {
    let Ok(kind) = batch_output::Kind::try_from(split.kind) else {
        invalid!("unknown batch output kind '{}'", split.kind);
    };
    if split.source_input.len() != 1 {
        let (kind, count) = (kind.as_str_name(), split.source_input.len());
        invalid!("batch output kind '{kind}' expects 1 source input, got {count}");
    }
    validate_sources(&split.source_input, inputs)?;
    let mut seen = HashSet::new();
    for target in &split.target_name {
        if !outputs.contains(target.as_str()) {
            invalid!("unknown target output name '{target}'");
        }
        if !seen.insert(target) {
            invalid!("target output name '{target}' can only be specified once");
        }
    }
    Ok(())
}

fn validate_sources(sources: &[String], inputs: &HashSet<&str>) -> Result<(), Error> {
    match sources.iter().find(|source| !inputs.contains(source.as_str())) {
        Some(source) => invalid!("unknown source input name '{source}'"),
        None => Ok(()),
    }
}
