//! Sums of products of integers, on their way to the epilogue.
//!
//! The unit multiplies the data as they lie. What their zero point `z` adds to every sum of a column is known
//! beforehand, and taken off again:
//!
//! ```text
//! Σ (x - z)·w = Σ x·w - z·Σ w
//! ```

use super::{BLOCK, Columns, Epilogue, Finish, Piece, Product, TiledWeights};
use crate::Isa;
use crate::isa::multiversion;
#[cfg(target_arch = "x86_64")]
use crate::kernels::ending::registers::{self, Chosen, Kind};
use crate::matrix::GROUP_BYTES;
use halimede_compute::{Arguments, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::{Factors, Map, Scale, Scaled};
use halimede_tensor::{DType, View};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// The input that holds the zero point of the data.
const ZERO_POINT: usize = 2;
/// The first input that the epilogue reads, which is input 1 of its map.
const EXTRA: usize = 3;
/// What is added to data with signs for units that read them without.
const LIFT: i32 = 128;

/// Weights with what each of their columns sums up to.
#[derive(Clone)]
pub(in crate::kernels) struct IntegerWeights {
    pub tiled: Arc<TiledWeights<i8>>,
    columns: Arc<[i32]>,
}

impl IntegerWeights {
    pub fn new(tiled: TiledWeights<i8>) -> IntegerWeights {
        let mut columns = vec![0; tiled.columns.next_multiple_of(BLOCK)];
        let panels = tiled.panels.chunks_exact(tiled.panel_len().max(1));
        for (panel, sums) in panels.zip(columns.chunks_exact_mut(BLOCK)) {
            for line in panel.chunks_exact(BLOCK * GROUP_BYTES) {
                for (sum, group) in sums.iter_mut().zip(line.chunks_exact(GROUP_BYTES)) {
                    *sum += group.iter().map(|&weight| i32::from(weight)).sum::<i32>();
                }
            }
        }
        IntegerWeights { columns: columns.into(), tiled: Arc::new(tiled) }
    }
}

/// How sums in i32 become numbers in f32.
pub(in crate::kernels) struct Scaling {
    columns: Arc<[i32]>,
    /// Datatype of the zero point, where there is one.
    zero: Option<DType>,
    /// What is added to the data, and with them to their zero point, as they are read.
    lift: i32,
    /// What sums begin with, and are not.
    begin: i32,
    /// The input with an i32 for each column to add.
    bias: Option<usize>,
    /// Numbers, or inputs of f32 with one number for all columns or one for each.
    factors: SmallVec<[Scale; 2]>,
}

impl Scaling {
    /// The zero point of what the unit reads.
    fn zero_point(&self, arguments: &Arguments<'_>) -> i32 {
        zero_point_of(self.zero, arguments) + self.lift
    }

    /// The largest scale of a column, or more.
    #[cfg(target_arch = "x86_64")]
    fn largest(&self, arguments: &Arguments<'_>) -> f32 {
        let factors = self.factors.iter().map(|factor| match *factor {
            Scale::Number(number) => number.abs(),
            Scale::Input(index) => {
                let view = arguments.inputs.get(EXTRA - 1 + index).copied().flatten().unwrap_or(View::empty());
                // SAFETY: inputs are not written during the step.
                farthest(unsafe { view.slice::<f32>() })
            }
        });
        factors.product()
    }

    fn columns(&self, arguments: &Arguments<'_>, columns: Range<usize>, made: &mut Columns) {
        let input = |index: usize| arguments.inputs.get(EXTRA - 1 + index).copied().flatten().unwrap_or(View::empty());
        let zero = self.zero_point(arguments);
        made.added = [self.begin.wrapping_neg(); BLOCK];
        if zero != 0 {
            for (added, sum) in made.added.iter_mut().zip(&self.columns[columns.clone()]) {
                *added = added.wrapping_add(sum.wrapping_mul(-zero));
            }
        }
        if let Some(bias) = self.bias {
            // SAFETY: inputs are not written during the step.
            let bias = unsafe { &input(bias).slice::<i32>()[columns.clone()] };
            made.added.iter_mut().zip(bias).for_each(|(added, bias)| *added = added.wrapping_add(*bias));
        }
        if !self.factors.is_empty() {
            made.scales = [1.0; BLOCK];
        }
        for factor in &self.factors {
            match *factor {
                Scale::Number(number) => made.scales.iter_mut().for_each(|scale| *scale *= number),
                Scale::Input(index) => {
                    // SAFETY: as above.
                    match unsafe { input(index).slice::<f32>() } {
                        [one] => made.scales.iter_mut().for_each(|scale| *scale *= one),
                        row => made.scales.iter_mut().zip(&row[columns.clone()]).for_each(|(scale, one)| *scale *= one),
                    }
                }
            }
        }
    }
}

/// How far the number that is farthest from zero is from it.
#[cfg(target_arch = "x86_64")]
pub(super) fn farthest(numbers: &[f32]) -> f32 {
    // By lanes, which the compiler takes together.
    let (chunks, rest) = numbers.as_chunks::<16>();
    let mut most = [0.0; 16];
    let farther = |most: &mut f32, number: &f32| *most = if number.abs() > *most { number.abs() } else { *most };
    for chunk in chunks {
        most.iter_mut().zip(chunk).for_each(|(most, number)| farther(most, number));
    }
    most.iter_mut().zip(rest).for_each(|(most, number)| farther(most, number));
    most.into_iter().fold(0.0, f32::max)
}

/// Stores sums in i32.
///
/// # Safety
/// The piece lies inside the target.
pub(super) unsafe fn store(isa: Isa, sums: &[i32], added: &[i32; BLOCK], piece: Piece, target: *mut i32) {
    store_rows(isa, sums, added, Place { piece, target });
}

/// Where sums are stored. Who makes one promises that the piece lies inside the target.
#[derive(Clone, Copy)]
struct Place {
    piece: Piece,
    target: *mut i32,
}

multiversion! {
    fn store_rows(sums: &[i32], added: &[i32; BLOCK], place: Place) = store_each_row
}

#[inline(always)]
fn store_each_row(sums: &[i32], added: &[i32; BLOCK], Place { piece, target }: Place) {
    for (row, sums) in sums.as_chunks::<BLOCK>().0.iter().take(piece.rows).enumerate() {
        let sums: [i32; BLOCK] = std::array::from_fn(|at| sums[at].wrapping_add(added[at]));
        let to = target.wrapping_add(piece.start + row * piece.row);
        // SAFETY: a place is one inside its target.
        unsafe {
            match piece.columns {
                BLOCK => to.cast::<[i32; BLOCK]>().write_unaligned(sums),
                columns => to.copy_from_nonoverlapping(sums.as_ptr(), columns),
            }
        }
    }
}

/// Left factors without and with signs.
macro_rules! integers {
    ($($factor:ty, $in_registers:expr);*) => {
        $(impl Product for $factor {
            const FACTORS: Factors = Factors::Integers;

            type Scaling = Scaling;

            type Columns = Columns;

            fn columns(scaling: &Scaling, arguments: &Arguments<'_>, columns: Range<usize>, made: &mut Columns) {
                scaling.columns(arguments, columns, made);
            }

            fn integers(columns: &Columns) -> Option<&Columns> {
                Some(columns)
            }

            #[cfg(target_arch = "x86_64")]
            fn largest_scale(scaling: &Scaling, arguments: &Arguments<'_>) -> f32 {
                scaling.largest(arguments)
            }

            fn border(scaling: &Scaling, arguments: &Arguments<'_>) -> $factor {
                scaling.zero_point(arguments) as $factor
            }

            #[cfg(target_arch = "x86_64")]
            fn in_registers(kind: Kind, isa: Isa) -> Option<Chosen> {
                $in_registers(kind, isa)
            }
        })*
    };
}
// Vectors multiply data without signs alone.
integers!(u8, registers::of_integers; i8, |_, _| None);

fn unsupported(what: &str) -> OpError {
    OpError::unsupported(format!("{what} in a product of {:?}", Factors::Integers))
}

/// The datatype of the zero point of a product's data, where there is one.
fn zero_point(inputs: &[Option<TensorDesc>]) -> Result<Option<DType>, OpError> {
    let input = |index: usize| inputs.get(index).and_then(Option::as_ref);
    let (data, zero) = (input(0).ok_or_else(|| OpError::invalid("a product needs two operands"))?, input(ZERO_POINT));
    if zero.is_some_and(|zero| zero.len() != 1 || zero.dtype != data.dtype) {
        return Err(unsupported("several zero points"));
    }
    Ok(zero.map(|zero| zero.dtype))
}

/// The zero point of a product's data.
pub(in crate::kernels) fn zero_point_of(dtype: Option<DType>, arguments: &Arguments<'_>) -> i32 {
    let view = arguments.inputs.get(ZERO_POINT).copied().flatten().unwrap_or(View::empty());
    // SAFETY: inputs are not written during the step.
    unsafe {
        match dtype {
            Some(DType::U8) => i32::from(view.slice::<u8>()[0]),
            Some(_) => i32::from(view.slice::<i8>()[0]),
            None => 0,
        }
    }
}

impl<F: Product<Scaling = Scaling>> Finish<F> {
    /// For products of [`Factors::Integers`]: the inputs are data, weights, zero point, then what the epilogue
    /// reads.
    pub fn of_integers(
        map: Option<&Map>,
        inputs: &[Option<TensorDesc>],
        weights: &IntegerWeights,
        output: &TensorDesc,
        isa: Isa,
    ) -> Result<Finish<F>, OpError> {
        let zero = zero_point(inputs)?;
        let data = inputs.first().and_then(Option::as_ref);
        let lift = if data.is_some_and(|data| data.dtype == F::DTYPE) { 0 } else { LIFT };
        let columns = weights.columns.clone();
        let scaling = Scaling { columns, zero, lift, begin: 0, bias: None, factors: SmallVec::new() };
        Finish::scaled(scaling, map, inputs, output, isa)
    }

    /// The same for sums of data that were read less their zero point, and began with a number.
    pub fn of_sums(
        begin: i32,
        map: Option<&Map>,
        inputs: &[Option<TensorDesc>],
        output: &TensorDesc,
        isa: Isa,
    ) -> Result<Finish<F>, OpError> {
        zero_point(inputs)?;
        let columns = Arc::new([]);
        let scaling = Scaling { columns, zero: None, lift: 0, begin, bias: None, factors: SmallVec::new() };
        Finish::scaled(scaling, map, inputs, output, isa)
    }

    fn scaled(
        mut scaling: Scaling,
        map: Option<&Map>,
        inputs: &[Option<TensorDesc>],
        output: &TensorDesc,
        isa: Isa,
    ) -> Result<Finish<F>, OpError> {
        let input = |index: usize| inputs.get(index).and_then(Option::as_ref);
        // Of a quantised model the weights are integers.
        let is_rounded = input(1).is_some_and(|weights| weights.dtype == DType::F32);
        let Some(map) = map else {
            let (epilogue, bias, dtype) = (None, None, DType::I32);
            let finish = Finish::of(scaling, epilogue, bias, EXTRA, dtype, is_rounded, isa);
            return if output.dtype == dtype { Ok(finish) } else { Err(unsupported("another result than i32")) };
        };
        let Scaled { bias, scales, rest } = Scaled::of(map).ok_or_else(|| unsupported("this epilogue"))?;
        let columns = output.shape.last().copied().unwrap_or(1);
        let is_row = |index: usize, dtype: DType| {
            let desc = input(EXTRA - 1 + index).filter(|desc| desc.dtype == dtype);
            desc.is_some_and(|desc| desc.len() == columns && desc.shape.last() == Some(&columns))
        };
        let is_one =
            |index: usize| input(EXTRA - 1 + index).is_some_and(|desc| desc.dtype == DType::F32 && desc.len() == 1);
        let fits = |scale: &Scale| match *scale {
            Scale::Number(_) => true,
            Scale::Input(index) => is_one(index) || is_row(index, DType::F32),
        };
        if bias.is_some_and(|bias| !is_row(bias, DType::I32)) || !scales.iter().all(fits) {
            return Err(unsupported("scales of this shape"));
        }
        scaling.factors = scales;
        scaling.bias = bias;
        let epilogue = Epilogue::narrowed(Some(&rest), inputs.get(EXTRA..).unwrap_or_default(), output, isa)?;
        Ok(Finish::of(scaling, epilogue, None, EXTRA, output.dtype, is_rounded, isa))
    }
}
