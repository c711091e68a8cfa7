//! What Linux and macOS share: mappings, POSIX shared memory, the signal pipe, resource limits.
//! Thin: each function is one system call with its result turned into `io::Result`.

use std::ffi::{CStr, c_void};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use crate::mmap::Advice;

/// Turns the usual convention, -1 and `errno`, into a result.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub(crate) fn page_size() -> usize {
    // SAFETY: reads a constant of the system; no pointer is involved.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // POSIX requires the value; 4096 would only ever cost alignment, not correctness of a length.
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
}

/// A range of addresses obtained from `mmap`, unmapped on drop.
///
/// `start..start + length` is what was asked for; `base..base + reserved` is what the system
/// mapped, which whole pages and alignment can make larger.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    reserved: usize,
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping is memory and belongs to no thread; who may read or write it, and when, is
// the duty of the types built on it.
unsafe impl Send for Mapping {}
// SAFETY: as above: `&Mapping` only hands out a pointer and advice.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `length` bytes of `file`, read-only and private.
    pub(crate) fn file_private(file: &File, length: usize) -> io::Result<Self> {
        if length == 0 {
            return Ok(Self::empty(1));
        }
        let base = map(length, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)?;
        Ok(Self { base, reserved: length, start: base, length })
    }

    /// Maps `offset..offset + length` of `object`, shared with the other processes that map it.
    /// `offset` need not be a multiple of the page size.
    pub(crate) fn shared(object: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<Self> {
        if length == 0 {
            return Ok(Self::empty(1));
        }
        let skipped = (offset % page_size() as u64) as usize;
        let reserved = length.checked_add(skipped).ok_or(io::ErrorKind::OutOfMemory)?;
        let from = libc::off_t::try_from(offset - skipped as u64).map_err(|_| io::ErrorKind::InvalidInput)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let base = map(reserved, access, libc::MAP_SHARED, object.as_raw_fd(), from)?;
        // SAFETY: `skipped` is less than a page and `reserved` includes it.
        let start = unsafe { base.add(skipped) };
        Ok(Self { base, reserved, start, length })
    }

    /// Maps `length` zeroed bytes at a multiple of `alignment`, a power of two.
    pub(crate) fn anonymous(length: usize, alignment: usize) -> io::Result<Self> {
        if length == 0 {
            return Ok(Self::empty(alignment));
        }
        // mmap aligns to a page only: reserve enough to find an aligned start inside. The slack
        // is address space; its pages are never touched.
        let slack = if alignment > page_size() { alignment } else { 0 };
        let reserved = length.checked_add(slack).ok_or(io::ErrorKind::OutOfMemory)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let base = map(reserved, access, libc::MAP_PRIVATE | libc::MAP_ANON, -1, 0)?;
        let skipped = base.as_ptr().align_offset(alignment);
        // SAFETY: `skipped < alignment`; it is zero when the alignment is at most a page, and
        // otherwise `reserved` has `alignment` bytes of slack.
        let start = unsafe { base.add(skipped) };
        Ok(Self { base, reserved, start, length })
    }

    /// No memory at all, at an address that satisfies `alignment`: `mmap` refuses zero bytes.
    fn empty(alignment: usize) -> Self {
        let address = std::num::NonZero::new(alignment).unwrap_or(std::num::NonZero::<usize>::MIN);
        let nowhere = NonNull::without_provenance(address);
        Self { base: nowhere, reserved: 0, start: nowhere, length: 0 }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn advise(&self, range: Range<usize>, advice: Advice) -> io::Result<()> {
        assert!(
            range.start <= range.end && range.end <= self.length,
            "advice on bytes {range:?} of a mapping of {}",
            self.length
        );
        self.advise_pages(
            range,
            match advice {
                Advice::Normal => libc::MADV_NORMAL,
                Advice::Sequential => libc::MADV_SEQUENTIAL,
                Advice::Random => libc::MADV_RANDOM,
                Advice::WillNeed => libc::MADV_WILLNEED,
                Advice::DontNeed => libc::MADV_DONTNEED,
            },
        )
    }

    pub(crate) fn prefer_huge_pages(&self) {
        #[cfg(all(target_os = "linux", not(miri)))]
        // Refused by kernels without transparent huge pages: then small pages do the same work.
        let _ = self.advise_pages(0..self.length, libc::MADV_HUGEPAGE);
    }

    pub(crate) fn refuse_huge_pages(&self) {
        #[cfg(all(target_os = "linux", not(miri)))]
        // As above: a kernel without them has none to give.
        let _ = self.advise_pages(0..self.length, libc::MADV_NOHUGEPAGE);
    }

    /// `madvise` on the whole pages that contain `range`.
    fn advise_pages(&self, range: Range<usize>, advice: libc::c_int) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let from = self.start.as_ptr() as usize - self.base.as_ptr() as usize + range.start;
        let first_page = from - from % page_size();
        // SAFETY: `first_page` lies inside the mapping, which starts on a page; the length ends
        // inside it. All callers pass advice that keeps the content: MADV_DONTNEED only comes
        // through `advise` for read-only file mappings, which reload from the file.
        check(unsafe {
            libc::madvise(self.base.as_ptr().add(first_page).cast(), range.len() + from - first_page, advice)
        })
        .map(drop)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.reserved > 0 {
            // SAFETY: exactly what `mmap` returned, unmapped once; borrows of it have ended.
            let result = unsafe { libc::munmap(self.base.as_ptr().cast(), self.reserved) };
            debug_assert_eq!(result, 0, "munmap: {}", io::Error::last_os_error());
        }
    }
}

