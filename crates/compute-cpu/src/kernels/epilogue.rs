//! Pointwise work on tiles of a product before they are stored.

use crate::Isa;
use crate::map::{BLOCK, Class, Code, Program, Register, Walk, class, execute, gelu_erf, gelu_tanh, sigmoid, tanh};
use crate::vector::within;
use halimede_compute::TensorDesc;
use halimede_graph::OpError;
use halimede_graph::ops::{Binary, Map, Scalar, Unary};
use halimede_tensor::{DType, View};

/// A map whose input 0 is an f32 result and whose other inputs broadcast to the output.
pub(super) struct Epilogue {
    program: Program,
    types: Vec<DType>,
    /// For inputs from 1 on.
    walks: Vec<Walk>,
    isa: Isa,
    common: Option<Common>,
}

/// The commonest epilogues, which need no program: a bias for each column, a snap to the grid of a quantised
/// number, a residual, an activation, bounds (ReLU, ReLU6, Clip) and quantisation, each where it is there, in this
/// order; or the residual behind the activation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Common {
    /// The input, after the operator's own, of which each column of the output has one number in f32.
    pub bias: Option<usize>,
    /// Sums become the nearest point of a grid, times the distance of its points.
    pub snap: Option<(Grid, f32)>,
    pub residual: Option<Residual>,
    /// The residual is added to what the function gives, not to what it takes.
    pub residual_last: bool,
    pub function: Option<Unary>,
    pub low: f32,
    pub high: f32,
    /// Results become points of a grid, counted from a zero point, in integers of 8 bits.
    pub quantize: Option<(Grid, f32)>,
}

/// An input that is added, `(x - zero) · scale`; it has the output's elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Residual {
    /// The input, after the operator's own.
    pub input: usize,
    pub dtype: DType,
    /// 0 unless it is of integers.
    pub zero: f32,
    /// 1 unless it is of integers.
    pub scale: f32,
}

/// `clamp(round(x · inverse), low, high)`, bounds being whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Grid {
    pub inverse: f32,
    pub low: f32,
    pub high: f32,
}

/// What an instruction's result is, in these terms.
#[derive(Clone, Copy)]
enum Term {
    Bias(usize),
    Residual(Residual),
    Number(f32),
    Sum(Common),
    /// A sum times a number; rounded or not; kept within bounds from below, and from above.
    OnGrid(Common, Grid, bool),
}

impl Residual {
    pub fn is_float(self) -> bool {
        matches!(self.dtype, DType::F32 | DType::Bf16)
    }
}

impl Common {
    /// Leaves sums as they are.
    pub const NONE: Common = Common {
        bias: None,
        snap: None,
        residual: None,
        residual_last: false,
        function: None,
        low: f32::NEG_INFINITY,
        high: f32::INFINITY,
        quantize: None,
    };

    /// Whether nothing but a bias, a snap and a residual follows the sums yet.
    fn is_sum(&self) -> bool {
        self.function.is_none() && self.is_unbounded() && self.quantize.is_none()
    }

    fn is_unbounded(&self) -> bool {
        self.low == f32::NEG_INFINITY && self.high == f32::INFINITY
    }

    /// Whether there are no more than a bias, a residual in f32 and bounds.
    pub fn is_plain(&self) -> bool {
        let Common { bias, residual, residual_last, low, high, .. } = *self;
        let is_f32 = residual.is_none_or(|residual| residual.dtype == DType::F32);
        is_f32 && *self == Common { bias, residual, residual_last, low, high, ..Common::NONE }
    }

    /// Whether there are no more than bounds.
    pub fn only_bounds(&self) -> bool {
        *self == Common { low: self.low, high: self.high, ..Common::NONE }
    }

