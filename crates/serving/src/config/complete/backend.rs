//! Platform, backend and file name from the files of a version directory and from the model's name
//! (`AutoCompleteBackendFields`).

use std::{fs, io, path::Path};

use super::super::proto::ModelConfig;
use crate::Error;

/// One entry of a version directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// File name without directories.
    pub name: String,
    /// Whether the entry is a directory. A large ONNX model may be one.
    pub is_directory: bool,
}

/// The content of the version directory that decides, or nothing where a model has no version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VersionFiles(pub Option<Vec<Entry>>);

impl VersionFiles {
    /// Reads the first version directory (by name) under the directory of a model. Directories whose
    /// name is no positive integer hold no version.
    pub fn read(model_directory: &Path) -> io::Result<Self> {
        Self::of(&read_entries(model_directory)?, |first| read_entries(&model_directory.join(first)))
    }

    /// The same of a directory with these entries; `inside` gives those of one of them.
    pub fn of(entries: &[Entry], inside: impl FnOnce(&str) -> io::Result<Vec<Entry>>) -> io::Result<Self> {
        let versions = entries
            .iter()
            .filter(|entry| entry.is_directory && entry.name.parse::<u64>().is_ok_and(|version| version > 0));
        let Some(first) = versions.map(|entry| &entry.name).min() else {
            return Ok(Self(None));
        };
        inside(first).map(|entries| Self(Some(entries)))
    }

    /// Whether there is an entry `name`, and whether it is a directory.
    fn find(&self, name: &str) -> Option<bool> {
        self.0.iter().flatten().find(|entry| entry.name == name).map(|entry| entry.is_directory)
    }
}

fn read_entries(directory: &Path) -> io::Result<Vec<Entry>> {
    fs::read_dir(directory)?
        .map(|entry| {
            let entry = entry?;
            Ok(Entry {
                name: entry.file_name().to_string_lossy().into_owned(),
                // Follows symbolic links; what cannot be followed is no directory.
                is_directory: entry.path().is_dir(),
            })
        })
        .collect()
}

/// How a backend is recognised and what it fills in.
struct Rule {
    backend: &'static str,
    /// File or directory looked for, and the default model file name.
    file: &'static str,
    /// Platforms that select the backend; the first is filled in where it is not empty.
    platforms: &'static [&'static str],
    accepts: Accepts,
}

/// What `Rule::file` may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Accepts {
    File,
    Directory,
    Either,
}

/// In the order in which Triton tries them.
const RULES: [Rule; 8] = [
    Rule {
        backend: "tensorflow",
        file: "model.savedmodel",
        platforms: &["tensorflow_savedmodel"],
        accepts: Accepts::Directory,
    },
    Rule { backend: "tensorflow", file: "model.graphdef", platforms: &["tensorflow_graphdef"], accepts: Accepts::File },
    Rule { backend: "tensorrt", file: "model.plan", platforms: &["tensorrt_plan"], accepts: Accepts::File },
    Rule { backend: "onnxruntime", file: "model.onnx", platforms: &["onnxruntime_onnx"], accepts: Accepts::Either },
    Rule { backend: "openvino", file: "model.xml", platforms: &[], accepts: Accepts::Either },
    Rule { backend: "pytorch", file: "model.pt", platforms: &["pytorch_libtorch", "libtorch"], accepts: Accepts::File },
    Rule { backend: "pytorch", file: "model.pt2", platforms: &["torch_aoti"], accepts: Accepts::File },
    Rule { backend: "python", file: "model.py", platforms: &[], accepts: Accepts::Either },
];

impl Rule {
    /// The rule that the configuration names or, where it names none, that the files fit.
    fn select(config: &ModelConfig, files: &VersionFiles) -> Option<&'static Rule> {
        let is_open = config.platform.is_empty() && config.default_model_filename.is_empty();
        let candidates = || RULES.iter().filter(|rule| config.backend.is_empty() || rule.backend == config.backend);
        let named = candidates().find(|rule| rule.platforms.contains(&config.platform.as_str()));
        named
            .or_else(|| candidates().find(|rule| rule.file == config.default_model_filename))
            .or_else(|| candidates().find(|rule| is_open && rule.is_found(files)))
            .or_else(|| {
                // A backend alone is enough: its first rule applies.
                let fits = |rule: &&Rule| config.platform.is_empty() || rule.platforms.is_empty();
                candidates().find(|_| !config.backend.is_empty()).filter(fits)
            })
    }

    fn is_found(&self, files: &VersionFiles) -> bool {
        files.find(self.file).is_some_and(|is_directory| match self.accepts {
            Accepts::Either => true,
            Accepts::File => !is_directory,
            Accepts::Directory => is_directory,
        })
    }
}

/// Fills name, platform, backend and model file name where they are missing.
///
/// # Errors
/// Nothing says which backend the model is for.
pub fn complete_backend(config: &mut ModelConfig, model: &str, files: &VersionFiles) -> Result<(), Error> {
    if config.name.is_empty() {
        model.clone_into(&mut config.name);
    }
    if let Some(rule) = Rule::select(config, files) {
        for (field, value) in [
            (&mut config.backend, rule.backend),
            (&mut config.default_model_filename, rule.file),
            (&mut config.platform, rule.platforms.first().copied().unwrap_or_default()),
        ] {
            if field.is_empty() {
                value.clone_into(field);
            }
        }
        return Ok(());
    }
    // A backend of which nothing is known but the name, and an ensemble, need no completion.
    if config.backend.is_empty() && config.platform.is_empty() && config.default_model_filename.is_empty() {
        let Some((_, backend)) = model.split_once('.') else {
            invalid!(
                "Invalid model name: Could not determine backend for model '{model}' with no backend in model \
                 configuration. Expected model name of the form 'model.<backend_name>'."
            );
        };
        backend.clone_into(&mut config.backend);
        config.default_model_filename = format!("model.{backend}");
    }
    Ok(())
}
