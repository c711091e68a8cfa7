//! What one thread of this machine does at best, measured: the roofs that kernels are held against.

mod core_to_core;

use std::{hint::black_box, time::Instant};

pub use core_to_core::core_to_core;

use halimede_compute::tuning::Probe;

use crate::{
    Isa,
    gemm::{Micro, Product},
};

/// Samples, the best of which counts: neighbours on the machine only ever make one slower.
const SAMPLES: usize = 16;

/// The same where what is compared is close: some ten milliseconds, which is more than a scheduler's slice.
const SAMPLES_WHERE_CLOSE: usize = 8 * SAMPLES;

/// Bytes that the probe reads again and again: they lie in the first-level cache of every chip.
const PROBE_BYTES: usize = 16 << 10;

/// How fast one thread is now; takes about a millisecond.
pub fn probe() -> Probe {
    Probe { f32_gflops: f32_operations() / 1e9, l1_read_gbps: read(PROBE_BYTES) / 1e9 }
}

/// f32 multiplications and additions a second, operands in the first-level cache.
pub fn f32_operations() -> f64 {
    f32_work().rate()
}

/// What [`f32_operations`] measures.
pub(crate) fn f32_work() -> Work<'static> {
    const DEPTH: usize = 256;
    const TILES: usize = 24;
    let micro = Micro::new(Isa::detect());
    let (a, b) = (vec![0f32; micro.mr * DEPTH], vec![0f32; micro.nr * DEPTH]);
    let mut c = vec![0f32; micro.mr * micro.nr];
    Work::new(TILES * 2 * micro.mr * micro.nr * DEPTH, move || {
        for _ in 0..TILES {
            let c = (black_box(&mut c).as_mut_ptr(), micro.nr);
            let product = Product::new(&[(0, DEPTH)], (a.as_ptr(), 1, micro.mr), b.as_ptr(), c);
            // SAFETY: operands and result have the sizes of a whole tile of this depth.
            unsafe { micro.tile(micro.mr, &product) };
        }
    })
}

/// Something whose rate is measured: what a sample of it does, and how much that is.
pub(crate) struct Work<'a> {
    amount: f64,
    sample: Box<dyn FnMut() + 'a>,
}

impl<'a> Work<'a> {
    /// `sample` does `amount` of something.
    pub fn new(amount: usize, sample: impl FnMut() + 'a) -> Work<'a> {
        Work { amount: amount as f64, sample: Box::new(sample) }
    }

    /// Something that counts for so many times as much.
    pub fn times(self, factor: f64) -> Work<'a> {
        Work { amount: self.amount * factor, ..self }
    }

    /// So much a second.
    pub fn rate(self) -> f64 {
        in_turns([self]).into_iter().sum()
    }
}

/// So much a second of each, sampled in turns, and longer where the two fastest are close. Who compares rates takes
/// them from here: a neighbour, or a core that slows down for a while, meets all of them, where measured one behind the
/// other it would decide between them.
pub(crate) fn in_turns<'a>(works: impl IntoIterator<Item = Work<'a>>) -> Vec<f64> {
    /// What shares a core takes up to half of it, from some instructions more than from others.
    const CLOSE: f64 = 2.0;
    let mut works: Vec<_> = works.into_iter().map(|work| (work, f64::INFINITY)).collect();
    let mut rates = Vec::new();
    for round in 1..=SAMPLES_WHERE_CLOSE {
        for (work, least) in &mut works {
            let start = Instant::now();
            (work.sample)();
            // A clock that stands still would make a rate infinite.
            *least = least.min(start.elapsed().as_secs_f64().max(1e-9));
        }
        if round % SAMPLES == 0 {
            rates = works.iter().map(|(work, least)| work.amount / least).collect();
            let mut fastest = rates.clone();
            fastest.sort_by(|a, b| b.total_cmp(a));
            if !matches!(fastest[..], [first, second, ..] if first < CLOSE * second) {
                break;
            }
        }
    }
    rates
}

/// Bytes a second of reading a block of `bytes` from its start to its end again and again, so from the
/// cache that it fits into.
pub fn read(bytes: usize) -> f64 {
    /// A sample reads at least so much.
    const SAMPLE_BYTES: usize = 1 << 20;
    let isa = Isa::detect();
    let block = block_of(bytes);
    let bytes = size_of_val(&*block);
    let passes = (SAMPLE_BYTES / bytes).max(1);
    let pass = || {
        for _ in 0..passes {
            black_box(any(isa, black_box(&block)));
        }
    };
    Work::new(passes * bytes, pass).rate()
}

