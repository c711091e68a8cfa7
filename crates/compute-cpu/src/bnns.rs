//! Products of f16 in whole matrices by Apple's BNNS, which is a part of Accelerate as CBLAS is: the one way to have
//! Apple's matrix coprocessors multiply f16 that Apple supports.
//!
//! What is here is type-checked for macOS, and executed on Linux with a stand-in of the same declaration. The
//! declarations are published (`bnns_structures.h`, `bnns_constants.h` and `bnns.h` of the macOS 13.3 SDK). That BNNS
//! takes f16 with a result of f32, and sums in f32, is not: so it is asked for two small products before it is used,
//! which nothing else answers rightly.

use crate::blas::{ACCELERATE_PATH, Sizes};
use crate::rates::Work;
use half::f16;
use halimede_platform::library::Library;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem::transmute;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// Axes that an array has at most.
const AXES: usize = 8;
/// `BNNSDataLayoutRowMajorMatrix`: the first axis counts the numbers of a row, the second the rows.
const ROW_MAJOR: u32 = 0x20000;
/// `BNNSDataTypeFloat16` and `BNNSDataTypeFloat32`.
const FLOAT_16: u32 = 0x10000 | 16;
const FLOAT_32: u32 = 0x10000 | 32;

/// `BNNSNDArrayDescriptor`.
#[repr(C)]
struct Array {
    flags: u32,
    layout: u32,
    size: [usize; AXES],
    stride: [usize; AXES],
    data: *mut c_void,
    data_type: u32,
    table: *mut c_void,
    table_type: u32,
    scale: f32,
    bias: f32,
}

/// `BNNSFilterParameters`.
#[repr(C)]
struct Parameters {
    flags: u32,
    threads: usize,
    /// Functions to have memory from; null for those of the system.
    alloc: *const c_void,
    free: *const c_void,
}

/// `BNNSMatMul`: whether A and B are transposed, a factor of the result, A, B, the result, memory to work in (null: its
/// own), parameters. 0 where it has multiplied.
type MatMul = unsafe extern "C" fn(
    bool,
    bool,
    f32,
    *const Array,
    *const Array,
    *const Array,
    *mut c_void,
    *const Parameters,
) -> c_int;

impl Array {
    /// Rows that lie so many numbers apart.
    fn matrix(data: *mut c_void, data_type: u32, (rows, columns): (usize, usize), row: usize) -> Array {
        let mut array = Array {
            flags: 0,
            layout: ROW_MAJOR,
            size: [0; AXES],
            stride: [0; AXES],
            data,
            data_type,
            table: std::ptr::null_mut(),
            table_type: 0,
            scale: 1.0,
            bias: 0.0,
        };
        (array.size[0], array.size[1]) = (columns, rows);
        (array.stride[0], array.stride[1]) = (1, row);
        array
    }
}

struct Functions {
    name: &'static str,
    multiply: MatMul,
}

/// What multiplies whole matrices of f16. Having one proves that it is loaded, and that it multiplies rightly.
#[derive(Clone, Copy)]
pub(crate) struct Bnns(&'static Functions);

impl fmt::Debug for Bnns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bnns").field(&self.0.name).finish()
    }
}

impl PartialEq for Bnns {
    fn eq(&self, other: &Bnns) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Bnns {
    /// That of this system, where it has one.
    pub fn available() -> Option<Bnns> {
        static LOADED: OnceLock<Option<Functions>> = OnceLock::new();
        if !cfg!(target_os = "macos") {
            return None;
        }
        LOADED.get_or_init(Functions::load).as_ref().map(Bnns)
    }

    /// The name in listings.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Multiplications and additions of one thread that calls it, as those of CBLAS are measured.
    pub fn work(self) -> Work<'static> {
        const SIZE: usize = 256;
        let (a, b) = (vec![f16::ONE; SIZE * SIZE], vec![f16::ONE; SIZE * SIZE]);
        let (mut c, sizes) = (vec![0f32; SIZE * SIZE], Sizes { m: SIZE, n: SIZE, k: SIZE });
        Work::new(2 * SIZE * SIZE * SIZE, move || {
            // SAFETY: three matrices of that size.
            unsafe { self.multiply(sizes, (a.as_ptr(), SIZE), (b.as_ptr(), SIZE), (c.as_mut_ptr(), SIZE)) };
        })
    }

    /// `C = A · B`, the rows of each so many numbers apart.
    ///
    /// # Safety
    /// A can be read for `m x k`, B for `k x n` numbers, and C be written for `m x n`, which nobody else uses meanwhile.
    pub unsafe fn multiply(self, sizes: Sizes, a: (*const f16, usize), b: (*const f16, usize), c: (*mut f32, usize)) {
        // SAFETY: the caller's promise.
        unsafe {
            if !self.0.try_to_multiply(sizes, a, b, c) {
                by_definition(sizes, a, b, c);
            }
        }
    }
}

