//! Sums on their way to the output, piece by piece: what all pieces share is worked out once.

use super::{BLOCK, Columns, Finish, Piece, Product, integers};
#[cfg(target_arch = "x86_64")]
use crate::kernels::ending::registers::{Chosen, Room, Told};
use crate::kernels::ending::{Ending, Form, Scaling, add_bias, scale};
use crate::kernels::epilogue::{Common, Epilogue};
use crate::map::Register;
use crate::matrix::Ends;
use crate::real::Numbers;
use halimede_compute::Arguments;
use halimede_tensor::{DType, View};

/// Panels whose columns are kept: most products go through one after the other, or in turns through a few.
const KEPT: usize = 8;

/// What is added to the sums of a panel and multiplied with them.
struct Kept<C> {
    /// The first column; none where this is [`usize::MAX`].
    column: usize,
    bias: [f32; BLOCK],
    integers: C,
}

/// A finish at work on the output of one run.
pub(in crate::kernels) struct Finishing<'a, F: Product> {
    finish: &'a Finish<F>,
    arguments: &'a Arguments<'a>,
    registers: &'a mut [Register],
    /// The first number of the output, which has so many; `None` where it is of i32.
    target: Option<Numbers>,
    elements: usize,
    common: Option<&'a Common>,
    /// Inputs with a number to add to each column.
    biases: [Option<usize>; 2],
    /// Of pieces as wide as the last, and how wide that was.
    form: Option<(usize, Form)>,
    kept: [Kept<F::Columns>; KEPT],
    #[cfg(target_arch = "x86_64")]
    in_registers: InRegisters,
}

/// How the sums of whole blocks are ended in registers.
#[cfg(target_arch = "x86_64")]
struct InRegisters {
    /// What is written are bytes.
    are_bytes: bool,
    /// None where they are not, once that is known.
    chosen: Option<Option<Chosen>>,
    told: Option<Told>,
    /// What the rows of kept panels share, and the first column of each.
    shared: [(usize, Room); KEPT],
}

impl<'a, F: Product> Finishing<'a, F> {
    pub(super) fn new(finish: &'a Finish<F>, arguments: &'a Arguments<'a>, registers: &'a mut [Register]) -> Self {
        let output = arguments.outputs[0];
        let elements = output.len() / finish.output.size();
        let target = (finish.output != DType::I32).then(|| Numbers::of(output, finish.output, 0, elements));
        let common = finish.epilogue.as_ref().and_then(Epilogue::common);
        let biases = [finish.bias, common.and_then(|common| common.bias).map(|input| finish.extra + input)];
        #[cfg(target_arch = "x86_64")]
        let is_general = target.is_none() || finish.epilogue.is_some() && common.is_none();
        let kept =
            std::array::from_fn(|_| Kept { column: usize::MAX, bias: [0.0; BLOCK], integers: Default::default() });
        Finishing {
            finish,
            arguments,
            registers,
            target,
            elements,
            common,
            biases,
            form: None,
            kept,
            #[cfg(target_arch = "x86_64")]
            in_registers: InRegisters {
                are_bytes: matches!(target, Some(Numbers::U8(_))),
                chosen: is_general.then_some(None),
                told: target.map(Told::new),
                shared: std::array::from_fn(|_| (usize::MAX, Room::new())),
            },
        }
    }

    /// Stores a piece whose rows lie [`BLOCK`] numbers apart in `sums`.
    ///
    /// # Safety
    /// The piece lies inside the output, and nobody else touches it there.
    #[inline]
    pub unsafe fn store(&mut self, piece: Piece, sums: &mut [F::Sum]) {
        let Piece { rows, columns, column, start, row } = piece;
        assert!(start + (rows - 1) * row + columns <= self.elements, "a piece outside of the output");
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise.
        if self.in_registers.are_bytes && self.may_end() && unsafe { self.store_bytes(piece, sums) } {
            return;
        }
        let finish = self.finish;
        let sums: &mut [f32] = bytemuck::cast_slice_mut(&mut sums[..rows * BLOCK]);
        let kept = self.keep(column..column + columns);
        let kept = &self.kept[kept];
        let integers = F::integers(&kept.integers);
        let Some(target) = self.target else {
            let Some(columns) = integers else { return debug_assert!(false, "floats in i32") };
            let (sums, target) = (bytemuck::cast_slice(sums), self.arguments.outputs[0].as_ptr().cast());
            // SAFETY: the piece lies inside the output (just checked).
            return unsafe { integers::store(finish.isa, sums, &columns.added, piece, target) };
        };
        let mut ending = self.ending(piece, kept, target);
        match (&finish.epilogue, self.common) {
            (None, _) | (_, Some(_)) => {}
            (Some(epilogue), None) => {
                let extra = self.arguments.inputs.get(finish.extra..).unwrap_or_default();
                if let Some(scaling) = ending.integers.take() {
                    scale(finish.isa, sums, BLOCK, scaling);
                }
                add_bias(finish.isa, sums, BLOCK, ending.bias);
                ending.bias = &[];
                epilogue.apply(extra, sums, BLOCK, (rows, columns), (start, row), self.registers);
            }
        }
        let form = match self.form {
            Some((width, form)) if width == columns => form,
            _ => ending.form(finish.isa),
        };
        self.form = Some((columns, form));
        // SAFETY: the piece lies inside the output (just checked) and, where there is one, inside the residual
        // (`Numbers::of`); endings of one finish differ in places and numbers alone, once they are as wide.
        unsafe { ending.run_as(form, sums) };
    }

