//! Shared memory that tensors travel through.
//!
//! A segment is an object of shared memory whose first byte says whether somebody uses it; tensors begin at
//! multiples of [`ALIGNMENT`] behind it. Input segments belong to the server: it takes a free one for each
//! batch, and the host frees it when no array looks at it any more. Output segments belong to the host: it
//! takes a free one for each response, and the server frees it when it has copied the outputs.

use std::{
    collections::VecDeque,
    io,
    mem::MaybeUninit,
    os::fd::BorrowedFd,
    process,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::SeqCst},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use halimede_platform::shared_memory::{OwnedSharedMemory, SharedMemoryError};

/// Where tensors may begin, and how many bytes are kept for the byte that says who uses the segment.
pub(crate) const ALIGNMENT: usize = 64;

/// No segment is smaller, so that most are used again.
const BYTES_MIN: usize = 64 << 10;

const FREE: u8 = 0;
const IN_USE: u8 = 1;

/// What the keys of all segments of this process begin with, behind the slash.
pub fn key_prefix() -> String {
    format!("hm{:x}-", process::id())
}

/// A segment.
#[derive(Debug)]
pub(crate) struct Segment {
    number: u32,
    memory: OwnedSharedMemory,
    /// Whether what lies in it may still be read here, also when the host has let it go.
    is_kept: AtomicBool,
}

/// As long as this is there, the pool does not give the segment away.
#[derive(Debug)]
pub(crate) struct Kept(Arc<Segment>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.is_kept.store(false, SeqCst);
    }
}

impl Segment {
    /// A new one, for tensors of `bytes` together.
    pub fn create(number: u32, bytes: usize) -> Result<Self, SharedMemoryError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static START: LazyLock<u32> =
            LazyLock::new(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos());
        let capacity = rounded(bytes.saturating_add(ALIGNMENT).max(BYTES_MIN));
        // At most 31 bytes, for macOS. Processes with this number in other containers may make objects at the same place.
        let count = COUNT.fetch_add(1, Relaxed);
        let key = format!("/{}{:x}-{count:x}", key_prefix(), *START);
        let memory = OwnedSharedMemory::create_without_key(&key, capacity as u64)?;
        Ok(Self { number, memory, is_kept: AtomicBool::new(false) })
    }

    /// The number by which messages name it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.memory.region().len()
    }

    /// Writes bytes to the socket of a host, which gets the memory with the first one. Returns how many were written.
    pub fn send(&self, socket: BorrowedFd<'_>, message: &[u8]) -> io::Result<usize> {
        self.memory.send(socket, message)
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        self.bytes() - ALIGNMENT >= bytes
    }

    fn is_free(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        !self.is_kept.load(SeqCst) && self.memory.read(0, &mut byte).is_ok_and(|byte| *byte == [FREE])
    }

    /// Keeps what lies in it. For one who took it alone.
    pub fn keep(self: &Arc<Self>) -> Kept {
        self.is_kept.store(true, SeqCst);
        Kept(self.clone())
    }

    /// From now on it is in use.
    pub fn take(&self) -> Result<(), SharedMemoryError> {
        self.memory.write(0, &[IN_USE])
    }

    /// From now on it is free.
    pub fn release(&self) {
        // A segment that cannot be written is never found free: nothing else depends on it.
        let _ = self.memory.write(0, &[FREE]);
    }

    /// Copies bytes into it.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), SharedMemoryError> {
        self.memory.write(offset, bytes)
    }

    /// Copies bytes out of it, and returns the target.
    pub fn read<'a>(
        &self,
        offset: usize,
        target: &'a mut [MaybeUninit<u8>],
    ) -> Result<&'a mut [u8], SharedMemoryError> {
        self.memory.read(offset, target)
    }

    /// Whether so many bytes from `offset` lie in it.
    pub fn contains(&self, offset: usize, bytes: usize) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.bytes())
    }
}

/// A size that is little more than `bytes`, so that tensors of about one size use the same segments.
fn rounded(bytes: usize) -> usize {
    bytes.checked_next_multiple_of((bytes.isqrt() * 8).next_power_of_two().max(BYTES_MIN)).unwrap_or(bytes)
}

/// How many segments are looked at for one that is free: with thousands in use, most of a request's time would go there.
const LOOKS_MAX: usize = 64;

/// Free segments that are kept for what comes, of as many as are looked at. Each is a file of two processes, which may not have
/// many of them open.
const FREE_MAX: usize = LOOKS_MAX / 2;

/// Free segments that a process keeps of each kind, inputs and outputs, when nothing has come from it for a while. A server may have
/// many models that wait.
pub(crate) const IDLE_FREE_MAX: usize = 4;

