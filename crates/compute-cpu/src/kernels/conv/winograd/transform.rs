//! The transforms of F(m x m, 3 x 3), on registers of neighbouring channels.
//!
//! A row of `m` outputs is a product of polynomials; their values at `m + 1` points and at infinity
//! determine it (Toom-Cook). The points are 0 and pairs ±p, infinity last. With `x` the polynomial's
//! variable, `d` a row of the input and `g` a row of the weights:
//!
//! ```text
//! input    u(q)  = Π over other points r of (x - r), its coefficients times d     u(∞): over all points
//! weights  w(q)  = g(q) / Π over other points r of (q - r)                        w(∞) = g[2]
//! output   y[i]  = Σ over points q of q^i · u(q)·w(q)       + u(∞)·w(∞) for the last i
//! ```
//!
//! That is the transpose of Toom-Cook's algorithm, as Winograd's convolutions use it: Lavin, Gray, "Fast
//! Algorithms for Convolutional Neural Networks", CVPR 2016. A pair's polynomials have the same even
//! part and opposite odd parts, so each is worked out once.
//!
//! The points decide the error: Barabasz, Anderson, Soodhalter, Gregg, "Error Analysis and Improving the
//! Accuracy of Winograd Convolution for Deep Neural Networks", ACM TOMS 46(4), 2020. Those here were the
//! best of a search among numbers whose coefficients f32 holds exactly; `docs/benchmarks/winograd.md` has
//! their errors beside those of the usual ±1, ±2.

use super::{Form, Grid};
use crate::Isa;
use crate::kernels::conv::window::Window;
use crate::real::{Numbers, Real};
use crate::vector::{Four, MOST_LANES, Vector};
use halimede_tensor::DType;
use std::ops::Range;

/// Points of an axis at most.
pub(super) const MOST: usize = 8;

/// The p of the pairs ±p, by their number.
const PAIRS: [&[f64]; 4] = [&[], &[1.0], &[0.625, 1.5], &[0.46875, 1.0, 2.0]];

/// Coefficients of the polynomials of `N` pairs, by powers of x² and without the leading 1.
struct Polynomials<const N: usize>;

impl<const N: usize> Polynomials<N> {
    /// Π (x² - p²) over all pairs.
    const ALL: [f32; MOST] = product(PAIRS[N], N);
    /// The same over all pairs but one, for each.
    const OTHERS: [[f32; MOST]; N] = {
        let mut others = [[0.0; MOST]; N];
        let mut pair = 0;
        while pair < N {
            others[pair] = product(PAIRS[N], pair);
            pair += 1;
        }
        others
    };
    /// `p^power` of each pair.
    const POWERS: [[f32; MOST]; N] = {
        let mut powers = [[1.0; MOST]; N];
        let mut pair = 0;
        while pair < N {
            let (mut power, mut value) = (1, 1.0);
            while power < MOST {
                value *= PAIRS[N][pair];
                powers[pair][power] = value as f32;
                power += 1;
            }
            pair += 1;
        }
        powers
    };
}

/// Π (z - p²) over the pairs without number `but`, by powers of z.
const fn product(pairs: &[f64], but: usize) -> [f32; MOST] {
    let mut terms = [0.0; MOST];
    terms[0] = 1.0;
    let mut index = 0;
    while index < pairs.len() {
        if index != but {
            let square = pairs[index] * pairs[index];
            let mut power = MOST - 1;
            while power > 0 {
                terms[power] = terms[power - 1] - square * terms[power];
                power -= 1;
            }
            terms[0] *= -square;
        }
        index += 1;
    }
    let mut rounded = [0.0; MOST];
    let mut power = 0;
    while power < MOST {
        rounded[power] = terms[power] as f32;
        power += 1;
    }
    rounded
}

