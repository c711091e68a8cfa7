//! macOS: what `unix.rs` does not cover, from `sysctl`, Mach and `libproc`.
//!
//! Names of `sysctl` values are Apple's; a value that a system does not have reads as `None`.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use crate::memory::{MachineMemory, ProcessMemory};
use crate::threads::{Core, CoreKind, Pinning, QualityOfService};
use crate::unix::check;
use crate::utilization::CpuTicks;

pub(crate) const THREAD_NAME_BYTES_MAX: usize = 63;

unsafe extern "C" {
    /// `pthread/qos.h`; the `libc` crate does not declare it.
    fn pthread_set_qos_class_self_np(class: libc::c_uint, relative_priority: libc::c_int) -> libc::c_int;
    /// `mach/mach_init.h`; deprecated in the `libc` crate, which is leaving Mach to other crates.
    fn mach_host_self() -> libc::mach_port_t;
    /// `mach/mach_port.h`: gives back a port right, such as the one `mach_host_self` hands out.
    fn mach_port_deallocate(task: libc::mach_port_t, name: libc::mach_port_t) -> libc::kern_return_t;
    /// `mach/mach_init.h`: what `mach_task_self()` reads.
    static mach_task_self_: libc::mach_port_t;
}

/// Files that can be made again, in the user's home.
pub(crate) const CACHE_IN_HOME: &str = "Library/Caches";

/// The calling thread's `errno`; async-signal-safe.
pub(crate) fn errno_location() -> *mut libc::c_int {
    // SAFETY: has no preconditions.
    unsafe { libc::__error() }
}

/// `setrlimit` refuses more open files than the kernel allows a process, even below the hard
/// limit, which is usually "unlimited".
pub(crate) fn open_file_ceiling() -> Option<libc::rlim_t> {
    number(c"kern.maxfilesperproc")
}

// ---- threads ----

/// One entry for each hardware thread, fast cores first. macOS lets nobody choose or even name a
/// core, so the numbers are only an order; there is no affinity mask that could exclude some.
pub(crate) fn cores() -> io::Result<Vec<Core>> {
    let missing = || io::Error::other("sysctl does not tell the number of cores");
    let count = |name: &CStr| number::<usize>(name);
    let levels = count(c"hw.nperflevels").unwrap_or(0);
    if levels < 2 {
        let logical = count(c"hw.logicalcpu").ok_or_else(missing)?;
        let physical = count(c"hw.physicalcpu").filter(|&n| n > 0).unwrap_or(logical);
        let threads = logical.div_ceil(physical.max(1)).max(1);
        return Ok((0..logical).map(|id| Core { id, physical: id / threads, kind: CoreKind::Performance }).collect());
    }
    // Level 0 is the fastest; no chip with several levels has several threads on a core.
    let performance = count(c"hw.perflevel0.logicalcpu").ok_or_else(missing)?;
    let all = count(c"hw.logicalcpu").ok_or_else(missing)?;
    Ok((0..all)
        .map(|id| Core {
            id,
            physical: id,
            kind: if id < performance { CoreKind::Performance } else { CoreKind::Efficiency },
        })
        .collect())
}

/// macOS only has affinity tags, a hint that threads with different tags profit from different
/// caches; Apple silicon supports not even that.
pub(crate) fn pin_current(id: usize) -> io::Result<Pinning> {
    const KERN_NOT_SUPPORTED: libc::kern_return_t = 46;
    // Tag 0 means "no affinity".
    let tag = libc::integer_t::try_from(id + 1).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut policy = libc::thread_affinity_policy_data_t { affinity_tag: tag };
    // SAFETY: the port of the calling thread, which its pthread owns, and a policy of the stated size.
    let result = unsafe {
        libc::thread_policy_set(
            libc::pthread_mach_thread_np(libc::pthread_self()),
            libc::THREAD_AFFINITY_POLICY as libc::thread_policy_flavor_t,
            (&raw mut policy).cast(),
            libc::THREAD_AFFINITY_POLICY_COUNT,
        )
    };
    match result {
        libc::KERN_SUCCESS => Ok(Pinning::Hinted),
        KERN_NOT_SUPPORTED => Ok(Pinning::Unavailable),
        code => Err(io::Error::other(format!("thread_policy_set gave Mach error {code}"))),
    }
}

