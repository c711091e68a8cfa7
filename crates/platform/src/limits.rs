//! Resource limits of the process.

use crate::{Error, system, unix};
use std::io;

/// The limit on open files (sockets included) of this process; `u64::MAX` means unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFiles {
    /// What applies now.
    pub soft: u64,
    /// What an unprivileged process may raise the soft limit to.
    pub hard: u64,
}

/// The present limit on open files.
pub fn open_files() -> Result<OpenFiles, Error> {
    let limit = unix::open_file_limit().map_err(|cause| Error::new("read", "the limit of open files", cause))?;
    // Systems differ in the number that means "unlimited".
    let known = |limit| if limit == libc::RLIM_INFINITY { u64::MAX } else { limit };
    Ok(OpenFiles { soft: known(limit.rlim_cur), hard: known(limit.rlim_max) })
}

/// Raises the soft limit on open files as far as the system allows, and says what applies then.
///
/// Each connection costs a file; the usual soft limits (1024 on Linux, 256 on macOS) are kept low
/// for programs that use `select`, which this one does not.
pub fn raise_open_files() -> Result<OpenFiles, Error> {
    let mut limit = unix::open_file_limit().map_err(|cause| Error::new("read", "the limit of open files", cause))?;
    let reachable = system::open_file_ceiling().map_or(limit.rlim_max, |ceiling| ceiling.min(limit.rlim_max));
    if limit.rlim_cur < reachable {
        limit.rlim_cur = reachable;
        unix::set_open_file_limit(limit)
            .map_err(|cause| Error::new("raise", format!("the limit of open files to {reachable}"), cause))?;
    }
    open_files()
}

/// Whether a call failed because this process, or the whole machine, has as many files open as it may.
pub fn are_files_exhausted(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_from_memory() {
        assert!(are_files_exhausted(&io::Error::from_raw_os_error(libc::EMFILE)));
        assert!(are_files_exhausted(&io::Error::from_raw_os_error(libc::ENFILE)));
        assert!(!are_files_exhausted(&io::Error::from_raw_os_error(libc::ENOSPC)));
        assert!(!are_files_exhausted(&io::ErrorKind::OutOfMemory.into()));
    }

    #[test]
    fn raising_reaches_the_hard_limit_and_is_idempotent() {
        let before = open_files().unwrap();
        let raised = raise_open_files().unwrap();
        assert!(raised.soft >= before.soft && raised.soft <= raised.hard, "{before:?} -> {raised:?}");
        if cfg!(target_os = "linux") {
            assert_eq!(raised.soft, before.hard);
        }
        assert_eq!(raise_open_files().unwrap(), raised);
    }
}