/// The factors of `w(q) = g·factors`, for each of the points of `pairs` pairs.
pub(super) fn weight_factors(pairs: usize) -> Vec<[f64; 3]> {
    let pairs = PAIRS[pairs];
    let points = || std::iter::once(0.0).chain(pairs.iter().flat_map(|&p| [p, -p]));
    let finite = points().enumerate().map(|(index, q)| {
        let others = points().enumerate().filter(|&(other, _)| other != index);
        let divisor: f64 = others.map(|(_, r)| q - r).product();
        [1.0 / divisor, q / divisor, q * q / divisor]
    });
    finite.chain(std::iter::once([0.0, 0.0, 1.0])).collect()
}

/// What makes a row of weights of its transform, which [`weight_factors`] makes of it: `(GᵀG)⁻¹Gᵀ`.
pub(super) fn weight_inverse(pairs: usize) -> [Vec<f64>; 3] {
    let factors = weight_factors(pairs);
    let product = |a: usize, b: usize| factors.iter().map(|row| row[a] * row[b]).sum::<f64>();
    let square: [[f64; 3]; 3] = std::array::from_fn(|a| std::array::from_fn(|b| product(a, b)));
    // Of a matrix that is its own transpose, its adjugate over its determinant.
    let minor = |a: usize, b: usize| {
        let (rows, columns) = ([(a + 1) % 3, (a + 2) % 3], [(b + 1) % 3, (b + 2) % 3]);
        square[rows[0]][columns[0]] * square[rows[1]][columns[1]]
            - square[rows[0]][columns[1]] * square[rows[1]][columns[0]]
    };
    let determinant: f64 = (0..3).map(|b| square[0][b] * minor(0, b)).sum();
    [0, 1, 2].map(|a| {
        let of_row = |row: &[f64; 3]| (0..3).map(|b| minor(a, b) / determinant * row[b]).sum();
        factors.iter().map(of_row).collect()
    })
}

/// `u` of `A = 2N + 2` elements of a row.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn forward<V: Vector, const N: usize, const A: usize>(d: &[V; A]) -> [V; A] {
    let mut u = *d;
    // SAFETY: the caller's promise.
    unsafe {
        (u[0], u[A - 1]) = (d[2 * N], d[2 * N + 1]);
        for power in 0..N {
            let factor = V::splat(Polynomials::<N>::ALL[power]);
            u[0] = u[0].plus_product(d[2 * power], factor);
            u[A - 1] = u[A - 1].plus_product(d[2 * power + 1], factor);
        }
        for pair in 0..N {
            let (mut even, mut odd) = (d[2 * N], d[2 * N - 1]);
            for power in 0..N - 1 {
                let factor = V::splat(Polynomials::<N>::OTHERS[pair][power]);
                even = even.plus_product(d[2 * power + 2], factor);
                odd = odd.plus_product(d[2 * power + 1], factor);
            }
            let p = V::splat(Polynomials::<N>::POWERS[pair][1]);
            u[1 + 2 * pair] = even.plus_product(odd, p);
            u[2 + 2 * pair] = even.minus_product(odd, p);
        }
    }
    u
}

/// `y` of `A` products; the first `2N` are outputs.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn backward<V: Vector, const N: usize, const A: usize>(products: &[V; A]) -> [V; A] {
    let mut y = *products;
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [products[0]; N];
        let mut differences = [products[0]; N];
        for pair in 0..N {
            let (plus, minus) = (products[1 + 2 * pair], products[2 + 2 * pair]);
            (sums[pair], differences[pair]) = (plus.plus(minus), plus.minus(minus));
        }
        for power in 0..2 * N {
            let terms = if power % 2 == 0 { &sums } else { &differences };
            let mut sum = match power {
                0 => products[0],
                _ if power == 2 * N - 1 => products[A - 1],
                _ => V::splat(0.0),
            };
            for pair in 0..N {
                sum = sum.plus_product(terms[pair], V::splat(Polynomials::<N>::POWERS[pair][power]));
            }
            y[power] = sum;
        }
    }
    y
}

