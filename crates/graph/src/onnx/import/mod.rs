//! Reading ONNX models into graphs.
//!
//! [`load`] maps the file, so that tensors stay where they lie, and walks the nodes in running order.
//! Each node becomes core operators ([`Operator::lower`](super::Operator)), or a call of its reference
//! evaluation, or an error that names it. Functions of the model are written out where they are called;
//! bodies of control flow become closed graphs.

mod attribute;
mod body;
mod data;
mod decode;
mod embed;
mod error;
mod example;
mod file;
mod graph;
mod legacy;
mod order;
mod scope;
mod size;
mod tensor;
mod types;

#[cfg(test)]
mod tests;

pub(crate) use embed::{Embedded, StoredTensors, embedded};

pub use data::{read_tensor, read_value};
pub use error::{ImportError, Reason};
pub use example::{model_of, model_with};
pub use file::Files;
pub use tensor::dtype_from_code;
pub use types::ValueType;

use super::proto::{ModelProto, StringStringEntryProto};
use crate::{Fact, Graph};
use bytes::Bytes;
use halimede_tensor::Tensor;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Newest version of the file format that is read.
pub const NEWEST_IR_VERSION: i64 = 14;
/// Newest version of ONNX's own operators that is read.
pub const NEWEST_OPSET: i64 = 28;

/// An ONNX model, read.
#[derive(Debug)]
pub struct Model {
    /// What it computes. Values keep the model's names where a name is theirs alone; [`Model::inputs`]
    /// and [`Model::outputs`] hold the names of inputs and outputs in every case.
    pub graph: Graph,
    /// The inputs, in the order of [`Graph::inputs`].
    pub inputs: Vec<Input>,
    /// The outputs, in the order of [`Graph::outputs`].
    pub outputs: Vec<Output>,
    /// Constants that the model allows a request to replace: initializers that are listed as inputs too
    /// (IR version 4 on). Those named in [`Options::overridable`] became inputs, the others are folded.
    pub overridable: Vec<Input>,
    /// The version of each domain's operators; ONNX's own domain is the empty text.
    pub opsets: BTreeMap<String, i64>,
    /// Version of the file format.
    pub ir_version: i64,
    /// The tool that wrote it.
    pub producer: String,
    /// That tool's version.
    pub producer_version: String,
    /// The model's own domain, version and description.
    pub domain: String,
    /// The model's own version.
    pub version: i64,
    /// Description.
    pub doc: String,
    /// Further properties.
    pub metadata: BTreeMap<String, String>,
    /// The files that it was read from.
    pub files: Files,
}

/// An input of a model.
#[derive(Debug, Clone)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// Datatype and shape as declared.
    pub fact: Fact,
    /// Tensor, sequence or optional, to the innermost.
    pub value_type: ValueType,
    /// The value where a request does not give one.
    pub default: Option<Tensor>,
}

/// An output of a model.
#[derive(Debug, Clone)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// Datatype and shape as declared. What was worked out stands in the graph.
    pub fact: Fact,
    /// Tensor, sequence or optional, to the innermost.
    pub value_type: ValueType,
}

/// How a model is read.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Initializers that stay inputs, with their value as default. Only those that the model lists as
    /// inputs too can; everything else is ignored.
    pub overridable: BTreeSet<String>,
}

/// Reads the model at `path`: an ONNX file, or a folder that holds one with its external data.
pub fn load(path: &Path) -> Result<Model, ImportError> {
    load_with(path, &Options::default())
}

/// [`load`] with options.
pub fn load_with(path: &Path, options: &Options) -> Result<Model, ImportError> {
    let file = file::locate(path).map_err(|reason| reason.of(Some(path)))?;
    let (mapped, bytes) = file::map(&file).map_err(|reason| reason.of(Some(&file)))?;
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut model = read(bytes, Some(directory), options).map_err(|reason| reason.of(Some(&file)))?;
    model.files.push(mapped);
    Ok(model)
}

/// Reads a model from memory. External data is looked for in `directory`; without one it is refused.
pub fn from_bytes(bytes: impl Into<Bytes>, directory: Option<&Path>, options: &Options) -> Result<Model, ImportError> {
    read(bytes.into(), directory, options).map_err(|reason| reason.of(None))
}

fn read(bytes: Bytes, directory: Option<&Path>, options: &Options) -> Result<Model, Reason> {
    let proto: ModelProto = decode::decode("ModelProto", bytes).map_err(Reason::Format)?;
    let graph = proto.graph.as_ref().ok_or_else(|| Reason::Format("the message holds no graph".to_owned()))?;
    let ir_version = proto.ir_version();
    if !(1..=NEWEST_IR_VERSION).contains(&ir_version) {
        return Err(Reason::model(format!(
            "IR version {ir_version} is not known (1 to {NEWEST_IR_VERSION}); export the model again for an older one"
        )));
    }
    let opsets = opsets(&proto)?;
    let reader = graph::Reader::new(&proto, &opsets, directory, options);
    let read = reader.read(graph)?;
    Ok(Model {
        graph: read.graph,
        inputs: read.inputs,
        outputs: read.outputs,
        overridable: read.overridable,
        opsets,
        ir_version,
        producer: proto.producer_name().to_owned(),
        producer_version: proto.producer_version().to_owned(),
        domain: proto.domain().to_owned(),
        version: proto.model_version(),
        doc: proto.doc_string().to_owned(),
        metadata: entries(&proto.metadata_props),
        files: read.files,
    })
}

fn opsets(proto: &ModelProto) -> Result<BTreeMap<String, i64>, Reason> {
    let mut opsets: BTreeMap<String, i64> =
        proto.opset_import.iter().map(|import| (scope::domain(import.domain()).to_owned(), import.version())).collect();
    // Before IR version 3 a model did not say; there was one opset.
    if proto.ir_version() < 3 {
        opsets.entry(String::new()).or_insert(1);
    }
    match opsets.get("") {
        Some(version) if !(1..=NEWEST_OPSET).contains(version) => Err(Reason::model(format!(
            "opset {version} is not known (1 to {NEWEST_OPSET}); convert the model with onnx.version_converter"
        ))),
        _ => Ok(opsets),
    }
}

fn entries(entries: &[StringStringEntryProto]) -> BTreeMap<String, String> {
    entries.iter().map(|entry| (entry.key().to_owned(), entry.value().to_owned())).collect()
}
