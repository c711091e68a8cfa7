//! Softmax of a block of scores, as weights of values.

use crate::map::exp;
use crate::matrix::{BLOCK, Sums};
use crate::real::Numbers;
use crate::vector::{Vector, on_vectors};
use half::bf16;
use std::f32::consts::LOG2_E;

/// Scores up to which powers are taken as they are: with those of many thousand keys, times values up to 1e18, they stay far
/// inside of the normal numbers of f32.
const SMALL: f32 = 32.0;

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
    /// No scaled score is farther away from 0, in all of a row's columns; infinite where that is not known.
    pub bound: f32,
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
    let is_biased = matches!(rows.mask, RowMasks::Bias(..));
    if rows.bound <= SMALL && !is_biased {
        for row in 0..rows.count {
            // SAFETY: the caller's promise; a row has as many scores and weights.
            unsafe { weigh_small::<V>(&mut rows, row, columns) };
        }
        return;
    }
    let before = *rows.maxima;
    // All maxima first: a row whose maximum is still on its way would hold up the next ones.
    for row in 0..rows.count {
        // SAFETY: the caller's promise.
        let most = unsafe {
            match rows.mask {
                RowMasks::None => most::<V, _>(&mut rows, row, Unchanged) * rows.scale,
                RowMasks::Bias(bias, pitch) => {
                    let biased = Biased { scale: rows.scale, bias: &bias[row * pitch..][..rows.seen(row)] };
                    most::<V, _>(&mut rows, row, biased)
                }
                RowMasks::Shown(shown, pitch) => {
                    let hidden = Hidden(&shown[row * pitch..][..rows.seen(row)]);
                    most::<V, _>(&mut rows, row, hidden) * rows.scale
                }
            }
        };
        rows.maxima[row] = rows.maxima[row].max(most);
    }
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

/// What is done to a score before it is looked at.
trait Change: Copy {
    /// Whether there is anything to be done.
    const CHANGES: bool;

    /// The scores from one on.
    ///
    /// # Safety
    /// As [`Vector`]; there is something for all of them.
    unsafe fn lanes<V: Vector>(self, scores: V, at: usize) -> V;

    /// The score of this number.
    fn one(self, score: f32, at: usize) -> f32;
}

/// Nothing.
#[derive(Clone, Copy)]
struct Unchanged;

impl Change for Unchanged {
    const CHANGES: bool = false;

    #[inline(always)]
    unsafe fn lanes<V: Vector>(self, scores: V, _: usize) -> V {
        scores
    }

    #[inline(always)]
    fn one(self, score: f32, _: usize) -> f32 {
        score
    }
}

/// It is scaled, and something is added.
#[derive(Clone, Copy)]
struct Biased<'a> {
    scale: f32,
    bias: &'a [f32],
}

impl Change for Biased<'_> {
    const CHANGES: bool = true;

    #[inline(always)]
    unsafe fn lanes<V: Vector>(self, scores: V, at: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(self.bias.as_ptr().add(at)).plus_product(scores, V::splat(self.scale)) }
    }

    #[inline(always)]
    fn one(self, score: f32, at: usize) -> f32 {
        score.mul_add(self.scale, self.bias[at])
    }
}

/// It is hidden where there is a 0.
#[derive(Clone, Copy)]
struct Hidden<'a>(&'a [u8]);

impl Change for Hidden<'_> {
    const CHANGES: bool = true;

    #[inline(always)]
    unsafe fn lanes<V: Vector>(self, scores: V, at: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { scores.hide(self.0.as_ptr().add(at)) }
    }

    #[inline(always)]
    fn one(self, score: f32, at: usize) -> f32 {
        if self.0[at] == 0 { f32::NEG_INFINITY } else { score }
    }
}

/// Changes the last block of a row, if that is seen in part, and hides what is not seen of it.
#[inline(always)]
fn change_last(rows: &mut Rows<'_>, row: usize, change: impl Change) {
    let seen = rows.seen(row);
    let whole = seen - seen % BLOCK;
    if whole == seen {
        return;
    }
    let (shown, rest) = rows.scores[seen / BLOCK].0[row * BLOCK..][..BLOCK].split_at_mut(seen - whole);
    for (at, score) in shown.iter_mut().enumerate() {
        *score = change.one(*score, whole + at);
    }
    rest.fill(f32::NEG_INFINITY);
}

