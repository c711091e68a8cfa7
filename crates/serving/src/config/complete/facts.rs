//! What is known about a model once its file has been read.

use super::super::proto::DataType;

/// The inputs and outputs of a model, and whether its first dimension is a batch.
#[derive(Debug, Clone, Default)]
pub struct ModelFacts {
    /// Inputs that a request must give, in the model's order. Not those with a default value.
    pub inputs: Vec<IoFacts>,
    /// Outputs, in the model's order.
    pub outputs: Vec<IoFacts>,
    /// Inputs with a default value (in ONNX, initializers that are inputs too), which a configuration may declare as optional.
    pub initializers: Vec<IoFacts>,
    /// What an analysis of the graph says about the first dimension.
    pub batching: Batching,
}

/// One input or output of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoFacts {
    /// Name in the model.
    pub name: String,
    /// Element type; `TYPE_INVALID` where the protocol has none.
    pub data_type: DataType,
    /// Shape with the batch dimension; -1 is variable.
    pub shape: Vec<i64>,
    /// The same as far as it was worked out from the rest of the model, with as many dimensions; empty where nothing
    /// was.
    pub inferred: Vec<i64>,
    /// Only tensors can be served.
    pub kind: IoKind,
}

impl IoFacts {
    /// A tensor.
    pub fn tensor(name: impl Into<String>, data_type: DataType, shape: impl Into<Vec<i64>>) -> Self {
        Self { name: name.into(), data_type, shape: shape.into(), inferred: Vec::new(), kind: IoKind::Tensor }
    }
}

/// The kind of value of an input or output in ONNX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum IoKind {
    Tensor,
    Sequence,
    Map,
    Opaque,
    SparseTensor,
    Optional,
}

impl IoKind {
    /// The name that ONNX Runtime gives the kind, which Triton prints.
    pub fn onnx_name(self) -> &'static str {
        match self {
            Self::Tensor => "ONNX_TYPE_TENSOR",
            Self::Sequence => "ONNX_TYPE_SEQUENCE",
            Self::Map => "ONNX_TYPE_MAP",
            Self::Opaque => "ONNX_TYPE_OPAQUE",
            Self::SparseTensor => "ONNX_TYPE_SPARSETENSOR",
            Self::Optional => "ONNX_TYPE_OPTIONAL",
        }
    }
}

/// Whether rows along the first dimension of a model are independent of each other, so that the rows
/// of several requests may be run together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Batching {
    /// Nobody has looked, or it could not be decided. A variable first dimension then counts as a
    /// batch, as in Triton, and the completion says that this was assumed.
    #[default]
    Unknown,
    /// Every row of every output depends on its own row of the inputs alone.
    Independent,
    /// Rows depend on each other; the text says where, such as a node that reduces over axis 0.
    Mixed(String),
}
