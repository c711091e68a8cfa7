//! Quantize and Dequantize: scales per tensor, per index of an axis, or per block of one.

#[cfg(target_arch = "x86_64")]
mod avx512;

use super::Machine;
use super::copy::split;
use super::lines::{Lines, in_lines};
use super::parameters::desc;
use crate::Isa;
use crate::isa::multiversion;
use half::{bf16, f16};
use halimede_compute::layout::{LINE_BYTES, Layout, Layouts, Stance, Stances};
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::{Dequantize, Quantize};
use halimede_tensor::convert::MiniFloat;
use halimede_tensor::{CastOptions, DType, View};
use smallvec::smallvec;

/// Elements handled at once; their scales and results stay in the nearest cache.
const BLOCK: usize = 256;

/// Where the scale of each element lies: rows of neighbours whose scales are one, or follow each other.
#[derive(Clone, Copy)]
struct Scales {
    rows: usize,
    run: usize,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// One for all.
    Tensor,
    /// Row `r` has scale `r % size`.
    PerRow { size: usize },
    /// Element `i` of each row has scale `i`.
    PerElement,
    /// Row `(o, a)` of an axis of `size` has the scales from `(o · blocks + a / block) · run` on.
    Blocks { size: usize, blocks: usize, block: usize },
}

impl Scales {
    fn new(x: &TensorDesc, scale: &TensorDesc, axis: usize, block: usize) -> Result<Scales, OpError> {
        let count = x.len();
        if block == 0 && scale.len() == 1 {
            return Ok(Scales { rows: 1, run: count, kind: Kind::Tensor });
        }
        let message =
            || OpError::invalid(format!("scales of shape {:?} for axis {axis} of {:?}", scale.shape, x.shape));
        let &size = x.shape.get(axis).ok_or_else(message)?;
        let inner: usize = x.shape[axis + 1..].iter().product();
        let outer: usize = x.shape[..axis].iter().product();
        if block == 0 {
            if scale.shape.as_slice() != [size] {
                return Err(message());
            }
            return Ok(match inner {
                1 => Scales { rows: outer, run: size, kind: Kind::PerElement },
                _ => Scales { rows: outer * size, run: inner, kind: Kind::PerRow { size } },
            });
        }
        let blocks = size.div_ceil(block);
        let mut expected = x.shape.clone();
        expected[axis] = blocks;
        if scale.shape != expected {
            return Err(message());
        }
        Ok(Scales { rows: outer * size, run: inner, kind: Kind::Blocks { size, blocks, block } })
    }

    /// The place of the scale of element `index` of a row.
    #[inline(always)]
    fn place(self, row: usize, index: usize) -> usize {
        match self.kind {
            Kind::Tensor => 0,
            Kind::PerRow { size } => row % size,
            Kind::PerElement => index,
            Kind::Blocks { size, blocks, block } => (row / size * blocks + row % size / block) * self.run + index,
        }
    }

    /// Splits everything over the pool in stretches of at most a block: `work(row, first, start, len)`
    /// with `start` the place of the first element in the tensor.
    fn each(self, machine: &Machine, bytes: usize, work: &(dyn Fn(usize, usize, usize, usize) + Sync)) {
        let stretches = self.run.div_ceil(BLOCK);
        split(machine, self.rows * stretches, bytes, &|range| {
            for item in range {
                let (row, first) = (item / stretches, item % stretches * BLOCK);
                work(row, first, row * self.run + first, BLOCK.min(self.run - first));
            }
        });
    }
}

/// Reads floats as f32.
///
/// # Safety
/// Nobody writes the view meanwhile.
unsafe fn floats(view: View<'_>, dtype: DType, start: usize, out: &mut [f32]) {
    let end = start + out.len();
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F32 => out.copy_from_slice(&view.slice::<f32>()[start..end]),
            DType::F16 => out.iter_mut().zip(&view.slice::<f16>()[start..end]).for_each(|(o, x)| *o = x.to_f32()),
            DType::Bf16 => out.iter_mut().zip(&view.slice::<bf16>()[start..end]).for_each(|(o, x)| *o = x.to_f32()),
            _ => out.iter_mut().zip(&view.slice::<i32>()[start..end]).for_each(|(o, x)| *o = *x as f32),
        }
    }
}

