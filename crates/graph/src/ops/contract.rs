use super::inputs::{optional, required, typed};
use super::movement::{Offsets, strides};
use super::numeric::{Numbers, Ring, after_epilogue, apply_epilogue, product_type, read_left, read_right};
use super::{Dequantize, Factors, Facts, Map, TensorOp, Tensors, whole_weights};
use crate::{Dim, Dims, Fact, OpError};
use halimede_tensor::{Shape, Tensor};
use smallvec::{SmallVec, smallvec};
use std::borrow::Cow;

/// The axes of an operand, each named by a label.
pub type Labels = SmallVec<[u8; 6]>;

/// Sum of products over shared axes: matrix products of any transposition and batching, 1x1
/// convolutions, general two-operand einsum.
///
/// Inputs: left, right, for products of [`Factors::Integers`] the left operand's zero point, or for a right
/// operand that is dequantised its scales and zero points, then what the epilogue reads. A label that stands in
/// both operands and in `out` is a batch axis, one in both but not in `out` is summed over; a label in one operand only
/// that is missing from `out` is summed over too. Where the sizes of a shared label differ, one of
/// them is 1 and broadcasts. No label repeats within an operand. The output has the left operand's
/// datatype; 16-bit floats accumulate in f32, integers wrap.
#[derive(Debug, Clone, PartialEq)]
pub struct Contract {
    /// Axes of the left operand.
    pub lhs: Labels,
    /// Axes of the right operand.
    pub rhs: Labels,
    /// Axes of the output, each found in an operand.
    pub out: Labels,
    /// How the right operand becomes numbers, where it is kept in few bits: weights that are read so are as
    /// small in memory. Not for products of [`Factors::Integers`].
    pub dequantize: Option<Dequantize>,
    /// What the operands are multiplied as; `None`: as they are.
    pub multiply: Option<Factors>,
    /// Pointwise work on each result; its input 0 is the result, the others broadcast to it.
    pub epilogue: Option<Map>,
}

impl Contract {
    /// A plain sum of products.
    pub fn new(lhs: Labels, rhs: Labels, out: Labels) -> Contract {
        Contract { lhs, rhs, out, dequantize: None, multiply: None, epilogue: None }
    }

    /// The first input that the epilogue reads.
    pub fn first_extra(&self) -> usize {
        match (self.multiply, &self.dequantize) {
            (Some(Factors::Integers), _) => 3,
            (_, Some(_)) => 4,
            (_, None) => 2,
        }
    }

    /// How the right operand is dequantised, and the inputs that this reads.
    fn dequantized<'a, T>(&self, inputs: &'a [Option<T>]) -> Result<Option<(&Dequantize, &'a [Option<T>])>, OpError> {
        let Some(dequantize) = &self.dequantize else { return Ok(None) };
        match self.multiply {
            Some(Factors::Integers) => Err(OpError::invalid("a product of integers whose weights are dequantised")),
            _ => Ok(Some((dequantize, inputs.get(1..inputs.len().min(4)).unwrap_or_default()))),
        }
    }

    /// The axis of the right operand, a matrix, that counts the columns of the output.
    pub fn column_axis(&self) -> Option<usize> {
        let column = self.out.last().filter(|label| !self.lhs.contains(label))?;
        self.rhs.iter().position(|label| label == column).filter(|_| self.rhs.len() == 2)
    }

    /// The product of matrices with `batch` shared leading axes: `[.., M, K] x [.., K, N]`.
    pub fn matmul(batch: usize) -> Contract {
        let leading: Labels = (0..batch as u8).collect();
        let with = |a, b| leading.iter().copied().chain([a, b]).collect();
        let (m, n, k) = (batch as u8, batch as u8 + 1, batch as u8 + 2);
        Contract::new(with(m, k), with(k, n), with(m, n))
    }
}

