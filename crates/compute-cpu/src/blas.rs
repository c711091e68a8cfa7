//! Products of f32 by a library of the system that has the functions of CBLAS.
//!
//! On macOS that is Accelerate, the one way to Apple's matrix coprocessors (AMX, and the SME units of newer chips)
//! that Apple supports. Other systems have none: there the tests bind the same functions to OpenBLAS.
//!
//! CBLAS takes matrices as they lie, rows or columns adjacent, and packs for itself. So a product goes there as a
//! whole, and what follows it (bias, epilogue) works on the result where it lies.

use crate::rates::{self, Work};
use halimede_platform::library::Library;
use std::cell::Cell;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::fmt;
use std::mem::transmute;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// A library to ask.
struct Source {
    /// The name in listings.
    name: &'static str,
    path: &'static CStr,
    /// What is appended to the names of functions, the newest first.
    suffixes: &'static [&'static str],
}

pub(crate) const ACCELERATE_PATH: &CStr = c"/System/Library/Frameworks/Accelerate.framework/Accelerate";

/// Accelerate has two editions of CBLAS, both with sizes of 32 bits: that of macOS 13.3 and later has a suffix.
const ACCELERATE: Source = Source { name: "accelerate", path: ACCELERATE_PATH, suffixes: &["$NEWLAPACK", ""] };

/// What the tests bind where there is no Accelerate.
const OPENBLAS: Source = Source { name: "openblas", path: c"libopenblas.so.0", suffixes: &[""] };

/// The library of this system.
const SOURCE: Option<Source> = match (cfg!(target_os = "macos"), cfg!(test)) {
    (true, _) => Some(ACCELERATE),
    (false, true) => Some(OPENBLAS),
    (false, false) => None,
};

/// `CBLAS_ORDER` and `CBLAS_TRANSPOSE`.
const ROW_MAJOR: c_int = 101;
const PLAIN: c_int = 111;
const TRANSPOSED: c_int = 112;

/// `C (m x n) = alpha · A · B + beta · C`: order, both transpositions, m, n, k, alpha, A, its leading size, B, its
/// leading size, beta, C, its leading size.
type Sgemm = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    f32,
    *const f32,
    c_int,
    *const f32,
    c_int,
    f32,
    *mut f32,
    c_int,
);
/// `y = alpha · A · x + beta · y`: order, transposition, rows and columns as A lies, alpha, A, its leading size, x,
/// the distance of its elements, beta, y, the distance of its elements.
type Sgemv =
    unsafe extern "C" fn(c_int, c_int, c_int, c_int, f32, *const f32, c_int, *const f32, c_int, f32, *mut f32, c_int);
/// Apple's `BLASSetThreading` of macOS 15 and later: how the calling thread's products run.
type SetThreading = unsafe extern "C" fn(c_uint) -> c_int;
/// OpenBLAS's `openblas_set_num_threads`: how many threads run a product of this process.
type SetThreads = unsafe extern "C" fn(c_int);

/// `BLAS_THREADING_SINGLE_THREADED`.
const ONE_THREAD: c_uint = 1;

struct Functions {
    name: &'static str,
    sgemm: Sgemm,
    sgemv: Sgemv,
    set_threading: Option<SetThreading>,
}

/// A library of this system that multiplies matrices of f32. Having one proves that it is loaded.
#[derive(Clone, Copy)]
pub struct Blas(&'static Functions);

impl fmt::Debug for Blas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Blas").field(&self.0.name).finish()
    }
}

/// Sizes of a product, `m x n` sums of `k` terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

/// How an operand lies, in the terms of CBLAS: by rows, or transposed by columns, `leading` elements apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lying {
    transposed: bool,
    leading: usize,
}

impl Lying {
    /// The form of a matrix whose element (r, c) lies at `r·row + c·column`; `None` where neither its rows nor its
    /// columns have their elements side by side, one line after the other.
    pub fn new((rows, columns): (usize, usize), (row, column): (usize, usize)) -> Option<Lying> {
        let lines = |lines: usize, len: usize, (apart, step): (usize, usize)| {
            // A single line, or lines of at most one element, lie as one likes to say.
            let adjacent = step == 1 || len <= 1;
            let leading = if lines <= 1 || len == 0 { len.max(1) } else { apart };
            (adjacent && leading >= len.max(1)).then_some(leading)
        };
        let by_rows = lines(rows, columns, (row, column)).map(|leading| Lying { transposed: false, leading });
        by_rows.or_else(|| lines(columns, rows, (column, row)).map(|leading| Lying { transposed: true, leading }))
    }

    /// Rows one after the other, their elements side by side, `leading` from one row to the next.
    pub const fn rows(leading: usize) -> Lying {
        Lying { transposed: false, leading }
    }

    /// The same for columns.
    pub const fn columns(leading: usize) -> Lying {
        Lying { transposed: true, leading }
    }

    fn operation(self) -> c_int {
        if self.transposed { TRANSPOSED } else { PLAIN }
    }
}

