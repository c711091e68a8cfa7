use super::inputs::{integers, optional, required, typed};
use super::{Facts, TensorOp, Tensors};
use crate::{Dim, Dims, Fact, OpError};
use halimede_tensor::Tensor;
use smallvec::smallvec;

/// Which recurrent layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RnnKind {
    /// ONNX LSTM.
    Lstm {
        /// Couple the input and forget gates.
        input_forget: bool,
    },
    /// ONNX GRU.
    Gru {
        /// Apply the linear transformation before the reset gate.
        linear_before_reset: bool,
    },
    /// ONNX RNN.
    Rnn,
}

/// Direction of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "named after ONNX's direction")]
pub enum RnnDirection {
    Forward,
    Reverse,
    Bidirectional,
}

/// An activation of a gate, with ONNX's alpha and beta.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "named after ONNX's activations")]
pub enum RnnActivation {
    Sigmoid,
    Tanh,
    Relu,
    Affine(f32, f32),
    LeakyRelu(f32),
    ThresholdedRelu(f32),
    ScaledTanh(f32, f32),
    HardSigmoid(f32, f32),
    Elu(f32),
    Softsign,
    Softplus,
}

/// A recurrent layer over a whole sequence. Inputs and outputs are those of ONNX's LSTM, GRU and RNN
/// (opset 14): X, W, R, B?, sequence_lens?, initial_h?, initial_c?, P?; Y, Y_h, Y_c (LSTM only).
#[derive(Debug, Clone, PartialEq)]
pub struct Rnn {
    /// Which.
    pub kind: RnnKind,
    /// Direction of time.
    pub direction: RnnDirection,
    /// Size of the hidden state.
    pub hidden: usize,
    /// Activations per direction, in ONNX's order (LSTM f, g, h; GRU f, g; RNN f).
    pub activations: Vec<RnnActivation>,
    /// Clip gate inputs to ±this where positive.
    pub clip: f32,
    /// Batch before time (ONNX `layout` 1).
    pub batch_first: bool,
}

