//! Attention in f32 that never holds all scores (Dao et al., 2022, "FlashAttention").
//!
//! Keys are packed once per head as panels of `Kᵀ`, values as panels of `V`. For a block of queries the
//! scores of a block of keys are one small product; a running maximum and sum per query let blocks be
//! added one after the other:
//!
//! ```text
//! for each block of queries
//!     for each block of keys
//!         S = scale · Q Kᵀ (+ mask)
//!         m' = max(m, rowmax S);  P = exp(S - m')
//!         O = O · exp(m - m') + P V;  l = l · exp(m - m') + rowsum P
//!     out = O / l
//! ```

mod bounds;
mod tiled;
mod vectors;
mod weigh;

use super::Machine;
use crate::gemm::Micro;
use crate::isa::multiversion;
use crate::map::tanh;
use crate::{Isa, Matrix};
use halimede_compute::{Arguments, Kernel, Prepared, TensorDesc};
use halimede_graph::ops::{Attention, Factors};
use halimede_graph::{Graph, Node, OpError};
use halimede_tensor::DType;
use std::ops::Range;
use tiled::TiledStep;
use vectors::VectorStep;

/// Products below which one thread does it all: waking another takes longer.
const PARALLEL_PRODUCTS: usize = 64 * 1024;

pub(super) struct AttentionKernel {
    op: Attention,
    machine: Machine,
    name: String,
}

impl AttentionKernel {
    pub fn new(op: &Attention, graph: &Graph, node: &Node, machine: Machine) -> AttentionKernel {
        let queries = node.inputs.first().copied().flatten().and_then(|queries| graph.fact(queries).dtype);
        let matrix = machine.matrix.filter(|_| is_narrow(op, queries));
        let name = format!("flash attention {}", matrix.map_or(machine.isa.name(), Matrix::name));
        AttentionKernel { op: op.clone(), machine, name }
    }
}

/// Whether products are those of bf16.
fn is_narrow(op: &Attention, queries: Option<DType>) -> bool {
    queries == Some(DType::Bf16) || op.multiply == Some(Factors::Bf16)
}

impl Kernel for AttentionKernel {
    fn name(&self) -> &str {
        &self.name
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        let operand = |index: usize| inputs.get(index).and_then(Option::as_ref);
        let (Some(q), Some(k), Some(v)) = (operand(0), operand(1), operand(2)) else {
            return Err(OpError::invalid("attention needs queries, keys and values"));
        };
        let output = &outputs[0];
        let known = matches!(q.dtype, DType::F32 | DType::Bf16);
        if [q, k, v, output].iter().any(|desc| !known || desc.dtype != q.dtype || desc.shape.len() != 4) {
            return Err(OpError::unsupported("attention but for one datatype and rank 4"));
        }
        let lines = [(0, q), (1, k), (2, v), (3, output)].map(|(index, desc)| Lines::new(desc, self.op.axes(index)));
        let [batch, heads, queries, depth] = self.op.axes(0).map(|axis| q.shape[axis]);
        let [_, groups, keys, _] = self.op.axes(1).map(|axis| k.shape[axis]);
        let mask = match operand(3) {
            None => None,
            Some(mask) if matches!(mask.dtype, DType::F32 | DType::Bool) => {
                Some(Mask::new(mask, [batch, heads, queries, keys])?)
            }
            Some(mask) => return Err(OpError::unsupported(format!("an attention mask of {}", mask.dtype))),
        };
        if groups == 0 || !heads.is_multiple_of(groups) {
            return Err(OpError::invalid(format!("{heads} query heads do not divide over {groups} key heads")));
        }
        let heads = Heads {
            batch,
            heads,
            groups,
            queries,
            keys,
            depth,
            width: v.shape[3],
            lines,
            scale: self.op.scale.unwrap_or_else(|| 1.0 / (depth as f32).sqrt()),
            causal: self.op.causal.then(|| if self.op.causal_from_end { keys as isize - queries as isize } else { 0 }),
            softcap: self.op.softcap,
            mask,
        };
        let machine = self.machine.clone();
        let is_narrow = is_narrow(&self.op, Some(q.dtype));
        if let Some(matrix) = self.machine.matrix.filter(|_| is_narrow && TiledStep::takes(&heads)) {
            let step = TiledStep::new(heads, q.dtype, matrix, machine);
            let workspace = step.workspace();
            return Ok(Prepared { step: Box::new(step), workspace });
        }
        if q.dtype != DType::F32 {
            return Err(OpError::unsupported(format!("attention of {} with heads {} deep", q.dtype, heads.depth)));
        }
        let step = VectorStep { heads, micro: Micro::new(machine.isa), machine };
        let workspace = step.workspace();
        Ok(Prepared { step: Box::new(step), workspace })
    }
}

