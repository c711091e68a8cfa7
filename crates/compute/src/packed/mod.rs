//! Packed weights in files, so that the next start maps what this one packed.
//!
//! While a graph is compiled, kernels ask a [`Packer`] for their packed weights, one piece after the other. A graph that
//! is compiled by the same program in the same way asks for the same pieces in the same order: so a file is their list,
//! and its [`Key`] says of which graph, which unit and which options it is. Several processes that map one file share
//! its pages.

mod file;
mod packer;
mod store;

pub use file::{Damage, Piece, parse};
pub use packer::Packer;
pub use store::{Store, StoreError};

use crate::CompileOptions;
use std::fmt;

/// What the bytes of packed weights depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(u128);

impl Key {
    /// The key of a graph by its [`fingerprint`](crate::fingerprint::of_graph), compiled by these options for a unit that
    /// describes its layouts so ([`ComputeUnit::layouts`](crate::ComputeUnit::layouts)).
    pub fn new(fingerprint: u128, layouts: &str, options: &CompileOptions) -> Key {
        Key(xxhash_rust::xxh3::xxh3_128(format!("{fingerprint:032x} {layouts} {options:?}").as_bytes()))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests;
