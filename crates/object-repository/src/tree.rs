//! From the names of objects to the files of models.

use std::collections::{BTreeMap, BTreeSet};

use halimede_serving::{Error, remote::RemoteFile};

/// Parts of a path longer than this are no names of files anywhere.
const NAME_BYTES_MAX: usize = 255;

/// An object by its name below the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Object {
    pub name: String,
    pub bytes: u64,
    pub version: String,
}

/// The models by their names, each with its files or why it cannot be read. Objects beside the models are nobody's.
pub(crate) fn models(address: &str, objects: Vec<Object>) -> BTreeMap<String, Result<Vec<RemoteFile>, Error>> {
    let mut models: BTreeMap<String, Vec<Object>> = BTreeMap::new();
    for object in objects {
        if let Some((model, _)) = object.name.split_once('/')
            && check_name(model).is_ok()
        {
            models.entry(model.to_owned()).or_default().push(object);
        }
    }
    let files = |(model, objects): (String, Vec<Object>)| {
        let files = files(address, &model, objects);
        (model, files)
    };
    models.into_iter().map(files).collect()
}

/// The files of one model, by their paths below it.
fn files(address: &str, model: &str, objects: Vec<Object>) -> Result<Vec<RemoteFile>, Error> {
    let wrong = |name: &str, why: &str| {
        Error::invalid(format!(
            "object '{address}/{}' {why}: rename or delete it, then load the model again",
            name.escape_debug()
        ))
    };
    let mut files: BTreeMap<String, RemoteFile> = BTreeMap::new();
    for Object { name, bytes, version } in objects {
        let path = name.strip_prefix(model).and_then(|path| path.strip_prefix('/')).unwrap_or_default().to_owned();
        if path.is_empty() {
            continue;
        }
        for part in path.trim_end_matches('/').split('/') {
            check_name(part).map_err(|why| wrong(&name, why))?;
        }
        files.insert(path.clone(), RemoteFile { path, bytes, version });
    }
    let directories: BTreeSet<String> = files.keys().flat_map(|path| parents(path)).map(str::to_owned).collect();
    let mut kept = Vec::new();
    for (path, file) in files {
        // What people see as a folder is an empty object here: its name may have lost the slash at its end.
        let is_empty = file.bytes == 0;
        let bare = path.trim_end_matches('/');
        let is_marker = path.ends_with('/') || (is_empty && !path.contains('/') && is_version(bare));
        if directories.contains(bare) {
            match is_empty {
                true => continue,
                false => return Err(wrong(&format!("{model}/{path}"), "has the name of a folder")),
            }
        }
        match is_marker {
            true => kept.push(RemoteFile { path: format!("{bare}/"), ..file }),
            false => kept.push(file),
        }
    }
    Ok(kept)
}

/// The folders that a path lies in.
fn parents(path: &str) -> impl Iterator<Item = &str> {
    let path = path.trim_end_matches('/');
    path.match_indices('/').map(|(at, _)| &path[..at])
}

fn is_version(name: &str) -> bool {
    !name.starts_with('0') && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a part of a path can be the name of a file, and of none outside.
pub(crate) fn check_name(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("has a part without a name"),
        "." | ".." => Err("would leave its folder"),
        _ if name.contains(['/', '\\', '\0']) => Err("has a separator inside of a name"),
        _ if name.contains(char::is_control) => Err("has a control character in its name"),
        _ if name.len() > NAME_BYTES_MAX => Err("has a name longer than 255 bytes"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use proptest::prelude::*;

    use super::*;

    fn object(name: &str, bytes: u64) -> Object {
        Object { name: name.to_owned(), bytes, version: "v".to_owned() }
    }

    fn paths(objects: &[(&str, u64)]) -> Result<Vec<String>, String> {
        let objects = objects.iter().map(|(name, bytes)| object(name, *bytes)).collect();
        let found = models("s3://bucket", objects).remove("m").unwrap();
        found.map(|files| files.into_iter().map(|file| file.path).collect()).map_err(|error| error.message)
    }

    #[test]
    fn objects_become_files_of_models() {
        let objects =
            vec![object("a/1/model.onnx", 5), object("readme.md", 3), object("b/config.pbtxt", 2), object("a/", 0)];
        let found = models("s3://bucket", objects);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a", "b"]);
        let file = |path: &str, bytes| RemoteFile { path: path.to_owned(), bytes, version: "v".to_owned() };
        assert_eq!(found["a"], Ok(vec![file("1/model.onnx", 5)]));
        assert_eq!(found["b"], Ok(vec![file("config.pbtxt", 2)]));
    }

    #[test]
    fn folders_are_marked_by_empty_objects() {
        assert_eq!(paths(&[("m/1/", 0), ("m/config.pbtxt", 1)]), Ok(vec!["1/".to_owned(), "config.pbtxt".to_owned()]));
        assert_eq!(paths(&[("m/1", 0), ("m/labels", 0)]), Ok(vec!["1/".to_owned(), "labels".to_owned()]));
        assert_eq!(paths(&[("m/1", 0), ("m/1/a", 4)]), Ok(vec!["1/a".to_owned()]));
        let error = paths(&[("m/1", 7), ("m/1/a", 4)]).unwrap_err();
        assert_eq!(
            error,
            "object 's3://bucket/m/1' has the name of a folder: rename or delete it, then load the model again"
        );
    }

    #[test]
    fn no_name_leads_outside() {
        for (name, why) in [
            ("m/../../etc/passwd", "would leave its folder"),
            ("m/1/..", "would leave its folder"),
            ("m/./x", "would leave its folder"),
            ("m//etc/passwd", "without a name"),
            ("m/a\\b", "separator"),
            ("m/a\nb", "control character"),
        ] {
            let error = paths(&[("m/1/a", 4), (name, 4)]).unwrap_err();
            assert!(error.contains(why), "{name}: {error}");
        }
        // Such a thing is no model.
        assert!(models("", vec![object("../x", 1), object("/etc/passwd", 1)]).is_empty());
        let long = format!("m/{}", "x".repeat(256));
        assert!(paths(&[(&long, 1)]).unwrap_err().contains("longer than 255"));
    }

    proptest! {
        #[test]
        fn every_file_stays_below_its_model(names in prop::collection::vec("(m|n)/[a./\\\\1]{0,8}", 0..6), bytes in 0u64..2) {
            let objects = names.iter().map(|name| object(name, bytes)).collect();
            for files in models("s3://bucket", objects).into_values().flatten() {
                let mut directories = BTreeSet::new();
                for RemoteFile { path, .. } in &files {
                    prop_assert!(Path::new(path).components().all(|part| matches!(part, Component::Normal(_))));
                    directories.extend(parents(path));
                }
                // No file has the name of a folder.
                prop_assert!(files.iter().all(|file| !directories.contains(file.path.as_str())));
            }
        }
    }
}
