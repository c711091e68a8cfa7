use crate::{Graph, OpError};
use halimede_tensor::{DType, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The value of an attribute (ONNX `AttributeProto`).
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "named after AttributeProto's types")]
pub enum Attribute {
    Int(i64),
    Float(f32),
    String(Vec<u8>),
    Tensor(Tensor),
    Graph(Body),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Strings(Vec<Vec<u8>>),
    Tensors(Vec<Tensor>),
    /// A type, as its tensor's datatype.
    Type(Option<DType>),
}

/// A graph inside a node. It is closed: the values that it takes from outside follow its own inputs, and
/// the node has them as its last inputs. All bodies of one node take the same outside values.
#[derive(Debug, Clone)]
pub struct Body {
    /// The graph.
    pub graph: Arc<Graph>,
    /// How many of its last inputs come from outside.
    pub captured: usize,
}

/// The attributes of a node by name.
#[derive(Debug, Clone, Default)]
pub struct Attributes(pub BTreeMap<String, Attribute>);

impl Attributes {
    /// The attribute, where the node has it.
    pub fn find(&self, name: &str) -> Option<&Attribute> {
        self.0.get(name)
    }

    /// An integer attribute, where the node has it.
    pub fn int(&self, name: &str) -> Result<Option<i64>, OpError> {
        self.typed(name, "an integer", |a| if let Attribute::Int(v) = a { Some(*v) } else { None })
    }

    /// An integer attribute or its default.
    pub fn int_or(&self, name: &str, default: i64) -> Result<i64, OpError> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    /// An integer attribute as a truth value, or its default.
    pub fn flag_or(&self, name: &str, default: bool) -> Result<bool, OpError> {
        Ok(self.int(name)?.map_or(default, |v| v != 0))
    }

    /// A float attribute, where the node has it.
    pub fn float(&self, name: &str) -> Result<Option<f32>, OpError> {
        self.typed(name, "a float", |a| if let Attribute::Float(v) = a { Some(*v) } else { None })
    }

    /// A float attribute or its default.
    pub fn float_or(&self, name: &str, default: f32) -> Result<f32, OpError> {
        Ok(self.float(name)?.unwrap_or(default))
    }

    /// A string attribute as text, where the node has it.
    pub fn text(&self, name: &str) -> Result<Option<&str>, OpError> {
        self.typed(name, "a text", |a| match a {
            Attribute::String(v) => std::str::from_utf8(v).ok(),
            _ => None,
        })
    }

    /// A string attribute as text, or its default.
    pub fn text_or<'a>(&'a self, name: &str, default: &'a str) -> Result<&'a str, OpError> {
        Ok(self.text(name)?.unwrap_or(default))
    }

    /// A list of integers, where the node has it.
    pub fn ints(&self, name: &str) -> Result<Option<&[i64]>, OpError> {
        self.typed(name, "a list of integers", |a| match a {
            Attribute::Ints(v) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// A list of floats, where the node has it.
    pub fn floats(&self, name: &str) -> Result<Option<&[f32]>, OpError> {
        self.typed(name, "a list of floats", |a| match a {
            Attribute::Floats(v) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// A list of byte strings, where the node has it.
    pub fn strings(&self, name: &str) -> Result<Option<&[Vec<u8>]>, OpError> {
        self.typed(name, "a list of strings", |a| match a {
            Attribute::Strings(v) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// A tensor, where the node has it.
    pub fn tensor(&self, name: &str) -> Result<Option<&Tensor>, OpError> {
        self.typed(name, "a tensor", |a| if let Attribute::Tensor(v) = a { Some(v) } else { None })
    }

    /// A body, where the node has it.
    pub fn graph(&self, name: &str) -> Result<Option<&Body>, OpError> {
        self.typed(name, "a graph", |a| if let Attribute::Graph(v) = a { Some(v) } else { None })
    }

    /// The value of an attribute that must be there.
    pub fn required<T>(&self, name: &str, value: Option<T>) -> Result<T, OpError> {
        value.ok_or_else(|| OpError::invalid(format!("attribute '{name}' is missing")))
    }

    fn typed<'a, T>(
        &'a self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a Attribute) -> Option<T>,
    ) -> Result<Option<T>, OpError> {
        // An empty list is written without a type by some exporters and arrives as Ints.
        match self.0.get(name) {
            None => Ok(None),
            Some(Attribute::Ints(list)) if list.is_empty() && expected != "a list of integers" => Ok(None),
            Some(attribute) => read(attribute)
                .map(Some)
                .ok_or_else(|| OpError::invalid(format!("attribute '{name}' should be {expected}"))),
        }
    }
}
