//! POSIX shared memory: regions that a client created and this process maps, and objects of our own.
//!
//! Keys are passed to `shm_open` as they are. On macOS a key is at most 31 bytes long
//! (`PSHMNAMLEN`) and the size of an object is a whole number of pages, so an object there may
//! look larger than what its creator asked for; neither is so on Linux.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::unix::{self, Mapping};

/// Why a shared-memory region cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SharedMemoryError {
    /// No object has this key, or this process may not open it, or the key is malformed.
    #[error("cannot open shared-memory object '{key}': {cause}")]
    Open {
        /// The key as given.
        key: String,
        /// The system's error.
        cause: io::Error,
    },
    /// The object ends before the region does.
    #[error("shared-memory object '{key}' has {size} bytes: {length} bytes from offset {offset} do not fit")]
    TooSmall {
        /// The key as given.
        key: String,
        /// Size of the object in bytes.
        size: u64,
        /// Start of the wanted region in bytes.
        offset: u64,
        /// Length of the wanted region in bytes.
        length: u64,
    },
    /// The object was opened, and looking at it or mapping it failed.
    #[error("cannot map shared-memory object '{key}': {cause}")]
    Map {
        /// The key as given.
        key: String,
        /// The system's error.
        cause: io::Error,
    },
    /// The key could not be created or removed.
    #[error("cannot {action} shared-memory object '{key}': {cause}")]
    Manage {
        /// `create` or `unlink`.
        action: &'static str,
        /// The key as given.
        key: String,
        /// The system's error.
        cause: io::Error,
    },
    /// A copy reaches over the end of the mapped region.
    #[error(
        "bytes {offset}..{offset}+{length} lie outside the {region} bytes of the region of shared-memory object '{key}'"
    )]
    OutOfRange {
        /// The key as given.
        key: String,
        /// Start of the copy, in bytes from the start of the region.
        offset: usize,
        /// Length of the copy in bytes.
        length: usize,
        /// Length of the region in bytes.
        region: usize,
    },
}

impl SharedMemoryError {
    /// The system's error, where there is one.
    pub fn cause(&self) -> Option<&io::Error> {
        match self {
            Self::Open { cause, .. } | Self::Map { cause, .. } | Self::Manage { cause, .. } => Some(cause),
            Self::TooSmall { .. } | Self::OutOfRange { .. } => None,
        }
    }
}

/// A mapped region of a shared-memory object: `length` bytes from `offset`, readable and writable.
///
/// Another process can write to the same bytes at any moment, so no `&[u8]` into the region is
/// handed out: [`read`](Self::read) and [`write`](Self::write) copy. It can also shrink the
/// object, after which touching the lost pages raises `SIGBUS`; both therefore ask for the
/// object's size first, which turns a shrunk region into an error (all but the race of a client
/// that shrinks its region during the copy, which no POSIX call closes).
#[derive(Debug)]
pub struct SharedRegion {
    key: String,
    object: OwnedFd,
    offset: u64,
    mapping: Mapping,
}

impl SharedRegion {
    /// Maps `length` bytes from byte `offset` of the existing object `key`.
    ///
    /// The offset need not be a multiple of the page size.
    pub fn open(key: &str, offset: u64, length: u64) -> Result<Self, SharedMemoryError> {
        let object = c_key(key)
            .and_then(|name| unix::open_shared_memory(&name))
            .map_err(|cause| SharedMemoryError::Open { key: key.to_owned(), cause })?;
        Self::map(key, object, offset, length)
    }

    fn map(key: &str, object: OwnedFd, offset: u64, length: u64) -> Result<Self, SharedMemoryError> {
        require_size(key, &object, offset, length)?;
        let mapping = usize::try_from(length)
            .map_err(|_| io::ErrorKind::OutOfMemory.into())
            .and_then(|length| Mapping::shared(object.as_fd(), offset, length))
            .map_err(|cause| SharedMemoryError::Map { key: key.to_owned(), cause })?;
        Ok(Self { key: key.to_owned(), object, offset, mapping })
    }