/// So many that are no more are told of by themselves: below, they are told of with the next batch.
pub(crate) const UNTOLD_MAX: usize = 16;

/// The input segments of a process.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Those that were looked at last are behind.
    segments: VecDeque<Arc<Segment>>,
    /// Numbers of those that are no more, and of which the host was not told.
    dropped: Vec<u32>,
}

/// A segment that was taken from a pool.
#[derive(Debug)]
pub(crate) struct Taken {
    pub segment: Arc<Segment>,
    /// Whether the host does not know it yet.
    pub is_new: bool,
    /// Numbers of those that are no more: they were free, and too small.
    pub dropped: Vec<u32>,
}

impl Pool {
    /// A free segment for `bytes`; the smallest that there is, or a new one of the number that `number` gives.
    pub fn take(&mut self, bytes: usize, number: impl FnOnce() -> u32) -> Result<Taken, SharedMemoryError> {
        let looks = self.segments.len().min(LOOKS_MAX);
        let free = |segment: &&Arc<Segment>| segment.is_free();
        let fitting = self.segments.range(..looks).filter(|segment| segment.has_room_for(bytes)).filter(free);
        if let Some(segment) = fitting.min_by_key(|segment| segment.bytes()) {
            segment.take()?;
            return Ok(Taken { segment: segment.clone(), is_new: false, dropped: std::mem::take(&mut self.dropped) });
        }
        // What is free is too small: the new one serves in its place.
        let (dropped, kept): (Vec<_>, Vec<_>) = self.segments.drain(..looks).partition(|segment| segment.is_free());
        self.segments.extend(kept);
        // Before anything fails: they are no more in any case.
        self.dropped.extend(dropped.iter().map(|segment| segment.number));
        drop(dropped);
        let segment = Arc::new(Segment::create(number(), bytes)?);
        segment.take()?;
        self.segments.push_front(segment.clone());
        Ok(Taken { segment, is_new: true, dropped: std::mem::take(&mut self.dropped) })
    }

    /// Drops some of those that are free where there are many: what a burst of requests needed goes with the answers to it. Returns
    /// their numbers.
    pub fn shrink(&mut self) -> Vec<u32> {
        if self.segments.len() <= FREE_MAX {
            return Vec::new();
        }
        let (mut free, mut dropped) = (0, Vec::new());
        for index in (0..self.segments.len().min(LOOKS_MAX)).rev() {
            let is_free = self.segments[index].is_free();
            free += usize::from(is_free);
            if is_free && free > FREE_MAX {
                dropped.extend(self.segments.remove(index).map(|segment| segment.number));
            }
        }
        // The next look is at others.
        if self.segments.len() > LOOKS_MAX {
            self.segments.rotate_left(LOOKS_MAX);
        }
        self.dropped.extend(&dropped);
        dropped
    }

    /// Drops those that are free but for so many, however many there are. Returns their numbers.
    pub fn trim(&mut self, kept: usize) -> Vec<u32> {
        let (mut free, mut dropped) = (0, Vec::new());
        self.segments.retain(|segment| {
            let is_free = segment.is_free();
            free += usize::from(is_free);
            let goes = is_free && free > kept;
            if goes {
                dropped.push(segment.number);
            }
            !goes
        });
        self.dropped.extend(&dropped);
        dropped
    }

