//! Linux: what `unix.rs` does not cover, from system calls, `/proc` and `/sys`.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use crate::memory::{MachineMemory, ProcessMemory};
use crate::threads::{Core, CoreKind, Pinning, QualityOfService};
use crate::unix::check;
use crate::utilization::CpuTicks;

pub(crate) const THREAD_NAME_BYTES_MAX: usize = 15;

/// Files that can be made again, in the user's home.
pub(crate) const CACHE_IN_HOME: &str = ".cache";

/// The calling thread's `errno`; async-signal-safe.
pub(crate) fn errno_location() -> *mut libc::c_int {
    // SAFETY: has no preconditions.
    unsafe { libc::__errno_location() }
}

/// No ceiling besides the hard limit.
pub(crate) fn open_file_ceiling() -> Option<libc::rlim_t> {
    None
}

// ---- threads ----

/// A processor mask for 8192 processors; `cpu_set_t` of libc ends at 1024.
type CpuMask = [u64; 128];

pub(crate) fn cores() -> io::Result<Vec<Core>> {
    let mut mask: CpuMask = [0; 128];
    // SAFETY: a writable buffer of the stated size; the kernel writes whole 64-bit words.
    check(unsafe { libc::sched_getaffinity(0, size_of::<CpuMask>(), mask.as_mut_ptr().cast()) })?;
    let ids = (0..mask.len() * 64).filter(|id| mask[id / 64] >> (id % 64) & 1 != 0);
    let economical = economical_cores();
    Ok(ids
        .map(|id| Core {
            id,
            physical: first_sibling(id).unwrap_or(id),
            kind: if economical.contains(&id) { CoreKind::Efficiency } else { CoreKind::Performance },
        })
        .collect())
}

/// The lowest hardware thread of the physical core that `id` belongs to.
fn first_sibling(id: usize) -> Option<usize> {
    let list = read(format!("/sys/devices/system/cpu/cpu{id}/topology/thread_siblings_list"))?;
    parse_list(&list).into_iter().min()
}

/// Economical cores: x86 kernels list them as a kind of their own, Arm kernels state a capacity.
fn economical_cores() -> Vec<usize> {
    if let Some(list) = read("/sys/devices/cpu_atom/cpus") {
        return parse_list(&list);
    }
    let all = read("/sys/devices/system/cpu/present").map_or_else(Vec::new, |list| parse_list(&list));
    let capacities: Vec<(usize, u32)> = all
        .into_iter()
        .filter_map(|id| Some((id, read_number(format!("/sys/devices/system/cpu/cpu{id}/cpu_capacity"))?)))
        .collect();
    // Firmware gives equal cores slightly different capacities: economical means half or less.
    let largest = capacities.iter().map(|&(_, capacity)| capacity).max().unwrap_or(0);
    capacities.into_iter().filter(|&(_, capacity)| capacity * 2 <= largest).map(|(id, _)| id).collect()
}

/// A kernel list of numbers: `0-3,8,10-11`.
fn parse_list(text: &str) -> Vec<usize> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            numbers.extend((first..=last).take(size_of::<CpuMask>() * 8));
        }
    }
    numbers
}

pub(crate) fn pin_current(id: usize) -> io::Result<Pinning> {
    let mut mask: CpuMask = [0; 128];
    let word = mask.get_mut(id / 64).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    *word = 1 << (id % 64);
    // SAFETY: a readable buffer of the stated size; 0 means the calling thread.
    check(unsafe { libc::sched_setaffinity(0, size_of::<CpuMask>(), mask.as_ptr().cast()) })?;
    Ok(Pinning::Pinned)
}

pub(crate) fn name_current(name: &CStr) -> io::Result<()> {
    // SAFETY: a C string; the kernel copies at most 16 bytes of it.
    check(unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) }).map(drop)
}

