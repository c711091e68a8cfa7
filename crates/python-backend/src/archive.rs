//! Unpacks archives of environments, as `conda pack` makes them: tar, mostly compressed with gzip.
//!
//! An archive counts as bytes from outside. Nothing is written outside the target: every entry is named below it, none
//! is written through a link, and links stay inside.

use std::{
    fmt,
    fs::{self, File},
    io::{self, BufReader, Read},
    path::{Component, Path, PathBuf},
};

use flate2::bufread::MultiGzDecoder;
use tar::{Archive, Entry, EntryType};

const GZIP: &[u8] = &[0x1f, 0x8b];

/// What the first block of a tar archive holds, and where.
const TAR: (usize, &[u8]) = (257, b"ustar");

/// What a file is by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Tar,
    TarGzip,
    Other,
}

impl Format {
    pub fn of(path: &Path) -> io::Result<Self> {
        let (place, magic) = TAR;
        let mut head = Vec::new();
        File::open(path)?.take((place + magic.len()) as u64).read_to_end(&mut head)?;
        if head.starts_with(GZIP) {
            return Ok(Self::TarGzip);
        }
        Ok(if head.get(place..) == Some(magic) { Self::Tar } else { Self::Other })
    }
}

/// Why an archive was not unpacked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It cannot be read, or what it holds not be written.
    Io(io::Error),
    /// An entry does what it must not.
    Entry { path: String, what: &'static str },
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Entry { path, what } => write!(f, "its entry '{path}' {what}"),
        }
    }
}

/// Unpacks `archive` into the new folder `target`. After an error there is no such folder.
pub(crate) fn unpack(archive: &Path, format: Format, target: &Path) -> Result<(), Failure> {
    fs::create_dir(target)?;
    let done = unpack_into(archive, format, target);
    if done.is_err() {
        // What cannot be removed goes with the folder around it.
        let _ = fs::remove_dir_all(target);
    }
    done
}

fn unpack_into(archive: &Path, format: Format, target: &Path) -> Result<(), Failure> {
    let file = BufReader::new(File::open(archive)?);
    let mut reader: Box<dyn Read> = match format {
        Format::TarGzip => Box::new(MultiGzDecoder::new(file)),
        Format::Tar | Format::Other => Box::new(file),
    };
    let mut archive = Archive::new(&mut reader);
    archive.set_overwrite(false);
    let mut links = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        write(&mut entry, &path, target, &mut links).map_err(|failure| match failure {
            Stop::Io(error) => Failure::Io(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
            Stop::Refused(what) => Failure::Entry { path: path.display().to_string(), what },
        })?;
    }
    // The checksum of what is compressed stands at its end.
    io::copy(&mut reader, &mut io::sink())?;
    // A link may leave through another one: now all of them are there.
    let root = target.canonicalize()?;
    for path in links {
        if target.join(&path).canonicalize().is_ok_and(|end| !end.starts_with(&root)) {
            return Err(Failure::Entry { path: path.display().to_string(), what: LEAVES });
        }
    }
    Ok(())
}

const LEAVES: &str = "is a link that leaves the environment";

