//! Memory mappings: files read-only, and anonymous memory with a chosen alignment.

use std::fs::{self, File, Metadata};
use std::ops::{Deref, DerefMut, Range};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use crate::Error;
use crate::unix::{self, Mapping};

/// Size of a memory page in bytes (4 KiB on most Linux machines, 16 KiB on Apple silicon).
pub fn page_size() -> usize {
    unix::page_size()
}

/// How a part of a mapping is going to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// No particular order: the system's default.
    Normal,
    /// From front to back: read ahead more, drop early.
    Sequential,
    /// Anywhere: do not read ahead.
    Random,
    /// Soon: start reading now.
    WillNeed,
    /// Not soon: the pages may leave memory; reading them again fetches them from the file.
    DontNeed,
}

/// A whole file, mapped read-only and private.
///
/// The bytes are fetched on first touch and shared with every other process that maps the file.
/// A file that another process *truncates* while it is mapped raises `SIGBUS` on the next touch
/// of the lost pages, on every POSIX system: replace model files by renaming, never in place.
#[derive(Debug)]
pub struct MappedFile {
    mapping: Mapping,
    path: PathBuf,
    version: Version,
}

/// What changes when a file is written to or replaced.
#[derive(Debug, PartialEq, Eq)]
struct Version {
    device: u64,
    inode: u64,
    length: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl Version {
    fn of(metadata: &Metadata) -> Self {
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Self { device: metadata.dev(), inode: metadata.ino(), length: metadata.len(), modified }
    }
}

impl MappedFile {
    /// Maps the regular file at `path`. An empty file gives an empty slice.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let object = || format!("file '{}'", path.display());
        // Opening a pipe that has a name waits for somebody who writes to it.
        let require_regular = |metadata: &Metadata| match metadata.is_file() {
            true => Ok(()),
            false => {
                let cause = std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file");
                Err(Error::new("map", object(), cause))
            }
        };
        require_regular(&fs::metadata(path).map_err(|cause| Error::new("open", object(), cause))?)?;
        let file = File::open(path).map_err(|cause| Error::new("open", object(), cause))?;
        let metadata = file.metadata().map_err(|cause| Error::new("inspect", object(), cause))?;
        require_regular(&metadata)?;
        let length = usize::try_from(metadata.len())
            .map_err(|_| Error::new("map", object(), std::io::ErrorKind::FileTooLarge.into()))?;
        let mapping = Mapping::file_private(&file, length).map_err(|cause| Error::new("map", object(), cause))?;
        Ok(Self { mapping, path: path.to_owned(), version: Version::of(&metadata) })
    }

    /// Whether the path still names the file that was mapped, and nobody has written to it since.
    pub fn is_unchanged(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|metadata| Version::of(&metadata) == self.version)
    }

    /// Tells the system how `range` (bytes) is going to be read. Advice: it changes no content.
    ///
    /// # Panics
    /// When `range` is not inside the file.
    pub fn advise(&self, range: Range<usize>, advice: Advice) -> Result<(), Error> {
        self.mapping.advise(range, advice).map_err(|cause| Error::new("advise on", "a mapped file", cause))
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is readable for its whole length as long as `self` lives, and
        // private: no write of this process reaches it. Another process that writes to the file
        // could change the bytes; the type's contract is that files are replaced, not rewritten.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr(), self.mapping.len()) }
    }
}

/// Zeroed anonymous memory that starts at a multiple of a chosen alignment.
#[derive(Debug)]
pub struct AnonymousMap {
    mapping: Mapping,
}

impl AnonymousMap {
    /// Reserves `length` zeroed bytes at an address that is a multiple of `alignment` (a power of two).
    /// Pages become resident when they are first touched.
    pub fn new(length: usize, alignment: usize) -> Result<Self, Error> {
        let object = || format!("{length} bytes of memory aligned to {alignment}");
        if !alignment.is_power_of_two() {
            let cause = std::io::Error::new(std::io::ErrorKind::InvalidInput, "the alignment is not a power of two");
            return Err(Error::new("map", object(), cause));
        }
        let mapping = Mapping::anonymous(length, alignment).map_err(|cause| Error::new("map", object(), cause))?;
        Ok(Self { mapping })
    }

