//! A Python model: its configuration completed by itself, and its instances.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use halimede_serving::{
    Error,
    backend::{Instance, LoadedModel, Model, ModelContext, Submit as _},
    config::{
        self, ModelConfig,
        proto::{model_config::SchedulingChoice, model_instance_group::Kind},
    },
};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::{
    environment::{Archives, Environment},
    files::Directory,
    instance::{PythonInstance, Slot},
    process::{Launcher, Prints, Process, Processes},
    protocol::Task,
};

/// The model's file, where the configuration names none.
const FILE: &str = "model.py";

/// The server's setting for where models print: `stdout`, which is the default, or `stderr`.
const PRINTS: &str = "prints";

/// What instances are made of.
#[derive(Debug)]
pub(crate) struct Definition {
    pub name: String,
    pub version: i64,
    /// The model's directory, which Triton calls its repository.
    pub directory: String,
    /// The complete configuration, as JSON.
    pub config_text: String,
    /// Names of all outputs.
    pub outputs: Vec<String>,
    pub is_decoupled: bool,
    file: String,
    /// The folder of a Python-based backend, whose script the model is.
    backend: Option<String>,
    launcher: Launcher,
    /// The process that completed the configuration, for the first instance.
    first: Mutex<Option<Process>>,
}

/// Loads a model.
pub(crate) fn load(
    context: &ModelContext,
    archives: &Archives,
    files: Arc<Directory>,
    runtime: &Handle,
    processes: &Processes,
) -> Result<LoadedModel, Error> {
    let named = &context.config.default_model_filename;
    let file = if named.is_empty() { FILE } else { named };
    let backend = context.backend_directory.as_ref().map(|backend| backend.to_string_lossy().into_owned());
    let path = context.version_directory().join(file);
    if backend.is_none() && (file.contains('/') || !path.is_file()) {
        return Err(Error::internal(format!(
            "Failed to preinitialize Python stub: Python model file not found in '{}'",
            path.display()
        )));
    }
    let environment = Environment::of(context, archives, &files)?;
    let prints = match context.settings.get(PRINTS).map(String::as_str) {
        None | Some("stdout") => Prints::Stdout,
        Some("stderr") => Prints::Stderr,
        Some(other) => {
            return Err(Error::invalid(format!(
                "--backend-config=python,{PRINTS}={other}: models print to 'stdout' or 'stderr'"
            )));
        }
    };
    let launcher = Launcher {
        model: context.config.name.clone(),
        environment,
        files,
        prints,
        peers: context.peers.clone(),
        metrics: context.metrics.clone(),
        runtime: runtime.clone(),
        processes: processes.clone(),
    };
    let mut config = context.config.clone();
    let mut first = None;
    if context.options.auto_complete {
        let process = launcher.start(&config.name)?;
        import(&process, &context.directory.to_string_lossy(), context.version, file, backend.as_deref())?;
        let completed = process.ask(&Task::Complete { config: &config::to_json(&config) })?;
        take_completed(&mut config, config::parse_json(&completed.to_string())?);
        first = Some(process);
    }
    let config = config::finish_without_model(config, &context.options)?;
    let definition = Arc::new(Definition {
        name: config.name.clone(),
        version: context.version,
        directory: context.directory.to_string_lossy().into_owned(),
        config_text: config::to_json(&config),
        outputs: config.output.iter().map(|output| output.name.clone()).collect(),
        is_decoupled: config.is_decoupled(),
        file: file.to_owned(),
        backend,
        launcher,
        first: Mutex::new(first),
    });
    let model = Arc::new(PythonModel { definition, config: config.clone(), slots: Mutex::default() });
    Ok(LoadedModel::as_configured(config, model))
}

/// What `auto_complete_config` may change; the rest stays as it was.
fn take_completed(config: &mut ModelConfig, completed: ModelConfig) {
    config.max_batch_size = completed.max_batch_size;
    config.input = completed.input;
    config.output = completed.output;
    config.model_transaction_policy = completed.model_transaction_policy;
    if let Some(SchedulingChoice::DynamicBatching(_)) = completed.scheduling_choice {
        config.scheduling_choice = completed.scheduling_choice;
    }
    config::normalize(config);
}

