//! What becomes of the models of a Triton repository here: each is loaded for real, and unloaded.

use std::{
    collections::BTreeSet,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use halimede_compute::Precision;
use halimede_compute_cpu::MatrixUnits;
use halimede_python_backend::Python;
use halimede_serving::{
    LoadParameters, Server,
    config::{
        self, ModelConfig, ServerParts, VersionFiles,
        proto::{model_config::SchedulingChoice, model_version_policy::PolicyChoice},
    },
    read_config_text,
};
use serde::Serialize;

use super::remedies;
use crate::{
    commands::serve,
    flags::{self, FlagError, Flags},
    memory::Limit,
};

/// How long models may take to end.
const END: Duration = Duration::from_secs(30);

/// How long a model is loaded before it is said that this takes long, each time.
const LONG: Duration = Duration::from_secs(10);

/// What becomes of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Loads,
    /// It is served, without something that its configuration asks for.
    Differs,
    Refused,
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Verdict::Loads => "loads",
            Verdict::Differs => "differs",
            Verdict::Refused => "refused",
        })
    }
}

/// A model of a repository.
#[derive(Debug, Serialize)]
struct Finding {
    model: String,
    verdict: Verdict,
    /// Empty where nothing says it.
    backend: String,
    /// What is done otherwise, or why it is refused.
    why: Vec<String>,
    /// The way out for one that is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'static str>,
}

/// Flags of `halimede serve` that decide what loads, with the same meaning.
#[derive(Debug, clap::Args)]
pub(super) struct ServeFlags {
    /// As for `serve`: a setting of a backend, as onnxruntime,default-max-batch-size=8. May be given several times.
    #[arg(long, value_name = "BACKEND,NAME=VALUE", requires = "repositories")]
    backend_config: Vec<String>,
    /// As for `serve`: where backends written in Python lie.
    #[arg(long, value_name = "DIR", requires = "repositories")]
    backend_directory: Option<String>,
    /// As for `serve`: where responses are kept, as local,size=BYTES. May be given several times.
    #[arg(long, value_name = "CACHE,NAME=VALUE", requires = "repositories")]
    cache_config: Vec<String>,
    /// As for `serve`: nothing of a configuration is read from the model.
    #[arg(long, requires = "repositories")]
    disable_auto_complete_config: bool,
    /// As for `serve`: bytes that the process may hold, such as 8G, auto or off. `auto` when left out.
    #[arg(long, value_name = "BYTES", requires = "repositories")]
    memory_limit: Option<String>,
    /// As for `serve`: configs/NAME.pbtxt of a model where it exists, instead of config.pbtxt.
    #[arg(long, value_name = "NAME", requires = "repositories")]
    model_config_name: Option<String>,
    /// As for `serve`: off, or execution_count.
    #[arg(long, value_name = "MODE", requires = "repositories")]
    rate_limit: Option<String>,
    /// As for `serve`: NAME:COUNT or NAME:COUNT:DEVICE. May be given several times.
    #[arg(long, value_name = "RESOURCE", requires = "repositories")]
    rate_limit_resource: Vec<String>,
}

impl ServeFlags {
    /// As `serve` would get them.
    fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut add = |name: &str, values: &mut dyn Iterator<Item = &String>| {
            arguments.extend(values.map(|value| format!("--{name}={value}")));
        };
        add("backend-config", &mut self.backend_config.iter());
        add("backend-directory", &mut self.backend_directory.iter());
        add("cache-config", &mut self.cache_config.iter());
        add("memory-limit", &mut self.memory_limit.iter());
        add("model-config-name", &mut self.model_config_name.iter());
        add("rate-limit", &mut self.rate_limit.iter());
        add("rate-limit-resource", &mut self.rate_limit_resource.iter());
        arguments.extend(self.disable_auto_complete_config.then(|| "--disable-auto-complete-config".to_owned()));
        arguments
    }
}

