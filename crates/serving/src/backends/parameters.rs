//! A backend for tests of what reaches a model: the outputs `key` and `value` are the names and values of
//! the request's parameters, those included that headers became.

use std::sync::Arc;

use halimede_tensor::{Buffer, DType};

use crate::{
    backend::{Backend, Batch, Instance, LoadedModel, Model, ModelContext},
    config::finish_without_model,
    error::Error,
    request::Parameter,
    response::OutputTensor,
    wire,
};

/// The backend `parameters`.
#[derive(Debug)]
pub struct Parameters;

impl Backend for Parameters {
    fn name(&self) -> &str {
        "parameters"
    }

    fn load(&self, context: &ModelContext) -> Result<LoadedModel, Error> {
        let config = finish_without_model(context.config.clone(), &context.options)?;
        if config.max_batch_size != 0 || config.output.iter().any(|output| !["key", "value"].contains(&&*output.name)) {
            return Err(Error::invalid(format!(
                "model '{}' of the backend 'parameters' must have max_batch_size 0 and no outputs but 'key' and 'value'",
                config.name
            )));
        }
        Ok(LoadedModel::as_configured(config, Arc::new(Parameters)))
    }
}

impl Model for Parameters {
    fn instance(&self, _: usize) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(Parameters))
    }
}

impl Instance for Parameters {
    fn execute(&mut self, batch: &mut Batch) {
        for index in 0..batch.len() {
            let parameters = &batch.request(index).parameters;
            let keys = strings("key", parameters.iter().map(|(name, _)| name.clone()));
            let values = strings("value", parameters.iter().map(|(_, value)| text(value)));
            for output in [keys, values].into_iter().flatten() {
                if batch.wants(index, &output.name) {
                    batch.push_output(index, output);
                }
            }
        }
    }
}

/// The value as Python prints it.
fn text(value: &Parameter) -> String {
    match value {
        Parameter::String(value) => value.clone(),
        Parameter::Int(value) => value.to_string(),
        Parameter::Bool(true) => "True".to_owned(),
        Parameter::Bool(false) => "False".to_owned(),
        Parameter::Double(value) => value.to_string(),
    }
}

/// `None` where a string is longer than the wire form allows, which no request is.
fn strings(name: &str, texts: impl Iterator<Item = String>) -> Option<OutputTensor> {
    let (mut bytes, mut count) = (Vec::new(), 0);
    for text in texts {
        wire::push_string(&mut bytes, text.as_bytes())?;
        count += 1;
    }
    Some(OutputTensor { name: name.to_owned(), dtype: DType::String, shape: vec![count], data: Buffer::foreign(bytes) })
}