impl TensorOp for Contract {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let lhs = required(inputs, 0)?;
        let dequantized = match self.dequantized(inputs)? {
            Some((dequantize, inputs)) => Some(dequantize.infer(inputs)?.remove(0)),
            None => None,
        };
        let rhs = dequantized.as_ref().map_or_else(|| required(inputs, 1), Ok)?;
        let dtype = product_type(self.multiply, lhs.dtype, rhs.dtype)?;
        let shape = match (&lhs.shape, &rhs.shape) {
            (Some(a), Some(b)) => {
                let sizes = self.sizes(a, b, |a, b| a.broadcast(b))?;
                self.out.iter().map(|&label| find(&sizes, label)).collect::<Result<Dims, _>>()?
            }
            _ => smallvec![Dim::unknown(); self.out.len()],
        };
        let result = typed(dtype, Some(shape));
        Ok(smallvec![after_epilogue(&self.epilogue, result, inputs.get(self.first_extra()..).unwrap_or_default())?])
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let lhs = required(inputs, 0)?;
        let dequantized = match self.dequantized(inputs)? {
            Some((dequantize, inputs)) => Some(dequantize.evaluate(inputs)?.remove(0)),
            None => None,
        };
        let rhs = dequantized.as_ref().map_or_else(|| required(inputs, 1), Ok)?;
        let sizes = self.sizes(lhs.shape(), rhs.shape(), |&a, &b| match (a, b) {
            _ if a == b => Some(a),
            (1, other) | (other, 1) => Some(other),
            _ => None,
        })?;
        let shape: Shape = self.out.iter().map(|&label| find(&sizes, label)).collect::<Result<_, _>>()?;
        let summed: Vec<(u8, usize)> = sizes.iter().copied().filter(|(label, _)| !self.out.contains(label)).collect();
        let views = Views {
            out: [self.view(&self.lhs, lhs, &self.out, &shape)?, self.view(&self.rhs, rhs, &self.out, &shape)?],
            sum: {
                let (labels, dims): (Labels, Shape) = summed.into_iter().unzip();
                [self.view(&self.lhs, lhs, &labels, &dims)?, self.view(&self.rhs, rhs, &labels, &dims)?]
            },
        };
        let dtype = product_type(self.multiply, Some(lhs.dtype()), Some(rhs.dtype()))?.unwrap_or(lhs.dtype());
        let rhs = match self.multiply {
            Some(Factors::Integers) => whole_weights(rhs, self.column_axis().unwrap_or(0))?,
            _ => Cow::Borrowed(rhs),
        };
        let numbers = match (read_left(self.multiply, lhs, optional(inputs, 2))?, read_right(self.multiply, &rhs)?) {
            (Numbers::Float(a), Numbers::Float(b)) => Numbers::Float(views.products(&a, &b)),
            (Numbers::Int(a), Numbers::Int(b)) => Numbers::Int(views.products(&a, &b)),
            _ => return Err(OpError::invalid(format!("a product of {} and {}", lhs.dtype(), rhs.dtype()))),
        };
        let result = numbers.write(dtype, &shape)?;
        Ok(smallvec![apply_epilogue(&self.epilogue, result, inputs.get(self.first_extra()..).unwrap_or_default())?])
    }
}

/// Positions in both operands: per element of the output, and per term of its sum.
struct Views {
    out: [Offsets; 2],
    sum: [Offsets; 2],
}

impl Views {
    fn products<T: Ring>(self, a: &[T], b: &[T]) -> Vec<T> {
        let [left, right] = self.sum;
        let terms: Vec<(usize, usize)> = left.zip(right).collect();
        let [left, right] = self.out;
        let sum =
            |(i, j): (usize, usize)| terms.iter().fold(T::ZERO, |sum, &(p, q)| sum.plus_product(a[i + p], b[j + q]));
        left.zip(right).map(sum).collect()
    }
}

