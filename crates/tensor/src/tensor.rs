use crate::{Buffer, DType, Element, Held, Shape, TensorError, element_count};
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

/// A datatype, a shape and row-major data that clones share.
#[derive(Debug, Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    data: Data,
}

#[derive(Debug, Clone)]
enum Data {
    Bytes(Buffer),
    /// Bytes that lie where no element of the datatype may, as weights inside a model file do.
    Misaligned(Arc<Misaligned>),
    Strings(Arc<[Vec<u8>]>),
}

/// Shared, so that one aligned copy serves all clones: most weights are packed from where they lie and
/// never need it.
#[derive(Debug)]
struct Misaligned {
    lying: Buffer,
    aligned: OnceLock<Buffer>,
}

impl Misaligned {
    fn aligned(&self) -> Result<&Buffer, TensorError> {
        if self.aligned.get().is_none() {
            // Two threads may both copy; the first one's copy stays.
            let _ = self.aligned.set(Buffer::copied(&self.lying)?);
        }
        Ok(self.aligned.get().unwrap_or(&self.lying))
    }
}

impl Tensor {
    /// A tensor over existing bytes of any datatype but String. Where they are not aligned for the
    /// datatype, they are copied when somebody first reads them as elements.
    pub fn from_buffer(dtype: DType, shape: &[usize], buffer: Buffer) -> Result<Tensor, TensorError> {
        let expected = element_count(shape)? * dtype.size();
        if dtype == DType::String {
            return Err(TensorError::DType { expected: "a datatype of fixed size", actual: dtype });
        }
        if buffer.len() != expected {
            return Err(TensorError::Size { dtype, shape: shape.into(), expected, actual: buffer.len() });
        }
        let aligned = (buffer.as_ptr() as usize).is_multiple_of(dtype.size().min(8));
        let data = match aligned {
            true => Data::Bytes(buffer),
            false => Data::Misaligned(Arc::new(Misaligned { lying: buffer, aligned: OnceLock::new() })),
        };
        Ok(Tensor { dtype, shape: shape.into(), data })
    }

