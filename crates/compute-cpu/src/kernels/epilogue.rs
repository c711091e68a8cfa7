//! Pointwise work on tiles of a product before they are stored.

use crate::Isa;
use crate::map::{BLOCK, Class, Code, Program, Register, Walk, class, execute, gelu_erf, gelu_tanh, sigmoid, tanh};
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

/// The commonest epilogues, which need no program: a bias for each column, a residual, an activation and
/// bounds (ReLU, ReLU6, Clip), each where it is there, in this order; or the residual behind the activation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Common {
    /// The input, after the operator's own, of which each column of the output has one number in f32.
    pub bias: Option<usize>,
    /// The input, after the operator's own, that is added; it has the output's elements.
    pub residual: Option<usize>,
    /// Datatype of the residual.
    pub residual_type: DType,
    /// The residual is added to what the function gives, not to what it takes.
    pub residual_last: bool,
    pub function: Option<Unary>,
    pub low: f32,
    pub high: f32,
}

/// What an instruction's result is, in these terms.
#[derive(Clone, Copy)]
enum Term {
    Bias(usize),
    Residual(usize),
    Number(f32),
    Sum(Common),
}

impl Common {
    /// Leaves sums as they are.
    pub const NONE: Common = Common {
        bias: None,
        residual: None,
        residual_type: DType::F32,
        residual_last: false,
        function: None,
        low: f32::NEG_INFINITY,
        high: f32::INFINITY,
    };

    /// Whether nothing follows the sums yet.
    fn is_sum(&self) -> bool {
        self.function.is_none() && self.is_unbounded()
    }

    fn is_unbounded(&self) -> bool {
        self.low == f32::NEG_INFINITY && self.high == f32::INFINITY
    }

    /// Whether there are no more than bounds.
    pub fn only_bounds(&self) -> bool {
        self.bias.is_none() && self.residual.is_none() && self.function.is_none()
    }

    fn of(program: &Program, types: &[DType], walks: &[Walk], columns: usize) -> Option<Common> {
        let mut terms: Vec<Term> = Vec::new();
        for code in &program.codes {
            terms.push(match *code {
                Code::Load(0) => Term::Sum(Common::NONE),
                Code::Load(input) => match (&walks[input - 1], types[input]) {
                    (Walk::Same, DType::F32 | DType::Bf16) => Term::Residual(input),
                    (walk, DType::F32) if walk.is_a_row_of(columns) => Term::Bias(input),
                    _ => return None,
                },
                // As every kernel reads it.
                Code::Cast { from: DType::Bf16, to: DType::F32, register } => terms[register],
                Code::Constant(Scalar::Float(number, DType::F32)) if !number.is_nan() => Term::Number(number as f32),
                Code::Unary(function, x, DType::F32) if is_activation(function) => match terms[x] {
                    Term::Sum(sum) if sum.is_sum() => Term::Sum(Common { function: Some(function), ..sum }),
                    _ => return None,
                },
                Code::Binary(function, a, b, DType::F32) => {
                    let (Term::Sum(sum), term) = (match (terms[a], terms[b]) {
                        (Term::Sum(_), _) => (terms[a], terms[b]),
                        _ => (terms[b], terms[a]),
                    }) else {
                        return None;
                    };
                    Term::Sum(sum.then(function, term, types)?)
                }
                _ => return None,
            });
        }
        match terms.pop()? {
            Term::Sum(sum) => Some(sum),
            _ => None,
        }
    }

    /// A function of this and a term, either way round.
    fn then(self, function: Binary, term: Term, types: &[DType]) -> Option<Common> {
        Some(match (function, term) {
            (Binary::Add, Term::Bias(input)) if self.is_sum() && self.bias.is_none() => {
                Common { bias: Some(input - 1), ..self }
            }
            (Binary::Add, Term::Residual(input)) if self.is_unbounded() && self.residual.is_none() => {
                let residual_last = self.function.is_some();
                Common { residual: Some(input - 1), residual_type: types[input], residual_last, ..self }
            }
            (Binary::Max, Term::Number(low)) if self.is_unbounded() => Common { low, ..self },
            (Binary::Min, Term::Number(high)) if self.high == f32::INFINITY && self.low <= high => {
                Common { high, ..self }
            }
            _ => return None,
        })
    }
}

/// Whether [`activate`] knows a function.
fn is_activation(function: Unary) -> bool {
    use Unary::{GeluErf, GeluTanh, HardSwish, QuickGelu, Sigmoid, Silu, Tanh};
    matches!(function, GeluErf | GeluTanh | HardSwish | QuickGelu | Sigmoid | Silu | Tanh)
}

/// Applies an activation to every number of a line.
#[inline(always)]
pub(super) fn activate(function: Unary, line: &mut [f32]) {
    #[inline(always)]
    fn each(line: &mut [f32], function: impl Fn(f32) -> f32) {
        line.iter_mut().for_each(|x| *x = function(*x));
    }
    match function {
        Unary::GeluErf => each(line, gelu_erf),
        Unary::GeluTanh => each(line, gelu_tanh),
        Unary::QuickGelu => each(line, |x| x * sigmoid(1.702 * x)),
        Unary::Silu => each(line, |x| x * sigmoid(x)),
        Unary::HardSwish => each(line, |x| x * (x * (1.0 / 6.0) + 0.5).clamp(0.0, 1.0)),
        Unary::Sigmoid => each(line, sigmoid),
        Unary::Tanh => each(line, tanh),
        _ => debug_assert!(false, "{function:?} is no activation"),
    }
}

/// NaN passes, as it does through a program.
#[inline(always)]
pub(super) fn within(x: f32, (low, high): (f32, f32)) -> f32 {
    if x < low {
        low
    } else if x > high {
        high
    } else {
        x
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

    /// An epilogue for an output in f32 or bf16: it computes in f32, and the kernel rounds what it stores.
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
        if output.dtype == DType::Bf16 {
            program.remove_last();
        }
        if program.codes == [Code::Load(0)] {
            return Ok(None);
        }
        let floats = |dtype: &DType| class(*dtype) == Some(Class::F32) || *dtype == DType::Bool;
        if !program.types.iter().all(floats) {
            return Err(OpError::unsupported("an epilogue on integers"));
        }
        let columns = output.shape.last().copied().unwrap_or(1);
        let common = Common::of(&program, &types, &walks, columns);
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
}
