//! Recurrent layers in f32.
//!
//! What the inputs add to the gates is computed for all moments first, in parallel; then each sequence
//! of each direction runs through its moments by itself. Weights are turned so that a moment adds whole
//! rows of them.

use super::Machine;
use super::copy::split;
use super::parameters::{Integers, desc, is_wide};
use crate::isa::multiversion;
use crate::map::{sigmoid, tanh};
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::{Rnn, RnnActivation, RnnDirection, RnnKind};
use halimede_tensor::{DType, View};

pub(super) struct RnnKernel {
    pub op: Rnn,
    pub machine: Machine,
}

struct RnnStep {
    op: Rnn,
    directions: usize,
    gates: usize,
    length: usize,
    batch: usize,
    width: usize,
    hidden: usize,
    wide: bool,
    machine: Machine,
}

impl Kernel for RnnKernel {
    fn name(&self) -> &str {
        match self.op.kind {
            RnnKind::Lstm { .. } => "lstm f32",
            RnnKind::Gru { .. } => "gru f32",
            RnnKind::Rnn => "rnn f32",
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
        let directions = if self.op.direction == RnnDirection::Bidirectional { 2 } else { 1 };
        let (gates, activations) = match self.op.kind {
            RnnKind::Lstm { .. } => (4, 3),
            RnnKind::Gru { .. } => (3, 2),
            RnnKind::Rnn => (1, 1),
        };
        let hidden = self.op.hidden;
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
            directions,
            gates,
            length,
            batch,
            width,
            hidden,
            wide: lengths.map(is_wide).transpose()?.unwrap_or(false),
            machine: self.machine.clone(),
        };
        Ok(Prepared { workspace: step.layout().total * size_of::<f32>(), step: Box::new(step) })
    }
}

/// Where things lie in the workspace, in elements.
struct Layout {
    /// Turned weights of one direction: inputs, then states.
    weights: usize,
    /// What the inputs add to the gates of one direction.
    inputs: usize,
    /// Gates and two states of one sequence.
    item: usize,
    total: usize,
}

impl RnnStep {
    fn rows(&self) -> usize {
        self.gates * self.hidden
    }

    fn layout(&self) -> Layout {
        let rows = self.rows();
        let (weights, inputs) = ((self.width + self.hidden) * rows, self.length * self.batch * rows);
        let item = rows + 3 * self.hidden;
        Layout { weights, inputs, item, total: self.directions * (weights + inputs + self.batch * item) }
    }

    fn activation(&self, direction: usize, index: usize) -> RnnActivation {
        self.op.activations[direction * self.op.activations.len() / self.directions + index]
    }

    /// Whether the state's bias of the candidate stands inside the reset.
    fn linear(&self) -> bool {
        matches!(self.op.kind, RnnKind::Gru { linear_before_reset: true })
    }
}

impl Step for RnnStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let Layout { weights, inputs, item, .. } = self.layout();
        let rows = self.rows();
        let float = |index: usize| -> Option<&[f32]> {
            let view = arguments.inputs.get(index).copied().flatten()?;
            // SAFETY: an input; nobody writes it while the step runs.
            Some(unsafe { view.slice::<f32>() })
        };
        let (Some(x), Some(w), Some(r)) = (float(0), float(1), float(2)) else { return };
        let bias = float(3);
        let floats = |offset: usize, count: usize| arguments.workspace.part(offset * 4, count * 4);
        for direction in 0..self.directions {
            let turned = floats(direction * weights, weights);
            let w = &w[direction * rows * self.width..][..rows * self.width];
            let r = &r[direction * rows * self.hidden..][..rows * self.hidden];
            turn(&self.machine, w, self.width, turned.part(0, self.width * rows * 4));
            turn(&self.machine, r, self.hidden, turned.part(self.width * rows * 4, self.hidden * rows * 4));
            // SAFETY: written above, and only read from here on.
            let turned = unsafe { turned.slice::<f32>() };
            let gates = floats(self.directions * weights + direction * inputs, inputs);
            split(&self.machine, self.length * self.batch, gates.len() * self.width.max(1), &|range| {
                for row in range {
                    // SAFETY: this part's own rows of the workspace.
                    let gates = unsafe { gates.part(row * rows * 4, rows * 4).slice_mut::<f32>() };
                    self.base(bias, direction, gates);
                    let x = &x[row * self.width..][..self.width];
                    accumulate(self.machine.isa, gates, x, &turned[..self.width * rows], rows, 0);
                }
            });
        }
        // SAFETY: the output is this step's alone.
        unsafe { arguments.outputs[0].slice_mut::<f32>() }.fill(0.0);
        let items = self.directions * self.batch;
        split(&self.machine, items, items * self.length * rows * self.hidden * 4, &|range| {
            for index in range {
                let (direction, entry) = (index / self.batch, index % self.batch);
                // SAFETY: written above for all directions, and only read from here on.
                let (turned, gates) = unsafe {
                    let gates = floats(self.directions * weights + direction * inputs, inputs);
                    (floats(direction * weights, weights).slice::<f32>(), gates.slice::<f32>())
                };
                let own = floats(self.directions * (weights + inputs) + index * item, item);
                let sequence = Sequence { step: self, direction, entry, bias, peepholes: float(7) };
                let states = &turned[self.width * rows..];
                // SAFETY: this sequence's own part of the workspace.
                sequence.run(arguments, gates, states, unsafe { own.slice_mut::<f32>() });
            }
        });
    }
}

