//! Any contraction as a batch of matrix products, by merging axes that lie together.

use crate::kernels::lines::{Lines, fill_lines};
use halimede_compute::layout::{Layout::Blocked, Layouts};
use halimede_graph::ops::Contract;
use smallvec::SmallVec;

/// Distances of one operand, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::kernels) struct Operand {
    /// Along its free axis: rows of the left, columns of the right operand.
    pub free: usize,
    /// Along the summed axis.
    pub k: usize,
}

/// `out[batch, m, n] = Σ left[batch, m, k] · right[batch, k, n]` with columns of the output adjacent.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::kernels) struct Layout {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub left: Operand,
    pub right: Operand,
    /// Distance of rows of the output.
    pub out_row: usize,
    /// The contraction's right operand is the left one here.
    pub swapped: bool,
    /// Where the left operand is blocked: the distance of its lines of factors. Its rows are as far apart as a line is long.
    pub left_lines: Option<usize>,
    /// How the output lies where it is blocked.
    pub out_lines: Option<Lines>,
    batches: SmallVec<[Batch; 4]>,
}

/// A batch axis with its distances; 0 where an operand broadcasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Batch {
    size: usize,
    left: usize,
    right: usize,
    out: usize,
}

/// One axis, or several merged ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Axis {
    pub size: usize,
    /// In the operand that has it; for summed axes in the left one.
    pub stride: usize,
    /// In the output, or for summed axes in the right operand.
    other: usize,
}

impl Layout {
    /// One product of row-major matrices.
    pub fn plain(m: usize, n: usize, k: usize) -> Layout {
        let (left, right) = (Operand { free: k, k: 1 }, Operand { free: 1, k: n });
        let (swapped, left_lines, out_lines) = (false, None, None);
        Layout { m, n, k, left, right, out_row: n, swapped, left_lines, out_lines, batches: SmallVec::new() }
    }

    /// `None` where the axes cannot be merged into one of each kind. With `keep_right` the right
    /// operand stays on the right, because it is packed.
    pub fn new(op: &Contract, lhs: &[usize], rhs: &[usize], out: &[usize], keep_right: bool) -> Option<Layout> {
        if op.lhs.len() != lhs.len() || op.rhs.len() != rhs.len() || op.out.len() != out.len() {
            return None;
        }
        let (lhs_strides, rhs_strides, out_strides) =
            (halimede_tensor::strides(lhs), halimede_tensor::strides(rhs), halimede_tensor::strides(out));
        let find = |labels: &[u8], label: u8| labels.iter().position(|&l| l == label);
        let (mut rows, mut columns, mut summed) = (Axes::new(), Axes::new(), Axes::new());
        let mut batches: SmallVec<[Batch; 4]> = SmallVec::new();
        let mut labels: SmallVec<[u8; 12]> = op.out.iter().chain(&op.lhs).chain(&op.rhs).copied().collect();
        let mut seen = 0u128;
        labels.retain(|label| {
            let fresh = seen & (1 << (*label % 128)) == 0;
            seen |= 1 << (*label % 128);
            fresh
        });
        for label in labels {
            let (l, r, o) = (find(&op.lhs, label), find(&op.rhs, label), find(&op.out, label));
            let (l_size, r_size) = (l.map_or(1, |i| lhs[i]), r.map_or(1, |i| rhs[i]));
            let size = if l_size == 1 { r_size } else { l_size };
            if size == 1 {
                continue;
            }
            let l = l.filter(|_| l_size != 1).map(|i| lhs_strides[i]);
            let r = r.filter(|_| r_size != 1).map(|i| rhs_strides[i]);
            match (l, r, o.map(|i| out_strides[i])) {
                (Some(left), Some(right), Some(out)) => batches.push(Batch { size, left, right, out }),
                (Some(stride), None, Some(other)) => rows.push(Axis { size, stride, other }),
                (None, Some(stride), Some(other)) => columns.push(Axis { size, stride, other }),
                (Some(stride), Some(other), None) => summed.push(Axis { size, stride, other }),
                // Summed over one operand alone: rare, left to the definition.
                _ => return None,
            }
        }
        let k = match merge(summed).as_slice() {
            [] => Axis { size: 1, stride: 1, other: 1 },
            [axis] => *axis,
            _ => return None,
        };
        let (rows, columns) = (merge(rows), merge(columns));
        let unit = |axes: &Axes| axes.iter().any(|axis| axis.other == 1);
        let swapped = !keep_right && (!unit(&columns) && unit(&rows));
        let (rows, columns) = if swapped { (columns, rows) } else { (rows, columns) };
        if swapped {
            batches.iter_mut().for_each(|batch| std::mem::swap(&mut batch.left, &mut batch.right));
        }
        let n = take(&columns, |axis| axis.other == 1);
        let m = take(&rows, |axis| axis.size > 1);
        if n.is_none() && !columns.is_empty() {
            return None;
        }
        // What is left of the free axes becomes a batch over which the other operand broadcasts.
        let one = Axis { size: 1, stride: 1, other: 1 };
        let (m_axis, n_axis) = (m.map_or(one, |i| rows[i]), n.map_or(one, |i| columns[i]));
        for (index, axis) in rows.iter().enumerate() {
            if Some(index) != m {
                batches.push(Batch { size: axis.size, left: axis.stride, right: 0, out: axis.other });
            }
        }
        for (index, axis) in columns.iter().enumerate() {
            if Some(index) != n {
                batches.push(Batch { size: axis.size, left: 0, right: axis.stride, out: axis.other });
            }
        }
        let (left_k, right_k) = if swapped { (k.other, k.stride) } else { (k.stride, k.other) };
        Some(Layout {
            m: m_axis.size,
            n: n_axis.size,
            k: k.size,
            left: Operand { free: m_axis.stride, k: left_k },
            right: Operand { free: n_axis.stride, k: right_k },
            out_row: m_axis.other,
            swapped,
            left_lines: None,
            out_lines: None,
            batches,
        })
    }