/// A block of data: to be read instead of what a kernel reads, or to fill the caches, so that others come from memory.
pub struct Data(Vec<Group>);

impl Data {
    /// About so many bytes.
    pub fn new(bytes: usize) -> Data {
        Data(block_of(bytes))
    }

    /// Reads them all, from the start to the end.
    pub fn read(&self) {
        black_box(any(Isa::detect(), black_box(&self.0)));
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

/// A block of about so many bytes.
fn block_of(bytes: usize) -> Vec<Group> {
    // Not zeros, of which the system might hand out one page again and again.
    vec![Group([1; 32]); (bytes / size_of::<Group>()).max(1)]
}

/// Four lines of a cache, from where one starts: no load touches two.
#[derive(Clone, Default)]
#[repr(align(64))]
struct Group([u64; 32]);

/// All bits that are set anywhere in a block: reads everything, and computes less than anything else
/// that does.
///
/// The compiler makes no good loop of this by itself: it would rather transpose than keep four sums apart.
fn any(isa: Isa, block: &[Group]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if isa.has_avx512() {
            // SAFETY: an `Isa` with AVX-512 exists only where the machine has it.
            return unsafe { x86::any_avx512(block) };
        }
        if isa.has_avx2() {
            // SAFETY: as above for AVX2.
            return unsafe { x86::any_avx2(block) };
        }
    }
    let _ = isa;
    block.iter().flat_map(|group| &group.0).fold(0, |bits, number| bits | number)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Group;

    #[target_feature(enable = "avx512f")]
    pub(super) fn any_avx512(block: &[Group]) -> u64 {
        let mut bits = [_mm512_setzero_si512(); 4];
        for group in block {
            let from = group.0.as_ptr().cast::<__m512i>();
            for (i, bits) in bits.iter_mut().enumerate() {
                // SAFETY: a group is four aligned vectors.
                *bits = _mm512_or_si512(*bits, unsafe { _mm512_load_si512(from.add(i)) });
            }
        }
        let [a, b, c, d] = bits;
        _mm512_reduce_or_epi64(_mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d))) as u64
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn any_avx2(block: &[Group]) -> u64 {
        let mut bits = [_mm256_setzero_si256(); 8];
        for group in block {
            let from = group.0.as_ptr().cast::<__m256i>();
            for (i, bits) in bits.iter_mut().enumerate() {
                // SAFETY: a group is eight aligned vectors.
                *bits = _mm256_or_si256(*bits, unsafe { _mm256_load_si256(from.add(i)) });
            }
        }
        let mut numbers = [0u64; 4];
        for bits in bits {
            let mut lanes = [0u64; 4];
            // SAFETY: room for one vector, aligned or not.
            unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), bits) };
            for (number, lane) in numbers.iter_mut().zip(lanes) {
                *number |= lane;
            }
        }
        numbers.iter().fold(0, |bits, number| bits | number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_read() {
        for groups in [0, 1, 3] {
            for place in 0..32 * groups {
                let mut block = vec![Group::default(); groups];
                block[place / 32].0[place % 32] = 1 << (place % 64);
                for isa in Isa::available() {
                    assert_eq!(any(isa, &block), 1 << (place % 64), "number {place} with {}", isa.name());
                }
            }
        }
    }

    #[test]
    fn works_take_turns_and_more_of_them_where_they_are_close() {
        let order = std::cell::RefCell::new(String::new());
        // Spinning, as a sleep takes as long as the system likes.
        let work = |name: char, amount, micros| {
            let order = &order;
            Work::new(amount, move || {
                order.borrow_mut().push(name);
                let start = Instant::now();
                while start.elapsed().as_micros() < micros {}
            })
        };
        let rates = in_turns([work('a', 1, 20), work('b', 1000, 20)]);
        assert_eq!(order.take(), "ab".repeat(SAMPLES));
        assert!(rates.len() == 2 && 10.0 * rates[0] < rates[1], "{rates:?}");
        in_turns([work('a', 1, 20), work('b', 1000, 20).times(0.001)]);
        assert_eq!(order.take(), "ab".repeat(SAMPLES_WHERE_CLOSE));
    }

    #[test]
    fn rates_are_of_this_world() {
        let (operations, bytes) = (f32_operations(), read(16 << 10));
        assert!((1e7..1e13).contains(&operations), "{operations}");
        assert!((1e7..1e13).contains(&bytes), "{bytes}");
    }
}