impl TensorOp for Rnn {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        let x = required(inputs, 0)?;
        let (mut length, mut batch) = (Dim::unknown(), Dim::unknown());
        if let Some(shape) = &x.shape {
            if shape.len() != 3 {
                return Err(OpError::invalid(format!("a recurrent layer over {shape:?}, which should be of rank 3")));
            }
            (length, batch) = (shape[0].clone(), shape[1].clone());
            if self.batch_first {
                std::mem::swap(&mut length, &mut batch);
            }
        }
        let (directions, hidden) = (Dim::from(self.directions()), Dim::from(self.hidden));
        let (sequence, state) = match self.batch_first {
            false => {
                let state: Dims = smallvec![directions.clone(), batch.clone(), hidden.clone()];
                (smallvec![length, directions, batch, hidden], state)
            }
            true => {
                let state: Dims = smallvec![batch.clone(), directions.clone(), hidden.clone()];
                (smallvec![batch, length, directions, hidden], state)
            }
        };
        let mut facts: Facts = smallvec![typed(x.dtype, Some(sequence)), typed(x.dtype, Some(state.clone()))];
        if self.is_lstm() {
            facts.push(typed(x.dtype, Some(state)));
        }
        Ok(facts)
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        let x = required(inputs, 0)?;
        let &[a, b, width] = x.shape() else {
            return Err(OpError::invalid(format!("a recurrent layer over {:?}, which should be of rank 3", x.shape())));
        };
        let (length, batch) = if self.batch_first { (b, a) } else { (a, b) };
        let (directions, hidden, gates) = (self.directions(), self.hidden, self.gates());
        let numbers = |index: usize, count: usize| -> Result<Option<Vec<f64>>, OpError> {
            let Some(tensor) = optional(inputs, index) else { return Ok(None) };
            match tensor.len() == count {
                true => Ok(Some(tensor.to_f64s()?)),
                false => {
                    Err(OpError::invalid(format!("input {index} has {} elements instead of {count}", tensor.len())))
                }
            }
        };
        let rows = directions * gates * hidden;
        let weights = |index, width| Ok::<_, OpError>(numbers(index, rows * width)?.unwrap_or_default());
        required(inputs, 1)?;
        required(inputs, 2)?;
        let (w, r) = (weights(1, width)?, weights(2, hidden)?);
        let bias = numbers(3, 2 * rows)?.unwrap_or_else(|| vec![0.0; 2 * rows]);
        let lengths = match optional(inputs, 4) {
            None => vec![length; batch],
            Some(lengths) => integers(lengths)?.into_iter().map(|l| l.clamp(0, length as i64) as usize).collect(),
        };
        if lengths.len() != batch || self.activations.len() != directions * self.activations_each() {
            let (lengths, activations) = (lengths.len(), self.activations.len());
            return Err(OpError::invalid(format!(
                "{lengths} sequence lengths for a batch of {batch}, {activations} activations for {directions} directions"
            )));
        }
        let states = directions * batch * hidden;
        let state = |index| Ok::<_, OpError>(numbers(index, states)?.unwrap_or_else(|| vec![0.0; states]));
        let (mut h, mut c) = (state(5)?, if self.is_lstm() { state(6)? } else { Vec::new() });
        let peepholes = if self.is_lstm() { numbers(7, directions * 3 * hidden)? } else { None };
        let values = x.to_f64s()?;
        let mut y = vec![0.0; length * states];
        let state_at = |direction: usize, b: usize| match self.batch_first {
            false => (direction * batch + b) * hidden,
            true => (b * directions + direction) * hidden,
        };
        for direction in 0..directions {
            let backwards = self.direction == RnnDirection::Reverse || direction == 1;
            let of = |list: &[f64], count: usize| list[direction * count..][..count].to_vec();
            let cell = Cell {
                layer: self,
                w: of(&w, gates * hidden * width),
                r: of(&r, gates * hidden * hidden),
                bias: of(&bias, 2 * gates * hidden),
                peepholes: peepholes.as_ref().map(|p| of(p, 3 * hidden)),
                activations: &self.activations[direction * self.activations_each()..],
            };
            for b in 0..batch {
                let at = state_at(direction, b);
                let mut hidden_state = h[at..at + hidden].to_vec();
                let mut cell_state = if self.is_lstm() { c[at..at + hidden].to_vec() } else { Vec::new() };
                for step in 0..lengths[b] {
                    let time = if backwards { lengths[b] - 1 - step } else { step };
                    let row = if self.batch_first { b * length + time } else { time * batch + b };
                    cell.step(&values[row * width..][..width], &mut hidden_state, &mut cell_state);
                    let out = match self.batch_first {
                        false => ((time * directions + direction) * batch + b) * hidden,
                        true => ((b * length + time) * directions + direction) * hidden,
                    };
                    y[out..out + hidden].copy_from_slice(&hidden_state);
                }
                h[at..at + hidden].copy_from_slice(&hidden_state);
                if self.is_lstm() {
                    c[at..at + hidden].copy_from_slice(&cell_state);
                }
            }
        }
        let (sequence, state) = match self.batch_first {
            false => ([length, directions, batch, hidden], [directions, batch, hidden]),
            true => ([batch, length, directions, hidden], [batch, directions, hidden]),
        };
        let dtype = x.dtype();
        let mut outputs: Tensors =
            smallvec![Tensor::from_f64s(dtype, &sequence, &y)?, Tensor::from_f64s(dtype, &state, &h)?];
        if self.is_lstm() {
            outputs.push(Tensor::from_f64s(dtype, &state, &c)?);
        }
        Ok(outputs)
    }
}

impl Rnn {
    fn is_lstm(&self) -> bool {
        matches!(self.kind, RnnKind::Lstm { .. })
    }

    fn directions(&self) -> usize {
        if self.direction == RnnDirection::Bidirectional { 2 } else { 1 }
    }

    fn gates(&self) -> usize {
        match self.kind {
            RnnKind::Lstm { .. } => 4,
            RnnKind::Gru { .. } => 3,
            RnnKind::Rnn => 1,
        }
    }

    /// Activations of one direction.
    fn activations_each(&self) -> usize {
        match self.kind {
            RnnKind::Lstm { .. } => 3,
            RnnKind::Gru { .. } => 2,
            RnnKind::Rnn => 1,
        }
    }
}

