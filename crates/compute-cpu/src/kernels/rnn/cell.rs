//! What one sequence's gates become at one moment.

use super::RnnStep;
use crate::isa::multiversion;
use crate::map::{sigmoid, tanh};
use halimede_graph::ops::{RnnActivation, RnnKind};

/// One direction of a layer.
pub(super) struct Cell<'a> {
    pub step: &'a RnnStep,
    pub direction: usize,
    /// Weights of the LSTM's states in its gates.
    pub peepholes: Option<&'a [f32]>,
}

impl Cell<'_> {
    /// The new states from whole gates. For a GRU these are the update gate, which is activated already,
    /// and the candidate.
    pub fn finish(&self, gates: &mut [f32], h: &mut [f32], c: &mut [f32]) {
        match self.step.op.kind {
            RnnKind::Rnn => {
                self.activate(0, gates);
                h.copy_from_slice(gates);
            }
            RnnKind::Gru { .. } => {
                let hidden = self.step.hidden;
                let (update, candidate) = gates.split_at_mut(2 * hidden);
                self.activate(1, candidate);
                h.iter_mut().zip(&*update).zip(candidate).for_each(|((h, z), c)| *h = (1.0 - z) * *c + z * *h);
            }
            RnnKind::Lstm { input_forget } => self.lstm(gates, h, c, input_forget),
        }
    }

    fn lstm(&self, gates: &mut [f32], h: &mut [f32], c: &mut [f32], input_forget: bool) {
        let (isa, hidden) = (self.step.machine.isa, self.step.hidden);
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
    pub fn activate(&self, index: usize, gates: &mut [f32]) {
        let clip = self.step.op.clip;
        if clip > 0.0 {
            gates.iter_mut().for_each(|gate| *gate = gate.clamp(-clip, clip));
        }
        apply(self.step.machine.isa, gates, self.step.activation(self.direction, index));
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
