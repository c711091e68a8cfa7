//! Digits by codes with AVX-512 VNNI: `vpdpbusd` adds four products for each of 16 columns.

use super::digits::{DIGITS, DigitGroup, DigitRows};
use super::{Grouping, LINE, SCALES_BYTES, Width, ask_ahead};
use crate::matrix::BLOCK;
use std::arch::x86_64::*;

/// Bytes of a register.
const REGISTER: usize = size_of::<__m512i>();

/// Adds every group's part to rows of zeros.
///
/// # Safety
/// As [`super::digits::Digits::multiply`] says of the sizes, on a machine with AVX-512 (F, BW) and VNNI, with codes of 4 bits or of 8.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) unsafe fn each_group<const FOUR: bool>(
    panel: *const u8,
    grouping: &Grouping,
    rows: DigitRows<'_>,
    to: &mut [[f32; BLOCK]],
) {
    let (groups, lines) = (grouping.groups(), grouping.lines());
    let group_bytes = grouping.group_bytes();
    let count = to.len();
    for g in 0..groups {
        for first in (0..count).step_by(2) {
            // SAFETY: the caller's promise; there are these rows.
            unsafe {
                let at = first * groups + g;
                let codes = panel.add(g * group_bytes);
                let zeros = panel.wrapping_add(grouping.zeros_offset() + g * BLOCK).cast::<i8>();
                let group = Group {
                    codes,
                    lines,
                    scales: codes.add(group_bytes - SCALES_BYTES).cast(),
                    zeros: grouping.has_zeros.then_some(zeros),
                    digits: rows.digits.as_ptr().add(at * lines),
                    digits_row: groups * lines,
                    x: rows.groups.as_ptr().add(at),
                    x_row: groups,
                    is_first: first == 0,
                };
                let to = to.as_mut_ptr().add(first);
                // As many sums at a time as hide how long one takes.
                match first + 1 < count {
                    true => add_group::<FOUR, 2, 1>(group, to),
                    false => add_group::<FOUR, 1, 2>(group, to),
                }
            }
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

/// Adds a group's part to the sums of `R` rows; `CHAINS` sums in turn for each digit.
///
/// # Safety
/// As [`each_group`]: there are so many rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn add_group<const FOUR: bool, const R: usize, const CHAINS: usize>(group: Group, to: *mut [f32; BLOCK]) {
    const VECTORS: usize = BLOCK * size_of::<u32>() / REGISTER;
    /// Codes that one instruction multiplies for each column, of which a line has so many parts.
    const PARTS: usize = 2;
    let width = if FOUR { Width::Four } else { Width::Eight };
    // The instruction takes codes without signs: what this adds to them is taken off the sums beforehand.
    let (sign, mask) = if FOUR { (8, 0x0f) } else { (-128, -1) };
    let (signs, masks) = (_mm512_set1_epi8(sign), _mm512_set1_epi8(mask));
    let lift = i32::from(sign as u8);
    // SAFETY: the caller's promise, for every access below.
    unsafe {
        let mut sums = [[[[_mm512_setzero_si512(); VECTORS]; CHAINS]; DIGITS]; R];
        for (r, sums) in sums.iter_mut().enumerate() {
            for (sums, sum) in sums.iter_mut().zip((*group.x.add(r * group.x_row)).sums) {
                sums[0] = [_mm512_set1_epi32(-lift * sum); VECTORS];
            }
        }
        let mut line = group.codes;
        for l in 0..group.lines {
            if group.is_first {
                ask_ahead(width, line, l);
            }
            for part in 0..PARTS {
                for v in 0..VECTORS {
                    let codes = if FOUR {
                        let both = _mm512_loadu_si512(line.add(v * REGISTER).cast());
                        let codes = if part == 0 { both } else { _mm512_srli_epi32::<4>(both) };
                        _mm512_ternarylogic_epi32::<MASKED_XOR>(codes, masks, signs)
                    } else {
                        let codes = _mm512_loadu_si512(line.add((part * VECTORS + v) * REGISTER).cast());
                        _mm512_xor_si512(codes, signs)
                    };
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let digits = &*group.digits.add(r * group.digits_row + l);
                        for (sums, digits) in sums.iter_mut().zip(digits) {
                            let digits = digits.as_ptr().add(part * LINE / PARTS).cast::<i32>().read_unaligned();
                            let sum = &mut sums[part % CHAINS][v];
                            *sum = _mm512_dpbusd_epi32(*sum, codes, _mm512_set1_epi32(digits));
                        }
                    }
                }
            }
            line = line.add(width.line_bytes());
        }
        let base = _mm512_set1_ps(256.0);
        for v in 0..VECTORS {
            let column = v * REGISTER / size_of::<f32>();
            let scales = _mm512_loadu_ps(group.scales.add(column));
            for (r, sums) in sums.iter().enumerate() {
                let x = &*group.x.add(r * group.x_row);
                let mut sum = _mm512_setzero_ps();
                for digit in sums.iter().rev() {
                    let whole = digit[1..].iter().fold(digit[0][v], |sum, chain| _mm512_add_epi32(sum, chain[v]));
                    sum = _mm512_fmadd_ps(sum, base, _mm512_cvtepi32_ps(whole));
                }
                if let Some(zeros) = group.zeros {
                    let zeros = _mm512_cvtepi8_epi32(_mm_loadu_si128(zeros.add(column).cast()));
                    let of_rows = x.sums.iter().rev().fold(0.0, |sum, &digit| sum * 256.0 + digit as f32);
                    sum = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(zeros), _mm512_set1_ps(of_rows), sum);
                }
                let place = to.add(r).cast::<f32>().add(column);
                let scales = _mm512_mul_ps(scales, _mm512_set1_ps(x.step));
                _mm512_storeu_ps(place, _mm512_fmadd_ps(sum, scales, _mm512_loadu_ps(place)));
            }
        }
    }
}

/// `(a & b) ^ c`, as `vpternlogd` wants it: its bit `4a + 2b + c`.
const MASKED_XOR: i32 = 0b0110_1010;
