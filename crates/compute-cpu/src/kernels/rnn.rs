//! Recurrent layers in f32.
//!
//! What the inputs add to the gates of all moments is one product, in parallel over rows. Then groups of
//! sequences run through their moments, each group on one thread; what their states add is a product per
//! moment. Weights lie in panels, packed once where they are constant:
//!
//! ```text
//! G = X Wᵀ + b                                      all moments at once
//! for each direction, for each group of sequences   in parallel
//!     for each moment
//!         gates = G[moment] + H Rᵀ                  rows are the group's sequences
//!         H, C = cell(gates, H, C)
//! ```

mod cell;

use super::Machine;
use super::packed::{PackedWeights, f32_bytes};
use super::parameters::{Integers, desc, is_wide};
use crate::gemm::{self, Copies, Left, Micro, Target};
use crate::pool::own_bytes;
use cell::Cell;
use halimede_compute::packed::Packer;
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::ops::{Rnn, RnnActivation, RnnDirection, RnnKind};
use halimede_graph::{Graph, Node, OpError};
use halimede_tensor::{DType, View};
use smallvec::SmallVec;
use std::sync::Arc;

/// Rows of the inputs' product that one task takes; a multiple of every micro-kernel's rows.
const ROWS: usize = 48;
/// Sequences in a group, at most.
const GROUP: usize = 48;

pub(super) struct RnnKernel {
    op: Rnn,
    machine: Machine,
    packed: Option<Arc<PackedWeights>>,
}

impl RnnKernel {
    pub fn new(op: &Rnn, graph: &Graph, node: &Node, machine: Machine, packer: &Packer) -> RnnKernel {
        let packed = pack(op, graph, node, &Micro::new(machine.isa), packer).map(Arc::new);
        RnnKernel { op: op.clone(), machine, packed }
    }
}

/// Constant weights of all directions in panels.
fn pack(op: &Rnn, graph: &Graph, node: &Node, micro: &Micro, packer: &Packer) -> Option<PackedWeights> {
    let constant = |index: usize| node.inputs.get(index).copied().flatten().and_then(|value| graph.constant(value));
    let (w, r) = (constant(1)?, constant(2)?);
    let (directions, rows) = (directions(op), gates(op).0.checked_mul(op.hidden)?);
    let &[first, second, width] = w.shape() else { return None };
    if [first, second] != [directions, rows] || r.shape() != [directions, rows, op.hidden] {
        return None;
    }
    let (w, r) = (f32_bytes(w)?.as_ptr().cast::<f32>(), f32_bytes(r)?.as_ptr().cast::<f32>());
    let weights = Weights { op, width };
    PackedWeights::new(packer, "recurrent panels", directions * weights.len(micro), |packed| {
        for (direction, panels) in packed.chunks_exact_mut(weights.len(micro).max(1)).enumerate() {
            // SAFETY: the tensors have those shapes.
            unsafe {
                weights.pack(micro, w.add(direction * rows * width), r.add(direction * rows * op.hidden), panels)
            };
        }
    })
}

fn directions(op: &Rnn) -> usize {
    if op.direction == RnnDirection::Bidirectional { 2 } else { 1 }
}

/// Number of gates and of activations.
fn gates(op: &Rnn) -> (usize, usize) {
    match op.kind {
        RnnKind::Lstm { .. } => (4, 3),
        RnnKind::Gru { .. } => (3, 2),
        RnnKind::Rnn => (1, 1),
    }
}

/// Panels of one direction's weights: those of the inputs, then those of the states by group of gates.
struct Weights<'a> {
    op: &'a Rnn,
    width: usize,
}

