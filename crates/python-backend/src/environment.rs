//! Which interpreter runs a model.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use halimede_serving::{Error, backend::ModelContext};

/// The setting of the server: `--backend-config=python,interpreter=FILE`.
const INTERPRETER: &str = "interpreter";

/// The parameter of a configuration: a folder with `bin/python`, or the interpreter itself.
const EXECUTION_ENV_PATH: &str = "EXECUTION_ENV_PATH";

/// Stands for the model's directory in that parameter.
const MODEL_DIRECTORY: &str = "$$TRITON_MODEL_DIRECTORY";

/// The interpreter of `PATH`.
const DEFAULT: &str = "python3";

/// An interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Environment {
    /// The program to start.
    pub interpreter: PathBuf,
    /// The environment's programs, which come first in `PATH`.
    pub programs: Option<PathBuf>,
}

impl Environment {
    /// The interpreter of a model.
    ///
    /// # Errors
    /// The configuration names one that is not there, or an archive.
    pub fn of(context: &ModelContext) -> Result<Self, Error> {
        if let Some(parameter) = context.config.parameters.get(EXECUTION_ENV_PATH) {
            let directory = context.directory.to_string_lossy();
            return Self::at(&parameter.string_value.replace(MODEL_DIRECTORY, &directory), &context.config.name);
        }
        let interpreter = context.settings.get(INTERPRETER).map_or(DEFAULT, String::as_str);
        Ok(Self { interpreter: PathBuf::from(interpreter), programs: None })
    }

    fn at(path: &str, model: &str) -> Result<Self, Error> {
        if [".tar.gz", ".tgz", ".tar", ".zip"].iter().any(|end| path.ends_with(end)) {
            return Err(Error::unsupported(format!(
                "{EXECUTION_ENV_PATH} of model '{model}' is an archive, which is not unpacked: unpack '{path}' and name \
                 the folder"
            )));
        }
        let path = Path::new(path);
        if path.is_file() {
            return Ok(Self { interpreter: path.to_path_buf(), programs: path.parent().map(Path::to_path_buf) });
        }
        let programs = path.join("bin");
        let mut interpreters = ["python3", "python"].iter().map(|name| programs.join(name));
        match interpreters.find(|interpreter| interpreter.is_file()) {
            Some(interpreter) => Ok(Self { interpreter, programs: Some(programs) }),
            None => Err(Error::internal(format!(
                "{EXECUTION_ENV_PATH} of model '{model}': there is no bin/python3 in '{}'",
                path.display()
            ))),
        }
    }

    /// The value of `PATH` for the process; `None` leaves it as it is.
    pub fn path(&self) -> Option<OsString> {
        let programs = self.programs.clone()?;
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(programs).chain(std::env::split_paths(&inherited));
        std::env::join_paths(all).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use halimede_serving::config::{self, ModelConfig, proto::ModelParameter};

    use super::*;

    fn context(parameter: Option<&str>, setting: Option<&str>, directory: &Path) -> ModelContext {
        let mut config = ModelConfig { name: "m".into(), ..ModelConfig::default() };
        if let Some(value) = parameter {
            let value = ModelParameter { string_value: value.into() };
            config.parameters.insert(EXECUTION_ENV_PATH.into(), value);
        }
        let settings = setting.map(|value| (INTERPRETER.to_owned(), value.to_owned()));
        ModelContext {
            config,
            options: config::Options::default(),
            directory: directory.to_path_buf(),
            version: 1,
            settings: BTreeMap::from_iter(settings),
            peers: Default::default(),
            metrics: Default::default(),
        }
    }

    #[test]
    fn the_model_decides_before_the_server() {
        let directory = std::env::temp_dir().join(format!("halimede-environment-{}", std::process::id()));
        let programs = directory.join("env/bin");
        fs::create_dir_all(&programs).unwrap();
        fs::write(programs.join("python"), "").unwrap();
        let of = |parameter, setting| Environment::of(&context(parameter, setting, &directory));
        assert_eq!(of(None, None).unwrap().interpreter, Path::new("python3"));
        assert_eq!(of(None, Some("/usr/bin/python3.12")).unwrap().interpreter, Path::new("/usr/bin/python3.12"));
        let folder = of(Some("$$TRITON_MODEL_DIRECTORY/env"), Some("/other")).unwrap();
        assert_eq!((&folder.interpreter, &folder.programs), (&programs.join("python"), &Some(programs.clone())));
        assert!(folder.path().unwrap().to_string_lossy().starts_with(&*programs.to_string_lossy()));
        let file = of(Some("$$TRITON_MODEL_DIRECTORY/env/bin/python"), None).unwrap();
        assert_eq!(file.interpreter, programs.join("python"));
        assert!(of(Some("/no/such/place"), None).unwrap_err().message.contains("there is no bin/python3 in"));
        assert!(of(Some("env.tar.gz"), None).unwrap_err().message.contains("unpack 'env.tar.gz'"));
        fs::remove_dir_all(&directory).unwrap();
    }
}
