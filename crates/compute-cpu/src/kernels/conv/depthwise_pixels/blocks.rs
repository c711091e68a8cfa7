//! Blocks of neighbouring channels and pixels, whose sums stay in registers.
//!
//! Channels that see some of their neighbours (groups of 2, 4, 8 or 16) take turns: in turn `t` each sees the one whose place differs from
//! its own by the bits of `t`, which one instruction brings into its lane, and no other group's. With two registers of channels, which are
//! neighbours or even and odd places, one bit of `t` says whether the number is for the sums of the other register.
//!
//! ```text
//! groups of 4    turn 0   turn 1   turn 2   turn 3
//!   channel 4       4        5        6        7
//!   channel 5       5        4        7        6
//!   channel 6       6        7        4        5
//!   channel 7       7        6        5        4
//! ```

use super::super::window::Window;
use super::{FEW_PIXELS, PIXELS, WIDE};
use crate::Isa;
use crate::real::{Numbers, Real};
use crate::vector::{Four, Vector, within};
use half::bf16;
use halimede_tensor::{DType, Element};
use std::ops::Range;

/// Weights from a channel on, by tap.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    pub elements: &'a [f32],
    /// Distance of taps, and of turns of a tap.
    pub apart: usize,
    /// Channels that one sees, one in each turn; a power of two.
    pub turns: usize,
}

/// Data of a datatype, as they are multiplied.
///
/// # Safety of every method that is not safe
/// As [`Vector`].
#[allow(clippy::missing_safety_doc, reason = "one duty, said above")]
pub(super) trait Data: Element {
    /// Two registers of numbers less `zero`, in the order in which they are read fastest.
    unsafe fn load_pair<V: Vector>(from: *const Self, zero: V) -> [V; 2];
    /// Puts two registers of neighbours into that order.
    unsafe fn split<V: Vector>(pair: [V; 2]) -> [V; 2];
    /// Places from the first number of one of the registers to the first of the other.
    fn split_by<V: Vector>() -> usize;
    /// Writes two registers in that order as neighbours, `at` numbers behind the first.
    unsafe fn store_joined<V: Vector>(pair: [V; 2], to: Numbers, at: usize);
    /// One number less `zero`.
    fn number(self, zero: f32) -> f32;
}

/// Floats have no zero point.
macro_rules! floats {
    ($($float:ty, $split:ident);*) => {
        $(impl Data for $float {
            #[inline(always)]
            unsafe fn load_pair<V: Vector>(from: *const $float, _: V) -> [V; 2] {
                // SAFETY: the caller's promise, here and below.
                unsafe { <$float as Real>::load_pair(from) }
            }

            #[inline(always)]
            unsafe fn split<V: Vector>(pair: [V; 2]) -> [V; 2] {
                // SAFETY: as above.
                unsafe { <$float as Real>::split(pair) }
            }

            #[inline(always)]
            unsafe fn store_joined<V: Vector>(pair: [V; 2], to: Numbers, at: usize) {
                // SAFETY: as above.
                unsafe { <$float as Real>::store_joined(pair, to, at) }
            }

            #[inline(always)]
            fn split_by<V: Vector>() -> usize {
                V::$split
            }

            #[inline(always)]
            fn number(self, _: f32) -> f32 {
                self.widen()
            }
        })*
    };
}
floats!(f32, LANES; bf16, SPLIT);

/// Integers become floats as they are read.
macro_rules! integers {
    ($($integer:ty, $widen:ident);*) => {
        $(impl Data for $integer {
            #[inline(always)]
            unsafe fn load_pair<V: Vector>(from: *const $integer, zero: V) -> [V; 2] {
                // SAFETY: the caller's promise, here and below.
                unsafe { [V::$widen(from).minus(zero), V::$widen(from.add(V::LANES)).minus(zero)] }
            }

            #[inline(always)]
            unsafe fn split<V: Vector>(pair: [V; 2]) -> [V; 2] {
                pair
            }

            #[inline(always)]
            unsafe fn store_joined<V: Vector>(pair: [V; 2], to: Numbers, at: usize) {
                // SAFETY: as above.
                unsafe { <f32 as Real>::store_joined(pair, to, at) }
            }

            #[inline(always)]
            fn split_by<V: Vector>() -> usize {
                V::LANES
            }

            #[inline(always)]
            fn number(self, zero: f32) -> f32 {
                f32::from(self) - zero
            }
        })*
    };
}
integers!(u8, widen_u8; i8, widen_i8);