    /// Numbers of those that are no more, where there are so many of which the host was not told. It is to be told now.
    pub fn untold(&mut self, count_min: usize) -> Vec<u32> {
        if self.dropped.len() < count_min { Vec::new() } else { std::mem::take(&mut self.dropped) }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Drops a segment that the host does not know.
    pub fn forget(&mut self, number: u32) {
        self.segments.retain(|segment| segment.number != number);
    }

    /// Whether a segment is one of these.
    pub fn owns(&self, segment: &Segment) -> bool {
        self.segments.iter().any(|mine| mine.number == segment.number)
    }
}

/// The next place where a tensor may begin.
pub(crate) fn aligned(offset: usize) -> usize {
    offset.next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use halimede_platform::shared_memory::SharedRegion;

    use super::*;

    #[test]
    fn a_segment_is_used_again_once_it_is_free() {
        let mut pool = Pool::default();
        let mut take = |bytes, number| {
            let Taken { segment, is_new, dropped } = pool.take(bytes, || number).unwrap();
            (segment, is_new, dropped)
        };
        let (first, is_new, _) = take(100, 1);
        assert!(is_new && first.contains(0, BYTES_MIN) && !first.contains(1, BYTES_MIN));
        let (second, is_new, dropped) = take(100, 2);
        assert!(is_new && second.number() == 2 && dropped.is_empty());
        first.release();
        let (again, is_new, _) = take(BYTES_MIN - ALIGNMENT, 3);
        assert_eq!((again.number(), is_new), (1, false));
        second.release();
        // The free one is too small and goes; the other one is in use.
        let (large, is_new, dropped) = take(BYTES_MIN, 4);
        assert!(is_new && large.contains(ALIGNMENT, BYTES_MIN));
        assert_eq!(dropped, [2]);
    }

    #[test]
    fn a_segment_that_is_kept_is_not_used_again() {
        let mut pool = Pool::default();
        let segment = pool.take(100, || 1).unwrap().segment;
        let kept = segment.keep();
        segment.release();
        // Neither taken nor, for a larger one, dropped.
        assert!(pool.take(100, || 2).unwrap().is_new);
        assert!(!pool.take(BYTES_MIN, || 3).unwrap().dropped.contains(&1));
        drop(kept);
        assert_eq!(pool.take(100, || 4).unwrap().segment.number(), 1);
    }

    #[test]
    fn many_that_are_in_use_are_found_when_they_are_free() {
        let mut pool = Pool::default();
        let count = u32::try_from(LOOKS_MAX).unwrap() * 3;
        let all: Vec<_> = (0..count).map(|number| pool.take(1, || number).unwrap()).collect();
        assert!(all.iter().all(|taken| taken.is_new && taken.dropped.is_empty()));
        assert!(all.iter().all(|taken| pool.owns(&taken.segment)));
        // The place of the one that is free comes up, at the cost of few new ones.
        all[7].segment.release();
        let mut number = count;
        let found = (0..4).any(|_| {
            number += 1;
            !pool.take(1, || number).unwrap().is_new
        });
        assert!(found);
    }

    #[test]
    fn what_a_burst_needed_is_let_go() {
        let mut pool = Pool::default();
        let count = u32::try_from(LOOKS_MAX).unwrap() * 10;
        let all: Vec<_> = (0..count).map(|number| pool.take(1, || number).unwrap().segment).collect();
        assert!(pool.shrink().is_empty(), "all are in use");
        all.iter().skip(1).for_each(|segment| segment.release());
        drop(all);
        let mut dropped: Vec<u32> = (0..100).flat_map(|_| pool.shrink()).collect();
        assert!(pool.segments.len() <= FREE_MAX + 1, "{}", pool.segments.len());
        // The host is told once of each, with the next that is taken; what is in use is none of them.
        let mut told = pool.take(1, || unreachable!("one is free")).unwrap().dropped;
        dropped.sort_unstable();
        told.sort_unstable();
        assert_eq!(told, dropped);
        assert!(!told.contains(&0) && pool.take(1, || unreachable!("another one is free")).unwrap().dropped.is_empty());
    }

    #[test]
    fn all_that_is_free_is_let_go_but_for_a_few() {
        let mut pool = Pool::default();
        let count = u32::try_from(LOOKS_MAX).unwrap() * 2;
        let all: Vec<_> = (0..count).map(|number| pool.take(1, || number).unwrap().segment).collect();
        all.iter().skip(1).for_each(|segment| segment.release());
        let dropped = pool.trim(IDLE_FREE_MAX);
        assert_eq!((pool.len(), dropped.len()), (IDLE_FREE_MAX + 1, all.len() - 1 - IDLE_FREE_MAX));
        // The host is told once.
        assert!(pool.untold(dropped.len() + 1).is_empty());
        assert_eq!(pool.untold(dropped.len()), dropped);
        assert!(pool.untold(0).is_empty());
        pool.trim(0);
        assert_eq!((pool.len(), pool.untold(1).len()), (1, IDLE_FREE_MAX));
    }

    #[test]
    fn what_the_host_does_not_know_is_forgotten() {
        let mut pool = Pool::default();
        pool.take(1, || 1).unwrap();
        pool.forget(1);
        assert!(pool.segments.is_empty());
    }

    #[test]
    fn little_memory_is_wasted() {
        for bytes in [1, 70_000, 1 << 20, (1 << 20) + 1, 100_000_000, (1 << 30) + 64] {
            let size = rounded(bytes.max(BYTES_MIN));
            assert!(size >= bytes && size <= bytes.max(BYTES_MIN) + bytes / 4 + BYTES_MIN, "{bytes} {size}");
        }
        assert_eq!(rounded(usize::MAX), usize::MAX);
    }

    #[test]
    fn keys_fit_macos_and_are_gone() {
        let segment = Segment::create(1, 1).unwrap();
        let key = segment.memory.region().key();
        assert!(key.len() <= 31);
        assert!(SharedRegion::open(key, 0, 1).is_err());
        segment.write(64, b"still there").unwrap();
    }
}
