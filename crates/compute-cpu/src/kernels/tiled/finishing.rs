//! Sums on their way to the output, piece by piece: what all pieces share is worked out once.

#[cfg(target_arch = "x86_64")]
use super::Alike;
use super::{BLOCK, Columns, Finish, Piece, Product, integers};
#[cfg(target_arch = "x86_64")]
use crate::kernels::ending::registers::{Chosen, Room, Told};
use crate::kernels::ending::{Ending, Form, Scaling, add_bias, scale};
use crate::kernels::epilogue::{Common, Epilogue};
use crate::map::Register;
use crate::matrix::{Begin, Ends, Later, Runs, TURNS};
use crate::real::Numbers;
use halimede_compute::Arguments;
use halimede_tensor::{DType, View};

/// Panels whose columns are kept: most products go through one after the other, or in turns through a few.
const KEPT: usize = 8;
const _: () = assert!(TURNS <= KEPT);

/// Columns of blocks that have ends of their own, beside those of a whole one.
#[cfg(target_arch = "x86_64")]
const HALF: usize = BLOCK / 2;
#[cfg(target_arch = "x86_64")]
const THREE_QUARTERS: usize = BLOCK / 4 * 3;

/// What is added to the sums of a panel and multiplied with them.
struct Kept<C> {
    /// The first column; none where this is [`usize::MAX`].
    column: usize,
    bias: [f32; BLOCK],
    integers: C,
}

/// Room for what is worked out for the columns of some panels. Who begins a product has it and lends it: it is 10 KB, which a
/// [`Finishing`] that is moved would copy.
pub(in crate::kernels) struct KeptColumns<F: Product> {
    kept: [Kept<F::Columns>; KEPT],
    /// What the rows of kept panels share, and the first column of each.
    #[cfg(target_arch = "x86_64")]
    shared: [(usize, Room); KEPT],
}

impl<F: Product> KeptColumns<F> {
    /// Nothing is known yet.
    pub fn new() -> KeptColumns<F> {
        KeptColumns {
            kept: std::array::from_fn(|_| Kept {
                column: usize::MAX,
                bias: [0.0; BLOCK],
                integers: Default::default(),
            }),
            #[cfg(target_arch = "x86_64")]
            shared: std::array::from_fn(|_| (usize::MAX, Room::new())),
        }
    }

    /// What was kept belongs to another product.
    fn forget(&mut self) {
        self.kept.iter_mut().for_each(|kept| kept.column = usize::MAX);
        #[cfg(target_arch = "x86_64")]
        self.shared.iter_mut().for_each(|(column, _)| *column = usize::MAX);
    }
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
    /// Sums have begun with the bias, which is this where it is one input.
    begins_biased: bool,
    first_bias: &'a [f32],
    /// Of pieces as wide as the last, and how wide that was.
    form: Option<(usize, Form)>,
    columns: &'a mut KeptColumns<F>,
    #[cfg(target_arch = "x86_64")]
    in_registers: InRegisters<'a>,
}

/// How the sums of whole blocks, of halves and three quarters, and of others that have room for a whole one, are ended in registers.
#[cfg(target_arch = "x86_64")]
struct InRegisters<'a> {
    /// None where they are not, once that is known.
    chosen: Option<Option<Chosen>>,
    /// What is told of a piece where the output begins, and what was told of the last one.
    at_start: Option<Told>,
    told: Option<Told>,
    /// What was given last, which points to that.
    ends: Option<Ends>,
    later: Option<Later>,
    /// What was told of pieces whose blocks take turns.
    in_turn: [Option<Told>; TURNS],
    /// What ends pieces of all columns, where they share the same.
    alike: Option<&'a Alike>,
}

impl<'a, F: Product> Finishing<'a, F> {
    pub(super) fn new(
        finish: &'a Finish<F>,
        arguments: &'a Arguments<'a>,
        registers: &'a mut [Register],
        columns: &'a mut KeptColumns<F>,
    ) -> Self {
        columns.forget();
        let output = arguments.outputs[0];
        let elements = output.len() / finish.output.size();
        let target = (finish.output != DType::I32).then(|| Numbers::of(output, finish.output, 0, elements));
        let common = finish.epilogue.as_ref().and_then(Epilogue::common);
        let biases = [finish.bias, common.and_then(|common| common.bias).map(|input| finish.extra + input)];
        #[cfg(target_arch = "x86_64")]
        let is_general = target.is_none() || finish.epilogue.is_some() && common.is_none();
        Finishing {
            finish,
            arguments,
            registers,
            target,
            elements,
            common,
            biases,
            begins_biased: false,
            first_bias: &[],
            form: None,
            columns,
            #[cfg(target_arch = "x86_64")]
            in_registers: InRegisters {
                chosen: is_general.then_some(None),
                at_start: None,
                told: None,
                ends: None,
                later: None,
                in_turn: [const { None }; TURNS],
                alike: None,
            },
        }
    }

