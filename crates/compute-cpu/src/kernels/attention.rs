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

mod tiled;

use super::Machine;
use super::softmax::{exp_and_sum, max_of};
use crate::Isa;
use crate::gemm::{self, Left, Micro, Target};
use crate::isa::multiversion;
use crate::map::{exp, tanh};
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::{Attention, Factors};
use halimede_tensor::{DType, View};
use tiled::TiledStep;

/// Queries in a block; a multiple of every micro-kernel's rows.
const QUERIES: usize = 48;
/// Products below which one thread does it all: waking another takes longer.
const PARALLEL_PRODUCTS: usize = 64 * 1024;
/// Keys in a block: the scores of a block take 48 KiB. A multiple of every micro-kernel's columns.
const KEYS: usize = 256;

pub(super) struct AttentionKernel {
    pub op: Attention,
    pub machine: Machine,
}

impl Kernel for AttentionKernel {
    fn name(&self) -> &str {
        "flash attention"
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
        let mask = match operand(3) {
            None => None,
            Some(mask) if matches!(mask.dtype, DType::F32 | DType::Bool) => {
                Some(Mask::new(mask, [q.shape[0], q.shape[1], q.shape[2], k.shape[2]])?)
            }
            Some(mask) => return Err(OpError::unsupported(format!("an attention mask of {}", mask.dtype))),
        };
        let (heads, groups) = (q.shape[1], k.shape[1]);
        if groups == 0 || !heads.is_multiple_of(groups) {
            return Err(OpError::invalid(format!("{heads} query heads do not divide over {groups} key heads")));
        }
        let (queries, keys) = (q.shape[2], k.shape[2]);
        let heads = Heads {
            batch: q.shape[0],
            heads,
            groups,
            queries,
            keys,
            depth: q.shape[3],
            width: v.shape[3],
            scale: self.op.scale.unwrap_or_else(|| 1.0 / (q.shape[3] as f32).sqrt()),
            causal: self.op.causal.then(|| if self.op.causal_from_end { keys as isize - queries as isize } else { 0 }),
            softcap: self.op.softcap,
            mask,
        };
        let machine = self.machine.clone();
        let narrow = q.dtype == DType::Bf16 || self.op.multiply == Some(Factors::Bf16);
        if let Some(matrix) = self.machine.matrix.filter(|_| narrow && TiledStep::takes(&heads)) {
            let step = TiledStep::new(heads, q.dtype, matrix, machine);
            let workspace = step.workspace();
            return Ok(Prepared { step: Box::new(step), workspace });
        }
        if q.dtype != DType::F32 {
            return Err(OpError::unsupported(format!("attention of {} with heads {} deep", q.dtype, heads.depth)));
        }
        let step = AttentionStep { heads, micro: Micro::new(machine.isa), machine };
        let workspace = step.shared_bytes() + step.thread_bytes() * self.machine.pool.threads();
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
    scale: f32,
    /// Query `s` sees key `t` where `t <= s + this`.
    causal: Option<isize>,
    softcap: f32,
    mask: Option<Mask>,
}

struct AttentionStep {
    heads: Heads,
    micro: Micro,
    machine: Machine,
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

    /// Keys beyond the last that the last of `rows` queries from `first` on sees are skipped.
    fn seen(&self, first: usize, rows: usize) -> usize {
        match self.causal {
            Some(offset) => usize::try_from((first + rows) as isize + offset).unwrap_or(0).min(self.keys),
            None => self.keys,
        }
    }

    /// Scales a line of scores from key `start` on and applies softcap, mask and causality; `head` is
    /// counted over the batch.
    fn mask_line(
        &self,
        isa: Isa,
        arguments: &Arguments<'_>,
        line: &mut [f32],
        head: usize,
        query: usize,
        start: usize,
    ) {
        scale_line(isa, line, self.scale, self.softcap);
        if let (Some(mask), Some(view)) = (&self.mask, arguments.inputs.get(3).copied().flatten()) {
            let [b, h, q, k] = mask.strides;
            let base = head / self.heads * b + head % self.heads * h + query * q + start * k;
            // Adjacent, or one for all keys.
            let count = if k == 0 { 1 } else { line.len() };
            // SAFETY: inputs are not written during the step.
            unsafe {
                match mask.boolean {
                    true => hide(isa, line, &view.slice::<u8>()[base..base + count]),
                    false => bias(isa, line, &view.slice::<f32>()[base..base + count]),
                }
            }
        }
        if let Some(offset) = self.causal {
            let visible = usize::try_from(query as isize + offset + 1 - start as isize).unwrap_or(0).min(line.len());
            line[visible..].fill(f32::NEG_INFINITY);
        }
    }

