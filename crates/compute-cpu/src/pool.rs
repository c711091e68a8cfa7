//! A thread pool for short parallel loops: workers spin for a moment after each loop, then park.
//!
//! One atomic word holds the state of the current loop:
//!
//! ```text
//! bits 0..16   workers inside the loop
//! bit  16      the loop is open
//! bits 17..64  number of the loop
//! ```
//!
//! A worker enters by adding one while the loop is open, takes parts until none is left, and leaves by
//! subtracting one. The caller takes parts too, closes the loop when none is left and waits until no worker
//! is inside. So a worker that wakes late finds the loop closed and costs nothing, and nobody reads a loop
//! that has ended.
//!
//! Each thread has a share of neighbouring parts that it takes first, the same one in every loop, and then
//! takes what others have left: what one loop wrote, the next finds in the caches of the core that wrote it.
//! It takes others' last parts, for their first ones are those that they are sure to take themselves.
//!
//! Several callers, such as instances of models, share the threads: one of them has the workers at a time, less one for each
//! other caller that is in a loop of its own just then, and the others run theirs alone.

use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
// The standard library's locks are a futex word on Linux: a thread that parks for the first time
// allocates nothing, which parking_lot's table of threads does.
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;

const OPEN: u64 = 1 << 16;
const INSIDE: u64 = OPEN - 1;
const LOOP: u64 = 1 << 17;

/// Bytes of a page, within which processors fetch what comes next before anybody asks for it.
const PAGE: usize = 4 << 10;

/// Bytes of what a thread writes for itself, and from there to what the next thread does: none has a page with it in common.
///
/// Cores fetch the lines behind those that they read, up to the end of the page. Were the next thread's there, each block of a
/// product would take them away from it: products of short sums took that thread twice as long
/// (`docs/benchmarks/threads.md#what-threads-write-side-by-side`).
pub(crate) fn own_bytes(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + PAGE).next_multiple_of(PAGE) }
}

/// How often a worker looks for the next loop before it parks: about 20 to 50 microseconds.
const SPINS: u32 = 2_000;

/// Takes the number of a thread, which the caller's is 0 of, and that of a part.
type Task<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Workers that run loops together with the calling thread.
pub struct Pool {
    shared: Arc<Shared>,
    /// Held by the caller whose loop is running.
    caller: Mutex<()>,
    /// Callers that are in a loop, with workers or alone.
    callers: AtomicUsize,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    state: AtomicU64,
    /// The loop's body, valid while the loop is open or somebody is inside.
    task: UnsafeCell<Option<Task<'static>>>,
    /// Of each thread, the caller's first.
    shares: Box<[Share]>,
    /// Threads of the current loop, the caller's first: workers with a greater number stay out.
    threads: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

/// The parts of a share that are left, on a cache line of its own, which are two of 64 bytes where they are fetched in pairs:
/// the first in the lower half of the word, the end behind the last in the upper one.
#[repr(align(128))]
#[derive(Default)]
struct Share(AtomicU64);

/// Parts of a loop that threads share, at most: what half a word says. More run on the caller's thread alone.
const PARTS_MOST: usize = u32::MAX as usize;

impl Share {
    fn fill(&self, parts: Range<usize>) {
        self.0.store((parts.end as u64) << 32 | parts.start as u64, Ordering::Relaxed);
    }

