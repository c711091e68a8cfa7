//! Processor time.

use std::time::Duration;

use crate::{Error, unix};

/// The time that all threads of this process together have spent on processors.
///
/// # Errors
/// The system does not tell.
pub fn process() -> Result<Duration, Error> {
    read(libc::CLOCK_PROCESS_CPUTIME_ID, "process")
}

/// The time that the calling thread has spent on processors.
///
/// # Errors
/// The system does not tell.
pub fn thread() -> Result<Duration, Error> {
    read(libc::CLOCK_THREAD_CPUTIME_ID, "thread")
}

fn read(clock: libc::clockid_t, whose: &str) -> Result<Duration, Error> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the one structure that is written.
    unix::check(unsafe { libc::clock_gettime(clock, &mut time) })
        .map_err(|cause| Error::new("read", format!("the processor time of this {whose}"), cause))?;
    // The clock counts up from zero.
    Ok(Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_time() {
        let before = process().unwrap();
        let mut sum = 0u64;
        while process().unwrap() < before + Duration::from_millis(5) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(process().unwrap() > before);
    }

    #[test]
    fn a_thread_counts_its_own_time_alone() {
        let before = thread().unwrap();
        let other = std::thread::spawn(|| while thread().unwrap() < Duration::from_millis(50) {});
        other.join().unwrap();
        assert!(thread().unwrap() - before < Duration::from_millis(50));
    }
}
