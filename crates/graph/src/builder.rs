use crate::fold::fold;
use crate::ops::{Binary, Cast, Expr, Map, Op, Reduce, ReduceKind, Reshape, ShapeOf, Transpose, Unary};
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

    /// An operation with all its outputs. What is cheap to work out already becomes a constant.
    pub fn add_all(&mut self, op: Op, inputs: &[Option<ValueId>]) -> Result<SmallVec<[ValueId; 1]>, OpError> {
        let facts = {
            let facts: SmallVec<[Option<&Fact>; 4]> =
                inputs.iter().map(|input| input.map(|v| self.graph.fact(v))).collect();
            op.infer(&facts)?
        };
        if let Some(tensors) = fold(self.graph, &op, inputs, &facts) {
            return Ok(tensors.into_iter().map(|tensor| self.constant(tensor)).collect());
        }
        let outputs: SmallVec<[ValueId; 1]> = facts
            .into_iter()
            .map(|mut fact| {
                let name = format!("{}/{}{}", self.name, op.name(), self.graph.values.len());
                fact.name_unknowns(&name);
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

    /// The nodes of a whole graph in place of a call of it, and its outputs.
    pub fn inline(&mut self, body: &Graph, inputs: &[ValueId]) -> Result<SmallVec<[ValueId; 1]>, OpError> {
        if inputs.len() != body.inputs.len() {
            let (takes, given) = (body.inputs.len(), inputs.len());
            return Err(OpError::invalid(format!("the body takes {takes} values and is given {given}")));
        }
        let mut values: Vec<Option<ValueId>> = vec![None; body.values.len()];
        for (inner, outer) in body.inputs.iter().zip(inputs) {
            values[inner.index()] = Some(*outer);
        }
        for (value, info) in values.iter_mut().zip(&body.values) {
            if let Some(tensor) = &info.fact.constant {
                *value = Some(self.graph.add_constant(info.name.as_str(), tensor.clone()));
            }
        }
        let (name, origin) = (self.name.clone(), self.origin.clone());
        for node in &body.nodes {
            let unwritten = || OpError::invalid(format!("node '{}' reads a value before it is written", node.name));
            let read = |input: &Option<ValueId>| input.map(|id| values[id.index()].ok_or_else(unwritten)).transpose();
            let inputs: Vec<Option<ValueId>> = node.inputs.iter().map(read).collect::<Result<_, _>>()?;
            let outputs = self.at(&node.name, &node.origin).add_all(node.op.clone(), &inputs)?;
            for (inner, outer) in node.outputs.iter().zip(outputs) {
                self.graph.values[outer.index()].name = body.values[inner.index()].name.clone();
                values[inner.index()] = Some(outer);
            }
        }
        self.at(&name, &origin);
        let unwritten = || OpError::invalid("the body never writes one of its outputs");
        body.outputs.iter().map(|output| values[output.index()].ok_or_else(unwritten)).collect()
    }

    /// A function of one value.
    pub fn unary(&mut self, function: Unary, x: ValueId) -> Result<ValueId, OpError> {
        self.add(Op::Map(Map::unary(function)), &[x])
    }

    /// A function of two values that broadcast.
    pub fn binary(&mut self, function: Binary, a: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        self.add(Op::Map(Map::binary(function)), &[a, b])
    }

    /// A formula of values that broadcast; its numbers have the first value's datatype.
    pub fn map(&mut self, formula: &Expr, inputs: &[ValueId]) -> Result<ValueId, OpError> {
        let dtype = match inputs.first() {
            Some(&first) => self.dtype(first)?,
            None => return Err(OpError::invalid("a formula needs an input")),
        };
        self.add(Op::Map(formula.map(dtype)), inputs)
    }

    /// A number of a datatype as a constant without dimensions.
    pub fn scalar(&mut self, value: f64, dtype: DType) -> Result<ValueId, OpError> {
        let tensor = scalar(value, dtype)?;
        Ok(self.constant(tensor))
    }

    /// A value with some axes reduced to one element each.
    pub fn reduce(
        &mut self,
        kind: ReduceKind,
        x: ValueId,
        axes: impl IntoIterator<Item = usize>,
        keep_dims: bool,
    ) -> Result<ValueId, OpError> {
        self.add(Op::Reduce(Reduce { kind, axes: axes.into_iter().collect(), keep_dims }), &[x])
    }

    /// The dimensions of a value (i64).
    pub fn shape_of(&mut self, x: ValueId) -> Result<ValueId, OpError> {
        self.add(Op::ShapeOf(ShapeOf { start: 0, end: None }), &[x])
    }

    /// A value under the shape that another value holds.
    pub fn reshape_to(&mut self, x: ValueId, shape: ValueId) -> Result<ValueId, OpError> {
        self.add(Op::Reshape(Reshape { allow_zero: true }), &[x, shape])
    }

    /// A value as another datatype; the value itself where it has that one.
    pub fn cast(&mut self, x: ValueId, to: DType) -> Result<ValueId, OpError> {
        if self.fact(x).dtype == Some(to) {
            return Ok(x);
        }
        self.add(Op::Cast(Cast::to(to)), &[x])
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

/// A tensor without dimensions that holds `value` as a number of `dtype`.
fn scalar(value: f64, dtype: DType) -> Result<Tensor, OpError> {
    Ok(match dtype {
        DType::Bool => Tensor::from_bools(&[], &[value != 0.0])?,
        DType::U8 => Tensor::scalar(value as u8),
        DType::I8 => Tensor::scalar(value as i8),
        DType::U16 => Tensor::scalar(value as u16),
        DType::I16 => Tensor::scalar(value as i16),
        DType::U32 => Tensor::scalar(value as u32),
        DType::I32 => Tensor::scalar(value as i32),
        DType::U64 => Tensor::scalar(value as u64),
        DType::I64 => Tensor::scalar(value as i64),
        DType::F16 => Tensor::scalar(half::f16::from_f64(value)),
        DType::Bf16 => Tensor::scalar(half::bf16::from_f64(value)),
        DType::F32 => Tensor::scalar(value as f32),
        DType::F64 => Tensor::scalar(value),
        other => return Err(OpError::unsupported(format!("a constant of datatype {other}"))),
    })
}
