//! Extensions of the protocol, HTTP and gRPC of each side by side.

pub(crate) mod logging;
pub(crate) mod repository;
pub(crate) mod shared_memory;
pub(crate) mod statistics;
pub(crate) mod trace;
