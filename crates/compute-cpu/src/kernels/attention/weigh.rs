//! Softmax of a block of scores, as weights of values.

use crate::map::exp;
use crate::matrix::{BLOCK, Sums};
use crate::real::Numbers;
use crate::vector::{Vector, on_vectors};
use half::bf16;
use std::f32::consts::LOG2_E;

/// Rows of scores, and what becomes of them.
pub(super) struct Rows<'a> {
    /// Rows that count.
    pub count: usize,
    /// Scores, still to be scaled: column `c` of a row lies in block `c / 32`.
    pub scores: &'a mut [Sums],
    /// Columns that the first row sees, and how many more each row does, to the last.
    pub seen: (isize, isize),
    /// Columns of scores that there are.
    pub columns: usize,
    /// Positive.
    pub scale: f32,
    pub mask: RowMasks<'a>,
    /// Where weights go, with zeros up to a multiple of [`BLOCK`] columns.
    pub weights: &'a mut [bf16],
    /// From the weights of a row to those of the next.
    pub weights_pitch: usize,
    /// Maximum and sum of each row so far.
    pub maxima: &'a mut [f32; BLOCK],
    pub sums: &'a mut [f32; BLOCK],
    /// Blocks of 32 columns of what was weighed so far; none before the first.
    pub result: &'a mut [Sums],
}

/// What is done to scaled scores, row by row; a row of it lies `.1` elements behind the one before.
#[derive(Clone, Copy)]
pub(super) enum RowMasks<'a> {
    None,
    /// Added.
    Bias(&'a [f32], usize),
    /// Hidden where 0.
    Shown(&'a [u8], usize),
}

impl Rows<'_> {
    fn seen(&self, row: usize) -> usize {
        usize::try_from(self.seen.0 + row as isize * self.seen.1).unwrap_or(0).min(self.columns)
    }
}

