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
//!
//! Numbers that are rounded to bf16 have two digits, where groups are small: each moves by 2⁻¹⁵ of the largest at most. What
//! that adds up to in a group of [`PAIRED_MAX`] numbers is a fraction of what rounding its largest number to bf16 costs.

#[cfg(target_arch = "x86_64")]
use super::vnni;
use super::{GroupedWeights, Grouping, LINE, Rows, Width};
use crate::Isa;
use crate::isa::multiversion;
use crate::matrix::BLOCK;
#[cfg(target_arch = "x86_64")]
use crate::prefetch;

/// Digits of a number, at most. Where there are fewer, the lowest are left out.
pub(crate) const DIGITS: usize = 3;
/// Steps of the largest number of a group.
const STEPS: f32 = 4_194_304.0;
/// What a digit counts in steps of the one below.
const BASE: f32 = 256.0;
/// Rows of a group in which rounded numbers have two digits.
const PAIRED_MAX: usize = 256;
/// The largest number of a group lies between these, so that a step and its inverse are normal numbers.
const LEAST: f32 = 1e-30;
const MOST: f32 = 1e30;
/// A number whose last bit counts ones, and that is larger than any multiple.
const WHOLE: f32 = 12_582_912.0;
/// Rows of a group whose sums of products, each below 2¹⁵, fit into 32 bits.
const GROUP_MAX: usize = 1 << 16;

/// What multiplies digits. Having one proves that the machine has its instructions.
#[derive(Clone, Copy)]
pub(crate) struct Digits {
    unit: Unit,
    /// Whether numbers have two digits rather than three.
    paired: bool,
}

#[derive(Clone, Copy)]
enum Unit {
    /// AVX-512 (F, BW) and VNNI.
    #[cfg(target_arch = "x86_64")]
    Vnni,
}

impl Digits {
    /// What the machine has for such weights, and numbers that are rounded to bf16 or not.
    pub fn new(isa: Isa, grouping: &Grouping, rounds: bool) -> Option<Digits> {
        #[cfg(target_arch = "x86_64")]
        if isa.has_avx512() && is_x86_feature_detected!("avx512vnni") && grouping.group <= GROUP_MAX {
            return Some(Digits { unit: Unit::Vnni, paired: rounds && grouping.group <= PAIRED_MAX });
        }
        let _ = (isa, grouping, rounds, GROUP_MAX, PAIRED_MAX);
        None
    }

