//! The quantised model.

use super::products::Product;
use crate::Range;
use crate::eight_bits::{column_scales, in_steps};
use crate::onnx::import::Reason;
use crate::onnx::proto::attribute_proto::AttributeType;
use crate::onnx::proto::tensor_proto::DataType;
use crate::onnx::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto};
use halimede_tensor::TensorError;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The model with its products between quantised operands.
pub(super) fn quantized(
    proto: &ModelProto,
    products: &[Product],
    ranges: &BTreeMap<String, Range>,
) -> Result<ModelProto, Reason> {
    let mut proto = proto.clone();
    let Some(graph) = &mut proto.graph else { return Ok(proto) };
    let by_node: HashMap<usize, &Product> = products.iter().map(|product| (product.node, product)).collect();
    let nodes = std::mem::take(&mut graph.node);
    let mut writer =
        Writer { names: names(graph, &nodes), graph, activations: HashMap::new(), weights: HashMap::new() };
    for (index, mut node) in nodes.into_iter().enumerate() {
        if let Some(product) = by_node.get(&index) {
            let range = ranges.get(&product.activation).ok_or_else(|| {
                Reason::Model(format!("no range is known of the activation '{}'", product.activation))
            })?;
            let (activation, scale) = writer.activation(&product.activation, *range);
            let (weights, scales) = writer.weights(product).map_err(|error| Reason::Model(error.to_string()))?;
            node.input[0] = activation;
            node.input[1] = weights;
            if let Some((name, bias)) = &product.bias {
                let bias = bias.slice::<f32>().map_err(|error| Reason::Model(error.to_string()))?;
                node.input[2] = writer.bias(name, bias, scale, &scales);
            }
        }
        writer.graph.node.push(node);
    }
    drop_unread(graph);
    Ok(proto)
}

struct Writer<'g> {
    graph: &'g mut GraphProto,
    /// Names that are taken.
    names: HashSet<String>,
    /// Per activation the name of its other self, and its scale.
    activations: HashMap<String, (String, f32)>,
    /// Per weights and axis the name of their other self, and their scales.
    weights: HashMap<(String, usize), (String, Vec<f32>)>,
}

