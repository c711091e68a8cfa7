//! Paths of the protocol. Every route matches the whole path or not at all.

use hyper::Method;

use super::{ContentType, generate::Mode};
use crate::{restricted::Group, ui};

/// What a path asks for. Names and versions are parts of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route<'p> {
    ServerMetadata,
    Live,
    Ready,
    AllStatistics,
    Logging,
    Trace,
    /// `version` is empty where the path has none.
    Model {
        name: &'p str,
        version: &'p str,
        call: Call,
    },
    Index,
    /// A file of the page for people; `None` for the page without the slash behind which its files lie.
    Page {
        file: Option<&'p str>,
    },
    /// What the page shows.
    PageState,
    /// `repository` is empty where the path has none.
    Control {
        repository: &'p str,
        model: &'p str,
        control: Control,
    },
    SystemSharedMemory {
        region: &'p str,
        action: Action,
    },
    CudaSharedMemory {
        region: &'p str,
        action: Action,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Metadata,
    Infer,
    Generate,
    GenerateStream,
    Ready,
    Config,
    Statistics,
    Trace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    Load,
    Unload,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Status,
    Register,
    Unregister,
}

impl<'p> Route<'p> {
    pub fn parse(path: &'p str) -> Option<Self> {
        match path.strip_prefix("/ui") {
            Some("") => return Some(Route::Page { file: None }),
            Some("/state") => return Some(Route::PageState),
            Some(rest) => return rest.strip_prefix('/').map(|file| Route::Page { file: Some(file) }),
            None => {}
        }
        let rest = path.strip_prefix("/v2")?;
        if let Some(rest) = rest.strip_prefix("/models/") {
            return model(rest);
        }
        match rest {
            "" => return Some(Route::ServerMetadata),
            "/health/live" => return Some(Route::Live),
            "/health/ready" => return Some(Route::Ready),
            "/logging" => return Some(Route::Logging),
            "/trace/setting" => return Some(Route::Trace),
            _ => {}
        }
        if let Some(rest) = rest.strip_prefix("/repository") {
            return repository(rest);
        }
        if let Some(rest) = rest.strip_prefix("/systemsharedmemory") {
            return shared_memory(rest).map(|(region, action)| Route::SystemSharedMemory { region, action });
        }
        let rest = rest.strip_prefix("/cudasharedmemory")?;
        shared_memory(rest).map(|(region, action)| Route::CudaSharedMemory { region, action })
    }

    pub fn allows(&self, method: &Method) -> bool {
        let (get, post) = match self {
            Route::Logging | Route::Trace | Route::Model { call: Call::Trace, .. } => (true, true),
            Route::Model { call: Call::Infer | Call::Generate | Call::GenerateStream, .. }
            | Route::Index
            | Route::Control { .. } => (false, true),
            Route::SystemSharedMemory { action, .. } | Route::CudaSharedMemory { action, .. } => {
                (*action == Action::Status, *action != Action::Status)
            }
            _ => (true, false),
        };
        (get && method == Method::GET) || (post && method == Method::POST)
    }