/// What all blocks of a run have in common.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a, T> {
    /// Of as many groups as there are channels.
    pub window: &'a Window,
    pub weights: Weights<'a>,
    /// The image, and what its numbers are counted from.
    pub x: &'a [T],
    pub zero: f32,
    /// What sums begin with: a number for each channel, or one.
    pub bias: &'a [f32],
    pub begin: f32,
}

/// Rows of the output, of a block of channels.
#[derive(Clone)]
pub(super) struct Block<'a, T> {
    pub shared: Shared<'a, T>,
    pub rows: Range<usize>,
    /// The first channel.
    pub channel: usize,
    /// What results are kept within.
    pub bounds: (f32, f32),
    /// The result of the first channel in the first column of the first row.
    pub target: Numbers,
    /// Distances of pixels of a row, and of rows, in the target.
    pub apart: usize,
    pub row_apart: usize,
    /// Room for the bias and the weights of a block of channels, in the order in which its data are read.
    pub split: *mut f32,
    /// They are there already.
    pub is_split: bool,
}

/// Computes a block. Having one proves that the machine has its instructions.
#[derive(Clone, Copy)]
pub(super) struct Convolve<T> {
    run: unsafe fn(&Block<'_, T>),
    /// Channels of a block.
    pub channels: usize,
}

impl<T: Data> Convolve<T> {
    /// By the widest registers of which so many channels fill a block, for results of a datatype.
    pub fn new(isa: Isa, channels: usize, output: DType) -> Convolve<T> {
        #[cfg(target_arch = "x86_64")]
        {
            use crate::vector::{Avx2, Avx512};
            if isa.has_avx512_bf16() && channels >= WIDE * Avx512::LANES && output == DType::Bf16 {
                return Convolve { run: x86::avx512_bf16, channels: WIDE * Avx512::LANES };
            }
            if isa.has_avx512() && channels >= WIDE * Avx512::LANES {
                return Convolve { run: x86::avx512, channels: WIDE * Avx512::LANES };
            }
            if isa.has_avx2() && channels >= WIDE * Avx2::LANES {
                return Convolve { run: x86::avx2, channels: WIDE * Avx2::LANES };
            }
        }
        let _ = (isa, output);
        if channels >= WIDE * Four::LANES {
            Convolve { run: convolve::<Four, T>, channels: WIDE * Four::LANES }
        } else {
            Convolve { run: convolve_few, channels }
        }
    }

    /// # Safety
    /// The target of `block` is valid and nobody else touches it, as is its room for bias and weights.
    pub unsafe fn run(self, block: &Block<'_, T>) {
        // SAFETY: `new` chose instructions that the machine has; the caller's promise.
        unsafe { (self.run)(block) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Block, Data, convolve};
    use crate::vector::{Avx2, Avx512, Avx512Bf16};

    /// # Safety
    /// As [`convolve`], on a machine with AVX-512 F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512<T: Data>(block: &Block<'_, T>) {
        // SAFETY: the caller's promise, here and below.
        unsafe { convolve::<Avx512, T>(block) }
    }

    /// # Safety
    /// As [`convolve`], on a machine with AVX-512 F, BW and BF16.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(super) unsafe fn avx512_bf16<T: Data>(block: &Block<'_, T>) {
        // SAFETY: as above.
        unsafe { convolve::<Avx512Bf16, T>(block) }
    }

    /// # Safety
    /// As [`convolve`], on a machine with AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2<T: Data>(block: &Block<'_, T>) {
        // SAFETY: as above.
        unsafe { convolve::<Avx2, T>(block) }
    }
}