    /// The key of the object that the region belongs to.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Start of the region within its object, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length of the region in bytes.
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `target.len()` bytes out of the region, from byte `from` of it, and returns the target.
    pub fn read<'a>(&self, from: usize, target: &'a mut [MaybeUninit<u8>]) -> Result<&'a mut [u8], SharedMemoryError> {
        let source = self.checked(from, target.len())?;
        // SAFETY: `checked` proved that the range is mapped.
        Ok(unsafe { copied(source, target) })
    }

    /// Copies `source` into the region, from byte `to` of it.
    pub fn write(&self, to: usize, source: &[u8]) -> Result<(), SharedMemoryError> {
        let target = self.checked(to, source.len())?;
        // SAFETY: as in `copied`. Threads of this process that write to one region at a time can
        // interleave their bytes, as processes can; no reference into the region exists.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
        Ok(())
    }

    /// First byte of the region. Valid for [`len`](Self::len) bytes as long as `self` lives;
    /// whoever reads through it must bear that other processes write there.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// Whether the object still backs every byte of the region (one `fstat`).
    pub fn check_backing(&self) -> Result<(), SharedMemoryError> {
        require_size(&self.key, &self.object, self.offset, self.len() as u64)
    }

    fn checked(&self, offset: usize, length: usize) -> Result<*mut u8, SharedMemoryError> {
        let place = self.place(offset, length)?;
        self.check_backing()?;
        Ok(place)
    }

    /// Where so many bytes lie in the mapping, which the object may not back any more.
    fn place(&self, offset: usize, length: usize) -> Result<*mut u8, SharedMemoryError> {
        let region = self.len();
        if offset.checked_add(length).is_none_or(|end| end > region) {
            return Err(SharedMemoryError::OutOfRange { key: self.key.clone(), offset, length, region });
        }
        // SAFETY: `offset` is at most the length of the mapping.
        Ok(unsafe { self.as_ptr().add(offset) })
    }
}

/// Copies bytes of a region.
///
/// # Safety
/// As many bytes as the target has are mapped from `source` on.
unsafe fn copied(source: *const u8, target: &mut [MaybeUninit<u8>]) -> &mut [u8] {
    // SAFETY: `target` is memory of this process and cannot overlap. A concurrent writer in another process can tear the
    // copy, which only affects that client's own data: every bit pattern is a valid byte. All bytes are written.
    unsafe {
        std::ptr::copy_nonoverlapping(source, target.as_mut_ptr().cast(), target.len());
        target.assume_init_mut()
    }
}

/// A shared-memory object that this process created; its key, where it has one, disappears on drop.
///
/// Those who are given its key are trusted not to shrink it: [`read`](Self::read) and [`write`](Self::write) do not ask
/// for its size, which would take longer than a small copy. For others there is [`region`](Self::region).
#[derive(Debug)]
pub struct OwnedSharedMemory {
    region: SharedRegion,
    has_key: bool,
}

impl OwnedSharedMemory {
    /// Creates an object of `length` zeroed bytes under a key that must not exist yet, and takes the memory for
    /// it. Only processes of the same user can open it.
    pub fn create(key: &str, length: u64) -> Result<Self, SharedMemoryError> {
        let object = create(key)?;
        let region = sized(key, object, length).inspect_err(|_| {
            let _ = unlink(key); // the first error is the one to report
        })?;
        Ok(Self { region, has_key: true })
    }

    /// Creates an object as [`create`](Self::create) does, whose key is removed before it has memory: nobody finds it, and nothing
    /// stays of it when this process is killed. Others get it by [`send`](Self::send).
    pub fn create_without_key(key: &str, length: u64) -> Result<Self, SharedMemoryError> {
        let object = create(key)?;
        unlink(key)?;
        Ok(Self { region: sized(key, object, length)?, has_key: false })
    }

    /// Sends a descriptor of the object, as [`send_with_descriptor`] does.
    pub fn send(&self, socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
        send_with_descriptor(socket, bytes, self.region.object.as_fd())
    }

    /// Copies `target.len()` bytes out of the object, from byte `from` of it, and returns the target.
    ///
    /// # Errors
    /// It ends before.
    pub fn read<'a>(&self, from: usize, target: &'a mut [MaybeUninit<u8>]) -> Result<&'a mut [u8], SharedMemoryError> {
        let source = self.region.place(from, target.len())?;
        // SAFETY: the range is mapped, and the object has kept its size.
        Ok(unsafe { copied(source, target) })
    }

    /// Copies `source` into the object, from byte `to` of it.
    ///
    /// # Errors
    /// It ends before.
    pub fn write(&self, to: usize, source: &[u8]) -> Result<(), SharedMemoryError> {
        let target = self.region.place(to, source.len())?;
        // SAFETY: as in `SharedRegion::write`; the object has kept its size.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
        Ok(())
    }

    /// The whole object as a region.
    pub fn region(&self) -> &SharedRegion {
        &self.region
    }
}

