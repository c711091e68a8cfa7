//! What becomes of the models of a Triton repository here: each is loaded for real, and unloaded.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use halimede_compute::Precision;
use halimede_serving::{
    LoadParameters, Server,
    config::{self, ModelConfig, VersionFiles, proto::model_instance_group::Kind},
};
use serde::Serialize;

use super::remedies;
use crate::{commands::serve, flags};

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
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'static str>,
}

/// Prints what becomes of each model; whether all of them load.
///
/// # Errors
/// A repository cannot be read.
pub(super) fn examine(repositories: &[PathBuf], is_json: bool) -> Result<bool, String> {
    // What models print is none of the report.
    let prints = "--backend-config=python,prints=stderr";
    let mut arguments: Vec<String> =
        ["--model-control-mode=explicit", "--packed-weights=off", "--tuning-database=off", prints]
            .map(str::to_owned)
            .into();
    for repository in repositories {
        if !repository.is_dir() {
            return Err(format!(
                "'{}' is no folder: name a model repository, as for --model-repository",
                repository.display()
            ));
        }
        arguments.push(format!("--model-repository={}", repository.display()));
    }
    let flags = flags::parse(&arguments, "127.0.0.1").map_err(|error| format!("{error:?}"))?;
    let runtime = serve::runtime(&flags)?;
    let options = serve::options(&flags, Precision::Exact, &runtime)?;
    let backends: Vec<String> = options.backends.iter().map(|backend| backend.name().to_owned()).collect();
    let server = Server::start(options).map_err(|error| error.message)?;
    let mut models: Vec<String> =
        server.repository_index(false).map_err(|error| error.message)?.into_iter().map(|entry| entry.name).collect();
    models.dedup();
    let mut findings = Vec::new();
    for model in models {
        let finding = finding(&server, &backends, repositories, model);
        if !is_json {
            print(&finding);
        }
        findings.push(finding);
    }
    server.shutdown(END).map_err(|error| error.message)?;
    let count = |verdict: Verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let (loads, differs, refused) = (count(Verdict::Loads), count(Verdict::Differs), count(Verdict::Refused));
    if is_json {
        println!("{}", serde_json::to_string_pretty(&findings).map_err(|error| error.to_string())?);
    } else {
        println!("{} models: {loads} load, {differs} differ, {refused} refused", findings.len());
    }
    Ok(refused == 0)
}

fn finding(server: &Server, backends: &[String], repositories: &[PathBuf], model: String) -> Finding {
    let directory = repositories.iter().map(|repository| repository.join(&model)).find(|directory| directory.is_dir());
    let written = directory.and_then(|directory| written(&directory, &model)).unwrap_or_default();
    let backend = written.backend.clone();
    let result = load(server, &model).and_then(|()| server.model_config(&model, None));
    let finding = match result {
        Ok(config) => {
            // The log begins each line with the model.
            let prefix = format!("model '{model}': ");
            let ignored = config::ignored(&config, false);
            let why: Vec<String> = ignored.iter().map(|line| line.trim_start_matches(&prefix).to_owned()).collect();
            let verdict = if why.is_empty() { Verdict::Loads } else { Verdict::Differs };
            Finding { model, verdict, backend, why, remedy: None }
        }
        Err(error) => {
            let is_there = backend.is_empty() || backends.contains(&backend);
            let wants_gpu = || written.instance_group.iter().any(|group| group.kind() == Kind::Gpu);
            let remedy = match () {
                () if !is_there => Some(remedies::of(&backend)),
                () if wants_gpu() => Some(remedies::OF_GPU_INSTANCES),
                () => None,
            };
            Finding { model, verdict: Verdict::Refused, backend, why: vec![error.message], remedy }
        }
    };
    // One that did not load has nothing to unload.
    let _ = server.unload(&finding.model, true);
    finding
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

/// The configuration of a model with the backend that it or the files name. `None` where it cannot be read.
fn written(directory: &Path, model: &str) -> Option<ModelConfig> {
    let path = directory.join("config.pbtxt");
    let mut config = match std::fs::read_to_string(&path) {
        Ok(text) => config::parse(&text, &path).ok()?,
        Err(_) => ModelConfig::default(),
    };
    let files = VersionFiles::read(directory).ok()?;
    config::complete_backend(&mut config, model, &files).ok()?;
    Some(config)
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
