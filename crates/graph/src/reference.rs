//! The reference interpreter: every operation by its definition, one after the other.

use crate::ops::run_control;
use crate::{Graph, GraphError, Node, Op, OpError, ValueId};
use halimede_tensor::Value;

/// Runs a graph on inputs in the order of [`Graph::inputs`] and gives its outputs in the order of
/// [`Graph::outputs`]. A value is dropped after its last use.
pub fn run(graph: &Graph, inputs: &[Value]) -> Result<Vec<Value>, GraphError> {
    Interpreter::new(graph).run(inputs.to_vec())
}

/// A graph with the moment after which each value is no longer needed, to run it more than once.
struct Interpreter<'g> {
    graph: &'g Graph,
    /// Per node, the values that nothing reads after it.
    last_uses: Vec<Vec<ValueId>>,
    /// Per node, an interpreter for each body.
    bodies: Vec<Vec<Interpreter<'g>>>,
}

impl<'g> Interpreter<'g> {
    fn new(graph: &'g Graph) -> Interpreter<'g> {
        let mut last = vec![None; graph.values.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            for value in node.inputs.iter().flatten().chain(&node.outputs) {
                last[value.index()] = Some(index);
            }
        }
        for output in &graph.outputs {
            last[output.index()] = None;
        }
        let mut last_uses = vec![Vec::new(); graph.nodes.len()];
        for (value, last) in last.into_iter().enumerate() {
            if let Some(node) = last {
                last_uses[node].push(ValueId(value as u32));
            }
        }
        let bodies = |node: &'g Node| node.op.bodies().into_iter().map(|body| Interpreter::new(body)).collect();
        Interpreter { graph, last_uses, bodies: graph.nodes.iter().map(bodies).collect() }
    }

    fn run(&self, inputs: Vec<Value>) -> Result<Vec<Value>, GraphError> {
        let graph = self.graph;
        if inputs.len() != graph.inputs.len() {
            let message = format!("the graph takes {} inputs and is given {}", graph.inputs.len(), inputs.len());
            return Err(graph_error(graph, OpError::invalid(message)));
        }
        let mut values: Vec<Option<Value>> =
            graph.values.iter().map(|value| value.fact.constant.clone().map(Value::Tensor)).collect();
        for (id, value) in graph.inputs.iter().zip(inputs) {
            values[id.index()] = Some(value);
        }
        for (index, node) in graph.nodes.iter().enumerate() {
            let made = self.node(index, node, &values)?;
            if made.len() < node.outputs.len() {
                let message = format!("gives {} outputs instead of {}", made.len(), node.outputs.len());
                return Err(node_error(node, OpError::invalid(message)));
            }
            for (id, value) in node.outputs.iter().zip(made) {
                values[id.index()] = Some(value);
            }
            for id in &self.last_uses[index] {
                values[id.index()] = None;
            }
        }
        graph
            .outputs
            .iter()
            .map(|id| {
                let name = &graph.values[id.index()].name;
                let missing = || graph_error(graph, OpError::invalid(format!("output '{name}' was never written")));
                values[id.index()].clone().ok_or_else(missing)
            })
            .collect()
    }

    fn node(&self, index: usize, node: &Node, values: &[Option<Value>]) -> Result<Vec<Value>, GraphError> {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            inputs.push(match input {
                None => None,
                Some(id) => Some(values[id.index()].clone().ok_or_else(|| {
                    let name = &self.graph.values[id.index()].name;
                    node_error(node, OpError::invalid(format!("'{name}' is read before it is written")))
                })?),
            });
        }
        let result = match node.op {
            Op::If(_) | Op::Loop(_) | Op::Scan(_) => {
                run_control(&node.op, &inputs, &mut |body, given| Ok(self.bodies[index][body].run(given)?))
            }
            _ => node.op.evaluate(&inputs).map_err(Failure::Op),
        };
        result.map_err(|failure| match failure {
            Failure::Op(source) => node_error(node, source),
            Failure::Body(error) => error,
        })
    }
}

/// A failure of the node itself, or of one inside its body, which names itself.
enum Failure {
    Op(OpError),
    Body(GraphError),
}

impl From<OpError> for Failure {
    fn from(error: OpError) -> Failure {
        Failure::Op(error)
    }
}

impl From<GraphError> for Failure {
    fn from(error: GraphError) -> Failure {
        Failure::Body(error)
    }
}

fn node_error(node: &Node, source: OpError) -> GraphError {
    GraphError { node: node.name.clone(), operator: node.origin.clone(), source }
}

fn graph_error(graph: &Graph, source: OpError) -> GraphError {
    GraphError { node: graph.name.clone(), operator: "graph".to_owned(), source }
}
