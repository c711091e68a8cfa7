//! A response to JSON: outputs and parameters by name.

use std::collections::BTreeMap;

use halimede_serving::{Error, OutputTensor, Parameter, Response};

use super::super::infer::data;
use crate::json::Writer;

/// What a member is made of.
enum Member {
    Text(String),
    Parameter(Parameter),
    Output(OutputTensor),
}

/// The members of a response, sorted by name. Of an output of one element the element alone.
pub(super) fn encode(response: Response) -> Result<Vec<u8>, Error> {
    if let Some(error) = response.error {
        return Err(error);
    }
    let mut members = BTreeMap::new();
    if !response.id.is_empty() {
        members.insert("id".to_owned(), Member::Text(response.id));
    }
    members.insert("model_name".to_owned(), Member::Text(response.model));
    members.insert("model_version".to_owned(), Member::Text(response.version.to_string()));
    // What comes first keeps its name.
    for (name, parameter) in response.parameters {
        members.entry(name).or_insert(Member::Parameter(parameter));
    }
    for output in response.outputs {
        members.entry(output.name.clone()).or_insert(Member::Output(output));
    }
    let mut writer = Writer::with_capacity(256);
    writer.begin_object();
    for (name, member) in members {
        writer.name(&name);
        match member {
            Member::Text(text) => writer.text(&text),
            Member::Parameter(Parameter::String(text)) => writer.text(&text),
            Member::Parameter(Parameter::Int(number)) => writer.signed(number),
            Member::Parameter(Parameter::Bool(value)) => writer.boolean(value),
            Member::Parameter(Parameter::Double(number)) => writer.double(number),
            Member::Output(output) => write_output(&mut writer, &output)?,
        }
    }
    writer.end_object();
    Ok(writer.into_bytes())
}

fn write_output(writer: &mut Writer, output: &OutputTensor) -> Result<(), Error> {
    if output.shape.iter().any(|dim| *dim != 1) {
        return data::to_json(writer, output);
    }
    let mut alone = Writer::default();
    data::to_json(&mut alone, output)?;
    let array = alone.into_bytes();
    writer.raw(&array[1..array.len() - 1]);
    Ok(())
}