fn map(
    length: usize,
    access: libc::c_int,
    flags: libc::c_int,
    object: libc::c_int,
    offset: libc::off_t,
) -> io::Result<NonNull<u8>> {
    // SAFETY: no address is demanded, so no existing mapping can be replaced; the system checks
    // every other argument.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, object, offset) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mmap returned the null address"))
}

/// Opens an existing POSIX shared-memory object for reading and writing.
pub(crate) fn open_shared_memory(key: &CStr) -> io::Result<OwnedFd> {
    let no_mode: libc::c_uint = 0;
    // SAFETY: `key` is a valid C string; the mode only counts with O_CREAT.
    let object = check(unsafe { libc::shm_open(key.as_ptr(), libc::O_RDWR, no_mode) })?;
    // SAFETY: a descriptor just opened, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(object) })
}

/// Creates a shared-memory object of no bytes that only this user may open. Fails when the key exists.
pub(crate) fn create_shared_memory(key: &CStr) -> io::Result<OwnedFd> {
    let mode: libc::c_uint = 0o600;
    // SAFETY: `key` is a valid C string; the mode is passed as the promoted type C expects.
    let object = check(unsafe { libc::shm_open(key.as_ptr(), libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, mode) })?;
    // SAFETY: a descriptor just opened, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(object) })
}

/// Gives a new object `length` zeroed bytes, and takes the memory for them.
pub(crate) fn size_shared_memory(object: BorrowedFd<'_>, length: u64) -> io::Result<()> {
    let length = libc::off_t::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
    // A new object is empty already, and macOS lets an object be sized once.
    if length == 0 {
        return Ok(());
    }
    // SAFETY: a valid descriptor and a plain integer.
    check(unsafe { libc::ftruncate(object.as_raw_fd(), length) })?;
    crate::system::reserve_shared_memory(object, length)
}

pub(crate) fn unlink_shared_memory(key: &CStr) -> io::Result<()> {
    // SAFETY: `key` is a valid C string.
    check(unsafe { libc::shm_unlink(key.as_ptr()) }).map(drop)
}

/// Size in bytes of the object behind a descriptor.
pub(crate) fn object_size(object: BorrowedFd<'_>) -> io::Result<u64> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: a valid descriptor and a writable `stat`.
    check(unsafe { libc::fstat(object.as_raw_fd(), status.as_mut_ptr()) })?;
    // SAFETY: zero is a valid `stat`, and `fstat` has filled it.
    let status = unsafe { status.assume_init() };
    u64::try_from(status.st_size).map_err(|_| io::Error::other("the object has a negative size"))
}

/// Writes to a connected Unix socket; who reads the first byte gets a copy of the descriptor. Returns how many bytes were
/// written.
pub(crate) fn send_with_descriptor(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<usize> {
    const DESCRIPTOR_BYTES: u32 = size_of::<libc::c_int>() as u32;
    // Aligned as headers of control messages are.
    let mut control = [0u64; 4];
    // SAFETY: plain arithmetic.
    let space = unsafe { libc::CMSG_SPACE(DESCRIPTOR_BYTES) };
    assert!(space as usize <= size_of_val(&control), "a control message of {space} bytes");
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all zero bytes are a valid header: no address, no parts, no control message, no flags.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), space as _);
    // SAFETY: `control` is aligned and has room for a header with one descriptor behind it, which is written unaligned.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(DESCRIPTOR_BYTES) as _;
        libc::CMSG_DATA(header).cast::<libc::c_int>().write_unaligned(descriptor.as_raw_fd());
    }
    // Where nobody reads any more, an error is wanted and no signal. (macOS has no such flag; Rust has the signal ignored.)
    #[cfg(target_os = "linux")]
    let flags = libc::MSG_NOSIGNAL;
    #[cfg(not(target_os = "linux"))]
    let flags = 0;
    // SAFETY: valid descriptors, and a header whose parts live until the call returns; `bytes` are only read.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// A pipe whose two ends are not inherited by child processes and never block.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors. (`pipe2` does not exist on macOS.)
    check(unsafe { libc::pipe(ends.as_mut_ptr()) })?;
    // SAFETY: two descriptors just opened, owned by nobody else.
    let (read, write) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    for end in [&read, &write] {
        // SAFETY: a valid descriptor and integer arguments.
        check(unsafe { libc::fcntl(end.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) })?;
        // SAFETY: as above.
        check(unsafe { libc::fcntl(end.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) })?;
    }
    Ok((read, write))
}

/// Soft and hard limit of open files.
pub(crate) fn open_file_limit() -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a writable `rlimit`.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    Ok(limit)
}

pub(crate) fn set_open_file_limit(limit: libc::rlimit) -> io::Result<()> {
    // SAFETY: a readable `rlimit`.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }).map(drop)
}

/// Loads a library with all that it needs.
///
/// # Errors
/// What the loader says.
///
/// # Safety
/// The library's own code runs.
pub(crate) unsafe fn open_library(name: &CStr) -> Result<NonNull<c_void>, String> {
    // SAFETY: a string that ends; the caller's promise for the library.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    NonNull::new(handle).ok_or_else(|| {
        // SAFETY: has no preconditions; the message is this thread's own.
        let message = unsafe { libc::dlerror() };
        if message.is_null() {
            return "the loader does not say why".to_owned();
        }
        // SAFETY: a string of the loader, valid until this thread calls it again.
        unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
    })
}

/// The address of a symbol of a loaded library.
pub(crate) fn symbol(library: NonNull<c_void>, name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the handle of a library that is never unloaded, and a string that ends.
    NonNull::new(unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) })
}
