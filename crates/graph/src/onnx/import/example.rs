//! Models of one node, from the examples that operators carry.

use super::graph::{add, origin};
use super::{Files, Input, Model, Output, ValueType};
use crate::onnx::{Case, OnnxNode};
use crate::{Fact, Graph, GraphError, Kind};
use halimede_tensor::Value;
use std::collections::BTreeMap;

/// The model of an example. Inputs of which `constant` says so by their position become constants, as
/// axes and shapes mostly are in real models; the others are the model's inputs, in order.
pub fn model_of(case: &Case, constant: impl Fn(usize) -> bool) -> Result<Model, GraphError> {
    model_with(case, constant, &|_, value| fact_of(value))
}

/// The same where `fact` says what the model knows of its inputs, by their position.
pub fn model_with(
    case: &Case,
    constant: impl Fn(usize) -> bool,
    fact: &dyn Fn(usize, &Value) -> Fact,
) -> Result<Model, GraphError> {
    let mut graph = Graph::default();
    let mut inputs = Vec::new();
    let mut given = Vec::with_capacity(case.inputs.len());
    for (index, value) in case.inputs.iter().enumerate() {
        let Some(value) = value else {
            given.push(None);
            continue;
        };
        let name = format!("input{index}");
        given.push(Some(match value {
            Value::Tensor(tensor) if constant(index) => graph.add_constant(name, tensor.clone()),
            value => {
                let (fact, value_type) = (fact(index, value), type_of(value));
                let id = graph.add_value(name.as_str(), fact.clone());
                graph.inputs.push(id);
                inputs.push(Input { name, fact, value_type, default: None });
                id
            }
        }));
    }
    let node = OnnxNode {
        name: case.name.to_owned(),
        opset: case.opset,
        inputs: given,
        outputs: (0..case.outputs.len()).map(|index| Some(format!("output{index}"))).collect(),
        attributes: case.attributes.clone(),
    };
    let origin = origin(case.operator.domain, case.operator.name, case.opset);
    let made = add(&mut graph, case.operator, &node, &origin);
    let made = made.map_err(|source| GraphError { node: case.name.to_owned(), operator: origin, source })?;
    graph.outputs = made.into_iter().take(case.outputs.len()).collect();
    let output =
        |(index, value)| Output { name: format!("output{index}"), fact: fact_of(value), value_type: type_of(value) };
    Ok(Model {
        graph,
        inputs,
        outputs: case.outputs.iter().enumerate().map(output).collect(),
        overridable: Vec::new(),
        opsets: BTreeMap::from([(case.operator.domain.to_owned(), case.opset)]),
        ir_version: super::NEWEST_IR_VERSION,
        producer: String::new(),
        producer_version: String::new(),
        domain: String::new(),
        version: 0,
        doc: String::new(),
        metadata: BTreeMap::new(),
        files: Files::default(),
    })
}

fn fact_of(value: &Value) -> Fact {
    let inner = |values: &[Value]| values.first().and_then(|value| fact_of(value).dtype);
    match value {
        Value::Tensor(tensor) => Fact::tensor(tensor.dtype(), tensor.shape().iter().map(|&size| size.into())),
        Value::Sequence(values) => Fact { kind: Kind::Sequence, dtype: inner(values), ..Fact::default() },
        Value::Optional(value) => {
            let dtype = value.as_ref().and_then(|value| fact_of(value).dtype);
            Fact { kind: Kind::Optional, dtype, ..Fact::default() }
        }
    }
}

fn type_of(value: &Value) -> ValueType {
    let tensor = Box::new(ValueType::Tensor);
    match value {
        Value::Tensor(_) => ValueType::Tensor,
        Value::Sequence(values) => ValueType::Sequence(values.first().map_or(tensor, |value| type_of(value).into())),
        Value::Optional(value) => ValueType::Optional(value.as_ref().map_or(tensor, |value| type_of(value).into())),
    }
}
