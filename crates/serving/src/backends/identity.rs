//! NVIDIA's test backend: every output is its input. `OUTPUT<n>` answers `INPUT<n>`.
//!
//! Parameters of the configuration: `execute_delay_ms` lets every execution take that long, times the
//! index of the instance where `instance_wise_delay_multiplier` is not 0; `creation_delay_sec` lets the
//! model take that long to load. Every response has the parameters `param0` to `param3`.

use std::{sync::Arc, thread, time::Duration};

use halimede_tensor::{Buffer, DType};

use super::interface::{execute_delay, number};
use crate::{
    backend::{Backend, Batch, Instance, LoadedModel, Model, ModelContext},
    config::{ModelConfig, finish_without_model},
    error::Error,
    model::{Signature, shape_text},
    request::Parameter,
    response::OutputTensor,
    wire,
};

/// The backend `identity`.
#[derive(Debug)]
pub struct Identity;

impl Backend for Identity {
    fn name(&self) -> &str {
        "identity"
    }

    fn load(&self, context: &ModelContext) -> Result<LoadedModel, Error> {
        let config = finish_without_model(context.config.clone(), &context.options)?;
        let signature = Signature::new(&config)?;
        let pairs = pairs(&config, &signature)?;
        let execute_delay = execute_delay(&config)?;
        let multiplier = number(&config, "instance_wise_delay_multiplier")?;
        thread::sleep(Duration::from_secs(number(&config, "creation_delay_sec")?));
        let model = Arc::new(IdentityModel { pairs: Arc::new(pairs), execute_delay, multiplier });
        Ok(LoadedModel::as_configured(config, model))
    }
}

/// An output and the input that it answers.
#[derive(Debug)]
struct Pair {
    input: String,
    output: String,
    dtype: DType,
    /// Where the input is optional and not given, the output is zeros of this shape without the batch.
    default_dims: Option<Vec<i64>>,
}

fn pairs(config: &ModelConfig, signature: &Signature) -> Result<Vec<Pair>, Error> {
    if config.input.len() != config.output.len() {
        return Err(Error::invalid("model configuration must have equal input/output pairs"));
    }
    for (input, output) in config.input.iter().zip(&config.output) {
        for (kind, prefix, name) in [("input", "INPUT", &input.name), ("output", "OUTPUT", &output.name)] {
            if !name.starts_with(prefix) {
                return Err(Error::invalid(format!(
                    "expected {kind} name to follow {prefix}<index> pattern, got '{name}'"
                )));
            }
        }
    }
    let outputs = signature.outputs.iter().zip(&config.output);
    let pair = outputs.map(|(output, output_config)| {
        let index = output.name.trim_start_matches("OUTPUT");
        let name = format!("INPUT{index}");
        let input =
            signature.input(&name).ok_or_else(|| Error::invalid("expected input and output indices to match"))?;
        if input.dtype != output.dtype {
            let input_type =
                config.input.iter().find(|io| io.name == name).map_or("", |io| io.data_type().as_str_name());
            let output_type = output_config.data_type().as_str_name();
            return Err(Error::invalid(format!(
                "expected input and output datatype to match, got {input_type} and {output_type}"
            )));
        }
        let dims = input.reshape.as_ref().unwrap_or(&input.dims);
        let output_dims = output.reshape.as_ref().unwrap_or(&output.dims);
        if dims != output_dims {
            return Err(Error::invalid(format!(
                "expected input and output shape to match, got {} and {}",
                shape_text(dims),
                shape_text(output_dims)
            )));
        }
        Ok(Pair {
            input: name,
            output: output.name.clone(),
            dtype: output.dtype,
            default_dims: input.optional.then(|| dims.iter().map(|dim| if *dim == -1 { 1 } else { *dim }).collect()),
        })
    });
    pair.collect()
}

struct IdentityModel {
    pairs: Arc<Vec<Pair>>,
    execute_delay: Duration,
    multiplier: u64,
}

impl Model for IdentityModel {
    fn instance(&self, index: usize) -> Result<Box<dyn Instance>, Error> {
        let times = self.multiplier.saturating_mul(index as u64).clamp(1, u64::from(u32::MAX)) as u32;
        Ok(Box::new(IdentityInstance { pairs: self.pairs.clone(), delay: self.execute_delay.saturating_mul(times) }))
    }
}

struct IdentityInstance {
    pairs: Arc<Vec<Pair>>,
    delay: Duration,
}

impl Instance for IdentityInstance {
    fn execute(&mut self, batch: &mut Batch) {
        batch.inputs_ready();
        if !self.delay.is_zero() {
            thread::sleep(self.delay);
        }
        batch.outputs_computed();
        for index in 0..batch.len() {
            for pair in self.pairs.iter() {
                match batch.wants(index, &pair.output).then(|| pair.answer(batch, index)) {
                    None => {}
                    Some(Ok(output)) => batch.push_output(index, output),
                    Some(Err(error)) => batch.fail(index, error),
                }
            }
            batch.push_parameter(index, "param0", Parameter::String("an example string parameter".to_owned()));
            batch.push_parameter(index, "param1", Parameter::Int(42));
            batch.push_parameter(index, "param2", Parameter::Bool(false));
            batch.push_parameter(index, "param3", Parameter::Double(123.123));
        }
    }
}

impl Pair {
    /// The output for one request; it shares the bytes of the input.
    fn answer(&self, batch: &Batch, index: usize) -> Result<OutputTensor, Error> {
        let (name, dtype) = (self.output.clone(), self.dtype);
        if let Some(input) = batch.request(index).inputs.iter().find(|input| input.name == self.input) {
            return Ok(OutputTensor { name, dtype, shape: input.shape.clone(), data: input.data.clone() });
        }
        let Some(dims) = &self.default_dims else {
            return Err(Error::unsupported(format!("failed to get input '{}'", self.input)));
        };
        let batch_size = batch.is_batched().then_some(batch.request_size(index) as i64);
        let shape: Vec<i64> = batch_size.into_iter().chain(dims.iter().copied()).collect();
        let count: usize = shape.iter().map(|dim| usize::try_from(*dim).unwrap_or(0)).product();
        let size = if dtype == DType::String { wire::LENGTH_BYTES } else { dtype.size() };
        Ok(OutputTensor { name, dtype, shape, data: Buffer::zeroed(count * size)? })
    }
}
