//! What the server says about itself, its models and its repository.

/// The server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerMetadata {
    /// Name of the server.
    pub name: String,
    /// Version of the protocol implementation.
    pub version: &'static str,
    /// Extensions of the protocol that the server speaks.
    pub extensions: &'static [&'static str],
}

/// A model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelMetadata {
    /// Name of the model.
    pub name: String,
    /// Versions that are ready, ascending.
    pub versions: Vec<i64>,
    /// The platform of the configuration, or its backend where there is no platform.
    pub platform: String,
    /// Inputs in the order of the configuration.
    pub inputs: Vec<TensorMetadata>,
    /// Outputs in the order of the configuration.
    pub outputs: Vec<TensorMetadata>,
}

/// An input or output of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorMetadata {
    /// Name of the tensor.
    pub name: String,
    /// Element type in the protocols' words, such as `FP32`.
    pub datatype: &'static str,
    /// Dimensions with the batch dimension; -1 where a dimension varies.
    pub shape: Vec<i64>,
}

/// A model of the repository, or one version of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexEntry {
    /// Name of the model.
    pub name: String,
    /// Namespace of the model; empty unless namespaces are on.
    pub namespace: String,
    /// The version; `None` for a model that was never loaded.
    pub version: Option<i64>,
    /// The state; `None` for a model that was never loaded.
    pub state: Option<ModelState>,
    /// Why the model is in that state; empty for one that is ready.
    pub reason: String,
}

/// State of one version of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelState {
    /// Nothing is known.
    Unknown,
    /// Ready for requests.
    Ready,
    /// Not loaded.
    Unavailable,
    /// Being loaded.
    Loading,
    /// Being unloaded: requests in flight are answered, new ones refused.
    Unloading,
}

impl ModelState {
    /// The name in the repository index, such as `READY`.
    pub fn name(self) -> &'static str {
        match self {
            ModelState::Unknown => "UNKNOWN",
            ModelState::Ready => "READY",
            ModelState::Unavailable => "UNAVAILABLE",
            ModelState::Loading => "LOADING",
            ModelState::Unloading => "UNLOADING",
        }
    }
}
