//! Reductions of every numeric datatype.

mod columns;

use super::Machine;
use super::lines::{EachLine, in_lines};
use super::rows::{Rows, part_mut};
use super::softmax::{max_of, min_of};
use crate::isa::multiversion;
use columns::Columns;
use half::{bf16, f16};
use halimede_compute::layout::{Layouts, Stance, Stances};
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::{Reduce, ReduceKind};
use halimede_tensor::{DType, Element};
use smallvec::{SmallVec, smallvec};

/// Elements below which one thread does it all.
const PARALLEL_ELEMENTS: usize = 16 * 1024;

pub(super) struct ReduceKernel {
    pub op: Reduce,
    pub machine: Machine,
}

impl Kernel for ReduceKernel {
    fn name(&self) -> &str {
        "reduce"
    }

    fn stances(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Option<Stances> {
        // A number of each channel, as the mean of an image.
        let ([Some(x)], [_]) = (inputs, outputs) else { return None };
        let is_of_channels = self.op.axes.iter().copied().eq(1..x.shape.len().saturating_sub(1));
        let stances = Stances { inputs: smallvec![Stance::Either], output: Stance::RowMajor, takes_borders: false };
        let is_blocked = self.machine.blocks_values() && in_lines(x).is_some();
        (is_of_channels && !self.op.axes.is_empty() && is_blocked).then_some(stances)
    }

    fn prepare_laid_out(
        &self,
        inputs: &[Option<TensorDesc>],
        outputs: &[TensorDesc],
        layouts: &Layouts,
    ) -> Result<Prepared, OpError> {
        let ([Some(x)], true) = (inputs, layouts.is_blocked(0)) else { return self.prepare(inputs, outputs) };
        let whole = in_lines(x).ok_or_else(|| OpError::unsupported("a reduction of parts of lines"))?;
        let (images, lines) = (x.shape[0], whole.shape[0] / x.shape[0].max(1));
        // What the inner step sees of one line.
        let mut of_line = whole;
        of_line.shape[0] = images;
        let channels = of_line.shape[of_line.shape.len() - 1];
        let made = TensorDesc { shape: [images, channels].as_slice().into(), ..outputs[0].clone() };
        let (input, line) = (of_line.bytes(), channels * made.dtype.size());
        let Prepared { step: inner, workspace } = self.prepare(&[Some(of_line)], &[made])?;
        let machine = self.machine.clone();
        Ok(EachLine { images, lines, input, line, inner, workspace, machine }.prepared())
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        let Some(Some(x)) = inputs.first() else { return Err(OpError::invalid("a reduction needs data")) };
        let known = matches!(
            x.dtype,
            DType::F16
                | DType::Bf16
                | DType::F32
                | DType::F64
                | DType::Bool
                | DType::U8
                | DType::I8
                | DType::U16
                | DType::I16
                | DType::U32
                | DType::I32
                | DType::U64
                | DType::I64
        );
        if !known || outputs[0].dtype != x.dtype {
            return Err(OpError::unsupported(format!("a reduction of {}", x.dtype)));
        }
        let strides = halimede_tensor::strides(&x.shape);
        let axis = |&axis: &usize| (x.shape[axis], strides[axis]);
        let kept: SmallVec<[usize; 6]> = (0..x.shape.len()).filter(|axis| !self.op.axes.contains(axis)).collect();
        let step = ReduceStep {
            kind: self.op.kind,
            dtype: x.dtype,
            way: self.way(x),
            kept: kept.iter().map(axis).collect(),
            reduced: self.op.axes.iter().map(axis).collect(),
            outputs: outputs[0].len(),
            inputs: x.len(),
            machine: self.machine.clone(),
        };
        let workspace = match &step.way {
            Way::Columns(columns) => columns.workspace(),
            Way::Rows(_) | Way::Each => 0,
        };
        Ok(Prepared { step: Box::new(step), workspace })
    }
}

impl ReduceKernel {
    fn way(&self, x: &TensorDesc) -> Way {
        let is_fast = matches!(
            self.op.kind,
            ReduceKind::Sum
                | ReduceKind::Mean
                | ReduceKind::Max
                | ReduceKind::Min
                | ReduceKind::SumSquare
                | ReduceKind::L1
                | ReduceKind::L2
        );
        match (x.dtype, Rows::along_all(&x.shape, &self.op.axes).filter(|_| is_fast)) {
            (DType::F32, Some(rows)) if rows.inner == 1 => Way::Rows(rows.length),
            (DType::F32 | DType::Bf16, Some(rows)) if rows.length > 0 => {
                Way::Columns(Columns { kind: self.op.kind, rows, machine: self.machine.clone() })
            }
            _ => Way::Each,
        }
    }
}

/// How numbers are reduced.
enum Way {
    /// So many that lie together.
    Rows(usize),
    Columns(Columns),
    /// Any, one output after the other.
    Each,
}

struct ReduceStep {
    kind: ReduceKind,
    dtype: DType,
    way: Way,
    /// Size and stride of each axis that stays.
    kept: SmallVec<[(usize, usize); 6]>,
    /// Size and stride of each axis that goes.
    reduced: SmallVec<[(usize, usize); 6]>,
    outputs: usize,
    inputs: usize,
    machine: Machine,
}

impl Step for ReduceStep {
    fn run(&self, arguments: &Arguments<'_>) {
        match (self.dtype, &self.way) {
            (_, Way::Rows(length)) => self.rows_f32(arguments, *length),
            (DType::F32, Way::Columns(columns)) => columns.run::<f32>(arguments),
            (DType::Bf16, Way::Columns(columns)) => columns.run::<bf16>(arguments),
            _ => self.each(arguments),
        }
    }
}

/// The position of element `index` of a set of axes.
fn offset(axes: &[(usize, usize)], mut index: usize) -> usize {
    let mut offset = 0;
    for &(size, stride) in axes.iter().rev() {
        offset += index % size * stride;
        index /= size;
    }
    offset
}

impl ReduceStep {
    fn parts(&self) -> usize {
        if self.inputs < PARALLEL_ELEMENTS { 1 } else { (self.machine.pool.threads() * 4).min(self.outputs.max(1)) }
    }