impl Blas {
    /// The library of this system, where it has one.
    pub fn available() -> Option<Blas> {
        static LOADED: OnceLock<Option<Functions>> = OnceLock::new();
        LOADED.get_or_init(|| Functions::load(SOURCE?)).as_ref().map(Blas)
    }

    /// The same, where it was measured to be faster than the unit's own kernels: some milliseconds.
    pub fn fastest() -> Option<Blas> {
        let blas = Blas::available()?;
        let rates = rates::in_turns([blas.work(), rates::f32_work()]);
        (rates[0] > rates[1]).then_some(blas)
    }

    /// The name in listings.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Multiplications and additions a second of one thread that calls the library, operands in the second-level
    /// cache, as measured now.
    pub fn peak(self) -> f64 {
        self.work().rate()
    }

    /// What [`Blas::peak`] measures.
    pub(crate) fn work(self) -> Work<'static> {
        const SIZE: usize = 256;
        let (a, b) = (vec![0f32; SIZE * SIZE], vec![0f32; SIZE * SIZE]);
        let mut c = vec![0f32; SIZE * SIZE];
        let (sizes, lying) = (Sizes { m: SIZE, n: SIZE, k: SIZE }, Lying::rows(SIZE));
        Work::new(2 * SIZE * SIZE * SIZE, move || {
            // SAFETY: three matrices of that size.
            unsafe { self.multiply(sizes, (a.as_ptr(), lying), (b.as_ptr(), lying), (c.as_mut_ptr(), SIZE)) };
        })
    }

    /// Whether sizes and distances are such as the library takes.
    pub(crate) fn takes(sizes: Sizes, left: Lying, right: Lying, out_row: usize) -> bool {
        [sizes.m, sizes.n, sizes.k, left.leading, right.leading, out_row]
            .iter()
            .all(|&size| c_int::try_from(size).is_ok())
    }

    /// `C = A · B`, on this thread where the library can be told so. Rows of C lie `row` elements apart.
    ///
    /// # Safety
    /// A is valid for `m x k`, B for `k x n` and C for `m x n` elements, [`Blas::takes`] those sizes, and nobody else
    /// uses C meanwhile. What C held is never read.
    pub(crate) unsafe fn multiply(
        self,
        Sizes { m, n, k }: Sizes,
        (a, left): (*const f32, Lying),
        (b, right): (*const f32, Lying),
        (c, row): (*mut f32, usize),
    ) {
        debug_assert!(Blas::takes(Sizes { m, n, k }, left, right, row));
        if k == 0 {
            // Editions of CBLAS disagree about what is left to do here.
            for r in 0..m {
                // SAFETY: a row of C.
                unsafe { std::slice::from_raw_parts_mut(c.add(r * row), n) }.fill(0.0);
            }
            return;
        }
        if m == 0 || n == 0 {
            return;
        }
        self.stay_on_this_thread();
        let Functions { sgemm, sgemv, .. } = self.0;
        let int = |size: usize| size as c_int;
        // A matrix as it lies: its rows and columns, and what makes it `rows x columns` or the transposed of that.
        let lies = |(rows, columns): (usize, usize), lying: Lying| {
            if lying.transposed { (int(columns), int(rows)) } else { (int(rows), int(columns)) }
        };
        // SAFETY: the caller's promise: sizes and distances are those of the operands, and fit.
        unsafe {
            if m == 1 {
                // yᵀ = x · B is y = Bᵀ · xᵀ.
                let step = if left.transposed { left.leading } else { 1 };
                let (rows, columns) = lies((k, n), right);
                let operation = if right.transposed { PLAIN } else { TRANSPOSED };
                sgemv(ROW_MAJOR, operation, rows, columns, 1.0, b, int(right.leading), a, int(step), 0.0, c, 1);
            } else if n == 1 {
                let step = if right.transposed { 1 } else { right.leading };
                let (rows, columns) = lies((m, k), left);
                let (operation, leading) = (left.operation(), int(left.leading));
                sgemv(ROW_MAJOR, operation, rows, columns, 1.0, a, leading, b, int(step), 0.0, c, int(row));
            } else {
                let operations = (left.operation(), right.operation());
                let (lda, ldb, ldc) = (int(left.leading), int(right.leading), int(row));
                let (m, n, k) = (int(m), int(n), int(k));
                sgemm(ROW_MAJOR, operations.0, operations.1, m, n, k, 1.0, a, lda, b, ldb, 0.0, c, ldc);
            }
        }
    }

    /// Threads are the pool's: the library shall start none of its own.
    fn stay_on_this_thread(self) {
        thread_local!(static TOLD: Cell<bool> = const { Cell::new(false) });
        if let Some(set_threading) = self.0.set_threading
            && !TOLD.replace(true)
        {
            // SAFETY: a constant that the function knows; a refusal costs time, not results.
            unsafe { set_threading(ONE_THREAD) };
        }
    }
}

