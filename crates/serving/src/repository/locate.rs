//! What of a model's folder is served, for those who run it without a server.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use super::{files::ModelFiles, load::ONNX_RUNTIME};
use crate::{
    config::{self, ModelConfig},
    error::Error,
    paths::is_inside_above,
};

/// The file of a model whose configuration names none.
const MODEL_FILE: &str = "model.onnx";

/// What a server answers with, of a model's folder in a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Served {
    /// An ONNX file: of the newest version that the version policy selects, the file that `default_model_filename` names. It need
    /// not be there.
    Onnx(PathBuf),
    /// Other models.
    Ensemble,
    /// What another backend of that name reads.
    Backend(String),
}

/// What a server answers with, of a model's folder in a repository. `None` where `directory` is no such folder: it has no
/// version, or nothing says what its versions hold.
///
/// # Errors
/// The configuration cannot be read, or names a file outside of the folder.
pub fn served(directory: &Path) -> Result<Option<Served>, Error> {
    if !directory.is_dir() {
        return Ok(None);
    }
    // The name of `.`, too.
    let full = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let name = full.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let files = ModelFiles::Directory(directory.to_owned());
    let version_files = files.version_files()?;
    if version_files.0.is_none() {
        return Ok(None);
    }
    let written = files.read_config("", true)?;
    let is_written = written.is_some();
    let mut config = match written {
        Some((text, path)) => config::parse(&text, &path)?,
        None => ModelConfig::default(),
    };
    match config::complete_backend(&mut config, &name, &version_files) {
        Ok(()) => {}
        Err(error) if is_written => return Err(error),
        Err(_) => return Ok(None),
    }
    config::normalize(&mut config);
    if config.is_ensemble() {
        return Ok(Some(Served::Ensemble));
    }
    if config.backend != ONNX_RUNTIME {
        return Ok(Some(Served::Backend(config.backend)));
    }
    let file = Some(config.default_model_filename.as_str()).filter(|file| !file.is_empty()).unwrap_or(MODEL_FILE);
    check_inside(file, &name)?;
    let version = files.versions(&config)?.pop().ok_or_else(|| no_version(&name))?;
    Ok(Some(Served::Onnx(directory.join(version.to_string()).join(file))))
}

/// What is wrong with a model of which no version is selected.
pub(super) fn no_version(model: impl fmt::Display) -> Error {
    Error::invalid(format!("at least one version must be available under the version policy of model '{model}'"))
}

/// Refuses a file outside of the model's folder. The version's folder lies in the model's, where versions may share a
/// file.
pub(super) fn check_inside(file: &str, model: &str) -> Result<(), Error> {
    match is_inside_above(file, 1) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "default_model_filename '{file}' of model '{model}' is outside the model's directory"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Files;

    /// The file of the model `m`, below its folder, or what else it is; what is wrong where there is none.
    fn file(files: &Files) -> Result<Option<String>, String> {
        let directory = files.path().join("m");
        let found = served(&directory).map_err(|error| error.message)?;
        Ok(found.map(|found| match found {
            Served::Onnx(file) => file.strip_prefix(&directory).unwrap().display().to_string(),
            Served::Ensemble => "an ensemble".to_owned(),
            Served::Backend(backend) => format!("of {backend}"),
        }))
    }

    #[test]
    fn it_is_what_the_configuration_names() {
        let files = Files::new();
        files.write("m/1/model.onnx", "").write("m/3/net.onnx", "").write("m/x/model.onnx", "");
        assert_eq!(file(&files), Ok(Some("3/model.onnx".to_owned())));
        for (config, expected) in [
            ("backend: 'onnxruntime' default_model_filename: 'net.onnx'", "3/net.onnx"),
            ("backend: 'onnxruntime' default_model_filename: '../net.onnx'", "3/../net.onnx"),
            ("platform: 'onnxruntime_onnx' version_policy { specific { versions: [ 1 ] } }", "1/model.onnx"),
            ("backend: 'python'", "of python"),
            ("platform: 'tensorrt_plan'", "of tensorrt"),
            ("platform: 'ensemble' ensemble_scheduling { step { } }", "an ensemble"),
            ("backend: 'onnxruntime' version_policy { all { } }", "3/model.onnx"),
        ] {
            files.write("m/config.pbtxt", config);
            assert_eq!(file(&files), Ok(Some(expected.to_owned())), "{config}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let files = Files::new();
        files.write("m/1/.keep", "");
        for (config, expected) in [
            ("backend: 'onnxruntime' default_model_filename: '../../n.onnx'", "outside the model's directory"),
            ("max_batch_sise: 1", "max_batch_sise"),
            ("backend: 'onnxruntime' version_policy { specific { versions: [ 9 ] } }", "at least one version"),
        ] {
            files.write("m/config.pbtxt", config);
            let error = file(&files).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn other_folders_are_none() {
        let files = Files::new();
        files.write("m/model.onnx", "");
        assert_eq!(file(&files), Ok(None));
        files.write("m/1/notes.txt", "");
        assert_eq!(file(&files), Ok(None), "nothing says what its version holds");
        assert_eq!(served(&files.path().join("m/model.onnx")), Ok(None));
    }
}
