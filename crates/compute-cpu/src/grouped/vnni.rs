//! Digits by codes with AVX-512 VNNI: `vpdpbusd` adds four products for each of 16 columns.

use super::digits::{DIGITS, DigitGroup, DigitRows};
use super::{Grouping, LINE, SCALES_BYTES, Width, ask_ahead};
use crate::matrix::BLOCK;
use std::arch::x86_64::*;

/// Bytes of a register.
const REGISTER: usize = size_of::<__m512i>();

/// Vectors of a row of sums.
const VECTORS: usize = BLOCK * size_of::<f32>() / REGISTER;

/// Sums of `R` rows.
type Sums<const R: usize> = [[__m512; VECTORS]; R];

/// Adds every group's part to rows of zeros, the `D` highest digits of what they are multiplied by.
///
/// # Safety
/// As [`super::digits::Digits::multiply`] says of the sizes, on a machine with AVX-512 (F, BW) and VNNI, with codes of 4 bits or of 8,
/// each line of which is asked for or not.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) unsafe fn each_group<const FOUR: bool, const EACH: bool, const D: usize>(
    panel: *const u8,
    grouping: &Grouping,
    rows: DigitRows<'_>,
    to: &mut [[f32; BLOCK]],
) {
    let (groups, lines) = (grouping.groups(), grouping.lines());
    let group_bytes = grouping.group_bytes();
    let zeros = panel.wrapping_add(grouping.zeros_offset()).cast::<i8>();
    let mut group = Group {
        codes: panel,
        lines,
        scales: panel.wrapping_add(group_bytes - SCALES_BYTES).cast(),
        zeros: grouping.has_zeros.then_some(zeros),
        digits: rows.digits.as_ptr(),
        digits_row: groups * lines,
        x: rows.groups.as_ptr(),
        x_row: groups,
        is_first: true,
    };
    // SAFETY: the caller's promise; there are these rows.
    unsafe {
        // As many sums at a time as hide how long one takes.
        if let [to] = to {
            let mut sums = load([to]);
            for _ in 0..groups {
                add_group::<FOUR, EACH, D, 1, 2>(group, &mut sums);
                group = group.next(group_bytes);
            }
            return store(sums, [to]);
        }
        for _ in 0..groups {
            for (pair, to) in to.chunks_mut(2).enumerate() {
                let group = group.of_row(2 * pair);
                match to {
                    [first, second] => {
                        let mut sums = load([first, second]);
                        add_group::<FOUR, EACH, D, 2, 1>(group, &mut sums);
                        store(sums, [first, second]);
                    }
                    [first] => {
                        let mut sums = load([first]);
                        add_group::<FOUR, EACH, D, 1, 2>(group, &mut sums);
                        store(sums, [first]);
                    }
                    _ => {}
                }
            }
            group = group.next(group_bytes);
        }
    }
}

/// # Safety
/// The machine has AVX-512 F, as the caller says to the compiler.
#[inline(always)]
unsafe fn load<const R: usize>(rows: [&mut [f32; BLOCK]; R]) -> Sums<R> {
    // SAFETY: the caller's promise.
    let mut sums = [[unsafe { _mm512_setzero_ps() }; VECTORS]; R];
    for (row, sums) in rows.into_iter().zip(&mut sums) {
        for (v, sum) in sums.iter_mut().enumerate() {
            // SAFETY: a row is so many vectors.
            *sum = unsafe { _mm512_loadu_ps(row.as_ptr().cast::<__m512>().add(v).cast()) };
        }
    }
    sums
}

/// # Safety
/// The machine has AVX-512 F, as the caller says to the compiler.
#[inline(always)]
unsafe fn store<const R: usize>(sums: Sums<R>, rows: [&mut [f32; BLOCK]; R]) {
    for (row, sums) in rows.into_iter().zip(sums) {
        for (v, sum) in sums.into_iter().enumerate() {
            // SAFETY: a row is so many vectors.
            unsafe { _mm512_storeu_ps(row.as_mut_ptr().cast::<__m512>().add(v).cast(), sum) };
        }
    }
}

/// A group of a panel, and the first row that it is multiplied by.
#[derive(Clone, Copy)]
struct Group {
    codes: *const u8,
    lines: usize,
    scales: *const f32,
    zeros: Option<*const i8>,
    digits: *const [[i8; LINE]; DIGITS],
    /// Distance of rows there.
    digits_row: usize,
    x: *const DigitGroup,
    x_row: usize,
    /// Nothing has read this group yet.
    is_first: bool,
}

impl Group {
    /// The next group of a panel whose groups are so long.
    #[inline(always)]
    fn next(self, bytes: usize) -> Group {
        Group {
            codes: self.codes.wrapping_add(bytes),
            scales: self.scales.wrapping_byte_add(bytes),
            zeros: self.zeros.map(|zeros| zeros.wrapping_add(BLOCK)),
            digits: self.digits.wrapping_add(self.lines),
            x: self.x.wrapping_add(1),
            ..self
        }
    }

    /// The same for a row further on.
    #[inline(always)]
    fn of_row(self, row: usize) -> Group {
        let digits = self.digits.wrapping_add(row * self.digits_row);
        Group { digits, x: self.x.wrapping_add(row * self.x_row), is_first: row == 0, ..self }
    }
}

