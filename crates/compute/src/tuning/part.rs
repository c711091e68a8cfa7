use super::{Operator, Tunable};
use crate::guard::inputs;
use crate::packed::Packer;
use crate::{CompileError, Executable, Kernels, Program, Session};
use halimede_graph::{Fact, Graph, Node};
use halimede_tensor::{TensorError, Value};
use std::sync::Arc;

/// A step of a plan by itself, to be measured: steps of the same operator are one part.
pub struct Part {
    /// What can be chosen about it.
    pub tunable: Tunable,
    /// Positions of the steps in [`Session::steps`].
    pub steps: Vec<usize>,
    graph: Graph,
    kernels: Arc<dyn Kernels>,
    bytes_max: usize,
}

impl Part {
    /// `facts` are those of the node's inputs, which are constants where their kernel may pack them.
    pub(crate) fn new(
        tunable: Tunable,
        step: usize,
        node: &Node,
        facts: Vec<Option<Fact>>,
        outputs: Vec<Fact>,
        kernels: Arc<dyn Kernels>,
        bytes_max: usize,
    ) -> Part {
        let mut graph = Graph::default();
        let mut node = node.clone();
        for (index, (input, fact)) in node.inputs.iter_mut().zip(facts).enumerate() {
            *input = fact.map(|fact| {
                let is_constant = fact.constant.is_some();
                let value = graph.add_value(format!("input {index}"), fact);
                if !is_constant {
                    graph.inputs.push(value);
                }
                value
            });
        }
        for (index, (output, fact)) in node.outputs.iter_mut().zip(outputs).enumerate() {
            *output = graph.add_value(format!("output {index}"), fact);
            graph.outputs.push(*output);
        }
        graph.nodes.push(node);
        Part { tunable, steps: vec![step], graph, kernels, bytes_max }
    }

    /// The operation.
    pub fn operator(&self) -> &Operator {
        &self.tunable.operator
    }

    /// Compiles the step again, as what is chosen now tells its kernel to.
    pub fn session(&self) -> Result<Session, CompileError> {
        Ok(Arc::new(Program::new(self.graph.clone(), &self.kernels, self.bytes_max, &Packer::default())?).session())
    }

    /// Made-up inputs for such a session.
    pub fn inputs(&self) -> Result<Vec<Value>, TensorError> {
        let facts = self.graph.inputs.iter().map(|&input| self.graph.fact(input));
        inputs::of_facts(facts, 1)
    }
}