    /// Takes the first part that is left, or the last.
    fn take(&self, last: bool) -> Option<usize> {
        let mut left = self.0.load(Ordering::Relaxed);
        loop {
            let (first, end) = (left & u64::from(u32::MAX), left >> 32);
            if first >= end {
                return None;
            }
            let (part, rest) = if last { (end - 1, left - (1 << 32)) } else { (first, left + 1) };
            match self.0.compare_exchange_weak(left, rest, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(part as usize),
                Err(now) => left = now,
            }
        }
    }
}

// SAFETY: `task` is written only by the caller that holds `Pool::caller` while the loop is closed and
// nobody is inside, and read only by workers inside the loop (see the module's text).
unsafe impl Sync for Shared {}

impl Pool {
    /// A pool that runs loops on `threads` threads, the caller being one of them.
    pub fn new(threads: usize) -> Pool {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            task: UnsafeCell::new(None),
            shares: std::iter::repeat_with(Share::default).take(threads.max(1)).collect(),
            threads: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        });
        let workers: Vec<JoinHandle<()>> = (1..threads.max(1))
            .map_while(|index| {
                let (shared, started) = (shared.clone(), Arc::new(Barrier::new(2)));
                let ready = started.clone();
                // A machine that refuses a thread runs with fewer; the caller alone can do every loop.
                let worker = std::thread::Builder::new()
                    .name(format!("halimede-cpu-{index}"))
                    .spawn(move || {
                        ready.wait();
                        shared.work(index);
                    })
                    .ok()?;
                // What a thread allocates as it starts belongs to the pool, not to the first loops.
                started.wait();
                Some(worker)
            })
            .collect();
        Pool { shared, caller: Mutex::new(()), callers: AtomicUsize::new(0), workers }
    }

    /// Threads that run a loop, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(part)` for every part below `parts` and returns when all are done. While another
    /// loop has the workers (another instance's, or the one this call stands in) it runs here alone; and each caller in a loop
    /// of its own takes the place of a worker, so that up to as many callers as threads ask for no more of them than there are.
    ///
    /// # Panics
    /// Where a part panics, after all others have ended.
    pub fn run(&self, parts: usize, task: &(dyn Fn(usize) + Sync)) {
        self.run_numbered(parts, &|_, part| task(part));
    }

    fn run_numbered(&self, parts: usize, task: Task<'_>) {
        let is_shared = (2..=PARTS_MOST).contains(&parts) && !self.workers.is_empty();
        // A loop inside another one is of the same caller.
        if !is_shared || IN_A_LOOP.get() {
            return (0..parts).for_each(|part| task(0, part));
        }
        let others = self.callers.fetch_add(1, Ordering::Relaxed);
        let _calling = Calling(&self.callers);
        let _inside = Inside::enter();
        let workers = self.workers.len().saturating_sub(others);
        let caller = if workers > 0 { self.try_caller() } else { None };
        match caller {
            Some(_caller) => self.run_shared(parts, workers + 1, task),
            None => (0..parts).for_each(|part| task(0, part)),
        }
    }

    /// Runs `task(thread, index)` for every index below `tasks`, on at most `threads` threads. A thread's number lies below
    /// `threads`; no two calls have it at the same time.
    ///
    /// # Panics
    /// As [`Pool::run`].
    pub fn run_tasks(&self, threads: usize, tasks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        if threads >= self.threads() {
            return self.run_numbered(tasks, task);
        }
        let next = AtomicUsize::new(0);
        self.run(threads.min(tasks), &|thread| {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= tasks {
                    return;
                }
                task(thread, index);
            }
        });
    }

    fn try_caller(&self) -> Option<MutexGuard<'_, ()>> {
        match self.caller.try_lock() {
            Ok(guard) => Some(guard),
            // A part panicked; its loop was closed and left before the guard fell.
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn run_shared(&self, parts: usize, threads: usize, task: Task<'_>) {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; the loop is closed and left by all before this returns.
        let task: Task<'static> = unsafe { std::mem::transmute::<Task<'_>, Task<'static>>(task) };
        // SAFETY: the loop is closed, nobody is inside, and we hold `caller`.
        unsafe { *shared.task.get() = Some(task) };
        for (thread, share) in shared.shares.iter().enumerate() {
            share.fill(if thread < threads { share_of(thread, threads, parts) } else { 0..0 });
        }
        shared.threads.store(threads, Ordering::Relaxed);
        let number = shared.state.load(Ordering::Relaxed) & !(INSIDE | OPEN);
        // SeqCst with the sleepers' count: either we see the sleeper or it sees the open loop.
        shared.state.store(number.wrapping_add(LOOP) | OPEN, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = shared.lock_sleep();
            shared.wake.notify_all();
        }
        let mine = catch_unwind(AssertUnwindSafe(|| shared.take_parts(0, task)));
        if mine.is_err() {
            shared.shares.iter().for_each(|share| share.fill(0..0));
        }
        shared.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0u32;
        while shared.state.load(Ordering::Acquire) & INSIDE != 0 {
            spins += 1;
            if spins.is_multiple_of(1 << 12) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let theirs = shared.panicked.swap(false, Ordering::Relaxed);
        if let Err(panic) = mine {
            resume_unwind(panic);
        }
        assert!(!theirs, "a part of a parallel loop panicked");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        {
            let _guard = self.shared.lock_sleep();
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its parts, so it ends in order.
            let _ = worker.join();
        }
    }
}

/// The parts that a thread of so many takes first, of so many.
fn share_of(thread: usize, threads: usize, parts: usize) -> Range<usize> {
    parts * thread / threads..parts * (thread + 1) / threads
}

thread_local! {
    /// This thread runs parts of a loop.
    static IN_A_LOOP: Cell<bool> = const { Cell::new(false) };
}

/// Until this falls, this thread is in a loop.
struct Inside;

impl Inside {
    fn enter() -> Inside {
        IN_A_LOOP.set(true);
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        IN_A_LOOP.set(false);
    }
}

/// Until this falls, a caller is counted.
struct Calling<'a>(&'a AtomicUsize);

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    fn work(&self, thread: usize) {
        // A worker runs nothing but parts of loops.
        let _inside = Inside::enter();
        let mut seen = 0;
        while let Some(number) = self.wait_for_loop(seen) {
            seen = number;
            // Where this reads how many threads a newer loop has, the loop of this number has closed and is not entered.
            if thread >= self.threads.load(Ordering::Relaxed) || !self.enter(number) {
                continue;
            }
            // SAFETY: we are inside, so the task stays until we leave.
            let task = unsafe { *self.task.get() };
            if let Some(task) = task
                && catch_unwind(AssertUnwindSafe(|| self.take_parts(thread, task))).is_err()
            {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// The lock guards no data, so a panic cannot have left it in disorder.
    fn lock_sleep(&self) -> MutexGuard<'_, ()> {
        self.sleep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the parts of its own share, then what others have left of theirs.
    fn take_parts(&self, thread: usize, task: Task<'_>) {
        let threads = self.shares.len();
        for owner in (thread..threads).chain(0..thread) {
            while let Some(part) = self.shares[owner].take(owner != thread) {
                task(thread, part);
            }
        }
    }

    /// Adds this worker to loop `number`; `false` where that has closed.
    fn enter(&self, number: u64) -> bool {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if state & OPEN == 0 || state / LOOP != number {
                return false;
            }
            match self.state.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
    }

    /// The number of an open loop other than `seen`; `None` when the pool stops.
    fn wait_for_loop(&self, seen: u64) -> Option<u64> {
        let fresh = || {
            let state = self.state.load(Ordering::SeqCst);
            (state & OPEN != 0 && state / LOOP != seen).then_some(state / LOOP)
        };
        for _ in 0..SPINS {
            if let Some(number) = fresh() {
                return Some(number);
            }
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            std::hint::spin_loop();
        }
        let mut guard = self.lock_sleep();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let found = loop {
            if self.stop.load(Ordering::SeqCst) {
                break None;
            }
            if let Some(number) = fresh() {
                break Some(number);
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn threads_have_no_page_in_common() {
        assert_eq!(own_bytes(0), 0);
        for (bytes, start) in
            [1, 64, 4095, 4096, 4097, 70_000].into_iter().flat_map(|bytes| [0, 64, 4032].map(|at| (bytes, at)))
        {
            let (last, next) = (start + bytes - 1, start + own_bytes(bytes));
            assert!(last / PAGE < next / PAGE, "{bytes} bytes from {start} on");
            assert!(next.is_multiple_of(64));
        }
    }

    #[test]
    fn every_part_runs_once() {
        for threads in [1, 2, 4] {
            let pool = Pool::new(threads);
            for parts in [0, 1, 2, 3, 100] {
                for _ in 0..200 {
                    let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                    pool.run(parts, &|part| {
                        counts[part].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
                }
            }
        }
    }

    #[test]
    fn every_task_runs_once_on_a_thread_of_its_own() {
        let pool = Pool::new(3);
        for (threads, tasks) in [(1, 7), (2, 1), (3, 0), (3, 100)] {
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            let busy: Vec<AtomicBool> = (0..threads).map(|_| AtomicBool::new(false)).collect();
            pool.run_tasks(threads, tasks, &|thread, index| {
                assert!(!busy[thread].swap(true, Ordering::SeqCst), "two tasks at once on thread {thread}");
                counts[index].fetch_add(1, Ordering::Relaxed);
                busy[thread].store(false, Ordering::SeqCst);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn threads_take_the_same_parts_in_every_loop() {
        let pool = Pool::new(2);
        let (inside, threads) = (AtomicUsize::new(0), [const { AtomicUsize::new(usize::MAX) }; 2]);
        for _ in 0..100 {
            inside.store(0, Ordering::SeqCst);
            pool.run_tasks(2, 2, &|thread, part| {
                threads[part].store(thread, Ordering::SeqCst);
                // Each waits for the other: nobody can take both.
                inside.fetch_add(1, Ordering::SeqCst);
                while inside.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
            });
            assert_eq!(threads.each_ref().map(|thread| thread.load(Ordering::SeqCst)), [0, 1]);
        }
    }

    #[test]
    fn a_share_is_taken_from_both_ends() {
        let share = Share::default();
        assert_eq!([share.take(false), share.take(true)], [None; 2]);
        share.fill(3..8);
        let taken = [false, true, false, true, false, true, false].map(|last| share.take(last));
        assert_eq!(taken, [Some(3), Some(7), Some(4), Some(6), Some(5), None, None]);
        share.fill(PARTS_MOST - 1..PARTS_MOST);
        assert_eq!([share.take(true), share.take(true)], [Some(PARTS_MOST - 1), None]);
    }

    #[test]
    fn threads_take_the_last_parts_of_others() {
        let pool = Pool::new(2);
        for _ in 0..20 {
            let taken = Mutex::new(Vec::new());
            pool.run_tasks(2, 8, &|thread, part| {
                taken.lock().unwrap().push((thread, part));
                // The first part of the first thread ends when all others have.
                while (thread, part) == (0, 0) && taken.lock().unwrap().len() < 8 {
                    std::thread::yield_now();
                }
            });
            let taken = taken.into_inner().unwrap();
            let others: Vec<usize> =
                taken.into_iter().filter(|&(thread, _)| thread == 1).map(|(_, part)| part).collect();
            // Where the caller begins late, the other thread has taken its first part, too.
            assert!(others == [4, 5, 6, 7, 3, 2, 1] || others.len() == 8, "{others:?}");
        }
    }

    #[test]
    fn a_loop_inside_a_loop_runs_alone() {
        let pool = Pool::new(2);
        let total = AtomicUsize::new(0);
        pool.run(4, &|_| {
            pool.run(3, &|_| {
                total.fetch_add(1, Ordering::Relaxed);
            })
        });
        assert_eq!(total.load(Ordering::Relaxed), 12);
    }

    #[test]
    fn callers_in_loops_of_their_own_take_the_place_of_workers() {
        for threads in [2, 3] {
            let pool = Pool::new(threads);
            let (first, second) = (Barrier::new(2), Barrier::new(2));
            std::thread::scope(|scope| {
                // Finds the workers taken, and stays in its loop until the last one has ended.
                let (pool, first, second) = (&pool, &first, &second);
                pool.run(2, &|part| {
                    if part == 0 {
                        scope.spawn(move || {
                            pool.run(2, &|part| {
                                if part == 0 {
                                    first.wait();
                                    second.wait();
                                }
                            });
                        });
                        first.wait();
                    }
                });
                let ids = Mutex::new(HashSet::new());
                pool.run(64, &|_| {
                    ids.lock().unwrap().insert(std::thread::current().id());
                    std::thread::sleep(std::time::Duration::from_micros(200));
                });
                second.wait();
                assert_eq!(ids.into_inner().unwrap().len(), threads - 1);
            });
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives() {
        let pool = Pool::new(3);
        for _ in 0..20 {
            let caught = catch_unwind(AssertUnwindSafe(|| pool.run(8, &|part| assert_ne!(part, 5))));
            assert!(caught.is_err());
        }
        let total = AtomicUsize::new(0);
        pool.run(10, &|part| {
            total.fetch_add(part, Ordering::Relaxed);
        });
        assert_eq!(total.load(Ordering::Relaxed), 45);
    }

    #[test]
    fn workers_wake_from_sleep() {
        let pool = Pool::new(2);
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let total = AtomicUsize::new(0);
            pool.run(2, &|_| {
                total.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(total.load(Ordering::Relaxed), 2);
        }
    }
}
