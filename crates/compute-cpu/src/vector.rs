//! A register of floats, for the few loops that the compiler does not vectorise from a plain body.

#[cfg(target_arch = "x86_64")]
mod x86;

use crate::map::{exp, share_near, sigmoid_near};
use crate::real::{Real, nearest};
use half::bf16;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512, Avx512Bf16, Wide, rows};

/// The exponent of 2 below which its power is none of the normal numbers, with some room.
const LEAST_POWER: f32 = -125.5;
/// The same of e.
const LEAST_EXPONENT: f32 = LEAST_POWER * std::f32::consts::LN_2;

/// NaN passes, as it does through a program.
#[inline(always)]
pub(crate) fn within(x: f32, (low, high): (f32, f32)) -> f32 {
    if x < low {
        low
    } else if x > high {
        high
    } else {
        x
    }
}

/// How numbers become bytes.
#[derive(Clone, Copy)]
pub(crate) struct Bytes {
    pub zero: i16,
    pub low: i16,
    pub high: i16,
}

/// As many `f32` as one register of an instruction set holds.
///
/// # Safety of every method
/// The machine has the instructions: call them from functions with the matching `target_feature` alone,
/// into which they are inlined. That holds for `#[inline(always)]` functions in between, and not for
/// closures, which are compiled without the feature: each operation would be a call.
#[allow(clippy::missing_safety_doc, reason = "one duty, said above")]
pub(crate) trait Vector: Copy {
    /// Floats of a register.
    const LANES: usize;
    /// Registers that the machine has.
    const REGISTERS: usize;

    /// The same number in every lane.
    unsafe fn splat(number: f32) -> Self;
    /// Reads [`Vector::LANES`] floats, aligned or not.
    unsafe fn load(from: *const f32) -> Self;
    /// Writes [`Vector::LANES`] floats, aligned or not.
    unsafe fn store(self, to: *mut f32);
    /// Reads [`Vector::LANES`] numbers of bf16, aligned or not.
    unsafe fn widen(from: *const bf16) -> Self;
    /// Writes [`Vector::LANES`] numbers rounded as [`nearest`] does, aligned or not.
    unsafe fn narrow(self, to: *mut bf16);
    /// Writes two registers one behind the other, as [`Vector::narrow`].
    #[inline(always)]
    unsafe fn narrow_pair([first, second]: [Self; 2], to: *mut bf16) {
        // SAFETY: the caller's promise.
        unsafe {
            first.narrow(to);
            second.narrow(to.add(Self::LANES));
        }
    }

    /// Reads two registers one behind the other, as [`Vector::widen`].
    #[inline(always)]
    unsafe fn widen_pair(from: *const bf16) -> [Self; 2] {
        // SAFETY: the caller's promise, here and below.
        unsafe { [Self::widen(from), Self::widen(from.add(Self::LANES))] }
    }

    /// Reads twice [`Vector::LANES`] numbers of bf16, aligned or not, in the order that costs least: those of even
    /// places in one register and those of odd places in the other, or one register behind the other.
    #[inline(always)]
    unsafe fn widen_split(from: *const bf16) -> [Self; 2] {
        // SAFETY: the caller's promise, here and below.
        unsafe { [Self::widen(from), Self::widen(from.add(Self::LANES))] }
    }

    /// Places from the first number of one register of [`Vector::widen_split`] to the first of the other.
    const SPLIT: usize = Self::LANES;

    /// Puts two registers of neighbours into the order of [`Vector::widen_split`].
    #[inline(always)]
    unsafe fn split(pair: [Self; 2]) -> [Self; 2] {
        pair
    }

    /// What [`Vector::split`] does, undone.
    #[inline(always)]
    unsafe fn join(pair: [Self; 2]) -> [Self; 2] {
        pair
    }

    /// Writes what [`Vector::join`] gives, as [`Vector::narrow_pair`].
    #[inline(always)]
    unsafe fn narrow_joined(pair: [Self; 2], to: *mut bf16) {
        // SAFETY: the caller's promise.
        unsafe { Self::narrow_pair(Self::join(pair), to) }
    }