    /// Writes rows as digits; `fits` becomes false where a number is infinite or NaN, or a group too small for its step.
    pub fn write(
        self,
        isa: Isa,
        rows: Rows<'_>,
        grouping: &Grouping,
        digits: &mut [[[i8; LINE]; DIGITS]],
        groups: &mut [DigitGroup],
        fits: &mut bool,
    ) {
        write_rows(isa, self.paired, rows, grouping, digits, groups, fits);
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
        match self.unit {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the proof; the sizes were checked.
            Unit::Vnni => unsafe {
                let panel = weights.panel(panel);
                let multiply = match (grouping.width, self.paired, prefetch::follows_single_lines()) {
                    (Width::Four, false, false) => vnni::each_group::<true, true, 3>,
                    (Width::Four, false, true) => vnni::each_group::<true, false, 3>,
                    (Width::Four, true, false) => vnni::each_group::<true, true, 2>,
                    (Width::Four, true, true) => vnni::each_group::<true, false, 2>,
                    (Width::Eight, false, _) => vnni::each_group::<false, true, 3>,
                    (Width::Eight, true, _) => vnni::each_group::<false, true, 2>,
                };
                multiply(panel, grouping, rows, to);
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
    /// What the lowest digit that there is counts.
    pub step: f32,
    /// Each digit's sum.
    pub sums: [i32; DIGITS],
    /// What sums of products of each digit begin with, so that codes may be taken without their signs.
    pub first: [i32; DIGITS],
}

/// The row of a line whose digit lies at a place: as the codes that one instruction multiplies lie in their 32 bits.
#[inline(always)]
fn row<const FOUR: bool>(place: usize) -> usize {
    if FOUR { place % (LINE / 2) * 2 + place / (LINE / 2) } else { place }
}

multiversion! {
    fn write_rows(
        paired: bool,
        rows: Rows<'_>,
        grouping: &Grouping,
        digits: &mut [[[i8; LINE]; DIGITS]],
        groups: &mut [DigitGroup],
        fits: &mut bool,
    ) = write_digits
}

#[inline(always)]
fn write_digits(
    paired: bool,
    rows: Rows<'_>,
    grouping: &Grouping,
    digits: &mut [[[i8; LINE]; DIGITS]],
    groups: &mut [DigitGroup],
    fits: &mut bool,
) {
    match (grouping.width, paired) {
        (Width::Four, false) => write_digits_of::<true, 3>(rows, grouping, digits, groups, fits),
        (Width::Four, true) => write_digits_of::<true, 2>(rows, grouping, digits, groups, fits),
        (Width::Eight, false) => write_digits_of::<false, 3>(rows, grouping, digits, groups, fits),
        (Width::Eight, true) => write_digits_of::<false, 2>(rows, grouping, digits, groups, fits),
    }
}

#[inline(always)]
fn write_digits_of<const FOUR: bool, const USED: usize>(
    rows: Rows<'_>,
    grouping: &Grouping,
    digits: &mut [[[i8; LINE]; DIGITS]],
    groups: &mut [DigitGroup],
    fits: &mut bool,
) {
    let lines = grouping.lines();
    let left_out = DIGITS - USED;
    let steps = STEPS / BASE.powi(left_out as i32);
    // What codes are larger by without their signs.
    let lift = 1 << (grouping.width.bits() - 1);
    let each = rows.numbers.chunks_exact(lines * LINE).zip(digits.chunks_exact_mut(lines)).zip(groups);
    for ((numbers, digits), group) in each {
        // Numbers without their signs are in the order of their bits, and NaN is the largest.
        let largest = numbers.iter().fold(0, |largest, x| (x.to_bits() & !(1 << 31)).max(largest));
        let largest = f32::from_bits(largest);
        *fits &= largest == 0.0 || (LEAST..=MOST).contains(&largest);
        let inverse = if largest == 0.0 { 0.0 } else { steps / largest };
        let mut sums = [[0i32; LINE]; DIGITS];
        for (numbers, digits) in numbers.as_chunks::<LINE>().0.iter().zip(digits) {
            // Added to it, a whole number is what the lowest bits hold.
            let whole = |x: f32| (x * inverse + WHOLE).to_bits().wrapping_sub(WHOLE.to_bits()) as i32;
            let mut rest: [i32; LINE] = std::array::from_fn(|place| whole(numbers[row::<FOUR>(place)]));
            for (digit, sums) in digits.iter_mut().zip(&mut sums).skip(left_out) {
                for place in 0..LINE {
                    let lowest = rest[place] as i8;
                    digit[place] = lowest;
                    sums[place] += i32::from(lowest);
                    rest[place] = (rest[place] - i32::from(lowest)) >> 8;
                }
            }
        }
        let sums: [i32; DIGITS] = sums.map(|lanes| lanes.iter().sum());
        *group = DigitGroup { step: largest / steps, sums, first: sums.map(|sum| -lift * sum) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of which one in each group is much larger than the others.
    fn numbers(grouping: &Grouping) -> Vec<f32> {
        let number = |at: usize| ((at * 37 % 101) as f32 - 50.0) * if at % grouping.group == 3 { 40.0 } else { 0.013 };
        (0..Rows::len(grouping)).map(number).collect()
    }

    #[test]
    fn digits_are_as_near_as_they_say() {
        for isa in Isa::available() {
            for (width, paired) in
                [(Width::Four, true), (Width::Four, false), (Width::Eight, true), (Width::Eight, false)]
            {
                let grouping = Grouping { width, n: 1, k: 96, group: 32, has_zeros: false };
                let (numbers, lines) = (numbers(&grouping), grouping.groups() * grouping.lines());
                let rows = Rows { numbers: &numbers, sums: &[], count: 1 };
                let mut digits = vec![[[0i8; LINE]; DIGITS]; lines];
                let mut groups = vec![DigitGroup::default(); grouping.groups()];
                let mut fits = true;
                write_rows(isa, paired, rows, &grouping, &mut digits, &mut groups, &mut fits);
                assert!(fits);
                let lowest = usize::from(paired);
                for (g, group) in groups.iter().enumerate() {
                    let numbers = &numbers[g * 32..][..32];
                    let largest = numbers.iter().fold(0f32, |largest, x| largest.max(x.abs()));
                    let bound = largest * if paired { 2f32.powi(-15) } else { 2f32.powi(-22) };
                    let mut sums = [0; DIGITS];
                    for (line, digits) in digits[g * 4..][..4].iter().enumerate() {
                        for place in 0..LINE {
                            let whole = (lowest..DIGITS).rev().fold(0, |whole, digit| {
                                sums[digit] += i32::from(digits[digit][place]);
                                whole * 256 + i32::from(digits[digit][place])
                            });
                            let row = if width == Width::Four { row::<true>(place) } else { place };
                            let (made, x) = (whole as f32 * group.step, numbers[line * LINE + row]);
                            assert!((made - x).abs() <= bound, "{made} for {x}, {width:?} {paired} {}", isa.name());
                        }
                    }
                    let lift = if width == Width::Four { 8 } else { 128 };
                    assert_eq!((group.sums, group.first), (sums, sums.map(|sum| -lift * sum)));
                }
            }
        }
    }
}