impl RnnStep {
    /// The biases of the gates, where they are added to what the inputs give.
    fn base(&self, bias: Option<&[f32]>, direction: usize, gates: &mut [f32]) {
        let rows = self.rows();
        let Some(bias) = bias else { return gates.fill(0.0) };
        let bias = &bias[direction * 2 * rows..][..2 * rows];
        let both = if self.linear() { 2 * self.hidden } else { rows };
        for (row, gate) in gates.iter_mut().enumerate() {
            *gate = bias[row] + if row < both { bias[rows + row] } else { 0.0 };
        }
    }
}

/// One sequence in one direction.
struct Sequence<'a> {
    step: &'a RnnStep,
    direction: usize,
    entry: usize,
    bias: Option<&'a [f32]>,
    peepholes: Option<&'a [f32]>,
}

impl Sequence<'_> {
    fn run(&self, arguments: &Arguments<'_>, inputs: &[f32], states: &[f32], own: &mut [f32]) {
        let (step, hidden, rows) = (self.step, self.step.hidden, self.step.rows());
        let (gates, own) = own.split_at_mut(rows);
        let (h, own) = own.split_at_mut(hidden);
        let (c, spare) = own.split_at_mut(hidden);
        let state = match step.op.batch_first {
            false => (self.direction * step.batch + self.entry) * hidden,
            true => (self.entry * step.directions + self.direction) * hidden,
        };
        for (index, to) in [(5, &mut *h), (6, &mut *c)] {
            match arguments.inputs.get(index).copied().flatten() {
                // SAFETY: an input; nobody writes it while the step runs.
                Some(view) => to.copy_from_slice(unsafe { &view.slice::<f32>()[state..state + hidden] }),
                None => to.fill(0.0),
            }
        }
        let length = match arguments.inputs.get(4).copied().flatten() {
            Some(view) => Integers::new(view, step.wide).at(self.entry).clamp(0, step.length as i64) as usize,
            None => step.length,
        };
        let backwards = step.op.direction == RnnDirection::Reverse || self.direction == 1;
        for moment in 0..length {
            let time = if backwards { length - 1 - moment } else { moment };
            let row =
                if step.op.batch_first { self.entry * step.length + time } else { time * step.batch + self.entry };
            gates.copy_from_slice(&inputs[row * rows..][..rows]);
            match step.op.kind {
                RnnKind::Rnn => {
                    accumulate(step.machine.isa, gates, h, states, rows, 0);
                    self.activate(0, gates);
                    h.copy_from_slice(gates);
                }
                RnnKind::Gru { .. } => self.gru(gates, h, spare, states),
                RnnKind::Lstm { input_forget } => self.lstm(gates, h, c, states, input_forget),
            }
            let place = match step.op.batch_first {
                false => (time * step.directions + self.direction) * step.batch + self.entry,
                true => (self.entry * step.length + time) * step.directions + self.direction,
            };
            write(arguments.outputs[0], place * hidden, h);
        }
        write(arguments.outputs[1], state, h);
        if matches!(step.op.kind, RnnKind::Lstm { .. }) {
            write(arguments.outputs[2], state, c);
        }
    }

    fn gru(&self, gates: &mut [f32], h: &mut [f32], spare: &mut [f32], states: &[f32]) {
        let (isa, hidden, rows) = (self.step.machine.isa, self.step.hidden, self.step.rows());
        let (update, candidate) = gates.split_at_mut(2 * hidden);
        accumulate(isa, update, h, states, rows, 0);
        self.activate(0, update);
        let (update, reset) = update.split_at(hidden);
        if self.step.linear() {
            match self.bias {
                Some(bias) => spare.copy_from_slice(&bias[(self.direction * 2 + 1) * rows + 2 * hidden..][..hidden]),
                None => spare.fill(0.0),
            }
            accumulate(isa, spare, h, states, rows, 2 * hidden);
            candidate.iter_mut().zip(reset).zip(&*spare).for_each(|((c, r), s)| *c += r * s);
        } else {
            spare.iter_mut().zip(reset).zip(&*h).for_each(|((s, r), h)| *s = r * h);
            accumulate(isa, candidate, spare, states, rows, 2 * hidden);
        }
        self.activate(1, candidate);
        h.iter_mut().zip(update).zip(candidate).for_each(|((h, z), c)| *h = (1.0 - z) * *c + z * *h);
    }

    fn lstm(&self, gates: &mut [f32], h: &mut [f32], c: &mut [f32], states: &[f32], input_forget: bool) {
        let (isa, hidden, rows) = (self.step.machine.isa, self.step.hidden, self.step.rows());
        accumulate(isa, gates, h, states, rows, 0);
        // Gates lie in the order input, output, forget, cell; peepholes as the first three.
        let (input, rest) = gates.split_at_mut(hidden);
        let (output, rest) = rest.split_at_mut(hidden);
        let (forget, cell) = rest.split_at_mut(hidden);
        let peep = |gate: &mut [f32], index: usize, c: &[f32]| {
            if let Some(peepholes) = self.peepholes {
                let weights = &peepholes[(self.direction * 3 + index) * hidden..][..hidden];
                gate.iter_mut().zip(weights).zip(c).for_each(|((g, p), c)| *g += p * c);
            }
        };
        peep(input, 0, c);
        self.activate(0, input);
        if input_forget {
            forget.iter_mut().zip(&*input).for_each(|(f, i)| *f = 1.0 - i);
        } else {
            peep(forget, 2, c);
            self.activate(0, forget);
        }
        self.activate(1, cell);
        let kept = forget.iter().zip(&*input).zip(&*cell);
        c.iter_mut().zip(kept).for_each(|(c, ((f, i), g))| *c = f * *c + i * g);
        peep(output, 1, c);
        self.activate(0, output);
        h.copy_from_slice(c);
        apply(isa, h, self.step.activation(self.direction, 2));
        h.iter_mut().zip(output).for_each(|(h, o)| *h *= *o);
    }

    /// Clips and activates gates.
    fn activate(&self, index: usize, gates: &mut [f32]) {
        let clip = self.step.op.clip;
        if clip > 0.0 {
            gates.iter_mut().for_each(|gate| *gate = gate.clamp(-clip, clip));
        }
        apply(self.step.machine.isa, gates, self.step.activation(self.direction, index));
    }
}

