//! Where the system wants files of a user to lie.

use crate::system;
use std::env;
use std::path::PathBuf;

/// The folder for files that can be made again: `$XDG_CACHE_HOME/halimede`, else `~/.cache/halimede` on Linux and
/// `~/Library/Caches/halimede` on macOS. `None` for a user without a home. It may not exist yet.
pub fn cache() -> Option<PathBuf> {
    let named = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || env::home_dir().filter(|home| home.is_absolute());
    let parent = named.or_else(|| Some(home()?.join(system::CACHE_IN_HOME)))?;
    Some(parent.join("halimede"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_has_the_name_of_the_program() {
        assert!(cache().is_none_or(|path| path.is_absolute() && path.ends_with("halimede")));
    }
}
