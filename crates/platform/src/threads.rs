//! Threads and cores: which cores there are, pinning, names, quality of service, denormals.

use std::collections::HashMap;

use crate::{Error, system};

/// What kind of core: hybrid chips have fast and economical ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CoreKind {
    /// A fast core; on a chip whose cores are all alike, every core.
    Performance,
    /// An economical core of a hybrid chip.
    Efficiency,
}

/// One logical core (hardware thread).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// The system's number, as [`pin_current`] takes it.
    pub id: usize,
    /// Number of the physical core: hardware threads of one physical core share it.
    pub physical: usize,
    /// Fast or economical.
    pub kind: CoreKind,
}

/// How many cores this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreCounts {
    /// Hardware threads.
    pub logical: usize,
    /// Physical cores: `performance + efficiency`.
    pub physical: usize,
    /// Fast physical cores.
    pub performance: usize,
    /// Economical physical cores; zero on a chip whose cores are all alike.
    pub efficiency: usize,
}

/// The cores this process may run on, in the order in which a pool should take them: one
/// hardware thread of each fast core, then of each economical core, then the second threads.
pub fn cores() -> Result<Vec<Core>, Error> {
    let mut cores = system::cores().map_err(|cause| Error::new("list", "the cores of this machine", cause))?;
    cores.sort_by_key(|core| core.id);
    let mut seen: HashMap<usize, usize> = HashMap::new();
    let mut ranked: Vec<(usize, Core)> = cores
        .into_iter()
        .map(|core| {
            let thread = seen.entry(core.physical).or_default();
            *thread += 1;
            (*thread, core)
        })
        .collect();
    ranked.sort_by_key(|&(thread, core)| (thread, core.kind, core.id));
    Ok(ranked.into_iter().map(|(_, core)| core).collect())
}

/// Counts `cores`, as listed by [`cores`].
pub fn core_counts(cores: &[Core]) -> CoreCounts {
    let mut physical: Vec<(CoreKind, usize)> = cores.iter().map(|core| (core.kind, core.physical)).collect();
    physical.sort_unstable();
    physical.dedup();
    let performance = physical.iter().filter(|(kind, _)| *kind == CoreKind::Performance).count();
    CoreCounts { logical: cores.len(), physical: physical.len(), performance, efficiency: physical.len() - performance }
}

/// How many threads can run at once: the cores of this process, less where a container's
/// processor quota says so. At least 1.
pub fn parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// What [`pin_current`] achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// The thread runs on that core and no other.
    Pinned,
    /// The scheduler was told that threads with different numbers profit from different caches.
    Hinted,
    /// The system lets no thread choose its core (Apple silicon): quality of service decides.
    Unavailable,
}

/// Binds the calling thread to the core with number `id` ([`Core::id`]).
pub fn pin_current(id: usize) -> Result<Pinning, Error> {
    system::pin_current(id).map_err(|cause| Error::new("pin the thread to", format!("core {id}"), cause))
}

/// Names the calling thread, for debuggers and `top`. Systems keep a limited number of bytes
/// (15 on Linux, 63 on macOS); the rest is cut at a character boundary.
pub fn name_current(name: &str) -> Result<(), Error> {
    let mut end = name.len().min(system::THREAD_NAME_BYTES_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let bytes: Vec<u8> = name[..end].bytes().take_while(|&byte| byte != 0).collect();
    // `take_while` has removed every zero byte, so this keeps the whole name.
    let name = std::ffi::CString::new(bytes).unwrap_or_default();
    system::name_current(&name).map_err(|cause| Error::new("name", "the current thread", cause))
}

/// What a thread's work is worth, from urgent to idle. On Apple silicon this also chooses
/// between fast and economical cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QualityOfService {
    /// Someone waits for each answer: the threads that compute requests.
    UserInteractive,
    /// Someone waits, for longer: loading a model.
    UserInitiated,
    /// Long work that nobody watches closely: autotuning on request.
    Utility,
    /// Work for idle times.
    Background,
}

/// Sets the quality of service of the calling thread.
///
/// On Linux the two upper levels change nothing, and the lower ones raise the thread's nice
/// value, which an unprivileged thread cannot lower again: give such work threads of its own.
pub fn set_quality_of_service(level: QualityOfService) -> Result<(), Error> {
    system::set_quality_of_service(level)
        .map_err(|cause| Error::new("set", format!("the thread's quality of service to {level:?}"), cause))
}

/// Whether the calling thread computes with denormal (subnormal) floating-point numbers or takes
/// them for zero, as operands and as results. They are up to a hundred times slower on some
/// chips and carry no information a model needs, so workers flush them.
///
/// Returns what applied before, to restore it: the state belongs to the thread, not to the scope.
pub fn flush_denormals_current(flush: bool) -> bool {
    control::flush_denormals(flush)
}