enum Stop {
    Io(io::Error),
    Refused(&'static str),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Writes an entry. Links that have to stay inside are added to `links`.
fn write<R: Read>(entry: &mut Entry<'_, R>, path: &Path, target: &Path, links: &mut Vec<PathBuf>) -> Result<(), Stop> {
    let Some(inside) = normal(Path::new(""), path) else {
        return Err(Stop::Refused("leaves the environment"));
    };
    if passes_link(target, &inside) {
        return Err(Stop::Refused("lies behind a link"));
    }
    let kind = entry.header().entry_type();
    match kind {
        // Its mode might keep its files from being written, and it from being removed.
        EntryType::Directory => return Ok(fs::create_dir_all(target.join(inside))?),
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {}
        EntryType::Symlink => {
            let to = entry.link_name()?.unwrap_or_default().into_owned();
            let folder = inside.parent().unwrap_or(Path::new(""));
            match normal(folder, &to) {
                // A virtual environment does not bring its interpreter.
                Some(_) if is_interpreter(&inside) => {}
                None if is_interpreter(&inside) && to.is_absolute() => {}
                Some(_) => links.push(inside.clone()),
                None => return Err(Stop::Refused(LEAVES)),
            }
        }
        EntryType::Link => {
            let to = entry.link_name()?.unwrap_or_default().into_owned();
            match normal(Path::new(""), &to) {
                Some(to) if !passes_link(target, &to) => {}
                _ => return Err(Stop::Refused(LEAVES)),
            }
        }
        EntryType::XGlobalHeader => return Ok(()),
        _ => return Err(Stop::Refused("is neither a file nor a folder nor a link")),
    }
    match entry.unpack_in(target)? {
        true => Ok(()),
        false => Err(Stop::Refused("leaves the environment")),
    }
}

/// `path`, seen from `folder`, without dots; `None` where it leaves the root or begins elsewhere.
fn normal(folder: &Path, path: &Path) -> Option<PathBuf> {
    let mut result = folder.to_path_buf();
    for component in path.components() {
        match component {
            Component::Normal(name) => result.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !result.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(result)
}

/// Whether a folder on the way to `path` is a link.
fn passes_link(target: &Path, path: &Path) -> bool {
    let mut folders = path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
    folders.any(|folder| target.join(folder).is_symlink())
}

fn is_interpreter(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.parent() == Some(Path::new("bin")) && name.starts_with("python")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};
    use tar::{Builder, Header};

    use super::*;

    /// A folder of the test's own, which goes with it.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("halimede-archive-{name}-{}", std::process::id()));
            // Left by a run that was ended.
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn unpack(&self, bytes: &[u8]) -> Result<PathBuf, Failure> {
            let archive = self.0.join("archive");
            fs::write(&archive, bytes).unwrap();
            let target = self.0.join("target");
            let _ = fs::remove_dir_all(&target);
            unpack(&archive, Format::of(&archive)?, &target).map(|()| target)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    /// One entry: kind, path as it stands in the archive, and the content or the link.
    type Line<'a> = (EntryType, &'a str, &'a str);

    fn tar(lines: &[Line<'_>]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (kind, path, content) in lines {
            let mut header = Header::new_ustar();
            // As bytes: the builder refuses what an attacker writes.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o755);
            let is_file = *kind == EntryType::Regular;
            if !is_file {
                header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
            }
            header.set_size(if is_file { content.len() as u64 } else { 0 });
            header.set_cksum();
            builder.append(&header, if is_file { content.as_bytes() } else { &[] }).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    const FILE: EntryType = EntryType::Regular;
    const LINK: EntryType = EntryType::Symlink;
    const GOOD: &[Line<'static>] = &[
        (EntryType::Directory, "./bin/", ""),
        (FILE, "./bin/python3.8", "#!/bin/sh"),
        (LINK, "bin/python3", "python3.8"),
        (LINK, "bin/python", "/bin/sh"),
        (LINK, "bin/python3.9", "python"),
        (EntryType::Link, "bin/same", "bin/python3.8"),
        (FILE, "lib/a/b.py", "text"),
        (LINK, "lib/up", "../lib/a"),
        (LINK, "lib/dangles", "nowhere/at/all"),
    ];

    #[test]
    fn environments_are_unpacked_with_their_links() {
        let place = Place::new("good");
        for bytes in [tar(GOOD), gzip(&tar(GOOD))] {
            let target = place.unpack(&bytes).unwrap();
            assert_eq!(fs::read_to_string(target.join("lib/up/b.py")).unwrap(), "text");
            assert_eq!(fs::read_link(target.join("bin/python3")).unwrap(), Path::new("python3.8"));
            assert_eq!(fs::read_to_string(target.join("bin/same")).unwrap(), "#!/bin/sh");
        }
    }

    #[test]
    fn nothing_is_written_outside_and_nothing_is_left_of_what_tries() {
        let place = Place::new("bad");
        fs::write(place.0.join("secret"), "s").unwrap();
        for (lines, why) in [
            (&[(FILE, "../evil", "x")][..], "leaves the environment"),
            (&[(FILE, "a/../../evil", "x")], "leaves the environment"),
            (&[(FILE, "/tmp/evil", "x")], "leaves the environment"),
            (&[(LINK, "lib", "..")], LEAVES),
            (&[(LINK, "lib", "/etc")], LEAVES),
            (&[(LINK, "bin/other", "/usr/bin/python3")], LEAVES),
            (&[(LINK, "bin/python/..", "/etc")], LEAVES),
            (&[(LINK, "other", "a"), (FILE, "a/b", ""), (FILE, "other/evil", "x")], "lies behind a link"),
            (&[(LINK, "bin/python9", "/tmp"), (FILE, "bin/python9/evil", "x")], "lies behind a link"),
            // Each link alone stays inside.
            (&[(LINK, "here", "."), (LINK, "out", "here/../secret")], LEAVES),
            (&[(EntryType::Link, "copy", "../secret")], LEAVES),
            (&[(LINK, "bin/python9", "/etc"), (EntryType::Link, "copy", "bin/python9/passwd")], LEAVES),
            (&[(EntryType::Fifo, "pipe", "")], "is neither a file nor a folder nor a link"),
            (&[(EntryType::Char, "null", "")], "is neither a file nor a folder nor a link"),
        ] {
            let failure = place.unpack(&gzip(&tar(&[GOOD, lines].concat()))).unwrap_err();
            assert!(failure.to_string().ends_with(why), "{lines:?}: {failure}");
            let mut left: Vec<_> = fs::read_dir(&place.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            left.sort();
            assert_eq!(left, ["archive", "secret"], "{lines:?}");
        }
    }

    #[test]
    fn an_archive_that_is_cut_off_or_changed_is_an_error_or_whole() {
        let place = Place::new("cut");
        let whole = gzip(&tar(&[GOOD, &[(FILE, "lib/last", "end")]].concat()));
        for length in (0..whole.len()).step_by(7) {
            assert!(place.unpack(&whole[..length]).is_err() || length == 0, "{length}");
        }
        for index in (0..whole.len()).step_by(3) {
            let mut changed = whole.clone();
            changed[index] ^= 0x55;
            // Fields of the header, such as the time, change nothing.
            if let Ok(target) = place.unpack(&changed)
                && Format::of(&place.0.join("archive")).unwrap() == Format::TarGzip
            {
                assert_eq!(fs::read_to_string(target.join("lib/last")).unwrap(), "end", "{index}");
            }
        }
    }
}
