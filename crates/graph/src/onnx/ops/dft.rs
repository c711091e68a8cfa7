use super::common::{Complex, Transform, evaluate_by_lowering, fft, one, resolve_axis, room};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Call, Contract, Facts, Labels, Op, Slice};
use crate::{Builder, Dim, Fact, OpError};
use halimede_tensor::{Tensor, Value};
use smallvec::smallvec;

/// Discrete Fourier transform along an axis of numbers that are real (`[..., 1]`) or complex
/// (`[..., 2]`) (ONNX DFT, opset 20; `axis` was an attribute in 17).
pub static OPERATOR: Operator = Operator::new("DFT").lower(lower).evaluate(evaluate).infer(infer).cases(cases);

/// Longest transform that is written as a product with its matrix.
const MATRIX_LENGTH_MAX: usize = 1024;

/// What a node asks for, with numbers.
struct Form {
    axis: usize,
    transform: Transform,
    /// N.
    length: usize,
    /// Elements of the axis that are read; the rest of N counts as zero.
    rows: usize,
    /// Elements of the axis in the output.
    bins: usize,
    /// 1 for real, 2 for complex.
    parts: usize,
}

impl Form {
    fn new(call: &Call, shape: &[Dim], axis: i64, length: Option<i64>) -> Result<Option<Form>, OpError> {
        if shape.len() < 2 {
            return Err(OpError::invalid(format!("the input has {} dimensions; DFT needs two", shape.len())));
        }
        let axis = resolve_axis(axis, shape.len())?;
        if axis == shape.len() - 1 {
            return Err(OpError::invalid(format!(
                "axis {axis} holds the parts of the numbers and cannot be transformed"
            )));
        }
        let (Some(size), Some(parts)) = (shape[axis].size(), shape[shape.len() - 1].size()) else { return Ok(None) };
        if parts != 1 && parts != 2 {
            return Err(OpError::invalid(format!("the last axis holds {parts} numbers instead of 1 or 2")));
        }
        let one_sided = call.attributes.flag_or("onesided", false)?;
        let transform = match (call.attributes.flag_or("inverse", false)?, one_sided) {
            (false, _) => Transform::Forward,
            (true, false) => Transform::Inverse,
            (true, true) => Transform::RealInverse,
        };
        let length = match length {
            Some(length) => usize::try_from(length).ok().filter(|&length| length > 0).ok_or_else(|| {
                OpError::invalid(format!("the length of the transform is {length}; it must be positive"))
            })?,
            None if transform == Transform::RealInverse => 2 * size.saturating_sub(1),
            None => size,
        };
        let half = length / 2 + 1;
        let rows = size.min(if transform == Transform::RealInverse { half } else { length });
        let bins = if transform == Transform::Forward && one_sided { half } else { length };
        Ok(Some(Form { axis, transform, length, rows, bins, parts }))
    }
}

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let call = Call::new(&OPERATOR, node.opset, node.attributes.clone(), vec![true]);
    let x = node.input(0)?;
    let integer = |index: usize, b: &Builder| node.optional(index).map(|value| b.fact(value).ints());
    let (length, axis) = (integer(1, b), integer(2, b));
    if length == Some(None) || axis == Some(None) {
        return Ok(None);
    }
    let first = |list: Option<Option<Vec<i64>>>| list.flatten().and_then(|list| list.first().copied());
    let Some(shape) = b.fact(x).shape.clone() else { return Ok(None) };
    let axis = first(axis).map_or_else(|| default_axis(&call), Ok)?;
    let Some(form) = Form::new(&call, &shape, axis, first(length))? else { return Ok(None) };
    if form.length > MATRIX_LENGTH_MAX || form.length == 0 {
        return Ok(None);
    }
    let x = if shape[form.axis] == Dim::from(form.rows) {
        x
    } else {
        let (start, end, axis) = (b.ints(&[0]), b.ints(&[form.rows as i64]), b.ints(&[form.axis as i64]));
        b.add(Op::Slice(Slice), &[x, start, end, axis])?
    };
    let matrix = form.transform.matrix(form.rows, form.parts, form.bins, form.length);
    let dims = [form.rows, form.parts, form.bins, form.transform.outputs()];
    let matrix = Tensor::from_f64s(b.dtype(x)?, &dims, &matrix)?;
    let matrix = b.constant(matrix);
    let last = shape.len() - 1;
    let lhs: Labels = (0..=last as u8).collect();
    let (bin, output) = (last as u8 + 1, last as u8 + 2);
    let rhs = smallvec![form.axis as u8, last as u8, bin, output];
    let mut out = lhs.clone();
    out[form.axis] = bin;
    out[last] = output;
    one(b.add(Op::Contract(Contract::new(lhs, rhs, out)), &[x, matrix])?)
}