/// Reads integers as i32.
///
/// # Safety
/// Nobody writes the view meanwhile.
unsafe fn integers(isa: Isa, view: View<'_>, dtype: DType, start: usize, out: &mut [i32]) {
    let end = start + out.len();
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::I32 => out.copy_from_slice(&view.slice::<i32>()[start..end]),
            DType::I16 => out.iter_mut().zip(&view.slice::<i16>()[start..end]).for_each(|(o, x)| *o = (*x).into()),
            DType::U16 => out.iter_mut().zip(&view.slice::<u16>()[start..end]).for_each(|(o, x)| *o = (*x).into()),
            dtype if dtype.is_signed_integer() => widen_signed(isa, &view.slice::<i8>()[start..end], out),
            _ => widen(isa, &view.slice::<u8>()[start..end], out),
        }
    }
}

multiversion! {
    fn widen(from: &[u8], to: &mut [i32]) = convert::<u8, i32>
}

multiversion! {
    fn widen_signed(from: &[i8], to: &mut [i32]) = convert::<i8, i32>
}

#[inline(always)]
fn convert<T: Copy, U: From<T>>(from: &[T], to: &mut [U]) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = from.into());
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::Bf16)
}

/// Integers of at most 16 bits, which quantised tensors hold.
fn is_short(dtype: DType) -> bool {
    dtype.is_integer() && dtype.bits() <= 16
}

pub(super) struct QuantizeKernel {
    pub op: Quantize,
    pub machine: Machine,
}

struct QuantizeStep {
    scales: Scales,
    x: DType,
    scale: DType,
    zero: Option<DType>,
    to: DType,
    precision: DType,
    float: Option<(MiniFloat, CastOptions)>,
    /// Columns of blocked data, and how they lie.
    blocked: Option<(usize, Lines)>,
    machine: Machine,
}

/// Numbers of a line of bf16.
const LINE: usize = LINE_BYTES / size_of::<bf16>();
// Blocks of elements are whole lines.
const _: () = assert!(BLOCK.is_multiple_of(LINE));

impl QuantizeStep {
    /// Whether it is of the commonest form: one scale for all, f32 or bf16 to U8.
    fn makes_bytes(&self) -> bool {
        matches!(self.scales.kind, Kind::Tensor)
            && matches!(self.x, DType::F32 | DType::Bf16)
            && (self.to, self.precision, self.scale) == (DType::U8, DType::F32, DType::F32)
    }

    /// Whether it can read such data in blocks.
    fn reads_blocks(&self, x: &TensorDesc) -> bool {
        self.makes_bytes() && self.x == DType::Bf16 && in_lines(x).is_some_and(|lines| !lines.is_empty())
    }
}

impl QuantizeKernel {
    fn step(&self, inputs: &[Option<TensorDesc>]) -> Result<QuantizeStep, OpError> {
        let (x, scale) = (desc(inputs, 0)?, desc(inputs, 1)?);
        let zero = inputs.get(2).and_then(Option::as_ref);
        let float = MiniFloat::of(self.op.to)
            .map(|format| (format, CastOptions { saturate: self.op.saturate, ..CastOptions::default() }));
        let known = (is_float(x.dtype) || x.dtype == DType::I32)
            && is_float(scale.dtype)
            && (float.is_some() || is_short(self.op.to))
            && (float.is_some() || zero.is_none_or(|zero| is_short(zero.dtype)));
        if !known {
            return Err(OpError::unsupported(format!("quantisation of {} to {}", x.dtype, self.op.to)));
        }
        if let Some(zero) = zero.filter(|zero| zero.len() != scale.len()) {
            return Err(OpError::invalid(format!("{} zero points for {} scales", zero.len(), scale.len())));
        }
        let step = QuantizeStep {
            scales: Scales::new(x, scale, self.op.axis, self.op.block)?,
            x: x.dtype,
            scale: scale.dtype,
            zero: zero.filter(|_| float.is_none()).map(|zero| zero.dtype),
            to: self.op.to,
            precision: self.op.precision.unwrap_or(if is_float(x.dtype) { x.dtype } else { scale.dtype }),
            float,
            blocked: None,
            machine: self.machine.clone(),
        };
        Ok(step)
    }
}

