use super::{Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;

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
    fn infer(&self, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        Err(OpError::unsupported("Rnn"))
    }

    fn evaluate(&self, _inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        Err(OpError::unsupported("Rnn"))
    }
}