    unsafe fn plus(self, other: Self) -> Self;
    unsafe fn minus(self, other: Self) -> Self;
    unsafe fn times(self, other: Self) -> Self;
    /// `self + a·b`, fused where that is one instruction.
    unsafe fn plus_product(self, a: Self, b: Self) -> Self;
    /// The same number; with AVX-512 worked out before what is read or written behind it in the text: a compiler that reads ahead
    /// needs more registers than there are.
    #[inline(always)]
    unsafe fn in_turn(self) -> Self {
        self
    }
    /// What [`Vector::exchanged`] brings numbers into an order by.
    type Order: Copy;
    /// The order in which each lane has the number of the lane whose place differs by these bits, less than [`Vector::LANES`].
    unsafe fn order_of(bits: usize) -> Self::Order;
    /// The same numbers in another order.
    unsafe fn exchanged(self, order: Self::Order) -> Self;
    /// Writes the columns of a square as rows: [`Vector::LANES`] rows of as many floats, so many floats apart in `from` and in `to`. The
    /// bits stay as they are.
    unsafe fn turn_square(from: *const f32, from_apart: usize, to: *mut f32, to_apart: usize);
    /// `self - a·b`, fused where that is one instruction.
    unsafe fn minus_product(self, a: Self, b: Self) -> Self;
    /// Nothing below `low`; NaN stays.
    unsafe fn at_least(self, low: Self) -> Self;
    /// Nothing above `high`; NaN stays.
    unsafe fn at_most(self, high: Self) -> Self;
    /// The nearest whole number, ties to even.
    unsafe fn round(self) -> Self;
    /// Numbers of the integers of which these are the bits, and which go up by what is read at `added`, aligned or not;
    /// the sum may wrap.
    unsafe fn sums(self, added: *const i32) -> Self;
    /// Numbers of the integers of which these are the bits.
    unsafe fn whole(self) -> Self;
    /// Reads [`Vector::LANES`] integers without a sign.
    unsafe fn widen_u8(from: *const u8) -> Self;
    /// Reads [`Vector::LANES`] integers with a sign.
    unsafe fn widen_i8(from: *const i8) -> Self;
    /// Reads [`Vector::LANES`] numbers of 32 bits and takes the integers with a sign that `bits` of them from the bit
    /// `low` on are.
    unsafe fn widen_bits(from: *const u32, low: usize, bits: usize) -> Self;
    /// -∞ where one of [`Vector::LANES`] bytes from an address on, aligned or not, is 0.
    unsafe fn hide(self, shown: *const u8) -> Self;
    /// Writes whole numbers from -128 to 255 by their lowest 8 bits; NaN becomes 0.
    unsafe fn store_bytes(self, to: *mut u8);

