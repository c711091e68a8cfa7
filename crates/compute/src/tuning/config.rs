use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// What a kernel can be told about how to do its work: settings by name, such as `algorithm=direct depth=512`.
///
/// Names without spaces and `=`, in the order of the alphabet; the empty configuration leaves everything to the
/// kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Config(BTreeMap<String, Setting>);

/// The value of one setting.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Setting {
    /// A size or a count.
    Number(usize),
    /// One of several ways.
    Word(String),
}

impl Config {
    /// The configuration with one more setting, or another value of one that it has.
    pub fn with(mut self, name: &str, setting: impl Into<Setting>) -> Config {
        self.0.insert(name.to_owned(), setting.into());
        self
    }

    /// A setting that is a number.
    pub fn number(&self, name: &str) -> Option<usize> {
        match self.0.get(name)? {
            Setting::Number(number) => Some(*number),
            Setting::Word(_) => None,
        }
    }

    /// A setting that is a word.
    pub fn word(&self, name: &str) -> Option<&str> {
        match self.0.get(name)? {
            Setting::Word(word) => Some(word),
            Setting::Number(_) => None,
        }
    }

    /// All settings.
    pub fn settings(&self) -> impl Iterator<Item = (&str, &Setting)> {
        self.0.iter().map(|(name, setting)| (name.as_str(), setting))
    }

    /// Whether everything is left to the kernel.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<usize> for Setting {
    fn from(number: usize) -> Setting {
        Setting::Number(number)
    }
}

impl From<&str> for Setting {
    fn from(word: &str) -> Setting {
        Setting::Word(word.to_owned())
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Number(number) => write!(f, "{number}"),
            Setting::Word(word) => f.write_str(word),
        }
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, setting)) in self.settings().enumerate() {
            let space = if index > 0 { " " } else { "" };
            write!(f, "{space}{name}={setting}")?;
        }
        Ok(())
    }
}

/// A text that is no configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no setting: it has the form NAME=VALUE")]
pub struct WrongConfig(String);

impl FromStr for Config {
    type Err = WrongConfig;

    fn from_str(text: &str) -> Result<Config, WrongConfig> {
        text.split_whitespace().try_fold(Config::default(), |config, setting| match setting.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => {
                let setting = value.parse().map_or_else(|_| Setting::from(value), Setting::Number);
                Ok(config.with(name, setting))
            }
            _ => Err(WrongConfig(setting.to_owned())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_configurations() {
        let config = Config::default().with("depth", 512).with("algorithm", "direct");
        assert_eq!(config.to_string(), "algorithm=direct depth=512");
        assert_eq!("depth=512  algorithm=direct".parse(), Ok(config.clone()));
        assert_eq!((config.number("depth"), config.word("algorithm")), (Some(512), Some("direct")));
        assert_eq!((config.number("algorithm"), config.word("depth"), config.number("rows")), (None, None, None));
        assert_eq!("".parse(), Ok(Config::default()));
        for wrong in ["depth", "depth=", "=512"] {
            assert_eq!(wrong.parse::<Config>(), Err(WrongConfig(wrong.to_owned())));
        }
    }
}