/// Prints what becomes of each model on a server with those flags; whether all of them load.
///
/// # Errors
/// A repository cannot be read, or a flag is wrong.
pub(super) fn examine(repositories: &[PathBuf], serve_flags: &ServeFlags, is_json: bool) -> Result<bool, String> {
    let mut arguments = serve_flags.arguments();
    // What models print is none of the report.
    let prints = "--backend-config=python,prints=stderr";
    let own = ["--model-control-mode=explicit", "--packed-weights=off", "--tuning-database=off", prints];
    arguments.extend(own.map(str::to_owned));
    for repository in repositories {
        check(repository)?;
        arguments.push(format!("--model-repository={}", repository.display()));
    }
    let flags = flags::parse(&arguments, "127.0.0.1").map_err(|error| match error {
        FlagError::Wrong(text) => text,
        // None of the flags above asks for it.
        FlagError::Help => "`halimede doctor --help` lists the flags".to_owned(),
    })?;
    if !flags.refused.is_empty() {
        return Err(flags.refused.join("\nerror: "));
    }
    flags.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    let loops = serve::event_loops(&flags)?;
    let python = Arc::new(Python::new(loops.first().handle().clone()));
    let mut options = serve::options(&flags, Precision::Exact, &MatrixUnits::default(), python.clone())?;
    options.memory = flags.memory_limit.unwrap_or(Limit::Auto).of_server();
    let backends: Vec<String> = options.backends.iter().map(|backend| backend.name().to_owned()).collect();
    let parts = ServerParts { rate_limiter: options.rate_limit.is_some(), cache: options.cache.is_some() };
    let server = Server::start(options).map_err(|error| error.message)?;
    let mut models: Vec<String> =
        server.repository_index(false).map_err(|error| error.message)?.into_iter().map(|entry| entry.name).collect();
    models.dedup();
    let examiner = Examiner { server: &server, parts, backends: &backends, flags: &flags };
    let mut findings = Vec::new();
    for model in models {
        let finding = examiner.finding(model);
        if !is_json {
            print(&finding);
        }
        findings.push(finding);
    }
    server.shutdown(END).inspect_err(|_| python.kill_processes()).map_err(|error| error.message)?;
    let count = |verdict: Verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let (loads, differs, refused) = (count(Verdict::Loads), count(Verdict::Differs), count(Verdict::Refused));
    if is_json {
        println!("{}", serde_json::to_string_pretty(&findings).map_err(|error| error.to_string())?);
    } else {
        println!("{} models: {loads} load, {differs} differ, {refused} refused", findings.len());
    }
    Ok(refused == 0)
}

/// Refuses what is no folder of models.
fn check(repository: &Path) -> Result<(), String> {
    let shown = repository.display();
    if shown.to_string().contains("://") {
        return Err(format!(
            "'{shown}' is elsewhere: doctor looks at folders of this machine, so copy the repository to one"
        ));
    }
    if !repository.is_dir() {
        return Err(format!("'{shown}' is no folder: name a model repository, as for --model-repository"));
    }
    if let Some(sign) = sign_of_model(repository) {
        return Err(format!(
            "'{shown}' is the folder of a model, not of models: it has '{sign}'. Name the folder that it lies in"
        ));
    }
    Ok(())
}

/// What a model's folder has and a repository has not: a configuration, or a version that is no model with versions of its own.
fn sign_of_model(directory: &Path) -> Option<String> {
    if directory.join("config.pbtxt").is_file() {
        return Some("config.pbtxt".to_owned());
    }
    let names = |directory: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    };
    let is_version = |name: &String| name.parse::<u64>().is_ok();
    names(directory).into_iter().filter(is_version).find_map(|version| {
        let file = names(&directory.join(&version)).into_iter().find(|name| name.starts_with("model."))?;
        Some(format!("{version}/{file}"))
    })
}

/// Whether a folder has neither a configuration nor a version, as that of a version control system, or of what a file system has lost.
fn is_no_model(directory: &Path) -> bool {
    let is_sign = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name == "config.pbtxt" || name == "configs" || name.parse::<u64>().is_ok()
    };
    std::fs::read_dir(directory).is_ok_and(|entries| !entries.flatten().any(is_sign))
}

/// What a model is examined with.
struct Examiner<'a> {
    server: &'a Server,
    parts: ServerParts,
    /// Backends that are built in.
    backends: &'a [String],
    flags: &'a Flags,
}

