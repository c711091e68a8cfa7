//! Products of few rows in whole numbers: what [`super::multiply`] gives, several times as fast.
//!
//! The numbers of a group become multiples of one step, its largest number being 2²² of them: each moves by 2⁻²³ of the
//! largest at most, which is what rounding a sum in f32 costs. A multiple is three digits of 8 bits with a sign, and
//! each digit's products are summed exactly, 4 at an instruction.
//!
//! ```text
//! x = step · (65536·d₂ + 256·d₁ + d₀)
//! Σ x · code = step · (65536·Σ d₂·code + 256·Σ d₁·code + Σ d₀·code)
//! ```

#[cfg(target_arch = "x86_64")]
use super::vnni;
use super::{GroupedWeights, Grouping, LINE, Rows, Width};
use crate::Isa;
use crate::isa::multiversion;
use crate::matrix::BLOCK;

/// Digits of a number.
pub(crate) const DIGITS: usize = 3;
/// Steps of the largest number of a group.
const STEPS: f32 = 4_194_304.0;
/// The largest number of a group lies between these, so that a step and its inverse are normal numbers.
const LEAST: f32 = 1e-30;
const MOST: f32 = 1e30;
/// A number whose last bit counts ones, and that is larger than any multiple.
const WHOLE: f32 = 12_582_912.0;
/// Rows of a group whose sums of products, each below 2¹⁵, fit into 32 bits.
const GROUP_MAX: usize = 1 << 16;

/// What multiplies digits. Having one proves that the machine has its instructions.
#[derive(Clone, Copy)]
pub(crate) struct Digits(Unit);

#[derive(Clone, Copy)]
enum Unit {
    /// AVX-512 (F, BW) and VNNI.
    #[cfg(target_arch = "x86_64")]
    Vnni,
}

impl Digits {
    /// What the machine has for such weights.
    pub fn new(isa: Isa, grouping: &Grouping) -> Option<Digits> {
        #[cfg(target_arch = "x86_64")]
        if isa.has_avx512() && is_x86_feature_detected!("avx512vnni") && grouping.group <= GROUP_MAX {
            return Some(Digits(Unit::Vnni));
        }
        let _ = (isa, grouping, GROUP_MAX);
        None
    }

    /// `to[row] = rows[row] · panel`.
    ///
    /// # Panics
    /// Where there are fewer digits than that takes.
    pub fn multiply(self, weights: &GroupedWeights, panel: usize, rows: DigitRows<'_>, to: &mut [[f32; BLOCK]]) {
        let grouping = &weights.grouping;
        assert!(rows.groups.len() >= to.len() * grouping.groups());
        assert!(rows.digits.len() >= to.len() * grouping.groups() * grouping.lines());
        to.fill([0.0; BLOCK]);
        // Elsewhere there is nothing that would read them.
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (panel, rows);
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the proof; the sizes were checked.
            Unit::Vnni => unsafe {
                match grouping.width {
                    Width::Four => vnni::each_group::<true>(weights.panel(panel), grouping, rows, to),
                    Width::Eight => vnni::each_group::<false>(weights.panel(panel), grouping, rows, to),
                }
            },
        }
    }
}

/// Rows as digits.
#[derive(Clone, Copy)]
pub(crate) struct DigitRows<'a> {
    /// For each group of each row and each line of it its digits, from the lowest on, in the order of [`row`].
    pub digits: &'a [[[i8; LINE]; DIGITS]],
    /// For each group of each row what it is in steps.
    pub groups: &'a [DigitGroup],
}

/// What the numbers of a group have in common.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct DigitGroup {
    pub step: f32,
    /// Each digit's sum.
    pub sums: [i32; DIGITS],
}

/// The row of a line whose digit lies at a place: as the codes that one instruction multiplies lie in their 32 bits.
#[inline(always)]
fn row<const FOUR: bool>(place: usize) -> usize {
    if FOUR { place % (LINE / 2) * 2 + place / (LINE / 2) } else { place }
}

multiversion! {
    /// Writes rows as digits; `fits` becomes false where a number is infinite or NaN, or a group too small for its step.
    pub(crate) fn to_digits(
        rows: Rows<'_>,
        grouping: &Grouping,
        digits: &mut [[[i8; LINE]; DIGITS]],
        groups: &mut [DigitGroup],
        fits: &mut bool,
    ) = write_digits
}

#[inline(always)]
fn write_digits(
    rows: Rows<'_>,
    grouping: &Grouping,
    digits: &mut [[[i8; LINE]; DIGITS]],
    groups: &mut [DigitGroup],
    fits: &mut bool,
) {
    match grouping.width {
        Width::Four => write_digits_of::<true>(rows, grouping, digits, groups, fits),
        Width::Eight => write_digits_of::<false>(rows, grouping, digits, groups, fits),
    }
}

#[inline(always)]
fn write_digits_of<const FOUR: bool>(
    rows: Rows<'_>,
    grouping: &Grouping,
    digits: &mut [[[i8; LINE]; DIGITS]],
    groups: &mut [DigitGroup],
    fits: &mut bool,
) {
    let lines = grouping.lines();
    let each = rows.numbers.chunks_exact(lines * LINE).zip(digits.chunks_exact_mut(lines)).zip(groups);
    for ((numbers, digits), group) in each {
        // Numbers without their signs are in the order of their bits, and NaN is the largest.
        let largest = numbers.iter().fold(0, |largest, x| (x.to_bits() & !(1 << 31)).max(largest));
        let largest = f32::from_bits(largest);
        *fits &= largest == 0.0 || (LEAST..=MOST).contains(&largest);
        let inverse = if largest == 0.0 { 0.0 } else { STEPS / largest };
        let mut sums = [[0i32; LINE]; DIGITS];
        for (numbers, digits) in numbers.as_chunks::<LINE>().0.iter().zip(digits) {
            // Added to it, a whole number is what the lowest bits hold.
            let whole = |x: f32| (x * inverse + WHOLE).to_bits().wrapping_sub(WHOLE.to_bits()) as i32;
            let mut rest: [i32; LINE] = std::array::from_fn(|place| whole(numbers[row::<FOUR>(place)]));
            for (digit, sums) in digits.iter_mut().zip(&mut sums) {
                for place in 0..LINE {
                    let lowest = rest[place] as i8;
                    digit[place] = lowest;
                    sums[place] += i32::from(lowest);
                    rest[place] = (rest[place] - i32::from(lowest)) >> 8;
                }
            }
        }
        *group = DigitGroup { step: largest / STEPS, sums: sums.map(|lanes| lanes.iter().sum()) };
    }
}