impl Functions {
    fn load(source: Source) -> Option<Functions> {
        // SAFETY: a library of the system, made to be loaded by programs.
        let library = unsafe { Library::open(source.path) }.ok()?;
        let function = |name: &str, suffix: &str| {
            let name = std::ffi::CString::new(format!("{name}{suffix}")).ok()?;
            library.symbol(&name)
        };
        let find = |suffix: &&str| Some((function("cblas_sgemm", suffix)?, function("cblas_sgemv", suffix)?));
        let (sgemm, sgemv) = source.suffixes.iter().find_map(find)?;
        if let Some(set_threads) = function("openblas_set_num_threads", "") {
            // SAFETY: OpenBLAS declares it so.
            unsafe { transmute::<NonNull<c_void>, SetThreads>(set_threads)(1) };
        }
        // SAFETY: every edition of CBLAS with sizes of 32 bits declares these functions so, and Apple the third.
        unsafe {
            Some(Functions {
                name: source.name,
                sgemm: transmute::<NonNull<c_void>, Sgemm>(sgemm),
                sgemv: transmute::<NonNull<c_void>, Sgemv>(sgemv),
                set_threading: function("BLASSetThreading", "")
                    .map(|function| transmute::<NonNull<c_void>, SetThreading>(function)),
            })
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The library, where this machine has one. Machines that must have it say so in the environment.
    pub(crate) fn expected() -> Option<Blas> {
        let blas = Blas::available();
        match blas {
            Some(blas) => println!("CBLAS here: {}", blas.name()),
            None if std::env::var_os("HALIMEDE_EXPECT_CBLAS").is_some() => {
                panic!("no CBLAS here, where one is expected")
            }
            None => println!("skipped: no CBLAS here (Debian: libopenblas0-pthread)"),
        }
        blas
    }

    /// Small integers, so that every order of summation gives the same sum.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7 + seed * 13) % 11) as f32 - 5.0).collect()
    }

    #[test]
    fn products_agree_with_the_definition() {
        let Some(blas) = expected() else { return };
        const BEYOND: usize = 3;
        let sizes =
            [(1, 1, 1), (1, 33, 300), (70, 1, 129), (5, 7, 3), (13, 65, 257), (31, 100, 64), (6, 9, 0), (0, 4, 5)];
        for (m, n, k) in sizes {
            for case in 0..8 {
                let (transposed, apart) = ((case & 1 != 0, case & 2 != 0), case & 4 != 0);
                let beyond = if apart { BEYOND } else { 0 };
                // Distances of rows and columns of an operand that lies so.
                let strides = |rows: usize, columns: usize, transposed: bool| match transposed {
                    false => (columns + beyond, 1),
                    true => (1, rows + beyond),
                };
                let (a_strides, b_strides) = (strides(m, k, transposed.0), strides(k, n, transposed.1));
                let (a, b) = (numbers((m + beyond) * (k + beyond), 1), numbers((k + beyond) * (n + beyond), 2));
                let (left, right) = (Lying::new((m, k), a_strides).unwrap(), Lying::new((k, n), b_strides).unwrap());
                let row = n + beyond;
                // What was there before must neither be read nor, between the rows, be written.
                let mut c = vec![f32::NAN; m * row];
                let sizes = Sizes { m, n, k };
                assert!(Blas::takes(sizes, left, right, row));
                // SAFETY: the operands have those sizes.
                unsafe { blas.multiply(sizes, (a.as_ptr(), left), (b.as_ptr(), right), (c.as_mut_ptr(), row)) };
                for (index, &got) in c.iter().enumerate() {
                    let (i, j) = (index / row, index % row);
                    if j >= n {
                        assert!(got.is_nan(), "{m}x{n}x{k} wrote beyond row {i}");
                        continue;
                    }
                    let at = |(row, column): (usize, usize), r: usize, c: usize| r * row + c * column;
                    let want: f32 = (0..k).map(|p| a[at(a_strides, i, p)] * b[at(b_strides, p, j)]).sum();
                    assert_eq!(got, want, "{m}x{n}x{k} at ({i}, {j}), transposed {transposed:?}, apart {apart}");
                }
            }
        }
    }

    #[test]
    fn forms_of_matrices() {
        assert_eq!(Lying::new((3, 4), (4, 1)), Some(Lying::rows(4)));
        assert_eq!(Lying::new((3, 4), (1, 3)), Some(Lying::columns(3)));
        // Every second element; rows within each other.
        assert_eq!(Lying::new((3, 4), (8, 2)), None);
        assert_eq!(Lying::new((3, 4), (2, 1)), None);
        // A row or a column alone.
        assert_eq!(Lying::new((1, 4), (1, 1)), Some(Lying::rows(4)));
        assert_eq!(Lying::new((1, 4), (1, 5)), Some(Lying::columns(5)));
        assert_eq!(Lying::new((3, 1), (7, 1)), Some(Lying::rows(7)));
        let large = Sizes { m: 1, n: 1 << 31, k: 1 };
        assert!(!Blas::takes(large, Lying::rows(1), Lying::rows(1), 1));
    }

    #[test]
    fn the_peak_is_measured() {
        let Some(blas) = expected() else { return };
        let (peak, own) = (blas.peak() / 1e9, rates::f32_operations() / 1e9);
        println!("{}: {peak:.0} GFLOP/s, own kernels {own:.0}, chosen: {}", blas.name(), Blas::fastest().is_some());
        assert!(peak > 0.0);
    }
}
