//! How long what one core has written takes to reach another.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::Builder;
use std::time::Instant;

use halimede_platform::threads::{self, Pinning};

/// Ways there and back of a sample, and samples, of which the fastest counts: 0.5 to 3 ms in all.
const WAYS: u32 = 1000;
const SAMPLES: u32 = 8;

/// Seconds that a cache line takes from one core to another: half of its way there and back, between the first two cores that
/// this process may use.
///
/// Cores that share a third-level cache take a fifth of the time that others do, and the cores of a virtual machine are now
/// near each other and now far: whoever compares threads wants to know which it was. `None` where there is one core, or the
/// system binds no thread to one.
pub fn core_to_core() -> Option<f64> {
    let cores = threads::cores().ok()?;
    let [first, second, ..] = cores[..] else { return None };
    let line = Line::default();
    std::thread::scope(|scope| {
        let thread = || Builder::new().name("core-to-core".to_owned());
        thread().spawn_scoped(scope, || line.send_back(second.id)).ok()?;
        match thread().spawn_scoped(scope, || line.send(first.id)) {
            Ok(sender) => sender.join().ok()?,
            Err(_) => {
                line.is_over.store(true, Ordering::Relaxed);
                None
            }
        }
    })
}

/// Binds the calling thread.
fn is_bound_to(core: usize) -> bool {
    matches!(threads::pin_current(core), Ok(Pinning::Pinned))
}

/// What goes from one to the other, on a line of its own.
#[repr(align(128))]
#[derive(Default)]
struct Line {
    /// Odd on its way there, even when it is back.
    turn: AtomicU32,
    is_over: AtomicBool,
}

impl Line {
    /// Sends it; the seconds of one way.
    fn send(&self, core: usize) -> Option<f64> {
        let mut least = None;
        if is_bound_to(core) {
            for sample in 0..SAMPLES {
                let start = Instant::now();
                let all_came = (0..WAYS).all(|way| {
                    let turn = 2 * (sample * WAYS + way);
                    self.turn.store(turn + 1, Ordering::Release);
                    self.waits_for(turn + 2)
                });
                if !all_came {
                    break;
                }
                let one_way = start.elapsed().as_secs_f64() / f64::from(2 * WAYS);
                least = Some(least.map_or(one_way, |least: f64| least.min(one_way)));
            }
        }
        self.is_over.store(true, Ordering::Relaxed);
        least
    }

    /// Sends it back until all is over.
    fn send_back(&self, core: usize) {
        if !is_bound_to(core) {
            return self.is_over.store(true, Ordering::Relaxed);
        }
        for way in 0..SAMPLES * WAYS {
            if !self.waits_for(2 * way + 1) {
                return;
            }
            self.turn.store(2 * way + 2, Ordering::Release);
        }
    }

    /// Whether a turn came before all was over.
    fn waits_for(&self, turn: u32) -> bool {
        let mut spins = 0u32;
        loop {
            if self.turn.load(Ordering::Acquire) == turn {
                return true;
            }
            if self.is_over.load(Ordering::Relaxed) {
                return self.turn.load(Ordering::Acquire) == turn;
            }
            spins += 1;
            // The other core may be busy with something else.
            if spins.is_multiple_of(1 << 12) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_back_where_there_are_two_cores() {
        let seconds = core_to_core();
        if cfg!(target_os = "linux") {
            assert_eq!(seconds.is_some(), threads::cores().unwrap().len() > 1);
        }
        if let Some(seconds) = seconds {
            assert!((1e-9..1e-3).contains(&seconds), "{seconds}");
        }
    }

    #[test]
    fn who_cannot_be_bound_ends_it_for_both() {
        let (line, core) = (Line::default(), threads::cores().unwrap()[0].id);
        std::thread::scope(|scope| {
            scope.spawn(|| line.send_back(1_000_000));
            assert_eq!(scope.spawn(|| line.send(core)).join().unwrap(), None);
        });
    }
}