/// Elements that a tile sees at one place of the image.
#[derive(Clone, Copy)]
struct Pixel<T> {
    start: *const T,
    /// 0 in the border, where every channel is that of [`BORDER`]; all ones elsewhere.
    mask: usize,
}

/// Zeros of every type of numbers.
static BORDER: [f32; 2 * MOST_LANES] = [0.0; 2 * MOST_LANES];

/// Tiles of the input to transform, into numbers of another type.
pub(super) struct Input<'a, T, N> {
    pub window: &'a Window,
    pub grid: &'a Grid,
    /// The whole input.
    pub x: &'a [T],
    pub tiles: Range<usize>,
    /// Where element (point, tile, channel) goes: `point·plane + tile·pitch + channel` from here on, with
    /// tiles from the first one on.
    pub to: *mut N,
    pub plane: usize,
    pub pitch: usize,
    /// Channels that are written of each tile, whole registers: zeros beyond the last one.
    pub depth: usize,
}

impl<T: Real, N> Input<'_, T, N> {
    /// The `A x A` pixels of a tile.
    #[inline(always)]
    fn pixels<const A: usize>(&self, tile: usize) -> [[Pixel<T>; A]; A] {
        let (window, [_, height, width]) = (self.window, self.window.x);
        let place = self.grid.place(tile);
        let (first, left) = (place.row as isize - window.before[1], place.column as isize - window.before[2]);
        let border = Pixel { start: BORDER.as_ptr().cast(), mask: 0 };
        let mut pixels = [[border; A]; A];
        for (y, pixels) in (first..).zip(&mut pixels) {
            let Some(y) = usize::try_from(y).ok().filter(|&y| y < height) else { continue };
            let line = (place.image * height + y) * width * window.inputs;
            let line = &self.x[line..line + width * window.inputs];
            for (x, pixel) in (left..).zip(pixels) {
                let Some(x) = usize::try_from(x).ok().filter(|&x| x < width) else { continue };
                *pixel = Pixel { start: line.as_ptr().wrapping_add(x * window.inputs), mask: usize::MAX };
            }
        }
        pixels
    }
}

/// # Safety
/// As [`Vector`]; the places in `job` are valid.
#[inline(always)]
unsafe fn input<V: Vector, T: Real, R: Real, const N: usize, const A: usize>(job: &Input<'_, T, R>) {
    let channels = job.window.inputs;
    for (index, tile) in job.tiles.clone().enumerate() {
        let pixels = job.pixels::<A>(tile);
        let mut channel = 0;
        while channel < job.depth {
            // SAFETY: the caller's promise; a tile's pitch is a multiple of every register.
            unsafe {
                let to = job.to.add(index * job.pitch + channel);
                if R::DTYPE == DType::Bf16 && channel + 2 * V::LANES <= channels {
                    input_pair::<V, T, R, N, A>(&pixels, channel, to, job.plane);
                    channel += V::LANES;
                } else if channel + V::LANES <= channels {
                    input_block::<V, T, R, N, A, true>(&pixels, channel, V::LANES, to, job.plane);
                } else {
                    let lanes = channels.saturating_sub(channel);
                    input_block::<V, T, R, N, A, false>(&pixels, channel, lanes, to, job.plane);
                }
            }
            channel += V::LANES;
        }
    }
}

/// One register of channels of one tile: columns, then rows. Where it is not `WHOLE`, only the first
/// `lanes` are there.
///
/// # Safety
/// As [`input`].
#[inline(always)]
unsafe fn input_block<V: Vector, T: Real, R: Real, const N: usize, const A: usize, const WHOLE: bool>(
    pixels: &[[Pixel<T>; A]; A],
    channel: usize,
    lanes: usize,
    to: *mut R,
    plane: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut half = [[V::splat(0.0); A]; A];
        let mut rest = [T::nearest(0.0); MOST_LANES];
        for column in 0..A {
            let mut d = [V::splat(0.0); A];
            for row in 0..A {
                let pixel = pixels[row][column];
                let from = pixel.start.wrapping_add(channel & pixel.mask);
                if WHOLE {
                    d[row] = T::load::<V>(from);
                } else {
                    std::ptr::copy_nonoverlapping(from, rest.as_mut_ptr(), lanes);
                    d[row] = T::load::<V>(rest.as_ptr());
                }
            }
            let u = forward::<V, N, A>(&d);
            for row in 0..A {
                half[row][column] = u[row];
            }
        }
        for row in 0..A {
            let u = forward::<V, N, A>(&half[row]);
            for column in 0..A {
                R::store::<V>(u[column], to.add((row * A + column) * plane));
            }
        }
    }
}