    /// A zeroed tensor; a string tensor gets empty strings.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Tensor, TensorError> {
        let count = element_count(shape)?;
        let data = match dtype {
            DType::String => Data::Strings(vec![Vec::new(); count].into()),
            _ => Data::Bytes(Buffer::zeroed(count * dtype.size())?),
        };
        Ok(Tensor { dtype, shape: shape.into(), data })
    }

    /// A tensor with a copy of `elements`.
    pub fn from_slice<T: Element>(shape: &[usize], elements: &[T]) -> Result<Tensor, TensorError> {
        Tensor::from_buffer(T::DTYPE, shape, Buffer::copied(bytemuck::cast_slice(elements))?)
    }

    /// A Bool tensor.
    pub fn from_bools(shape: &[usize], elements: &[bool]) -> Result<Tensor, TensorError> {
        let bytes: Vec<u8> = elements.iter().map(|&b| b as u8).collect();
        Tensor::from_buffer(DType::Bool, shape, Buffer::copied(&bytes)?)
    }

    /// A String tensor.
    pub fn from_strings(shape: &[usize], elements: Vec<Vec<u8>>) -> Result<Tensor, TensorError> {
        let expected = element_count(shape)?;
        if elements.len() != expected {
            let actual = elements.len();
            return Err(TensorError::Size { dtype: DType::String, shape: shape.into(), expected, actual });
        }
        Ok(Tensor { dtype: DType::String, shape: shape.into(), data: Data::Strings(elements.into()) })
    }

    /// A tensor without dimensions that holds `value`.
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Tensor::from_slice(&[], &[value]).expect("one element fills a scalar")
    }

    /// The datatype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dimensions, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match &self.data {
            Data::Strings(strings) => strings.len(),
            Data::Bytes(buffer) => buffer.len() / self.dtype.size(),
            Data::Misaligned(bytes) => bytes.lying.len() / self.dtype.size(),
        }
    }

    /// Whether some dimension is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as `T`; an error where the datatype is another.
    pub fn slice<T: Element>(&self) -> Result<&[T], TensorError> {
        match &self.data {
            Data::Bytes(buffer) if T::reads(self.dtype) => Ok(bytemuck::cast_slice(buffer)),
            Data::Misaligned(bytes) if T::reads(self.dtype) => Ok(bytemuck::cast_slice(bytes.aligned()?)),
            _ => Err(TensorError::DType { expected: T::DTYPE.name(), actual: self.dtype }),
        }
    }

    /// The same for who reads them once: where they lie misaligned, the copy is the caller's, and the tensor keeps none.
    pub fn elements<T: Element>(&self) -> Result<Cow<'_, [T]>, TensorError> {
        match &self.data {
            Data::Misaligned(bytes) if T::reads(self.dtype) && bytes.aligned.get().is_none() => {
                Ok(Cow::Owned(bytemuck::pod_collect_to_vec(&bytes.lying[..])))
            }
            _ => self.slice().map(Cow::Borrowed),
        }
    }

    /// The elements as `T` for writing, copied first when they are shared.
    pub fn slice_mut<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        self.align()?;
        match &mut self.data {
            Data::Bytes(buffer) if T::reads(self.dtype) => Ok(bytemuck::cast_slice_mut(buffer.make_mut()?)),
            _ => Err(TensorError::DType { expected: T::DTYPE.name(), actual: self.dtype }),
        }
    }

    /// The strings of a String tensor.
    pub fn strings(&self) -> Result<&[Vec<u8>], TensorError> {
        match &self.data {
            Data::Strings(strings) => Ok(strings),
            Data::Bytes(_) | Data::Misaligned(_) => Err(TensorError::DType { expected: "string", actual: self.dtype }),
        }
    }

    /// The raw bytes where they lie, which need not be aligned for the datatype; an error for a String
    /// tensor, whose elements lie apart.
    pub fn bytes(&self) -> Result<&[u8], TensorError> {
        match &self.data {
            Data::Misaligned(bytes) => Ok(&bytes.lying),
            _ => self.buffer().map(|buffer| &**buffer),
        }
    }

    /// The raw bytes for writing, copied first when they are shared.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], TensorError> {
        self.align()?;
        match &mut self.data {
            Data::Bytes(buffer) => buffer.make_mut(),
            _ => Err(TensorError::DType { expected: "a datatype of fixed size", actual: self.dtype }),
        }
    }

    fn align(&mut self) -> Result<(), TensorError> {
        if let Data::Misaligned(bytes) = &self.data {
            self.data = Data::Bytes(bytes.aligned()?.clone());
        }
        Ok(())
    }

    /// The bytes aligned for the datatype, to share them; an error for a String tensor.
    pub fn buffer(&self) -> Result<&Buffer, TensorError> {
        match &self.data {
            Data::Bytes(buffer) => Ok(buffer),
            Data::Misaligned(bytes) => bytes.aligned(),
            Data::Strings(_) => Err(TensorError::DType { expected: "a datatype of fixed size", actual: self.dtype }),
        }
    }

    /// Whether the data lie in somebody else's memory: a mapped file, a request body.
    pub fn is_foreign(&self) -> bool {
        match &self.data {
            Data::Bytes(buffer) => buffer.is_foreign(),
            Data::Misaligned(bytes) => bytes.lying.is_foreign(),
            Data::Strings(_) => false,
        }
    }

    /// Bytes that the data take: with the copy that was made where elements were read that lay misaligned.
    pub fn held(&self) -> Held {
        let of = |buffer: &Buffer| match buffer.is_foreign() {
            true => Held { private: 0, mapped: buffer.len() },
            false => Held { private: buffer.len(), mapped: 0 },
        };
        match &self.data {
            Data::Bytes(buffer) => of(buffer),
            Data::Misaligned(bytes) => of(&bytes.lying) + bytes.aligned.get().map(of).unwrap_or_default(),
            Data::Strings(strings) => {
                let bytes: usize = strings.iter().map(Vec::len).sum();
                Held { private: size_of_val(&**strings) + bytes, mapped: 0 }
            }
        }
    }

    /// The same data in memory of our own, copied where it lies in somebody else's.
    pub fn owned(&self) -> Result<Tensor, TensorError> {
        let data = match &self.data {
            Data::Bytes(buffer) if buffer.is_foreign() => Data::Bytes(Buffer::copied(buffer)?),
            Data::Misaligned(bytes) => Data::Bytes(bytes.aligned()?.clone()),
            data => data.clone(),
        };
        Ok(Tensor { dtype: self.dtype, shape: self.shape.clone(), data })
    }

    /// The same data under another shape with as many elements.
    pub fn reshaped(&self, shape: &[usize]) -> Result<Tensor, TensorError> {
        if element_count(shape)? != self.len() {
            return Err(TensorError::Reshape { from: self.shape.clone(), to: shape.into() });
        }
        Ok(Tensor { dtype: self.dtype, shape: shape.into(), data: self.data.clone() })
    }

    /// The same bytes read as another datatype of the same width, as ONNX's BitCast does.
    pub fn reinterpreted(&self, dtype: DType) -> Result<Tensor, TensorError> {
        if dtype.size() != self.dtype.size() {
            return Err(TensorError::DType { expected: dtype.name(), actual: self.dtype });
        }
        Tensor::from_buffer(dtype, &self.shape, self.buffer()?.clone())
    }
}