impl Contract {
    /// The size of every label.
    fn sizes<D: Clone + std::fmt::Debug>(
        &self,
        lhs: &[D],
        rhs: &[D],
        join: impl Fn(&D, &D) -> Option<D>,
    ) -> Result<Vec<(u8, D)>, OpError> {
        if lhs.len() != self.lhs.len() || rhs.len() != self.rhs.len() {
            let (a, b) = (self.lhs.len(), self.rhs.len());
            return Err(OpError::invalid(format!("operands of shapes {lhs:?} and {rhs:?}, not of rank {a} and {b}")));
        }
        let mut sizes: Vec<(u8, D)> = self.lhs.iter().copied().zip(lhs.iter().cloned()).collect();
        for (&label, size) in self.rhs.iter().zip(rhs) {
            match sizes.iter_mut().find(|(known, _)| *known == label) {
                None => sizes.push((label, size.clone())),
                Some((_, known)) => {
                    *known = join(known, size).ok_or_else(|| {
                        OpError::invalid(format!("shapes {lhs:?} and {rhs:?} do not fit: {known:?} against {size:?}"))
                    })?;
                }
            }
        }
        Ok(sizes)
    }

    /// An operand's positions for every index of `labels`; it stands still along what it does not have
    /// and along what it broadcasts.
    fn view(&self, own: &[u8], operand: &Tensor, labels: &[u8], shape: &[usize]) -> Result<Offsets, OpError> {
        let strides = strides(operand.shape());
        let stride = |label: &u8| match own.iter().position(|l| l == label) {
            Some(axis) if operand.shape()[axis] != 1 => strides[axis],
            _ => 0,
        };
        Offsets::new(shape, 0, &labels.iter().map(stride).collect::<SmallVec<[isize; 6]>>())
    }
}

