//! Shared bytes with an owner that may be the heap, a mapped file, a request body or shared memory.

use crate::TensorError;
use halimede_platform::mmap::AnonymousMap;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

/// Where bytes live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Location {
    /// Ordinary memory, which every unit of a machine with unified memory can read.
    Host,
}

/// Every heap buffer starts on a cache line, which is also the widest vector register.
const ALIGNMENT: usize = 64;

/// Immutable shared bytes. Cloning shares; [`Buffer::make_mut`] copies when somebody else holds them.
#[derive(Clone)]
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

#[derive(Clone)]
enum Owner {
    Heap(Arc<Heap>),
    /// Bytes that somebody else keeps alive and that are never written through this buffer.
    Foreign(#[allow(dead_code, reason = "held so that the bytes live")] Arc<dyn Send + Sync>),
}

// SAFETY: the bytes are only read through shared references; the one writer (`make_mut`) needs `&mut`
// and an owner that nobody else holds.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Zeroed heap bytes, aligned to 64.
    pub fn zeroed(len: usize) -> Result<Buffer, TensorError> {
        Ok(Buffer::from_heap(Heap::zeroed(len)?, len))
    }

    /// Heap bytes that `fill` writes, all of them: what it returns is what it was given. They are not zeroed first.
    ///
    /// # Errors
    /// There is no memory, or `fill` failed.
    ///
    /// # Panics
    /// `fill` returned other bytes.
    pub fn filled<E: From<TensorError>>(
        len: usize,
        fill: impl for<'a> FnOnce(&'a mut [MaybeUninit<u8>]) -> Result<&'a mut [u8], E>,
    ) -> Result<Buffer, E> {
        let heap = Heap::uninitialized(len)?;
        // SAFETY: the block is new and has `len` bytes from `start` on; nothing is read of them.
        let bytes = unsafe { std::slice::from_raw_parts_mut(heap.start.cast().as_ptr(), len) };
        let filled = fill(bytes)?;
        // A reference to bytes is one to bytes that were written.
        assert!(filled.as_ptr() == heap.start.as_ptr() && filled.len() == len, "other bytes were filled");
        Ok(Buffer::from_heap(heap, len))
    }

    /// A heap copy of `bytes`.
    pub fn copied(bytes: &[u8]) -> Result<Buffer, TensorError> {
        Buffer::filled(bytes.len(), |target| Ok(target.write_copy_of_slice(bytes)))
    }

    /// A heap copy of `parts`, one after the other.
    pub fn concatenated(parts: &[&[u8]]) -> Result<Buffer, TensorError> {
        Buffer::filled(parts.iter().map(|part| part.len()).sum(), |target| {
            let mut rest = &mut *target;
            for part in parts {
                let (head, tail) = rest.split_at_mut(part.len());
                head.write_copy_of_slice(part);
                rest = tail;
            }
            // SAFETY: all parts were written, and together they are as long as the target.
            Ok(unsafe { target.assume_init_mut() })
        })
    }

    /// Bytes that `owner` keeps alive and unchanged: a mapped file, a request body.
    pub fn foreign<O: AsRef<[u8]> + Send + Sync + 'static>(owner: O) -> Buffer {
        let owner = Arc::new(owner);
        let bytes: &[u8] = (*owner).as_ref();
        // The bytes may lie inside the owner itself; the Arc pins it.
        let (start, len) = (NonNull::from(bytes).cast(), bytes.len());
        Buffer { start, len, owner: Owner::Foreign(owner) }
    }

    pub(crate) fn from_heap(heap: Heap, len: usize) -> Buffer {
        Buffer { start: heap.start, len, owner: Owner::Heap(Arc::new(heap)) }
    }

    /// The part `offset..offset + len` of these bytes, sharing them. `None` outside the buffer.
    pub fn part(&self, offset: usize, len: usize) -> Option<Buffer> {
        offset.checked_add(len).filter(|&end| end <= self.len)?;
        // SAFETY: `offset <= self.len`, so the pointer stays inside or one past the allocation.
        let start = unsafe { self.start.add(offset) };
        Some(Buffer { start, len, owner: self.owner.clone() })
    }

    /// The bytes of `parts` one after the other, where that is how they lie in one heap block: sharing them.
    pub fn joined(parts: &[&Buffer]) -> Option<Buffer> {
        let (first, rest) = parts.split_first()?;
        let Owner::Heap(heap) = &first.owner else { return None };
        let mut len = first.len;
        for part in rest {
            let same = matches!(&part.owner, Owner::Heap(other) if Arc::ptr_eq(heap, other));
            if !same || part.start.as_ptr() != first.start.as_ptr().wrapping_add(len) {
                return None;
            }
            len += part.len;
        }
        Some(Buffer { start: first.start, len, owner: first.owner.clone() })
    }

    /// Whether the bytes belong to somebody else: a mapped file, a request body.
    pub fn is_foreign(&self) -> bool {
        matches!(self.owner, Owner::Foreign(_))
    }

    /// Where the bytes live.
    pub fn location(&self) -> Location {
        Location::Host
    }

    /// The bytes for writing; copied first when they are shared, foreign or mapped.
    pub fn make_mut(&mut self) -> Result<&mut [u8], TensorError> {
        let unique = match &mut self.owner {
            Owner::Heap(heap) => Arc::get_mut(heap).is_some(),
            Owner::Foreign(_) => false,
        };
        if !unique {
            *self = Buffer::copied(self)?;
        }
        // SAFETY: the heap block is ours alone (checked or just made), lives as long as `self`, and
        // `start..start + len` lies inside it.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `owner` keeps `start..start + len` alive and nobody writes while it is shared.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// Bytes that one owner may write.
pub(crate) struct Heap {
    memory: Memory,
    /// The first aligned byte.
    start: NonNull<u8>,
}

enum Memory {
    /// A block of the allocator.
    Block(NonNull<u8>, Layout),
    /// Part of a mapping that nobody else has a part of.
    Mapping(#[allow(dead_code, reason = "held so that the bytes live")] Arc<AnonymousMap>),
}

// SAFETY: a block of plain bytes.
unsafe impl Send for Heap {}
// SAFETY: as above; access is governed by `Buffer`.
unsafe impl Sync for Heap {}

impl Heap {
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn zeroed(len: usize) -> Result<Heap, TensorError> {
        // SAFETY: the layout has a size above zero.
        Heap::block(len, |layout| unsafe { alloc_zeroed(layout) })
    }

    /// Bytes that nothing may be read of before it was written.
    fn uninitialized(len: usize) -> Result<Heap, TensorError> {
        // SAFETY: the layout has a size above zero.
        Heap::block(len, |layout| unsafe { alloc(layout) })
    }

    /// A block of an allocator, which is asked for a size above zero.
    fn block(len: usize, allocate: impl FnOnce(Layout) -> *mut u8) -> Result<Heap, TensorError> {
        // An allocator that is asked for such an alignment writes zeros over pages that the system hands out zeroed:
        // it is asked for a few bytes more instead.
        let size = len.max(1).checked_add(ALIGNMENT).ok_or(TensorError::OutOfMemory(len))?;
        let layout = Layout::from_size_align(size, align_of::<usize>()).map_err(|_| TensorError::OutOfMemory(len))?;
        let block = NonNull::new(allocate(layout)).ok_or(TensorError::OutOfMemory(len))?;
        // SAFETY: the next multiple is less than `ALIGNMENT` bytes away, and the block has so many more than `len`.
        let start = unsafe { block.add(block.align_offset(ALIGNMENT)) };
        Ok(Heap { memory: Memory::Block(block, layout), start })
    }

    /// The bytes of a mapping from one on that is aligned.
    ///
    /// # Safety
    /// They are zero, inside the mapping, and no other [`Heap`] has some of them.
    unsafe fn of_mapping(map: Arc<AnonymousMap>, from: usize) -> Heap {
        debug_assert!(from.is_multiple_of(ALIGNMENT));
        // SAFETY: the caller's promise.
        let start = unsafe { map.start().add(from) };
        Heap { memory: Memory::Mapping(map), start }
    }

    /// Bytes that stay for long: a mapping of their own, in large pages.
    pub(crate) fn lasting(len: usize) -> Result<Heap, TensorError> {
        let map = Arc::new(large_pages(len)?);
        // SAFETY: a new mapping is zeroed, has these bytes, and nobody else has it.
        Ok(unsafe { Heap::of_mapping(map, 0) })
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        if let Memory::Block(block, layout) = self.memory {
            // SAFETY: allocated in `block` with this layout.
            unsafe { dealloc(block.as_ptr(), layout) }
        }
    }
}

/// Bytes up to which small pages do: many small models would take a large page each.
pub(crate) const SMALL: usize = 4 << 20;

/// Bytes of the large pages of x86-64, and of arm64 with pages of 4 KiB.
const LARGE_PAGE: usize = 2 << 20;

/// Memory in small pages, which become memory one by one as they are touched.
fn small_pages(len: usize) -> Result<AnonymousMap, TensorError> {
    let map = AnonymousMap::new(len, ALIGNMENT).map_err(|_| TensorError::OutOfMemory(len))?;
    map.refuse_huge_pages();
    Ok(map)
}

/// Memory in large pages, where the system has such.
fn large_pages(len: usize) -> Result<AnonymousMap, TensorError> {
    let map = AnonymousMap::new(len, LARGE_PAGE).map_err(|_| TensorError::OutOfMemory(len))?;
    map.prefer_huge_pages();
    Ok(map)
}

/// Memory for what is made once and read often, such as a model's weights: beyond the first few MiB it lies in large pages.
/// Of small ones a core remembers too few for weights that are read from start to end, and what fetches ahead stops at
/// the end of each. None of it comes from the allocator, whose pages what lasts would keep among what does not.
#[derive(Default)]
pub struct Region {
    /// Mappings, and bytes of each that were given: what did not fit at the end of one leaves it to others that do.
    maps: Vec<(Arc<AnonymousMap>, usize)>,
    given: usize,
}

impl Region {
    /// Bytes of a mapping in large pages. What is never touched is only a range of addresses.
    const MAPPING: usize = 64 << 20;

    /// Zeroed bytes, aligned to 64, whose memory goes back once neither this nor any buffer has bytes of its mapping.
    pub fn zeroed(&mut self, len: usize) -> Result<Buffer, TensorError> {
        let size = len.checked_next_multiple_of(ALIGNMENT).ok_or(TensorError::OutOfMemory(len))?;
        self.given = self.given.saturating_add(size);
        let is_small = self.given <= SMALL;
        if size > Region::MAPPING / 2 {
            return Ok(Buffer::from_heap(Heap::lasting(size)?, len));
        }
        let index = match self.maps.iter().position(|(map, used)| map.len() - used >= size) {
            Some(index) => index,
            None => {
                let map = if is_small { small_pages(SMALL) } else { large_pages(Region::MAPPING) };
                self.maps.push((Arc::new(map?), 0));
                self.maps.len() - 1
            }
        };
        let (map, used) = &mut self.maps[index];
        // SAFETY: these bytes of the mapping were given to nobody, and have been zero since it was made.
        let heap = unsafe { Heap::of_mapping(map.clone(), *used) };
        *used += size;
        Ok(Buffer::from_heap(heap, len))
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes given)", self.given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_copies_only_what_is_shared() {
        let mut a = Buffer::copied(&[1, 2, 3]).unwrap();
        let alone = a.as_ptr();
        a.make_mut().unwrap()[0] = 9;
        assert_eq!(a.as_ptr(), alone);
        let b = a.clone();
        a.make_mut().unwrap()[0] = 7;
        assert_eq!((&*a, &*b), (&[7, 2, 3][..], &[9, 2, 3][..]));
    }

    #[test]
    fn what_is_filled_has_all_its_bytes_or_is_not_there() {
        let parts: [&[u8]; 4] = [b"ab", b"", b"c", b"def"];
        assert_eq!(&*Buffer::concatenated(&parts).unwrap(), b"abcdef");
        assert!(Buffer::concatenated(&[]).unwrap().is_empty());
        let failed = Buffer::filled(3, |_| Err(TensorError::OutOfMemory(7)));
        assert!(matches!(failed, Err(TensorError::OutOfMemory(7))));
        let mut filled =
            Buffer::filled(70, |target| Ok::<_, TensorError>(target.write_copy_of_slice(&[5; 70]))).unwrap();
        assert_eq!((filled.as_ptr().addr() % ALIGNMENT, filled.len()), (0, 70));
        filled.make_mut().unwrap()[69] = 6;
        assert!(filled[..69].iter().all(|&byte| byte == 5) && filled[69] == 6);
    }

    #[test]
    #[should_panic(expected = "other bytes were filled")]
    fn what_fills_other_bytes_is_found() {
        let _ = Buffer::filled(3, |target| Ok::<_, TensorError>(&mut target.write_copy_of_slice(&[5; 3])[..2]));
    }

    #[test]
    #[cfg_attr(miri, ignore = "fills many megabytes")]
    fn a_region_gives_every_byte_once() {
        let mut region = Region::default();
        let sizes = [100, 0, SMALL, 1, 65, 3 << 20, Region::MAPPING, 20 << 20, 15 << 20, 64, 7 << 20];
        let mut buffers: Vec<(u8, Buffer)> = Vec::new();
        for (index, size) in sizes.into_iter().enumerate() {
            let mut buffer = region.zeroed(size).unwrap();
            assert_eq!((buffer.len(), buffer.as_ptr().addr() % ALIGNMENT), (size, 0));
            let (start, bytes) = (buffer.as_ptr(), buffer.make_mut().unwrap());
            assert!(bytes.iter().all(|&byte| byte == 0), "{size} bytes");
            bytes.fill(index as u8 + 1);
            assert_eq!(buffer.as_ptr(), start, "{size} bytes are copied though nobody shares them");
            buffers.push((index as u8 + 1, buffer));
        }
        // Those before live on without the region and the others.
        drop(region);
        while let Some((number, buffer)) = buffers.pop() {
            assert!(buffer.iter().all(|&byte| byte == number), "{} bytes", buffer.len());
        }
        assert!(Region::default().zeroed(usize::MAX).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri knows no large pages")]
    fn what_fits_where_something_else_did_not_lies_there() {
        let mut region = Region::default();
        let mut start = |size: usize| region.zeroed(size).unwrap().as_ptr().addr();
        let half = Region::MAPPING / 2;
        let (first, second) = (start(half), start(half - 128));
        assert_eq!(second, first + half);
        let other = start(half);
        assert!(!(first..first + Region::MAPPING).contains(&other), "128 bytes are left");
        assert_eq!(start(100), first + Region::MAPPING - 128);
        assert_eq!(start(100), other + half);
    }

    #[test]
    fn parts_that_lie_side_by_side_are_joined() {
        let whole = Buffer::copied(&[0, 1, 2, 3, 4, 5]).unwrap();
        let part = |from, len| whole.part(from, len).unwrap();
        let joined = Buffer::joined(&[&part(1, 2), &part(3, 0), &part(3, 3)]).unwrap();
        assert_eq!((&*joined, joined.as_ptr()), (&[1, 2, 3, 4, 5][..], whole[1..].as_ptr()));
        let other = Buffer::copied(&[3]).unwrap();
        for apart in [&[&part(0, 1), &part(2, 1)][..], &[&part(2, 1), &part(1, 1)], &[&part(0, 1), &other], &[]] {
            assert!(Buffer::joined(apart).is_none());
        }
        let foreign = Buffer::foreign(vec![0u8, 1]);
        assert!(Buffer::joined(&[&foreign.part(0, 1).unwrap(), &foreign.part(1, 1).unwrap()]).is_none());
    }

    #[test]
    fn parts_share_and_keep_foreign_bytes_alive() {
        let whole = Buffer::foreign(vec![0u8, 1, 2, 3]);
        let part = whole.part(1, 2).unwrap();
        drop(whole);
        assert_eq!(&*part, [1, 2]);
        assert!(part.part(1, 2).is_none());
        assert!(part.part(usize::MAX, 2).is_none());
    }
}
