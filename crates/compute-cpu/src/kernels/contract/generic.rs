//! Contractions of every datatype and layout by plain loops.

use crate::kernels::Machine;
use crate::kernels::rows::part_mut;
use crate::map::{Class, class};
use half::{bf16, f16};
use halimede_compute::{Arguments, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::Contract;
use halimede_tensor::{DType, Element};
use smallvec::SmallVec;

/// Output elements below which one thread does it all.
const PARALLEL_ELEMENTS: usize = 1024;

pub(super) struct GenericStep {
    dtype: DType,
    count: usize,
    /// Per output axis: size and distance in the operands.
    free: SmallVec<[(usize, usize, usize); 6]>,
    /// Per summed axis: size and distance in the operands.
    summed: SmallVec<[(usize, usize, usize); 4]>,
    machine: Machine,
}

impl GenericStep {
    pub fn new(
        op: &Contract,
        lhs: &TensorDesc,
        rhs: &TensorDesc,
        out: &TensorDesc,
        machine: Machine,
    ) -> Result<GenericStep, OpError> {
        if lhs.dtype != rhs.dtype || lhs.dtype != out.dtype || class(out.dtype).is_none() {
            return Err(OpError::unsupported(format!("a product of {} and {}", lhs.dtype, rhs.dtype)));
        }
        let strides = |labels: &[u8], shape: &[usize]| -> SmallVec<[(u8, usize, usize); 6]> {
            let strides = halimede_tensor::strides(shape);
            let along = |(i, &label): (usize, &u8)| (label, shape[i], if shape[i] == 1 { 0 } else { strides[i] });
            labels.iter().enumerate().map(along).collect()
        };
        let (left, right) = (strides(&op.lhs, &lhs.shape), strides(&op.rhs, &rhs.shape));
        let find = |axes: &[(u8, usize, usize)], label: u8| {
            axes.iter().find(|axis| axis.0 == label).map_or((1, 0), |axis| (axis.1, axis.2))
        };
        let axis = |label: u8| {
            let ((a, left), (b, right)) = (find(&left, label), find(&right, label));
            (if a == 1 { b } else { a }, left, right)
        };
        let mut summed: SmallVec<[u8; 6]> = SmallVec::new();
        for &label in op.lhs.iter().chain(&op.rhs) {
            if !op.out.contains(&label) && !summed.contains(&label) {
                summed.push(label);
            }
        }
        Ok(GenericStep {
            dtype: out.dtype,
            count: out.len(),
            free: op.out.iter().map(|&label| axis(label)).collect(),
            summed: summed.iter().map(|&label| axis(label)).collect(),
            machine,
        })
    }

    pub fn workspace(&self) -> usize {
        0
    }

    /// Offsets of the operands for an output element.
    fn offsets(&self, mut index: usize) -> (usize, usize) {
        let (mut left, mut right) = (0, 0);
        for &(size, a, b) in self.free.iter().rev() {
            let position = index % size;
            index /= size;
            left += position * a;
            right += position * b;
        }
        (left, right)
    }

    /// Calls `f` with the operands' offsets for every term of a sum.
    fn terms(&self, (left, right): (usize, usize), mut f: impl FnMut(usize, usize)) {
        let count: usize = self.summed.iter().map(|axis| axis.0).product();
        for mut index in 0..count {
            let (mut a, mut b) = (left, right);
            for &(size, x, y) in self.summed.iter().rev() {
                let position = index % size;
                index /= size;
                a += position * x;
                b += position * y;
            }
            f(a, b);
        }
    }

    /// Every output element as `finish(Σ widen(a)·widen(b))`.
    fn each<T: Element, S: Copy + Sync>(
        &self,
        arguments: &Arguments<'_>,
        zero: S,
        step: impl Fn(S, T, T) -> S + Sync,
        finish: impl Fn(S) -> T + Sync,
    ) {
        let (Some(left), Some(right)) = (arguments.inputs[0], arguments.inputs[1]) else { return };
        // SAFETY: inputs are not written during the step.
        let (left, right) = unsafe { (left.slice::<T>(), right.slice::<T>()) };
        let output = arguments.outputs[0];
        let parts = if self.count < PARALLEL_ELEMENTS { 1 } else { self.machine.pool.threads() * 4 };
        self.machine.pool.run(parts, &|part| {
            let (first, last) = (part * self.count / parts, (part + 1) * self.count / parts);
            // SAFETY: parts of the output do not overlap.
            let sink = unsafe { part_mut::<T>(output, first, last - first) };
            for (index, sink) in (first..last).zip(sink) {
                let mut sum = zero;
                self.terms(self.offsets(index), |a, b| sum = step(sum, left[a], right[b]));
                *sink = finish(sum);
            }
        });
    }
}

impl Step for GenericStep {
    fn run(&self, arguments: &Arguments<'_>) {
        macro_rules! integers {
            ($($t:ident: $d:ident),*) => {
                match self.dtype {
                    $(DType::$d => {
                        let step = |sum: $t, a: $t, b: $t| sum.wrapping_add(a.wrapping_mul(b));
                        self.each(arguments, 0, step, |sum| sum)
                    })*
                    _ => debug_assert!(class(self.dtype) != Some(Class::Int), "every integer is listed"),
                }
            };
        }
        match self.dtype {
            DType::F32 => self.each(arguments, 0f32, |sum, a: f32, b: f32| a.mul_add(b, sum), |sum| sum),
            DType::F64 => self.each(arguments, 0f64, |sum, a: f64, b: f64| a.mul_add(b, sum), |sum| sum),
            DType::F16 => {
                self.each(arguments, 0f32, |sum, a: f16, b: f16| a.to_f32().mul_add(b.to_f32(), sum), f16::from_f32)
            }
            DType::Bf16 => {
                self.each(arguments, 0f32, |sum, a: bf16, b: bf16| a.to_f32().mul_add(b.to_f32(), sum), bf16::from_f32)
            }
            _ => integers!(i8: I8, u8: U8, i16: I16, u16: U16, i32: I32, u32: U32, i64: I64, u64: U64),
        }
    }
}
