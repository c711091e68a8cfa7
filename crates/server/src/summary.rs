//! What the log says of a server that starts: tables of its models and options, which people and programs know from Triton.

use halimede_serving::{IndexEntry, LOG_UNESCAPED, ModelState, Server};

use crate::{
    flags::{Control, Flags},
    table::Table,
};

/// Logs how the models are, and why those are not ready that are not.
pub(crate) fn models(entries: &[IndexEntry]) {
    tracing::info!(target: LOG_UNESCAPED, "\n{}", model_table(entries));
    if !entries.iter().any(|entry| entry.state == Some(ModelState::Ready)) {
        tracing::info!("no model is ready");
    }
}

fn model_table(entries: &[IndexEntry]) -> Table<3> {
    let mut table = Table::new(["Model", "Version", "Status"]);
    for entry in entries {
        let Some(state) = entry.state else { continue };
        let name = match entry.namespace.as_str() {
            "" => entry.name.clone(),
            namespace => format!("{namespace}::{}", entry.name),
        };
        let version = entry.version.map_or("-".to_owned(), |version| version.to_string());
        let status = match entry.reason.as_str() {
            "" => state.name().to_owned(),
            reason => format!("{}: {reason}", state.name()),
        };
        table.push([&name, &version, &status]);
    }
    table
}

/// Logs what the server is.
pub(crate) fn options(server: &Server, flags: &Flags) {
    tracing::info!(target: LOG_UNESCAPED, "\n{}", option_table(server, flags));
}

fn option_table(server: &Server, flags: &Flags) -> Table<2> {
    let metadata = server.metadata();
    let mut table = Table::new(["Option", "Value"]);
    table.push(["server_id", &metadata.name]);
    table.push(["server_version", metadata.version]);
    table.push(["server_extensions", &metadata.extensions.join(" ")]);
    let folders = flags.repositories.iter().map(|path| path.display().to_string());
    for (number, repository) in folders.chain(flags.cloud_repositories.iter().cloned()).enumerate() {
        table.push([&format!("model_repository_path[{number}]"), &repository]);
    }
    let control = match flags.control {
        Control::None => "MODE_NONE",
        Control::Poll => "MODE_POLL",
        Control::Explicit => "MODE_EXPLICIT",
    };
    table.push(["model_control_mode", control]);
    for (number, model) in flags.startup_models.iter().enumerate() {
        table.push([&format!("startup_models_{number}"), model]);
    }
    let switch = |is_on: bool| if is_on { "1" } else { "0" };
    table.push(["strict_model_config", switch(!flags.auto_complete_config)]);
    table.push(["model_config_name", &flags.model_config_name]);
    table.push(["rate_limit", if flags.has_rate_limit { "EXEC_COUNT" } else { "OFF" }]);
    table.push(["pinned_memory_pool_byte_size", &flags.pinned_pool_bytes.to_string()]);
    table.push(["strict_readiness", switch(flags.strict_readiness)]);
    table.push(["exit_timeout", &flags.exit_timeout.as_secs().to_string()]);
    table.push(["cache_enabled", switch(!flags.caches.is_empty())]);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_told_with_states_and_reasons() {
        let entry = |name: &str, namespace: &str, version, state, reason: &str| IndexEntry {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            version: Some(version),
            state,
            reason: reason.to_owned(),
        };
        let text = model_table(&[
            entry("a", "", 1, Some(ModelState::Ready), ""),
            entry("b", "/models", 3, Some(ModelState::Unavailable), "Internal: no \"memory\"\nleft"),
            entry("never", "", 1, None, ""),
        ])
        .to_string();
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(
            rows,
            [
                "| Model      | Version | Status                             |",
                "| a          | 1       | READY                              |",
                "| /models::b | 3       | UNAVAILABLE: Internal: no \"memory\" |",
                "|            |         | left                               |",
            ]
        );
    }
}