/// Adds a group's part to the sums of `R` rows; `CHAINS` sums in turn for each of `D` digits.
///
/// # Safety
/// As [`each_group`], into which it has to be inlined: there are so many rows.
#[inline(always)]
unsafe fn add_group<const FOUR: bool, const EACH: bool, const D: usize, const R: usize, const CHAINS: usize>(
    group: Group,
    to: &mut Sums<R>,
) {
    /// Lines of which the compiler makes one piece of code.
    const TOGETHER: usize = 4;
    let lowest = DIGITS - D;
    // SAFETY: the caller's promise, for every access below.
    unsafe {
        let mut sums = [[[[_mm512_setzero_si512(); VECTORS]; CHAINS]; D]; R];
        for (r, sums) in sums.iter_mut().enumerate() {
            let x = &*group.x.add(r * group.x_row);
            for (sums, &first) in sums.iter_mut().zip(&x.first[lowest..]) {
                sums[0] = [_mm512_set1_epi32(first); VECTORS];
            }
        }
        // Most groups are a few times so many lines.
        let whole = group.lines - group.lines % TOGETHER;
        for l in (0..whole).step_by(TOGETHER) {
            for l in l..l + TOGETHER {
                add_line::<FOUR, EACH, D, R, CHAINS>(group, l, &mut sums);
            }
        }
        for l in whole..group.lines {
            add_line::<FOUR, EACH, D, R, CHAINS>(group, l, &mut sums);
        }
        let base = _mm512_set1_ps(256.0);
        for v in 0..VECTORS {
            let column = v * REGISTER / size_of::<f32>();
            let scales = _mm512_loadu_ps(group.scales.add(column));
            for (r, sums) in sums.iter().enumerate() {
                let x = &*group.x.add(r * group.x_row);
                let mut sum = _mm512_setzero_ps();
                for (d, digit) in sums.iter().enumerate().rev() {
                    let mut whole = digit[0][v];
                    for chain in &digit[1..] {
                        whole = _mm512_add_epi32(whole, chain[v]);
                    }
                    let whole = _mm512_cvtepi32_ps(whole);
                    sum = if d == D - 1 { whole } else { _mm512_fmadd_ps(sum, base, whole) };
                }
                if let Some(zeros) = group.zeros {
                    let zeros = _mm512_cvtepi8_epi32(_mm_loadu_si128(zeros.add(column).cast()));
                    let of_rows = x.sums[lowest..].iter().rev().fold(0.0, |sum, &digit| sum * 256.0 + digit as f32);
                    sum = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(zeros), _mm512_set1_ps(of_rows), sum);
                }
                let scales = _mm512_mul_ps(scales, _mm512_set1_ps(x.step));
                to[r][v] = _mm512_fmadd_ps(sum, scales, to[r][v]);
            }
        }
    }
}

/// Adds the products of a line of a group to sums in integers.
///
/// # Safety
/// As [`add_group`].
#[inline(always)]
unsafe fn add_line<const FOUR: bool, const EACH: bool, const D: usize, const R: usize, const CHAINS: usize>(
    group: Group,
    l: usize,
    sums: &mut [[[[__m512i; VECTORS]; CHAINS]; D]; R],
) {
    /// Codes that one instruction multiplies for each column, of which a line has so many parts.
    const PARTS: usize = 2;
    let width = if FOUR { Width::Four } else { Width::Eight };
    // The instruction takes codes without signs: what this adds to them is taken off the sums beforehand.
    let (sign, mask) = if FOUR { (8, 0x0f) } else { (-128, -1) };
    let lowest = DIGITS - D;
    // SAFETY: the caller's promise, for every access below.
    unsafe {
        let (signs, masks) = (_mm512_set1_epi8(sign), _mm512_set1_epi8(mask));
        let line = group.codes.add(l * width.line_bytes());
        if group.is_first {
            ask_ahead::<EACH>(width, line, l);
        }
        for part in 0..PARTS {
            let mut codes = [signs; VECTORS];
            for (v, codes) in codes.iter_mut().enumerate() {
                *codes = if FOUR {
                    let both = _mm512_loadu_si512(line.add(v * REGISTER).cast());
                    let codes = if part == 0 { both } else { _mm512_srli_epi32::<4>(both) };
                    _mm512_ternarylogic_epi32::<MASKED_XOR>(codes, masks, signs)
                } else {
                    let codes = _mm512_loadu_si512(line.add((part * VECTORS + v) * REGISTER).cast());
                    _mm512_xor_si512(codes, signs)
                };
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let digits = &*group.digits.add(r * group.digits_row + l);
                for (sums, digits) in sums.iter_mut().zip(&digits[lowest..]) {
                    let digits = digits.as_ptr().add(part * LINE / PARTS).cast::<i32>().read_unaligned();
                    let digits = _mm512_set1_epi32(digits);
                    for (sum, &codes) in sums[part % CHAINS].iter_mut().zip(&codes) {
                        *sum = _mm512_dpbusd_epi32(*sum, codes, digits);
                    }
                }
            }
        }
    }
}

/// `(a & b) ^ c`, as `vpternlogd` wants it: its bit `4a + 2b + c`.
const MASKED_XOR: i32 = 0b0110_1010;