// Miri runs no assembler, and its floating point has no such state.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod control {
    /// Flush-to-zero (results) and denormals-are-zero (operands) of MXCSR.
    const FLUSH: u32 = 1 << 15 | 1 << 6;

    pub fn flush_denormals(flush: bool) -> bool {
        let mut control = 0u32;
        // SAFETY: stores the four bytes of MXCSR into a local variable of four bytes.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut control, options(nostack, preserves_flags)) };
        let before = control & FLUSH == FLUSH;
        control = if flush { control | FLUSH } else { control & !FLUSH };
        // SAFETY: loads MXCSR with a value read from it, in which two defined bits may differ.
        // The compiler assumes the default state when it folds constants, so a folded operation
        // may keep a denormal that the hardware would flush: the two results differ by less than
        // the smallest normal number, which every caller of this function accepts.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &control, options(nostack, preserves_flags)) };
        before
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod control {
    /// FZ (single and double precision) and FZ16 (half precision) of FPCR.
    const FLUSH: u64 = 1 << 24 | 1 << 19;
    const FZ: u64 = 1 << 24;

    pub fn flush_denormals(flush: bool) -> bool {
        let control: u64;
        // SAFETY: reads a register that user code may read.
        unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) control, options(nomem, nostack, preserves_flags)) };
        let changed = if flush { control | FLUSH } else { control & !FLUSH };
        // SAFETY: writes a register that user code may write, with two defined bits changed; on
        // compile-time folding see the x86 twin of this function.
        unsafe { std::arch::asm!("msr fpcr, {}", in(reg) changed, options(nostack, preserves_flags)) };
        // FZ16 reads as zero on chips without half-precision arithmetic, so FZ alone is the answer.
        control & FZ == FZ
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod control {
    /// No such control is known for this architecture: denormals are computed with.
    pub fn flush_denormals(_flush: bool) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    fn core(id: usize, physical: usize, kind: CoreKind) -> Core {
        Core { id, physical, kind }
    }

    #[test]
    fn the_cores_of_this_machine_are_plausible() {
        let cores = cores().unwrap();
        let counts = core_counts(&cores);
        assert!(counts.logical >= 1 && counts.logical >= parallelism(), "{counts:?}");
        assert!((1..=counts.logical).contains(&counts.physical), "{counts:?}");
        let mut ids: Vec<usize> = cores.iter().map(|core| core.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), cores.len(), "a core is listed twice");
    }

    #[test]
    fn counting_separates_kinds_and_hardware_threads() {
        use CoreKind::{Efficiency, Performance};
        let hybrid = [core(0, 0, Performance), core(1, 0, Performance), core(2, 1, Efficiency), core(3, 2, Efficiency)];
        let counts = core_counts(&hybrid);
        assert_eq!(counts, CoreCounts { logical: 4, physical: 3, performance: 1, efficiency: 2 });
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_pinned_thread_runs_on_its_core() {
        for core in cores().unwrap() {
            std::thread::spawn(move || {
                assert_eq!(pin_current(core.id).unwrap(), Pinning::Pinned);
                // SAFETY: a plain query.
                assert_eq!(unsafe { libc::sched_getcpu() }, core.id as i32);
            })
            .join()
            .unwrap();
        }
        let error = std::thread::spawn(|| pin_current(1_000_000).unwrap_err()).join().unwrap();
        assert!(error.to_string().starts_with("cannot pin the thread to core 1000000: "), "{error}");
    }

    #[test]
    fn names_are_cut_at_a_character() {
        std::thread::spawn(|| {
            name_current("halimede-arbeiterin-größe-äöüäöüäöüäöüäöüäöüäöüäöüäöüäöü").unwrap();
            name_current("15 bytes: ääää").unwrap();
            if cfg!(target_os = "linux") {
                let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
                assert_eq!(name.trim_end(), "15 bytes: ää");
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn quality_of_service_can_be_lowered() {
        std::thread::spawn(|| {
            for level in [
                QualityOfService::UserInteractive,
                QualityOfService::UserInitiated,
                QualityOfService::Utility,
                QualityOfService::Background,
            ] {
                set_quality_of_service(level).unwrap();
            }
            if cfg!(target_os = "linux") {
                let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
                let nice = stat.rsplit_once(") ").unwrap().1.split(' ').nth(16).unwrap();
                assert_eq!(nice, "10");
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn denormals_are_flushed_per_thread() {
        let half_of_smallest = || black_box(f32::MIN_POSITIVE) * black_box(0.5);
        let denormal_operand = || black_box(f32::from_bits(1)) * black_box(f32::MAX);
        std::thread::spawn(move || {
            assert!(half_of_smallest() > 0.0 && denormal_operand() > 0.0);
            assert!(!flush_denormals_current(true));
            assert_eq!((half_of_smallest(), denormal_operand()), (0.0, 0.0));
            let other = std::thread::spawn(half_of_smallest);
            assert!(flush_denormals_current(false));
            assert!(half_of_smallest() > 0.0 && denormal_operand() > 0.0);
            drop(other);
        })
        .join()
        .unwrap();
    }
}