impl Weights<'_> {
    fn rows(&self) -> usize {
        gates(self.op).0 * self.op.hidden
    }

    /// First gate row and number of rows of each product with the states: a GRU's candidate needs its
    /// gates first.
    fn groups(&self) -> SmallVec<[(usize, usize); 2]> {
        let hidden = self.op.hidden;
        match self.op.kind {
            RnnKind::Gru { .. } => SmallVec::from_slice(&[(0, 2 * hidden), (2 * hidden, hidden)]),
            _ => SmallVec::from_slice(&[(0, self.rows())]),
        }
    }

    /// Where the panels of a group begin; with one past the last group, where all end.
    fn start(&self, micro: &Micro, group: usize) -> usize {
        let before: usize =
            self.groups().iter().take(group).map(|(_, rows)| gemm::panels_len(micro, *rows, self.op.hidden)).sum();
        gemm::panels_len(micro, self.rows(), self.width) + before
    }

    fn len(&self, micro: &Micro) -> usize {
        self.start(micro, usize::MAX)
    }

    /// # Safety
    /// `w` and `r` hold the weights of one direction, and `panels` [`Weights::len`] elements.
    unsafe fn pack(&self, micro: &Micro, w: *const f32, r: *const f32, panels: &mut [f32]) {
        let hidden = self.op.hidden;
        let (inputs, states) = panels.split_at_mut(self.start(micro, 0));
        // SAFETY: the caller's promise; row n of the weights is column n of what is multiplied.
        unsafe { gemm::pack_columns(micro, w, (1, self.width), (self.rows(), self.width), inputs) };
        let mut rest = states;
        for (first, rows) in self.groups() {
            let (panels, behind) = rest.split_at_mut(gemm::panels_len(micro, rows, hidden));
            // SAFETY: as above.
            unsafe { gemm::pack_columns(micro, r.add(first * hidden), (1, hidden), (rows, hidden), panels) };
            rest = behind;
        }
    }
}

struct RnnStep {
    op: Rnn,
    length: usize,
    batch: usize,
    width: usize,
    hidden: usize,
    wide: bool,
    micro: Micro,
    packed: Option<Arc<PackedWeights>>,
    machine: Machine,
}

impl Kernel for RnnKernel {
    fn name(&self) -> &str {
        match (self.op.kind, self.packed.is_some()) {
            (RnnKind::Lstm { .. }, true) => "lstm f32, packed weights",
            (RnnKind::Lstm { .. }, false) => "lstm f32",
            (RnnKind::Gru { .. }, true) => "gru f32, packed weights",
            (RnnKind::Gru { .. }, false) => "gru f32",
            (RnnKind::Rnn, true) => "rnn f32, packed weights",
            (RnnKind::Rnn, false) => "rnn f32",
        }
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], _outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        let x = desc(inputs, 0)?;
        let &[a, b, width] = x.shape.as_slice() else {
            return Err(OpError::invalid(format!("a recurrent layer over {:?}, which should be of rank 3", x.shape)));
        };
        let numbers = inputs.iter().enumerate().filter(|(index, _)| *index != 4);
        if let Some(other) = numbers.filter_map(|(_, input)| input.as_ref()).find(|input| input.dtype != DType::F32) {
            return Err(OpError::unsupported(format!("a recurrent layer of {}", other.dtype)));
        }
        let (length, batch) = if self.op.batch_first { (b, a) } else { (a, b) };
        let (directions, (gates, activations)) = (directions(&self.op), gates(&self.op));
        let hidden = self.op.hidden;
        if hidden == 0 {
            return Err(OpError::unsupported("a recurrent layer without states"));
        }
        let (rows, states) = (directions * gates * hidden, directions * batch * hidden);
        let expected = [x.len(), rows * width, rows * hidden, 2 * rows, batch, states, states, directions * 3 * hidden];
        for (index, (input, expected)) in inputs.iter().zip(expected).enumerate() {
            if let Some(input) = input.as_ref().filter(|input| input.len() != expected) {
                let message = format!("input {index} has {} elements instead of {expected}", input.len());
                return Err(OpError::invalid(message));
            }
        }
        desc(inputs, 1)?;
        desc(inputs, 2)?;
        if self.op.activations.len() != directions * activations {
            let count = self.op.activations.len();
            return Err(OpError::invalid(format!("{count} activations for {directions} directions")));
        }
        let lengths = inputs.get(4).and_then(Option::as_ref);
        let step = RnnStep {
            op: self.op.clone(),
            length,
            batch,
            width,
            hidden,
            wide: lengths.map(is_wide).transpose()?.unwrap_or(false),
            micro: Micro::new(self.machine.isa),
            packed: self.packed.clone(),
            machine: self.machine.clone(),
        };
        Ok(Prepared { workspace: step.layout().total * size_of::<f32>(), step: Box::new(step) })
    }

    fn consumed(&self) -> SmallVec<[usize; 2]> {
        if self.packed.is_some() { SmallVec::from_slice(&[1, 2]) } else { SmallVec::new() }
    }

    fn packed_bytes(&self) -> usize {
        self.packed.as_ref().map_or(0, |packed| packed.bytes())
    }
}