    /// Whether a score is no more than a product.
    fn is_plain(&self) -> bool {
        self.softcap <= 0.0 && self.mask.is_none() && self.causal.is_none()
    }
}

impl AttentionStep {
    fn packed_keys(&self) -> usize {
        gemm::panels_len(&self.micro, self.heads.keys, self.heads.depth)
    }

    fn packed_values(&self) -> usize {
        gemm::panels_len(&self.micro, self.heads.width, self.heads.keys)
    }

    /// Packed keys and values of every key head.
    fn shared_bytes(&self) -> usize {
        let floats = self.heads.batch * self.heads.groups * (self.packed_keys() + self.packed_values());
        (floats * size_of::<f32>()).next_multiple_of(64)
    }

    /// Scores, block result, sums and maxima, scratch of the driver.
    fn thread_bytes(&self) -> usize {
        let floats = QUERIES * (KEYS + self.heads.width + 2) + gemm::scratch_len(&self.micro);
        (floats * size_of::<f32>()).next_multiple_of(64)
    }
}

impl Step for AttentionStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let view = |index: usize| arguments.inputs.get(index).copied().flatten().unwrap_or(View::empty());
        assert!(arguments.workspace.len() >= self.shared_bytes() + self.thread_bytes() * self.machine.pool.threads());
        // SAFETY: inputs are not written during the step.
        let (k, v) = unsafe { (view(1).slice::<f32>(), view(2).slice::<f32>()) };
        let packed_len = self.packed_keys() + self.packed_values();
        let workspace = Shared(arguments.workspace.as_ptr());
        let workspace = &workspace;
        let small = self.heads.products() < PARALLEL_PRODUCTS;
        let each = |parts: usize, task: &(dyn Fn(usize) + Sync)| match small {
            true => (0..parts).for_each(task),
            false => self.machine.pool.run(parts, task),
        };
        each(self.heads.batch * self.heads.groups, &|head| {
            // SAFETY: each part packs its own head; operands have those sizes.
            unsafe {
                let start = workspace.0.cast::<f32>().add(head * packed_len);
                let packed = std::slice::from_raw_parts_mut(start, packed_len);
                let (keys, values) = packed.split_at_mut(self.packed_keys());
                let k = &k[head * self.heads.keys * self.heads.depth..];
                let v = &v[head * self.heads.keys * self.heads.width..];
                gemm::pack_columns(
                    &self.micro,
                    k.as_ptr(),
                    (1, self.heads.depth),
                    (self.heads.keys, self.heads.depth),
                    keys,
                );
                gemm::pack_columns(
                    &self.micro,
                    v.as_ptr(),
                    (self.heads.width, 1),
                    (self.heads.width, self.heads.keys),
                    values,
                );
            }
        });
        let blocks = self.heads.queries.div_ceil(QUERIES);
        let tasks = self.heads.batch * self.heads.heads * blocks;
        let threads = if small { 1 } else { self.machine.pool.threads() };
        self.machine.pool.run_tasks(threads, tasks, &|thread, task| {
            // SAFETY: behind the packed operands each thread has its own part.
            let scratch = unsafe {
                let start = workspace.0.add(self.shared_bytes() + thread * self.thread_bytes());
                std::slice::from_raw_parts_mut(start.cast::<f32>(), self.thread_bytes() / size_of::<f32>())
            };
            self.run_block(arguments, workspace, scratch, task / blocks, task % blocks * QUERIES);
        });
    }
}

/// The workspace's address, shared by threads that use disjoint parts.
struct Shared(*mut u8);
// SAFETY: see the type's text.
unsafe impl Sync for Shared {}