    /// Whether the left operand, whose numbers have so many bytes, may be blocked: it is one matrix without gaps,
    /// whose rows fill lines.
    pub fn takes_blocked_left(&self, bytes: usize) -> bool {
        let is_plain = self.left == Operand { free: self.k, k: 1 } && self.batches() == 1 && !self.swapped;
        is_plain && fill_lines(self.k * bytes)
    }

    /// The same of the output.
    pub fn takes_blocked_output(&self, bytes: usize) -> bool {
        self.out_row == self.n && self.batches() == 1 && fill_lines(self.n * bytes)
    }

    /// Whether rows of a blocked output end with zeros that fill up their lines.
    pub fn is_filled_up(&self) -> bool {
        self.out_lines.is_some_and(|lines| !self.n.is_multiple_of(lines.len))
    }

    /// The layout where operands lie so; `left` and `output` are the bytes of their numbers.
    pub fn laid_out(self, layouts: &Layouts, left: usize, output: usize) -> Layout {
        let rows = self.m;
        self.laid_out_of([rows; 2], layouts, left, output)
    }

    /// The same where the rows at hand of left operand and output are among so many.
    pub fn laid_out_of(self, rows: [usize; 2], layouts: &Layouts, left: usize, output: usize) -> Layout {
        let mut layout = self;
        if layouts.is_blocked(0) {
            let lines = Lines::of(Blocked, rows[0], layout.k, left);
            (layout.left.free, layout.left_lines) = (lines.row, Some(lines.apart));
        }
        if layouts.output == Blocked {
            let lines = Lines::of(Blocked, rows[1], layout.n, output);
            (layout.out_row, layout.out_lines) = (lines.row, Some(lines));
        }
        layout
    }

    /// Where a column of the output begins.
    pub fn out_column(&self, column: usize) -> usize {
        // Most are row-major, and need no division.
        self.out_lines.map_or(column, |lines| lines.column(column))
    }

    /// Number of products.
    pub fn batches(&self) -> usize {
        self.batches.iter().map(|batch| batch.size).product()
    }

    /// Number of different right operands.
    pub fn right_batches(&self) -> usize {
        self.batches.iter().filter(|batch| batch.right > 0).map(|batch| batch.size).product()
    }

    /// Offset of the left operand, number of the right one and offset of the output of a product.
    pub fn batch(&self, mut index: usize) -> (usize, usize, usize) {
        let (mut left, mut right, mut rights, mut out) = (0, 0, 1, 0);
        for batch in self.batches.iter().rev() {
            let position = index % batch.size;
            index /= batch.size;
            left += position * batch.left;
            out += position * batch.out;
            if batch.right > 0 {
                right += position * rights;
                rights *= batch.size;
            }
        }
        (left, right, out)
    }

    /// Offset of a right operand by its number.
    pub fn right_offset(&self, mut number: usize) -> usize {
        let mut offset = 0;
        for batch in self.batches.iter().rev().filter(|batch| batch.right > 0) {
            offset += number % batch.size * batch.right;
            number /= batch.size;
        }
        offset
    }
}

/// The free and the summed axis of a constant right operand, each merged into one; `None` where that
/// is not possible for every left operand.
pub(super) fn weight_axes(op: &Contract, shape: &[usize]) -> Option<(Axis, Axis)> {
    if op.rhs.len() != shape.len() {
        return None;
    }
    let strides = halimede_tensor::strides(shape);
    let (mut columns, mut summed) = (Axes::new(), Axes::new());
    for (&label, (&size, &stride)) in op.rhs.iter().zip(shape.iter().zip(&strides)) {
        // A size of 1 broadcasts against what the left operand has there.
        if size == 1 && op.lhs.contains(&label) {
            return None;
        }
        let axis = Axis { size, stride, other: 0 };
        match (op.lhs.contains(&label), op.out.contains(&label)) {
            (false, true) => columns.push(axis),
            (true, false) => summed.push(axis),
            _ => return None,
        }
    }
    // Only the plain case of one axis each; einsums with more pack as they run.
    match (columns.as_slice(), summed.as_slice()) {
        ([n], [k]) if op.out.last() == op.rhs.iter().find(|&&label| !op.lhs.contains(&label)) => Some((*n, *k)),
        _ => None,
    }
}

type Axes = SmallVec<[Axis; 4]>;

/// Merges axes that lie together in both places, outermost first.
fn merge(mut axes: Axes) -> Axes {
    axes.sort_by(|a, b| b.other.cmp(&a.other).then(b.stride.cmp(&a.stride)));
    let mut merged = Axes::new();
    for axis in axes {
        match merged.last_mut() {
            Some(last) if last.stride == axis.stride * axis.size && last.other == axis.other * axis.size => {
                *last = Axis { size: last.size * axis.size, ..axis };
            }
            _ => merged.push(axis),
        }
    }
    merged
}

/// The largest axis that qualifies.
fn take(axes: &Axes, qualifies: impl Fn(&Axis) -> bool) -> Option<usize> {
    (0..axes.len()).filter(|&index| qualifies(&axes[index])).max_by_key(|&index| axes[index].size)
}
