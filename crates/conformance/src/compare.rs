use halimede_tensor::{DType, Tensor, Value};
use std::fmt;

/// How far a number may lie from the expected one: `atol + rtol · |expected|`, as NumPy's `allclose`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Relative to the expected value.
    pub rtol: f64,
    /// Beside that.
    pub atol: f64,
}

impl Default for Tolerance {
    /// What ONNX's own runner allows.
    fn default() -> Tolerance {
        Tolerance { rtol: 1e-3, atol: 1e-7 }
    }
}

/// How a value differs from the expected one.
#[derive(Debug, Clone, PartialEq)]
pub enum Mismatch {
    /// Tensor, sequence or optional in place of another, or a sequence of another length.
    Structure(String),
    /// Another datatype.
    DType {
        /// The one that should be.
        expected: DType,
        /// The one that is.
        actual: DType,
    },
    /// Another shape.
    Shape {
        /// The one that should be.
        expected: Vec<usize>,
        /// The one that is.
        actual: Vec<usize>,
    },
    /// Elements outside the tolerance.
    Elements {
        /// How many.
        count: usize,
        /// Of how many.
        of: usize,
        /// The position of the worst.
        index: Vec<usize>,
        /// What it should be.
        expected: String,
        /// What it is.
        actual: String,
    },
    /// A mismatch within a sequence or optional.
    Within(String, Box<Mismatch>),
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Structure(text) => f.write_str(text),
            Mismatch::DType { expected, actual } => write!(f, "expected datatype {expected}, got {actual}"),
            Mismatch::Shape { expected, actual } => write!(f, "expected shape {expected:?}, got {actual:?}"),
            Mismatch::Elements { count, of, index, expected, actual } => {
                write!(f, "{count} of {of} elements differ, the worst at {index:?}: expected {expected}, got {actual}")
            }
            Mismatch::Within(place, inner) => write!(f, "{place}: {inner}"),
        }
    }
}

/// Whether `actual` is `expected`: datatype, shape and structure alike, strings and integers equal,
/// floats within the tolerance; NaN equals NaN.
pub fn compare(expected: &Value, actual: &Value, tolerance: Tolerance) -> Result<(), Mismatch> {
    match (expected, actual) {
        (Value::Tensor(expected), Value::Tensor(actual)) => compare_tensors(expected, actual, tolerance),
        (Value::Sequence(expected), Value::Sequence(actual)) => {
            if expected.len() != actual.len() {
                let (expected, actual) = (expected.len(), actual.len());
                return Err(Mismatch::Structure(format!("expected a sequence of {expected} values, got {actual}")));
            }
            for (index, (expected, actual)) in expected.iter().zip(actual).enumerate() {
                compare(expected, actual, tolerance)
                    .map_err(|inner| Mismatch::Within(format!("element {index}"), inner.into()))?;
            }
            Ok(())
        }
        (Value::Optional(None), Value::Optional(None)) => Ok(()),
        (Value::Optional(Some(expected)), Value::Optional(Some(actual))) => compare(expected, actual, tolerance),
        // What an optional holds passes for the optional, both ways, as in ONNX's own runner.
        (Value::Optional(Some(expected)), actual) => compare(expected, actual, tolerance),
        (expected, Value::Optional(Some(actual))) => compare(expected, actual, tolerance),
        (expected, actual) => {
            Err(Mismatch::Structure(format!("expected {}, got {}", structure(expected), structure(actual))))
        }
    }
}

fn structure(value: &Value) -> &'static str {
    match value {
        Value::Tensor(_) => "a tensor",
        Value::Sequence(_) => "a sequence",
        Value::Optional(None) => "an empty optional",
        Value::Optional(Some(_)) => "an optional",
    }
}

fn compare_tensors(expected: &Tensor, actual: &Tensor, tolerance: Tolerance) -> Result<(), Mismatch> {
    if expected.dtype() != actual.dtype() {
        return Err(Mismatch::DType { expected: expected.dtype(), actual: actual.dtype() });
    }
    if expected.shape() != actual.shape() {
        return Err(Mismatch::Shape { expected: expected.shape().into(), actual: actual.shape().into() });
    }
    match expected.dtype() {
        DType::String => exact(expected, strings(expected), strings(actual)),
        DType::Complex64 => {
            let widen = |t: &Tensor| {
                t.slice::<[f32; 2]>().unwrap_or_default().iter().flatten().map(|&v| f64::from(v)).collect::<Vec<_>>()
            };
            close(expected, &widen(expected), &widen(actual), 2, tolerance)
        }
        DType::Complex128 => {
            let widen = |t: &Tensor| t.slice::<[f64; 2]>().unwrap_or_default().concat();
            close(expected, &widen(expected), &widen(actual), 2, tolerance)
        }
        dtype if dtype.is_float() => {
            let widen = |t: &Tensor| t.to_f64s().unwrap_or_default();
            close(expected, &widen(expected), &widen(actual), 1, tolerance)
        }
        DType::U64 => exact(expected, expected.slice::<u64>().unwrap_or_default(), actual.slice().unwrap_or_default()),
        _ => {
            let widen = |t: &Tensor| t.to_i64s().unwrap_or_default();
            exact(expected, &widen(expected), &widen(actual))
        }
    }
}

