//! Asking for memory before it is needed. The address need not be readable: nothing is read, nothing faults.

/// Bytes that come together.
pub(crate) const LINE: usize = 64;

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
