//! Names of classes, one per line of a file.

use std::{fs, path::Path};

use crate::{error::Error, paths::is_inside};

/// The lines of the label file `file` in the model's directory.
///
/// # Errors
/// The file is not there, or outside the directory.
pub(crate) fn read_labels(directory: &Path, file: &str, output: &str, model: &str) -> Result<Vec<String>, Error> {
    let path = directory.join(file);
    if !is_inside(file) {
        return Err(Error::unsupported(format!(
            "label file path '{}' for output '{output}' in model '{model}' is outside model directory",
            path.display()
        )));
    }
    let text = fs::read(&path)
        .map_err(|error| Error::internal(format!("unable to open label file {}: {error}", path.display())))?;
    Ok(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect())
}
