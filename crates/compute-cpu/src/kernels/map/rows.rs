//! Rows of numbers, each by a row that many of them share: images whose channels a gate scales, a bias. It is by far the
//! commonest map that reads an input over and over, and takes as long as memory does: blocks of any map do not.

use crate::kernels::Machine;
use crate::kernels::rows::part_mut;
use crate::map::{Code, Program, Walk};
use crate::pool::own_bytes;
use crate::real::{Numbers, Real};
use crate::vector::{Vector, on_vectors};
use half::bf16;
use halimede_compute::{Arguments, Step};
use halimede_graph::ops::Binary;
use halimede_tensor::{DType, View};
use smallvec::SmallVec;

/// What is done to a number and the one of its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    Add,
    Multiply,
}

pub(super) struct RowsStep {
    function: Function,
    /// The input of the output's shape.
    data: (usize, DType),
    /// The input with a row for several.
    shared: (usize, DType),
    /// Dimensions of the rows, outermost first, and by how many elements of the shared input each goes on.
    outer: SmallVec<[(usize, usize); 6]>,
    columns: usize,
    output: DType,
    pub parts: usize,
    machine: Machine,
}

impl RowsStep {
    /// The step for a program, if it is of this kind. It may end with f32 that are to be rounded to `output`.
    pub fn new(
        (program, types, walks): (&Program, &[DType], &[Walk]),
        output: DType,
        parts: usize,
        machine: &Machine,
    ) -> Option<RowsStep> {
        let is_real = |dtype: DType| matches!(dtype, DType::F32 | DType::Bf16);
        let input = |register: usize| match program.codes[register] {
            Code::Load(input) if types[input] == DType::F32 => Some(input),
            Code::Cast { from: DType::Bf16, to: DType::F32, register } => match program.codes[register] {
                Code::Load(input) => Some(input),
                _ => None,
            },
            _ => None,
        };
        let (function, a, b) = match *program.codes.last()? {
            Code::Binary(Binary::Add, a, b, DType::F32) => (Function::Add, input(a)?, input(b)?),
            Code::Binary(Binary::Mul, a, b, DType::F32) => (Function::Multiply, input(a)?, input(b)?),
            _ => return None,
        };
        let (data, shared) = if matches!(walks[a], Walk::Same) { (a, b) } else { (b, a) };
        let (Walk::Same, Walk::Strided { outer, strides, inner, inner_stride: 1 }) = (&walks[data], &walks[shared])
        else {
            return None;
        };
        let is_known = is_real(output) && is_real(types[data]) && is_real(types[shared]);
        is_known.then(|| RowsStep {
            function,
            data: (data, types[data]),
            shared: (shared, types[shared]),
            outer: outer.iter().copied().zip(strides.iter().copied()).collect(),
            columns: *inner,
            output,
            parts,
            machine: machine.clone(),
        })
    }

    /// Per part, the shared row in f32.
    fn part_bytes(&self) -> usize {
        own_bytes(self.columns * size_of::<f32>())
    }

    pub fn workspace(&self) -> usize {
        self.parts * self.part_bytes()
    }

    /// Where the shared row of a row begins.
    fn offset(&self, mut row: usize) -> usize {
        let mut offset = 0;
        for &(size, stride) in self.outer.iter().rev() {
            offset += row % size * stride;
            row /= size;
        }
        offset
    }
}

impl Step for RowsStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let rows = self.outer.iter().map(|&(size, _)| size).product::<usize>();
        // Neighbours that share a row.
        let alike = self.outer.last().filter(|&&(_, stride)| stride == 0).map_or(1, |&(size, _)| size.max(1));
        let view = |index: usize| arguments.inputs.get(index).copied().flatten().unwrap_or(View::empty());
        assert!(arguments.workspace.len() >= self.workspace());
        self.machine.pool.run(self.parts, &|part| {
            // SAFETY: each part has its own share of the workspace.
            let shared = unsafe {
                let bytes = arguments.workspace.part(part * self.part_bytes(), self.part_bytes());
                part_mut::<f32>(bytes, 0, self.columns)
            };
            let (mut row, end) = (rows * part / self.parts, rows * (part + 1) / self.parts);
            while row < end {
                let run = (alike - row % alike).min(end - row);
                let (input, offset) = (view(self.shared.0), self.offset(row));
                let places = offset..offset + self.columns;
                // SAFETY: inputs are not written during the step, but for an output in the place of the data.
                unsafe {
                    match self.shared.1 {
                        DType::Bf16 => bf16::widen_all(self.machine.isa, &input.slice()[places], shared),
                        _ => shared.copy_from_slice(&input.slice()[places]),
                    }
                }
                let (start, count) = (row * self.columns, run * self.columns);
                let from = Numbers::of(view(self.data.0), self.data.1, start, count);
                let to = Numbers::of(arguments.outputs[0], self.output, start, count);
                let work = Work { function: self.function, from, to, rows: run };
                combine(self.machine.isa, &work, shared);
                row += run;
            }
        });
    }
}

/// Rows that lie one after the other inside their tensors; the target may be the source.
struct Work {
    function: Function,
    from: Numbers,
    to: Numbers,
    rows: usize,
}

on_vectors! {
    fn combine(work: &Work, shared: &[f32]) = combine_on
}

/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn combine_on<V: Vector>(work: &Work, shared: &[f32]) {
    let (function, rows) = (work.function, work.rows);
    // SAFETY: the caller's promise; the rows lie inside their tensors.
    unsafe {
        match (work.from, work.to) {
            (Numbers::F32(from), Numbers::F32(to)) => combine_real::<V, _, _>(function, from, to, rows, shared),
            (Numbers::F32(from), Numbers::Bf16(to)) => combine_real::<V, _, _>(function, from, to, rows, shared),
            (Numbers::Bf16(from), Numbers::F32(to)) => combine_real::<V, _, _>(function, from, to, rows, shared),
            (Numbers::Bf16(from), Numbers::Bf16(to)) => combine_real::<V, _, _>(function, from, to, rows, shared),
            _ => debug_assert!(false, "rows of integers"),
        }
    }
}

/// # Safety
/// As [`each_row`].
#[inline(always)]
unsafe fn combine_real<V: Vector, A: Real, B: Real>(
    function: Function,
    from: *const A,
    to: *mut B,
    rows: usize,
    shared: &[f32],
) {
    // SAFETY: the caller's promise.
    unsafe {
        match function {
            Function::Add => each_row::<V, A, B, false>(from, to, rows, shared),
            Function::Multiply => each_row::<V, A, B, true>(from, to, rows, shared),
        }
    }
}

/// # Safety
/// As [`Vector`]; there are so many rows as long as `shared` from both pointers on.
#[inline(always)]
unsafe fn each_row<V: Vector, A: Real, B: Real, const MULTIPLY: bool>(
    from: *const A,
    to: *mut B,
    rows: usize,
    shared: &[f32],
) {
    let columns = shared.len();
    let whole = columns - columns % V::LANES;
    // SAFETY: the caller's promise. No number is read after it was written: the two may be one.
    unsafe {
        for row in 0..rows {
            let (from, to) = (from.add(row * columns), to.add(row * columns));
            for column in (0..whole).step_by(V::LANES) {
                let (number, by) = (A::load::<V>(from.add(column)), V::load(shared.as_ptr().add(column)));
                let number = if MULTIPLY { number.times(by) } else { number.plus(by) };
                B::store(number, to.add(column));
            }
            for column in whole..columns {
                let (number, by) = ((*from.add(column)).widen(), shared[column]);
                to.add(column).write(B::nearest(if MULTIPLY { number * by } else { number + by }));
            }
        }
    }
}
