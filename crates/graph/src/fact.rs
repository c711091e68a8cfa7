use crate::Dim;
use halimede_tensor::{DType, Shape, Tensor, element_count};
use smallvec::SmallVec;
use std::sync::Arc;

/// Elements are followed as expressions in tensors of at most so many of them.
const MAX_ELEMENTS: usize = 256;

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
    /// The elements of a small tensor of integers or Bool (0 and 1) as expressions, in row-major order:
    /// shapes on their way through a model.
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

    /// Number of elements, where known.
    pub fn count(&self) -> Option<usize> {
        self.known_shape().and_then(|shape| element_count(&shape).ok())
    }

    /// The elements of a small tensor of integers or Bool as expressions, from the constant or from
    /// propagation.
    pub fn dims(&self) -> Option<Vec<Dim>> {
        if let Some(elements) = &self.elements {
            return Some(elements.to_vec());
        }
        // Weights are not read for this.
        self.constant.as_ref().filter(|tensor| tensor.len() <= MAX_ELEMENTS)?;
        Some(self.ints()?.into_iter().map(Dim::from).collect())
    }

    /// The elements of a tensor of integers or Bool, where every one is a number.
    pub fn ints(&self) -> Option<Vec<i64>> {
        if let Some(elements) = &self.elements {
            return elements.iter().map(Dim::known).collect();
        }
        let whole = |dtype: DType| dtype.is_integer() || dtype == DType::Bool;
        self.constant.as_ref().filter(|tensor| whole(tensor.dtype()))?.to_i64s().ok()
    }

    /// The value, where every element is a number.
    pub fn value(&self) -> Option<Tensor> {
        if let Some(tensor) = &self.constant {
            return Some(tensor.clone());
        }
        let elements: Option<Vec<i64>> = self.elements.as_ref()?.iter().map(Dim::known).collect();
        Tensor::from_i64s(self.dtype?, &self.known_shape()?, &elements?).ok()
    }

    /// This with the elements of a tensor of integers or Bool; without where they are too many or some
    /// are unknown.
    pub fn and_elements(mut self, elements: Option<Vec<Dim>>) -> Fact {
        let fits = |elements: &Vec<Dim>| {
            let number = self.dtype.is_some_and(|d| d.is_integer() || d == DType::Bool);
            number
                && elements.len() <= MAX_ELEMENTS
                && self.count() == Some(elements.len())
                && !elements.iter().any(Dim::is_unknown)
        };
        self.elements = elements.filter(fits).map(Arc::from);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_kept_only_where_they_fit() {
        let pair = || Fact::tensor(DType::I64, [Dim::from(2)]);
        let n = Dim::symbol("n");
        assert_eq!(
            pair().and_elements(Some(vec![n.clone(), Dim::from(3)])).dims(),
            Some(vec![n.clone(), Dim::from(3)])
        );
        assert_eq!(pair().and_elements(Some(vec![n.clone()])).elements, None);
        assert_eq!(pair().and_elements(Some(vec![n.clone(), Dim::unknown()])).elements, None);
        let float = Fact::tensor(DType::F32, [Dim::from(1)]);
        assert_eq!(float.and_elements(Some(vec![n])).elements, None);
    }

    #[test]
    fn a_value_comes_from_known_elements() {
        let fact = Fact::tensor(DType::I32, [Dim::from(2)]).and_elements(Some(vec![Dim::from(4), Dim::from(-1)]));
        assert_eq!(fact.value(), Some(Tensor::from_slice(&[2], &[4i32, -1]).unwrap()));
        assert_eq!(Fact::tensor(DType::I32, [Dim::from(2)]).value(), None);
    }

    #[test]
    fn unknown_sizes_get_names_of_their_own() {
        let mut fact = Fact::tensor(DType::I64, [Dim::from(2), Dim::unknown()]);
        fact.name_unknowns("nonzero");
        assert_eq!(fact.shape.unwrap()[1], Dim::symbol("nonzero.1"));
    }
}