/// A block of as many channels as two registers hold.
///
/// # Safety
/// As [`Vector`] and [`Convolve::run`].
#[inline(always)]
unsafe fn convolve<V: Vector, T: Data>(block: &Block<'_, T>) {
    let window = block.shared.window;
    // SAFETY: the caller's promise.
    unsafe {
        match (window.kernel[2], window.stride[2], window.dilation[2], block.shared.weights.turns > 1) {
            (3, 1, 1, false) if ends_alone(window) => block.columns::<V, 3, 1, false>(),
            (5, 1, 1, false) if ends_alone(window) => block.columns::<V, 5, 1, false>(),
            (3, 2, 1, false) if ends_alone(window) => block.columns::<V, 3, 2, false>(),
            (5, 2, 1, false) if ends_alone(window) => block.columns::<V, 5, 2, false>(),
            (.., false) => block.columns::<V, 1, 1, false>(),
            (3, 1, 1, true) if ends_alone(window) => block.columns::<V, 3, 1, true>(),
            (3, 2, 1, true) if ends_alone(window) => block.columns::<V, 3, 2, true>(),
            (.., true) => block.columns::<V, 1, 1, true>(),
        }
    }
}

/// Whether a border is narrower than the kernel, on the left, and the first tap of a row's last pixel inside of the image. Of all columns
/// that the touching taps of neighbouring pixels see, one fewer than there are taps may be outside at either end then, and no other.
fn ends_alone(window: &Window) -> bool {
    let ([.., width], [.., out], [.., taps]) = (window.x, window.out, window.kernel);
    let last = (out.saturating_sub(1) * window.stride[2]) as isize - window.before[2];
    window.before[2] < taps as isize && last < width as isize
}

/// The starts of blocks of `size` that cover `0..to`, which is at least one long. The last ends at `to`: it works out again
/// what it shares with the one before.
#[inline(always)]
pub(super) fn blocks(size: usize, to: usize) -> impl Iterator<Item = usize> {
    (0..to).step_by(size).map(move |start| start.min(to - size))
}

/// Fewer channels than the narrowest block has: all of them.
///
/// # Safety
/// As [`Convolve::run`].
unsafe fn convolve_few<T: Data>(block: &Block<'_, T>) {
    let Shared { window, weights, x: data, zero, bias, begin } = block.shared;
    let channels = window.groups;
    let width = window.out[2];
    for (row, column) in block.rows.clone().flat_map(|row| (0..width).map(move |column| (row, column))) {
        let start = (row - block.rows.start) * block.row_apart + column * block.apart;
        let mut sums = [0f32; WIDE * Four::LANES];
        let sums = &mut sums[..channels];
        match bias {
            [] => sums.fill(begin),
            bias => sums.copy_from_slice(bias),
        }
        for tap_y in 0..window.kernel[1] {
            let Some(y) = window.source(1, row, tap_y) else { continue };
            for tap_x in 0..window.kernel[2] {
                let Some(from) = window.source(2, column, tap_x) else { continue };
                let x = &data[(y * window.x[2] + from) * channels..][..channels];
                let tap = tap_y * window.kernel[2] + tap_x;
                for turn in 0..weights.turns {
                    let weights = &weights.elements[(tap * weights.turns + turn) * weights.apart..][..channels];
                    for (channel, (sum, &weight)) in sums.iter_mut().zip(weights).enumerate() {
                        *sum += x[channel ^ turn].number(zero) * weight;
                    }
                }
            }
        }
        for (channel, &sum) in sums.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { block.target.set(start + channel, within(sum, block.bounds)) };
        }
    }
}

/// What pixels of a block see of a row of the data.
struct Row<T, V> {
    /// The first pixel that the first of them sees, and its column, which may be outside.
    from: *const T,
    first: isize,
    /// Pixels from one that is seen to the next.
    apart: usize,
    /// Taps of the row, each of so many turns.
    taps: *const f32,
    turns: usize,
    zero: V,
}

/// Runs a block of code for each of the numbers in turn, which the compiler knows in each.
macro_rules! unrolled {
    ($name:ident in [$($number:literal)*] $code:block) => {
        $({
            let $name: usize = $number;
            $code
        })*
    };
}