    /// Writes two registers, one behind the other, as bytes without signs: rounded to whole numbers, ties to even, and
    /// counted from `zero` within bounds, which are all from 0 to 255. Which byte NaN becomes is not said.
    #[inline(always)]
    unsafe fn store_pair(pair: [Self; 2], Bytes { zero, low, high }: Bytes, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            let [zero, low, high] = [zero, low, high].map(|number| Self::splat(number.into()));
            for (index, numbers) in pair.into_iter().enumerate() {
                let steps = numbers.round().plus(zero).at_least(low).at_most(high);
                steps.store_bytes(to.add(index * Self::LANES));
            }
        }
    }

    /// Writes two registers, one behind the other, as bytes without signs: rounded to whole numbers, ties to even, within
    /// bounds. Which byte NaN becomes is not said.
    #[inline(always)]
    unsafe fn store_bytes_of_pair(pair: [Self; 2], (low, high): (u8, u8), to: *mut u8) {
        let bytes = Bytes { zero: 0, low: low.into(), high: high.into() };
        // SAFETY: the caller's promise.
        unsafe { Self::store_pair(pair, bytes, to) };
    }

    /// The same of numbers of at most 31 bits, within the bounds of a byte.
    #[inline(always)]
    unsafe fn store_small_pair(pair: [Self; 2], to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { Self::store_bytes_of_pair(pair, (0, 255), to) };
    }

    /// Logistic function of every lane, as near as [`sigmoid_near`].
    #[inline(always)]
    unsafe fn logistic(self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { self.each(sigmoid_near) }
    }

    /// `1 / (1 + 2ˣ)` of every lane of some registers, as near as [`share_near`].
    #[inline(always)]
    unsafe fn share_each<const N: usize>(numbers: &mut [Self; N]) {
        for number in numbers {
            // SAFETY: the caller's promise.
            *number = unsafe { number.each(share_near) };
        }
    }

    /// `eˣ` of every lane within 1e-4 of its value, for x up to 80; 0 where it is below the normal numbers.
    #[inline(always)]
    unsafe fn exp_near(self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { self.each(|x| if x < LEAST_EXPONENT { 0.0 } else { exp(x) }) }
    }

    /// `2ˣ` of every lane within 1e-4 of its value, for x up to 115; 0 where it is below the normal numbers.
    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { self.times(Self::splat(std::f32::consts::LN_2)).exp_near() }
    }

    /// A function of every lane.
    #[inline(always)]
    unsafe fn each(self, function: impl Fn(f32) -> f32) -> Self {
        let mut lanes = [0f32; MOST_LANES];
        // SAFETY: the caller's promise; no register has more lanes.
        unsafe {
            self.store(lanes.as_mut_ptr());
            for lane in &mut lanes[..Self::LANES] {
                *lane = function(*lane);
            }
            Self::load(lanes.as_ptr())
        }
    }

    /// The largest lane; a NaN may be passed over.
    #[inline(always)]
    unsafe fn largest_lane(self) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { self.joined(|a, b| if a > b { a } else { b }) }
    }

    /// The sum of all lanes.
    #[inline(always)]
    unsafe fn sum_of_lanes(self) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { self.joined(|a, b| a + b) }
    }

    /// All lanes as one, halves at a time.
    #[inline(always)]
    unsafe fn joined(self, join: impl Fn(f32, f32) -> f32) -> f32 {
        let mut lanes = [0f32; MOST_LANES];
        // SAFETY: the caller's promise; no register has more lanes.
        unsafe { self.store(lanes.as_mut_ptr()) };
        let mut width = Self::LANES / 2;
        while width > 0 {
            for lane in 0..width {
                lanes[lane] = join(lanes[lane], lanes[lane + width]);
            }
            width /= 2;
        }
        lanes[0]
    }
}

/// Defines a function that runs `$body::<V>`, which must be `#[inline(always)]`, with the widest registers of an
/// instruction set. The body may be unsafe for no other reason than those.
macro_rules! on_vectors {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) = $body:ident) => {
        $(#[$meta])*
        $vis fn $name(isa: $crate::Isa, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
                fn avx512_bf16($($arg: $type),*) {
                    // SAFETY: the function has the features of these registers.
                    unsafe { $body::<$crate::vector::Avx512Bf16>($($arg),*) }
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                fn avx512($($arg: $type),*) {
                    // SAFETY: as above.
                    unsafe { $body::<$crate::vector::Avx512>($($arg),*) }
                }
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2($($arg: $type),*) {
                    // SAFETY: as above.
                    unsafe { $body::<$crate::vector::Avx2>($($arg),*) }
                }
                // SAFETY: an `Isa` exists only where the machine has its instructions.
                unsafe {
                    if isa.has_avx512_bf16() {
                        return avx512_bf16($($arg),*);
                    }
                    if isa.has_avx512() {
                        return avx512($($arg),*);
                    }
                    if isa.has_avx2() {
                        return avx2($($arg),*);
                    }
                }
            }
            let _ = isa;
            // SAFETY: every machine has these.
            unsafe { $body::<$crate::vector::Four>($($arg),*) }
        }
    };
}
pub(crate) use on_vectors;

