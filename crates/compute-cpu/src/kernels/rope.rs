//! Rotary position embedding: pairs of features turned by an angle of their position.

use super::Machine;
use super::copy::split;
use super::parameters::{Integers, desc, is_wide};
use half::{bf16, f16};
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::Rope;
use halimede_tensor::{DType, Element, View};
use smallvec::SmallVec;

pub(super) struct RopeKernel {
    pub op: Rope,
    pub machine: Machine,
}

struct RopeStep {
    interleaved: bool,
    batch: usize,
    heads: usize,
    length: usize,
    depth: usize,
    half: usize,
    /// Rows of the tables.
    rows: usize,
    wide: bool,
    dtype: DType,
    machine: Machine,
}

/// A float that is computed in f32.
trait Float: Element {
    fn load(self) -> f32;
    fn store(x: f32) -> Self;
}

impl Float for f32 {
    fn load(self) -> f32 {
        self
    }
    fn store(x: f32) -> f32 {
        x
    }
}

impl Float for f16 {
    fn load(self) -> f32 {
        self.to_f32()
    }
    fn store(x: f32) -> f16 {
        f16::from_f32(x)
    }
}

impl Float for bf16 {
    fn load(self) -> f32 {
        self.to_f32()
    }
    fn store(x: f32) -> bf16 {
        bf16::from_f32(x)
    }
}

impl Kernel for RopeKernel {
    fn name(&self) -> &str {
        "rope"
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], _outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        let (x, cos, sin) = (desc(inputs, 0)?, desc(inputs, 1)?, desc(inputs, 2)?);
        let positions = inputs.get(3).and_then(Option::as_ref);
        let known = matches!(x.dtype, DType::F32 | DType::F16 | DType::Bf16);
        if !known || cos.dtype != x.dtype || sin.dtype != x.dtype {
            return Err(OpError::unsupported(format!("rotary embedding of {}", x.dtype)));
        }
        let &[batch, heads, length, depth] = x.shape.as_slice() else {
            return Err(OpError::invalid(format!("a rotary embedding of {:?}, which should be of rank 4", x.shape)));
        };
        let turned = if self.op.rotary_dim == 0 { depth } else { self.op.rotary_dim };
        let rows = match positions {
            Some(_) => cos.shape.first().copied().unwrap_or(0),
            // The tables of one sequence serve every sequence.
            None if cos.shape.first() == Some(&1) => length,
            None => batch * length,
        };
        let half = turned / 2;
        let placed = positions.is_none_or(|positions| positions.len() == batch * length);
        if turned > depth || turned % 2 == 1 || cos.shape != sin.shape || cos.len() != rows * half || !placed {
            let (x, cos, sin) = (&x.shape, &cos.shape, &sin.shape);
            return Err(OpError::invalid(format!("cos {cos:?} and sin {sin:?} for {turned} features of {x:?}")));
        }
        let step = RopeStep {
            interleaved: self.op.interleaved,
            batch,
            heads,
            length,
            depth,
            half,
            rows,
            wide: positions.map(is_wide).transpose()?.unwrap_or(false),
            dtype: x.dtype,
            machine: self.machine.clone(),
        };
        Ok(Prepared { step: Box::new(step), workspace: 0 })
    }

    fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        SmallVec::from_slice(&[(0, 0)])
    }
}

impl RopeStep {
    fn positions<'a>(&self, arguments: &Arguments<'a>) -> Option<Integers<'a>> {
        Some(Integers::new(arguments.inputs.get(3).copied().flatten()?, self.wide))
    }
}

impl Step for RopeStep {
    fn check(&self, arguments: &Arguments<'_>) -> Result<(), OpError> {
        let outside = |position: &i64| usize::try_from(*position).is_ok_and(|p| p < self.rows);
        match self.positions(arguments).and_then(|positions| positions.iter().find(|position| !outside(position))) {
            None => Ok(()),
            Some(position) => {
                Err(OpError::invalid(format!("position {position} has no row in tables of {}", self.rows)))
            }
        }
    }

    fn run(&self, arguments: &Arguments<'_>) {
        match self.dtype {
            DType::F32 => turn::<f32>(self, arguments),
            DType::F16 => turn::<f16>(self, arguments),
            _ => turn::<bf16>(self, arguments),
        }
    }
}

fn turn<T: Float>(step: &RopeStep, arguments: &Arguments<'_>) {
    let [Some(x), Some(cos), Some(sin), ..] = *arguments.inputs else { return };
    // SAFETY: inputs, which nobody writes.
    let (cos, sin) = unsafe { (cos.slice::<T>(), sin.slice::<T>()) };
    let positions = step.positions(arguments);
    let output: View<'_> = arguments.outputs[0];
    let (depth, half) = (step.depth, step.half);
    split(&step.machine, step.batch * step.heads * step.length, output.len(), &|range| {
        for item in range {
            let place = item / (step.heads * step.length) * step.length + item % step.length;
            let row = positions.map_or(place % step.rows, |positions| positions.at(place) as usize) * half;
            let (cos, sin) = (&cos[row..row + half], &sin[row..row + half]);
            assert!((item + 1) * depth * size_of::<T>() <= output.len().min(x.len()));
            // SAFETY: one head at one place, inside both; where they share memory, this part reads
            // each pair before it writes it, through pointers since a slice would claim both.
            unsafe {
                let from = x.as_ptr().cast::<T>().add(item * depth).cast_const();
                let to = output.as_ptr().cast::<T>().add(item * depth);
                for pair in 0..half {
                    let (a, b) = if step.interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + half) };
                    let (u, v) = ((*from.add(a)).load(), (*from.add(b)).load());
                    let (c, s) = (cos[pair].load(), sin[pair].load());
                    *to.add(a) = T::store(u * c - v * s);
                    *to.add(b) = T::store(v * c + u * s);
                }
                std::ptr::copy(from.add(2 * half), to.add(2 * half), depth - 2 * half);
            }
        }
    });
}