    /// Rows that lie together.
    fn rows_f32(&self, arguments: &Arguments<'_>, length: usize) {
        let Some(input) = arguments.inputs[0] else { return };
        // SAFETY: inputs are not written during the step.
        let x = unsafe { input.slice::<f32>() };
        let parts = self.parts();
        self.machine.pool.run(parts, &|part| {
            let (first, last) = (part * self.outputs / parts, (part + 1) * self.outputs / parts);
            // SAFETY: parts of the output do not overlap.
            let out = unsafe { part_mut::<f32>(arguments.outputs[0], first, last - first) };
            reduce_rows(self.machine.isa, self.kind, &x[first * length..last * length], length, out);
        });
    }

    /// Any axes and datatype, one output element after the other.
    fn each(&self, arguments: &Arguments<'_>) {
        macro_rules! integers {
            ($($t:ident: $d:ident),*) => {
                match self.dtype {
                    $(DType::$d => self.each_as::<$t>(arguments, |x| Number::Int(x as i64), |n| match n {
                        Number::Int(v) => v as $t,
                        Number::Real(v) => v as $t,
                    }),)*
                    DType::Bool => self.each_as::<u8>(arguments, |x| Number::Int(x.into()), |n| match n {
                        Number::Int(v) => u8::from(v != 0),
                        Number::Real(v) => u8::from(v != 0.0),
                    }),
                    DType::F16 => self.each_as::<f16>(arguments, |x| Number::Real(x.to_f64()), |n| f16::from_f64(n.real())),
                    DType::Bf16 => self.each_as::<bf16>(arguments, |x| Number::Real(x.to_f64()), |n| bf16::from_f64(n.real())),
                    DType::F32 => self.each_as::<f32>(arguments, |x| Number::Real(x.into()), |n| n.real() as f32),
                    DType::F64 => self.each_as::<f64>(arguments, Number::Real, Number::real),
                    _ => debug_assert!(false, "prepare refuses other datatypes"),
                }
            };
        }
        integers!(u8: U8, i8: I8, u16: U16, i16: I16, u32: U32, i32: I32, u64: U64, i64: I64);
    }

