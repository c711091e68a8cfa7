//! Requests, the model repository, configurations, schedulers, instances and statistics.
//!
//! A protocol makes a [`Request`] and gives it to [`Server::infer`]; the answer comes back through the
//! [`Reply`] inside the request. Nothing here knows a protocol, a socket or an asynchronous runtime.

#![forbid(unsafe_code)]

pub mod admission;
pub mod backend;
pub mod backends;
pub mod cache;
pub mod config;
mod ensemble;
mod error;
mod instance;
mod metadata;
pub mod metrics;
mod model;
mod options;
mod ordering;
mod paths;
pub mod rate_limiter;
pub mod remote;
mod repository;
mod request;
mod response;
mod scheduler;
mod server;
pub mod statistics;
pub mod temporary;
#[cfg(test)]
mod testing;
pub mod trace;
pub mod wire;

pub use error::{Code, Error};
pub use metadata::{IndexEntry, ModelMetadata, ModelState, ServerMetadata, TensorMetadata};
pub use options::{ControlMode, LoadParameters, MetricsOptions, Options};
pub use repository::{
    Served,
    overview::{LoadedOverview, ModelOverview},
    read_config_text, served,
};
pub use request::{CorrelationId, InputTensor, Parameter, Request, RequestedOutput, Sequence, Timestamps};
pub use response::{OutputTensor, Reply, Responder, Response};
pub use server::{Server, VERSION};

/// The target of messages to the log that consist of single lines without quotes around them, and of tables.
pub const LOG_UNESCAPED: &str = "halimede_unescaped";