/// Where things lie in the workspace, in elements; every part begins on a cache line.
struct Layout {
    /// What the inputs add to the gates of all directions, behind the panels of weights.
    inputs: usize,
    /// Gates, states and spare room of groups, behind those.
    groups: usize,
    /// Elements of one group.
    group: usize,
    /// Scratch of threads, behind those.
    scratch: usize,
    /// Elements of one thread's.
    thread: usize,
    total: usize,
}

impl RnnStep {
    fn weights(&self) -> Weights<'_> {
        Weights { op: &self.op, width: self.width }
    }

    fn rows(&self) -> usize {
        self.weights().rows()
    }

    /// Sequences in a group: as many as leave every thread a group.
    fn group(&self) -> usize {
        (directions(&self.op) * self.batch).div_ceil(self.machine.pool.threads()).clamp(1, GROUP).min(self.batch.max(1))
    }

    fn groups(&self) -> usize {
        self.batch.div_ceil(self.group())
    }

    fn layout(&self) -> Layout {
        let line = |len: usize| len.next_multiple_of(16);
        let directions = directions(&self.op);
        let panels = if self.packed.is_some() { 0 } else { line(directions * self.weights().len(&self.micro)) };
        let inputs = line(directions * self.length * self.batch * self.rows());
        let group = line(self.group() * (self.rows() + 3 * self.hidden));
        let thread = own_bytes(gemm::scratch_len(&self.micro) * size_of::<f32>()) / size_of::<f32>();
        let groups = panels + inputs;
        let scratch = groups + directions * self.groups() * group;
        let total = scratch + self.machine.pool.threads() * thread;
        Layout { inputs: panels, groups, group, scratch, thread, total }
    }

    fn activation(&self, direction: usize, index: usize) -> RnnActivation {
        self.op.activations[direction * self.op.activations.len() / directions(&self.op) + index]
    }

    /// Whether the state's bias of the candidate stands inside the reset.
    fn linear(&self) -> bool {
        matches!(self.op.kind, RnnKind::Gru { linear_before_reset: true })
    }

    /// Runs tasks on all threads; each task knows its thread.
    fn tasks(&self, count: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        self.machine.pool.run_tasks(self.machine.pool.threads(), count, &|thread, index| task(index, thread));
    }
}

impl Step for RnnStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let layout = self.layout();
        let len = self.weights().len(&self.micro);
        let floats = |offset: usize, count: usize| arguments.workspace.part(offset * 4, count * 4);
        if self.packed.is_none() {
            let pointer = |index: usize| arguments.inputs[index].unwrap_or(View::empty()).as_ptr().cast::<f32>();
            self.tasks(directions(&self.op), &|direction, _| {
                // SAFETY: the inputs have the lengths that were checked; each task packs its own part.
                unsafe {
                    let w = pointer(1).add(direction * self.rows() * self.width);
                    let r = pointer(2).add(direction * self.rows() * self.hidden);
                    self.weights().pack(&self.micro, w, r, floats(direction * len, len).slice_mut());
                }
            });
        }
        let panels: &[f32] = match &self.packed {
            Some(packed) => packed,
            // SAFETY: written above, and only read from here on.
            None => unsafe { floats(0, directions(&self.op) * len).slice() },
        };
        self.project(arguments, panels, &layout);
        // SAFETY: the output is this step's alone.
        unsafe { arguments.outputs[0].slice_mut::<f32>() }.fill(0.0);
        let groups = self.groups();
        self.tasks(directions(&self.op) * groups, &|index, thread| {
            let (direction, first) = (index / groups, index % groups * self.group());
            let count = self.group().min(self.batch - first);
            let group = Group { step: self, direction, first, count, panels: &panels[direction * len..][..len] };
            let inputs = self.length * self.batch * self.rows();
            // SAFETY: what the inputs add is written; each group and each thread has its own part.
            unsafe {
                let inputs = floats(layout.inputs + direction * inputs, inputs).slice();
                let own = floats(layout.groups + index * layout.group, layout.group).slice_mut();
                let scratch = floats(layout.scratch + thread * layout.thread, layout.thread).slice_mut();
                group.run(arguments, inputs, own, scratch);
            }
        });
    }
}