    fn each_as<T: Element>(
        &self,
        arguments: &Arguments<'_>,
        widen: impl Fn(T) -> Number + Sync,
        narrow: impl Fn(Number) -> T + Sync,
    ) {
        let Some(input) = arguments.inputs[0] else { return };
        // SAFETY: inputs are not written during the step.
        let x = unsafe { input.slice::<T>() };
        let count: usize = self.reduced.iter().map(|axis| axis.0).product();
        let parts = self.parts();
        let unsigned = self.dtype == DType::U64;
        self.machine.pool.run(parts, &|part| {
            let (first, last) = (part * self.outputs / parts, (part + 1) * self.outputs / parts);
            // SAFETY: parts of the output do not overlap.
            let out = unsafe { part_mut::<T>(arguments.outputs[0], first, last - first) };
            for (index, out) in (first..last).zip(out) {
                let base = offset(&self.kept, index);
                let element = |index: usize| widen(x[base + offset(&self.reduced, index)]);
                *out = narrow(reduce(self.kind, self.dtype, unsigned, count, element));
            }
        });
    }
}

/// A number on its way through a reduction.
#[derive(Debug, Clone, Copy)]
enum Number {
    Int(i64),
    Real(f64),
}

impl Number {
    fn real(self) -> f64 {
        match self {
            Number::Int(v) => v as f64,
            Number::Real(v) => v,
        }
    }
}

/// One reduction over `count` elements; of none it is the neutral element, as ONNX says.
fn reduce(kind: ReduceKind, dtype: DType, unsigned: bool, count: usize, element: impl Fn(usize) -> Number) -> Number {
    let all = || (0..count).map(&element);
    let real_sum = |f: &dyn Fn(f64) -> f64| all().map(|n| f(n.real())).sum::<f64>();
    match (kind, dtype.is_float()) {
        (ReduceKind::Max, _) | (ReduceKind::Min, _) => extreme(kind == ReduceKind::Max, dtype, unsigned, all()),
        (ReduceKind::Sum, true) => Number::Real(real_sum(&|x| x)),
        (ReduceKind::Mean, true) => Number::Real(real_sum(&|x| x) / count as f64),
        (ReduceKind::Product, true) => Number::Real(all().map(Number::real).product()),
        (ReduceKind::SumSquare, true) => Number::Real(real_sum(&|x| x * x)),
        (ReduceKind::L1, true) => Number::Real(real_sum(&f64::abs)),
        (ReduceKind::L2, _) => Number::Real(real_sum(&|x| x * x).sqrt()),
        (ReduceKind::LogSum, _) => Number::Real(real_sum(&|x| x).ln()),
        (ReduceKind::LogSumExp, _) => {
            let max = all().map(Number::real).fold(f64::NEG_INFINITY, f64::max);
            let shift = if max.is_finite() { max } else { 0.0 };
            Number::Real(real_sum(&|x| (x - shift).exp()).ln() + shift)
        }
        (kind, false) => {
            let ints = all().map(|n| if let Number::Int(v) = n { v } else { 0 });
            Number::Int(match kind {
                ReduceKind::Product => ints.fold(1, i64::wrapping_mul),
                ReduceKind::SumSquare => ints.fold(0, |sum, x| sum.wrapping_add(x.wrapping_mul(x))),
                ReduceKind::L1 => ints.fold(0, |sum, x| sum.wrapping_add(x.wrapping_abs())),
                ReduceKind::Mean => ints.fold(0, i64::wrapping_add).checked_div(count as i64).unwrap_or(0),
                _ => ints.fold(0, i64::wrapping_add),
            })
        }
    }
}

fn extreme(largest: bool, dtype: DType, unsigned: bool, all: impl Iterator<Item = Number>) -> Number {
    if dtype.is_float() {
        let start = if largest { f64::NEG_INFINITY } else { f64::INFINITY };
        return Number::Real(all.map(Number::real).fold(start, |a, b| {
            let better = if largest { b > a } else { b < a };
            if better || b.is_nan() { b } else { a }
        }));
    }
    // u64 travels as its bits.
    let key = |v: i64| if unsigned { (v as u64) as i128 } else { v as i128 };
    let ints = all.map(|n| if let Number::Int(v) = n { v } else { 0 });
    let best = if largest { ints.max_by_key(|&v| key(v)) } else { ints.min_by_key(|&v| key(v)) };
    Number::Int(best.unwrap_or_else(|| bound(dtype, !largest)))
}

/// The largest or smallest value of an integer datatype.
fn bound(dtype: DType, largest: bool) -> i64 {
    let bits = dtype.bits() as u32;
    match (dtype, largest) {
        (DType::Bool, _) => largest.into(),
        (d, false) if d.is_unsigned_integer() => 0,
        (DType::U64, true) => -1,
        (d, true) if d.is_unsigned_integer() => (1i64 << bits) - 1,
        (_, true) => i64::MAX >> (64 - bits),
        (_, false) => i64::MIN >> (64 - bits),
    }
}

multiversion! {
    /// Each row of `length` elements to one.
    fn reduce_rows(kind: ReduceKind, x: &[f32], length: usize, out: &mut [f32]) = rows_body
}

#[inline(always)]
fn rows_body(kind: ReduceKind, x: &[f32], length: usize, out: &mut [f32]) {
    for (index, out) in out.iter_mut().enumerate() {
        let row = &x[index * length..(index + 1) * length];
        *out = match kind {
            ReduceKind::Mean => sum_of(row, |x| x) / length as f32,
            ReduceKind::Max => max_of(row),
            ReduceKind::Min => min_of(row),
            ReduceKind::SumSquare => sum_of(row, |x| x * x),
            ReduceKind::L1 => sum_of(row, f32::abs),
            ReduceKind::L2 => sum_of(row, |x| x * x).sqrt(),
            _ => sum_of(row, |x| x),
        };
    }
}

/// The sum of a function over a row: sixteen running sums, so that the loop vectorises and long rows
/// lose little precision.
#[inline(always)]
fn sum_of(row: &[f32], function: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0f32; 16];
    let chunks = row.chunks_exact(16);
    let rest: f32 = chunks.remainder().iter().map(|&x| function(x)).sum();
    for chunk in chunks {
        for (lane, &element) in lanes.iter_mut().zip(chunk) {
            *lane += function(element);
        }
    }
    lanes.iter().sum::<f32>() + rest
}
