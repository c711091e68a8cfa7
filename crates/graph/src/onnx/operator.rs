use super::{Attributes, Case};
use crate::ops::{Call, Facts};
use crate::{Builder, Fact, OpError, ValueId};
use halimede_tensor::Value;
use smallvec::SmallVec;
use std::fmt;

/// A node of an ONNX model on its way into the graph.
#[derive(Debug, Clone)]
pub struct OnnxNode {
    /// The node's name in the model; its first output's where it has none.
    pub name: String,
    /// The opset of the operator's domain that the model asks for.
    pub opset: i64,
    /// Inputs; a missing optional one is `None`.
    pub inputs: Vec<Option<ValueId>>,
    /// Names of the outputs; `None` where the model does not want one.
    pub outputs: Vec<Option<String>>,
    /// Attributes.
    pub attributes: Attributes,
}

impl OnnxNode {
    /// An input that must be there.
    pub fn input(&self, index: usize) -> Result<ValueId, OpError> {
        self.optional(index).ok_or_else(|| OpError::invalid(format!("input {index} is missing")))
    }

    /// An input that may be missing.
    pub fn optional(&self, index: usize) -> Option<ValueId> {
        self.inputs.get(index).copied().flatten()
    }

    /// Whether the model wants an output.
    pub fn wants(&self, output: usize) -> bool {
        self.outputs.get(output).is_some_and(Option::is_some)
    }
}

/// The values that a lowering made for the outputs, in order, up to the last wanted one.
pub type Outputs = SmallVec<[ValueId; 1]>;

/// Writes a node as core operators. `None` where this form of it has no core operators (an unknown
/// rank, a rare attribute): the node then becomes a [`Call`].
pub type LowerFn = fn(&OnnxNode, &mut Builder) -> Result<Option<Outputs>, OpError>;

/// Computes the outputs from the inputs: the plain definition.
pub type EvaluateFn = fn(&Call, &[Option<Value>]) -> Result<Vec<Value>, OpError>;

/// What is known of the outputs of a call; where missing, nothing is.
pub type InferFn = fn(&Call, &[Option<&Fact>]) -> Result<Facts, OpError>;

/// An ONNX operator: everything that the engine knows of it stands in its one file.
pub struct Operator {
    /// Domain: empty for ONNX's own, `ai.onnx.ml`, `com.microsoft`, ….
    pub domain: &'static str,
    /// Name.
    pub name: &'static str,
    /// Writes it as core operators.
    pub lower: Option<LowerFn>,
    /// Computes it where lowering gives nothing.
    pub evaluate: Option<EvaluateFn>,
    /// Shapes of a call.
    pub infer: Option<InferFn>,
    /// Whether the same inputs may give other outputs: such a call is never folded or shared.
    pub random: bool,
    /// Examples with their answers, run on every unit.
    pub cases: Option<fn() -> Vec<Case>>,
}

impl Operator {
    /// An operator of ONNX's own domain.
    pub const fn new(name: &'static str) -> Operator {
        Operator::in_domain("", name)
    }

    /// An operator of another domain.
    pub const fn in_domain(domain: &'static str, name: &'static str) -> Operator {
        Operator { domain, name, lower: None, evaluate: None, infer: None, random: false, cases: None }
    }

    /// Adds the lowering.
    pub const fn lower(mut self, lower: LowerFn) -> Operator {
        self.lower = Some(lower);
        self
    }

    /// Adds the reference evaluation.
    pub const fn evaluate(mut self, evaluate: EvaluateFn) -> Operator {
        self.evaluate = Some(evaluate);
        self
    }

    /// Adds the shape rule of a call.
    pub const fn infer(mut self, infer: InferFn) -> Operator {
        self.infer = Some(infer);
        self
    }

    /// Marks it as giving other outputs each time.
    pub const fn random(mut self) -> Operator {
        self.random = true;
        self
    }

    /// Adds examples.
    pub const fn cases(mut self, cases: fn() -> Vec<Case>) -> Operator {
        self.cases = Some(cases);
        self
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.domain {
            "" => f.write_str(self.name),
            domain => write!(f, "{domain}.{}", self.name),
        }
    }
}
