//! Layer, RMS, group and instance normalisation in f32, with a second output in 8 bits where that is asked for.

use super::Machine;
use super::epilogue::Epilogue;
use super::quantize::bytes_of_f32;
use super::rows::{part_mut, registers_of};
use crate::map::{BLOCK, Register};
use crate::pool::own_bytes;
use crate::real::Real;
use crate::vector::{Vector, on_vectors};
use half::bf16;
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::{Norm, NormKind};
use halimede_tensor::{DType, View};

/// Elements below which one thread does it all.
const PARALLEL_ELEMENTS: usize = 16 * 1024;
/// What stays in the first-level cache.
const NEAR_BYTES: usize = 32 << 10;

pub(super) struct NormKernel {
    pub op: Norm,
    pub machine: Machine,
}

impl Kernel for NormKernel {
    fn name(&self) -> &str {
        "norm f32"
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        let output = &outputs[0];
        let Some(Some(x)) = inputs.first() else { return Err(OpError::invalid("a normalisation needs data")) };
        let affine = inputs.iter().take(3).skip(1).flatten();
        let known = |desc: &TensorDesc| matches!(desc.dtype, DType::F32 | DType::Bf16);
        if !known(x) || !known(output) || affine.clone().any(|desc| desc.dtype != DType::F32) {
            return Err(OpError::unsupported(format!("normalisation of {}", x.dtype)));
        }
        if self.op.epilogue.is_none() && x.dtype != output.dtype {
            return Err(OpError::invalid(format!("a normalisation of {} into {}", x.dtype, output.dtype)));
        }
        let (length, channel, per) = match self.op.kind {
            NormKind::Layer { axis } | NormKind::Rms { axis } => {
                let length: usize = x.shape[axis..].iter().product();
                if affine.clone().any(|desc| desc.len() != length) {
                    return Err(OpError::unsupported("scale or bias that broadcast"));
                }
                (length, 1, length)
            }
            NormKind::Group { .. } | NormKind::Instance => {
                let (&channels, plane) = match x.shape.get(1) {
                    Some(channels) => (channels, x.shape[2..].iter().product::<usize>()),
                    None => return Err(OpError::invalid("a group normalisation needs a channel axis")),
                };
                let groups = match self.op.kind {
                    NormKind::Group { groups } => groups,
                    _ => channels,
                };
                if groups == 0 || !channels.is_multiple_of(groups) || affine.clone().any(|desc| desc.len() != channels)
                {
                    return Err(OpError::invalid(format!("{channels} channels in {groups} groups")));
                }
                (channels / groups * plane, plane, channels)
            }
        };
        let centred = !matches!(self.op.kind, NormKind::Rms { .. });
        let extra = inputs.get(3..).unwrap_or_default();
        let epilogue = Epilogue::narrowed(self.op.epilogue.as_ref(), extra, output, self.machine.isa)?;
        let step = NormStep {
            types: (x.dtype, output.dtype),
            rows: output.len().checked_div(length).unwrap_or(0),
            length,
            channel,
            per,
            centred,
            epsilon: self.op.epsilon,
            epilogue,
            quantize: self.op.quantize.map(|(scale, zero)| (scale, f32::from(zero))),
            machine: self.machine.clone(),
        };
        let workspace = step.thread_bytes() * step.parts();
        Ok(Prepared { step: Box::new(step), workspace })
    }
}

struct NormStep {
    /// Of data and output.
    types: (DType, DType),
    /// Independent rows of `length` adjacent elements.
    rows: usize,
    length: usize,
    /// Adjacent elements that share one scale and bias.
    channel: usize,
    /// Number of scales, over which the elements of all rows cycle.
    per: usize,
    centred: bool,
    epsilon: f32,
    epilogue: Option<Epilogue>,
    /// Scale and zero point of the second output.
    quantize: Option<(f32, f32)>,
    machine: Machine,
}

impl NormStep {
    fn registers_bytes(&self) -> usize {
        self.epilogue.as_ref().map_or(0, |epilogue| epilogue.registers() * size_of::<Register>())
    }