/// Turns `[rows, columns]` into `[columns, rows]`.
fn turn(machine: &Machine, from: &[f32], columns: usize, to: View<'_>) {
    let rows = from.len().checked_div(columns).unwrap_or(0);
    split(machine, columns, to.len(), &|range| {
        for column in range {
            // SAFETY: this part's own rows of the workspace.
            let to = unsafe { to.part(column * rows * 4, rows * 4).slice_mut::<f32>() };
            to.iter_mut().enumerate().for_each(|(row, to)| *to = from[row * columns + column]);
        }
    });
}

fn write(output: View<'_>, start: usize, numbers: &[f32]) {
    // SAFETY: each sequence writes its own places.
    unsafe { output.part(start * 4, numbers.len() * 4).slice_mut::<f32>() }.copy_from_slice(numbers);
}

multiversion! {
    /// Adds `Σ factors[k] · matrix[k, first..]` to `out`; rows of the matrix have `width` numbers.
    fn accumulate(out: &mut [f32], factors: &[f32], matrix: &[f32], width: usize, first: usize) = accumulate_body
}

#[inline(always)]
fn accumulate_body(out: &mut [f32], factors: &[f32], matrix: &[f32], width: usize, first: usize) {
    for (k, &factor) in factors.iter().enumerate() {
        let row = &matrix[k * width + first..][..out.len()];
        out.iter_mut().zip(row).for_each(|(out, x)| *out += factor * x);
    }
}

multiversion! {
    fn apply(x: &mut [f32], activation: RnnActivation) = apply_body
}

#[inline(always)]
fn apply_body(x: &mut [f32], activation: RnnActivation) {
    let mut each = |f: &dyn Fn(f32) -> f32| x.iter_mut().for_each(|x| *x = f(*x));
    match activation {
        RnnActivation::Sigmoid => x.iter_mut().for_each(|x| *x = sigmoid(*x)),
        RnnActivation::Tanh => x.iter_mut().for_each(|x| *x = tanh(*x)),
        RnnActivation::Relu => each(&|x| x.max(0.0)),
        RnnActivation::Affine(alpha, beta) => each(&|x| alpha * x + beta),
        RnnActivation::LeakyRelu(alpha) => each(&|x| if x >= 0.0 { x } else { alpha * x }),
        RnnActivation::ThresholdedRelu(alpha) => each(&|x| if x > alpha { x } else { 0.0 }),
        RnnActivation::ScaledTanh(alpha, beta) => each(&|x| alpha * (beta * x).tanh()),
        RnnActivation::HardSigmoid(alpha, beta) => each(&|x| (alpha * x + beta).clamp(0.0, 1.0)),
        RnnActivation::Elu(alpha) => each(&|x| if x >= 0.0 { x } else { alpha * x.exp_m1() }),
        RnnActivation::Softsign => each(&|x| x / (1.0 + x.abs())),
        RnnActivation::Softplus => each(&|x| x.max(0.0) + (-x.abs()).exp().ln_1p()),
    }
}
