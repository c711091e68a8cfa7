//! How busy the machine's cores are.

use crate::system;

/// Time the cores of the machine have spent since it started, in the system's own unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CpuTicks {
    pub busy: u64,
    pub total: u64,
}

/// Measures utilization between one sample and the next.
#[derive(Clone, Debug)]
pub struct CpuMeter {
    last: Option<CpuTicks>,
}

impl CpuMeter {
    /// Starts measuring now.
    pub fn start() -> Self {
        Self { last: system::cpu_ticks() }
    }

    /// The fraction of all cores' time that was not idle since the last call (or the start),
    /// from 0 to 1. `None` where the system does not tell or no tick has passed (ticks are
    /// about 10 ms): then the next call measures from the same moment.
    pub fn sample(&mut self) -> Option<f64> {
        let now = system::cpu_ticks()?;
        let Some(last) = self.last else {
            self.last = Some(now);
            return None;
        };
        let fraction = fraction_between(last, now)?;
        self.last = Some(now);
        Some(fraction)
    }
}

fn fraction_between(last: CpuTicks, now: CpuTicks) -> Option<f64> {
    let total = now.total.checked_sub(last.total).filter(|&total| total > 0)?;
    // Linux corrects its idle counters now and then, which can make a counter step back.
    let busy = now.busy.saturating_sub(last.busy).min(total);
    Some(busy as f64 / total as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions() {
        let ticks = |busy, total| CpuTicks { busy, total };
        assert_eq!(fraction_between(ticks(10, 100), ticks(35, 200)), Some(0.25));
        assert_eq!(fraction_between(ticks(10, 100), ticks(10, 100)), None);
        assert_eq!(fraction_between(ticks(10, 100), ticks(5, 200)), Some(0.0));
        assert_eq!(fraction_between(ticks(10, 100), ticks(500, 200)), Some(1.0));
        assert_eq!(fraction_between(ticks(10, 100), ticks(10, 50)), None);
    }

    #[test]
    fn a_busy_thread_shows() {
        let mut meter = CpuMeter::start();
        let begin = std::time::Instant::now();
        let mut sum = 0u64;
        while begin.elapsed() < std::time::Duration::from_millis(200) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let fraction = meter.sample().unwrap();
        // At least most of one core's time, however many cores idle beside it. Half of it is
        // asked for, as the scheduler may have given this test less than a whole core.
        let cores = std::thread::available_parallelism().unwrap().get() as f64;
        assert!((0.5 / cores / 4.0..=1.0).contains(&fraction), "{fraction}");
    }
}
