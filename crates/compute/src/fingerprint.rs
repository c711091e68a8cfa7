//! What identifies a model, and the values that it is tried with.
//!
//! Hashes are of XXH3 with 128 bits. Equal things have equal ones in every process of this version; they are no
//! protection against somebody who wants two to collide.

use halimede_graph::{Fact, Graph};
use halimede_tensor::{Tensor, Value};
use std::fmt::{self, Write};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// The hash of everything that the answers of a graph depend on, its constants included.
pub fn of_graph(graph: &Graph) -> u128 {
    let mut hash = Hash(Xxh3::new());
    add_graph(&mut hash, graph);
    hash.0.digest128()
}

/// The hash of values in their order. Sequences and optionals count as nothing.
pub fn of_values<'a>(values: impl Iterator<Item = &'a Value>) -> u128 {
    let mut hash = Hash(Xxh3::new());
    values.filter_map(|value| value.tensor().ok()).for_each(|tensor| add_tensor(&mut hash, tensor));
    hash.0.digest128()
}

/// Takes what is formatted into it, so that texts need not be made first.
struct Hash(Xxh3);

impl Write for Hash {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

impl Hash {
    fn add(&mut self, what: fmt::Arguments<'_>) {
        // Hashing cannot fail; an ending keeps "ab", "c" and "a", "bc" apart.
        let _ = self.write_fmt(what);
        self.0.update(&[0]);
    }
}

fn add_tensor(hash: &mut Hash, tensor: &Tensor) {
    hash.add(format_args!("{} {:?}", tensor.dtype(), tensor.shape()));
    match (tensor.bytes(), tensor.strings()) {
        (Ok(bytes), _) => hash.0.update(bytes),
        (_, Ok(strings)) => strings.iter().for_each(|string| hash.add(format_args!("{string:?}"))),
        _ => {}
    }
}

fn add_graph(hash: &mut Hash, graph: &Graph) {
    hash.add(format_args!("{:?} {:?} {}", graph.inputs, graph.outputs, graph.values.len()));
    for value in &graph.values {
        let Fact { kind, dtype, shape, constant, .. } = &value.fact;
        hash.add(format_args!("{} {kind:?} {dtype:?} {shape:?}", value.name));
        if let Some(constant) = constant {
            add_tensor(hash, constant);
        }
    }
    for node in &graph.nodes {
        // The constants of bodies may be large: they are hashed, not printed.
        let mut bare = node.op.clone();
        bare.bodies_mut().into_iter().for_each(|body| *body = Arc::default());
        hash.add(format_args!("{} {:?} {:?} {bare:?}", node.name, node.inputs, node.outputs));
        node.op.bodies().into_iter().for_each(|body| add_graph(hash, body));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use halimede_graph::ops::{Binary, Op, Scan, Unary};
    use halimede_graph::{Builder, Node};

    fn fingerprint(constant: f32, function: Unary) -> u128 {
        let mut graph = Graph::default();
        let x = graph.add_value("x", Fact::default());
        graph.inputs = vec![x];
        let mut builder = Builder::new(&mut graph);
        let c = builder.constant(Tensor::scalar(constant));
        let sum = builder.binary(Binary::Add, x, c).unwrap_or(x);
        let y = builder.unary(function, sum).unwrap_or(x);
        graph.outputs = vec![y];
        of_graph(&graph)
    }

    /// A scan over a body that adds a constant to what it is given.
    fn scan(backward: bool, constant: f32) -> u128 {
        let mut body = Graph::default();
        let x = body.add_value("x", Fact::default());
        let c = body.add_constant("c", Tensor::scalar(constant));
        let y = Builder::new(&mut body).binary(Binary::Add, x, c).unwrap_or(x);
        (body.inputs, body.outputs) = (vec![x], vec![y]);
        let (inputs, outputs) = (vec![(0, backward)], vec![(0, false)]);
        let op = Op::Scan(Scan { body: Arc::new(body), states: 0, inputs, outputs });
        let node = Node {
            name: String::new(),
            origin: String::new(),
            op,
            inputs: Default::default(),
            outputs: Default::default(),
        };
        of_graph(&Graph { nodes: vec![node], ..Graph::default() })
    }

    #[test]
    fn tells_control_flow_and_its_bodies_apart() {
        assert_eq!(scan(false, 1.0), scan(false, 1.0));
        assert_ne!(scan(false, 1.0), scan(true, 1.0));
        assert_ne!(scan(false, 1.0), scan(false, 2.0));
    }

    #[test]
    fn tells_constants_and_operations_apart() {
        let one = fingerprint(1.0, Unary::Tanh);
        assert_eq!(one, fingerprint(1.0, Unary::Tanh));
        assert_ne!(one, fingerprint(2.0, Unary::Tanh));
        assert_ne!(one, fingerprint(1.0, Unary::Exp));
    }
}