fn import(process: &Process, directory: &str, version: i64, file: &str, backend: Option<&str>) -> Result<(), Error> {
    process.ask(&Task::Load { directory, version: version.to_string(), file, backend }).map(drop)
}

impl Definition {
    /// A process that has imported the model, for the instance `name`. `on_death` hears how long it lived.
    pub fn loaded(&self, name: &str, on_death: impl FnOnce(Duration) + Send + 'static) -> Result<Process, Error> {
        let first = self.first.lock().take().filter(|process| !process.is_gone());
        let process = match first {
            Some(process) => process,
            None => {
                let process = self.launcher.start(name)?;
                import(&process, &self.directory, self.version, &self.file, self.backend.as_deref())?;
                process
            }
        };
        process.adopt(name, on_death);
        Ok(process)
    }
}

struct PythonModel {
    definition: Arc<Definition>,
    config: ModelConfig,
    slots: Mutex<Vec<Weak<Slot>>>,
}

impl Model for PythonModel {
    fn instance(&self, index: usize) -> Result<Box<dyn Instance>, Error> {
        let (name, kind) = place(&self.config, index);
        let slot = Arc::new(Slot::new(self.definition.clone(), name, kind));
        slot.running()?;
        let mut slots = self.slots.lock();
        slots.retain(|slot| slot.strong_count() > 0);
        slots.push(Arc::downgrade(&slot));
        Ok(Box::new(PythonInstance(slot)))
    }

    fn is_ready(&self) -> bool {
        self.slots.lock().iter().filter_map(Weak::upgrade).all(|slot| slot.is_ready())
    }
}

/// Name and kind of the instance `index`, counted over all groups. Those made later, when the groups of a
/// served model change, count on in the first.
fn place(config: &ModelConfig, index: usize) -> (String, &'static str) {
    let mut first = 0;
    for group in &config.instance_group {
        let count = usize::try_from(group.count).unwrap_or(0);
        if index - first < count {
            let kind = if group.kind() == Kind::Model { "MODEL" } else { "CPU" };
            return (format!("{}_{}", group.name, index - first), kind);
        }
        first += count;
    }
    let group = config.instance_group.first().map_or(&config.name, |group| &group.name);
    (format!("{group}_{index}"), "CPU")
}

#[cfg(test)]
mod tests {
    use halimede_serving::config::proto::{ModelInstanceGroup, ModelTransactionPolicy};

    use super::*;

    #[test]
    fn instances_are_named_by_their_group() {
        let group = |name: &str, count, kind: Kind| ModelInstanceGroup {
            name: name.into(),
            count,
            kind: kind as i32,
            ..ModelInstanceGroup::default()
        };
        let config = ModelConfig {
            instance_group: vec![group("m_0", 2, Kind::Cpu), group("other", 1, Kind::Model)],
            ..ModelConfig::default()
        };
        let names: Vec<_> = (0..4).map(|index| place(&config, index)).collect();
        let expected = [("m_0_0", "CPU"), ("m_0_1", "CPU"), ("other_0", "MODEL"), ("m_0_3", "CPU")];
        assert_eq!(names, expected.map(|(name, kind)| (name.to_owned(), kind)));
    }

    #[test]
    fn a_model_completes_what_is_its_own() {
        let mut config = ModelConfig { name: "m".into(), backend: "python".into(), ..ModelConfig::default() };
        let completed = ModelConfig {
            name: "other".into(),
            max_batch_size: 8,
            model_transaction_policy: Some(ModelTransactionPolicy { decoupled: true }),
            scheduling_choice: Some(SchedulingChoice::DynamicBatching(Default::default())),
            ..ModelConfig::default()
        };
        take_completed(&mut config, completed);
        assert_eq!((&*config.name, config.max_batch_size, config.is_decoupled()), ("m", 8, true));
        let Some(SchedulingChoice::DynamicBatching(batching)) = config.scheduling_choice else { panic!("no batching") };
        assert_eq!(batching.preferred_batch_size, [8]);
    }
}
