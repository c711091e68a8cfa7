//! Weights of few bits in groups that share a scale, kept so in memory and dequantised in registers.
//!
//! ```text
//! w[k, n] = (code[k, n] - zero[k / group, n]) · scale[k / group, n]
//! ```
//!
//! They lie in panels of 32 columns, read from start to end:
//!
//! ```text
//! panel   for each group    lines of 8 rows          for each column 8 codes of 4 bits, or in two parts 4 of
//!                                                    8 bits, in 32 bits, lowest first
//!                           scales of 32 columns     f32
//!         for each group    zeros of 32 columns      i8; left out where all are 0
//! ```

mod digits;
mod multiply;
#[cfg(target_arch = "x86_64")]
mod vnni;

use crate::Isa;
use crate::matrix::BLOCK;
use crate::prefetch;
use crate::vector::{Vector, on_vectors};
pub(crate) use digits::{DIGITS, DigitGroup, DigitRows, Digits};
use halimede_compute::packed::Packer;
use halimede_tensor::{DType, Tensor};
pub(crate) use multiply::{Rows, multiply};

/// Rows of a line. A group whose rows are no multiple of it has zeros behind them.
pub(crate) const LINE: usize = 8;
/// Bytes from what is multiplied to what is asked for then: as many as hide how far memory is.
const AHEAD: usize = 8192;
const SCALES_BYTES: usize = BLOCK * size_of::<f32>();

/// How wide codes are, with signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    Four,
    Eight,
}

impl Width {
    /// What listings say of weights of this width.
    pub fn name(self) -> &'static str {
        match self {
            Width::Four => ", weights of 4 bits",
            Width::Eight => ", weights of 8 bits",
        }
    }

    const fn bits(self) -> usize {
        match self {
            Width::Four => 4,
            Width::Eight => 8,
        }
    }

    const fn line_bytes(self) -> usize {
        BLOCK * LINE * self.bits() / 8
    }

    /// Where the code of a row of a line lies: bytes to the word of the first column, and the bit there.
    #[inline(always)]
    const fn place(self, row: usize) -> (usize, usize) {
        let per_word = 32 / self.bits();
        (row / per_word * BLOCK * size_of::<u32>(), row % per_word * self.bits())
    }
}

/// Sizes and order of such weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grouping {
    pub width: Width,
    /// Columns.
    pub n: usize,
    /// Rows, which are summed over.
    pub k: usize,
    /// Rows of a group, 1 at least.
    pub group: usize,
    pub has_zeros: bool,
}

impl Grouping {
    pub fn groups(&self) -> usize {
        self.k.div_ceil(self.group)
    }

    /// Lines of a group.
    pub fn lines(&self) -> usize {
        self.group.div_ceil(LINE)
    }

    pub fn panels(&self) -> usize {
        self.n.div_ceil(BLOCK)
    }

    fn group_bytes(&self) -> usize {
        self.lines() * self.width.line_bytes() + SCALES_BYTES
    }

    /// Where the zeros of a panel begin.
    fn zeros_offset(&self) -> usize {
        self.groups() * self.group_bytes()
    }

    /// Every panel begins on a cache line, as the first one does.
    fn panel_bytes(&self) -> usize {
        let zeros = if self.has_zeros { self.groups() * BLOCK } else { 0 };
        (self.zeros_offset() + zeros).next_multiple_of(prefetch::LINE)
    }
}

/// Weights in panels.
pub(crate) struct GroupedWeights {
    pub grouping: Grouping,
    /// U8.
    panels: Tensor,
}

/// Weights as a model has them: codes, their scales, and their zero points, where there are any.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub codes: &'a Tensor,
    pub scales: &'a Tensor,
    pub zeros: Option<&'a Tensor>,
    /// Whether rows are the first axis of the codes, columns the second.
    pub rows_first: bool,
    /// Rows that share a scale; 0 for all of a column.
    pub block: usize,
}