impl RnnStep {
    /// Adds up what the inputs and the biases give the gates of all moments.
    fn project(&self, arguments: &Arguments<'_>, panels: &[f32], layout: &Layout) {
        let (rows, count) = (self.rows(), self.length * self.batch);
        let blocks = count.div_ceil(ROWS);
        let panels_len = self.weights().len(&self.micro);
        let x = arguments.inputs[0].unwrap_or(View::empty()).as_ptr().cast::<f32>();
        let (x, workspace) = (Shared(x), Shared(arguments.workspace.as_ptr().cast::<f32>()));
        let (x, workspace) = (&x, &workspace);
        let bias = float(arguments, 3);
        let micro = &self.micro;
        assert!(arguments.workspace.len() >= layout.total * size_of::<f32>());
        self.tasks(directions(&self.op) * blocks, &|index, thread| {
            let (direction, first) = (index / blocks, index % blocks * ROWS);
            let panels = &panels[direction * panels_len..];
            // SAFETY: the workspace is as long as the layout says.
            let target = unsafe { workspace.0.add(layout.inputs + direction * count * rows) };
            let target = Target { start: target, row: rows };
            let store = |tile: &mut [f32], row: usize, column: usize, (rows, columns): (usize, usize)| {
                for line in tile.chunks_exact_mut(micro.nr).take(rows) {
                    self.add_bias(bias, direction, column, &mut line[..columns]);
                }
                // SAFETY: each task writes its own rows.
                unsafe { gemm::store_tile(tile, micro.nr, target, (row, column), (rows, columns)) };
            };
            // SAFETY: x holds `count` rows, the workspace is as long as the layout says, and each task writes
            // its own rows with its own thread's scratch.
            unsafe {
                let scratch = workspace.0.add(layout.scratch + thread * layout.thread);
                gemm::multiply(
                    micro,
                    Left::Strided { start: x.0, row: self.width, column: 1, copies: Copies::WherePays },
                    (first, count.min(first + ROWS)),
                    (0, rows.div_ceil(micro.nr)),
                    (rows, self.width),
                    &|p, k| panels.as_ptr().add((p * self.width + k) * micro.nr),
                    None,
                    target,
                    std::slice::from_raw_parts_mut(scratch, layout.thread),
                    Some(gemm::Finish { store: &store, end: None }),
                );
            }
        });
    }

    /// Adds the biases of the gates from `first` on, where they are added to what the inputs give.
    fn add_bias(&self, bias: Option<&[f32]>, direction: usize, first: usize, gates: &mut [f32]) {
        let rows = self.rows();
        let Some(bias) = bias else { return };
        let bias = &bias[direction * 2 * rows..][..2 * rows];
        let both = if self.linear() { 2 * self.hidden } else { rows };
        for (row, gate) in (first..).zip(gates) {
            *gate += bias[row] + if row < both { bias[rows + row] } else { 0.0 };
        }
    }
}

/// An address shared by threads that use disjoint parts behind it.
struct Shared(*mut f32);
// SAFETY: see the type's text.
unsafe impl Sync for Shared {}

