use crate::Dim;
use halimede_tensor::{DType, Shape, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;

/// Symbolic dimensions, outermost first.
pub type Dims = SmallVec<[Dim; 6]>;

/// What kind of value flows along an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// A tensor.
    #[default]
    Tensor,
    /// A sequence; the fact's datatype is that of its tensors.
    Sequence,
    /// An optional; the fact's datatype is that of what it may hold.
    Optional,
}

/// What is known of a value before it is computed. The same rules run twice: with symbols when a
/// model is loaded, and with numbers when it is prepared for the shapes of a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fact {
    /// Tensor, sequence or optional.
    pub kind: Kind,
    /// Datatype, where known.
    pub dtype: Option<DType>,
    /// Shape; `None` where not even the rank is known.
    pub shape: Option<Dims>,
    /// The whole value, where it does not depend on a request.
    pub constant: Option<Tensor>,
    /// The elements of a small integer tensor as expressions: shapes on their way through a model.
    pub elements: Option<Arc<[Dim]>>,
}

impl Fact {
    /// A tensor of known datatype and shape.
    pub fn tensor(dtype: DType, shape: impl IntoIterator<Item = Dim>) -> Fact {
        Fact { dtype: Some(dtype), shape: Some(shape.into_iter().collect()), ..Fact::default() }
    }

    /// A tensor of known datatype and unknown rank.
    pub fn of_dtype(dtype: Option<DType>) -> Fact {
        Fact { dtype, ..Fact::default() }
    }

    /// A value that is wholly known.
    pub fn constant(tensor: Tensor) -> Fact {
        Fact {
            dtype: Some(tensor.dtype()),
            shape: Some(tensor.shape().iter().map(|&d| Dim::from(d)).collect()),
            constant: Some(tensor),
            ..Fact::default()
        }
    }

    /// A small integer tensor (rank 0 or 1) whose elements are expressions.
    pub fn with_elements(dtype: DType, rank: usize, elements: impl IntoIterator<Item = Dim>) -> Fact {
        let elements: Arc<[Dim]> = elements.into_iter().collect();
        let shape = if rank == 0 { Dims::new() } else { smallvec::smallvec![Dim::from(elements.len())] };
        Fact { dtype: Some(dtype), shape: Some(shape), elements: Some(elements), ..Fact::default() }
    }

    /// Gives each dimension that is [`Dim::unknown`] a symbol of its own, made from the value's name.
    pub fn name_unknowns(&mut self, value: &str) {
        for (axis, dim) in self.shape.iter_mut().flatten().enumerate() {
            if dim.is_unknown() {
                *dim = Dim::symbol(&format!("{value}.{axis}"));
            }
        }
    }

    /// Number of dimensions, where known.
    pub fn rank(&self) -> Option<usize> {
        self.shape.as_ref().map(|shape| shape.len())
    }

    /// The shape, where every dimension is a number.
    pub fn known_shape(&self) -> Option<Shape> {
        self.shape.as_ref()?.iter().map(Dim::size).collect()
    }

    /// The elements of an integer tensor as expressions, from the constant or from propagation.
    pub fn dims(&self) -> Option<Vec<Dim>> {
        if let Some(elements) = &self.elements {
            return Some(elements.to_vec());
        }
        Some(self.ints()?.into_iter().map(Dim::from).collect())
    }

    /// The elements of an integer tensor, where every one is a number.
    pub fn ints(&self) -> Option<Vec<i64>> {
        if let Some(elements) = &self.elements {
            return elements.iter().map(Dim::known).collect();
        }
        let tensor = self.constant.as_ref()?;
        match tensor.dtype() {
            DType::I64 => Some(tensor.slice::<i64>().ok()?.to_vec()),
            DType::I32 => Some(tensor.slice::<i32>().ok()?.iter().map(|&v| v.into()).collect()),
            _ => None,
        }
    }
}