impl Kernel for QuantizeKernel {
    fn name(&self) -> &str {
        "quantize"
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        self.prepare_laid_out(inputs, outputs, &Layouts::default())
    }

    fn stances(&self, inputs: &[Option<TensorDesc>], _outputs: &[TensorDesc]) -> Option<Stances> {
        let reads_blocks = self.machine.blocks_values() && self.step(inputs).ok()?.reads_blocks(desc(inputs, 0).ok()?);
        let (inputs, output) = (smallvec![Stance::Either], Stance::RowMajor);
        reads_blocks.then_some(Stances { inputs, output, takes_borders: false })
    }

    fn prepare_laid_out(
        &self,
        inputs: &[Option<TensorDesc>],
        _outputs: &[TensorDesc],
        layouts: &Layouts,
    ) -> Result<Prepared, OpError> {
        let (mut step, x) = (self.step(inputs)?, desc(inputs, 0)?);
        if layouts.is_blocked(0) {
            let columns = x.shape.last().copied().filter(|_| step.reads_blocks(x));
            let columns = columns.ok_or_else(|| OpError::unsupported("quantisation of blocks"))?;
            step.blocked = Some((columns, Lines::of(Layout::Blocked, x.len() / columns, columns, x.dtype.size())));
        }
        Ok(Prepared { step: Box::new(step), workspace: 0 })
    }
}

impl Step for QuantizeStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let [Some(x), Some(scale), ..] = *arguments.inputs else { return };
        let zero = arguments.inputs.get(2).copied().flatten().zip(self.zero);
        let (output, isa) = (arguments.outputs[0], self.machine.isa);
        if self.makes_bytes() {
            let mut offset = [0];
            // SAFETY: inputs; nobody writes them while the step runs.
            let scale = unsafe {
                if let Some((zero, dtype)) = zero {
                    integers(isa, zero, dtype, 0, &mut offset);
                }
                scale.slice::<f32>()[0]
            };
            return self.run_bytes(x, (scale, offset[0] as f32), output);
        }
        self.scales.each(&self.machine, x.len(), &|row, first, start, count| {
            let (mut q, mut scales, mut zeros) = ([0f32; BLOCK], [0f32; BLOCK], [0i32; BLOCK]);
            let (q, scales, zeros) = (&mut q[..count], &mut scales[..count], &mut zeros[..count]);
            // SAFETY: inputs; nobody writes them while the step runs.
            unsafe {
                floats(x, self.x, start, q);
                self.scales.gather(row, first, scales, |place, out| floats(scale, self.scale, place, out));
                if let Some((zero, dtype)) = zero {
                    self.scales.gather(row, first, zeros, |place, out| integers(isa, zero, dtype, place, out));
                }
            }
            divide(self.machine.isa, q, scales);
            match self.precision {
                DType::F16 => q.iter_mut().for_each(|q| *q = f16::from_f32(*q).to_f32()),
                DType::Bf16 => q.iter_mut().for_each(|q| *q = bf16::from_f32(*q).to_f32()),
                _ => {}
            }
            // SAFETY: the elements of this stretch belong to this part of the loop alone.
            unsafe { self.store(q, zeros, output, start) };
        });
    }
}

impl Scales {
    /// The values of a stretch's scales, read by `read(place, out)`.
    fn gather<T: Copy>(self, row: usize, first: usize, out: &mut [T], read: impl Fn(usize, &mut [T])) {
        match self.kind {
            Kind::PerElement | Kind::Blocks { .. } => read(self.place(row, first), out),
            Kind::Tensor | Kind::PerRow { .. } => {
                read(self.place(row, first), &mut out[..1]);
                let one = out[0];
                out.fill(one);
            }
        }
    }
}

multiversion! {
    fn divide(x: &mut [f32], scales: &[f32]) = divide_body
}

#[inline(always)]
fn divide_body(x: &mut [f32], scales: &[f32]) {
    x.iter_mut().zip(scales).for_each(|(x, scale)| *x /= scale);
}

multiversion! {
    /// Rounds to even, adds the zero points and keeps within the range of a datatype.
    fn round(q: &mut [f32], zeros: &[i32], low: f32, high: f32) = round_body
}

