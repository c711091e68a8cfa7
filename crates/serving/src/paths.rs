//! Paths that configurations and requests name.

use std::path::{Component, Path};

/// Whether a path stays inside of the folder that it is taken from, by its text alone: links are not looked at.
pub(crate) fn is_inside(path: &str) -> bool {
    Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

#[cfg(test)]
mod tests {
    use super::is_inside;

    #[test]
    fn neither_up_nor_from_the_root() {
        assert!(["a", "a/b", "./a", "a/./b", "..a"].into_iter().all(is_inside));
        assert!(!["..", "a/../b", "/a", "a/../../b"].into_iter().any(is_inside));
    }
}