    /// The same for sums of floats that begin with their bias, which then costs nothing, as [`Finishing::begin_of`] says: where no function
    /// comes behind, for ends with one add it anyway. Those of integers begin with nothing.
    pub fn biased(self) -> Self {
        let has_function = self.common.is_some_and(|common| common.function.is_some());
        let has_bias = self.are_floats() && self.biases != [None; 2];
        let begins_biased = has_bias && !has_function;
        let first_bias = match self.biases {
            [Some(bias), None] | [None, Some(bias)] if begins_biased => {
                let bias = self.arguments.inputs.get(bias).copied().flatten().unwrap_or(View::empty());
                // SAFETY: inputs are not written during the step.
                unsafe { bias.slice::<f32>() }
            }
            _ => &[],
        };
        Finishing { begins_biased, first_bias, ..self }
    }

    /// Whether sums are of floats.
    fn are_floats(&self) -> bool {
        F::integers(&self.columns.kept[0].integers).is_none()
    }

    /// Whether sums begin with something.
    pub fn begins(&self) -> bool {
        self.begins_biased
    }

    /// What the sums of some columns of a block begin with. It is valid until those of [`KEPT`] more panels are asked for.
    #[inline]
    pub fn begin_of(&mut self, columns: std::ops::Range<usize>) -> Begin<F::Sum> {
        if let Some(bias) = self.first_bias.get(columns.start..columns.start + BLOCK) {
            return Begin::row(bias.as_ptr().cast());
        }
        if !self.begins_biased {
            return Begin::ZERO;
        }
        let kept = self.keep(columns);
        Begin::row(self.columns.kept[kept].bias.as_ptr().cast())
    }