impl Drop for OwnedSharedMemory {
    fn drop(&mut self) {
        if self.has_key {
            // Somebody else may have removed the key already, which is what this wants.
            let _ = unlink(&self.region.key);
        }
    }
}

/// An object of no bytes under a new key.
fn create(key: &str) -> Result<OwnedFd, SharedMemoryError> {
    let created = c_key(key).and_then(|name| unix::create_shared_memory(&name));
    created.map_err(|cause| SharedMemoryError::Manage { action: "create", key: key.to_owned(), cause })
}

/// A new object with memory for `length` bytes, mapped.
fn sized(key: &str, object: OwnedFd, length: u64) -> Result<SharedRegion, SharedMemoryError> {
    unix::size_shared_memory(object.as_fd(), length).map_err(|cause| SharedMemoryError::Manage {
        action: "create",
        key: key.to_owned(),
        cause,
    })?;
    SharedRegion::map(key, object, 0, length)
}

/// Writes to a connected Unix socket; who reads the first byte gets a copy of the descriptor. Returns how many bytes were
/// written: the rest is to be written without it.
///
/// # Errors
/// Those of writing to a socket. The system's limit of descriptors that are on their way is one.
pub fn send_with_descriptor(socket: BorrowedFd<'_>, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<usize> {
    unix::send_with_descriptor(socket, bytes, descriptor)
}

/// Removes a key. Processes that have the object mapped keep it.
pub fn unlink(key: &str) -> Result<(), SharedMemoryError> {
    c_key(key).and_then(|name| unix::unlink_shared_memory(&name)).map_err(|cause| SharedMemoryError::Manage {
        action: "unlink",
        key: key.to_owned(),
        cause,
    })
}

fn c_key(key: &str) -> io::Result<CString> {
    CString::new(key).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the key contains a zero byte"))
}

