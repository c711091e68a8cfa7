//! Whether the server has anything to do: speed is measured only while it has not.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use halimede_compute::tuning::{Quiet, Stopped};

/// Counts what the server does: requests that run, models that are loaded or examined.
#[derive(Debug, Default)]
pub(super) struct Activity {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A piece of work that goes on until this is dropped.
pub(super) struct Work<'a>(&'a Activity);

impl Activity {
    /// Something begins.
    pub fn begin(&self) -> Work<'_> {
        self.begun.fetch_add(1, SeqCst);
        Work(self)
    }

    /// How much has been done, where nothing is being done now: equal numbers mean that nothing was in between.
    fn idle(&self) -> Option<u64> {
        // In this order: what ends in between was begun before, so the numbers differ.
        let ended = self.ended.load(SeqCst);
        (self.begun.load(SeqCst) == ended).then_some(ended)
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, SeqCst);
    }
}

/// Time, as tests may step it.
pub(super) trait Clock {
    /// Since some moment.
    fn now(&self) -> Duration;

    /// Lets time pass.
    fn sleep(&self, time: Duration);
}

/// The time of the machine.
pub(super) struct Monotonic(Instant);

impl Monotonic {
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Monotonic {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }
}

/// After so long without work the server counts as idle: between two requests of a client that waits for its answers
/// there is less.
const CALM: Duration = Duration::from_millis(50);

/// From one look at a busy server to the next.
const LOOK: Duration = Duration::from_millis(10);

/// Waits for moments in which the server is idle.
pub(super) struct Calm<'a, C> {
    pub activity: &'a Activity,
    pub clock: &'a C,
    /// Whether there is still something to measure.
    pub is_wanted: &'a dyn Fn() -> bool,
    /// When to wait no longer.
    pub deadline: Duration,
    /// What was done until the last calm moment.
    done: Cell<Option<u64>>,
    waited: Cell<Duration>,
}

impl<'a, C: Clock> Calm<'a, C> {
    pub fn new(activity: &'a Activity, clock: &'a C, is_wanted: &'a dyn Fn() -> bool, deadline: Duration) -> Self {
        Self { activity, clock, is_wanted, deadline, done: Cell::new(None), waited: Cell::default() }
    }

    /// How long all waits took together.
    pub fn waited(&self) -> Duration {
        self.waited.get()
    }

    /// Whether nobody waits for the result any more, or its time is over.
    pub fn is_over(&self) -> bool {
        !(self.is_wanted)() || self.clock.now() >= self.deadline
    }
}

impl<C: Clock> Quiet for Calm<'_, C> {
    fn wait(&self) -> Result<(), Stopped> {
        let begin = self.clock.now();
        // What had been done at the beginning of the calm that goes on.
        let mut calm: Option<(u64, Duration)> = None;
        loop {
            if self.is_over() {
                return Err(Stopped);
            }
            let (now, idle) = (self.clock.now(), self.activity.idle());
            let is_calm = match (idle, calm) {
                (None, _) => false,
                (Some(done), _) if self.done.get() == Some(done) => true,
                (Some(done), Some((before, since))) if done == before => now - since >= CALM,
                (Some(_), _) => false,
            };
            if is_calm {
                self.done.set(idle);
                self.waited.set(self.waited.get() + (now - begin));
                return Ok(());
            }
            calm = idle.map(|done| calm.filter(|(before, _)| *before == done).unwrap_or((done, now)));
            self.clock.sleep(LOOK);
        }
    }

    fn is_disturbed(&self) -> bool {
        self.activity.idle() != self.done.get() || !(self.is_wanted)()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// A clock that only sleep moves, and what begins or ends at some of its times.
    struct Script<'a> {
        now: Cell<Duration>,
        activity: &'a Activity,
        /// In the order of time.
        requests: RefCell<Vec<(Duration, Duration)>>,
        running: RefCell<Vec<(Duration, Work<'a>)>>,
    }

    impl<'a> Script<'a> {
        /// Requests by the milliseconds at which they begin and end.
        fn new(activity: &'a Activity, requests: &[(u64, u64)]) -> Self {
            let ms = Duration::from_millis;
            let requests = requests.iter().rev().map(|&(begin, end)| (ms(begin), ms(end))).collect();
            Self { now: Cell::default(), activity, requests: RefCell::new(requests), running: RefCell::default() }
        }
    }

    impl Clock for Script<'_> {
        fn now(&self) -> Duration {
            self.now.get()
        }

        fn sleep(&self, time: Duration) {
            self.now.set(self.now.get() + time);
            let now = self.now.get();
            let mut requests = self.requests.borrow_mut();
            while let Some((_, end)) = requests.pop_if(|(begin, _)| *begin <= now) {
                self.running.borrow_mut().push((end, self.activity.begin()));
            }
            self.running.borrow_mut().retain(|(end, _)| *end > now);
        }
    }

    const LONG: Duration = Duration::from_secs(1000);

    #[test]
    fn nothing_is_measured_while_requests_run_or_follow_closely() {
        let activity = Activity::default();
        // One that is still running, and others with 30 ms between.
        let clock = Script::new(&activity, &[(0, 200), (230, 240), (270, 280)]);
        clock.sleep(Duration::ZERO);
        let calm = Calm::new(&activity, &clock, &|| true, LONG);
        assert_eq!(calm.wait(), Ok(()));
        let now = clock.now();
        assert!((Duration::from_millis(330)..Duration::from_millis(360)).contains(&now), "{now:?}");
        assert_eq!(calm.waited(), now);
        // Nothing has happened since: nobody waits again.
        assert_eq!((calm.is_disturbed(), calm.wait(), clock.now()), (false, Ok(()), now));
    }

    #[test]
    fn a_request_disturbs_from_its_beginning_on() {
        let activity = Activity::default();
        let clock = Script::new(&activity, &[]);
        let calm = Calm::new(&activity, &clock, &|| true, LONG);
        calm.wait().unwrap();
        assert!(!calm.is_disturbed());
        let request = activity.begin();
        assert!(calm.is_disturbed());
        drop(request);
        assert!(calm.is_disturbed(), "it ran in between");
        calm.wait().unwrap();
        assert!(!calm.is_disturbed());
    }

    #[test]
    fn whoever_waits_gives_up() {
        let activity = Activity::default();
        let always = activity.begin();
        let clock = Script::new(&activity, &[]);
        let deadline = Duration::from_secs(3);
        assert_eq!(Calm::new(&activity, &clock, &|| true, deadline).wait(), Err(Stopped));
        assert_eq!(clock.now(), deadline);
        drop(always);
        // The model is unloaded after half a second of requests.
        let clock = Script::new(&activity, &[(10, 100_000)]);
        let is_wanted = || clock.now() < Duration::from_millis(500);
        let calm = Calm::new(&activity, &clock, &is_wanted, LONG);
        assert_eq!((calm.wait(), clock.now()), (Err(Stopped), Duration::from_millis(500)));
        assert!(calm.is_disturbed(), "a round that goes on ends as well");
    }
}