    /// Rows in f32 at a time, where they lie in memory otherwise: two, where both are near.
    fn together(&self) -> usize {
        if self.types == (DType::F32, DType::F32) {
            0
        } else if 2 * self.length * size_of::<f32>() <= NEAR_BYTES {
            2
        } else {
            1
        }
    }

    /// Registers, then those rows.
    fn thread_bytes(&self) -> usize {
        let rows = self.together() * self.length * size_of::<f32>();
        own_bytes(self.registers_bytes() + rows.next_multiple_of(size_of::<Register>()))
    }

    fn parts(&self) -> usize {
        let small = self.rows * self.length < PARALLEL_ELEMENTS;
        if small { 1 } else { (self.machine.pool.threads() * 4).min(self.rows.max(1)) }
    }
}

impl Step for NormStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let parts = self.parts();
        assert!(arguments.workspace.len() >= parts * self.thread_bytes());
        self.machine.pool.run(parts, &|part| match self.types {
            (DType::F32, DType::F32) => self.run_in_place(arguments, part, parts),
            (DType::F32, _) => self.run_part::<f32, bf16>(arguments, part, parts),
            (_, DType::F32) => self.run_part::<bf16, f32>(arguments, part, parts),
            (..) => self.run_part::<bf16, bf16>(arguments, part, parts),
        });
    }
}

impl NormStep {
    /// The registers of a part and its rows in f32.
    fn scratch<'a>(&self, arguments: &Arguments<'a>, part: usize) -> (&'a mut [Register], &'a mut [f32]) {
        // SAFETY: each part has its own bytes of the workspace, in whole registers.
        let all = unsafe { registers_of(arguments.workspace, part, self.thread_bytes()) };
        let (registers, row) = all.split_at_mut(self.registers_bytes() / size_of::<Register>());
        (registers, bytemuck::cast_slice_mut(row))
    }

    fn rows(&self, part: usize, parts: usize) -> (usize, usize) {
        (part * self.rows / parts, (part + 1) * self.rows / parts)
    }

    /// Rows of f32, written where they end.
    fn run_in_place(&self, arguments: &Arguments<'_>, part: usize, parts: usize) {
        let (first, last) = self.rows(part, parts);
        // SAFETY: inputs are not written during the step; each part has its rows of the output.
        let (x, block) = unsafe {
            let count = (last - first) * self.length;
            let block = part_mut::<f32>(arguments.outputs[0], first * self.length, count);
            (arguments.inputs[0].unwrap_or(View::empty()).slice::<f32>(), block)
        };
        let (registers, _) = self.scratch(arguments, part);
        let (scale, bias) = self.affine_of_rows(arguments);
        for (row, out) in (first..last).zip(block.chunks_exact_mut(self.length.max(1))) {
            let source = &x[row * self.length..][..self.length];
            normalise_row(self.machine.isa, source, out, (self.centred, self.epsilon), scale, bias);
            self.finish_row(arguments, row, out, registers);
        }
    }

    /// Rows of other datatypes, by way of f32.
    fn run_part<T: Real, U: Real>(&self, arguments: &Arguments<'_>, part: usize, parts: usize) {
        let isa = self.machine.isa;
        let (first, last) = self.rows(part, parts);
        // SAFETY: inputs are not written during the step; each part has its rows of the output.
        let (x, block) = unsafe {
            let count = (last - first) * self.length;
            let block = part_mut::<U>(arguments.outputs[0], first * self.length, count);
            (arguments.inputs[0].unwrap_or(View::empty()).slice::<T>(), block)
        };
        let (registers, scratch) = self.scratch(arguments, part);
        let (together, length) = (self.together().max(1), self.length.max(1));
        let (scale, bias) = self.affine_of_rows(arguments);
        for (start, outs) in (first..last).step_by(together).zip(block.chunks_mut(together * length)) {
            let lines = &mut scratch[..outs.len()];
            T::widen_all(isa, &x[start * length..][..outs.len()], lines);
            normalise_lines(isa, lines, length, (self.centred, self.epsilon), scale, bias);
            let each = lines.chunks_exact_mut(length).zip(outs.chunks_exact_mut(length));
            for (row, (line, out)) in (start..).zip(each) {
                self.finish_row(arguments, row, line, registers);
                U::narrow_all(isa, line, out);
            }
        }
    }

    /// Scale and bias; empty where there are none.
    fn affine<'a>(&self, arguments: &Arguments<'a>) -> (&'a [f32], &'a [f32]) {
        let view = |index: usize| arguments.inputs.get(index).copied().flatten().unwrap_or(View::empty());
        // SAFETY: inputs are not written during the step.
        unsafe { (view(1).slice::<f32>(), view(2).slice::<f32>()) }
    }

    /// Whether each element of a row has a scale and a bias of its own, the same in all rows.
    fn is_affine_by_element(&self) -> bool {
        self.channel == 1 && self.per == self.length
    }

    /// Scale and bias of the elements of each row; empty where there are none, or they are those of channels.
    fn affine_of_rows<'a>(&self, arguments: &Arguments<'a>) -> (&'a [f32], &'a [f32]) {
        if self.is_affine_by_element() { self.affine(arguments) } else { (&[], &[]) }
    }

    /// Scale and bias of channels and the epilogue of a normalised row, and what is quantised of that.
    fn finish_row(&self, arguments: &Arguments<'_>, row: usize, out: &mut [f32], registers: &mut [Register]) {
        let start = row * self.length;
        if !self.is_affine_by_element() {
            let (scale, bias) = self.affine(arguments);
            for (index, plane) in out.chunks_mut(self.channel.max(1)).enumerate() {
                let channel = (start / self.channel + index) % self.per;
                let (a, b) = (scale.get(channel).copied().unwrap_or(1.0), bias.get(channel).copied());
                let b = b.unwrap_or(0.0);
                plane.iter_mut().for_each(|element| *element = *element * a + b);
            }
        }
        if let Some(epilogue) = &self.epilogue {
            let extra = arguments.inputs.get(3..).unwrap_or_default();
            for (index, block) in out.chunks_mut(BLOCK).enumerate() {
                let columns = block.len();
                epilogue.apply(extra, block, columns, (1, columns), (start + index * BLOCK, 0), registers);
            }
        }
        if let (Some(steps), Some(&quantized)) = (self.quantize, arguments.outputs.get(1)) {
            // SAFETY: the row is this part's alone.
            let bytes = unsafe { part_mut::<u8>(quantized, start, out.len()) };
            bytes_of_f32(self.machine.isa, out, steps, bytes);
        }
    }
}

