//! The operating system behind one API: shared memory, mapping, signals, threads, chip and memory facts.
//!
//! Each public module is the same on every system; what differs lies in one file per system
//! (`linux.rs`, `macos.rs`), what POSIX systems share in `unix.rs`. A fact that a system cannot
//! tell is `None`, never zero; a call that fails names its object and carries the system's error.

mod error;
mod unix;

#[cfg(target_os = "linux")]
#[path = "linux.rs"]
mod system;
#[cfg(target_os = "macos")]
#[path = "macos.rs"]
mod system;
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
compile_error!("halimede-platform knows Linux and macOS: add src/<system>.rs with the functions of src/linux.rs");

pub mod chip;
pub mod cpu_time;
pub mod directories;
pub mod library;
pub mod limits;
pub mod memory;
pub mod mmap;
pub mod service_manager;
pub mod shared_memory;
pub mod signals;
pub mod threads;
pub mod utilization;

pub use error::Error;