impl GroupedWeights {
    /// `None` for what is no matrix of integers of at most 8 bits with such scales in f32.
    pub fn pack(source: Source<'_>, packer: &Packer) -> Option<GroupedWeights> {
        let Source { codes, scales, zeros, rows_first, block } = source;
        let [first, second] = *codes.shape() else { return None };
        let (k, n) = if rows_first { (first, second) } else { (second, first) };
        let group = if block == 0 { k.max(1) } else { block };
        let groups = k.div_ceil(group);
        let codes = small_integers(codes)?;
        let scales: &[f32] = scales.slice().ok()?;
        let zeros = match zeros {
            Some(zeros) => Some(small_integers(zeros)?),
            None => None,
        };
        let fits = |len: usize| len == groups * n || block == 0 && len == 1;
        if !fits(scales.len()) || zeros.as_ref().is_some_and(|zeros| zeros.len() != scales.len()) {
            return None;
        }
        // What lies within 16 numbers fits into 4 bits once the lowest is the lowest there.
        let (low, high) = codes.iter().fold((i16::MAX, i16::MIN), |(low, high), &code| (low.min(code), high.max(code)));
        let spread = |offset: i16, least: i16, most: i16| {
            let is_small = |zero: &i16| i8::try_from(zero - offset).is_ok();
            let mut zeros = zeros.as_deref().unwrap_or(&[0]).iter();
            low - offset >= least && high - offset <= most && zeros.all(is_small)
        };
        let offset_of_four = [0, 8, low.saturating_add(8)].into_iter().find(|&offset| spread(offset, -8, 7));
        let offset_of_eight = [0, 128].into_iter().find(|&offset| spread(offset, -128, 127));
        let (width, offset) = match (codes.is_empty(), offset_of_four, offset_of_eight) {
            (true, ..) => (Width::Four, 0),
            (false, Some(offset), _) => (Width::Four, offset),
            (false, None, Some(offset)) => (Width::Eight, offset),
            (false, None, None) => return None,
        };
        let zero_of = |at: usize| zeros.as_deref().map_or(0, |zeros| zeros[at]) - offset;
        let has_zeros = (0..scales.len()).any(|at| zero_of(at) != 0);
        let grouping = Grouping { width, n, k, group, has_zeros };
        let panel_bytes = grouping.panel_bytes();
        let fill = |panels: &mut [u8]| {
            for column in 0..n {
                let (panel, c) = (column / BLOCK * panel_bytes, column % BLOCK);
                let bytes = &mut panels[panel..panel + panel_bytes];
                for g in 0..groups {
                    let place = if rows_first { g * n + column } else { column * groups + g };
                    let place = if scales.len() == 1 { 0 } else { place };
                    let start = g * grouping.group_bytes();
                    let scale = start + grouping.lines() * width.line_bytes() + c * size_of::<f32>();
                    bytes[scale..scale + size_of::<f32>()].copy_from_slice(&scales[place].to_ne_bytes());
                    if has_zeros {
                        bytes[grouping.zeros_offset() + g * BLOCK + c] = zero_of(place) as u8;
                    }
                    for row in g * group..k.min((g + 1) * group) {
                        let code = codes[if rows_first { row * n + column } else { column * k + row }] - offset;
                        let (line, at) = ((row - g * group) / LINE, (row - g * group) % LINE);
                        let line = start + line * width.line_bytes();
                        let (word, bit) = width.place(at);
                        let byte = &mut bytes[line + word + c * size_of::<u32>() + bit / 8];
                        *byte |= (code as u8 & (u8::MAX >> (8 - width.bits()))) << (bit % 8);
                    }
                }
            }
        };
        // The same codes, scales and zeros always are of the same grouping.
        let panels = packer.pack("panels of groups", grouping.panels() * panel_bytes, fill).ok()?;
        Some(GroupedWeights { grouping, panels })
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.panels.len()
    }

    /// The first byte of a panel.
    fn panel(&self, index: usize) -> *const u8 {
        let panels: &[u8] = self.panels.slice().expect("made as U8");
        panels[index * self.grouping.panel_bytes()..].as_ptr()
    }

    /// The numbers of rows `first..` of a panel, as many as `to` has lines of 32 columns; zeros beyond the last row.
    pub fn unpack(&self, isa: Isa, panel: usize, first: usize, to: &mut [[f32; BLOCK]]) {
        let (there, beyond) = to.split_at_mut(self.grouping.k.saturating_sub(first).min(to.len()));
        unpack(isa, self.panel(panel), &self.grouping, first, there);
        beyond.fill([0.0; BLOCK]);
    }
}

/// Asks for what is multiplied soon, at the line with this number in its group: what lies pages ahead, and `EACH` of the
/// lines before it, unless these follow by themselves.
#[inline(always)]
fn ask_ahead<const EACH: bool>(width: Width, line: *const u8, number: usize) {
    if EACH {
        for at in (0..width.line_bytes()).step_by(prefetch::LINE) {
            prefetch::to_first_level(line.wrapping_add(AHEAD + at));
        }
    }
    if (number * width.line_bytes()).is_multiple_of(prefetch::PAGE_STEP) {
        prefetch::page_ahead(line);
    }
}

/// Integers of at most 8 bits, which are kept one in a byte.
fn small_integers(tensor: &Tensor) -> Option<Vec<i16>> {
    let bytes = tensor.bytes().ok()?;
    Some(match tensor.dtype() {
        DType::I8 | DType::I4 | DType::I2 => bytes.iter().map(|&byte| i16::from(byte as i8)).collect(),
        DType::U8 | DType::U4 | DType::U2 => bytes.iter().map(|&byte| i16::from(byte)).collect(),
        _ => return None,
    })
}

on_vectors! {
    /// The panel has those rows.
    fn unpack(panel: *const u8, grouping: &Grouping, first: usize, to: &mut [[f32; BLOCK]]) = unpack_rows
}

/// # Safety
/// As [`Vector`]; the panel has those rows.
#[inline(always)]
unsafe fn unpack_rows<V: Vector>(panel: *const u8, grouping: &Grouping, first: usize, to: &mut [[f32; BLOCK]]) {
    for (row, to) in (first..).zip(to) {
        let (g, row) = (row / grouping.group, row % grouping.group);
        for column in (0..BLOCK).step_by(V::LANES) {
            // SAFETY: the caller's promise; a line, scales and zeros have 32 columns.
            unsafe {
                let codes = panel.add(g * grouping.group_bytes());
                let (word, bit) = grouping.width.place(row % LINE);
                let words = codes.add(row / LINE * grouping.width.line_bytes() + word).cast::<u32>();
                let mut numbers = V::widen_bits(words.add(column), bit, grouping.width.bits());
                if grouping.has_zeros {
                    let zeros = panel.add(grouping.zeros_offset() + g * BLOCK + column);
                    numbers = numbers.minus(V::widen_i8(zeros.cast()));
                }
                let scales = codes.add(grouping.lines() * grouping.width.line_bytes()).cast::<f32>();
                numbers.times(V::load(scales.add(column))).store(to.as_mut_ptr().add(column));
            }
        }
    }
}