on_vectors! {
    /// One row, from `x` to `out`, which is as long; `how` is whether it is centred, and ε. Scale and bias may be missing.
    fn normalise_row(x: &[f32], out: &mut [f32], how: (bool, f32), scale: &[f32], bias: &[f32]) = normalise
}

on_vectors! {
    /// Rows of a length in place, two at most: what one waits for, the other need not.
    fn normalise_lines(lines: &mut [f32], length: usize, how: (bool, f32), scale: &[f32], bias: &[f32]) = normalise_here
}

/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn normalise<V: Vector>(x: &[f32], out: &mut [f32], how: (bool, f32), scale: &[f32], bias: &[f32]) {
    assert_eq!(x.len(), out.len());
    // SAFETY: the caller's promise; both rows are as long.
    unsafe {
        let mean = mean::<V>(x, how);
        let factor = factor::<V>(x, mean, how);
        write_row::<V>(x.as_ptr(), (out.as_mut_ptr(), x.len()), (mean, factor), scale, bias);
    }
}

/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn normalise_here<V: Vector>(lines: &mut [f32], length: usize, how: (bool, f32), scale: &[f32], bias: &[f32]) {
    let count = lines.len() / length;
    assert!(count <= 2);
    let (mut means, mut factors) = ([0.0; 2], [1.0; 2]);
    // SAFETY: the caller's promise; both pointers are to the row, of which nothing else is borrowed while they are used.
    unsafe {
        for index in 0..count {
            means[index] = mean::<V>(&lines[index * length..][..length], how);
        }
        for index in 0..count {
            factors[index] = factor::<V>(&lines[index * length..][..length], means[index], how);
        }
        for index in 0..count {
            let line = lines[index * length..][..length].as_mut_ptr();
            write_row::<V>(line, (line, length), (means[index], factors[index]), scale, bias);
        }
    }
}