#[inline(always)]
fn round_body(q: &mut [f32], zeros: &[i32], low: f32, high: f32) {
    for (q, &zero) in q.iter_mut().zip(zeros) {
        // Sums of whole numbers below 2^24 are exact, and beyond the range they do not matter. NaN
        // counts as 0, as in a cast to an integer.
        let whole = if q.is_nan() { 0.0 } else { q.round_ties_even() };
        *q = (whole + zero as f32).clamp(low, high);
    }
}

multiversion! {
    /// Whole numbers as integers, whose range they are within.
    fn narrow(q: &[f32], out: &mut [u8]) = narrow_body
}

#[inline(always)]
fn narrow_body(q: &[f32], out: &mut [u8]) {
    // SAFETY: see `whole`.
    out.iter_mut().zip(q).for_each(|(out, &q)| *out = unsafe { whole(q) } as u8);
}

multiversion! {
    /// The same with signs.
    fn narrow_signed(q: &[f32], out: &mut [i8]) = narrow_signed_body
}

#[inline(always)]
fn narrow_signed_body(q: &[f32], out: &mut [i8]) {
    // SAFETY: see `whole`.
    out.iter_mut().zip(q).for_each(|(out, &q)| *out = unsafe { whole(q) } as i8);
}

/// A number as an integer, without the branches for what lies outside of an i32.
///
/// # Safety
/// It lies inside, which [`round`] has seen to.
#[inline(always)]
unsafe fn whole(q: f32) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { q.to_int_unchecked() }
}

/// Numbers that are rounded at once.
const TOGETHER: usize = 64;
/// Products by the inverse of a scale that come this near to the middle of two whole numbers may be rounded otherwise than
/// quotients. Below 512, beyond which bytes are at their bounds, the two differ by less.
const NEAR_MIDDLE: f32 = 1e-4;

/// Numbers as bytes without signs: in a scale, from a zero point on. Divisions, which take most of the time, are only done
/// where products by the inverse do not tell.
#[inline(always)]
fn bytes_body<T: Copy>(
    x: &[T],
    steps: (f32, f32),
    out: &mut [u8],
    widen: impl Fn(T) -> f32,
    products: impl Fn(&[T; TOGETHER], (f32, f32), &mut [u8; TOGETHER]) -> bool,
) {
    let inverse = 1.0 / steps.0;
    let tells = steps.0.is_normal() && inverse.is_normal();
    let ((wide, rest), (wide_out, rest_out)) = (x.as_chunks::<TOGETHER>(), out.as_chunks_mut::<TOGETHER>());
    for (x, out) in wide.iter().zip(wide_out) {
        if !(tells && products(x, (inverse, steps.1), out)) {
            round_quotients(x, steps, out, &widen);
        }
    }
    round_quotients(rest, steps, rest_out, &widen);
}

/// Whether all products by the inverse of a scale are rounded as the quotients are; if so, the bytes are right.
#[inline(always)]
fn round_products<T: Copy>(
    x: &[T; TOGETHER],
    (inverse, zero): (f32, f32),
    out: &mut [u8; TOGETHER],
    widen: &impl Fn(T) -> f32,
) -> bool {
    let mut unsure = 0;
    for (out, &x) in out.iter_mut().zip(x) {
        let product = widen(x) * inverse;
        let steps = product.round_ties_even();
        unsure |= u32::from((product - steps).abs() > 0.5 - NEAR_MIDDLE);
        *out = byte(steps, zero);
    }
    unsure == 0
}

#[inline(always)]
fn round_quotients<T: Copy>(x: &[T], (scale, zero): (f32, f32), out: &mut [u8], widen: &impl Fn(T) -> f32) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = byte((widen(x) / scale).round_ties_even(), zero);
    }
}

/// So many whole steps from a zero point on, as [`round`] keeps them within range.
#[inline(always)]
fn byte(steps: f32, zero: f32) -> u8 {
    let steps = if steps.is_nan() { 0.0 } else { steps };
    // SAFETY: it lies inside.
    unsafe { whole((steps + zero).clamp(0.0, 255.0)) as u8 }
}