/// Two registers of channels, which become whole lines of bf16.
///
/// # Safety
/// As [`input`].
#[inline(always)]
unsafe fn input_pair<V: Vector, T: Real, R: Real, const N: usize, const A: usize>(
    pixels: &[[Pixel<T>; A]; A],
    channel: usize,
    to: *mut R,
    plane: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut halves = [[[V::splat(0.0); A]; A]; 2];
        for column in 0..A {
            let mut d = [[V::splat(0.0); A]; 2];
            for row in 0..A {
                let pixel = pixels[row][column];
                [d[0][row], d[1][row]] = T::load_pair::<V>(pixel.start.wrapping_add(channel & pixel.mask));
            }
            for register in 0..2 {
                let u = forward::<V, N, A>(&d[register]);
                for row in 0..A {
                    halves[register][row][column] = u[row];
                }
            }
        }
        for row in 0..A {
            let (first, second) = (forward::<V, N, A>(&halves[0][row]), forward::<V, N, A>(&halves[1][row]));
            for column in 0..A {
                let to = Numbers::Bf16(to.add((row * A + column) * plane).cast());
                T::store_joined::<V>([first[column], second[column]], to, 0);
            }
        }
    }
}

/// Products of neighbouring tiles of a row, to be transformed.
pub(super) struct Output {
    /// Where element (point, tile, channel) is: `point·plane + tile·pitch + channel` from here on.
    pub from: *const f32,
    pub plane: usize,
    pub pitch: usize,
    /// Channels of a panel.
    pub nr: usize,
    pub tiles: usize,
    /// Where element (row, column, channel) goes: `(row·tiles·m + column)·nr + channel` from here on.
    pub to: *mut f32,
}

