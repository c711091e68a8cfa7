//! Models as messages that hold all their data, for those who write them again.

use super::error::{ImportError, Reason};
use super::file::{self, External};
use super::{decode, tensor};
use crate::onnx::proto::{GraphProto, ModelProto, TensorProto, tensor_proto::DataLocation};
use halimede_tensor::Tensor;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A model's message, the file that it was in, and where that lies.
pub(crate) struct Embedded {
    pub proto: ModelProto,
    pub file: PathBuf,
    pub directory: PathBuf,
}

/// Reads the message at `path`: an ONNX file, or a folder that holds one.
pub(crate) fn embedded(path: &Path) -> Result<Embedded, ImportError> {
    let file = file::locate(path).map_err(|reason| reason.of(Some(path)))?;
    let read = || decode::decode("ModelProto", file::map(&file)?.1).map_err(Reason::Format);
    let proto = read().map_err(|reason| reason.of(Some(&file)))?;
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
    Ok(Embedded { proto, file, directory })
}

/// The tensors that a graph stores, by name.
pub(crate) struct StoredTensors {
    /// Places among the graph's initializers.
    places: HashMap<String, usize>,
    /// Values of Constant nodes, by output.
    constants: HashMap<String, (usize, usize)>,
}

impl StoredTensors {
    /// Takes data that lies in other files into the graph and its bodies.
    pub fn embed(graph: &mut GraphProto, directory: &Path) -> Result<StoredTensors, Reason> {
        let mut external = External::new(Some(directory));
        embed(graph, &mut external)?;
        let places = graph.initializer.iter().enumerate().map(|(place, tensor)| (tensor.name().to_owned(), place));
        let mut constants = HashMap::new();
        for (index, node) in graph.node.iter().enumerate().filter(|(_, node)| node.op_type() == "Constant") {
            let value = node.attribute.iter().position(|attribute| attribute.name() == "value");
            if let (Some(value), Some(output)) = (value, node.output.first()) {
                constants.insert(output.clone(), (index, value));
            }
        }
        Ok(StoredTensors { places: places.collect(), constants })
    }

    /// The tensor of a name; `None` where nothing of it is stored.
    pub fn find(&self, graph: &GraphProto, name: &str) -> Result<Option<Tensor>, String> {
        let constant = |&(node, attribute): &(usize, usize)| graph.node[node].attribute[attribute].t.as_ref();
        let proto = match self.places.get(name) {
            Some(&place) => Some(&graph.initializer[place]),
            None => self.constants.get(name).and_then(constant),
        };
        // Nothing lies outside any more.
        proto.map(|proto| tensor::read(proto, &mut External::new(None))).transpose()
    }
}

fn embed(graph: &mut GraphProto, external: &mut External) -> Result<(), Reason> {
    let mut take = |stored: &mut TensorProto| {
        if stored.data_location() == DataLocation::External {
            let bytes = tensor::external_bytes(stored, external);
            stored.raw_data = Some(bytes.map_err(|reason| Reason::tensor(stored.name(), reason))?);
            stored.external_data.clear();
            stored.data_location = None;
        }
        Ok::<(), Reason>(())
    };
    graph.initializer.iter_mut().try_for_each(&mut take)?;
    for attribute in graph.node.iter_mut().flat_map(|node| &mut node.attribute) {
        attribute.t.iter_mut().chain(&mut attribute.tensors).try_for_each(&mut take)?;
    }
    let attributes = graph.node.iter_mut().flat_map(|node| &mut node.attribute);
    attributes
        .flat_map(|attribute| attribute.g.iter_mut().chain(&mut attribute.graphs))
        .try_for_each(|body| embed(body, external))
}