/// `a·b + sum`, fused where that is one instruction; without FMA it would be a call.
#[inline(always)]
pub(crate) fn multiply_add(a: f32, b: f32, sum: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) { a.mul_add(b, sum) } else { a * b + sum }
}

/// The widest register, in floats.
pub(crate) const MOST_LANES: usize = 16;

/// Four lanes of SSE2 or NEON, by the compiler.
#[derive(Clone, Copy)]
pub(crate) struct Four([f32; 4]);

impl Four {
    #[inline(always)]
    fn zip(self, other: Four, f: impl Fn(f32, f32) -> f32) -> Four {
        Four(std::array::from_fn(|lane| f(self.0[lane], other.0[lane])))
    }
}

impl Vector for Four {
    const LANES: usize = 4;
    // NEON's; SSE2 has half of them.
    const REGISTERS: usize = if cfg!(target_arch = "aarch64") { 32 } else { 16 };

    #[inline(always)]
    unsafe fn splat(number: f32) -> Four {
        Four([number; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Four {
        // SAFETY: the caller's promise.
        Four(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn widen(from: *const bf16) -> Four {
        // SAFETY: the caller's promise.
        let numbers = unsafe { from.cast::<[bf16; 4]>().read_unaligned() };
        Four(numbers.map(Real::widen))
    }

    #[inline(always)]
    unsafe fn narrow(self, to: *mut bf16) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[bf16; 4]>().write_unaligned(self.0.map(nearest)) }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Four) -> Four {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn minus(self, other: Four) -> Four {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn times(self, other: Four) -> Four {
        self.zip(other, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn plus_product(self, a: Four, b: Four) -> Four {
        Four(std::array::from_fn(|lane| multiply_add(a.0[lane], b.0[lane], self.0[lane])))
    }

    type Order = usize;

    #[inline(always)]
    unsafe fn order_of(bits: usize) -> usize {
        bits
    }

    #[inline(always)]
    unsafe fn exchanged(self, order: usize) -> Four {
        // Each of them is one instruction of SSE2 and NEON; an order that the compiler does not know would go through memory.
        let [a, b, c, d] = self.0;
        Four(match order {
            1 => [b, a, d, c],
            2 => [c, d, a, b],
            3 => [d, c, b, a],
            _ => self.0,
        })
    }

    #[inline(always)]
    unsafe fn turn_square(from: *const f32, from_apart: usize, to: *mut f32, to_apart: usize) {
        // SAFETY: the caller's promise.
        let rows = [0, 1, 2, 3].map(|row| unsafe { Four::load(from.add(row * from_apart)) });
        for column in 0..4 {
            // SAFETY: as above.
            unsafe { Four(rows.map(|row| row.0[column])).store(to.add(column * to_apart)) };
        }
    }

    #[inline(always)]
    unsafe fn minus_product(self, a: Four, b: Four) -> Four {
        Four(std::array::from_fn(|lane| multiply_add(-a.0[lane], b.0[lane], self.0[lane])))
    }

    #[inline(always)]
    unsafe fn at_least(self, low: Four) -> Four {
        self.zip(low, |x, low| if x < low { low } else { x })
    }

    #[inline(always)]
    unsafe fn at_most(self, high: Four) -> Four {
        self.zip(high, |x, high| if x > high { high } else { x })
    }

    #[inline(always)]
    unsafe fn round(self) -> Four {
        Four(self.0.map(f32::round_ties_even))
    }

    #[inline(always)]
    unsafe fn sums(self, added: *const i32) -> Four {
        // SAFETY: the caller's promise.
        let added = unsafe { added.cast::<[i32; 4]>().read_unaligned() };
        Four(std::array::from_fn(|lane| (self.0[lane].to_bits() as i32).wrapping_add(added[lane]) as f32))
    }

    #[inline(always)]
    unsafe fn whole(self) -> Four {
        Four(self.0.map(|bits| bits.to_bits() as i32 as f32))
    }

    #[inline(always)]
    unsafe fn widen_u8(from: *const u8) -> Four {
        // SAFETY: the caller's promise.
        Four(unsafe { from.cast::<[u8; 4]>().read() }.map(f32::from))
    }

    #[inline(always)]
    unsafe fn widen_i8(from: *const i8) -> Four {
        // SAFETY: the caller's promise.
        Four(unsafe { from.cast::<[i8; 4]>().read() }.map(f32::from))
    }

    #[inline(always)]
    unsafe fn widen_bits(from: *const u32, low: usize, bits: usize) -> Four {
        // SAFETY: the caller's promise.
        let words = unsafe { from.cast::<[u32; 4]>().read_unaligned() };
        Four(words.map(|word| ((word << (32 - bits - low)) as i32 >> (32 - bits)) as f32))
    }

    #[inline(always)]
    unsafe fn hide(self, shown: *const u8) -> Four {
        // SAFETY: the caller's promise.
        let shown = unsafe { shown.cast::<[u8; 4]>().read() };
        Four(std::array::from_fn(|lane| if shown[lane] == 0 { f32::NEG_INFINITY } else { self.0[lane] }))
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[u8; 4]>().write(self.0.map(|x| x as i32 as u8)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "x86_64")]
    use crate::Isa;

    /// Ties both ways, and what has no neighbour.
    const ROUNDED: [f32; 7] = [0.0, -1.5, 1.0039063, 1.0117188, f32::INFINITY, f32::NAN, f32::MAX];

    /// # Safety
    /// As [`Vector`].
    unsafe fn round_trip<V: Vector>() {
        let numbers: Vec<f32> = ROUNDED.into_iter().cycle().take(V::LANES).collect();
        let (mut narrow, mut wide) = (vec![bf16::ZERO; V::LANES], vec![0f32; V::LANES]);
        // SAFETY: the caller's promise; as many numbers as a register holds.
        unsafe {
            V::load(numbers.as_ptr()).narrow(narrow.as_mut_ptr());
            V::widen(narrow.as_ptr()).store(wide.as_mut_ptr());
        }
        for ((number, narrow), wide) in numbers.iter().zip(narrow).zip(wide) {
            assert_eq!(narrow.to_bits(), bf16::from_f32(*number).to_bits(), "{number}");
            assert_eq!(wide.to_bits(), narrow.to_f32().to_bits());
        }
    }

    /// # Safety
    /// As [`Vector`].
    unsafe fn logistic<V: Vector>() {
        let numbers: Vec<f32> = (-4000..4000).map(|number| number as f32 * 0.02).collect();
        for numbers in numbers.chunks_exact(V::LANES) {
            let mut made = vec![0f32; V::LANES];
            // SAFETY: the caller's promise; as many numbers as a register holds.
            unsafe { V::load(numbers.as_ptr()).logistic().store(made.as_mut_ptr()) };
            for (&number, &made) in numbers.iter().zip(&made) {
                let expected = 1.0 / (1.0 + f64::from(-number).exp());
                assert!((f64::from(made) - expected).abs() <= 2e-4 * expected, "{number}: {made}, not {expected}");
            }
            // SAFETY: as above.
            unsafe {
                let mut one = [V::load(numbers.as_ptr())];
                V::share_each(&mut one);
                one[0].store(made.as_mut_ptr());
            }
            for (&number, made) in numbers.iter().zip(made) {
                let expected = 1.0 / (1.0 + f64::from(number).exp2());
                assert!((f64::from(made) - expected).abs() <= 2e-4 * expected, "{number}: {made}, not {expected}");
            }
        }
    }

    /// # Safety
    /// As [`Vector`].
    unsafe fn moves<V: Vector>() {
        let numbers: [f32; 2 * MOST_LANES] = std::array::from_fn(|lane| lane as f32);
        let narrow = numbers.map(bf16::from_f32);
        let mut made = [0f32; MOST_LANES];
        for bits in 0..V::LANES {
            // SAFETY: the caller's promise; no register has more lanes.
            unsafe { V::load(numbers.as_ptr()).exchanged(V::order_of(bits)).store(made.as_mut_ptr()) };
            assert!((0..V::LANES).all(|lane| made[lane] == (lane ^ bits) as f32), "{bits}: {made:?}");
        }
        let (side, apart) = (V::LANES, V::LANES + 3);
        let numbers: Vec<f32> = (0..side * apart).map(|at| f32::from_bits(0x7f80_0001 + at as u32)).collect();
        let mut turned = vec![0f32; side * apart];
        // SAFETY: the caller's promise; both have those rows.
        unsafe { V::turn_square(numbers.as_ptr(), apart, turned.as_mut_ptr(), apart) };
        let alike = |at: usize| {
            turned[at / side * apart + at % side].to_bits() == numbers[at % side * apart + at / side].to_bits()
        };
        assert!((0..side * side).all(alike));
        // SAFETY: as above.
        let firsts = unsafe {
            V::widen_split(narrow.as_ptr()).map(|register| {
                register.store(made.as_mut_ptr());
                made[0]
            })
        };
        assert_eq!(firsts, [0.0, V::SPLIT as f32]);
    }

    /// # Safety
    /// As [`Vector`].
    unsafe fn exp_near<V: Vector>() {
        for x in (-9500..4000).map(|number| number as f32 * 0.02).chain([f32::NEG_INFINITY, f32::NAN]) {
            // SAFETY: the caller's promise.
            let made = unsafe { V::splat(x).exp_near().sum_of_lanes() } / V::LANES as f32;
            let expected = f64::from(x).exp();
            let is_near = |made: f32, expected: f64| (f64::from(made) - expected).abs() <= 1e-4 * expected;
            let is_right = is_near(made, expected) || made == 0.0 && x <= LEAST_EXPONENT || made.is_nan() && x.is_nan();
            assert!(is_right, "{x}: {made}");
            // SAFETY: the caller's promise.
            let made = unsafe { V::splat(x).power_of_two().sum_of_lanes() } / V::LANES as f32;
            let is_right = is_near(made, f64::from(x).exp2()) || made == 0.0 && x <= LEAST_POWER;
            assert!(is_right || made.is_nan() && x.is_nan(), "{x}: {made}");
        }
    }

    /// # Safety
    /// As [`Vector`].
    unsafe fn integers<V: Vector>() {
        let bytes: [u8; MOST_LANES] = std::array::from_fn(|lane| (lane * 37) as u8);
        let signed = bytes.map(|byte| byte as i8);
        let added: [i32; MOST_LANES] = std::array::from_fn(|lane| i32::MAX - 3 * lane as i32);
        let sums: [i32; MOST_LANES] = std::array::from_fn(|lane| lane as i32 * 7 - 50);
        let (mut numbers, mut made) = ([0f32; MOST_LANES], [0u8; MOST_LANES]);
        // SAFETY: the caller's promise; no register has more lanes.
        unsafe {
            V::widen_u8(bytes.as_ptr()).store(numbers.as_mut_ptr());
            assert_eq!(numbers[..V::LANES], bytes.map(f32::from)[..V::LANES]);
            V::load(numbers.as_ptr()).store_bytes(made.as_mut_ptr());
            assert_eq!(made[..V::LANES], bytes[..V::LANES]);
            V::widen_i8(signed.as_ptr()).store(numbers.as_mut_ptr());
            assert_eq!(numbers[..V::LANES], signed.map(f32::from)[..V::LANES]);
            V::load(numbers.as_ptr()).store_bytes(made.as_mut_ptr());
            assert_eq!(made[..V::LANES], bytes[..V::LANES]);
            let words: [u32; MOST_LANES] = std::array::from_fn(|lane| 0xfedc_ba98u32.rotate_left(4 * lane as u32));
            for (bits, low) in (0..8).map(|at| (4, 4 * at)).chain((0..4).map(|at| (8, 8 * at))) {
                V::widen_bits(words.as_ptr(), low, bits).store(numbers.as_mut_ptr());
                let expected = words.map(|word| f32::from(((word >> low) as i8) << (8 - bits) >> (8 - bits)));
                assert_eq!(numbers[..V::LANES], expected[..V::LANES]);
            }
            V::splat(1.5).hide(bytes.as_ptr()).store(numbers.as_mut_ptr());
            let expected = bytes.map(|byte| if byte == 0 { f32::NEG_INFINITY } else { 1.5 });
            assert_eq!(numbers[..V::LANES], expected[..V::LANES]);
            V::splat(f32::NAN).store_bytes(made.as_mut_ptr());
            assert_eq!(made[..V::LANES], [0; MOST_LANES][..V::LANES]);
            V::load(sums.as_ptr().cast()).sums(added.as_ptr()).store(numbers.as_mut_ptr());
            let expected: [f32; MOST_LANES] = std::array::from_fn(|lane| sums[lane].wrapping_add(added[lane]) as f32);
            assert_eq!(numbers[..V::LANES], expected[..V::LANES]);
            V::load(sums.as_ptr().cast()).whole().store(numbers.as_mut_ptr());
            assert_eq!(numbers[..V::LANES], sums.map(|sum| sum as f32)[..V::LANES]);
            let whole: [f32; 2 * MOST_LANES] = std::array::from_fn(|lane| lane as f32 * 11.5 - 90.0);
            for (zero, low, high, factor) in [(0, 0, 255, 1.0), (128, 3, 250, 1.0), (255, 0, 255, -1e30)] {
                let numbers = whole.map(|number| number * factor);
                let pair = [V::load(numbers.as_ptr()), V::load(numbers.as_ptr().add(V::LANES))];
                let mut bytes = [0u8; 2 * MOST_LANES];
                V::store_pair(pair, Bytes { zero, low, high }, bytes.as_mut_ptr());
                let expected = numbers
                    .map(|number| (number.round_ties_even() + f32::from(zero)).clamp(low.into(), high.into()) as u8);
                assert_eq!(bytes[..2 * V::LANES], expected[..2 * V::LANES]);
                V::store_bytes_of_pair(pair, (low as u8, high as u8), bytes.as_mut_ptr());
                let expected = numbers.map(|number| number.round_ties_even().clamp(low.into(), high.into()) as u8);
                assert_eq!(bytes[..2 * V::LANES], expected[..2 * V::LANES]);
            }
            for (from, to) in [(0.5, 0.0), (1.5, 2.0), (-2.5, -2.0), (-2.6, -3.0)] {
                V::splat(from).round().store(numbers.as_mut_ptr());
                assert_eq!(numbers[..V::LANES], [to; MOST_LANES][..V::LANES]);
            }
        }
    }

    #[test]
    fn registers_compute_as_single_numbers_do() {
        // SAFETY: each only where the machine has its instructions.
        unsafe {
            round_trip::<Four>();
            logistic::<Four>();
            moves::<Four>();
            exp_near::<Four>();
            integers::<Four>();
            #[cfg(target_arch = "x86_64")]
            {
                if Isa::detect().has_avx2() {
                    round_trip::<Avx2>();
                    logistic::<Avx2>();
                    moves::<Avx2>();
                    exp_near::<Avx2>();
                    integers::<Avx2>();
                }
                if Isa::detect().has_avx512() {
                    round_trip::<Avx512>();
                    logistic::<Avx512>();
                    moves::<Avx512>();
                    exp_near::<Avx512>();
                    integers::<Avx512>();
                }
                if Isa::detect().has_avx512_bf16() {
                    round_trip::<Avx512Bf16>();
                    logistic::<Avx512Bf16>();
                    moves::<Avx512Bf16>();
                    exp_near::<Avx512Bf16>();
                    integers::<Avx512Bf16>();
                }
            }
        }
    }
}
