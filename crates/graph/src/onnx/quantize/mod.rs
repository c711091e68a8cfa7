//! Writing models of 8-bit products: standard ONNX with QuantizeLinear and DequantizeLinear around the operands.
//!
//! Weights become i8 with a scale per output channel, activations u8 with one scale and zero point, by the range of
//! values that calibration saw. A runtime that knows nothing of 8 bits computes such a model in floats; one that does
//! folds the pairs into integer products.

mod products;
mod write;

pub use products::Left;

use super::import::{self, Embedded, ImportError, Model, Options, Reason};
use super::proto::{ModelProto, ValueInfoProto};
use crate::Range;
use products::Product;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The opset from which DequantizeLinear takes a scale per channel.
const OPSET_MIN: i64 = 13;

/// A model about to be quantised.
pub struct Quantizer {
    proto: ModelProto,
    products: Vec<Product>,
    left: Vec<Left>,
}

impl Quantizer {
    /// Reads the model at `path` and finds the products that can be quantised: Conv, MatMul and Gemm of f32 with
    /// stored weights.
    ///
    /// # Errors
    /// The file is no model, is of an opset below 13, or is quantised already.
    pub fn open(path: &Path) -> Result<Quantizer, ImportError> {
        let Embedded { mut proto, file, directory } = import::embedded(path)?;
        let found = products::find(&mut proto, &directory).map_err(|reason| ImportError::new(&file, reason))?;
        let (products, left) = found;
        Ok(Quantizer { proto, products, left })
    }

    /// How many products it found.
    pub fn len(&self) -> usize {
        self.products.len()
    }

    /// Whether there is nothing to quantise.
    pub fn is_empty(&self) -> bool {
        self.products.is_empty()
    }

    /// The products that stay as they are, and why.
    pub fn left(&self) -> &[Left] {
        &self.left
    }

    /// Names of the activations whose ranges are needed, in the order in which [`Quantizer::observing`] gives them.
    pub fn activations(&self) -> Vec<&str> {
        let names: BTreeSet<&str> = self.products.iter().map(|product| product.activation.as_str()).collect();
        names.into_iter().collect()
    }

    /// The model with the activations as its outputs.
    pub fn observing(&self) -> Result<Model, ImportError> {
        let mut proto = self.proto.clone();
        let activations = self.activations();
        if let Some(graph) = &mut proto.graph {
            let info = |name: &&str| ValueInfoProto { name: Some((*name).to_owned()), ..ValueInfoProto::default() };
            graph.output = activations.iter().map(info).collect();
        }
        import::from_bytes(proto.encode_to_vec(), None, &Options::default())
    }

    /// The quantised model, to be written to a file.
    ///
    /// # Errors
    /// An activation has no range, or the model comes to more than the 2 GiB that a file of ONNX can have.
    pub fn quantize(&self, ranges: &BTreeMap<String, Range>) -> Result<Vec<u8>, Reason> {
        let proto = write::quantized(&self.proto, &self.products, ranges)?;
        if proto.encoded_len() > i32::MAX as usize {
            return Err(Reason::Model(
                "the quantised model comes to more than 2 GiB, which no ONNX file holds".to_owned(),
            ));
        }
        Ok(proto.encode_to_vec())
    }
}