#[inline(always)]
fn bytes_of_f32_body(x: &[f32], steps: (f32, f32), out: &mut [u8]) {
    let widen = |x| x;
    bytes_body(x, steps, out, widen, |x, steps, out| round_products(x, steps, out, &widen));
}

#[inline(always)]
fn bytes_of_bf16_body(x: &[bf16], steps: (f32, f32), out: &mut [u8]) {
    let widen = |x: bf16| f32::from_bits(u32::from(x.to_bits()) << 16);
    bytes_body(x, steps, out, widen, |x, steps, out| round_products(x, steps, out, &widen));
}

multiversion! {
    fn vectorised_bytes_of_f32(x: &[f32], steps: (f32, f32), out: &mut [u8]) = bytes_of_f32_body
}

multiversion! {
    fn vectorised_bytes_of_bf16(x: &[bf16], steps: (f32, f32), out: &mut [u8]) = bytes_of_bf16_body
}

/// `saturate(round(x / scale) + zero)` with `steps` being scale and zero point; as many as `x`.
pub(super) fn bytes_of_f32(isa: Isa, x: &[f32], steps: (f32, f32), out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx512() {
        // SAFETY: the machine has AVX-512.
        return unsafe { avx512::bytes(x, steps, out) };
    }
    vectorised_bytes_of_f32(isa, x, steps, out);
}

/// The same of bf16.
fn bytes_of_bf16(isa: Isa, x: &[bf16], steps: (f32, f32), out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx512() {
        // SAFETY: the machine has AVX-512.
        return unsafe { avx512::bytes(x, steps, out) };
    }
    vectorised_bytes_of_bf16(isa, x, steps, out);
}

/// The same of blocked data, from one element on, in the order of the rows.
fn bytes_of_lines(
    isa: Isa,
    x: &[bf16],
    (first, (columns, lines)): (usize, (usize, Lines)),
    steps: (f32, f32),
    out: &mut [u8],
) {
    let mut block = [bf16::ZERO; BLOCK];
    let (mut row, mut column) = (first / columns, first % columns);
    for out in out.chunks_mut(BLOCK) {
        let block = &mut block[..out.len()];
        for to in block.as_chunks_mut::<LINE>().0 {
            // Of lines that have so many numbers, as known here, no division is left.
            let from = row * LINE + column / LINE * lines.apart;
            to.copy_from_slice(&x[from..][..LINE]);
            column += LINE;
            if column == columns {
                (row, column) = (row + 1, 0);
            }
        }
        bytes_of_bf16(isa, block, steps, out);
    }
}

impl QuantizeStep {
    /// The commonest form in one go.
    fn run_bytes(&self, x: View<'_>, steps: (f32, f32), output: View<'_>) {
        let (count, isa) = (self.scales.run, self.machine.isa);
        assert!(count <= output.len());
        split(&self.machine, count.div_ceil(BLOCK), x.len(), &|range| {
            let elements = range.start * BLOCK..(range.end * BLOCK).min(count);
            // SAFETY: inside the output, as the sizes say; these elements belong to this part of the loop alone.
            let out = unsafe { std::slice::from_raw_parts_mut(output.as_ptr().add(elements.start), elements.len()) };
            // SAFETY: inputs; nobody writes them while the step runs.
            unsafe {
                match (self.x, self.blocked) {
                    (_, Some(lines)) => bytes_of_lines(isa, x.slice::<bf16>(), (elements.start, lines), steps, out),
                    (DType::Bf16, _) => bytes_of_bf16(isa, &x.slice::<bf16>()[elements], steps, out),
                    _ => bytes_of_f32(isa, &x.slice::<f32>()[elements], steps, out),
                }
            }
        });
    }

