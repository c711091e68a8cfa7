//! Which products of a model can be quantised.

use super::OPSET_MIN;
use crate::onnx::import::{Reason, StoredTensors};
use crate::onnx::proto::{AttributeProto, GraphProto, ModelProto, NodeProto};
use halimede_tensor::{DType, Tensor};
use std::fmt;
use std::path::Path;

/// A product with stored weights.
pub(super) struct Product {
    /// Its place among the nodes.
    pub node: usize,
    /// The value that it multiplies; input 0.
    pub activation: String,
    /// The name of the weights; input 1.
    pub weights: String,
    /// The weights, f32.
    pub tensor: Tensor,
    /// The axis of the weights that counts output channels.
    pub axis: usize,
    /// What is added per channel, where it is stored: input 2, f32.
    pub bias: Option<(String, Tensor)>,
}

/// A product that stays as it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Left {
    /// Its name, or its first output's.
    pub node: String,
    /// Its operator.
    pub operator: String,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} '{}': {}", self.operator, self.node, self.reason)
    }
}

/// The products of a model, and those that stay. Stored data that lies beside the model is taken into it, so that
/// it stays whole wherever it is written to.
pub(super) fn find(proto: &mut ModelProto, directory: &Path) -> Result<(Vec<Product>, Vec<Left>), Reason> {
    let opset = proto.opset_import.iter().find(|import| matches!(import.domain(), "" | "ai.onnx"));
    let opset = opset.map_or(1, |import| import.version());
    if opset < OPSET_MIN {
        return Err(Reason::Model(format!(
            "the model is of opset {opset}; scales per channel came with {OPSET_MIN}: convert it with \
             onnx.version_converter first"
        )));
    }
    let graph = proto.graph.as_mut().ok_or_else(|| Reason::Format("the message holds no graph".to_owned()))?;
    if let Some(node) = graph.node.iter().find(|node| is_quantised(node)) {
        return Err(Reason::Model(format!("the model is quantised already: it has a {}", node.op_type())));
    }
    let stored = StoredTensors::embed(graph, directory)?;
    let (mut products, mut left) = (Vec::new(), Vec::new());
    for (index, node) in graph.node.iter().enumerate() {
        if !node.domain().is_empty() && node.domain() != "ai.onnx" {
            continue;
        }
        match product(index, node, graph, &stored) {
            None => {}
            Some(Ok(product)) => products.push(product),
            Some(Err(reason)) => left.push(Left {
                node: if node.name().is_empty() { node.output.concat() } else { node.name().to_owned() },
                operator: node.op_type().to_owned(),
                reason,
            }),
        }
    }
    Ok((products, left))
}

fn is_quantised(node: &NodeProto) -> bool {
    let operator = node.op_type();
    ["QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger"].contains(&operator)
        || operator.starts_with("QLinear")
}

/// A product; the reason where it stays as it is; `None` for another operator.
fn product(
    index: usize,
    node: &NodeProto,
    graph: &GraphProto,
    stored: &StoredTensors,
) -> Option<Result<Product, String>> {
    let axis = match node.op_type() {
        "Conv" => 0,
        "MatMul" => 1,
        "Gemm" => usize::from(integer(node, "transB", 0) == 0),
        _ => return None,
    };
    Some((|| {
        let [activation, weights, rest @ ..] = node.input.as_slice() else {
            return Err("it has less than two inputs".to_owned());
        };
        let tensor = stored.find(graph, weights)?.ok_or("its weights are computed")?;
        if tensor.dtype() != DType::F32 {
            return Err(format!("its weights are of {}", tensor.dtype()));
        }
        if stored.find(graph, activation)?.is_some() {
            return Err("what it multiplies is stored too".to_owned());
        }
        let rank_fits = if node.op_type() == "Conv" { tensor.rank() >= 3 } else { tensor.rank() == 2 };
        if !rank_fits || tensor.is_empty() {
            return Err(format!("its weights are of shape {:?}", tensor.shape()));
        }
        if node.op_type() == "Gemm"
            && (integer(node, "transA", 0) != 0 || real(node, "alpha") != 1.0 || real(node, "beta") != 1.0)
        {
            return Err("it transposes or scales what it multiplies".to_owned());
        }
        // A bias of another form stays a float: it is added to the scaled sums.
        let bias = match rest.first().filter(|name| !name.is_empty()) {
            Some(name) => stored.find(graph, name)?.map(|bias| (name.clone(), bias)),
            None => None,
        };
        let bias = bias.filter(|(_, bias)| bias.dtype() == DType::F32 && bias.shape() == [tensor.shape()[axis]]);
        let (activation, weights) = (activation.clone(), weights.clone());
        Ok(Product { node: index, activation, weights, tensor, axis, bias })
    })())
}

fn attribute<'n>(node: &'n NodeProto, name: &str) -> Option<&'n AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name() == name)
}

fn integer(node: &NodeProto, name: &str, default: i64) -> i64 {
    attribute(node, name).map_or(default, |attribute| attribute.i())
}

/// A factor, 1 where nothing is said.
fn real(node: &NodeProto, name: &str) -> f32 {
    attribute(node, name).map_or(1.0, |attribute| attribute.f())
}