/// Changes the scores of a row; the largest of them.
///
/// # Safety
/// As [`Vector`]; there is something for all that are seen.
#[inline(always)]
unsafe fn most<V: Vector, C: Change>(rows: &mut Rows<'_>, row: usize, change: C) -> f32 {
    let seen = rows.seen(row);
    change_last(rows, row, change);
    // A NaN may be passed over: it shows in the sum.
    // SAFETY: the caller's promise.
    let mut most = unsafe { [V::splat(f32::NEG_INFINITY), V::splat(f32::NEG_INFINITY)] };
    for block in 0..seen.div_ceil(BLOCK) {
        let line = &mut rows.scores[block].0[row * BLOCK..][..BLOCK];
        let is_whole = seen >= (block + 1) * BLOCK;
        // SAFETY: the caller's promise; registers lie inside of the line.
        unsafe {
            for at in (0..BLOCK).step_by(2 * V::LANES) {
                for half in 0..2 {
                    let at = at + half * V::LANES;
                    let mut scores = V::load(line.as_ptr().add(at));
                    if C::CHANGES && is_whole {
                        scores = change.lanes(scores, block * BLOCK + at);
                        scores.store(line.as_mut_ptr().add(at));
                    }
                    most[half] = scores.at_least(most[half]);
                }
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { most[0].at_least(most[1]).largest_lane() }
}

/// From scores to weights.
trait Power<V>: Copy {
    /// # Safety
    /// As [`Vector`].
    unsafe fn of(self, scores: V) -> V;
}

/// Of scores that are still to be scaled, against the largest or, with nothing added, as they are: powers of 2 take the place of
/// those of e, so that `scale` has a factor more, and so has `least`, which is added.
#[derive(Clone, Copy)]
struct Against<V> {
    scale: V,
    least: V,
}

impl<V: Vector> Power<V> for Against<V> {
    #[inline(always)]
    unsafe fn of(self, scores: V) -> V {
        // SAFETY: the caller's promise.
        unsafe { self.least.plus_product(scores, self.scale).power_of_two() }
    }
}

/// Of scores with a bias, which may be as low as numbers go: only what lies between scores is scaled then.
#[derive(Clone, Copy)]
struct AgainstBiased<V>(V);

impl<V: Vector> Power<V> for AgainstBiased<V> {
    #[inline(always)]
    unsafe fn of(self, scores: V) -> V {
        // SAFETY: the caller's promise.
        unsafe { scores.minus(self.0).exp_near() }
    }
}

/// Writes the weights of a row, and adds them to its sum. What is seen of the last block is changed already.
///
/// # Safety
/// As [`Vector`]; the row has `columns` scores and weights, and there is a change for all that are seen.
#[inline(always)]
unsafe fn write_weights<V: Vector, P: Power<V>, C: Change>(
    rows: &mut Rows<'_>,
    row: usize,
    columns: usize,
    power: P,
    change: C,
) {
    let weights = rows.weights[row * rows.weights_pitch..][..columns].as_mut_ptr();
    let seen = rows.seen(row);
    // SAFETY: the caller's promise; the lines of blocks and of weights are as long.
    unsafe {
        let mut totals = [V::splat(0.0); 2];
        for block in 0..seen.div_ceil(BLOCK) {
            let line = rows.scores[block].0[row * BLOCK..][..BLOCK].as_ptr();
            let is_whole = seen >= (block + 1) * BLOCK;
            for at in (0..BLOCK).step_by(2 * V::LANES) {
                let mut pair = [V::load(line.add(at)), V::load(line.add(at + V::LANES))];
                for half in 0..2 {
                    if C::CHANGES && is_whole {
                        pair[half] = change.lanes(pair[half], block * BLOCK + at + half * V::LANES);
                    }
                    pair[half] = power.of(pair[half]);
                    totals[half] = totals[half].plus(pair[half]);
                }
                V::narrow_pair(pair, weights.add(block * BLOCK + at));
            }
        }
        for at in (seen.next_multiple_of(BLOCK)..columns).step_by(V::LANES) {
            V::splat(0.0).narrow(weights.add(at));
        }
        rows.sums[row] += totals[0].plus(totals[1]).sum_of_lanes();
    }
}

/// Weights of a row none of whose scores is large, so that no maximum has to be taken away from them.
///
/// # Safety
/// As [`Vector`]; the row has `columns` scores and weights.
#[inline(always)]
unsafe fn weigh_small<V: Vector>(rows: &mut Rows<'_>, row: usize, columns: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let power = Against { scale: V::splat(rows.scale * LOG2_E), least: V::splat(0.0) };
        match rows.mask {
            RowMasks::Shown(shown, pitch) => {
                let hidden = Hidden(&shown[row * pitch..][..rows.seen(row)]);
                change_last(rows, row, hidden);
                write_weights::<V, _, _>(rows, row, columns, power, hidden);
            }
            _ => {
                change_last(rows, row, Unchanged);
                write_weights::<V, _, _>(rows, row, columns, power, Unchanged);
            }
        }
    }
}

/// Weights of a row whose maximum is known, and was `before`; scores are still to be scaled, unless they are `BIASED`.
///
/// # Safety
/// As [`Vector`]; the row has `columns` scores and weights.
#[inline(always)]
unsafe fn weigh_row<V: Vector, const BIASED: bool>(rows: &mut Rows<'_>, row: usize, before: f32, columns: usize) {
    let larger = rows.maxima[row];
    // SAFETY: the caller's promise.
    unsafe {
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
        if BIASED {
            write_weights::<V, _, _>(rows, row, columns, AgainstBiased(V::splat(larger)), Unchanged);
        } else {
            let power = Against { scale: V::splat(rows.scale * LOG2_E), least: V::splat(-larger * LOG2_E) };
            write_weights::<V, _, _>(rows, row, columns, power, Unchanged);
        }
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
