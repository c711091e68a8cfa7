//! Libraries of the system that are loaded when somebody wants them, and not when the program starts.

use std::ffi::{CStr, c_void};
use std::fmt::{self, Debug};
use std::io;
use std::ptr::NonNull;

use crate::Error;
use crate::unix;

/// A loaded library. It stays loaded until the process ends: addresses of its symbols are good for ever.
pub struct Library(NonNull<c_void>);

// SAFETY: a handle is an address that `dlsym` looks up; POSIX lets every thread do that.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads a library: a path, or a name that the system's loader searches for.
    ///
    /// # Errors
    /// What the loader says, mostly that there is no such library.
    ///
    /// # Safety
    /// The library's own code runs as it is loaded: it must be one that may run in this process.
    pub unsafe fn open(name: &CStr) -> Result<Library, Error> {
        // SAFETY: the caller's promise.
        unsafe { unix::open_library(name) }.map(Library).map_err(|message| {
            Error::new("load", format_args!("library '{}'", name.to_string_lossy()), io::Error::other(message))
        })
    }

    /// The address of an exported function or variable, whose type only the caller knows.
    pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        unix::symbol(self.0, name)
    }
}

impl Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Library({:p})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_library_exports_is_found() {
        let name = if cfg!(target_os = "macos") { c"/usr/lib/libSystem.B.dylib" } else { c"libm.so.6" };
        // SAFETY: a part of the C library.
        let library = unsafe { Library::open(name) }.unwrap();
        let cosine = library.symbol(c"cos").unwrap();
        // SAFETY: the function that C declares so.
        let cosine = unsafe { std::mem::transmute::<NonNull<c_void>, extern "C" fn(f64) -> f64>(cosine) };
        assert_eq!(cosine(0.0), 1.0);
        assert_eq!(library.symbol(c"no_such_function"), None);
    }

    #[test]
    fn errors_name_the_library() {
        // SAFETY: there is nothing to run.
        let error = unsafe { Library::open(c"no-such-library") }.unwrap_err().to_string();
        assert!(error.starts_with("cannot load library 'no-such-library': "), "{error}");
    }
}