    /// The name of the model of a call.
    pub fn model(&self) -> Option<&'p str> {
        match self {
            Route::Model { name, .. } => Some(name),
            _ => None,
        }
    }

    /// The same call of another model.
    pub fn of_model(self, name: &'p str) -> Self {
        match self {
            Route::Model { version, call, .. } => Route::Model { name, version, call },
            other => other,
        }
    }

    /// Whether it changes something for other requests.
    pub fn is_change(&self, method: &Method) -> bool {
        match self {
            Route::Control { .. } => true,
            Route::Logging | Route::Trace | Route::Model { call: Call::Trace, .. } => method == Method::POST,
            Route::SystemSharedMemory { action, .. } | Route::CudaSharedMemory { action, .. } => {
                *action != Action::Status
            }
            _ => false,
        }
    }

    /// What it belongs to where APIs are restricted: who asks needs the headers of all.
    pub fn groups(&self) -> &'static [Group] {
        match self {
            Route::ServerMetadata | Route::Model { call: Call::Metadata, .. } => &[Group::Metadata],
            Route::Live | Route::Ready | Route::Model { call: Call::Ready, .. } => &[Group::Health],
            Route::AllStatistics | Route::Model { call: Call::Statistics, .. } => &[Group::Statistics],
            Route::Logging => &[Group::Logging],
            Route::Trace | Route::Model { call: Call::Trace, .. } => &[Group::Trace],
            Route::Model { call: Call::Infer | Call::Generate | Call::GenerateStream, .. } => &[Group::Inference],
            Route::Model { call: Call::Config, .. } => &[Group::ModelConfig],
            Route::Index | Route::Control { .. } => &[Group::ModelRepository],
            Route::SystemSharedMemory { .. } | Route::CudaSharedMemory { .. } => &[Group::SharedMemory],
            // The files say nothing of this server, and a browser could not send a header for them.
            Route::Page { .. } => &[],
            Route::PageState => &ui::STATE_GROUPS,
        }
    }

    /// Whether it is of the page for people.
    pub fn is_page(&self) -> bool {
        matches!(self, Route::Page { .. } | Route::PageState)
    }

    /// Model, version and mode of a request to generate.
    pub fn generates(&self) -> Option<(&'p str, &'p str, Mode)> {
        let Route::Model { name, version, call } = *self else { return None };
        match call {
            Call::Generate => Some((name, version, Mode::Once)),
            Call::GenerateStream => Some((name, version, Mode::Stream)),
            _ => None,
        }
    }

    /// The type of replies that say nothing else.
    pub fn content_type(&self) -> ContentType {
        match self {
            Route::Live | Route::Ready | Route::Model { call: Call::Ready | Call::Infer, .. } => ContentType::Text,
            _ => ContentType::Json,
        }
    }
}

/// What follows `/v2/models/`.
fn model(rest: &str) -> Option<Route<'_>> {
    if rest == "stats" {
        return Some(Route::AllStatistics);
    }
    let (name, rest) = match rest.split_once('/') {
        None => (rest, ""),
        // A slash that nothing follows matches no route.
        Some((_, "")) => return None,
        Some(parts) => parts,
    };
    let (version, rest) = match rest.strip_prefix("versions/") {
        None => ("", rest),
        Some("") => return None,
        Some(rest) => match rest.split_once('/') {
            None => (rest, ""),
            Some(("", _) | (_, "")) => return None,
            Some(parts) => parts,
        },
    };
    let has_version = !version.is_empty();
    if name.is_empty() || !version.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let call = match rest {
        "" => Call::Metadata,
        "infer" => Call::Infer,
        "generate" => Call::Generate,
        "generate_stream" => Call::GenerateStream,
        "ready" => Call::Ready,
        "config" => Call::Config,
        "stats" => Call::Statistics,
        "trace/setting" if !has_version => Call::Trace,
        _ => return None,
    };
    Some(Route::Model { name, version, call })
}

/// What follows `/v2/repository`.
fn repository(rest: &str) -> Option<Route<'_>> {
    let rest = rest.strip_prefix('/')?;
    let parts: Vec<&str> = rest.split('/').collect();
    let (repository, parts) = match parts[..] {
        ["index"] | ["models", _, _] => ("", &parts[..]),
        [repository, ..] => (repository, &parts[1..]),
        [] => return None,
    };
    if parts.len() == 1 && parts[0] == "index" {
        return Some(Route::Index);
    }
    let &["models", model, control] = parts else { return None };
    let control = match control {
        "load" => Control::Load,
        "unload" => Control::Unload,
        _ => return None,
    };
    (!model.is_empty()).then_some(Route::Control { repository, model, control })
}

/// What follows the kind of shared memory: a region, empty for all, and what to do.
fn shared_memory(rest: &str) -> Option<(&str, Action)> {
    let (region, action) = match rest.strip_prefix("/region/") {
        Some(rest) => rest.split_once('/').filter(|(region, _)| !region.is_empty())?,
        None => ("", rest.strip_prefix('/')?),
    };
    let action = match action {
        "status" => Action::Status,
        "register" => Action::Register,
        "unregister" => Action::Unregister,
        _ => return None,
    };
    Some((region, action))
}
