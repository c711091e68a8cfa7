use crate::ops::{Binary, Cast, Map, Op, Reshape, Transpose, Unary};
use crate::{Fact, Graph, Node, OpError, ValueId};
use halimede_tensor::{DType, Tensor};
use smallvec::SmallVec;

/// Adds operations to a graph and works out what is known of their results on the way.
pub struct Builder<'g> {
    graph: &'g mut Graph,
    /// Name and origin given to the nodes that are added, until the next [`Builder::at`].
    name: String,
    origin: String,
}

impl<'g> Builder<'g> {
    /// A builder that appends to `graph`.
    pub fn new(graph: &'g mut Graph) -> Builder<'g> {
        Builder { graph, name: String::new(), origin: String::new() }
    }

    /// Names the model's node that the next operations come from.
    pub fn at(&mut self, name: &str, origin: &str) -> &mut Self {
        self.name = name.to_owned();
        self.origin = origin.to_owned();
        self
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        self.graph
    }

    /// The graph so far, to add inputs, outputs and names.
    pub fn graph_mut(&mut self) -> &mut Graph {
        self.graph
    }

    /// What is known of a value.
    pub fn fact(&self, value: ValueId) -> &Fact {
        self.graph.fact(value)
    }

    /// The datatype of a value; an error where it is not known.
    pub fn dtype(&self, value: ValueId) -> Result<DType, OpError> {
        let info = &self.graph.values[value.index()];
        info.fact.dtype.ok_or_else(|| OpError::unsupported(format!("the datatype of '{}' is not known", info.name)))
    }

    /// The rank of a value, where known.
    pub fn rank(&self, value: ValueId) -> Option<usize> {
        self.fact(value).rank()
    }

    /// A constant.
    pub fn constant(&mut self, tensor: Tensor) -> ValueId {
        let name = format!("{}/constant{}", self.name, self.graph.values.len());
        self.graph.add_constant(name, tensor)
    }

    /// A one-dimensional i64 constant.
    pub fn ints(&mut self, elements: &[i64]) -> ValueId {
        let tensor = Tensor::from_slice(&[elements.len()], elements).expect("the shape is the slice's length");
        self.constant(tensor)
    }

    /// An operation with one output.
    pub fn add(&mut self, op: Op, inputs: &[ValueId]) -> Result<ValueId, OpError> {
        let inputs: SmallVec<[Option<ValueId>; 4]> = inputs.iter().map(|&v| Some(v)).collect();
        self.add_with_optional(op, &inputs)
    }

    /// An operation with one output, some of whose inputs may be missing.
    pub fn add_with_optional(&mut self, op: Op, inputs: &[Option<ValueId>]) -> Result<ValueId, OpError> {
        Ok(self.add_all(op, inputs)?[0])
    }

    /// An operation with all its outputs.
    pub fn add_all(&mut self, op: Op, inputs: &[Option<ValueId>]) -> Result<SmallVec<[ValueId; 1]>, OpError> {
        let facts = {
            let facts: SmallVec<[Option<&Fact>; 4]> =
                inputs.iter().map(|input| input.map(|v| self.graph.fact(v))).collect();
            op.infer(&facts)?
        };
        let outputs: SmallVec<[ValueId; 1]> = facts
            .into_iter()
            .map(|fact| {
                let name = format!("{}/{}{}", self.name, op.name(), self.graph.values.len());
                self.graph.add_value(name, fact)
            })
            .collect();
        self.graph.nodes.push(Node {
            name: self.name.clone(),
            origin: self.origin.clone(),
            op,
            inputs: inputs.into(),
            outputs: outputs.clone(),
        });
        Ok(outputs)
    }

    /// A function of one value.
    pub fn unary(&mut self, function: Unary, x: ValueId) -> Result<ValueId, OpError> {
        self.add(Op::Map(Map::unary(function)), &[x])
    }

    /// A function of two values that broadcast.
    pub fn binary(&mut self, function: Binary, a: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        self.add(Op::Map(Map::binary(function)), &[a, b])
    }

    /// A value as another datatype; the value itself where it has that one.
    pub fn cast(&mut self, x: ValueId, to: DType) -> Result<ValueId, OpError> {
        if self.fact(x).dtype == Some(to) {
            return Ok(x);
        }
        self.add(Op::Cast(Cast { to, saturate: true }), &[x])
    }

    /// A value under a shape that is written out; one -1 is worked out, 0 copies a dimension.
    pub fn reshape(&mut self, x: ValueId, shape: &[i64]) -> Result<ValueId, OpError> {
        let shape = self.ints(shape);
        self.add(Op::Reshape(Reshape { allow_zero: false }), &[x, shape])
    }

    /// A value with its axes in another order; the value itself where nothing moves.
    pub fn transpose(&mut self, x: ValueId, perm: &[usize]) -> Result<ValueId, OpError> {
        if perm.iter().enumerate().all(|(to, &from)| to == from) {
            return Ok(x);
        }
        self.add(Op::Transpose(Transpose { perm: perm.into() }), &[x])
    }
}