    /// What a program does to input 0; `types` are those of its inputs, `walks` of those from 1 on.
    pub fn of(program: &Program, types: &[DType], walks: &[Walk], columns: usize) -> Option<Common> {
        let mut terms: Vec<Term> = Vec::new();
        for code in &program.codes {
            terms.push(match *code {
                Code::Load(0) => Term::Sum(Common::NONE),
                Code::Load(input) => match (&walks[input - 1], types[input]) {
                    (Walk::Same, dtype @ (DType::F32 | DType::Bf16 | DType::U8 | DType::I8)) => {
                        Term::Residual(Residual { input: input - 1, dtype, zero: 0.0, scale: 1.0 })
                    }
                    (walk, DType::F32) if walk.is_a_row_of(columns) => Term::Bias(input),
                    _ => return None,
                },
                // As every kernel reads it.
                Code::Cast { from: DType::Bf16 | DType::U8 | DType::I8, to: DType::F32, register } => terms[register],
                Code::Constant(Scalar::Float(number, DType::F32)) if !number.is_nan() => Term::Number(number as f32),
                Code::Unary(Unary::Round, x, DType::F32) => match terms[x] {
                    Term::OnGrid(sum, grid, false) => Term::OnGrid(sum, grid, true),
                    _ => return None,
                },
                Code::Unary(function, x, DType::F32) if is_activation(function) => match terms[x] {
                    Term::Sum(sum) if sum.is_sum() => Term::Sum(Common { function: Some(function), ..sum }),
                    _ => return None,
                },
                Code::Binary(function, a, b, DType::F32) => {
                    // A sum first, on a grid or not, then an input, then a number.
                    let place = |term: Term| match term {
                        Term::Sum(_) | Term::OnGrid(..) => 0,
                        Term::Bias(_) | Term::Residual(_) => 1,
                        Term::Number(_) => 2,
                    };
                    let (first, second) = match place(terms[a]) <= place(terms[b]) {
                        true => (terms[a], terms[b]),
                        false if function == Binary::Sub => return None,
                        false => (terms[b], terms[a]),
                    };
                    first.then(function, second)?
                }
                _ => return None,
            });
        }
        match terms.pop()? {
            Term::Sum(sum) => Some(sum),
            _ => None,
        }
    }
}

impl Term {
    /// A function of this and another term.
    fn then(self, function: Binary, other: Term) -> Option<Term> {
        let whole = |number: f32| number.fract() == 0.0 && number.abs() <= 256.0;
        if matches!(self, Term::Sum(Common { quantize: Some(_), .. })) {
            return None;
        }
        Some(match (self, function, other) {
            (Term::Sum(sum), Binary::Add, Term::Bias(input))
                if sum.is_sum() && sum.bias.is_none() && sum.snap.is_none() =>
            {
                Term::Sum(Common { bias: Some(input - 1), ..sum })
            }
            (Term::Sum(sum), Binary::Add, Term::Residual(residual)) if sum.is_unbounded() && sum.residual.is_none() => {
                Term::Sum(Common { residual: Some(residual), residual_last: sum.function.is_some(), ..sum })
            }
            (Term::Sum(sum), Binary::Max, Term::Number(low)) if sum.is_unbounded() => Term::Sum(Common { low, ..sum }),
            (Term::Sum(sum), Binary::Min, Term::Number(high)) if sum.high == f32::INFINITY && sum.low <= high => {
                Term::Sum(Common { high, ..sum })
            }
            (Term::Sum(sum), Binary::Mul, Term::Number(inverse)) => {
                Term::OnGrid(sum, Grid { inverse, low: f32::NEG_INFINITY, high: f32::INFINITY }, false)
            }
            (Term::OnGrid(sum, grid, true), Binary::Max, Term::Number(low))
                if whole(low) && grid.low == f32::NEG_INFINITY =>
            {
                Term::OnGrid(sum, Grid { low, ..grid }, true)
            }
            (Term::OnGrid(sum, grid, true), Binary::Min, Term::Number(high))
                if whole(high) && grid.low <= high && grid.high == f32::INFINITY =>
            {
                Term::OnGrid(sum, Grid { high, ..grid }, true)
            }
            (Term::OnGrid(sum, grid, true), Binary::Mul, Term::Number(scale))
                if grid.is_bounded() && sum.is_sum() && sum.snap.is_none() && sum.residual.is_none() =>
            {
                Term::Sum(Common { snap: Some((grid, scale)), ..sum })
            }
            (Term::OnGrid(sum, grid, true), Binary::Add, Term::Number(zero)) if grid.is_bounded() && whole(zero) => {
                Term::Sum(Common { quantize: Some((grid, zero)), ..sum })
            }
            (Term::Residual(residual), Binary::Sub, Term::Number(zero))
                if !residual.is_float() && residual.zero == 0.0 && residual.scale == 1.0 =>
            {
                Term::Residual(Residual { zero, ..residual })
            }
            (Term::Residual(residual), Binary::Mul, Term::Number(scale))
                if !residual.is_float() && residual.scale == 1.0 =>
            {
                Term::Residual(Residual { scale, ..residual })
            }
            _ => return None,
        })
    }
}