fn default_axis(call: &Call) -> Result<i64, OpError> {
    call.attributes.int_or("axis", if call.opset < 20 { 1 } else { -2 })
}

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let integer = |index: usize| -> Result<Option<i64>, OpError> {
        let Some(Some(value)) = inputs.get(index) else { return Ok(None) };
        Ok(value.tensor()?.to_i64s()?.first().copied())
    };
    let Some(Some(x)) = inputs.first() else { return Err(OpError::invalid("input 0 is missing")) };
    let x = x.tensor()?;
    let shape: Vec<Dim> = x.shape().iter().map(|&size| Dim::from(size)).collect();
    let axis = integer(2)?.map_or_else(|| default_axis(call), Ok)?;
    let form = Form::new(call, &shape, axis, integer(1)?)?.ok_or_else(|| OpError::invalid("unknown shape"))?;
    if form.length <= MATRIX_LENGTH_MAX && form.length > 0 {
        return evaluate_by_lowering(call, inputs);
    }
    let size = x.shape()[form.axis];
    let inner: usize = x.shape()[form.axis + 1..x.rank() - 1].iter().product();
    let outer: usize = x.shape()[..form.axis].iter().product();
    let numbers = x.to_f64s()?;
    let outputs = form.transform.outputs();
    // No fewer than what is written: `bins` is at most `length` + 1.
    room(&[outer, form.length + 1, inner, 2])?;
    let mut out = vec![0.0; outer * form.bins * inner * outputs];
    for line in 0..outer * inner {
        let (before, after) = (line / inner, line % inner);
        let mut signal: Vec<Complex> = vec![[0.0; 2]; form.length];
        for row in 0..form.rows {
            let at = ((before * size + row) * inner + after) * form.parts;
            signal[row] = [numbers[at], if form.parts == 2 { numbers[at + 1] } else { 0.0 }];
        }
        if form.transform == Transform::RealInverse {
            // The other half mirrors the first.
            for row in 1..form.length.div_ceil(2) {
                let [re, im] = signal[row];
                signal[form.length - row] = [re, -im];
            }
        }
        let inverse = form.transform != Transform::Forward;
        let scale = if inverse { 1.0 / form.length as f64 } else { 1.0 };
        for (bin, number) in fft(&signal, inverse).into_iter().take(form.bins).enumerate() {
            let at = ((before * form.bins + bin) * inner + after) * outputs;
            for output in 0..outputs {
                out[at + output] = number[output] * scale;
            }
        }
    }
    let mut shape = x.shape().to_vec();
    shape[form.axis] = form.bins;
    shape[x.rank() - 1] = outputs;
    Ok(vec![Tensor::from_f64s(x.dtype(), &shape, &out)?.into()])
}

fn infer(_call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let [Some(x), ..] = inputs else { return Ok(Facts::new()) };
    Ok(smallvec![match (x.dtype, x.rank()) {
        (Some(dtype), Some(rank)) => Fact::tensor(dtype, vec![Dim::unknown(); rank]),
        (dtype, _) => Fact::of_dtype(dtype),
    }])
}

fn cases() -> Vec<Case> {
    let long = tensor(&[1, 2048, 1], &{
        let mut signal = [0.0f32; 2048];
        signal[0] = 1.0;
        signal
    });
    vec![
        Case::new("one-sided", &OPERATOR, 20)
            .attribute("onesided", Attribute::Int(1))
            .input(tensor(&[1, 4, 1], &[1.0f32, 2.0, 3.0, 4.0]))
            .output(tensor(&[1, 3, 2], &[10.0f32, 0.0, -2.0, 2.0, -2.0, 0.0])),
        Case::new("inverse, axis as attribute", &OPERATOR, 17)
            .attribute("inverse", Attribute::Int(1))
            .attribute("axis", Attribute::Int(0))
            .input(tensor(&[2, 2], &[3.0f32, 0.0, -1.0, 0.0]))
            .output(tensor(&[2, 2], &[1.0f32, 0.0, 2.0, 0.0])),
        Case::new("a long one", &OPERATOR, 20).input(long).output(tensor(
            &[1, 2048, 2],
            &std::array::from_fn::<f32, 4096, _>(|i| if i % 2 == 0 { 1.0 } else { 0.0 }),
        )),
    ]
}