    /// # Safety
    /// Nobody else touches the elements from `start` on that are written.
    unsafe fn store(&self, q: &mut [f32], zeros: &[i32], output: View<'_>, start: usize) {
        let count = q.len();
        let place = |width: usize| {
            assert!((start + count) * width <= output.len());
            // SAFETY: inside the output.
            unsafe { output.as_ptr().add(start * width) }
        };
        if let Some((format, options)) = self.float {
            // SAFETY: the caller's promise, for this stretch alone.
            let out = unsafe { std::slice::from_raw_parts_mut(place(1), count) };
            out.iter_mut().zip(q).for_each(|(out, q)| *out = format.encode((*q).into(), options));
            return;
        }
        let bits = self.to.bits() as i32;
        let (low, high) = match self.to.is_signed_integer() {
            true => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
            false => (0, (1 << bits) - 1),
        };
        round(self.machine.isa, q, zeros, low as f32, high as f32);
        // SAFETY: the caller's promise, for this stretch alone; 16-bit outputs are aligned to their size.
        unsafe {
            match (self.to.size(), self.to.is_signed_integer()) {
                (1, true) => {
                    let out = std::slice::from_raw_parts_mut(place(1).cast::<i8>(), count);
                    narrow_signed(self.machine.isa, q, out);
                }
                (1, false) => {
                    let out = std::slice::from_raw_parts_mut(place(1), count);
                    narrow(self.machine.isa, q, out);
                }
                (_, true) => {
                    let out = std::slice::from_raw_parts_mut(place(2).cast::<i16>(), count);
                    out.iter_mut().zip(q).for_each(|(out, q)| *out = *q as i16);
                }
                (_, false) => {
                    let out = std::slice::from_raw_parts_mut(place(2).cast::<u16>(), count);
                    out.iter_mut().zip(q).for_each(|(out, q)| *out = *q as u16);
                }
            }
        }
    }
}

multiversion! {
    fn differences(whole: &[i32], zeros: &[i32], out: &mut [f32]) = differences_body
}

#[inline(always)]
fn differences_body(whole: &[i32], zeros: &[i32], out: &mut [f32]) {
    out.iter_mut().zip(whole.iter().zip(zeros)).for_each(|(out, (x, zero))| *out = (x - zero) as f32);
}

multiversion! {
    fn multiply(x: &mut [f32], scales: &[f32]) = multiply_body
}

#[inline(always)]
fn multiply_body(x: &mut [f32], scales: &[f32]) {
    x.iter_mut().zip(scales).for_each(|(x, scale)| *x *= scale);
}

pub(super) struct DequantizeKernel {
    pub op: Dequantize,
    pub machine: Machine,
}

struct DequantizeStep {
    scales: Scales,
    x: DType,
    scale: DType,
    zero: Option<DType>,
    to: DType,
    /// What each bit pattern of an 8- or 4-bit float is worth.
    table: Option<Box<[f32; 256]>>,
    machine: Machine,
}

impl Kernel for DequantizeKernel {
    fn name(&self) -> &str {
        "dequantize"
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        let (x, scale) = (desc(inputs, 0)?, desc(inputs, 1)?);
        let zero = inputs.get(2).and_then(Option::as_ref);
        let table = MiniFloat::of(x.dtype).map(|format| Box::new(format.table()));
        let known = (table.is_some() || is_short(x.dtype) || x.dtype == DType::I32)
            && is_float(scale.dtype)
            && is_float(outputs[0].dtype)
            && (table.is_some() || zero.is_none_or(|zero| is_short(zero.dtype) || zero.dtype == DType::I32));
        if !known {
            return Err(OpError::unsupported(format!("dequantisation of {}", x.dtype)));
        }
        if let Some(zero) = zero.filter(|zero| zero.len() != scale.len()) {
            return Err(OpError::invalid(format!("{} zero points for {} scales", zero.len(), scale.len())));
        }
        let step = DequantizeStep {
            scales: Scales::new(x, scale, self.op.axis, self.op.block)?,
            x: x.dtype,
            scale: scale.dtype,
            zero: zero.filter(|_| table.is_none()).map(|zero| zero.dtype),
            to: outputs[0].dtype,
            table,
            machine: self.machine.clone(),
        };
        Ok(Prepared { step: Box::new(step), workspace: 0 })
    }
}