    /// The first byte, for callers that share the memory out among writers themselves.
    pub fn start(&self) -> NonNull<u8> {
        self.mapping.start()
    }

    /// Asks for huge pages behind this memory (transparent huge pages on Linux). Where the system
    /// has none to give, nothing happens: macOS decides on its own, and a kernel may be built without.
    pub fn prefer_huge_pages(&self) {
        self.mapping.prefer_huge_pages();
    }

    /// Asks for small pages even where the system would give huge ones unasked (Linux): a little memory stays little.
    pub fn refuse_huge_pages(&self) {
        self.mapping.refuse_huge_pages();
    }
}

impl Deref for AnonymousMap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: readable for its whole length as long as `self` lives; writes need `&mut self`.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr(), self.mapping.len()) }
    }
}

impl DerefMut for AnonymousMap {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped readable and writable, owned by this value alone, borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.as_ptr(), self.mapping.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str, content: &[u8]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("halimede-mmap-{}-{name}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        path
    }

    #[test]
    fn a_mapped_file_is_its_bytes() {
        let content: Vec<u8> = (0..100_003u32).map(|i| (i % 251) as u8).collect();
        let path = scratch("bytes", &content);
        let map = MappedFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap(); // the mapping outlives the name
        assert_eq!(&map[..], &content[..]);
        for advice in [Advice::Sequential, Advice::Random, Advice::WillNeed, Advice::DontNeed, Advice::Normal] {
            map.advise(17..90_001, advice).unwrap();
            assert_eq!(&map[..], &content[..], "{advice:?} changed the content");
        }
        map.advise(5..5, Advice::WillNeed).unwrap();
    }

    #[test]
    fn an_empty_file_is_an_empty_slice() {
        let path = scratch("empty", b"");
        let map = MappedFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(map.is_empty());
        map.advise(0..0, Advice::WillNeed).unwrap();
    }

    #[test]
    fn errors_name_the_file() {
        let missing = MappedFile::open("/nowhere/weights.bin").unwrap_err();
        assert!(missing.to_string().starts_with("cannot open file '/nowhere/weights.bin': "), "{missing}");
        assert_eq!(missing.os_error().kind(), std::io::ErrorKind::NotFound);
        let folder = MappedFile::open("/").unwrap_err();
        assert_eq!(folder.to_string(), "cannot map file '/': not a regular file");
    }

    #[test]
    #[should_panic(expected = "advice on bytes 0..2 of a mapping of 1")]
    fn advice_outside_the_file_panics() {
        let path = scratch("outside", b"x");
        let map = MappedFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _ = map.advise(0..2, Advice::Normal);
    }

    #[test]
    fn anonymous_memory_is_aligned_zeroed_and_writable() {
        for (length, alignment) in [(1, 1), (4096, 64), (100_000, 4096), (3 << 20, 2 << 20), (0, 64), (1, 1 << 24)] {
            let mut map = AnonymousMap::new(length, alignment).unwrap();
            assert_eq!(map.len(), length);
            assert_eq!(map.as_ptr() as usize % alignment, 0, "{length} bytes aligned to {alignment}");
            assert!(map.iter().all(|&byte| byte == 0));
            if length % 2 == 0 {
                map.prefer_huge_pages()
            } else {
                map.refuse_huge_pages()
            }
            map.fill(7);
            assert!(map.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn impossible_anonymous_memory_is_an_error() {
        assert!(AnonymousMap::new(1, 3).unwrap_err().to_string().contains("power of two"));
        for (length, alignment) in [(usize::MAX, 64), (usize::MAX / 2, 1 << 62), (1 << 60, 64)] {
            let error = AnonymousMap::new(length, alignment).unwrap_err();
            assert!(error.to_string().contains(&length.to_string()), "{error}");
        }
    }
}