impl Functions {
    fn load() -> Option<Functions> {
        // SAFETY: a library of the system, made to be loaded by programs.
        let library = unsafe { Library::open(ACCELERATE_PATH) }.ok()?;
        let multiply = library.symbol(c"BNNSMatMul")?;
        // SAFETY: macOS 12 and later declare it so; earlier systems have none of this name.
        let multiply = unsafe { transmute::<NonNull<c_void>, MatMul>(multiply) };
        Functions { name: "bnns", multiply }.checked()
    }

    /// These, if they multiply rows that lie apart, and give sums that have more bits than f16.
    fn checked(self) -> Option<Functions> {
        const APART: usize = 3;
        [(3, 5, 7), (2, 1, 4097)].into_iter().all(|(m, n, k)| self.agrees(Sizes { m, n, k }, APART)).then_some(self)
    }

    fn agrees(&self, sizes: Sizes, apart: usize) -> bool {
        let Sizes { m, n, k } = sizes;
        let numbers = |count: usize| (0..count).map(|at| f16::from_f32((at % 5) as f32 + 1.0)).collect::<Vec<f16>>();
        let (a, b) = (numbers(m * (k + apart)), numbers(k * (n + apart)));
        let (mut made, mut wanted) = (vec![-1f32; m * (n + apart)], vec![-1f32; m * (n + apart)]);
        let (a, b) = ((a.as_ptr(), k + apart), (b.as_ptr(), n + apart));
        // SAFETY: matrices of those sizes.
        unsafe {
            by_definition(sizes, a, b, (wanted.as_mut_ptr(), n + apart));
            self.try_to_multiply(sizes, a, b, (made.as_mut_ptr(), n + apart)) && made == wanted
        }
    }

    /// Whether it could.
    ///
    /// # Safety
    /// As [`Bnns::multiply`].
    unsafe fn try_to_multiply(
        &self,
        Sizes { m, n, k }: Sizes,
        (a, a_row): (*const f16, usize),
        (b, b_row): (*const f16, usize),
        (c, c_row): (*mut f32, usize),
    ) -> bool {
        if m == 0 || n == 0 || k == 0 {
            return false;
        }
        let a = Array::matrix(a.cast_mut().cast(), FLOAT_16, (m, k), a_row);
        let b = Array::matrix(b.cast_mut().cast(), FLOAT_16, (k, n), b_row);
        let c = Array::matrix(c.cast(), FLOAT_32, (m, n), c_row);
        // Threads are the pool's.
        let parameters = Parameters { flags: 0, threads: 1, alloc: std::ptr::null(), free: std::ptr::null() };
        // SAFETY: the caller's promise: the arrays are what they are said to be, of which the first two are read alone.
        unsafe { (self.multiply)(false, false, 1.0, &a, &b, &c, std::ptr::null_mut(), &parameters) == 0 }
    }
}

