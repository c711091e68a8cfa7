//! Asking for memory before it is needed. The address need not be readable: nothing is read, nothing faults.

/// Bytes that come together.
pub(crate) const LINE: usize = 64;

/// Bytes from one line that [`page_ahead`] asks for to the next.
pub(crate) const PAGE_STEP: usize = 512;

/// Whether memory that is read from start to end comes by itself as fast as it can, over the ends of pages, too: then
/// asking for it is only more to do. Known of AMD's family 26 (Zen 5), where it was measured; others are asked as those of
/// which it is known that they need it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn follows_pages() -> bool {
    use halimede_platform::chip::Chip;
    use std::sync::OnceLock;

    const ZEN_5: u32 = 26;
    static FOLLOWS: OnceLock<bool> = OnceLock::new();
    *FOLLOWS.get_or_init(|| {
        let chip = Chip::detect();
        chip.vendor.as_deref() == Some("AuthenticAMD") && chip.family == Some(ZEN_5)
    })
}

/// Asks for one line of what is read some pages later, for who reads memory from start to end and calls this every
/// [`PAGE_STEP`] bytes. What fetches ahead beside the second-level cache never crosses into another page by itself: so
/// its run through a page begins before the first line of it is needed.
#[inline(always)]
pub(crate) fn page_ahead<T>(address: *const T) {
    const PAGES_AHEAD: usize = 4 * 4096;
    to_first_level(address.cast::<u8>().wrapping_add(PAGES_AHEAD));
}

/// Brings the cache line of an address into all caches.
#[inline(always)]
pub(crate) fn to_first_level<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and faults nowhere; every x86-64 has SSE.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Brings the cache line of an address into the second-level cache.
#[inline(always)]
pub(crate) fn to_second_level<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