/// Linux has no quality of service: the nice value of the thread comes closest. (That each
/// thread has its own is Linux's deviation from POSIX.)
pub(crate) fn set_quality_of_service(level: QualityOfService) -> io::Result<()> {
    let nice = match level {
        QualityOfService::UserInteractive | QualityOfService::UserInitiated => return Ok(()),
        QualityOfService::Utility => 5,
        QualityOfService::Background => 10,
    };
    // SAFETY: plain integers; 0 means the calling thread.
    let thread = unsafe { libc::gettid() } as libc::id_t;
    // SAFETY: plain integers.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, thread, nice) }).map(drop)
}

// ---- memory ----

pub(crate) fn machine_memory() -> MachineMemory {
    let text = read("/proc/meminfo").unwrap_or_default();
    let (limit, limit_left) = container_limits();
    MachineMemory {
        total: kilobytes(&text, "MemTotal:"),
        available: kilobytes(&text, "MemAvailable:"),
        limit,
        limit_left,
    }
}

pub(crate) fn process_memory() -> ProcessMemory {
    let text = read("/proc/self/status").unwrap_or_default();
    ProcessMemory { resident: kilobytes(&text, "VmRSS:"), private: kilobytes(&text, "RssAnon:") }
}

/// The number after `name` in a table of `Name:   123 kB`, in bytes.
fn kilobytes(table: &str, name: &str) -> Option<u64> {
    let rest = table.lines().find_map(|line| line.strip_prefix(name))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The lowest memory limit of this process's control group and its parents, and the least that is left of any.
fn container_limits() -> (Option<u64>, Option<u64>) {
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let limits = || groups.lines().flat_map(|line| group_limits(line, Path::new("/sys/fs/cgroup")));
    (limits().map(|(limit, _)| limit).min(), limits().filter_map(|(_, left)| left).min())
}

/// The limits behind one line of `/proc/self/cgroup`, `ID:controllers:path`, each with what is left of it: version 2 has
/// no controllers there, version 1 names `memory`.
fn group_limits(line: &str, root: &Path) -> Vec<(u64, Option<u64>)> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { return Vec::new() };
    let (root, limit, used, cached) = match controllers {
        "" => (root.to_owned(), "memory.max", "memory.current", ["inactive_file ", "active_file "]),
        list if list.split(',').any(|name| name == "memory") => (
            root.join("memory"),
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            ["total_inactive_file ", "total_active_file "],
        ),
        _ => return Vec::new(),
    };
    // Version 1 writes "no limit" as the largest multiple of a page, version 2 as "max".
    const NO_LIMIT: u64 = 1 << 60;
    // Pages of files leave when somebody needs their memory.
    let left = |folder: &Path, limit: u64| {
        let used: u64 = read_number(folder.join(used))?;
        let statistics = read(folder.join("memory.stat"))?;
        let pages =
            |name: &str| statistics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        let cached = cached.iter().filter_map(|name| pages(name)).fold(0, u64::saturating_add);
        Some(limit.saturating_sub(used.saturating_sub(cached)))
    };
    let group = root.join(group.trim_start_matches('/'));
    let folders = group.ancestors().take_while(|folder| folder.starts_with(&root));
    let limits = folders.filter_map(|folder| Some((folder, read_number::<u64>(folder.join(limit))?)));
    limits.filter(|&(_, limit)| limit < NO_LIMIT).map(|(folder, limit)| (limit, left(folder, limit))).collect()
}

