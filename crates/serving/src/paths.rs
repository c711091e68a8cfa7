//! Paths that configurations and requests name.

use std::path::{Component, Path};

/// Whether a path stays inside of the folder that it is taken from, by its text alone: links are not looked at.
pub(crate) fn is_inside(path: &str) -> bool {
    Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// Whether a path stays inside of the folder that lies `above` folders over the one that it is taken from, by its text
/// alone.
pub(crate) fn is_inside_above(path: &str, above: usize) -> bool {
    let mut depth = Some(above);
    for part in Path::new(path).components() {
        depth = depth.and_then(|depth| match part {
            Component::Normal(_) => Some(depth + 1),
            Component::CurDir => Some(depth),
            Component::ParentDir => depth.checked_sub(1),
            Component::RootDir | Component::Prefix(_) => None,
        });
    }
    depth.is_some()
}

#[cfg(test)]
mod tests {
    use super::{is_inside, is_inside_above};

    #[test]
    fn neither_up_nor_from_the_root() {
        assert!(["a", "a/b", "./a", "a/./b", "..a"].into_iter().all(is_inside));
        assert!(!["..", "a/../b", "/a", "a/../../b"].into_iter().any(is_inside));
    }

    #[test]
    fn up_as_far_as_allowed() {
        assert!(["a", "../a", "a/../../b", "./..", "a/b"].into_iter().all(|path| is_inside_above(path, 1)));
        // The way back does not undo that it was outside.
        assert!(!["/a", "../..", "../../m/1/a", "a/../../../b"].into_iter().any(|path| is_inside_above(path, 1)));
        assert!(!is_inside_above("..", 0));
    }
}
