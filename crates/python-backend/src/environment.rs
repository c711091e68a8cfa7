//! Which interpreter runs a model.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use halimede_serving::{Error, backend::ModelContext};
use parking_lot::Mutex;

use crate::{
    archive::{self, Format},
    files::Directory,
};

/// The setting of the server: `--backend-config=python,interpreter=FILE`.
const INTERPRETER: &str = "interpreter";

/// The parameter of a configuration: an archive of an environment, a folder with `bin/python3`, or the interpreter
/// itself.
const EXECUTION_ENV_PATH: &str = "EXECUTION_ENV_PATH";

/// Stands for the model's directory in that parameter.
const MODEL_DIRECTORY: &str = "$$TRITON_MODEL_DIRECTORY";

/// The interpreter of `PATH`.
const DEFAULT: &str = "python3";

/// Where programs look for libraries, by the way that the system has for it; macOS has none that is inherited.
const LIBRARIES: Option<&str> = if cfg!(target_os = "linux") { Some("LD_LIBRARY_PATH") } else { None };

/// An interpreter, and the environment that it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Environment {
    /// The program to start.
    pub interpreter: PathBuf,
    /// The environment's programs, which come first in `PATH`.
    programs: Option<PathBuf>,
    /// The environment's folder, where one is named.
    root: Option<PathBuf>,
    /// Keeps what was unpacked for it.
    _unpacked: Option<Arc<Unpacked>>,
}

impl Environment {
    /// The interpreter of a model.
    ///
    /// # Errors
    /// The configuration names one that is not there, or an archive that cannot be unpacked.
    pub fn of(context: &ModelContext, archives: &Archives, files: &Directory) -> Result<Self, Error> {
        if let Some(parameter) = context.config.parameters.get(EXECUTION_ENV_PATH) {
            let directory = context.directory.to_string_lossy();
            let path = parameter.string_value.replace(MODEL_DIRECTORY, &directory);
            return Self::at(Path::new(&path), &context.config.name, archives, files);
        }
        let interpreter = context.settings.get(INTERPRETER).map_or(DEFAULT, String::as_str);
        Ok(Self { interpreter: PathBuf::from(interpreter), programs: None, root: None, _unpacked: None })
    }

    fn at(path: &Path, model: &str, archives: &Archives, files: &Directory) -> Result<Self, Error> {
        let path = path
            .canonicalize()
            .map_err(|_| Error::internal(format!("Failed to get the canonical path for {}.", path.display())))?;
        if path.is_dir() {
            return Self::in_folder(path.clone(), model, &path, None);
        }
        let wrong = |error: &dyn std::fmt::Display| {
            let path = path.display();
            Error::internal(format!("{EXECUTION_ENV_PATH} of model '{model}': '{path}' cannot be unpacked: {error}"))
        };
        match Format::of(&path).map_err(|error| wrong(&error))? {
            Format::Other if is_program(&path) => {
                let programs = path.parent().map(Path::to_path_buf);
                Ok(Self { interpreter: path, programs, root: None, _unpacked: None })
            }
            Format::Other => {
                Err(wrong(&"it is no tar archive, compressed with gzip or not, and no interpreter either"))
            }
            format => {
                let unpacked = archives.unpacked(&path, format, files).map_err(|error| wrong(&error))?;
                Self::in_folder(unpacked.0.clone(), model, &path, Some(unpacked))
            }
        }
    }

    /// The environment in the folder `root`, which the configuration named by `path`.
    fn in_folder(root: PathBuf, model: &str, path: &Path, unpacked: Option<Arc<Unpacked>>) -> Result<Self, Error> {
        let programs = root.join("bin");
        let mut interpreters = ["python3", "python"].iter().map(|name| programs.join(name));
        let Some(interpreter) = interpreters.find(|interpreter| interpreter.is_file()) else {
            let path = path.display();
            return Err(Error::internal(format!(
                "{EXECUTION_ENV_PATH} of model '{model}': there is no bin/python3 in '{path}'"
            )));
        };
        Ok(Self { interpreter, programs: Some(programs), root: Some(root), _unpacked: unpacked })
    }

    /// Variables for the process, besides those of the server.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mut variables = Vec::new();
        variables.extend(self.programs.as_ref().and_then(|programs| Some(("PATH", first(programs, "PATH")?))));
        let Some(root) = &self.root else { return variables };
        let libraries = root.join("lib");
        variables.extend(LIBRARIES.and_then(|name| Some((name, first(&libraries, name)?))));
        if root.join("conda-meta").is_dir() {
            variables.push(("CONDA_PREFIX", root.clone().into_os_string()));
        }
        variables
    }
}

/// The folders of the variable `name` with `folder` before them.
fn first(folder: &Path, name: &str) -> Option<OsString> {
    let inherited = std::env::var_os(name).filter(|value| !value.is_empty());
    let inherited = inherited.iter().flat_map(std::env::split_paths);
    std::env::join_paths(std::iter::once(folder.to_path_buf()).chain(inherited)).ok()
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0)
}

/// Archives of environments that are unpacked: each once, for all models that name it.
#[derive(Debug, Default)]
pub(crate) struct Archives {
    places: Mutex<HashMap<PathBuf, Arc<Mutex<Option<Known>>>>>,
    count: AtomicU64,
}