/// Equality of datatype, shape and bytes; so NaN equals the same NaN.
impl PartialEq for Tensor {
    fn eq(&self, other: &Tensor) -> bool {
        self.dtype == other.dtype
            && self.shape == other.shape
            && match (&self.data, &other.data) {
                (Data::Strings(a), Data::Strings(b)) => a == b,
                // Equal datatypes: both have bytes.
                _ => self.bytes().ok() == other.bytes().ok(),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_only_as_its_own_type() {
        let t = Tensor::from_slice(&[2], &[1.5f32, -2.0]).unwrap();
        assert_eq!(t.slice::<f32>().unwrap(), [1.5, -2.0]);
        assert!(t.slice::<i32>().is_err());
        assert_eq!(Tensor::from_bools(&[2], &[true, false]).unwrap().slice::<u8>().unwrap(), [1, 0]);
    }

    #[test]
    fn misaligned_bytes_are_copied_when_elements_are_read() {
        let bytes = Buffer::copied(&[0, 1, 0, 0, 0]).unwrap();
        let mut t = Tensor::from_buffer(DType::I32, &[], bytes.part(1, 4).unwrap()).unwrap();
        let clone = t.clone();
        assert_eq!(t.bytes().unwrap().as_ptr(), bytes[1..].as_ptr());
        assert_eq!(t.slice::<i32>().unwrap(), [1]);
        assert_eq!(t.slice::<i32>().unwrap().as_ptr(), clone.slice::<i32>().unwrap().as_ptr());
        assert!(t.view().unwrap().as_ptr().cast::<i32>().is_aligned());
        assert_eq!(t, Tensor::scalar(1i32));
        t.slice_mut::<i32>().unwrap()[0] = 2;
        assert_eq!((t.slice::<i32>().unwrap(), clone.slice::<i32>().unwrap()), (&[2][..], &[1][..]));
        assert_eq!(t.len(), 1);
    }

    #[test]
    fn owned_data_outlives_what_it_was_read_from() {
        for offset in [0, 1] {
            let lent = Buffer::foreign(vec![1u8, 0, 0, 0, 0]).part(offset, 4).unwrap();
            let t = Tensor::from_buffer(DType::I32, &[], lent).unwrap();
            let owned = t.owned().unwrap();
            assert_eq!(owned, t);
            assert!(!owned.buffer().unwrap().is_foreign());
            assert_eq!(owned.owned().unwrap().bytes().unwrap().as_ptr(), owned.bytes().unwrap().as_ptr());
        }
    }

    #[test]
    fn held_bytes_count_the_aligned_copy_once_it_is_made() {
        let held = |tensor: &Tensor| (tensor.held().private, tensor.held().mapped);
        let lent = Buffer::foreign(vec![1u8; 5]);
        let lent = lent.part(usize::from(lent.as_ptr().addr().is_multiple_of(4)), 4).unwrap();
        let t = Tensor::from_buffer(DType::I32, &[], lent).unwrap();
        assert_eq!(*t.elements::<i32>().unwrap(), [0x0101_0101]);
        assert!(t.elements::<f32>().is_err());
        assert_eq!(held(&t), (0, 4));
        t.slice::<i32>().unwrap();
        assert_eq!(held(&t), (4, 4));
        assert_eq!(held(&t.owned().unwrap()), (4, 0));
        let strings = Tensor::from_strings(&[2], vec![b"ab".to_vec(), Vec::new()]).unwrap();
        assert_eq!(held(&strings), (2 + 2 * size_of::<Vec<u8>>(), 0));
    }

    #[test]
    fn sizes_must_agree() {
        assert!(Tensor::from_slice(&[3], &[1u8, 2]).is_err());
        assert!(Tensor::from_strings(&[1], vec![]).is_err());
        assert!(Tensor::scalar(1u8).reshaped(&[2]).is_err());
    }
}