impl Examiner<'_> {
    fn finding(&self, model: String) -> Finding {
        let mut directories = self.flags.repositories.iter().map(|repository| repository.join(&model));
        let directory = directories.find(|directory| directory.is_dir());
        let read = directory.as_deref().and_then(|directory| self.config(directory, &model));
        let backend = read.as_ref().map(|config| config.backend.clone()).unwrap_or_default();
        let result = load(self.server, &model).and_then(|()| self.server.model_config(&model, None));
        let finding = match result {
            Ok(config) => {
                // The log begins each line with the model.
                let prefix = format!("model '{model}': ");
                let ignored = config::ignored(&config, self.parts);
                let mut why: Vec<String> =
                    ignored.iter().map(|line| line.trim_start_matches(&prefix).to_owned()).collect();
                why.extend(directory.and_then(|directory| missing_versions(&config, &directory)));
                let verdict = if why.is_empty() { Verdict::Loads } else { Verdict::Differs };
                Finding { model, verdict, backend, why, remedy: None }
            }
            Err(error) => {
                let is_there = backend.is_empty()
                    || self.backends.contains(&backend)
                    || self.flags.backend_directory.join(&backend).is_dir();
                let remedy = match is_there {
                    _ if directory.as_deref().is_some_and(is_no_model) => remedies::OF_NO_MODEL,
                    true => remedies::of_text(&error.message, &backend),
                    false => remedies::of_backend(&backend),
                };
                let mut why = vec![error.message];
                why.extend(read.and_then(|config| self.refused_members(&config)));
                Finding { model, verdict: Verdict::Refused, backend, why, remedy: Some(remedy) }
            }
        };
        // One that did not load has nothing to unload.
        let _ = self.server.unload(&finding.model, true);
        finding
    }

    /// The configuration of a model with the backend that it or the model's files name. `None` where it cannot be read.
    fn config(&self, directory: &Path, model: &str) -> Option<ModelConfig> {
        let name = &self.flags.model_config_name;
        let custom = Some(directory.join("configs").join(format!("{name}.pbtxt"))).filter(|_| !name.is_empty());
        let path = custom.filter(|path| path.is_file()).unwrap_or_else(|| directory.join("config.pbtxt"));
        let mut config = match read_config_text(&path) {
            Ok(text) => config::parse(&text, &path).ok()?,
            Err(_) => ModelConfig::default(),
        };
        let files = VersionFiles::read(directory).ok()?;
        config::complete_backend(&mut config, model, &files).ok()?;
        Some(config)
    }

    /// Says which members of an ensemble do not load, where there is more than the one that the text names.
    fn refused_members(&self, config: &ModelConfig) -> Option<String> {
        let Some(SchedulingChoice::EnsembleScheduling(ensemble)) = &config.scheduling_choice else { return None };
        let members: BTreeSet<&str> = ensemble.step.iter().map(|step| step.model_name.as_str()).collect();
        let is_refused = |member: &&str| {
            let is_refused = load(self.server, member).is_err();
            let _ = self.server.unload(member, true);
            is_refused
        };
        let refused: Vec<String> = members.into_iter().filter(is_refused).map(|member| format!("'{member}'")).collect();
        (refused.len() > 1).then(|| format!("members that do not load: {}", refused.join(", ")))
    }
}

/// Says which versions a version policy names that are not there: the others are served without a word to clients.
fn missing_versions(config: &ModelConfig, directory: &Path) -> Option<String> {
    let Some(PolicyChoice::Specific(specific)) = config.version_policy.as_ref()?.policy_choice.as_ref() else {
        return None;
    };
    let is_missing = |version: &&i64| !directory.join(version.to_string()).is_dir();
    let missing: Vec<String> = specific.versions.iter().filter(is_missing).map(i64::to_string).collect();
    (!missing.is_empty()).then(|| {
        let missing = missing.join(", ");
        format!("version_policy names versions that have no folder: {missing}. The others are served")
    })
}

/// Loads a model, and says who it is that takes long.
fn load(server: &Server, model: &str) -> Result<(), halimede_serving::Error> {
    let (sender, loaded) = mpsc::channel::<Result<(), halimede_serving::Error>>();
    thread::scope(|scope| {
        scope.spawn(move || {
            // Somebody waits until it is there.
            let _ = sender.send(server.load(model, LoadParameters::default()));
        });
        let start = Instant::now();
        loop {
            match loaded.recv_timeout(LONG) {
                Ok(result) => return result,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    eprintln!("'{model}' is still being loaded after {} s", start.elapsed().as_secs());
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(halimede_serving::Error::internal("loading it panicked"));
                }
            }
        }
    })
}

fn print(finding: &Finding) {
    let Finding { model, verdict, backend, why, remedy } = finding;
    println!("{verdict:<9} {model}{}", if backend.is_empty() { String::new() } else { format!(" ({backend})") });
    for line in why {
        println!("          {line}");
    }
    if let Some(remedy) = remedy {
        println!("          way out: {remedy}");
    }
}
