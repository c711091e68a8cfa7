//! Examples of operators with the answers they must give.

use super::{Attribute, Attributes, Operator};
use halimede_tensor::{Element, Tensor, Value};

/// One example of an operator: attributes and inputs with the outputs they must give.
#[derive(Debug, Clone)]
pub struct Case {
    /// What the example shows.
    pub name: &'static str,
    /// The operator.
    pub operator: &'static Operator,
    /// The opset of its domain.
    pub opset: i64,
    /// Attributes.
    pub attributes: Attributes,
    /// Inputs; a missing optional one is `None`.
    pub inputs: Vec<Option<Value>>,
    /// Expected outputs.
    pub outputs: Vec<Value>,
    /// Largest difference allowed, relative to the expected value.
    pub rtol: f32,
    /// Largest difference allowed beside that.
    pub atol: f32,
}

impl Case {
    /// An example without inputs yet, at the newest opset that the operator's file speaks of.
    pub fn new(name: &'static str, operator: &'static Operator, opset: i64) -> Case {
        Case {
            name,
            operator,
            opset,
            attributes: Attributes::default(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            rtol: 1e-5,
            atol: 1e-6,
        }
    }

    /// Sets an attribute.
    pub fn attribute(mut self, name: &str, value: Attribute) -> Case {
        self.attributes.0.insert(name.to_owned(), value);
        self
    }

    /// Adds an input.
    pub fn input(mut self, value: impl Into<Value>) -> Case {
        self.inputs.push(Some(value.into()));
        self
    }

    /// Leaves an optional input out.
    pub fn no_input(mut self) -> Case {
        self.inputs.push(None);
        self
    }

    /// Adds an expected output.
    pub fn output(mut self, value: impl Into<Value>) -> Case {
        self.outputs.push(value.into());
        self
    }

    /// Sets the tolerances.
    pub fn within(mut self, rtol: f32, atol: f32) -> Case {
        (self.rtol, self.atol) = (rtol, atol);
        self
    }
}

/// A tensor for an example. Panics where the elements do not fill the shape: the example is then wrong.
pub fn tensor<T: Element>(shape: &[usize], elements: &[T]) -> Tensor {
    Tensor::from_slice(shape, elements).expect("the elements of an example fill its shape")
}

/// A Bool tensor for an example. Panics where the elements do not fill the shape.
pub fn bools(shape: &[usize], elements: &[bool]) -> Tensor {
    Tensor::from_bools(shape, elements).expect("the elements of an example fill its shape")
}

/// A String tensor for an example. Panics where the elements do not fill the shape.
pub fn strings(shape: &[usize], elements: &[&str]) -> Tensor {
    let elements = elements.iter().map(|s| s.as_bytes().to_vec()).collect();
    Tensor::from_strings(shape, elements).expect("the elements of an example fill its shape")
}