impl Grid {
    /// The point that is nearest to a number, ties to even, counted from that of 0.
    #[inline(always)]
    pub fn nearest(self, number: f32) -> f32 {
        within((number * self.inverse).round_ties_even(), (self.low, self.high))
    }

    fn is_bounded(self) -> bool {
        self.low > f32::NEG_INFINITY && self.high < f32::INFINITY
    }
}

/// Whether [`activate`] knows a function.
fn is_activation(function: Unary) -> bool {
    use Unary::{GeluErf, GeluTanh, HardSwish, QuickGelu, Sigmoid, Silu, Tanh};
    matches!(function, GeluErf | GeluTanh | HardSwish | QuickGelu | Sigmoid | Silu | Tanh)
}

/// Applies an activation to every number of a line. Loops of their own: what is handed to an iterator may be
/// compiled apart, without the instructions of the caller.
#[inline(always)]
pub(super) fn activate(function: Unary, line: &mut [f32]) {
    macro_rules! each {
        ($x:ident => $value:expr) => {
            for number in line {
                let $x = *number;
                *number = $value;
            }
        };
    }
    match function {
        Unary::GeluErf => each!(x => gelu_erf(x)),
        Unary::GeluTanh => each!(x => gelu_tanh(x)),
        Unary::QuickGelu => each!(x => x * sigmoid(1.702 * x)),
        Unary::Silu => each!(x => x * sigmoid(x)),
        Unary::HardSwish => each!(x => x * (x * (1.0 / 6.0) + 0.5).clamp(0.0, 1.0)),
        Unary::Sigmoid => each!(x => sigmoid(x)),
        Unary::Tanh => each!(x => tanh(x)),
        _ => debug_assert!(false, "{function:?} is no activation"),
    }
}

impl Epilogue {
    /// The form without a program, where it has that.
    pub fn common(&self) -> Option<&Common> {
        self.common.as_ref()
    }

    /// An epilogue for an f32 output; `None` where there is nothing to do. `extra` are the inputs that
    /// follow the operator's own.
    pub fn new(
        map: Option<&Map>,
        extra: &[Option<TensorDesc>],
        output: &TensorDesc,
        isa: Isa,
    ) -> Result<Option<Epilogue>, OpError> {
        if map.is_some() && output.dtype != DType::F32 {
            return Err(OpError::unsupported("an epilogue that changes the datatype"));
        }
        Epilogue::narrowed(map, extra, output, isa)
    }