/// One direction of a layer with its weights: `w [G·H, I]`, `r [G·H, H]`, `bias [2·G·H]`.
struct Cell<'a> {
    layer: &'a Rnn,
    w: Vec<f64>,
    r: Vec<f64>,
    bias: Vec<f64>,
    /// Of the input, output and forget gates.
    peepholes: Option<Vec<f64>>,
    activations: &'a [RnnActivation],
}

impl Cell<'_> {
    /// One moment of one sequence.
    fn step(&self, x: &[f64], h: &mut Vec<f64>, c: &mut [f64]) {
        let hidden = self.layer.hidden;
        let rows = self.layer.gates() * hidden;
        let input = |row: usize| dot(&self.w[row * x.len()..][..x.len()], x) + self.bias[row];
        let recurrent = |row: usize, h: &[f64]| dot(&self.r[row * hidden..][..hidden], h) + self.bias[rows + row];
        let act = |index: usize, v: f64| self.activations[index].apply(self.clip(v));
        let gate = |gate: usize, i: usize, h: &[f64]| input(gate * hidden + i) + recurrent(gate * hidden + i, h);
        match self.layer.kind {
            RnnKind::Rnn => *h = (0..hidden).map(|i| act(0, gate(0, i, h))).collect(),
            RnnKind::Gru { linear_before_reset } => {
                let z: Vec<f64> = (0..hidden).map(|i| act(0, gate(0, i, h))).collect();
                let r: Vec<f64> = (0..hidden).map(|i| act(0, gate(1, i, h))).collect();
                let reset: Vec<f64> = r.iter().zip(h.iter()).map(|(r, h)| r * h).collect();
                let candidate = |i: usize| {
                    let row = 2 * hidden + i;
                    let past = if linear_before_reset { r[i] * recurrent(row, h) } else { recurrent(row, &reset) };
                    act(1, input(row) + past)
                };
                *h = (0..hidden).map(|i| (1.0 - z[i]) * candidate(i) + z[i] * h[i]).collect();
            }
            RnnKind::Lstm { input_forget } => {
                // Gates lie in the order input, output, forget, cell; peepholes as the first three.
                let peep =
                    |gate: usize, i: usize, c: f64| self.peepholes.as_ref().map_or(0.0, |p| p[gate * hidden + i] * c);
                let before = h.clone();
                for i in 0..hidden {
                    let keep = act(0, gate(0, i, &before) + peep(0, i, c[i]));
                    let forget = if input_forget { 1.0 - keep } else { act(0, gate(2, i, &before) + peep(2, i, c[i])) };
                    let candidate = act(1, gate(3, i, &before));
                    c[i] = forget * c[i] + keep * candidate;
                    let output = act(0, gate(1, i, &before) + peep(1, i, c[i]));
                    h[i] = output * self.activations[2].apply(c[i]);
                }
            }
        }
    }

    fn clip(&self, v: f64) -> f64 {
        let clip = f64::from(self.layer.clip);
        if clip > 0.0 { v.clamp(-clip, clip) } else { v }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl RnnActivation {
    fn apply(self, x: f64) -> f64 {
        let wide = f64::from;
        match self {
            RnnActivation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            RnnActivation::Tanh => x.tanh(),
            RnnActivation::Relu => x.max(0.0),
            RnnActivation::Affine(alpha, beta) => wide(alpha) * x + wide(beta),
            RnnActivation::LeakyRelu(alpha) => {
                if x >= 0.0 {
                    x
                } else {
                    wide(alpha) * x
                }
            }
            RnnActivation::ThresholdedRelu(alpha) => {
                if x > wide(alpha) {
                    x
                } else {
                    0.0
                }
            }
            RnnActivation::ScaledTanh(alpha, beta) => wide(alpha) * (wide(beta) * x).tanh(),
            RnnActivation::HardSigmoid(alpha, beta) => (wide(alpha) * x + wide(beta)).clamp(0.0, 1.0),
            RnnActivation::Elu(alpha) => {
                if x >= 0.0 {
                    x
                } else {
                    wide(alpha) * x.exp_m1()
                }
            }
            RnnActivation::Softsign => x / (1.0 + x.abs()),
            RnnActivation::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use halimede_tensor::DType;

    fn rnn(direction: RnnDirection) -> Rnn {
        let directions = if direction == RnnDirection::Bidirectional { 2 } else { 1 };
        let activations = vec![RnnActivation::Affine(1.0, 0.0); directions];
        Rnn { kind: RnnKind::Rnn, direction, hidden: 1, activations, clip: 0.0, batch_first: false }
    }

    fn ones(shape: &[usize]) -> Tensor {
        Tensor::from_f64s(DType::F32, shape, &vec![1.0; shape.iter().product()]).unwrap()
    }

    #[test]
    fn a_linear_layer_sums_up() {
        let x = Tensor::from_slice(&[3, 1, 1], &[1f32, 2.0, 3.0]).unwrap();
        let run = |direction, lengths: Option<&Tensor>| {
            let op = rnn(direction);
            let weights = ones(&[op.directions(), 1, 1]);
            let out = op.evaluate(&[Some(&x), Some(&weights), Some(&weights), None, lengths]).unwrap();
            (out[0].to_f32s().unwrap(), out[1].to_f32s().unwrap())
        };
        assert_eq!(run(RnnDirection::Forward, None), (vec![1.0, 3.0, 6.0], vec![6.0]));
        assert_eq!(run(RnnDirection::Reverse, None), (vec![6.0, 5.0, 3.0], vec![6.0]));
        let two = Tensor::from_slice(&[1], &[2i32]).unwrap();
        assert_eq!(run(RnnDirection::Reverse, Some(&two)), (vec![3.0, 2.0, 0.0], vec![3.0]));
        let both = run(RnnDirection::Bidirectional, None);
        assert_eq!(both, (vec![1.0, 6.0, 3.0, 5.0, 6.0, 3.0], vec![6.0, 6.0]));
    }

    #[test]
    fn zero_weights_keep_half_of_the_state() {
        // Every gate is sigmoid(0) = 1/2 and every candidate tanh(0) = 0.
        let x = ones(&[1, 1, 1]);
        let state = ones(&[1, 1, 1]);
        let zero = |rows: usize| Tensor::zeros(DType::F32, &[1, rows, 1]).unwrap();
        let op = |kind, activations| Rnn { kind, activations, ..rnn(RnnDirection::Forward) };
        use RnnActivation::{Sigmoid, Tanh};
        let gru = op(RnnKind::Gru { linear_before_reset: true }, vec![Sigmoid, Tanh]);
        let out = gru.evaluate(&[Some(&x), Some(&zero(3)), Some(&zero(3)), None, None, Some(&state)]).unwrap();
        assert_eq!(out[1].to_f32s().unwrap(), [0.5]);
        let lstm = op(RnnKind::Lstm { input_forget: false }, vec![Sigmoid, Tanh, Tanh]);
        let inputs = [Some(&x), Some(&zero(4)), Some(&zero(4)), None, None, None, Some(&state)];
        let out = lstm.evaluate(&inputs).unwrap();
        assert_eq!(out[2].to_f32s().unwrap(), [0.5]);
        assert!((out[0].to_f32s().unwrap()[0] - 0.5 * 0.5f32.tanh()).abs() < 1e-6);
        let wrong = Tensor::zeros(DType::F32, &[1, 3, 1]).unwrap();
        assert!(lstm.evaluate(&[Some(&x), Some(&wrong), Some(&zero(4))]).is_err());
    }

    #[test]
    fn shapes() {
        let n = Dim::symbol("n");
        let x = Fact::tensor(DType::F32, [n.clone(), Dim::from(2), Dim::from(3)]);
        let op = Rnn { batch_first: true, ..rnn(RnnDirection::Bidirectional) };
        let facts = op.infer(&[Some(&x)]).unwrap();
        assert_eq!(facts[0].shape.as_ref().unwrap()[..], [n.clone(), Dim::from(2), Dim::from(2), Dim::from(1)]);
        assert_eq!(facts[1].shape.as_ref().unwrap()[..], [n, Dim::from(2), Dim::from(1)]);
    }
}