fn find<D: Clone>(sizes: &[(u8, D)], label: u8) -> Result<D, OpError> {
    let found = sizes.iter().find(|(known, _)| *known == label).map(|(_, size)| size.clone());
    found.ok_or_else(|| OpError::invalid("an axis of the output stands in no operand"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Binary, Unary};
    use halimede_tensor::DType;

    fn run(op: &Contract, inputs: &[Tensor]) -> Result<Tensor, OpError> {
        Ok(op.evaluate(&inputs.iter().map(Some).collect::<Vec<_>>())?.remove(0))
    }

    fn einsum(lhs: &str, rhs: &str, out: &str) -> Contract {
        let labels = |s: &str| s.bytes().collect();
        Contract::new(labels(lhs), labels(rhs), labels(out))
    }

    #[test]
    fn matrices() {
        let a = Tensor::from_slice(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let b = Tensor::from_slice(&[3, 1], &[1f32, 0.0, -1.0]).unwrap();
        let product = Tensor::from_slice(&[2, 1], &[-2f32, -2.0]).unwrap();
        assert_eq!(run(&Contract::matmul(0), &[a.clone(), b]).unwrap(), product);
        let diagonal = run(&einsum("ik", "ik", "i"), &[a.clone(), a.clone()]).unwrap();
        assert_eq!(diagonal.slice::<f32>().unwrap(), [14.0, 77.0]);
        let outer =
            run(&einsum("ik", "j", "ij"), &[a.clone(), Tensor::from_slice(&[2], &[1f32, 2.0]).unwrap()]).unwrap();
        assert_eq!(outer.slice::<f32>().unwrap(), [6.0, 12.0, 15.0, 30.0]);
        assert!(run(&Contract::matmul(0), &[a.clone(), a]).is_err());
    }

    #[test]
    fn batches_broadcast_and_integers_wrap() {
        let a = Tensor::from_slice(&[2, 1, 2], &[100i8, 1, 2, 3]).unwrap();
        let b = Tensor::from_slice(&[1, 2, 1], &[2i8, 1]).unwrap();
        let out = run(&Contract::matmul(1), &[a, b]).unwrap();
        assert_eq!(out, Tensor::from_slice(&[2, 1, 1], &[201u8 as i8, 7]).unwrap());
    }

    #[test]
    fn integers_are_read_less_their_zero_point() {
        let op = Contract { multiply: Some(Factors::Integers), ..Contract::matmul(0) };
        let a = Tensor::from_slice(&[1, 2], &[255u8, 3]).unwrap();
        let b = Tensor::from_slice(&[2, 1], &[-128i8, 2]).unwrap();
        let zero = Tensor::scalar(5u8);
        let sums = Tensor::from_slice(&[1, 1], &[-128 * 250 - 4]).unwrap();
        assert_eq!(run(&op, &[a.clone(), b.clone(), zero]).unwrap(), sums);
        assert!(run(&op, &[b, a]).is_err(), "weights without a sign");
    }

    #[test]
    fn a_right_operand_in_few_bits() {
        let dequantize = Some(Dequantize { to: None, axis: 1, block: 2 });
        let op = Contract { dequantize, ..einsum("ik", "jk", "ij") };
        let a = Tensor::from_slice(&[1, 3], &[1f32, 10.0, 100.0]).unwrap();
        let b = Tensor::from_slice(&[2, 3], &[1u8, 2, 3, 4, 5, 6]).unwrap();
        let scales = Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0]).unwrap();
        let zeros = Tensor::from_slice(&[2, 2], &[1u8, 0, 0, 6]).unwrap();
        let product = run(&op, &[a.clone(), b.clone(), scales.clone(), zeros]).unwrap();
        assert_eq!(product, Tensor::from_slice(&[1, 2], &[610f32, 162.0]).unwrap());
        assert_eq!(op.first_extra(), 4);
        let facts = [&a, &b, &scales].map(|tensor| Fact::constant(tensor.clone()));
        let known = op.infer(&facts.each_ref().map(Some)).unwrap().remove(0);
        assert_eq!((known.dtype, known.known_shape().unwrap()[..].to_vec()), (Some(DType::F32), vec![1, 2]));
        let integers = Contract { multiply: Some(Factors::Integers), ..op };
        assert!(run(&integers, &[a, b, scales]).is_err(), "nothing says whose zero point it is");
    }

    #[test]
    fn nothing_to_sum_gives_zero() {
        let (a, b) = (Tensor::zeros(DType::F32, &[2, 0]).unwrap(), Tensor::zeros(DType::F32, &[0, 1]).unwrap());
        assert_eq!(run(&Contract::matmul(0), &[a, b]).unwrap(), Tensor::zeros(DType::F32, &[2, 1]).unwrap());
    }

    #[test]
    fn epilogue_reads_more() {
        let mut map = Map::binary(Binary::Add);
        map.push(crate::ops::Instruction::Unary(Unary::Neg, 2));
        let op = Contract { epilogue: Some(map), ..Contract::matmul(0) };
        let a = Tensor::from_slice(&[1, 1], &[3f32]).unwrap();
        let bias = Tensor::from_slice(&[1], &[1f32]).unwrap();
        assert_eq!(run(&op, &[a.clone(), a.clone(), bias]).unwrap().slice::<f32>().unwrap(), [-10.0]);
        let wide = Tensor::from_slice(&[2], &[1f32, 2.0]).unwrap();
        assert!(run(&op, &[a.clone(), a, wide]).is_err());
    }

    #[test]
    fn shapes() {
        let n = Dim::symbol("n");
        let a = Fact::tensor(DType::F32, [n.clone(), Dim::from(1), Dim::from(8)]);
        let b = Fact::tensor(DType::F32, [Dim::from(1), Dim::from(8), Dim::from(3)]);
        let out = Contract::matmul(1).infer(&[Some(&a), Some(&b)]).unwrap().remove(0);
        assert_eq!(out.shape.unwrap()[..], [n, Dim::from(1), Dim::from(3)]);
        let wrong = Fact::tensor(DType::F32, [Dim::from(1), Dim::from(7), Dim::from(3)]);
        assert!(Contract::matmul(1).infer(&[Some(&a), Some(&wrong)]).is_err());
    }
}
