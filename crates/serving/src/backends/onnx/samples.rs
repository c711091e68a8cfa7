//! Inputs that stand for those of requests, from a folder beside the model.

use crate::{error::Error, paths::is_inside};
use halimede_graph::onnx::import::Input;
use halimede_tensor::{Tensor, Value, npy};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The inputs in the `.npz` files of `folder`, a path inside of `directory`; each file holds one array per input. What
/// holds NaN is told and left out: it makes most models answer NaN, which compares with nothing. Infinities stay, as masks
/// have them.
///
/// # Errors
/// The folder lies elsewhere, cannot be read or has no such file, or a file lacks an input.
pub(super) fn read(directory: &Path, folder: &str, inputs: &[Input]) -> Result<Vec<Vec<Value>>, Error> {
    if !is_inside(folder) {
        return Err(Error::invalid(format!("parameter 'calibration': '{folder}' is not inside of the model's folder")));
    }
    let folder = directory.join(folder);
    let failed = |path: &Path, reason: &dyn std::fmt::Display| {
        Error::invalid(format!("parameter 'calibration': {}: {reason}", path.display()))
    };
    let files = npy::files(&folder).map_err(|error| failed(&folder, &error))?;
    let sample = |file: &PathBuf| {
        let bytes = fs::read(file).map_err(|error| failed(file, &error))?;
        let arrays = npy::read_all(&bytes).map_err(|error| failed(file, &error))?;
        let values = inputs.iter().map(|input| value(&arrays, input).map_err(|reason| failed(file, &reason)));
        let values: Vec<Value> = values.collect::<Result<_, Error>>()?;
        let no_number = inputs.iter().find(|input| arrays.get(&input.name).is_some_and(has_nan));
        if let Some(Input { name, .. }) = no_number {
            tracing::warn!("parameter 'calibration': {}: array '{name}' holds NaN: left out", file.display());
        }
        Ok(no_number.is_none().then_some(values))
    };
    let samples = files.iter().filter_map(|file| sample(file).transpose()).collect::<Result<Vec<_>, Error>>()?;
    if samples.is_empty() {
        tracing::warn!("parameter 'calibration': {}: no sample is left, inputs are made up", folder.display());
    }
    Ok(samples)
}

fn has_nan(tensor: &Tensor) -> bool {
    tensor.dtype().is_float() && tensor.to_f64s().is_ok_and(|numbers| numbers.iter().any(|number| number.is_nan()))
}

fn value(arrays: &BTreeMap<String, Tensor>, input: &Input) -> Result<Value, String> {
    let name = &input.name;
    let tensor = arrays.get(name).or(input.default.as_ref()).ok_or_else(|| format!("no array '{name}'"))?;
    match input.fact.dtype {
        Some(dtype) if dtype != tensor.dtype() => {
            Err(format!("array '{name}' is of {}; the model takes {dtype}", tensor.dtype()))
        }
        _ => Ok(tensor.clone().into()),
    }
}