pub(crate) fn name_current(name: &CStr) -> io::Result<()> {
    // SAFETY: a C string of less than 64 bytes, which the system copies.
    error_number(unsafe { libc::pthread_setname_np(name.as_ptr()) })
}

pub(crate) fn set_quality_of_service(level: QualityOfService) -> io::Result<()> {
    // Values of `qos_class_t` in `sys/qos.h`.
    let class = match level {
        QualityOfService::UserInteractive => 0x21,
        QualityOfService::UserInitiated => 0x19,
        QualityOfService::Utility => 0x11,
        QualityOfService::Background => 0x09,
    };
    // SAFETY: plain integers, for the calling thread.
    error_number(unsafe { pthread_set_qos_class_self_np(class, 0) })
}

/// The convention of pthread functions: the error number is the result.
fn error_number(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}

// ---- memory ----

pub(crate) fn machine_memory() -> MachineMemory {
    MachineMemory { total: number(c"hw.memsize"), available: available_memory(), ..MachineMemory::default() }
}

/// Free and inactive pages: what programs can take before anything is compressed or swapped.
fn available_memory() -> Option<u64> {
    let mut count = libc::HOST_VM_INFO64_COUNT;
    let mut statistics = MaybeUninit::<libc::vm_statistics64>::zeroed();
    let host = Host::port();
    // SAFETY: room for `count` integers. A kernel that knows a shorter structure fills less of it.
    let result =
        unsafe { libc::host_statistics64(host.0, libc::HOST_VM_INFO64, statistics.as_mut_ptr().cast(), &mut count) };
    if result != libc::KERN_SUCCESS {
        return None;
    }
    // SAFETY: the structure is integers: zeroed at first, filled by the kernel.
    let statistics = unsafe { statistics.assume_init() };
    let pages = u64::from(statistics.free_count) + u64::from(statistics.inactive_count);
    Some(pages * crate::mmap::page_size() as u64)
}

pub(crate) fn process_memory() -> ProcessMemory {
    let mut usage = MaybeUninit::<libc::rusage_info_v4>::zeroed();
    // SAFETY: room for the structure of this flavour, which is what the third argument points to
    // in spite of its declared type.
    let result = unsafe { libc::proc_pid_rusage(libc::getpid(), libc::RUSAGE_INFO_V4, usage.as_mut_ptr().cast()) };
    if check(result).is_err() {
        return ProcessMemory::default();
    }
    // SAFETY: the structure is integers: zeroed at first, filled by the system.
    let usage = unsafe { usage.assume_init() };
    ProcessMemory { resident: Some(usage.ri_resident_size), private: Some(usage.ri_phys_footprint) }
}

/// The system takes what it needs by itself.
pub(crate) fn release_memory() {}

/// The allocator of macOS has no such settings.
pub(crate) fn keep_freed_blocks(_block_max: usize, _kept_max: usize, _arenas_max: usize) {}

/// Nothing to do: shared memory is no file system that could be full.
pub(crate) fn reserve_shared_memory(_: BorrowedFd<'_>, _: libc::off_t) -> io::Result<()> {
    Ok(())
}

// ---- utilization ----

pub(crate) fn cpu_ticks() -> Option<CpuTicks> {
    let mut count = libc::HOST_CPU_LOAD_INFO_COUNT;
    let mut load = MaybeUninit::<libc::host_cpu_load_info>::zeroed();
    let host = Host::port();
    // SAFETY: room for `count` integers.
    let result =
        unsafe { libc::host_statistics(host.0, libc::HOST_CPU_LOAD_INFO, load.as_mut_ptr().cast(), &mut count) };
    if result != libc::KERN_SUCCESS {
        return None;
    }
    // SAFETY: the structure is integers: zeroed at first, filled by the kernel.
    let ticks = unsafe { load.assume_init() }.cpu_ticks.map(u64::from);
    let total: u64 = ticks.iter().sum();
    Some(CpuTicks { busy: total - ticks[libc::CPU_STATE_IDLE as usize], total })
}

