//! `--flag=value` and `--flag value` to [`Flags`].

use std::path::PathBuf;

use super::{Control, Flags, table};
use crate::cloud;

/// What keeps the flags from being used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FlagError {
    /// The usage was asked for.
    Help,
    /// A flag is wrong; the text says which and why.
    Wrong(String),
}

/// Reads the flags of a server that listens at `address` unless told otherwise.
pub(crate) fn parse(arguments: &[String], address: &'static str) -> Result<Flags, FlagError> {
    let mut flags = Flags::new(address);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let Some(text) = argument.strip_prefix("--").filter(|text| !text.is_empty()) else {
            return Err(FlagError::Wrong(format!("Unexpected argument: {argument}")));
        };
        let (name, inline) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let flag = find(name)?;
        if flag.name == "help" {
            return Err(FlagError::Help);
        }
        let value = match (flag.value.is_empty(), inline) {
            (true, Some(_)) => return Err(FlagError::Wrong(format!("option '--{}' takes no value", flag.name))),
            (true, None) => "",
            (false, Some(value)) => value,
            (false, None) => match arguments.next() {
                Some(value) => value,
                None => return Err(FlagError::Wrong(format!("option '--{}' requires an argument", flag.name))),
            },
        };
        (flag.set)(&mut flags, value)
            .map_err(|error| FlagError::Wrong(format!("Bad option: \"--{}\".\n{error}", flag.name)))?;
    }
    complete(&mut flags).map_err(FlagError::Wrong)?;
    Ok(flags)
}

/// A flag by its name, or by the beginning of its name if no other begins so.
fn find(name: &str) -> Result<&'static table::Flag, FlagError> {
    let all = || table::FLAGS.iter();
    if let Some(flag) = all().find(|flag| flag.name == name) {
        return Ok(flag);
    }
    let mut candidates = all().filter(|flag| flag.name.starts_with(name));
    match (candidates.next(), candidates.next()) {
        (Some(flag), None) => Ok(flag),
        (Some(_), Some(_)) => Err(FlagError::Wrong(format!("option '--{name}' is ambiguous"))),
        _ => Err(FlagError::Wrong(format!("unrecognized option '--{name}'"))),
    }
}

/// What depends on several flags.
fn complete(flags: &mut Flags) -> Result<(), String> {
    if !flags.startup_models.is_empty() && flags.control != Control::Explicit {
        return Err("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.".to_owned());
    }
    if let Some(bytes) = flags.cache_bytes {
        if !flags.caches.is_empty() {
            return Err(
                "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. Please \
                        provide one or the other."
                    .to_owned(),
            );
        }
        flags.caches.insert("local".to_owned(), [("size".to_owned(), bytes.to_string())].into());
    }
    if flags.repositories.is_empty()
        && let Some(path) = std::env::var_os("AIP_STORAGE_URI").filter(|path| !path.is_empty())
    {
        flags.repositories.push(PathBuf::from(path));
    }
    let is_elsewhere = |path: &PathBuf| path.to_string_lossy().contains("://");
    for path in flags.repositories.extract_if(.., |path| is_elsewhere(path)) {
        let address = path.to_string_lossy().into_owned();
        match cloud::refusal(&address, cloud::IS_BUILT) {
            Some(why) => flags.refused.push(format!("--model-repository {address}: {why}")),
            None => flags.cloud_repositories.push(address),
        }
    }
    Ok(())
}

/// All flags with their meanings.
pub(crate) fn usage() -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let mut group = "";
    for flag in table::FLAGS {
        if flag.group != group {
            group = flag.group;
            let _ = write!(text, "\n{group}:\n");
        }
        let value = if flag.value.is_empty() { String::new() } else { format!(" <{}>", flag.value) };
        let _ = writeln!(text, "  --{}{value}", flag.name);
        for line in wrap(flag.help, 70) {
            let _ = writeln!(text, "        {line}");
        }
    }
    text
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.len() - 1;
        if !lines[line].is_empty() && lines[line].len() + 1 + word.len() > width {
            lines.push(word.to_owned());
            continue;
        }
        if !lines[line].is_empty() {
            lines[line].push(' ');
        }
        lines[line].push_str(word);
    }
    lines
}