impl<T: Data> Block<'_, T> {
    /// All columns, `TAPS` taps of a row of the kernel at a time, which divide its width; several where taps touch, with
    /// the stride `STRIDE` from pixel to pixel. `TURNS`: channels take turns, for each sees several.
    ///
    /// # Safety
    /// As [`convolve`].
    #[inline(always)]
    unsafe fn columns<V: Vector, const TAPS: usize, const STRIDE: usize, const TURNS: bool>(&self) {
        let width = self.shared.window.out[2];
        if !self.is_split {
            // SAFETY: the caller's promise.
            unsafe { self.split_shared::<V>() };
        }
        // Each piece costs about as much as a pixel beside its pixels.
        let cost = |pixels: usize| width.div_ceil(pixels) * (pixels + 1);
        for row in self.rows.clone() {
            // SAFETY: the caller's promise.
            unsafe {
                if V::REGISTERS >= 32 && width >= PIXELS && cost(PIXELS) <= cost(FEW_PIXELS) {
                    for column in blocks(PIXELS, width) {
                        self.pixels::<V, TAPS, STRIDE, PIXELS, TURNS>(row, column);
                    }
                } else if width >= FEW_PIXELS {
                    for column in blocks(FEW_PIXELS, width) {
                        self.pixels::<V, TAPS, STRIDE, FEW_PIXELS, TURNS>(row, column);
                    }
                } else {
                    for column in 0..width {
                        self.pixels::<V, 1, 1, 1, TURNS>(row, column);
                    }
                }
            }
        }
    }

    /// Puts the bias and the weights of the block into the order in which its data are read: once for all its pixels.
    ///
    /// # Safety
    /// As [`convolve`].
    #[inline(always)]
    unsafe fn split_shared<V: Vector>(&self) {
        let Shared { window, weights: Weights { elements: weights, apart, turns }, bias, begin, .. } = self.shared;
        let (channel, len, rows) = (self.channel, WIDE * V::LANES, window.taps() * turns);
        assert!(rows == 0 || weights.len() >= (rows - 1) * apart + channel + len);
        // SAFETY: the caller's promise; the bias has those channels, and so have the taps (just checked).
        unsafe {
            for index in 0..=rows {
                let shared: [V; WIDE] = match (index, bias.get(channel..channel + len)) {
                    (0, None) => [V::splat(begin); WIDE],
                    (0, Some(bias)) => <f32 as Real>::load_pair(bias.as_ptr()),
                    (index, _) => <f32 as Real>::load_pair(weights.as_ptr().add((index - 1) * apart + channel)),
                };
                let [mut a, mut b] = T::split(shared);
                // Where they go with the sums of the other register.
                if index > 0 && ((index - 1) % turns) & T::split_by::<V>() != 0 {
                    (a, b) = (b, a);
                }
                a.store(self.split.add(index * len));
                b.store(self.split.add(index * len + V::LANES));
            }
        }
    }

    /// Adds to the sums of `P` pixels what they see of a row of the data, in those turns in which numbers go from register `i` to
    /// `i` ^ `CHANGE` of the sums.
    ///
    /// # Safety
    /// As [`Block::pixels`], whose row that is.
    #[inline(always)]
    unsafe fn add_row<
        V: Vector,
        const TAPS: usize,
        const STRIDE: usize,
        const P: usize,
        const TURNS: bool,
        const CHANGE: usize,
    >(
        &self,
        row: &Row<T, V>,
        sums: &mut [[V; WIDE]; P],
    ) {
        let &Row { from, first, apart, taps, turns, zero } = row;
        let window = self.shared.window;
        let (channels, width, len) = (window.groups, window.x[2], WIDE * V::LANES);
        // What one row of taps of all pixels sees.
        let all_seen = (P - 1) * STRIDE + TAPS;
        let split_by = T::split_by::<V>();
        let count = match (TURNS, split_by) {
            (false, _) => 1,
            (true, 1) => turns / 2,
            _ if CHANGE > 0 => turns - split_by,
            _ => turns.min(split_by),
        };
        for index in 0..count {
            let turn = if split_by == 1 { 2 * index + CHANGE } else { index + CHANGE * split_by };
            // SAFETY: the caller's promise.
            unsafe {
                let order = V::order_of(index);
                let mut weights = [[V::splat(0.0); WIDE]; TAPS];
                for tap in 0..TAPS {
                    weights[tap] = <f32 as Real>::load_pair(taps.add((tap * turns + turn) * len));
                }
                unrolled!(seen in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16] {
                    // The others are inside: `ends_alone`.
                    let may_be_outside = TAPS == 1 || seen + 1 < TAPS || seen + TAPS > all_seen;
                    let at = first.wrapping_add_unsigned(seen * apart) as usize;
                    if seen < all_seen && (!may_be_outside || at < width) {
                        let mut x: [V; WIDE] = T::load_pair(from.wrapping_add(seen * apart * channels), zero);
                        if TURNS {
                            x = [x[0].exchanged(order), x[1].exchanged(order)];
                        }
                        for tap in 0..TAPS {
                            if seen >= tap && (seen - tap).is_multiple_of(STRIDE) && (seen - tap) / STRIDE < P {
                                let sums = &mut sums[(seen - tap) / STRIDE];
                                for index in 0..WIDE {
                                    let sum = &mut sums[index ^ CHANGE];
                                    let more = sum.plus_product(x[index], weights[tap][index]);
                                    // With turns the compiler does not read ahead, and would keep sums in memory.
                                    *sum = if TURNS { more } else { more.in_turn() };
                                }
                            }
                        }
                    }
                });
            }
        }
    }

    /// `P` neighbouring pixels.
    ///
    /// # Safety
    /// As [`convolve`], once bias and weights were split; [`ends_alone`] where there are several taps.
    #[inline(always)]
    unsafe fn pixels<V: Vector, const TAPS: usize, const STRIDE: usize, const P: usize, const TURNS: bool>(
        &self,
        row: usize,
        column: usize,
    ) {
        let Shared { window, weights, x: data, zero, .. } = self.shared;
        let (channels, channel) = (window.groups, self.channel);
        let (width, len) = (window.x[2], WIDE * V::LANES);
        assert!(channel + len <= channels && data.len() >= window.x[1] * width * channels);
        // SAFETY: the caller's promise; pixels inside the image and taps of the kernel have `len` channels
        // from the first on (just checked).
        unsafe {
            let zero = V::splat(zero);
            let mut sums: [[V; WIDE]; P] = [<f32 as Real>::load_pair(self.split); P];
            let turns = if TURNS { weights.turns } else { 1 };
            // Several taps are all of a row of the kernel.
            let pieces = if TAPS == 1 { window.kernel[2] } else { 1 };
            // Of several taps the pixels that are seen touch; one tap sees one for each pixel.
            let apart = if TAPS == 1 { window.stride[2] } else { 1 };
            let top = (row * window.stride[1]) as isize - window.before[1];
            for tap_y in 0..window.kernel[1] {
                let y = top.wrapping_add_unsigned(tap_y * window.dilation[1]) as usize;
                if y >= window.x[1] {
                    continue;
                }
                for piece in 0..pieces {
                    let first = (column * window.stride[2] + piece * window.dilation[2]) as isize - window.before[2];
                    let from = (y * width) as isize + first;
                    let from = data.as_ptr().wrapping_offset(from * channels as isize + channel as isize);
                    let taps = self.split.add((1 + (tap_y * pieces + piece) * TAPS * turns) * len);
                    let row = Row { from, first, apart, taps, turns, zero };
                    // Turns in which numbers stay in their register, then those in which they change it.
                    self.add_row::<V, TAPS, STRIDE, P, TURNS, 0>(&row, &mut sums);
                    if TURNS && T::split_by::<V>() < turns {
                        self.add_row::<V, TAPS, STRIDE, P, TURNS, 1>(&row, &mut sums);
                    }
                }
            }
            let (low, high) = (V::splat(self.bounds.0), V::splat(self.bounds.1));
            let start = (row - self.rows.start) * self.row_apart + column * self.apart;
            for pixel in 0..P {
                let [a, b] = sums[pixel];
                let pair = [a.at_least(low).at_most(high), b.at_least(low).at_most(high)];
                T::store_joined(pair, self.target, start + pixel * self.apart);
            }
        }
    }
}