pub(crate) fn release_memory() {
    // SAFETY: the allocator's own function, which any thread may call. musl keeps nothing worth it.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

pub(crate) fn keep_freed_blocks(block_max: usize, kept_max: usize, arenas_max: usize) {
    // SAFETY: the allocator's own function, for a program that has just begun; a value it cannot take changes nothing.
    #[cfg(target_env = "gnu")]
    unsafe {
        let int = |number: usize| libc::c_int::try_from(number).unwrap_or(libc::c_int::MAX);
        libc::mallopt(libc::M_MMAP_THRESHOLD, int(block_max));
        libc::mallopt(libc::M_TRIM_THRESHOLD, int(kept_max));
        libc::mallopt(libc::M_ARENA_MAX, int(arenas_max.max(1)));
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = (block_max, kept_max, arenas_max);
}

/// Makes sure that the first `length` bytes of a shared-memory object have memory. Where `/dev/shm` is full, this
/// is an error, and touching a page that has none would end the process.
pub(crate) fn reserve_shared_memory(object: BorrowedFd<'_>, length: libc::off_t) -> io::Result<()> {
    loop {
        // SAFETY: a valid descriptor and plain integers.
        match unsafe { libc::posix_fallocate(object.as_raw_fd(), 0, length) } {
            0 => return Ok(()),
            libc::EINTR => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

// ---- utilization ----

pub(crate) fn cpu_ticks() -> Option<CpuTicks> {
    parse_ticks(&read("/proc/stat")?)
}

/// The first line of `/proc/stat`: `cpu user nice system idle iowait irq softirq steal guest guest_nice`.
/// Guest time is part of user time already.
fn parse_ticks(stat: &str) -> Option<CpuTicks> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
    let idle = fields.get(3)? + fields.get(4).unwrap_or(&0);
    let total: u64 = fields.iter().sum();
    Some(CpuTicks { busy: total - idle, total })
}

// ---- chip ----

pub(crate) fn permit_matrix_tiles() -> io::Result<()> {
    #[cfg(target_arch = "x86_64")]
    {
        const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
        const TILE_DATA: libc::c_ulong = 18;
        // SAFETY: asks for a permission; no pointer is involved.
        let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) };
        if result != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(target_arch = "aarch64")]
pub(crate) use arm::{arm_caches, arm_identity, arm_matrix_features};

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{parse_list, read, read_number};
    use crate::chip::{ArmIdentity, Cache, Caches, Feature, Features};

    /// The main identification register: implementer, variant, part and revision. The kernel
    /// answers the read on behalf of programs, and says so in its hardware capabilities.
    fn identification() -> Option<u32> {
        // SAFETY: a plain query; unknown keys give 0.
        if unsafe { libc::getauxval(libc::AT_HWCAP) } & libc::HWCAP_CPUID == 0 {
            return None;
        }
        let register: u64;
        // SAFETY: with the capability above the read is permitted; it changes nothing.
        unsafe {
            std::arch::asm!("mrs {}, midr_el1", out(reg) register, options(nomem, nostack, preserves_flags));
        }
        Some(register as u32)
    }

    pub(crate) fn arm_identity() -> ArmIdentity {
        let Some(register) = identification() else {
            return ArmIdentity::default();
        };
        let vendor = match register >> 24 {
            0x41 => "ARM".to_owned(),
            0x46 => "Fujitsu".to_owned(),
            0x48 => "HiSilicon".to_owned(),
            0x4E => "NVIDIA".to_owned(),
            0x51 => "Qualcomm".to_owned(),
            0x61 => "Apple".to_owned(),
            0x6D => "Microsoft".to_owned(),
            0xC0 => "Ampere".to_owned(),
            other => format!("implementer-{other:#04x}"),
        };
        let (variant, revision) = (register >> 20 & 15, register & 15);
        ArmIdentity {
            vendor: Some(vendor),
            brand: None,
            family: None,
            model: Some(register >> 4 & 0xFFF),
            stepping: Some(variant << 4 | revision),
        }
    }

    /// SME, which the standard library does not detect on stable Rust: second word of the
    /// kernel's hardware capabilities.
    pub(crate) fn arm_matrix_features() -> Features {
        const HWCAP2_SME: u64 = 1 << 23;
        const HWCAP2_SME2: u64 = 1 << 37;
        // SAFETY: a plain query; unknown keys give 0.
        let capabilities = unsafe { libc::getauxval(libc::AT_HWCAP2) };
        Features::from_iter([
            (Feature::Sme, capabilities & HWCAP2_SME != 0),
            (Feature::Sme2, capabilities & HWCAP2_SME2 != 0),
        ])
    }

    pub(crate) fn arm_caches() -> Caches {
        let mut caches = Caches::default();
        for index in 0..8 {
            let folder = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
            let Some(kind) = read(format!("{folder}/type")) else {
                break;
            };
            if kind.trim() == "Instruction" {
                continue;
            }
            let Some(bytes) = read(format!("{folder}/size")).and_then(|size| super::parse_size(&size)) else {
                continue;
            };
            let shared_by = read(format!("{folder}/shared_cpu_list")).map(|list| parse_list(&list).len());
            let cache = Some(Cache { bytes, shared_by });
            match read_number::<u32>(format!("{folder}/level")) {
                Some(1) => {
                    caches.l1d = cache;
                    caches.line = read_number(format!("{folder}/coherency_line_size"));
                }
                Some(2) => caches.l2 = cache,
                Some(3) => caches.l3 = cache,
                _ => {}
            }
        }
        caches
    }
}

/// A size as `/sys` writes it: `64K`, `2048K`, `32M`.
#[cfg(any(target_arch = "aarch64", test))]
fn parse_size(text: &str) -> Option<usize> {
    let text = text.trim();
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

// ---- files of /proc and /sys ----

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn read_number<T: std::str::FromStr>(path: impl AsRef<Path>) -> Option<T> {
    read(path)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_sizes() {
        assert_eq!(parse_list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_list(""), [0usize; 0]);
        assert_eq!(parse_list("5,x,7-6"), [5]);
        assert!(parse_list("0-99999999999").len() <= 8192);
        assert_eq!(parse_size("64K\n"), Some(65_536));
        assert_eq!(parse_size("32M"), Some(32 << 20));
        assert_eq!(parse_size("K"), None);
        assert_eq!(parse_size(""), None);
    }

    #[test]
    fn tables_and_ticks() {
        let table = "MemTotal:       49265328 kB\nMemAvailable:   1 kB\nHugePages_Total:       0\n";
        assert_eq!(kilobytes(table, "MemTotal:"), Some(49_265_328 * 1024));
        assert_eq!(kilobytes(table, "MemAvailable:"), Some(1024));
        assert_eq!(kilobytes(table, "HugePages_Total:"), None);
        assert_eq!(kilobytes(table, "Swap:"), None);
        let ticks = parse_ticks("cpu  10 1 20 100 7 2 3 4 999 999\ncpu0 1 2 3 4\n");
        assert_eq!(ticks, Some(CpuTicks { busy: 40, total: 147 }));
        assert_eq!(parse_ticks("cpu  1 2\n"), None);
        assert_eq!(parse_ticks(""), None);
    }

    #[test]
    fn the_limits_of_all_control_groups_count_without_their_caches() {
        let root = std::env::temp_dir().join(format!("halimede-cgroup-{}", std::process::id()));
        let folder = root.join("a/b");
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(root.join("memory/c")).unwrap();
        fs::write(root.join("a/memory.max"), "1000000\n").unwrap();
        fs::write(folder.join("memory.max"), "max\n").unwrap();
        fs::write(root.join("memory/c/memory.limit_in_bytes"), "5000\n").unwrap();
        fs::write(root.join("memory/memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        assert_eq!(group_limits("0::/a/b", &root), [(1_000_000, None)]);
        assert_eq!(group_limits("0::/", &root), []);
        assert_eq!(group_limits("4:cpu,memory:/c", &root), [(5_000, None)]);
        assert_eq!(group_limits("4:cpu:/c", &root), []);
        assert_eq!(group_limits("nonsense", &root), []);
        fs::write(root.join("a/memory.current"), "900000\n").unwrap();
        fs::write(root.join("a/memory.stat"), "anon 1\ninactive_file 100000\nactive_file 200000\nfile 7\n").unwrap();
        fs::write(root.join("memory/c/memory.usage_in_bytes"), "6000\n").unwrap();
        fs::write(root.join("memory/c/memory.stat"), "inactive_file 9\ntotal_inactive_file 10\n").unwrap();
        assert_eq!(group_limits("0::/a/b", &root), [(1_000_000, Some(400_000))]);
        assert_eq!(group_limits("4:memory:/c", &root), [(5_000, Some(0))]);
        fs::remove_dir_all(&root).unwrap();
    }
}