impl Step for DequantizeStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let [Some(x), Some(scale), ..] = *arguments.inputs else { return };
        let zero = arguments.inputs.get(2).copied().flatten().zip(self.zero);
        let (output, isa) = (arguments.outputs[0], self.machine.isa);
        self.scales.each(&self.machine, output.len(), &|row, first, start, count| {
            let (mut out, mut scales) = ([0f32; BLOCK], [0f32; BLOCK]);
            let (out, scales) = (&mut out[..count], &mut scales[..count]);
            // SAFETY: inputs; nobody writes them while the step runs.
            unsafe {
                self.scales.gather(row, first, scales, |place, out| floats(scale, self.scale, place, out));
                match &self.table {
                    Some(table) => {
                        let patterns = &x.slice::<u8>()[start..start + count];
                        out.iter_mut().zip(patterns).for_each(|(out, x)| *out = table[usize::from(*x)]);
                    }
                    None => {
                        let (mut whole, mut zeros) = ([0i32; BLOCK], [0i32; BLOCK]);
                        let (whole, zeros) = (&mut whole[..count], &mut zeros[..count]);
                        integers(isa, x, self.x, start, whole);
                        if let Some((zero, dtype)) = zero {
                            self.scales.gather(row, first, zeros, |place, out| integers(isa, zero, dtype, place, out));
                        }
                        // Only the difference of 32-bit integers may need more bits.
                        let values = out.iter_mut().zip(whole.iter().zip(zeros.iter()));
                        match self.x {
                            DType::I32 => values.for_each(|(o, (x, z))| *o = (i64::from(*x) - i64::from(*z)) as f32),
                            _ => differences(isa, whole, zeros, out),
                        }
                    }
                }
            }
            multiply(isa, out, scales);
            let width = self.to.size();
            assert!((start + count) * width <= output.len());
            // SAFETY: inside the output, and this stretch belongs to this part of the loop alone.
            unsafe {
                let place = output.as_ptr().add(start * width);
                match self.to {
                    DType::F32 => std::slice::from_raw_parts_mut(place.cast::<f32>(), count).copy_from_slice(out),
                    DType::F16 => {
                        let target = std::slice::from_raw_parts_mut(place.cast::<f16>(), count);
                        target.iter_mut().zip(out).for_each(|(target, x)| *target = f16::from_f32(*x));
                    }
                    _ => {
                        let target = std::slice::from_raw_parts_mut(place.cast::<bf16>(), count);
                        target.iter_mut().zip(out).for_each(|(target, x)| *target = bf16::from_f32(*x));
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_quotients() {
        let special = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-40, 300.0, -300.0];
        let scales = [1.0, 0.25, 0.1, 0.007_812_5, 3.3e-3, 1.7e30, 2.9e-39, 1e-42, 1.0 / 3.0];
        for (scale, zero) in scales.into_iter().flat_map(|scale| [0.0, 3.0, 128.0, 255.0].map(|zero| (scale, zero))) {
            // Middles of whole numbers, what lies beside them, and other numbers.
            let middles = (-600..600).map(|half| half as f32 * 0.5 * scale);
            let beside = middles.clone().flat_map(|x| [x, x.next_up(), x.next_down(), x * 1.000_01]);
            let spread = (0..5000).map(|i| (i as f32 - 2500.0) * 0.113 * scale);
            let x: Vec<f32> = beside.chain(spread).chain(special).collect();
            let narrow: Vec<bf16> = x.iter().map(|&x| bf16::from_f32(x)).collect();
            let widened: Vec<f32> = narrow.iter().map(|x| x.to_f32()).collect();
            for isa in Isa::available() {
                check(&x, (scale, zero), isa, &|out| bytes_of_f32(isa, &x, (scale, zero), out));
                check(&widened, (scale, zero), isa, &|out| bytes_of_bf16(isa, &narrow, (scale, zero), out));
            }
        }
    }

    fn check(x: &[f32], (scale, zero): (f32, f32), isa: Isa, write: &dyn Fn(&mut [u8])) {
        let byte = |x: &f32| {
            let steps = (x / scale).round_ties_even();
            ((if steps.is_nan() { 0.0 } else { steps }) + zero).clamp(0.0, 255.0) as u8
        };
        let expected: Vec<u8> = x.iter().map(byte).collect();
        let mut out = vec![0; x.len()];
        write(&mut out);
        let first = out.iter().zip(&expected).position(|(out, expected)| out != expected);
        assert_eq!(first, None, "{:?} / {scale} from {zero} on {isa:?}", first.map(|at| x[at]));
    }
}
