//! A place in a document, and what may be read there.

use std::borrow::Cow;

use halimede_serving::Error;

use super::{Document, reader::Node};

/// A value of a document.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Value<'d> {
    document: &'d Document<'d>,
    index: usize,
}

/// A value that is neither array nor object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scalar<'d> {
    Null,
    Bool(bool),
    Int(i64),
    UInt(u64),
    Double(f64),
    String(&'d [u8]),
}

impl Scalar<'_> {
    /// A whole number from 0.
    pub fn unsigned(self) -> Result<u64, Error> {
        match self {
            Scalar::Int(value) if value >= 0 => Ok(value as u64),
            Scalar::UInt(value) => Ok(value),
            _ => Err(Error::internal("attempt to access JSON non-unsigned-integer as unsigned-integer")),
        }
    }

    /// A whole number that fits 64 bits with a sign.
    pub fn signed(self) -> Result<i64, Error> {
        match self {
            Scalar::Int(value) => Ok(value),
            _ => Err(Error::internal("attempt to access JSON non-signed-integer as signed-integer")),
        }
    }

    /// Any number.
    pub fn double(self) -> Result<f64, Error> {
        match self {
            Scalar::Int(value) => Ok(value as f64),
            Scalar::UInt(value) => Ok(value as f64),
            Scalar::Double(value) => Ok(value),
            _ => Err(Error::internal("attempt to access JSON non-number as double")),
        }
    }

    /// `true` or `false`.
    pub fn boolean(self) -> Result<bool, Error> {
        match self {
            Scalar::Bool(value) => Ok(value),
            _ => Err(Error::internal("attempt to access JSON non-boolean as boolean")),
        }
    }
}

impl<'d> Scalar<'d> {
    /// The bytes of a string.
    pub fn bytes(self) -> Result<&'d [u8], Error> {
        match self {
            Scalar::String(bytes) => Ok(bytes),
            _ => Err(Error::internal("attempt to access JSON non-string as string")),
        }
    }
}

impl<'d> Value<'d> {
    pub(super) fn new(document: &'d Document<'d>, index: usize) -> Self {
        Self { document, index }
    }

    fn node(self) -> Node {
        self.document.nodes[self.index]
    }

    /// Index behind the value.
    fn end(self) -> usize {
        match self.node() {
            Node::Array { end } | Node::Object { end } => end as usize,
            _ => self.index + 1,
        }
    }

    fn scalar_at(document: &'d Document<'d>, node: Node) -> Option<Scalar<'d>> {
        Some(match node {
            Node::Null => Scalar::Null,
            Node::Bool(value) => Scalar::Bool(value),
            Node::Int(value) => Scalar::Int(value),
            Node::UInt(value) => Scalar::UInt(value),
            Node::Double(value) => Scalar::Double(value),
            Node::Plain { start, len } => Scalar::String(&document.text[start as usize..][..len as usize]),
            Node::Decoded { start, len } => Scalar::String(&document.decoded[start as usize..][..len as usize]),
            Node::Array { .. } | Node::Object { .. } => return None,
        })
    }

    /// Number of values in this one, itself and all levels counted.
    pub fn size(self) -> usize {
        self.end() - self.index
    }

    /// The value, if it is neither array nor object.
    pub fn scalar(self) -> Option<Scalar<'d>> {
        Self::scalar_at(self.document, self.node())
    }

    /// Arrays and objects have the wrong type for whatever is asked of a scalar, as `null` has.
    fn as_scalar(self) -> Scalar<'d> {
        self.scalar().unwrap_or(Scalar::Null)
    }

    pub fn is_null(self) -> bool {
        self.node() == Node::Null
    }

    pub fn unsigned(self) -> Result<u64, Error> {
        self.as_scalar().unsigned()
    }

    pub fn boolean(self) -> Result<bool, Error> {
        self.as_scalar().boolean()
    }

    /// A string; bytes that are no UTF-8 become replacement characters.
    pub fn text(self) -> Result<Cow<'d, str>, Error> {
        self.as_scalar().bytes().map(String::from_utf8_lossy)
    }

    fn values(self, end: usize) -> impl Iterator<Item = Value<'d>> {
        let mut index = self.index + 1;
        std::iter::from_fn(move || {
            let value = (index < end).then_some(Value { document: self.document, index })?;
            index = value.end();
            Some(value)
        })
    }

    /// The elements of an array.
    pub fn elements(self) -> Result<impl Iterator<Item = Value<'d>>, Error> {
        match self.node() {
            Node::Array { end } => Ok(self.values(end as usize)),
            _ => Err(Error::internal("attempt to access JSON non-array as array")),
        }
    }

    /// The members of an object, in order.
    pub fn members(self) -> Result<impl Iterator<Item = (Cow<'d, str>, Value<'d>)>, Error> {
        let Node::Object { end } = self.node() else {
            return Err(Error::internal("attempt to get members for non-object"));
        };
        let mut values = self.values(end as usize);
        Ok(std::iter::from_fn(move || {
            let name = values.next()?.as_scalar().bytes().unwrap_or_default();
            Some((String::from_utf8_lossy(name), values.next()?))
        }))
    }

    /// The first member of that name; `None` also where there is no object.
    pub fn find(self, name: &str) -> Option<Value<'d>> {
        let Node::Object { end } = self.node() else { return None };
        let mut values = self.values(end as usize);
        while let (Some(key), Some(value)) = (values.next(), values.next()) {
            if key.scalar() == Some(Scalar::String(name.as_bytes())) {
                return Some(value);
            }
        }
        None
    }

    /// The first member of that name.
    pub fn member(self, name: &str) -> Result<Value<'d>, Error> {
        self.find(name).ok_or_else(|| Error::internal(format!("attempt to access non-existing object member '{name}'")))
    }

    /// What lies in an array and the arrays in it, in order, each with the number of arrays around it.
    /// `None` stands for an object.
    pub fn flattened(self) -> impl Iterator<Item = (Option<Scalar<'d>>, usize)> {
        let (document, end) = (self.document, self.end());
        let mut index = self.index;
        let mut open: Vec<u32> = Vec::new();
        std::iter::from_fn(move || {
            loop {
                while open.last().is_some_and(|inner| *inner as usize <= index) {
                    open.pop();
                }
                if index >= end {
                    return None;
                }
                match document.nodes[index] {
                    Node::Array { end } => {
                        open.push(end);
                        index += 1;
                    }
                    Node::Object { end } => {
                        index = end as usize;
                        return Some((None, open.len()));
                    }
                    node => {
                        index += 1;
                        return Some((Self::scalar_at(document, node), open.len()));
                    }
                }
            }
        })
    }
}