/// Whether all outputs are so small that their squares have a sum. It finds what is not finite, and what is as large as
/// [`super::LARGE`], for one multiplication more of each.
///
/// # Safety
/// As [`Vector`]; the places in `job` are valid.
#[inline(always)]
unsafe fn output<V: Vector, const N: usize, const A: usize>(job: &Output) -> bool {
    let (m, nr) = (2 * N, job.nr);
    // SAFETY: the caller's promise.
    let mut squares = unsafe { V::splat(0.0) };
    for tile in 0..job.tiles {
        for channel in (0..nr).step_by(V::LANES) {
            // SAFETY: the caller's promise; a panel is a multiple of every register.
            unsafe {
                let from = job.from.add(tile * job.pitch + channel);
                let mut half = [[V::splat(0.0); A]; A];
                for column in 0..A {
                    let mut products = [V::splat(0.0); A];
                    for row in 0..A {
                        products[row] = V::load(from.add((row * A + column) * job.plane));
                    }
                    let y = backward::<V, N, A>(&products);
                    for row in 0..m {
                        half[row][column] = y[row];
                    }
                }
                for row in 0..m {
                    let y = backward::<V, N, A>(&half[row]);
                    let to = job.to.add((row * job.tiles + tile) * m * nr + channel);
                    // Not one after the other of the whole tile: each would wait for the one before.
                    let mut of_row = y[0].times(y[0]);
                    for column in 0..m {
                        y[column].store(to.add(column * nr));
                        if column > 0 {
                            of_row = of_row.plus_product(y[column], y[column]);
                        }
                    }
                    squares = squares.plus(of_row);
                }
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { squares.sum_of_lanes() }.is_finite()
}

/// Both transforms of a form, of data `T` that become numbers `R` to multiply. Having them proves that the machine has their
/// instructions.
pub(super) struct Transforms<T, R> {
    input: unsafe fn(&Input<'_, T, R>),
    output: unsafe fn(&Output) -> bool,
}

impl<T: Real, R: Real> Transforms<T, R> {
    pub fn new(isa: Isa, form: Form) -> Transforms<T, R> {
        match form {
            Form::F2 | Form::F2OfBf16 => Transforms::of::<1, 4>(isa),
            Form::F4 => Transforms::of::<2, 6>(isa),
            Form::F6 => Transforms::of::<3, 8>(isa),
        }
    }

    fn of<const N: usize, const A: usize>(isa: Isa) -> Transforms<T, R> {
        const { assert!(A == 2 * N + 2 && A <= MOST) };
        #[cfg(target_arch = "x86_64")]
        {
            // Numbers below the normal ones are 0 to what multiplies bf16.
            if isa.has_avx512_bf16() && R::DTYPE == DType::Bf16 {
                return Transforms { input: x86::input_avx512_bf16::<T, R, N, A>, output: x86::output_avx512::<N, A> };
            }
            if isa.has_avx512() {
                return Transforms { input: x86::input_avx512::<T, R, N, A>, output: x86::output_avx512::<N, A> };
            }
            if isa.has_avx2() {
                return Transforms { input: x86::input_avx2::<T, R, N, A>, output: x86::output_avx2::<N, A> };
            }
        }
        let _ = isa;
        Transforms { input: input::<Four, T, R, N, A>, output: output::<Four, N, A> }
    }

    /// # Safety
    /// The places in `job` are valid, those written nobody else's.
    pub unsafe fn input(&self, job: &Input<'_, T, R>) {
        // SAFETY: the caller's promise; `new` chose instructions that the machine has.
        unsafe { (self.input)(job) }
    }

    /// Whether all outputs are well below [`super::LARGE`].
    ///
    /// # Safety
    /// The places in `job` are valid, those written nobody else's.
    pub unsafe fn output(&self, job: &Output) -> bool {
        // SAFETY: as above.
        unsafe { (self.output)(job) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Input, Output, input, output};
    use crate::real::Real;
    use crate::vector::{Avx2, Avx512, Avx512Bf16};

    /// # Safety
    /// As [`input`], on a machine with AVX-512 BF16 and what belongs to it.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    pub(super) unsafe fn input_avx512_bf16<T: Real, R: Real, const N: usize, const A: usize>(job: &Input<'_, T, R>) {
        // SAFETY: the caller's promise, here and below.
        unsafe { input::<Avx512Bf16, T, R, N, A>(job) }
    }

    /// # Safety
    /// As [`input`], on a machine with AVX-512 F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn input_avx512<T: Real, R: Real, const N: usize, const A: usize>(job: &Input<'_, T, R>) {
        // SAFETY: as above.
        unsafe { input::<Avx512, T, R, N, A>(job) }
    }

    /// # Safety
    /// As [`output`], on a machine with AVX-512 F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn output_avx512<const N: usize, const A: usize>(job: &Output) -> bool {
        // SAFETY: as above.
        unsafe { output::<Avx512, N, A>(job) }
    }

    /// # Safety
    /// As [`input`], on a machine with AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn input_avx2<T: Real, R: Real, const N: usize, const A: usize>(job: &Input<'_, T, R>) {
        // SAFETY: as above.
        unsafe { input::<Avx2, T, R, N, A>(job) }
    }

    /// # Safety
    /// As [`output`], on a machine with AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn output_avx2<const N: usize, const A: usize>(job: &Output) -> bool {
        // SAFETY: as above.
        unsafe { output::<Avx2, N, A>(job) }
    }
}