/// A send right to the host port: each `mach_host_self` hands out another one to give back.
struct Host(libc::mach_port_t);

impl Host {
    fn port() -> Self {
        // SAFETY: has no preconditions.
        Self(unsafe { mach_host_self() })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: gives back the right that `port` obtained; the task port is set before `main`.
        unsafe { mach_port_deallocate(mach_task_self_, self.0) };
    }
}

// ---- chip ----

/// No Mac has Intel's matrix tiles.
pub(crate) fn permit_matrix_tiles() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(target_arch = "aarch64")]
pub(crate) use arm::{arm_caches, arm_identity, arm_matrix_features};

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{number, text};
    use crate::chip::{ArmIdentity, Cache, Caches, Feature, Features};

    pub(crate) fn arm_identity() -> ArmIdentity {
        let brand = text(c"machdep.cpu.brand_string");
        // "Apple M2 Pro": the maker is the first word. A virtual machine says "Apple processor".
        let vendor = brand.as_deref().and_then(|brand| brand.split(' ').next()).map(str::to_owned);
        ArmIdentity {
            vendor,
            brand,
            family: number(c"hw.cpufamily"),
            model: number(c"hw.cpusubfamily"),
            stepping: None,
        }
    }

    /// SME is no name that the standard library detects on stable Rust.
    pub(crate) fn arm_matrix_features() -> Features {
        let present = |name| number::<u32>(name) == Some(1);
        Features::from_iter([
            (Feature::Sme, present(c"hw.optional.arm.FEAT_SME")),
            (Feature::Sme2, present(c"hw.optional.arm.FEAT_SME2")),
        ])
    }

    /// Caches of the fast cores; where there is one kind of core only, the general names hold.
    /// Apple silicon has a system-level cache instead of a third level, and tells nothing of it.
    pub(crate) fn arm_caches() -> Caches {
        let first = |names: [&'static std::ffi::CStr; 2]| names.into_iter().find_map(number::<usize>);
        let cache = |bytes: Option<usize>, shared_by| bytes.map(|bytes| Cache { bytes, shared_by });
        Caches {
            l1d: cache(first([c"hw.perflevel0.l1dcachesize", c"hw.l1dcachesize"]), Some(1)),
            l2: cache(first([c"hw.perflevel0.l2cachesize", c"hw.l2cachesize"]), number(c"hw.perflevel0.cpusperl2")),
            l3: cache(first([c"hw.perflevel0.l3cachesize", c"hw.l3cachesize"]).filter(|&bytes| bytes > 0), None),
            line: number(c"hw.cachelinesize"),
        }
    }
}

// ---- sysctl ----

/// A number of the kernel, which comes as 4 or 8 bytes; `None` where it does not exist or fit.
fn number<T: TryFrom<u64>>(name: &CStr) -> Option<T> {
    let mut bytes = [0u8; 8];
    let value = match raw(name, &mut bytes)? {
        4 => u64::from(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        8 => u64::from_ne_bytes(bytes),
        _ => return None,
    };
    T::try_from(value).ok()
}

#[cfg(target_arch = "aarch64")]
fn text(name: &CStr) -> Option<String> {
    let mut bytes = [0u8; 256];
    raw(name, &mut bytes)?;
    let text = CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok()?;
    (!text.is_empty()).then(|| text.to_owned())
}

/// Reads a kernel value into `target`; gives its length in bytes.
fn raw(name: &CStr, target: &mut [u8]) -> Option<usize> {
    let mut length = target.len();
    // SAFETY: a C string, a writable buffer of `length` bytes, and no new value to set.
    let result =
        unsafe { libc::sysctlbyname(name.as_ptr(), target.as_mut_ptr().cast(), &mut length, std::ptr::null_mut(), 0) };
    check(result).ok().map(|_| length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_values() {
        assert_eq!(number::<usize>(c"hw.pagesize"), Some(crate::mmap::page_size()));
        assert_eq!(number::<u64>(c"hw.halimede.none"), None);
        assert!(open_file_ceiling().is_some_and(|ceiling| ceiling > 0));
    }

    #[test]
    fn ticks_advance() {
        let first = cpu_ticks().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(cpu_ticks().unwrap().total > first.total);
    }
}
