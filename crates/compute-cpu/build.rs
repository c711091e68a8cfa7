//! Hashes the sources through which weights go until they are packed, for the key of packed weights in files.

use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Beside this crate: graphs are rewritten, numbers converted and pieces put in order there.
const CRATES: [&str; 4] = [".", "../compute", "../graph", "../tensor"];

fn main() -> io::Result<()> {
    let mut hash = DefaultHasher::new();
    for sources in CRATES.map(|name| Path::new(name).join("src")) {
        println!("cargo:rerun-if-changed={}", sources.display());
        let mut files = Vec::new();
        find(&sources, &mut files)?;
        files.sort();
        for file in files {
            hash.write(file.as_os_str().as_encoded_bytes());
            hash.write(&fs::read(&file)?);
        }
    }
    println!("cargo:rustc-env=HALIMEDE_LAYOUT_SOURCES={:016x}", hash.finish());
    Ok(())
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => find(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}