impl Writer<'_> {
    /// An activation on its way through 8 bits: its name behind that, and its scale.
    fn activation(&mut self, name: &str, range: Range) -> (String, f32) {
        if let Some(known) = self.activations.get(name) {
            return known.clone();
        }
        let (scale, zero) = range.steps();
        let scale_name = self.store(&format!("{name}_scale"), DataType::Float, &[], &scale.to_le_bytes());
        let zero_name = self.store(&format!("{name}_zero_point"), DataType::Uint8, &[], &[zero]);
        let quantised = self.free(&format!("{name}_quantized"));
        let output = self.free(&format!("{name}_dequantized"));
        let read = |value: &str| vec![value.to_owned(), scale_name.clone(), zero_name.clone()];
        self.push("QuantizeLinear", read(name), &quantised, None);
        self.push("DequantizeLinear", read(&quantised), &output, None);
        let made = (output, scale);
        self.activations.insert(name.to_owned(), made.clone());
        made
    }

    /// The weights of a product, stored as i8: their name as floats, and their scales.
    fn weights(&mut self, product: &Product) -> Result<(String, Vec<f32>), TensorError> {
        let Product { weights: name, tensor, axis, .. } = product;
        let key = (name.clone(), *axis);
        if let Some(known) = self.weights.get(&key) {
            return Ok(known.clone());
        }
        let shape = tensor.shape();
        let scales = column_scales(tensor, *axis)?;
        let whole = in_steps(tensor, *axis, &scales)?;
        let dims: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        let stored = self.store(&format!("{name}_quantized"), DataType::Int8, &dims, whole.bytes()?);
        let zeros =
            self.store(&format!("{name}_zero_point"), DataType::Int8, &[scales.len() as i64], &vec![0; scales.len()]);
        let output = self.scaled(name, stored, &scales, Some(zeros), *axis);
        let made = (output, scales);
        self.weights.insert(key, made.clone());
        Ok(made)
    }

    /// A bias in steps of the product's sums, as integer products add it.
    fn bias(&mut self, name: &str, bias: &[f32], scale: f32, scales: &[f32]) -> String {
        let scales: Vec<f32> = scales.iter().map(|channel| channel * scale).collect();
        let whole = bias
            .iter()
            .zip(&scales)
            .flat_map(|(value, scale)| ((value / scale).round_ties_even() as i32).to_le_bytes());
        let whole: Vec<u8> = whole.collect();
        let stored = self.store(&format!("{name}_quantized"), DataType::Int32, &[bias.len() as i64], &whole);
        self.scaled(name, stored, &scales, None, 0)
    }

    /// Stored integers as floats again, a scale per index of `axis`.
    fn scaled(&mut self, name: &str, stored: String, scales: &[f32], zeros: Option<String>, axis: usize) -> String {
        let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let scale = self.store(&format!("{name}_scale"), DataType::Float, &[scales.len() as i64], &bytes);
        let output = self.free(&format!("{name}_dequantized"));
        let inputs = [stored, scale].into_iter().chain(zeros).collect();
        self.push("DequantizeLinear", inputs, &output, Some(axis));
        output
    }

    fn push(&mut self, operator: &str, inputs: Vec<String>, output: &str, axis: Option<usize>) {
        let attribute = axis.map(|axis| AttributeProto {
            name: Some("axis".to_owned()),
            r#type: Some(AttributeType::Int.into()),
            i: Some(axis as i64),
            ..AttributeProto::default()
        });
        self.graph.node.push(NodeProto {
            name: Some(format!("{output}_{operator}")),
            op_type: Some(operator.to_owned()),
            input: inputs,
            output: vec![output.to_owned()],
            attribute: attribute.into_iter().collect(),
            ..NodeProto::default()
        });
    }

    /// Stores a tensor; its name.
    fn store(&mut self, name: &str, dtype: DataType, dims: &[i64], bytes: &[u8]) -> String {
        let name = self.free(name);
        self.graph.initializer.push(TensorProto {
            name: Some(name.clone()),
            data_type: Some(dtype.into()),
            dims: dims.to_vec(),
            raw_data: Some(bytes.to_vec().into()),
            ..TensorProto::default()
        });
        name
    }

    /// The name, or one like it that nobody has.
    fn free(&mut self, name: &str) -> String {
        let mut free = name.to_owned();
        let mut count = 1;
        while !self.names.insert(free.clone()) {
            count += 1;
            free = format!("{name}_{count}");
        }
        free
    }
}

/// Every name of a graph.
fn names(graph: &GraphProto, nodes: &[NodeProto]) -> HashSet<String> {
    let values = nodes.iter().flat_map(|node| node.input.iter().chain(&node.output).cloned());
    let stored = graph.initializer.iter().map(|tensor| tensor.name().to_owned());
    let inputs = graph.input.iter().map(|input| input.name().to_owned());
    values.chain(stored).chain(inputs).collect()
}

/// Drops stored tensors that nobody reads any more. Bodies of control flow read by name as well.
fn drop_unread(graph: &mut GraphProto) {
    let mut read: HashSet<&str> = graph.output.iter().map(|output| output.name()).collect();
    let mut open: Vec<&NodeProto> = graph.node.iter().collect();
    while let Some(node) = open.pop() {
        read.extend(node.input.iter().map(String::as_str));
        for body in node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs)) {
            read.extend(body.output.iter().map(|output| output.name()));
            open.extend(&body.node);
        }
    }
    let read: HashSet<String> = read.into_iter().map(str::to_owned).collect();
    let dropped: HashSet<String> =
        graph.initializer.iter().map(|tensor| tensor.name().to_owned()).filter(|name| !read.contains(name)).collect();
    graph.initializer.retain(|tensor| !dropped.contains(tensor.name()));
    // Below IR version 4 stored tensors are listed as inputs too.
    graph.input.retain(|input| !dropped.contains(input.name()));
}