/// The mean of a row; 0 where it is not taken off.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn mean<V: Vector>(x: &[f32], (centred, _): (bool, f32)) -> f32 {
    // SAFETY: the caller's promise.
    if centred { unsafe { sum_about::<V, false>(x, 0.0) / x.len() as f32 } } else { 0.0 }
}

/// The reciprocal of the deviation of a row from its mean.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn factor<V: Vector>(x: &[f32], mean: f32, (_, epsilon): (bool, f32)) -> f32 {
    // SAFETY: the caller's promise.
    1.0 / unsafe { sum_about::<V, true>(x, mean) / x.len() as f32 + epsilon }.sqrt()
}

/// The sum of a row, or of the `SQUARES` of its distances from a mean: in several running sums, of which none waits for itself.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn sum_about<V: Vector, const SQUARES: bool>(x: &[f32], mean: f32) -> f32 {
    const SUMS: usize = 4;
    let from = x.as_ptr();
    // SAFETY: the caller's promise; registers are read inside the row.
    unsafe {
        let means = V::splat(mean);
        let mut sums = [V::splat(0.0); SUMS];
        let mut at = 0;
        while at + SUMS * V::LANES <= x.len() {
            for index in 0..SUMS {
                sums[index] = add::<V, SQUARES>(sums[index], from.add(at + index * V::LANES), means);
            }
            at += SUMS * V::LANES;
        }
        while at + V::LANES <= x.len() {
            sums[0] = add::<V, SQUARES>(sums[0], from.add(at), means);
            at += V::LANES;
        }
        let [a, b, c, d] = sums;
        let mut sum = a.plus(b).plus(c.plus(d)).sum_of_lanes();
        while at < x.len() {
            let number = x[at];
            sum += if SQUARES { (number - mean) * (number - mean) } else { number };
            at += 1;
        }
        sum
    }
}

/// Adds the numbers of a register, or the squares of their distances.
///
/// # Safety
/// As [`Vector::load`].
#[inline(always)]
unsafe fn add<V: Vector, const SQUARES: bool>(sum: V, from: *const f32, means: V) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        let number = V::load(from);
        if !SQUARES {
            return sum.plus(number);
        }
        let distance = number.minus(means);
        sum.plus_product(distance, distance)
    }
}

/// Normalises a row to where it belongs, which may be where it is: a number is written once it was read.
///
/// # Safety
/// As [`Vector`]; so many numbers can be read and written.
#[inline(always)]
unsafe fn write_row<V: Vector>(
    from: *const f32,
    (to, len): (*mut f32, usize),
    (mean, factor): (f32, f32),
    scale: &[f32],
    bias: &[f32],
) {
    assert!([scale, bias].iter().all(|numbers| numbers.is_empty() || numbers.len() >= len));
    // SAFETY: the caller's promise; scale and bias have a number for each (just checked), where there are any.
    unsafe {
        let (means, factors) = (V::splat(mean), V::splat(factor));
        let mut at = 0;
        while at + V::LANES <= len {
            let mut number = V::load(from.add(at)).minus(means).times(factors);
            if !scale.is_empty() {
                number = number.times(V::load(scale.as_ptr().add(at)));
            }
            if !bias.is_empty() {
                number = number.plus(V::load(bias.as_ptr().add(at)));
            }
            number.store(to.add(at));
            at += V::LANES;
        }
        while at < len {
            let mut number = (from.add(at).read() - mean) * factor;
            if !scale.is_empty() {
                number *= scale[at];
            }
            if !bias.is_empty() {
                number += bias[at];
            }
            to.add(at).write(number);
            at += 1;
        }
    }
}