fn float<'a>(arguments: &Arguments<'a>, index: usize) -> Option<&'a [f32]> {
    let view = arguments.inputs.get(index).copied().flatten()?;
    // SAFETY: an input; nobody writes it while the step runs.
    Some(unsafe { view.slice::<f32>() })
}

/// Sequences of one direction that run through their moments together.
struct Group<'a> {
    step: &'a RnnStep,
    direction: usize,
    /// The first sequence, and how many there are.
    first: usize,
    count: usize,
    panels: &'a [f32],
}

impl Group<'_> {
    fn run(&self, arguments: &Arguments<'_>, inputs: &[f32], own: &mut [f32], scratch: &mut [f32]) {
        let (step, hidden, rows) = (self.step, self.step.hidden, self.step.rows());
        let (gates, own) = own.split_at_mut(self.count * rows);
        let (h, own) = own.split_at_mut(self.count * hidden);
        let (c, own) = own.split_at_mut(self.count * hidden);
        let spare = &mut own[..self.count * hidden];
        for (index, to) in [(5, &mut *h), (6, &mut *c)] {
            for (entry, to) in to.chunks_exact_mut(hidden.max(1)).enumerate() {
                match float(arguments, index) {
                    Some(states) => to.copy_from_slice(&states[self.state(entry)..][..hidden]),
                    None => to.fill(0.0),
                }
            }
        }
        let cell = Cell { step, direction: self.direction, peepholes: float(arguments, 7) };
        for moment in 0..step.length {
            // A sequence that has ended keeps its states; its rows of the products are not read.
            let time = |entry: usize| self.time(arguments, entry, moment);
            let input = |entry: usize| {
                let (time, entry) = (time(entry)?, self.first + entry);
                let row = if step.op.batch_first { entry * step.length + time } else { time * step.batch + entry };
                Some(&inputs[row * rows..][..rows])
            };
            let add_input = |row: usize, column: usize, line: &mut [f32]| {
                if let Some(input) = input(row) {
                    line.iter_mut().zip(&input[column..]).for_each(|(gate, input)| *gate += input);
                }
            };
            self.multiply(0, h, (gates, rows), scratch, &add_input);
            if let RnnKind::Gru { .. } = step.op.kind {
                for (gates, (spare, h)) in
                    gates.chunks_exact_mut(rows).zip(spare.chunks_exact_mut(hidden).zip(h.chunks_exact(hidden)))
                {
                    cell.activate(0, &mut gates[..2 * hidden]);
                    spare.iter_mut().zip(&gates[hidden..2 * hidden]).zip(h).for_each(|((s, r), h)| *s = r * h);
                }
                self.candidate(arguments, h, spare, gates, scratch, &add_input);
            }
            for entry in 0..self.count {
                let Some(time) = time(entry) else { continue };
                let at = |of: usize| entry * of..(entry + 1) * of;
                cell.finish(&mut gates[at(rows)], &mut h[at(hidden)], &mut c[at(hidden)]);
                let place = match step.op.batch_first {
                    false => (time * directions(&step.op) + self.direction) * step.batch + self.first + entry,
                    true => ((self.first + entry) * step.length + time) * directions(&step.op) + self.direction,
                };
                write(arguments.outputs[0], place * hidden, &h[at(hidden)]);
            }
        }
        for entry in 0..self.count {
            write(arguments.outputs[1], self.state(entry), &h[entry * hidden..][..hidden]);
            if matches!(step.op.kind, RnnKind::Lstm { .. }) {
                write(arguments.outputs[2], self.state(entry), &c[entry * hidden..][..hidden]);
            }
        }
    }

    /// The GRU's candidate gate, given the reset states `r ∘ h`.
    fn candidate(
        &self,
        arguments: &Arguments<'_>,
        h: &[f32],
        reset: &mut [f32],
        gates: &mut [f32],
        scratch: &mut [f32],
        add_input: &dyn Fn(usize, usize, &mut [f32]),
    ) {
        let (step, hidden, rows) = (self.step, self.step.hidden, self.step.rows());
        if !step.linear() {
            let candidate = &mut gates[2 * hidden..];
            let add = |row: usize, column: usize, line: &mut [f32]| add_input(row, 2 * hidden + column, line);
            return self.multiply(1, reset, (candidate, rows), scratch, &add);
        }
        // The reset gate multiplies what the states give, not the states.
        let bias = float(arguments, 3).map(|bias| &bias[(self.direction * 2 + 1) * rows + 2 * hidden..][..hidden]);
        let add = |_: usize, column: usize, line: &mut [f32]| {
            if let Some(bias) = bias {
                line.iter_mut().zip(&bias[column..]).for_each(|(gate, bias)| *gate += bias);
            }
        };
        self.multiply(1, h, (reset, hidden), scratch, &add);
        for (row, (gates, given)) in gates.chunks_exact_mut(rows).zip(reset.chunks_exact(hidden)).enumerate() {
            let (decided, candidate) = gates.split_at_mut(2 * hidden);
            candidate.iter_mut().zip(&decided[hidden..]).zip(given).for_each(|((c, r), g)| *c = r * g);
            add_input(row, 2 * hidden, candidate);
        }
    }

    /// A product of states with one group of the weights, and `finish(row, column, line)` for each part of
    /// its rows.
    fn multiply(
        &self,
        group: usize,
        states: &[f32],
        (target, row): (&mut [f32], usize),
        scratch: &mut [f32],
        finish: &dyn Fn(usize, usize, &mut [f32]),
    ) {
        let (step, hidden, micro) = (self.step, self.step.hidden, &self.step.micro);
        let columns = step.weights().groups()[group].1;
        let panels = &self.panels[step.weights().start(micro, group)..];
        assert!(states.len() >= self.count * hidden && target.len() >= (self.count - 1) * row + columns);
        let target = Target { start: target.as_mut_ptr(), row };
        let store = |tile: &mut [f32], first: usize, column: usize, (rows, columns): (usize, usize)| {
            for (index, line) in tile.chunks_exact_mut(micro.nr).take(rows).enumerate() {
                finish(first + index, column, &mut line[..columns]);
            }
            // SAFETY: the target has those rows and columns, as asserted.
            unsafe { gemm::store_tile(tile, micro.nr, target, (first, column), (rows, columns)) };
        };
        // SAFETY: the operands have those sizes, as asserted; panels are those of the group.
        unsafe {
            gemm::multiply(
                micro,
                Left::Strided { start: states.as_ptr(), row: hidden, column: 1, copies: Copies::WherePays },
                (0, self.count),
                (0, columns.div_ceil(micro.nr)),
                (columns, hidden),
                &|p, k| panels.as_ptr().add((p * hidden + k) * micro.nr),
                None,
                target,
                scratch,
                Some(gemm::Finish { store: &store, end: None }),
            );
        }
    }

    /// Where the first and last states of a sequence lie.
    fn state(&self, entry: usize) -> usize {
        let (step, entry) = (self.step, self.first + entry);
        let place = match step.op.batch_first {
            false => self.direction * step.batch + entry,
            true => entry * directions(&step.op) + self.direction,
        };
        place * step.hidden
    }

    /// The time that a sequence is at in a moment; `None` once it has ended.
    fn time(&self, arguments: &Arguments<'_>, entry: usize, moment: usize) -> Option<usize> {
        let step = self.step;
        let length = match arguments.inputs.get(4).copied().flatten() {
            Some(view) => Integers::new(view, step.wide).at(self.first + entry).clamp(0, step.length as i64) as usize,
            None => step.length,
        };
        let backwards = step.op.direction == RnnDirection::Reverse || self.direction == 1;
        (moment < length).then(|| if backwards { length - 1 - moment } else { moment })
    }
}

fn write(output: View<'_>, start: usize, numbers: &[f32]) {
    // SAFETY: each sequence writes its own places.
    unsafe { output.part(start * 4, numbers.len() * 4).slice_mut::<f32>() }.copy_from_slice(numbers);
}
