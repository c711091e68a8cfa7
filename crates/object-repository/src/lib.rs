//! Model repositories in object storage: S3, Google Cloud Storage, Azure Storage.
//!
//! An [`ObjectRepository`] tells a server what models there are and copies those that are to be loaded to this machine. Objects
//! that were copied before are kept in a [`Cache`] by the hash of their content, and are fetched again only where they
//! changed or where a copy is damaged.

#![forbid(unsafe_code)]

mod address;
mod cache;
mod credentials;
mod crypto;
mod gcs;
mod http;
mod listing;
mod profile;
mod repository;
mod store;
mod tree;

pub use address::Address;
pub use cache::Cache;
pub use credentials::Credentials;
pub use repository::{ObjectRepository, Resources};