fn require_size(key: &str, object: &OwnedFd, offset: u64, length: u64) -> Result<(), SharedMemoryError> {
    let size =
        unix::object_size(object.as_fd()).map_err(|cause| SharedMemoryError::Map { key: key.to_owned(), cause })?;
    if offset.checked_add(length).is_none_or(|end| end > size) {
        return Err(SharedMemoryError::TooSmall { key: key.to_owned(), size, offset, length });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Short enough for macOS, different in each test and process.
    fn key(name: &str) -> String {
        format!("/hm-{}-{name}", std::process::id())
    }

    #[test]
    fn two_mappings_of_one_object_see_the_same_bytes() {
        let key = key("same");
        let owner = OwnedSharedMemory::create(&key, 10_000).unwrap();
        // an offset that is no multiple of any page size
        let client = SharedRegion::open(&key, 4_099, 1_000).unwrap();
        assert_eq!((client.key(), client.offset(), client.len()), (key.as_str(), 4_099, 1_000));
        client.write(3, b"halimede").unwrap();
        let mut seen = [MaybeUninit::uninit(); 8];
        assert_eq!(owner.region().read(4_102, &mut seen).unwrap(), b"halimede");
        owner.region().write(4_099, &[255; 3]).unwrap();
        assert_eq!(client.read(0, &mut seen[..4]).unwrap(), [255, 255, 255, b'h']);
    }

    #[test]
    fn cannot_open_and_too_small_are_told_apart() {
        let key = key("small");
        assert!(matches!(SharedRegion::open(&key, 0, 1), Err(SharedMemoryError::Open { .. })));
        assert!(matches!(SharedRegion::open("/zero\0byte", 0, 1), Err(SharedMemoryError::Open { .. })));
        let owner = OwnedSharedMemory::create(&key, 65_536).unwrap();
        assert!(SharedRegion::open(&key, 0, 65_536).is_ok());
        for (offset, length) in [(0, 65_537), (1, 65_536), (65_536, 1), (u64::MAX, 2), (1, u64::MAX)] {
            let error = SharedRegion::open(&key, offset, length).unwrap_err();
            assert!(matches!(error, SharedMemoryError::TooSmall { size: 65_536, .. }), "{offset} {length}: {error}");
        }
        drop(owner);
        assert!(matches!(SharedRegion::open(&key, 0, 1), Err(SharedMemoryError::Open { .. })));
    }

    #[test]
    fn copies_outside_the_region_are_errors() {
        let owner = OwnedSharedMemory::create(&key("out"), 100).unwrap();
        let region = owner.region();
        let mut bytes = [MaybeUninit::uninit(); 2];
        assert!(region.read(98, &mut bytes).is_ok());
        for from in [99, 100, 101, usize::MAX] {
            assert!(matches!(region.read(from, &mut bytes), Err(SharedMemoryError::OutOfRange { .. })));
            assert!(matches!(region.write(from, &[0; 2]), Err(SharedMemoryError::OutOfRange { .. })));
        }
        assert!(region.write(100, &[]).is_ok());
        owner.write(98, &[7; 2]).unwrap();
        assert_eq!(owner.read(98, &mut bytes).unwrap(), [7; 2]);
        for from in [99, 100, 101, usize::MAX] {
            assert!(matches!(owner.read(from, &mut bytes), Err(SharedMemoryError::OutOfRange { .. })));
            assert!(matches!(owner.write(from, &[0; 2]), Err(SharedMemoryError::OutOfRange { .. })));
        }
    }

    #[test]
    #[cfg(target_os = "linux")] // macOS refuses to resize an object
    fn a_region_whose_object_shrank_is_an_error_not_a_crash() {
        use std::os::fd::AsRawFd;
        let key = key("shrunk");
        let owner = OwnedSharedMemory::create(&key, 65_536).unwrap();
        let region = SharedRegion::open(&key, 32_768, 32_768).unwrap();
        // SAFETY: a valid descriptor and a plain integer.
        let result = unsafe { libc::ftruncate(owner.region().object.as_raw_fd(), 4_096) };
        assert_eq!(result, 0);
        let mut byte = [MaybeUninit::uninit()];
        assert!(matches!(region.read(30_000, &mut byte), Err(SharedMemoryError::TooSmall { size: 4_096, .. })));
        assert!(matches!(region.write(0, &[0]), Err(SharedMemoryError::TooSmall { .. })));
    }

    #[test]
    fn an_object_without_a_key_is_handed_over() {
        use std::os::fd::{AsRawFd, FromRawFd};
        use std::os::unix::net::UnixStream;
        let key = key("none");
        let owner = OwnedSharedMemory::create_without_key(&key, 100).unwrap();
        assert!(matches!(SharedRegion::open(&key, 0, 100), Err(SharedMemoryError::Open { .. })));
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert_eq!(owner.send(ours.as_fd(), b"take it").unwrap(), 7);
        let (mut bytes, mut control) = ([0u8; 16], [0u64; 8]);
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: all zero bytes are a valid header.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control) as _);
        // SAFETY: a header whose parts live until the call returns.
        assert_eq!(unsafe { libc::recvmsg(theirs.as_raw_fd(), &raw mut message, 0) }, 7);
        assert_eq!(&bytes[..7], b"take it");
        // SAFETY: the system has filled in a control message with one descriptor, which nobody else owns.
        let object = unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            assert_eq!(((*header).cmsg_level, (*header).cmsg_type), (libc::SOL_SOCKET, libc::SCM_RIGHTS));
            OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned())
        };
        let region = SharedRegion::map(&key, object, 0, 100).unwrap();
        region.write(3, b"halimede").unwrap();
        let mut seen = [MaybeUninit::uninit(); 8];
        assert_eq!(owner.read(3, &mut seen).unwrap(), b"halimede");
        drop(theirs);
        assert_eq!(owner.send(ours.as_fd(), b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn creating_an_existing_key_and_unlinking_a_missing_one_are_errors() {
        let key = key("twice");
        let owner = OwnedSharedMemory::create(&key, 1).unwrap();
        let error = OwnedSharedMemory::create(&key, 1).unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot create shared-memory object '{key}': ")), "{error}");
        drop(owner);
        assert!(unlink(&key).unwrap_err().to_string().starts_with("cannot unlink"));
    }

    #[test]
    #[cfg(target_os = "linux")] // on macOS memory is taken when it is touched
    fn more_than_there_is_room_for_is_an_error_not_a_crash() {
        let key = key("room");
        let error = OwnedSharedMemory::create(&key, 1 << 50).unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot create shared-memory object '{key}': ")), "{error}");
        assert!(matches!(SharedRegion::open(&key, 0, 1), Err(SharedMemoryError::Open { .. })));
    }

    #[test]
    fn an_empty_region_is_allowed() {
        let owner = OwnedSharedMemory::create(&key("empty"), 0).unwrap();
        assert!(owner.region().is_empty());
        owner.region().read(0, &mut []).unwrap();
    }
}
