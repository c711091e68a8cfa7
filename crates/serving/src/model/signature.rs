//! The inputs and outputs of a model, as its requests must fit them.

use halimede_tensor::DType;

use super::{
    batch_io::{BatchInput, BatchOutput},
    sequence::SequenceSpec,
};
use crate::{
    config::{DataType, ModelConfig, proto::ModelTensorReshape},
    error::Error,
};

/// What a model takes and gives, read from its configuration once.
#[derive(Debug)]
pub(crate) struct Signature {
    /// Name of the model.
    pub model: String,
    /// Most inferences in a request or batch; 0: shapes have no batch dimension.
    pub batch_size_max: usize,
    /// Whether it answers a request with any number of responses.
    pub is_decoupled: bool,
    /// Inputs in the order of the configuration.
    pub inputs: Vec<InputSpec>,
    /// Outputs in the order of the configuration.
    pub outputs: Vec<OutputSpec>,
    /// Inputs that are computed from the batch.
    pub batch_inputs: Vec<BatchInput>,
    /// Outputs that are split by the shape of an input.
    pub batch_outputs: Vec<BatchOutput>,
    /// What it gets about sequences, where its requests come in such.
    pub sequence: Option<SequenceSpec>,
}

/// One input of a model.
#[derive(Debug)]
pub(crate) struct InputSpec {
    pub name: String,
    pub dtype: DType,
    /// Without the batch dimension; -1 is variable.
    pub dims: Vec<i64>,
    /// The shape that the model sees in place of `dims`.
    pub reshape: Option<Vec<i64>>,
    pub optional: bool,
    /// Whether requests of other shapes share a batch. The model then sees all elements in one dimension.
    pub is_ragged: bool,
}

/// One output of a model.
#[derive(Debug)]
pub(crate) struct OutputSpec {
    pub name: String,
    pub dtype: DType,
    /// Without the batch dimension; -1 is variable.
    pub dims: Vec<i64>,
    /// The shape that the model gives in place of `dims`.
    pub reshape: Option<Vec<i64>>,
    /// Names of the classes by index; empty without any.
    pub labels: Vec<Vec<u8>>,
}

impl Signature {
    /// Reads a complete configuration, without what sequences need: that lies in files, too.
    ///
    /// # Errors
    /// An input or output has no datatype.
    pub fn new(config: &ModelConfig) -> Result<Self, Error> {
        let dtype = |name: &str, number: i32| {
            DataType::try_from(number)
                .ok()
                .and_then(DataType::to_dtype)
                .ok_or_else(|| Error::invalid(format!("model '{}': '{name}' has no data type", config.name)))
        };
        let reshape = |reshape: &Option<ModelTensorReshape>| reshape.as_ref().map(|reshape| reshape.shape.clone());
        let inputs = config.input.iter().map(|io| {
            Ok(InputSpec {
                dtype: dtype(&io.name, io.data_type)?,
                name: io.name.clone(),
                dims: io.dims.clone(),
                reshape: reshape(&io.reshape),
                optional: io.optional,
                is_ragged: io.allow_ragged_batch,
            })
        });
        let outputs = config.output.iter().map(|io| {
            Ok(OutputSpec {
                dtype: dtype(&io.name, io.data_type)?,
                name: io.name.clone(),
                dims: io.dims.clone(),
                reshape: reshape(&io.reshape),
                labels: Vec::new(),
            })
        });
        let inputs = inputs.collect::<Result<Vec<_>, Error>>()?;
        let is_batched = config.max_batch_size > 0;
        let batch_inputs = config.batch_input.iter().map(|computed| BatchInput::new(computed, &inputs, is_batched));
        let outputs = outputs.collect::<Result<Vec<_>, Error>>()?;
        let batch_outputs = config.batch_output.iter().map(|split| BatchOutput::all(split, &outputs, &inputs));
        let batch_outputs = batch_outputs.collect::<Result<Vec<_>, Error>>()?;
        Ok(Self {
            model: config.name.clone(),
            is_decoupled: config.is_decoupled(),
            batch_size_max: usize::try_from(config.max_batch_size).unwrap_or(0),
            batch_inputs: batch_inputs.collect::<Result<_, Error>>()?,
            batch_outputs: batch_outputs.into_iter().flatten().collect(),
            inputs,
            outputs,
            sequence: None,
        })
    }

    /// Whether shapes begin with a batch dimension.
    pub fn is_batched(&self) -> bool {
        self.batch_size_max > 0
    }

    /// Whether requests whose inputs have different shapes run together.
    pub fn is_ragged(&self) -> bool {
        self.inputs.iter().any(|input| input.is_ragged)
    }

    /// What fills the input `name` of the model, where that is computed from the batch.
    pub fn batch_input(&self, name: &str) -> Option<&BatchInput> {
        self.batch_inputs.iter().find(|computed| computed.targets.iter().any(|target| target == name))
    }

    /// How the output `name` is split over the requests, where that is not by rows.
    pub fn batch_output(&self, name: &str) -> Option<&BatchOutput> {
        self.batch_outputs.iter().find(|split| split.target == name)
    }

    /// Inputs that every request must give.
    pub fn required_input_count(&self) -> usize {
        self.inputs.iter().filter(|input| !input.optional).count()
    }

    /// The input `name`.
    pub fn input(&self, name: &str) -> Option<&InputSpec> {
        self.inputs.iter().find(|input| input.name == name)
    }

    /// The output `name`.
    pub fn output(&self, name: &str) -> Option<&OutputSpec> {
        self.outputs.iter().find(|output| output.name == name)
    }
}

impl OutputSpec {
    /// The shape that clients see for a tensor of shape `shape` from the model, both with the batch
    /// dimension where `is_batched`.
    pub fn client_shape(&self, shape: Vec<i64>, is_batched: bool) -> Vec<i64> {
        let Some(reshape) = &self.reshape else { return shape };
        let skip = usize::from(is_batched).min(shape.len());
        let mut client = shape[..skip].to_vec();
        client.extend(fill_variable(&self.dims, reshape, &shape[skip..]));
        client
    }
}

impl InputSpec {
    /// The shape that the model sees for a tensor of shape `dims` from a client, both without the batch
    /// dimension.
    pub fn model_dims(&self, dims: Vec<i64>) -> Vec<i64> {
        match &self.reshape {
            None => dims,
            Some(reshape) => fill_variable(reshape, &self.dims, &dims),
        }
    }
}

/// `to` with its variable dimensions set to the values that the variable dimensions of `from` have in
/// `actual`, in order.
fn fill_variable(to: &[i64], from: &[i64], actual: &[i64]) -> Vec<i64> {
    let mut values = from.iter().zip(actual).filter(|(dim, _)| **dim == -1).map(|(_, &value)| value);
    to.iter().map(|&dim| if dim == -1 { values.next().unwrap_or(-1) } else { dim }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reshapes_carry_variable_dimensions_in_order() {
        for (to, from, actual, expected) in [
            (&[1, -1, -1][..], &[-1, 4, -1][..], &[7, 4, 9][..], &[1, 7, 9][..]),
            (&[], &[1], &[1], &[]),
            (&[-1], &[-1, 1], &[3, 1], &[3]),
        ] {
            assert_eq!(fill_variable(to, from, actual), expected);
        }
        let output = OutputSpec {
            name: "o".into(),
            dtype: DType::F32,
            dims: vec![1],
            reshape: Some(Vec::new()),
            labels: Vec::new(),
        };
        assert_eq!(output.client_shape(vec![5], true), [5, 1]);
        assert_eq!(output.client_shape(vec![], false), [1]);
    }
}
