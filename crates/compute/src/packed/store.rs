//! A folder of files of packed weights, bounded in bytes.

use super::file::{self, ALIGNMENT, Damage, HEAD_BYTES, Piece, parse};
use super::{Key, Packer};
use halimede_platform::mmap::MappedFile;
use halimede_tensor::Buffer;
use std::fs::{self, File, FileTimes};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// How files are called.
const EXTENSION: &str = "weights";
/// How they are called until they are whole.
const UNFINISHED: &str = "unfinished";
/// What somebody has begun and not gone on with for so long is given up.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A folder of packed weights. Several processes may use one at the same time.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
    bytes_max: u64,
}

/// A file that cannot be used, and why.
#[derive(Debug, thiserror::Error)]
#[error("packed weights in '{}': {cause}", path.display())]
pub struct StoreError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}

impl Store {
    /// The folder, which need not exist yet. Its files take at most `bytes_max`: those that were used longest ago go
    /// first.
    pub fn new(folder: PathBuf, bytes_max: u64) -> Store {
        Store { folder, bytes_max }
    }

    /// What was packed before; nothing where there is no file.
    ///
    /// # Errors
    /// There is one that cannot be read or does not hold what it should.
    pub fn find(&self, key: Key) -> Result<Option<Packer>, StoreError> {
        let path = self.path(key);
        let mapped = match MappedFile::open(&path) {
            Ok(mapped) => mapped,
            Err(error) if error.os_error().kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError { path, cause: error.into() }),
        };
        let pieces =
            parse(&mapped, key).map_err(|damage: Damage| StoreError { path: path.clone(), cause: damage.into() })?;
        // In a folder that cannot be written to, files look older than they are.
        let _ = File::open(&path).and_then(|file| file.set_times(FileTimes::new().set_modified(SystemTime::now())));
        Ok(Some(Packer::mapped(Buffer::foreign(Owner(mapped)), pieces)))
    }

    /// A packer that writes what it packs. The file is there when the packer has been finished.
    ///
    /// # Errors
    /// Nothing can be written there.
    pub fn writer(&self, key: Key) -> Result<Packer, StoreError> {
        let path = self.path(key);
        let begin = || {
            fs::create_dir_all(&self.folder)?;
            Writer::begin(self.clone(), path.clone(), key)
        };
        begin().map(Packer::writing).map_err(|cause| StoreError { path: path.clone(), cause: cause.into() })
    }

    /// Removes the file of a key, such as one that turned out to be of no use.
    pub fn remove(&self, key: Key) {
        // What cannot be removed is found to be of no use again.
        let _ = fs::remove_file(self.path(key));
    }

    fn path(&self, key: Key) -> PathBuf {
        self.folder.join(format!("{key}.{EXTENSION}"))
    }

    /// Removes files until what stays beside `newest` leaves room for it, and what nobody finishes any more.
    fn make_room(&self, newest: &Path) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)?.flatten() {
            let path = entry.path();
            // One that another process has just removed is gone, which is as well.
            let Ok(metadata) = entry.metadata() else { continue };
            let Ok(used) = metadata.modified() else { continue };
            let extension = path.extension().unwrap_or_default();
            if extension == UNFINISHED && used.elapsed().is_ok_and(|age| age > ABANDONED) {
                let _ = fs::remove_file(&path);
            } else if extension == EXTENSION && path != newest {
                files.push((used, metadata.len(), path));
            }
        }
        files.sort();
        let mut taken = fs::metadata(newest)?.len() + files.iter().map(|(_, bytes, _)| bytes).sum::<u64>();
        for (_, bytes, path) in files {
            if taken <= self.bytes_max {
                break;
            }
            // A process that has mapped it keeps its pages.
            fs::remove_file(path)?;
            taken -= bytes;
        }
        Ok(())
    }
}

/// Keeps the file mapped as long as somebody reads weights in it.
struct Owner(MappedFile);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A file that is being written. It is removed unless it is finished.
#[derive(Debug)]
pub(super) struct Writer {
    store: Store,
    path: PathBuf,
    unfinished: PathBuf,
    key: Key,
    file: File,
    /// Where the next piece lies.
    end: usize,
    pieces: Vec<Piece>,
}

impl Writer {
    fn begin(store: Store, path: PathBuf, key: Key) -> io::Result<Writer> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let own = format!("{}-{}.{UNFINISHED}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let unfinished = path.with_extension(own);
        let mut file = File::create(&unfinished)?;
        file.write_all(&[0; HEAD_BYTES])?;
        Ok(Writer { store, path, unfinished, key, file, end: HEAD_BYTES, pieces: Vec::new() })
    }

    pub fn write(&mut self, layout: u64, bytes: &[u8]) -> io::Result<()> {
        let padded = bytes.len().next_multiple_of(ALIGNMENT);
        if (self.end + padded) as u64 > self.store.bytes_max {
            let text = format!("it would be larger than the {} bytes for all files", self.store.bytes_max);
            return Err(io::Error::new(io::ErrorKind::StorageFull, text));
        }
        self.file.write_all(bytes)?;
        self.file.write_all(&[0; ALIGNMENT][..padded - bytes.len()])?;
        self.pieces.push(Piece::new(layout, self.end, bytes));
        self.end += padded;
        Ok(())
    }

    /// Gives the file its name when it is whole on the disk: a machine that loses power leaves no half of it.
    pub fn finish(mut self) -> io::Result<()> {
        let (head, table) = file::head_and_table(&self.pieces, self.end, self.key);
        self.file.write_all(&table)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&head)?;
        self.file.sync_all()?;
        fs::rename(&self.unfinished, &self.path)?;
        self.store.make_room(&self.path)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Nothing is there any more once it was renamed.
        let _ = fs::remove_file(&self.unfinished);
    }
}