impl AttentionStep {
    /// One block of queries of one head.
    fn run_block(&self, arguments: &Arguments<'_>, shared: &Shared, scratch: &mut [f32], head: usize, first: usize) {
        let micro = &self.micro;
        let rows = QUERIES.min(self.heads.queries - first);
        let key_head = self.heads.key_head(head);
        let (scores, rest) = scratch.split_at_mut(QUERIES * KEYS);
        let (result, rest) = rest.split_at_mut(QUERIES * self.heads.width);
        let (maxima, rest) = rest.split_at_mut(QUERIES);
        let (sums, driver) = rest.split_at_mut(QUERIES);
        maxima.fill(f32::NEG_INFINITY);
        sums.fill(0.0);
        // SAFETY: packed before this loop began; the output's rows are this task's alone.
        let (packed, q, out) = unsafe {
            let packed = shared.0.cast::<f32>().add(key_head * (self.packed_keys() + self.packed_values()));
            let q = arguments.inputs[0].unwrap_or(View::empty()).as_ptr().cast::<f32>();
            let offset = (head * self.heads.queries + first) * self.heads.width;
            let out = super::rows::part_mut::<f32>(arguments.outputs[0], offset, rows * self.heads.width);
            (packed, q.add((head * self.heads.queries + first) * self.heads.depth), out)
        };
        out.fill(0.0);
        let seen = self.heads.seen(first, rows);
        for start in (0..seen).step_by(KEYS) {
            let count = KEYS.min(seen - start);
            let panels = (start / micro.nr, (start + count).div_ceil(micro.nr));
            // SAFETY: the operands have those sizes; scores hold QUERIES x KEYS elements, the columns of
            // this block beginning at 0 (the driver counts them from the first key).
            unsafe {
                gemm::multiply(
                    micro,
                    Left::Strided { start: q, row: self.heads.depth, column: 1 },
                    (0, rows),
                    panels,
                    (self.heads.keys, self.heads.depth),
                    &|p, k| packed.add((p * self.heads.depth + k) * micro.nr),
                    None,
                    Target { start: scores.as_mut_ptr().wrapping_sub(start), row: KEYS },
                    driver,
                    None,
                );
            }
            for row in 0..rows {
                let line = &mut scores[row * KEYS..row * KEYS + count];
                self.heads.mask_line(self.machine.isa, arguments, line, head, first + row, start);
                online_row(
                    self.machine.isa,
                    line,
                    &mut maxima[row],
                    &mut sums[row],
                    &mut out[row * self.heads.width..(row + 1) * self.heads.width],
                );
            }
            let values = packed.wrapping_add(self.packed_keys());
            // SAFETY: as above; the block's values are rows start..start + count of the packed panels.
            unsafe {
                gemm::multiply(
                    micro,
                    Left::Strided { start: scores.as_ptr(), row: KEYS, column: 1 },
                    (0, rows),
                    (0, self.heads.width.div_ceil(micro.nr)),
                    (self.heads.width, count),
                    &|p, k| values.add((p * self.heads.keys + start + k) * micro.nr),
                    None,
                    Target { start: result.as_mut_ptr(), row: self.heads.width },
                    driver,
                    None,
                );
            }
            for (out, &part) in out.iter_mut().zip(&*result) {
                *out += part;
            }
        }
        for (row, line) in out.chunks_exact_mut(self.heads.width.max(1)).enumerate() {
            // A query that sees no key gives zeros.
            let factor = if sums[row] > 0.0 || sums[row].is_nan() { 1.0 / sums[row] } else { 0.0 };
            line.iter_mut().for_each(|element| *element *= factor);
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

multiversion! {
    /// Turns a line of scores into weights against the running maximum, and rescales what was summed.
    fn online_row(line: &mut [f32], max: &mut f32, sum: &mut f32, out: &mut [f32]) = online
}

#[inline(always)]
fn online(line: &mut [f32], max: &mut f32, sum: &mut f32, out: &mut [f32]) {
    let larger = max.max(max_of(line));
    if larger == f32::NEG_INFINITY {
        line.fill(0.0);
        return;
    }
    let factor = exp(*max - larger);
    *sum = *sum * factor + exp_and_sum(line, larger);
    if factor != 1.0 {
        out.iter_mut().for_each(|element| *element *= factor);
    }
    *max = larger;
}
