use crate::onnx::ops::lower_call;
use crate::onnx::{Attributes, Operator};
use crate::{Fact, Graph, OpError};
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// An ONNX operator run by its reference evaluation, for what no core operator expresses.
#[derive(Debug, Clone)]
pub struct Call {
    /// The operator.
    pub operator: &'static Operator,
    /// The opset of its domain that the model asks for.
    pub opset: i64,
    /// Its attributes.
    pub attributes: Attributes,
    /// Which outputs the model names; an evaluation gives all up to the last named one.
    pub outputs: Vec<bool>,
    /// What an evaluation read out of the attributes.
    parsed: Parsed,
}

/// Shared by every copy of a call: each works on the same attributes.
type Parsed = Arc<OnceLock<Result<Box<dyn Any + Send + Sync>, OpError>>>;

impl Call {
    /// A call of an operator.
    pub fn new(operator: &'static Operator, opset: i64, attributes: Attributes, outputs: Vec<bool>) -> Call {
        Call { operator, opset, attributes, outputs, parsed: Parsed::default() }
    }

    /// What `read` makes of the attributes, made once: trees and tables are large, and every request walks
    /// the same ones. An operator asks for one type only.
    pub fn parsed<T: Any + Send + Sync>(&self, read: impl FnOnce(&Call) -> Result<T, OpError>) -> Result<&T, OpError> {
        let boxed = |value: T| Box::new(value) as Box<dyn Any + Send + Sync>;
        match self.parsed.get_or_init(|| read(self).map(boxed)) {
            Ok(value) => value
                .downcast_ref()
                .ok_or_else(|| OpError::invalid(format!("{} reads its attributes in two ways", self.operator.name))),
            Err(error) => Err(error.clone()),
        }
    }

    /// The call as a graph of core operators, for inputs of which so much is known; `None` where its
    /// lowering still lacks something. Inputs that are wholly known are constants of the graph, the
    /// others its inputs, in order. `name` and `origin` are those of the nodes.
    pub fn lowered(&self, inputs: Vec<Option<Fact>>, name: &str, origin: &str) -> Result<Option<Graph>, OpError> {
        lower_call(self, inputs, name, origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_once_for_all_copies() {
        let operator = crate::onnx::ops::find("", "Unique").unwrap();
        let call = Call::new(operator, 11, Attributes::default(), vec![true]);
        assert_eq!(call.parsed(|_| Ok(3)).unwrap(), &3);
        assert_eq!(call.clone().parsed::<i32>(|_| panic!("read again")).unwrap(), &3);
        assert!(call.parsed::<String>(|_| panic!("read again")).is_err());
        let failing = Call::new(operator, 11, Attributes::default(), vec![true]);
        assert!(failing.parsed::<i32>(|_| Err(OpError::invalid("no"))).is_err());
        assert!(failing.parsed::<i32>(|_| panic!("read again")).is_err());
    }
}
