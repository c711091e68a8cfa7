//! Inputs that stand for those of requests, from a folder beside the model.

use crate::{error::Error, paths::is_inside};
use halimede_graph::onnx::import::Input;
use halimede_tensor::{Tensor, Value, npy};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The inputs in the `.npz` files of `folder`, a path inside of `directory`; each file holds one array per input.
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
        inputs.iter().map(|input| value(&arrays, input).map_err(|reason| failed(file, &reason))).collect()
    };
    files.iter().map(sample).collect()
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