fn strings(tensor: &Tensor) -> &[Vec<u8>] {
    tensor.strings().unwrap_or_default()
}

/// Elements that must be equal.
fn exact<T: PartialEq + Shown>(tensor: &Tensor, expected: &[T], actual: &[T]) -> Result<(), Mismatch> {
    let different = expected.iter().zip(actual).enumerate().filter(|(_, (a, b))| a != b);
    let (mut count, mut worst) = (0, None);
    for (index, (a, b)) in different {
        count += 1;
        let distance = a.distance(b);
        if worst.is_none_or(|(_, largest)| distance > largest) {
            worst = Some((index, distance));
        }
    }
    let Some((worst, _)) = worst else { return Ok(()) };
    Err(Mismatch::Elements {
        count,
        of: tensor.len(),
        index: position(worst, tensor.shape()),
        expected: expected[worst].shown(),
        actual: actual[worst].shown(),
    })
}

trait Shown {
    fn shown(&self) -> String;
    /// How far apart two are; texts have no distance.
    fn distance(&self, other: &Self) -> u64;
}

impl Shown for i64 {
    fn shown(&self) -> String {
        self.to_string()
    }

    fn distance(&self, other: &i64) -> u64 {
        self.abs_diff(*other)
    }
}

impl Shown for u64 {
    fn shown(&self) -> String {
        self.to_string()
    }

    fn distance(&self, other: &u64) -> u64 {
        self.abs_diff(*other)
    }
}

impl Shown for Vec<u8> {
    fn shown(&self) -> String {
        format!("{:?}", String::from_utf8_lossy(self))
    }

    fn distance(&self, _: &Vec<u8>) -> u64 {
        0
    }
}

/// Elements of `parts` numbers each that must be close.
fn close(
    tensor: &Tensor,
    expected: &[f64],
    actual: &[f64],
    parts: usize,
    tolerance: Tolerance,
) -> Result<(), Mismatch> {
    let (mut count, mut worst, mut worst_excess) = (0, 0, f64::NEG_INFINITY);
    for (index, (&a, &b)) in expected.iter().zip(actual).enumerate() {
        // Equal infinities have no difference; a NaN beside a number is worse than anything.
        let excess = match (a - b).abs() {
            _ if a == b || (a.is_nan() && b.is_nan()) => continue,
            difference if difference.is_nan() => f64::INFINITY,
            difference => difference - (tolerance.atol + tolerance.rtol * a.abs()),
        };
        if excess.is_nan() || excess > 0.0 {
            count += 1;
            if excess > worst_excess {
                (worst, worst_excess) = (index, excess);
            }
        }
    }
    if count == 0 {
        return Ok(());
    }
    let shown = |values: &[f64]| match parts {
        1 => values[worst].to_string(),
        _ => format!("{:?}", &values[worst / parts * parts..][..parts]),
    };
    let index = position(worst / parts, tensor.shape());
    Err(Mismatch::Elements { count, of: tensor.len(), index, expected: shown(expected), actual: shown(actual) })
}

/// The coordinates of a flat index.
fn position(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index: Vec<usize> = shape.iter().rev().map(|&size| (flat % size, flat /= size).0).collect();
    index.reverse();
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(elements: &[f32]) -> Value {
        Tensor::from_slice(&[elements.len()], elements).unwrap().into()
    }

    #[test]
    fn floats_are_compared_as_numpy_does() {
        let nan = f32::NAN;
        let inf = f32::INFINITY;
        for (expected, actual, same) in [
            (&[1000.0][..], &[1000.9][..], true),
            (&[1000.0], &[1001.1], false),
            (&[0.0], &[1e-6], false),
            (&[nan, inf], &[nan, inf], true),
            (&[nan], &[1.0], false),
            (&[1.0], &[nan], false),
            (&[inf], &[-inf], false),
            (&[inf], &[1e30], false),
            (&[1e30], &[inf], false),
        ] {
            let result = compare(&floats(expected), &floats(actual), Tolerance::default());
            assert_eq!(result.is_ok(), same, "{expected:?} {actual:?}");
        }
    }

    #[test]
    fn the_worst_element_is_named() {
        let a = Tensor::from_slice(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        let b = Tensor::from_slice(&[2, 2], &[1.0f32, 2.5, 9.0, 4.0]).unwrap();
        let mismatch = compare(&a.into(), &b.into(), Tolerance::default()).unwrap_err();
        assert_eq!(mismatch.to_string(), "2 of 4 elements differ, the worst at [1, 0]: expected 3, got 9");
    }

    #[test]
    fn integers_types_and_shapes_are_exact() {
        let ints = |v: &[i32]| Value::from(Tensor::from_slice(&[v.len()], v).unwrap());
        assert!(compare(&ints(&[100_000]), &ints(&[100_001]), Tolerance::default()).is_err());
        assert!(compare(&ints(&[1]), &floats(&[1.0]), Tolerance::default()).is_err());
        assert!(compare(&ints(&[1]), &ints(&[1, 1]), Tolerance::default()).is_err());
        assert!(compare(&Value::Sequence(vec![ints(&[1])]), &Value::Sequence(vec![]), Tolerance::default()).is_err());
    }
}