/// An archive as it was unpacked.
#[derive(Debug)]
struct Known {
    modified: SystemTime,
    bytes: u64,
    unpacked: Arc<Unpacked>,
}

/// The folder that an archive was unpacked into; removed with its last user.
#[derive(Debug)]
struct Unpacked(PathBuf);

impl Drop for Unpacked {
    fn drop(&mut self) {
        // What cannot be removed goes with the scripts' directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Archives {
    /// The folder of an archive, which is unpacked where that was not done since it changed. It lies beside the scripts.
    fn unpacked(&self, path: &Path, format: Format, files: &Directory) -> Result<Arc<Unpacked>, archive::Failure> {
        let place = self.places.lock().entry(path.to_path_buf()).or_default().clone();
        // Who wants the same archive waits; others do not.
        let mut known = place.lock();
        let metadata = fs::metadata(path)?;
        let (modified, bytes) = (metadata.modified()?, metadata.len());
        if let Some(known) = known.as_ref().filter(|known| known.modified == modified && known.bytes == bytes) {
            return Ok(known.unpacked.clone());
        }
        tracing::info!("Extracting Python execution env {}", path.display());
        let environments = files.environments();
        match fs::create_dir(&environments) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        let target = environments.join(self.count.fetch_add(1, Relaxed).to_string());
        archive::unpack(path, format, &target)?;
        let unpacked = Arc::new(Unpacked(target));
        *known = Some(Known { modified, bytes, unpacked: unpacked.clone() });
        Ok(unpacked)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, os::unix::fs::PermissionsExt, thread};

    use halimede_serving::config::{self, ModelConfig, proto::ModelParameter};

    use super::*;
    use crate::files::Files;

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
            backend_directory: None,
            peers: Default::default(),
            metrics: Default::default(),
            admission: None,
        }
    }

    fn place(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("halimede-environment-{name}-{}", std::process::id()));
        fs::create_dir_all(directory.join("env/bin")).unwrap();
        directory.canonicalize().unwrap()
    }

    fn variable(environment: &Environment, name: &str) -> Option<String> {
        let found = environment.variables().into_iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.to_string_lossy().into_owned())
    }

    #[test]
    fn the_model_decides_before_the_server() {
        let directory = place("decides");
        let programs = directory.join("env/bin");
        let python = programs.join("python");
        fs::write(&python, "").unwrap();
        let (archives, scripts) = (Archives::default(), Files::default());
        let files = scripts.unpacked().unwrap();
        let of = |parameter, setting| Environment::of(&context(parameter, setting, &directory), &archives, &files);
        let text = |parameter| of(Some(parameter), None).unwrap_err().message;
        assert_eq!(of(None, None).unwrap().interpreter, Path::new("python3"));
        assert_eq!(of(None, Some("/usr/bin/python3.12")).unwrap().interpreter, Path::new("/usr/bin/python3.12"));
        let folder = of(Some("$$TRITON_MODEL_DIRECTORY/env"), Some("/other")).unwrap();
        assert_eq!(folder.interpreter, python);
        assert!(variable(&folder, "PATH").unwrap().starts_with(&*programs.to_string_lossy()));
        assert_eq!(variable(&folder, "CONDA_PREFIX"), None);
        fs::create_dir(directory.join("env/conda-meta")).unwrap();
        assert_eq!(variable(&folder, "CONDA_PREFIX").unwrap(), directory.join("env").to_string_lossy());
        assert!(text("$$TRITON_MODEL_DIRECTORY/env/bin/python").ends_with("no interpreter either"));
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        let file = of(Some("$$TRITON_MODEL_DIRECTORY/env/bin/python"), None).unwrap();
        assert_eq!(file.interpreter, python);
        assert_eq!(text("/no/such/place"), "Failed to get the canonical path for /no/such/place.");
        assert!(text("$$TRITON_MODEL_DIRECTORY").contains("there is no bin/python3 in"));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn an_archive_is_unpacked_once_and_again_when_it_changed() {
        let directory = place("archive");
        let path = directory.join("env.tar");
        let write = |text: &str| {
            let mut builder = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o755);
            builder.append_data(&mut header, "bin/python3", text.as_bytes()).unwrap();
            fs::write(&path, builder.into_inner().unwrap()).unwrap();
        };
        let (archives, scripts) = (Archives::default(), Files::default());
        let files = scripts.unpacked().unwrap();
        let context = context(Some("$$TRITON_MODEL_DIRECTORY/env.tar"), None, &directory);
        let of = || Environment::of(&context, &archives, &files).unwrap();
        write("one");
        let first = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(of)).collect();
            let mut all = threads.into_iter().map(|thread| thread.join().unwrap());
            let first = all.next().unwrap();
            assert!(all.all(|other| other.interpreter == first.interpreter));
            first
        });
        assert!(first.interpreter.starts_with(files.environments()));
        write(&"two".repeat(1000));
        let second = of();
        assert_ne!(first.interpreter, second.interpreter);
        assert_eq!(fs::read_to_string(&first.interpreter).unwrap(), "one");
        let gone = first.interpreter.clone();
        drop(first);
        assert!(!gone.exists());
        assert!(second.interpreter.exists());
        drop((archives, second));
        assert_eq!(fs::read_dir(files.environments()).unwrap().count(), 0);
        fs::remove_dir_all(&directory).unwrap();
    }
}
