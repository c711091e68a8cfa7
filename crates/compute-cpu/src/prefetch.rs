//! Asking for memory before it is needed. The address need not be readable: nothing is read, nothing faults.

/// Bytes that come together.
pub(crate) const LINE: usize = 64;

/// Bytes from one line that [`page_ahead`] asks for to the next.
pub(crate) const PAGE_STEP: usize = 512;

/// Processors of AMD by what fetches ahead in them.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, PartialEq, Eq)]
enum Amd {
    /// Family 25, as far as it has AVX-512.
    Zen4,
    /// Family 26.
    Zen5,
}

#[cfg(target_arch = "x86_64")]
fn amd() -> Option<Amd> {
    use halimede_platform::chip::Chip;
    use std::sync::OnceLock;

    static AMD: OnceLock<Option<Amd>> = OnceLock::new();
    *AMD.get_or_init(|| {
        let chip = Chip::detect();
        match chip.family.filter(|_| chip.vendor.as_deref() == Some("AuthenticAMD")) {
            Some(25) => Some(Amd::Zen4),
            Some(26) => Some(Amd::Zen5),
            _ => None,
        }
    })
}

/// Whether memory that is read from start to end comes by itself as fast as it can, over the ends of pages, too: then
/// asking for it is only more to do. Known of Zen 4 and Zen 5, where it was measured; others are asked as those of
/// which it is known that they need it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn follows_pages() -> bool {
    amd().is_some()
}

/// Whether of weights of 4 bits, which are read more slowly than they can come, lines follow by themselves where
/// [`page_ahead`] alone asks. Measured on Zen 4; on Zen 5 and Intel's processors each line is better asked for
/// (`docs/benchmarks/gemv.md`).
#[cfg(target_arch = "x86_64")]
pub(crate) fn follows_single_lines() -> bool {
    amd() == Some(Amd::Zen4)
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
