//! Where it is kept what was found out once, and need not be again.

use std::path::PathBuf;

use halimede_platform::directories;

/// A file or folder that a flag may name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Source {
    /// The one in the user's cache, where there is one.
    #[default]
    Usual,
    /// This one.
    At(PathBuf),
    /// None at all.
    Off,
}

impl From<&str> for Source {
    fn from(text: &str) -> Source {
        if text == "off" { Source::Off } else { Source::At(text.into()) }
    }
}

impl Source {
    /// Its path, `name` in the user's cache where no flag names another.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        match self {
            Source::Usual => directories::cache().map(|cache| cache.join(name)),
            Source::At(path) => Some(path.clone()),
            Source::Off => None,
        }
    }
}
