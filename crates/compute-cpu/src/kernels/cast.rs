//! Conversion between datatypes: by a map where that computes both, and by a table of all bit patterns
//! for types of at most 16 bits.

use super::Machine;
use super::copy::{Source, Target, Unit, by_width, split};
use super::map::MapKernel;
use super::parameters::desc;
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::{Cast, Instruction, Map};
use halimede_tensor::convert::MiniFloat;
use halimede_tensor::{Buffer, CastOptions, DType, Tensor, View};

pub(super) struct CastKernel {
    pub op: Cast,
    pub machine: Machine,
}

impl Kernel for CastKernel {
    fn name(&self) -> &str {
        "cast"
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        let (from, to) = (desc(inputs, 0)?.dtype, self.op.to);
        if crate::map::class(from).is_some() && crate::map::class(to).is_some() && from != to {
            let map = Map { instructions: vec![Instruction::Input(0), Instruction::Cast(to, 0)] };
            return MapKernel::new(map, self.machine.clone()).prepare(inputs, outputs);
        }
        let options = CastOptions { saturate: self.op.saturate, exponent_rounding: self.op.exponent_rounding };
        let machine = self.machine.clone();
        let width = to.size();
        let step: Box<dyn Step> = match from.size() {
            _ if from == to => Box::new(Same { machine }),
            1 | 2 => Box::new(TableStep { table: table(from, to, options)?, wide: from.size() == 2, width, machine }),
            _ => Box::new(NarrowStep { narrow: Narrow::new(from, to, options)?, from, machine }),
        };
        Ok(Prepared { step, workspace: 0 })
    }
}

/// The datatype is right already.
struct Same {
    machine: Machine,
}

impl Step for Same {
    fn run(&self, arguments: &Arguments<'_>) {
        if let Some(input) = arguments.inputs[0] {
            let (source, target) = (Source::<u8>::new(input), Target::<u8>::new(arguments.outputs[0]));
            split(&self.machine, input.len(), input.len(), &|range| {
                target.copy(range.start, source, range.start, range.len());
            });
        }
    }
}

/// What each bit pattern becomes, by the definition.
fn table(from: DType, to: DType, options: CastOptions) -> Result<Tensor, OpError> {
    let patterns: Vec<u8> = match from.size() {
        1 => (0..=u8::MAX).collect(),
        _ => (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect(),
    };
    let count = patterns.len() / from.size();
    let unsupported = |_| OpError::unsupported(format!("a cast from {from} to {to}"));
    Tensor::from_buffer(from, &[count], Buffer::copied(&patterns)?)?.cast(to, options).map_err(unsupported)
}

struct TableStep {
    table: Tensor,
    /// Patterns of 16 bits instead of 8.
    wide: bool,
    width: usize,
    machine: Machine,
}

impl Step for TableStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let (Some(input), Ok(table)) = (arguments.inputs[0], self.table.view()) else { return };
        by_width!(self.width, look_up(self, input, table, arguments.outputs[0]));
    }
}

fn look_up<T: Unit>(step: &TableStep, input: View<'_>, table: View<'_>, output: View<'_>) {
    let (table, target) = (Source::<T>::new(table), Target::<T>::new(output));
    if step.wide {
        let source = Source::<u16>::new(input);
        split(&step.machine, target.len(), output.len(), &|range| {
            range.for_each(|i| target.set(i, table.at(source.at(i).into())));
        });
    } else {
        let source = Source::<u8>::new(input);
        split(&step.machine, target.len(), output.len(), &|range| {
            range.for_each(|i| target.set(i, table.at(source.at(i).into())));
        });
    }
}

/// A conversion to a type below 8 bits or a float of 8.
enum Narrow {
    Float(MiniFloat, CastOptions),
    /// Keeps so many low bits, with their sign or without.
    Integer {
        bits: u32,
        signed: bool,
    },
}

impl Narrow {
    fn new(from: DType, to: DType, options: CastOptions) -> Result<Narrow, OpError> {
        let unsupported = || OpError::unsupported(format!("a cast from {from} to {to}"));
        if !matches!(from, DType::F32 | DType::F64 | DType::I32 | DType::I64) {
            return Err(unsupported());
        }
        if let Some(format) = MiniFloat::of(to) {
            return Ok(Narrow::Float(format, options));
        }
        if to.is_integer() && to.bits() < 8 {
            return Ok(Narrow::Integer { bits: to.bits() as u32, signed: to.is_signed_integer() });
        }
        Err(unsupported())
    }

    /// From a number as both a float and an integer cut toward zero.
    fn apply(&self, float: f64, integer: i64) -> u8 {
        match *self {
            Narrow::Float(format, options) => format.encode(float, options),
            Narrow::Integer { bits, signed: true } => ((integer as i8) << (8 - bits) >> (8 - bits)) as u8,
            Narrow::Integer { bits, signed: false } => integer as u8 & ((1 << bits) - 1),
        }
    }
}

struct NarrowStep {
    narrow: Narrow,
    from: DType,
    machine: Machine,
}

impl Step for NarrowStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let Some(input) = arguments.inputs[0] else { return };
        let target = Target::<u8>::new(arguments.outputs[0]);
        // SAFETY: an input; nobody writes it while the step runs.
        split(&self.machine, target.len(), input.len(), &|range| unsafe {
            match self.from {
                DType::F32 => range.for_each(|i| {
                    let x = input.slice::<f32>()[i];
                    target.set(i, self.narrow.apply(x.into(), f64::from(x) as i64));
                }),
                DType::F64 => range.for_each(|i| {
                    let x = input.slice::<f64>()[i];
                    target.set(i, self.narrow.apply(x, x as i64));
                }),
                DType::I32 => range.for_each(|i| {
                    let x = input.slice::<i32>()[i];
                    target.set(i, self.narrow.apply(x.into(), x.into()));
                }),
                _ => range.for_each(|i| {
                    let x = input.slice::<i64>()[i];
                    target.set(i, self.narrow.apply(x as f64, x));
                }),
            }
        });
    }
}