/// A mask by element strides over batch, head, query, key.
struct Mask {
    strides: [usize; 4],
    boolean: bool,
}

impl Mask {
    fn new(desc: &TensorDesc, full: [usize; 4]) -> Result<Mask, OpError> {
        let own = halimede_tensor::strides(&desc.shape);
        let mut strides = [0; 4];
        for (axis, &size) in desc.shape.iter().enumerate().rev() {
            let Some(target) = (axis + 4).checked_sub(desc.shape.len()) else {
                return Err(OpError::unsupported("an attention mask of more than four axes"));
            };
            if size != 1 && size != full[target] {
                return Err(OpError::invalid(format!("mask {:?} does not broadcast to {full:?}", desc.shape)));
            }
            strides[target] = if size == 1 { 0 } else { own[axis] };
        }
        Ok(Mask { strides, boolean: desc.dtype == DType::Bool })
    }

    /// Where the element for a head, counted over the batch, a query and a key lies.
    fn at(&self, heads: &Heads, head: usize, query: usize, key: usize) -> usize {
        let [b, h, q, k] = self.strides;
        head / heads.heads * b + head % heads.heads * h + query * q + key * k
    }

    /// Whether it has an element for each key, rather than one for all.
    fn has_lines(&self) -> bool {
        self.strides[3] == 1
    }
}

/// Where the lines of an operand lie, in elements: a line holds the features of one token for one head.
#[derive(Clone, Copy)]
struct Lines {
    batch: usize,
    head: usize,
    token: usize,
}

impl Lines {
    fn new(desc: &TensorDesc, [batch, head, token, _]: [usize; 4]) -> Lines {
        if desc.is_empty() {
            // No line begins beyond the end.
            return Lines { batch: 0, head: 0, token: 0 };
        }
        let strides = halimede_tensor::strides(&desc.shape);
        Lines { batch: strides[batch], head: strides[head], token: strides[token] }
    }
}

/// What is computed, for known sizes.
struct Heads {
    batch: usize,
    heads: usize,
    groups: usize,
    queries: usize,
    keys: usize,
    /// Features of queries and keys.
    depth: usize,
    /// Features of values.
    width: usize,
    /// Of queries, keys, values and the result.
    lines: [Lines; 4],
    scale: f32,
    /// Query `s` sees key `t` where `t <= s + this`.
    causal: Option<isize>,
    softcap: f32,
    mask: Option<Mask>,
}

impl Heads {
    /// Multiplications.
    fn products(&self) -> usize {
        self.batch * self.heads * self.queries * self.keys * (self.depth + self.width)
    }

    /// The key head of a query head, both counted over the batch.
    fn key_head(&self, head: usize) -> usize {
        head / self.heads * self.groups + head % self.heads / (self.heads / self.groups)
    }

    /// The query heads of a key head, both counted over the batch.
    fn query_heads(&self, head: usize) -> Range<usize> {
        let each = self.heads / self.groups;
        let first = head / self.groups * self.heads + head % self.groups * each;
        first..first + each
    }