    /// Stores a piece of bytes as [`Finishing::ends`] would, if that can be: on tiles it takes 0.7 to 0.97 of the time of an ending's own form
    /// (`docs/benchmarks/gaps-m.md`).
    ///
    /// # Safety
    /// As [`Finishing::store`].
    #[cfg(target_arch = "x86_64")]
    #[inline(never)]
    unsafe fn store_bytes(&mut self, piece: Piece, sums: &[F::Sum]) -> bool {
        let sums = &sums[..piece.rows * BLOCK];
        // SAFETY: the caller's promise; there are sums for the rows.
        unsafe {
            let Some((Chosen { rows: Some(rows), .. }, told)) = self.tell(piece) else { return false };
            rows(told, sums.as_ptr().cast(), piece.rows);
        }
        true
    }

    /// Whether [`Finishing::ends`] may give something: asking it costs more.
    #[inline]
    pub fn may_end(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return !matches!(self.in_registers.chosen, Some(None));
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// What ends a piece in registers, where that can be done. It is valid until the next call.
    ///
    /// # Safety
    /// As [`Finishing::store`], for whoever uses it.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub unsafe fn ends(&mut self, piece: Piece) -> Option<Ends> {
        // SAFETY: the caller's promise.
        let (chosen, told) = unsafe { self.tell(piece) }?;
        Some(Ends { strips: chosen.strips, told: std::ptr::from_mut(told).cast() })
    }

    /// What ends a piece, and what it is told; none where registers do not do that.
    ///
    /// # Safety
    /// As [`Finishing::store`], for whoever ends it.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    unsafe fn tell(&mut self, piece: Piece) -> Option<(Chosen, &mut Told)> {
        let Piece { rows, columns, column, start, row } = piece;
        let (Some(target), BLOCK) = (self.target, columns) else { return None };
        assert!(start + (rows - 1) * row + columns <= self.elements, "a piece outside of the output");
        let kept = self.keep(column..column + columns);
        let ending = self.ending(piece, &self.kept[kept], target);
        let InRegisters { chosen, told, shared, .. } = &mut self.in_registers;
        let isa = self.finish.isa;
        let choose = || ending.kind_in_registers(isa).and_then(|kind| F::in_registers(kind, isa));
        let chosen = (*chosen.get_or_insert_with(choose))?;
        let (of, shared) = &mut shared[kept];
        if *of != column {
            // SAFETY: the ending has the kind that was chosen for: endings of one finish that are as wide differ in places
            // and numbers alone. The machine has the instructions, and what is borrowed belongs to this.
            unsafe { chosen.share(&ending, shared) };
            *of = column;
        }
        let told = told.as_mut()?;
        told.tell(&ending, shared);
        Some((chosen, told))
    }

    /// No unit here ends rows in registers.
    ///
    /// # Safety
    /// None is needed.
    #[cfg(not(target_arch = "x86_64"))]
    pub unsafe fn ends(&mut self, _: Piece) -> Option<Ends> {
        None
    }

    /// The ending of a piece, as far as it is a common one.
    fn ending<'b>(&self, piece: Piece, kept: &'b Kept<F::Columns>, target: Numbers) -> Ending<'b> {
        let Piece { rows, columns, start, row, .. } = piece;
        let bias: &[f32] = if self.biases == [None; 2] { &[] } else { &kept.bias };
        let integers = F::integers(&kept.integers);
        let mut ending = Ending {
            integers: integers.map(|Columns { added, scales }| Scaling { added, scales }),
            is_rounded: self.finish.is_rounded,
            // Near lines need not be asked for, and asking takes time.
            ahead: if self.arguments.is_far { BLOCK } else { 0 },
            ..Ending::new((rows, columns), BLOCK, bias, target.from(start), row)
        };
        if let Some(common) = self.common {
            ending.follow(common, self.arguments.inputs.get(self.finish.extra..).unwrap_or_default(), start);
        }
        ending
    }

    /// Where what belongs to some columns is kept; most products work it out once.
    fn keep(&mut self, columns: std::ops::Range<usize>) -> usize {
        let index = columns.start / BLOCK % KEPT;
        let (arguments, kept) = (self.arguments, &mut self.kept[index]);
        if kept.column == columns.start {
            return index;
        }
        kept.column = columns.start;
        if self.biases != [None; 2] {
            kept.bias = [0.0; BLOCK];
        }
        for input in self.biases.into_iter().flatten() {
            let view = arguments.inputs.get(input).copied().flatten().unwrap_or(View::empty());
            // SAFETY: inputs are not written during the step.
            let numbers = unsafe { &view.slice::<f32>()[columns.clone()] };
            kept.bias.iter_mut().zip(numbers).for_each(|(bias, number)| *bias += number);
        }
        F::columns(&self.finish.scaling, arguments, columns, &mut kept.integers);
        index
    }
}
