//! How much memory the machine has, and how much of it this process uses. All sizes in bytes.

use crate::system;

/// Memory of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineMemory {
    /// Installed memory.
    pub total: Option<u64>,
    /// What programs could still take without swapping, caches counted as free.
    pub available: Option<u64>,
    /// The limit of this process's container, where one is set.
    pub limit: Option<u64>,
    /// What the container may still take before its limit, caches counted as free.
    pub limit_left: Option<u64>,
}

impl MachineMemory {
    /// What this process may use in all: the machine's memory, or its container's limit.
    pub fn usable(&self) -> Option<u64> {
        match (self.total, self.limit) {
            (Some(total), Some(limit)) => Some(total.min(limit)),
            (total, limit) => total.or(limit),
        }
    }

    /// What this process may still take: of the machine, and of its container where one has a limit.
    pub fn left(&self) -> Option<u64> {
        match (self.available, self.limit_left) {
            (Some(machine), Some(container)) => Some(machine.min(container)),
            (machine, container) => machine.or(container),
        }
    }
}

/// Memory of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Resident, mapped files and shared memory included.
    pub resident: Option<u64>,
    /// Resident and nobody else's: heap, stacks, anonymous mappings. (macOS: the footprint, which
    /// also counts what was compressed or swapped out.)
    pub private: Option<u64>,
}

/// The machine's memory, now.
pub fn machine() -> MachineMemory {
    system::machine_memory()
}

/// This process's memory, now.
pub fn process() -> ProcessMemory {
    system::process_memory()
}

/// Gives memory that was freed back to the system, where the allocator would keep it for what comes: after work that
/// took much more than what follows will.
pub fn release() {
    system::release_memory();
}

/// Tells the allocator to keep freed blocks of up to `block_max` bytes for what comes, up to `kept_max` bytes for each of
/// its arenas, and to have no more of these than `arenas_max`, which threads share. By itself glibc gives most blocks back, and
/// the system clears every page of the next: of a request with a mebibyte that takes a tenth of the time. It has up to eight
/// arenas for each processor, and what one of them keeps is of no use to a thread of another. For a program that has just begun.
pub fn keep_freed_blocks(block_max: usize, kept_max: usize, arenas_max: usize) {
    system::keep_freed_blocks(block_max, kept_max, arenas_max);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_agree_with_each_other() {
        let machine = machine();
        let total = machine.total.unwrap();
        assert!(machine.available.unwrap() <= total && total > 64 << 20, "{machine:?}");
        assert!(machine.usable().unwrap() <= total);
        let process = process();
        assert!(process.resident.unwrap() <= total, "{process:?}");
        assert!(process.private.unwrap() > 0, "{process:?}");
    }

    #[test]
    fn touching_memory_makes_it_private_and_resident() {
        let before = process();
        let mut block = crate::mmap::AnonymousMap::new(64 << 20, 4096).unwrap();
        block.fill(1);
        let after = process();
        // other tests of this process come and go: three quarters of the block must show
        assert!(after.private.unwrap() >= before.private.unwrap() + (48 << 20), "{before:?} -> {after:?}");
        assert!(after.resident.unwrap() >= before.resident.unwrap() + (48 << 20), "{before:?} -> {after:?}");
    }

    #[test]
    fn left_is_the_smaller_known_one() {
        let memory = |available, limit_left| MachineMemory { available, limit_left, ..MachineMemory::default() }.left();
        assert_eq!(memory(Some(5), Some(3)), Some(3));
        assert_eq!(memory(Some(5), Some(7)), Some(5));
        assert_eq!(memory(Some(5), None), Some(5));
        assert_eq!(memory(None, Some(3)), Some(3));
        assert_eq!(memory(None, None), None);
        let machine = machine();
        assert!(machine.left().unwrap() <= machine.available.unwrap(), "{machine:?}");
    }

    #[test]
    fn usable_is_the_smaller_known_one() {
        let memory = |total, limit| MachineMemory { total, limit, ..MachineMemory::default() }.usable();
        assert_eq!(memory(Some(8), Some(4)), Some(4));
        assert_eq!(memory(Some(8), Some(u64::MAX)), Some(8));
        assert_eq!(memory(None, Some(4)), Some(4));
        assert_eq!(memory(None, None), None);
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn what_was_freed_is_given_back() {
        // Blocks that the allocator takes from its heap, the last one kept so that the heap cannot shrink by itself.
        let mut blocks: Vec<Vec<u8>> = (0..1024).map(|_| vec![1; 64 << 10]).collect();
        let last = blocks.pop();
        drop(blocks);
        let before = process().private.unwrap();
        release();
        let after = process().private.unwrap();
        assert!(before - after > 32 << 20, "{before} bytes before, {after} after");
        drop(last);
    }
}
