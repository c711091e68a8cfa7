//! Models: import, passes, compilation, and a run with limits.

use std::cell::Cell;

use halimede_compute::{ComputeUnit, Model, ModelOptions};
use halimede_graph::{
    Dim, Fact,
    onnx::import::{self, Input, ValueType},
};
use halimede_tensor::{Buffer, DType, Tensor, Value};

/// Steps and iterations after which a run is given up.
const STEPS_MAX: u32 = 2_000;

/// Largest input that a model is given.
const INPUT_BYTES_MAX: usize = 1 << 16;

/// What a size is that the model leaves open.
const OPEN_SIZE: usize = 2;

/// Reads, compiles and runs the model in `bytes`.
pub(super) fn run(unit: &dyn ComputeUnit, bytes: &[u8]) -> bool {
    let Ok(model) = import::from_bytes(bytes.to_vec(), None, &import::Options::default()) else { return false };
    let Some(inputs) = model.inputs.iter().map(input).collect::<Option<Vec<Value>>>() else { return false };
    let Ok(model) = Model::compile(model.graph, unit, &ModelOptions::default()) else { return false };
    let mut session = model.session();
    // Twice: the second run finds its plan made.
    for _ in 0..2 {
        let steps = Cell::new(0);
        let is_enough = || steps.replace(steps.get() + 1) > STEPS_MAX;
        if session.run_watched(&inputs, &is_enough).is_err() {
            return false;
        }
        // A model may give back what cannot be taken out as a tensor.
        let _ = session.take_outputs();
    }
    true
}

/// A value that the input takes; `None` where it would be too large.
fn input(input: &Input) -> Option<Value> {
    match &input.value_type {
        ValueType::Tensor => tensor(&input.fact).map(Value::Tensor),
        ValueType::Sequence(_) => {
            let element = Fact { shape: None, ..input.fact.clone() };
            Some(Value::Sequence(vec![tensor(&element)?.into()]))
        }
        ValueType::Optional(_) => Some(Value::Optional(None)),
        ValueType::Map => None,
    }
}

fn tensor(fact: &Fact) -> Option<Tensor> {
    let dtype = fact.dtype.unwrap_or(DType::F32);
    let size = |dim: &Dim| dim.size().unwrap_or(OPEN_SIZE);
    let shape: Vec<usize> = fact.shape.iter().flatten().map(size).collect();
    let count = shape.iter().try_fold(1usize, |count, dim| count.checked_mul(*dim))?;
    if count.checked_mul(dtype.size().max(1))? > INPUT_BYTES_MAX {
        return None;
    }
    if dtype == DType::String {
        let strings = (0..count).map(|index| format!("{index} a").into_bytes()).collect();
        return Tensor::from_strings(&shape, strings).ok();
    }
    let bytes: Vec<u8> = match dtype {
        DType::F32 => (0..count).flat_map(|index| (index as f32 / 2.0 - 1.0).to_le_bytes()).collect(),
        DType::I64 => (0..count).flat_map(|index| (index as i64 % 3).to_le_bytes()).collect(),
        _ => (0..count * dtype.size()).map(|index| u8::from(index % 3 == 0)).collect(),
    };
    Tensor::from_buffer(dtype, &shape, Buffer::copied(&bytes).ok()?).ok()
}