    /// Stores a piece whose rows lie [`BLOCK`] numbers apart in `sums`.
    ///
    /// # Safety
    /// The piece lies inside the output, and nobody else touches it there.
    #[inline]
    pub unsafe fn store(&mut self, piece: Piece, sums: &mut [F::Sum]) {
        #[cfg(target_arch = "x86_64")]
        if !matches!(self.in_registers.chosen, Some(None | Some(Chosen { rows: None, .. }))) {
            let sums = &sums[..piece.rows * BLOCK];
            // SAFETY: the caller's promise; there are sums for the rows.
            unsafe {
                if let Some((Chosen { rows: Some(rows), .. }, told)) = self.tell(piece, BLOCK, &Runs::one(piece.rows)) {
                    return rows(told, sums.as_ptr().cast(), piece.rows);
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.store_any(piece, sums) };
    }

    /// The same of every piece and epilogue.
    ///
    /// # Safety
    /// As [`Finishing::store`].
    #[inline(never)]
    unsafe fn store_any(&mut self, piece: Piece, sums: &mut [F::Sum]) {
        let Piece { rows, columns, column, start, row, .. } = piece;
        assert!(start + (rows - 1) * row + columns <= self.elements, "a piece outside of the output");
        let finish = self.finish;
        let sums: &mut [f32] = bytemuck::cast_slice_mut(&mut sums[..rows * BLOCK]);
        let kept = self.keep(column..column + columns);
        let kept = &self.columns.kept[kept];
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
    pub unsafe fn ends(&mut self, piece: Piece) -> Option<&Ends> {
        let strips_of = |chosen: &Chosen| -> Option<&'static [_]> {
            match piece.columns {
                HALF => Some(chosen.halves?),
                THREE_QUARTERS => Some(chosen.three_quarters?),
                _ => Some(chosen.strips),
            }
        };
        // What has no ends for fewer columns is not told of them again and again.
        if let Some(Some(chosen)) = &self.in_registers.chosen
            && strips_of(chosen).is_none()
        {
            return None;
        }
        let written = if let HALF | THREE_QUARTERS = piece.columns { piece.columns } else { BLOCK };
        // SAFETY: the caller's promise.
        let (chosen, told) = unsafe { self.tell(piece, written, &Runs::one(piece.rows)) }?;
        let strips = strips_of(&chosen)?;
        let told = std::ptr::from_mut(told).cast();
        Some(self.in_registers.ends.insert(Ends { strips, told }))
    }

    /// What ends a piece later, in registers, of whose rows there are these runs. It is valid until the next call of this, or of
    /// [`Finishing::store`].
    ///
    /// # Safety
    /// As [`Finishing::store`], for whoever uses it.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub unsafe fn ends_later(&mut self, piece: Piece, runs: Runs) -> Option<&Later> {
        // SAFETY: the caller's promise.
        let (Chosen { beside, .. }, told) = unsafe { self.tell(piece, BLOCK, &runs) }?;
        let told = std::ptr::from_mut(told).cast_const().cast();
        Some(self.in_registers.later.insert(Later { beside, told, runs }))
    }

    /// What ends the blocks of a piece one after the other, each with how many of its rows come before. It is valid until the number is given
    /// again.
    ///
    /// # Safety
    /// As [`Finishing::store`], for whoever uses it.
    #[cfg(target_arch = "x86_64")]
    pub unsafe fn ends_in_turn(&mut self, piece: Piece, number: usize) -> Option<Later> {
        // SAFETY: the caller's promise.
        let (Chosen { beside, .. }, told) = unsafe { self.tell(piece, BLOCK, &Runs::one(piece.rows)) }?;
        let told = *told;
        let told = std::ptr::from_mut(self.in_registers.in_turn[number].insert(told)).cast_const().cast();
        Some(Later { beside, told, runs: Runs::one(BLOCK) })
    }

    /// What ends a piece whose rows are these runs, and what it is told; none where registers do not do that. Whoever ends it writes
    /// so many columns.
    ///
    /// # Safety
    /// As [`Finishing::store`], for whoever ends it.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn tell(&mut self, piece: Piece, written: usize, runs: &Runs) -> Option<(Chosen, &mut Told)> {
        let Piece { columns, column, start, row, has_room, .. } = piece;
        if columns != written && !has_room {
            return None;
        }
        assert!(start + runs.extent(row) + written <= self.elements, "a piece outside of the output");
        if matches!(self.in_registers.chosen, Some(None)) {
            return None;
        }
        // All columns share the same where there is nothing to each.
        if self.begins_biased || self.are_floats() && self.biases == [None; 2] {
            let (at_start, Alike { chosen, shared }) = match (self.in_registers.at_start, self.in_registers.alike) {
                (Some(at_start), Some(alike)) => (at_start, alike),
                _ => self.find_alike(piece)?,
            };
            return Some((*chosen, self.in_registers.told.insert(at_start.at(start, row, shared))));
        }
        let kept = self.keep(column..column + columns);
        if self.columns.shared[kept].0 != column {
            self.share(piece, kept);
        }
        let (InRegisters { chosen, at_start, told, .. }, shared) = (&mut self.in_registers, &self.columns.shared);
        let (chosen, at_start) = ((*chosen)??, (*at_start)?);
        Some((chosen, told.insert(at_start.at(start, row, &shared[kept].1))))
    }

    /// What ends all pieces that are as wide as a block, where they share the same; none where registers do not.
    #[cfg(target_arch = "x86_64")]
    #[inline(never)]
    fn find_alike(&mut self, piece: Piece) -> Option<(Told, &'a Alike)> {
        let (finish, isa) = (self.finish, self.finish.isa);
        // Of the first row alone: where the others lie is not told here.
        let ending =
            self.ending(Piece { start: 0, rows: 1, columns: BLOCK, ..piece }, &self.columns.kept[0], self.target?);
        let alike = finish.alike.get_or_init(|| {
            let chosen = F::ends(&ending, isa)?;
            let mut shared = Room::new();
            // SAFETY: the ending has the kind that was chosen for, and the machine the instructions.
            unsafe { chosen.share(&ending, &mut shared) };
            Some(Box::new(Alike { chosen, shared }))
        });
        let found = alike.as_deref().map(|alike| (Told::of(&ending, &alike.shared), alike));
        self.check_residual();
        self.in_registers.chosen = Some(found.map(|(_, alike)| alike.chosen));
        (self.in_registers.at_start, self.in_registers.alike) = found.unzip();
        found
    }

