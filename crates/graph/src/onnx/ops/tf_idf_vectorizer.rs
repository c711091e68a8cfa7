use super::common::{required, room};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{DType, Tensor, Value};
use smallvec::smallvec;
use std::collections::HashMap;
use std::hash::Hash;

/// Counts the n-grams of a pool in rows of strings or integers, with gaps up to a size, and weighs them
/// (ONNX TfIdfVectorizer, opset 9).
pub static OPERATOR: Operator = Operator::new("TfIdfVectorizer").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let x = required(inputs, 0)?;
    let (rows, length) = match *x.shape() {
        [] => (1, 1),
        [length] => (1, length),
        [rows, length] => (rows, length),
        _ => return Err(OpError::invalid(format!("the input has shape {:?} instead of [C] or [N, C]", x.shape()))),
    };
    let form = Form::read(call)?;
    let counts = match x.dtype() {
        DType::String => {
            let pool = call.attributes.required("pool_strings", call.attributes.strings("pool_strings")?)?;
            form.count(x.strings()?, pool, rows, length)?
        }
        _ => {
            let pool = call.attributes.required("pool_int64s", call.attributes.ints("pool_int64s")?)?;
            form.count(&x.to_i64s()?, pool, rows, length)?
        }
    };
    let weights = call.attributes.floats("weights")?;
    if let Some(weights) = weights.filter(|weights| weights.len() != form.indices.len()) {
        let message = format!("{} weights for {} n-grams", weights.len(), form.indices.len());
        return Err(OpError::invalid(message));
    }
    // Weights stand in the order of the pool, counts in that of the output.
    let mut weight = vec![1.0f32; form.outputs];
    for (&index, &of) in form.indices.iter().zip(weights.unwrap_or_default()) {
        weight[index] = of;
    }
    let weigh: fn(f32, f32) -> f32 = match call.attributes.text_or("mode", "")? {
        "TF" => |count, _| count,
        "IDF" => |count, weight| if count > 0.0 { weight } else { 0.0 },
        "TFIDF" => |count, weight| count * weight,
        other => return Err(OpError::invalid(format!("mode is '{other}'; ONNX knows TF, IDF and TFIDF"))),
    };
    let out: Vec<f32> = counts.iter().enumerate().map(|(i, &count)| weigh(count, weight[i % form.outputs])).collect();
    let shape = if x.rank() == 2 { vec![rows, form.outputs] } else { vec![form.outputs] };
    Ok(vec![Tensor::from_slice(&shape, &out)?.into()])
}

struct Form {
    /// Shortest and longest n-gram that counts.
    shortest: usize,
    longest: usize,
    /// Most elements left out between two neighbours.
    skips: usize,
    /// Where the n-grams of each size begin in the pool.
    starts: Vec<usize>,
    /// Per n-gram of the pool its place in the output.
    indices: Vec<usize>,
    outputs: usize,
}

impl Form {
    fn read(call: &Call) -> Result<Form, OpError> {
        let attributes = &call.attributes;
        let size = |name: &str, value: i64| {
            usize::try_from(value).map_err(|_| OpError::invalid(format!("{name} has {value}; it cannot be negative")))
        };
        let one = |name: &str| size(name, attributes.required(name, attributes.int(name)?)?);
        let list = |name: &str| -> Result<Vec<usize>, OpError> {
            attributes.required(name, attributes.ints(name)?)?.iter().map(|&value| size(name, value)).collect()
        };
        let indices = list("ngram_indexes")?;
        let outputs = indices.iter().max().map_or(0, |largest| largest + 1);
        let (shortest, longest) = (one("min_gram_length")?, one("max_gram_length")?);
        if outputs == 0 || shortest == 0 || longest < shortest {
            return Err(OpError::invalid("there are no n-grams to count"));
        }
        let (skips, starts) = (one("max_skip_count")?, list("ngram_counts")?);
        Ok(Form { shortest, longest, skips, starts, indices, outputs })
    }

    /// Occurrences as `[rows, outputs]`.
    fn count<T: Hash + Eq>(&self, x: &[T], pool: &[T], rows: usize, length: usize) -> Result<Vec<f32>, OpError> {
        let grams = self.dictionary(pool)?;
        let mut counts = vec![0.0; room(&[rows, self.outputs])?];
        for row in 0..rows {
            let elements = &x[row * length..][..length];
            // A gap as long as the row leaves nothing after it.
            for step in 1..=self.skips.saturating_add(1).min(length.max(1)) {
                for first in 0..length {
                    for size in self.shortest..=self.longest {
                        // Gaps make no difference to a single element.
                        if size == 1 && step > 1 {
                            continue;
                        }
                        if (size - 1).saturating_mul(step) >= length - first {
                            break;
                        }
                        let gram: Vec<&T> = (0..size).map(|i| &elements[first + i * step]).collect();
                        if let Some(&place) = grams.get(&gram) {
                            counts[row * self.outputs + place] += 1.0;
                        }
                    }
                }
            }
        }
        Ok(counts)
    }

    /// Every n-gram of the pool that counts, with its place in the output.
    fn dictionary<'p, T: Hash + Eq>(&self, pool: &'p [T]) -> Result<HashMap<Vec<&'p T>, usize>, OpError> {
        let mut grams = HashMap::new();
        let mut ids = self.indices.iter();
        for (index, &start) in self.starts.iter().enumerate() {
            let size = index + 1;
            let end = self.starts.get(index + 1).copied().unwrap_or(pool.len());
            let part = pool.get(start..end);
            let part =
                part.ok_or_else(|| OpError::invalid(format!("ngram_counts {:?} leaves the pool", self.starts)))?;
            for gram in part.chunks_exact(size) {
                let id = ids.next().ok_or_else(|| OpError::invalid("ngram_indexes has fewer entries than the pool"))?;
                if (self.shortest..=self.longest).contains(&size) {
                    grams.insert(gram.iter().collect(), *id);
                }
            }
        }
        Ok(grams)
    }
}

fn infer(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let outputs = Dim::from(Form::read(call)?.outputs);
    Ok(smallvec![match inputs.first().copied().flatten().and_then(|x| x.shape.as_ref()) {
        Some(shape) if shape.len() == 2 => Fact::tensor(DType::F32, [shape[0].clone(), outputs]),
        Some(_) => Fact::tensor(DType::F32, [outputs]),
        None => Fact::of_dtype(Some(DType::F32)),
    }])
}

fn cases() -> Vec<Case> {
    let case = |name, mode: &str, skips: i64| {
        Case::new(name, &OPERATOR, 9)
            .attribute("mode", Attribute::String(mode.into()))
            .attribute("min_gram_length", Attribute::Int(1))
            .attribute("max_gram_length", Attribute::Int(2))
            .attribute("max_skip_count", Attribute::Int(skips))
            .attribute("ngram_counts", Attribute::Ints(vec![0, 2]))
            .attribute("ngram_indexes", Attribute::Ints(vec![1, 0, 2]))
            .attribute("pool_int64s", Attribute::Ints(vec![7, 8, 7, 8]))
            .attribute("weights", Attribute::Floats(vec![10.0, 20.0, 0.5]))
            .input(tensor(&[4], &[7i64, 9, 8, 7]))
    };
    vec![
        case("single elements", "TF", 0).output(tensor(&[3], &[1.0f32, 2.0, 0.0])),
        case("pairs with a gap, weighed", "TFIDF", 1).output(tensor(&[3], &[20.0f32, 20.0, 0.5])),
    ]
}