    /// An epilogue for an output in f32, bf16 or integers of 8 bits: it computes in f32, and the kernel rounds
    /// what it stores. Integers are what a quantisation gives, whole and within their range already.
    pub fn narrowed(
        map: Option<&Map>,
        extra: &[Option<TensorDesc>],
        output: &TensorDesc,
        isa: Isa,
    ) -> Result<Option<Epilogue>, OpError> {
        let Some(map) = map else { return Ok(None) };
        let mut types = vec![DType::F32];
        let mut walks = Vec::new();
        for desc in extra.iter().flatten() {
            types.push(desc.dtype);
            walks.push(Walk::new(&desc.shape, &output.shape)?);
        }
        let mut program = Program::new(map, &types)?;
        if program.result() != output.dtype || !program.narrows_at_the_end_only() {
            return Err(OpError::unsupported("an epilogue that changes the datatype"));
        }
        if output.dtype != DType::F32 {
            program.remove_last();
        }
        if program.codes == [Code::Load(0)] && output.dtype.is_float() {
            return Ok(None);
        }
        let columns = output.shape.last().copied().unwrap_or(1);
        let integers = !output.dtype.is_float();
        let common = Common::of(&program, &types, &walks, columns);
        let common = common.filter(|common| common.quantize.is_some() == integers);
        // Integers in a program are wide, and so slow: they are what quantised residuals are.
        let known =
            |dtype: &DType| class(*dtype) == Some(Class::F32) || matches!(dtype, DType::Bool | DType::U8 | DType::I8);
        if !program.types.iter().all(known) {
            return Err(OpError::unsupported("an epilogue on integers"));
        }
        if integers && !map.quantizes() {
            return Err(OpError::unsupported("an epilogue that changes the datatype"));
        }
        Ok(Some(Epilogue { program, types, walks, isa, common }))
    }

    /// Registers that one thread needs.
    pub fn registers(&self) -> usize {
        self.program.registers()
    }

    /// Works on a tile in place. `start` is the position of its first element in the output, `row` the
    /// distance of its rows there, `pitch` their distance in `tile`.
    ///
    /// `extra` are the views of the inputs from 1 on, in the order of `new`.
    pub fn apply(
        &self,
        extra: &[Option<View<'_>>],
        tile: &mut [f32],
        pitch: usize,
        (rows, columns): (usize, usize),
        (start, row): (usize, usize),
        registers: &mut [Register],
    ) {
        let per_block = (BLOCK / pitch).max(1);
        let mut first = 0;
        while first < rows {
            let count = per_block.min(rows - first);
            let elements = &mut tile[first * pitch..(first + count) * pitch];
            for (code, register) in self.program.codes.iter().zip(&mut *registers) {
                match *code {
                    Code::Load(0) => register.f32_mut()[..elements.len()].copy_from_slice(elements),
                    Code::Load(input) => {
                        let Some(view) = extra[input - 1] else { continue };
                        for r in 0..count {
                            let position = start + (first + r) * row;
                            let at = r * pitch;
                            let from = (view, self.types[input]);
                            self.walks[input - 1].load(self.isa, from, position, columns, at, register);
                        }
                    }
                    _ => {}
                }
            }
            execute(self.isa, &self.program, registers, elements.len());
            elements.copy_from_slice(&registers[self.program.registers() - 1].f32()[..elements.len()]);
            first += count;
        }
    }

    /// Works on a part of the output where it lies: `rows` of `columns` elements, `row` elements apart, of which the
    /// first has position `start`.
    ///
    /// # Safety
    /// `output` is valid for those elements, which nobody else uses meanwhile.
    pub unsafe fn apply_to_output(
        &self,
        extra: &[Option<View<'_>>],
        output: *mut f32,
        (rows, columns): (usize, usize),
        (start, row): (usize, usize),
        registers: &mut [Register],
    ) {
        if row == columns && columns <= BLOCK {
            // SAFETY: nothing lies between the rows.
            let tile = unsafe { std::slice::from_raw_parts_mut(output.add(start), rows * columns) };
            return self.apply(extra, tile, columns, (rows, columns), (start, row), registers);
        }
        for (r, first) in (0..rows).flat_map(|r| (0..columns).step_by(BLOCK).map(move |first| (r, first))) {
            let (at, len) = (start + r * row + first, BLOCK.min(columns - first));
            // SAFETY: a part of one row.
            let line = unsafe { std::slice::from_raw_parts_mut(output.add(at), len) };
            self.apply(extra, line, len, (1, len), (at, row), registers);
        }
    }
}