    /// Where a line begins: that of queries, keys, values or the result by number, with its head counted over the
    /// batch.
    fn at(&self, operand: usize, head: usize, token: usize) -> usize {
        let (lines, heads) = (&self.lines[operand], if matches!(operand, 1 | 2) { self.groups } else { self.heads });
        head / heads * lines.batch + head % heads * lines.head + token * lines.token
    }

    /// Elements from the first to the last of so many lines `width` long.
    fn span(&self, operand: usize, lines: usize, width: usize) -> usize {
        lines.checked_sub(1).map_or(0, |last| last * self.lines[operand].token + width)
    }

    /// Keys beyond the last that the last of `rows` queries from `first` on sees are skipped.
    fn seen(&self, first: usize, rows: usize) -> usize {
        match self.causal {
            Some(offset) => usize::try_from((first + rows) as isize + offset).unwrap_or(0).min(self.keys),
            None => self.keys,
        }
    }

    /// How many of `count` keys from `start` on a query sees.
    fn visible(&self, query: usize, start: usize, count: usize) -> usize {
        match self.causal {
            Some(offset) => usize::try_from(query as isize + offset + 1 - start as isize).unwrap_or(0).min(count),
            None => count,
        }
    }

    /// Scales scores and bends them under softcap.
    fn scale_scores(&self, isa: Isa, scores: &mut [f32]) {
        scale_line(isa, scores, self.scale, self.softcap);
    }

    /// The same of scores that are scaled already.
    fn bend_scores(&self, isa: Isa, scores: &mut [f32]) {
        if self.softcap > 0.0 {
            scale_line(isa, scores, 1.0, self.softcap);
        }
    }

    /// Applies the mask to a line of scores from key `start` on; `head` is counted over the batch.
    fn mask_line(
        &self,
        isa: Isa,
        arguments: &Arguments<'_>,
        line: &mut [f32],
        head: usize,
        query: usize,
        start: usize,
    ) {
        let (Some(mask), Some(view)) = (&self.mask, arguments.inputs.get(3).copied().flatten()) else { return };
        let base = mask.at(self, head, query, start);
        // Adjacent, or one for all keys.
        let count = if mask.strides[3] == 0 { 1 } else { line.len() };
        // SAFETY: inputs are not written during the step.
        unsafe {
            match mask.boolean {
                true => hide(isa, line, &view.slice::<u8>()[base..base + count]),
                false => bias(isa, line, &view.slice::<f32>()[base..base + count]),
            }
        }
    }
}

multiversion! {
    fn scale_line(line: &mut [f32], scale: f32, softcap: f32) = scale_each
}

multiversion! {
    /// Hides the keys where a mask, as long as the line or one for all, is false.
    fn hide(line: &mut [f32], mask: &[u8]) = hide_each
}

multiversion! {
    /// Adds a mask as long as the line, or one for all.
    fn bias(line: &mut [f32], mask: &[f32]) = bias_each
}

#[inline(always)]
fn scale_each(line: &mut [f32], scale: f32, softcap: f32) {
    line.iter_mut().for_each(|score| *score *= scale);
    if softcap > 0.0 {
        line.iter_mut().for_each(|score| *score = softcap * tanh(*score / softcap));
    }
}

#[inline(always)]
fn hide_each(line: &mut [f32], mask: &[u8]) {
    let hidden = |score: f32, seen: u8| if seen != 0 { score } else { f32::NEG_INFINITY };
    match mask {
        [seen] => line.iter_mut().for_each(|score| *score = hidden(*score, *seen)),
        mask => line.iter_mut().zip(mask).for_each(|(score, seen)| *score = hidden(*score, *seen)),
    }
}

#[inline(always)]
fn bias_each(line: &mut [f32], mask: &[f32]) {
    match mask {
        [bias] => line.iter_mut().for_each(|score| *score += bias),
        mask => line.iter_mut().zip(mask).for_each(|(score, bias)| *score += bias),
    }
}