    /// Works out what the rows of a piece's columns share, and before that of the first piece how they are ended, if they are in registers.
    #[cfg(target_arch = "x86_64")]
    #[inline(never)]
    fn share(&mut self, piece: Piece, kept: usize) {
        let column = piece.column;
        let Some(target) = self.target else { return };
        if self.in_registers.at_start.is_none() {
            self.check_residual();
        }
        let is_small = self.in_registers.chosen.is_none() && self.is_small();
        // Of the first row alone, as above.
        let piece = Piece { start: 0, rows: 1, columns: BLOCK, ..piece };
        let ending = Ending { is_small, ..self.ending(piece, &self.columns.kept[kept], target) };
        let InRegisters { chosen, at_start, .. } = &mut self.in_registers;
        let isa = self.finish.isa;
        let Some(chosen) = chosen.get_or_insert_with(|| F::ends(&ending, isa)) else { return };
        let (known, room) = &mut self.columns.shared[kept];
        // SAFETY: the ending has the kind that was chosen for: endings of one finish that are as wide differ in places
        // and numbers alone. The machine has the instructions, and what is borrowed belongs to this.
        unsafe { chosen.share(&ending, room) };
        *known = column;
        *at_start = Some(Told::of(&ending, room));
    }

    /// Whether whatever the sums are, what becomes an integer has no more than 31 bits.
    #[cfg(target_arch = "x86_64")]
    fn is_small(&self) -> bool {
        /// Of 32 bits, and what a zero point adds to them.
        const SUM: f32 = (1u64 << 33) as f32;
        const MOST: f32 = (1 << 29) as f32;
        // Sums that were not rounded for speed have ends that do not ask.
        let quantize = self.common.and_then(|common| common.quantize).filter(|_| self.finish.is_rounded);
        let Some((grid, _)) = quantize else { return false };
        let residual = match self.common.and_then(|common| common.residual) {
            None => 0.0,
            // Floats may be as large as they are.
            Some(residual) if residual.is_float() => return false,
            Some(residual) => (f32::from(u8::MAX) + residual.zero.abs()) * residual.scale.abs(),
        };
        let biases = self.biases.into_iter().flatten().map(|input| {
            let view = self.arguments.inputs.get(input).copied().flatten().unwrap_or(View::empty());
            // SAFETY: inputs are not written during the step.
            integers::farthest(unsafe { view.slice::<f32>() })
        });
        let sums = F::largest_scale(&self.finish.scaling, self.arguments) * SUM;
        (sums + residual + biases.sum::<f32>()) * grid.inverse.abs() < MOST
    }

    /// Pieces of a residual lie as those of the output do.
    ///
    /// # Panics
    /// Where it is smaller.
    #[cfg(target_arch = "x86_64")]
    fn check_residual(&self) {
        let Some(residual) = self.common.and_then(|common| common.residual) else { return };
        let view = self.arguments.inputs.get(self.finish.extra + residual.input).copied().flatten();
        let elements = view.map_or(0, |view| view.len() / residual.dtype.size());
        assert!(elements >= self.elements, "a residual that is smaller than the output");
    }

    /// No unit here ends rows in registers.
    ///
    /// # Safety
    /// None is needed.
    #[cfg(not(target_arch = "x86_64"))]
    pub unsafe fn ends(&mut self, _: Piece) -> Option<&Ends> {
        None
    }

    /// As above.
    ///
    /// # Safety
    /// None is needed.
    #[cfg(not(target_arch = "x86_64"))]
    pub unsafe fn ends_in_turn(&mut self, _: Piece, _: usize) -> Option<Later> {
        None
    }

    /// As above.
    ///
    /// # Safety
    /// None is needed.
    #[cfg(not(target_arch = "x86_64"))]
    pub unsafe fn ends_later(&mut self, _: Piece, _: Runs) -> Option<&Later> {
        None
    }

    /// The ending of a piece, as far as it is a common one.
    fn ending<'b>(&self, piece: Piece, kept: &'b Kept<F::Columns>, target: Numbers) -> Ending<'b> {
        let Piece { rows, columns, start, row, .. } = piece;
        let is_added = self.biases != [None; 2] && !self.begins_biased;
        let bias: &[f32] = if is_added { &kept.bias } else { &[] };
        let integers = F::integers(&kept.integers);
        // Near lines need not be asked for, and asking takes time. A residual was made some steps ago, and what is written
        // waits for it.
        let is_awaited = self.common.is_some_and(|common| common.residual.is_some());
        let mut ending = Ending {
            integers: integers.map(|Columns { added, scales }| Scaling { added, scales }),
            is_rounded: self.finish.is_rounded,
            ahead: if self.arguments.is_far || is_awaited { BLOCK } else { 0 },
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
        let (arguments, kept) = (self.arguments, &mut self.columns.kept[index]);
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