/// What [`Bnns::multiply`] is to give, by plain loops.
///
/// # Safety
/// As [`Bnns::multiply`].
unsafe fn by_definition(
    Sizes { m, n, k }: Sizes,
    (a, a_row): (*const f16, usize),
    (b, b_row): (*const f16, usize),
    (c, c_row): (*mut f32, usize),
) {
    for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
        // SAFETY: the caller's promise.
        unsafe {
            let product = |p: usize| a.add(i * a_row + p).read().to_f32() * b.add(p * b_row + j).read().to_f32();
            c.add(i * c_row + j).write((0..k).map(product).sum());
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::mem::offset_of;

    impl Bnns {
        /// What stands in for it where there is none.
        pub(crate) fn double() -> Bnns {
            static DOUBLE: Functions = Functions { name: "stand-in for bnns", multiply: stand_in };
            Bnns(&DOUBLE)
        }
    }

    /// The elements of an array of f16 as rows and columns: their number, and where one lies.
    fn read(array: &Array) -> Option<([usize; 2], impl Fn(usize, usize) -> usize)> {
        let ([columns, rows, ..], [column, row, ..]) = (array.size, array.stride);
        (array.layout == ROW_MAJOR && array.size[2..] == [0; 6])
            .then_some(([rows, columns], move |r, c| r * row + c * column))
    }

    /// Reads descriptors as the published header says, and multiplies f16 to f32.
    unsafe extern "C" fn stand_in(
        turned_a: bool,
        turned_b: bool,
        alpha: f32,
        a: *const Array,
        b: *const Array,
        c: *const Array,
        _: *mut c_void,
        parameters: *const Parameters,
    ) -> c_int {
        // SAFETY: called as declared.
        let (a, b, c, parameters) = unsafe { (&*a, &*b, &*c, &*parameters) };
        let (Some((a_size, a_at)), Some((b_size, b_at)), Some((c_size, c_at))) = (read(a), read(b), read(c)) else {
            return -1;
        };
        let fits = a_size[1] == b_size[0] && c_size == [a_size[0], b_size[1]];
        let types = [a.data_type, b.data_type, c.data_type] == [FLOAT_16, FLOAT_16, FLOAT_32];
        if turned_a || turned_b || !fits || !types || parameters.threads != 1 {
            return -1;
        }
        for (i, j) in (0..c_size[0]).flat_map(|i| (0..c_size[1]).map(move |j| (i, j))) {
            // SAFETY: the arrays are what they are said to be.
            unsafe {
                let number = |array: &Array, at: usize| array.data.cast::<f16>().add(at).read().to_f32();
                let sum: f32 = (0..a_size[1]).map(|p| number(a, a_at(i, p)) * number(b, b_at(p, j))).sum();
                c.data.cast::<f32>().add(c_at(i, j)).write(alpha * a.scale * b.scale * sum);
            }
        }
        0
    }

    /// Gives up.
    unsafe extern "C" fn refusal(
        _: bool,
        _: bool,
        _: f32,
        _: *const Array,
        _: *const Array,
        _: *const Array,
        _: *mut c_void,
        _: *const Parameters,
    ) -> c_int {
        -1
    }

    /// Sums in f16.
    unsafe extern "C" fn coarse(
        a_turned: bool,
        b_turned: bool,
        alpha: f32,
        a: *const Array,
        b: *const Array,
        c: *const Array,
        memory: *mut c_void,
        parameters: *const Parameters,
    ) -> c_int {
        // SAFETY: called as declared.
        unsafe {
            let status = stand_in(a_turned, b_turned, alpha, a, b, c, memory, parameters);
            let (c, Some((size, at))) = (&*c, read(&*c)) else { return -1 };
            for (i, j) in (0..size[0]).flat_map(|i| (0..size[1]).map(move |j| (i, j))) {
                let sum = c.data.cast::<f32>().add(at(i, j));
                sum.write(f16::from_f32(sum.read()).to_f32());
            }
            status
        }
    }

    /// As the published headers declare them for 64 bits.
    #[test]
    fn structures_lie_as_published() {
        let array = [
            (offset_of!(Array, flags), 0),
            (offset_of!(Array, layout), 4),
            (offset_of!(Array, size), 8),
            (offset_of!(Array, stride), 72),
            (offset_of!(Array, data), 136),
            (offset_of!(Array, data_type), 144),
            (offset_of!(Array, table), 152),
            (offset_of!(Array, table_type), 160),
            (offset_of!(Array, scale), 164),
            (offset_of!(Array, bias), 168),
            (size_of::<Array>(), 176),
        ];
        let parameters = [
            (offset_of!(Parameters, flags), 0),
            (offset_of!(Parameters, threads), 8),
            (offset_of!(Parameters, alloc), 16),
            (offset_of!(Parameters, free), 24),
            (size_of::<Parameters>(), 32),
        ];
        for (place, published) in array.into_iter().chain(parameters) {
            assert_eq!(place, published);
        }
    }

    #[test]
    fn what_multiplies_otherwise_is_not_used() {
        let checked = |multiply: MatMul| Functions { name: "", multiply }.checked().is_some();
        assert!(checked(stand_in));
        assert!(!checked(refusal) && !checked(coarse));
    }

    #[test]
    fn products_agree_with_the_definition() {
        static REFUSAL: Functions = Functions { name: "refusal", multiply: refusal };
        let all = [Bnns::double(), Bnns(&REFUSAL)].into_iter().chain(Bnns::available());
        for bnns in all {
            println!("products by {}", bnns.name());
            for (m, n) in (1..=9).flat_map(|m| (1..=40).map(move |n| (m, n))) {
                let (k, apart) = ((m * 29 + n * 13) % 70, n % 3);
                let numbers = |count: usize, seed: usize| -> Vec<f16> {
                    (0..count).map(|i| f16::from_f32(((i * 7 + seed * 13) % 11) as f32 - 5.0)).collect()
                };
                let (a, b) = (numbers(m * (k + apart), 1), numbers(k * (n + apart), 2));
                let mut c = vec![f32::NAN; m * (n + apart)];
                let (sizes, row) = (Sizes { m, n, k }, n + apart);
                // SAFETY: matrices of those sizes.
                unsafe { bnns.multiply(sizes, (a.as_ptr(), k + apart), (b.as_ptr(), row), (c.as_mut_ptr(), row)) };
                for (index, got) in c.into_iter().enumerate() {
                    let (i, j) = (index / row, index % row);
                    let product = |p: usize| a[i * (k + apart) + p].to_f32() * b[p * row + j].to_f32();
                    let want: f32 = if j < n { (0..k).map(product).sum() } else { f32::NAN };
                    assert!(got == want || got.is_nan() && want.is_nan(), "{} {m}x{n}x{k}: {got}", bnns.name());
                }
            }
        }
    }
}
