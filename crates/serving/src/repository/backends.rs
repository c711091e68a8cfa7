//! Which backend runs a model.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::load::Loader;
use crate::{
    backend::Backend,
    config::{self, ModelConfig, proto::ModelParameter},
    error::Error,
};

/// The backend of Python models, which also runs the models of Python-based backends.
const PYTHON: &str = "python";

/// What a Python-based backend is: one `model.py` for all its models.
const SCRIPT: &str = "model.py";

/// The parameter that names a model's environment.
const EXECUTION_ENV_PATH: &str = "EXECUTION_ENV_PATH";

/// The environment of a Python-based backend, for models that name none.
const SHARED_ENVIRONMENT: &str = "pb_exec_env_model.py.tar.gz";

/// The backend of a model.
pub(super) struct Found<'a> {
    pub backend: &'a Arc<dyn Backend>,
    /// Whose settings count.
    pub name: &'a str,
    /// The folder of a Python-based backend.
    pub directory: Option<PathBuf>,
}

impl Loader {
    /// The backend of a model: one that is built in, or else one whose script lies in the folder of backends, which the
    /// configuration then says.
    pub(super) fn backend_of(&self, config: &mut ModelConfig) -> Result<Found<'_>, Error> {
        let name = config.backend.as_str();
        if name.is_empty() {
            return Err(Error::invalid(format!("unknown platform '{}'", config.platform)));
        }
        if config.runtime != SCRIPT
            && let Some((name, backend)) = self.backends.get_key_value(name)
        {
            config::check_runtime(config)?;
            return Ok(Found { backend, name, directory: None });
        }
        let directory = self.script_directory(config)?;
        let Some((name, backend)) = self.backends.get_key_value(PYTHON) else {
            return Err(Error::unsupported("this server has no backend for Python models"));
        };
        config.runtime = SCRIPT.to_owned();
        let environment = directory.join(SHARED_ENVIRONMENT);
        if environment.exists() {
            let parameter = || ModelParameter { string_value: environment.to_string_lossy().into_owned() };
            config.parameters.entry(EXECUTION_ENV_PATH.to_owned()).or_insert_with(parameter);
        }
        Ok(Found { backend, name, directory: Some(directory) })
    }

    /// The folder of a Python-based backend.
    fn script_directory(&self, config: &ModelConfig) -> Result<PathBuf, Error> {
        let ModelConfig { name: model, backend, runtime, .. } = config;
        let all = self.options.backend_directory.as_path();
        if backend.contains(['/', '\0']) || backend == "." || backend == ".." {
            return Err(Error::invalid(format!(
                "backend library name '{backend}' escapes backend directory '{}', for model '{model}', check model config \
                 backend field",
                all.display()
            )));
        }
        let directory = all.join(backend);
        let script = directory.join(SCRIPT);
        if runtime == SCRIPT {
            return match script.exists() {
                true => Ok(directory),
                false => Err(Error::invalid(format!(
                    "unable to find Python backend based backend library '{runtime}' for model '{model}', searched: '{}'",
                    script.display()
                ))),
            };
        }
        config::check_runtime(config)?;
        self.refuse_library(config, &directory)?;
        if script.exists() {
            return Ok(directory);
        }
        let known: Vec<&str> = self.backends.keys().map(String::as_str).collect();
        Err(Error::invalid(format!(
            "unable to find backend library for backend '{backend}', try specifying runtime on the model configuration. \
             Backends of this server: {}; Python-based ones are looked for in '{}'",
            known.join(", "),
            all.display()
        )))
    }

    fn refuse_library(&self, config: &ModelConfig, directory: &Path) -> Result<(), Error> {
        let ModelConfig { name: model, backend, .. } = config;
        let library = directory.join(format!("libtriton_{backend}.so"));
        if !library.exists() {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "the backend '{backend}' of model '{model}' is the library '{}', which this server does not load: its backends \
             are built in or Python-based",
            library.display()
        )))
    }
}