on_vectors! {
    /// Turns scores into weights against the running maximum and sum of their row, and rescales what was weighed
    /// where the maximum grows.
    pub(super) fn weigh(rows: Rows<'_>) = weigh_each
}

/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn weigh_each<V: Vector>(mut rows: Rows<'_>) {
    let columns = rows.columns.next_multiple_of(BLOCK);
    assert!(rows.scale > 0.0 && rows.count <= BLOCK);
    assert!(rows.scores.len() * BLOCK == columns && columns <= rows.weights_pitch);
    assert!(rows.weights.len() >= rows.count * rows.weights_pitch);
    let before = *rows.maxima;
    // All maxima first: a row whose maximum is still on its way would hold up the next ones.
    for row in 0..rows.count {
        // SAFETY: the caller's promise.
        let most = unsafe {
            match rows.mask {
                RowMasks::None => most::<V>(&mut rows, row) * rows.scale,
                RowMasks::Bias(bias, pitch) => most_biased::<V>(&mut rows, row, &bias[row * pitch..]),
                RowMasks::Shown(shown, pitch) => most_shown::<V>(&mut rows, row, &shown[row * pitch..]) * rows.scale,
            }
        };
        rows.maxima[row] = rows.maxima[row].max(most);
    }
    let is_biased = matches!(rows.mask, RowMasks::Bias(..));
    for (row, before) in before.into_iter().enumerate().take(rows.count) {
        if rows.maxima[row] == f32::NEG_INFINITY {
            weigh_nothing(&mut rows, row, columns);
            continue;
        }
        // SAFETY: the caller's promise; a row has as many scores and weights.
        unsafe {
            match is_biased {
                true => weigh_row::<V, true>(&mut rows, row, before, columns),
                false => weigh_row::<V, false>(&mut rows, row, before, columns),
            }
        }
    }
}

/// The largest score of a row. What is not seen of the last block becomes -∞.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn most<V: Vector>(rows: &mut Rows<'_>, row: usize) -> f32 {
    let seen = rows.seen(row);
    // A NaN may be passed over: it shows in the sum.
    // SAFETY: the caller's promise.
    let mut most = unsafe { [V::splat(f32::NEG_INFINITY), V::splat(f32::NEG_INFINITY)] };
    for block in 0..seen.div_ceil(BLOCK) {
        let line = &mut rows.scores[block].0[row * BLOCK..][..BLOCK];
        if seen < (block + 1) * BLOCK {
            line[seen - block * BLOCK..].fill(f32::NEG_INFINITY);
        }
        // SAFETY: the caller's promise; registers lie inside of the line.
        unsafe {
            for at in (0..BLOCK).step_by(2 * V::LANES) {
                most[0] = V::load(line.as_ptr().add(at)).at_least(most[0]);
                most[1] = V::load(line.as_ptr().add(at + V::LANES)).at_least(most[1]);
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { most[0].at_least(most[1]).largest_lane() }
}

/// Scales the scores of a row and adds `bias`; the largest of them.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn most_biased<V: Vector>(rows: &mut Rows<'_>, row: usize, bias: &[f32]) -> f32 {
    let scale = rows.scale;
    for (block, bias) in bias[..rows.seen(row)].chunks(BLOCK).enumerate() {
        let line = &mut rows.scores[block].0[row * BLOCK..][..BLOCK];
        if bias.len() < BLOCK {
            for (score, bias) in line.iter_mut().zip(bias) {
                *score = score.mul_add(scale, *bias);
            }
            continue;
        }
        // SAFETY: the caller's promise; registers lie inside of the line and its biases.
        unsafe {
            for at in (0..BLOCK).step_by(V::LANES) {
                let (score, bias) = (V::load(line.as_ptr().add(at)), V::load(bias.as_ptr().add(at)));
                let score = bias.plus_product(score, V::splat(scale));
                score.store(line.as_mut_ptr().add(at));
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { most::<V>(rows, row) }
}

/// Hides scores of a row; the largest of the others.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn most_shown<V: Vector>(rows: &mut Rows<'_>, row: usize, shown: &[u8]) -> f32 {
    for (block, shown) in shown[..rows.seen(row)].chunks(BLOCK).enumerate() {
        let line = &mut rows.scores[block].0[row * BLOCK..][..BLOCK];
        if shown.len() < BLOCK {
            let hidden = line.iter_mut().zip(shown).filter(|(_, shown)| **shown == 0);
            hidden.for_each(|(score, _)| *score = f32::NEG_INFINITY);
            continue;
        }
        // SAFETY: the caller's promise; registers lie inside of the line and its mask.
        unsafe {
            for at in (0..BLOCK).step_by(V::LANES) {
                let score = V::load(line.as_ptr().add(at)).hide(shown.as_ptr().add(at));
                score.store(line.as_mut_ptr().add(at));
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { most::<V>(rows, row) }
}

/// Weights of a row whose maximum is known, and was `before`; scores are still to be scaled, unless they are `BIASED`.
///
/// # Safety
/// As [`Vector`]; the row has `columns` scores and weights.
#[inline(always)]
unsafe fn weigh_row<V: Vector, const BIASED: bool>(rows: &mut Rows<'_>, row: usize, before: f32, columns: usize) {
    let weights = rows.weights[row * rows.weights_pitch..][..columns].as_mut_ptr();
    let (seen, larger) = (rows.seen(row).next_multiple_of(BLOCK), rows.maxima[row]);
    // SAFETY: the caller's promise; the lines of blocks and of weights are as long.
    unsafe {
        let (mut totals, largest) = ([V::splat(0.0); 2], V::splat(larger));
        // Powers of 2 take the place of those of e.
        let (scale, least) = (V::splat(rows.scale * LOG2_E), V::splat(-larger * LOG2_E));
        for block in 0..seen / BLOCK {
            let line = rows.scores[block].0[row * BLOCK..][..BLOCK].as_ptr();
            for at in (0..BLOCK).step_by(2 * V::LANES) {
                let mut pair = [V::load(line.add(at)), V::load(line.add(at + V::LANES))];
                for half in 0..2 {
                    // A bias may be as low as numbers go: only what lies between scores is scaled then.
                    pair[half] = match BIASED {
                        true => pair[half].minus(largest).exp_near(),
                        false => least.plus_product(pair[half], scale).power_of_two(),
                    };
                    totals[half] = totals[half].plus(pair[half]);
                }
                V::narrow_pair(pair, weights.add(block * BLOCK + at));
            }
        }
        for at in (seen..columns).step_by(V::LANES) {
            V::splat(0.0).narrow(weights.add(at));
        }
        // Before the first key the sum and what was weighed are 0.
        if before < larger && before > f32::NEG_INFINITY {
            let factor = exp(before - larger);
            rows.sums[row] *= factor;
            for block in &mut *rows.result {
                let line = block.0[row * BLOCK..][..BLOCK].as_mut_ptr();
                for at in (0..BLOCK).step_by(V::LANES) {
                    V::load(line.add(at)).times(V::splat(factor)).store(line.add(at));
                }
            }
        }
        rows.sums[row] += totals[0].plus(totals[1]).sum_of_lanes();
    }
}

/// A row in which nothing takes part, unless it is not a number: that shows in the sum.
#[cold]
#[inline(never)]
fn weigh_nothing(rows: &mut Rows<'_>, row: usize, columns: usize) {
    let scores = (0..rows.seen(row)).map(|at| rows.scores[at / BLOCK].0[row * BLOCK + at % BLOCK]);
    rows.sums[row] += scores.filter(|score| score.is_nan()).sum::<f32>();
    rows.weights[row * rows.weights_pitch..][..columns].fill(bf16::ZERO);
}

/// What was weighed, and where it goes.
pub(super) struct Results<'a> {
    /// Lines.
    pub count: usize,
    /// Blocks of 32 columns.
    pub blocks: &'a [Sums],
    /// Numbers of a line.
    pub width: usize,
    /// Sums of the lines' weights.
    pub sums: &'a [f32; BLOCK],
    /// As many lines.
    pub to: Numbers,
    /// From one line to the next.
    pub pitch: usize,
}

on_vectors! {
    /// Writes means: what was weighed by the sums of weights.
    pub(super) fn write_means(results: Results<'_>) = write_each_mean
}

/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn write_each_mean<V: Vector>(results: Results<'_>) {
    let Results { count, blocks, width, sums, to, pitch } = results;
    assert!(count <= BLOCK && blocks.len() * BLOCK >= width);
    let whole = width - width % V::LANES;
    for (row, &sum) in sums[..count].iter().enumerate() {
        // A query that sees no key gives zeros.
        let factor = if sum > 0.0 || sum.is_nan() { 1.0 / sum } else { 0.0 };
        // SAFETY: the caller's promise; lines have that width.
        unsafe {
            for at in (0..whole).step_by(V::LANES) {
                let mean = V::load(blocks[at / BLOCK].0.as_ptr().add(row * BLOCK + at % BLOCK)).times(V::splat(factor));
                to.store(row * pitch + at, mean);
            }
            for at in whole..width {
                to.set(row * pitch + at, *blocks[at / BLOCK].0.as_ptr().add(row * BLOCK + at % BLOCK) * factor);
            }
        }
    }
}
