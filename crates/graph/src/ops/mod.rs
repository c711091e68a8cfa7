//! The core operators: the closed set that compute units see.
//!
//! One file each: what it computes, its shape rule and its reference evaluation, which *is* its
//! definition. Kernels are compared with the reference; constant folding and operators that a unit
//! has no kernel for run it.

mod arg_reduce;
mod attention;
mod call;
mod cast;
pub(crate) mod channels;
mod concat;
mod contract;
mod control;
mod conv;
mod cumulative;
mod dispatch;
mod expand;
mod expr;
mod factors;
mod gather;
mod inputs;
mod map;
mod movement;
mod norm;
mod numeric;
mod pad;
mod pool;
mod products;
mod quantize;
mod range;
mod reduce;
mod reshape;
mod resize;
mod rnn;
mod rope;
mod scatter;
mod shape;
mod slice;
mod softmax;
mod tile;
mod top_k;
mod transpose;
mod window;

pub use arg_reduce::ArgReduce;
pub use attention::Attention;
pub use call::Call;
pub use cast::Cast;
pub use channels::{channels_first, channels_last};
pub use concat::Concat;
pub use contract::{Contract, Labels};
pub(crate) use control::weaken;
pub use control::{If, Loop, Scan, run_control};
pub use conv::{Conv, Padding, Transposed};
pub use cumulative::{Cumulative, CumulativeKind};
pub use dispatch::has_many_rows;
pub use expand::Expand;
pub use expr::Expr;
pub(crate) use factors::integer_weights;
pub use factors::{Factors, whole_weights};
pub use gather::{Gather, GatherElements, GatherNd};
pub(crate) use inputs::check_slices;
pub use map::{Binary, Instruction, Map, Reg, Scalar, Scale, Scaled, Unary};
pub use norm::{Norm, NormKind};
pub use pad::{Pad, PadMode};
pub use pool::{Pool, PoolKind};
pub use products::{ProductPart, Products};
pub use quantize::{Dequantize, Quantize};
pub use range::Range;
pub use reduce::{Reduce, ReduceKind};
pub use reshape::Reshape;
pub use resize::{CoordinateTransform, NearestRounding, Resize, ResizeMode, Sample};
pub use rnn::{Rnn, RnnActivation, RnnDirection, RnnKind};
pub use rope::Rope;
pub use scatter::{ScatterElements, ScatterNd, ScatterReduction};
pub use shape::ShapeOf;
pub use slice::Slice;
pub use softmax::Softmax;
pub use tile::Tile;
pub use top_k::TopK;
pub use transpose::Transpose;
pub use window::Axis;

use crate::{Fact, OpError};
use halimede_tensor::Tensor;
use smallvec::SmallVec;

/// What is known of each output of an operation.
pub type Facts = SmallVec<[Fact; 1]>;
/// The outputs of an operation.
pub type Tensors = SmallVec<[Tensor; 1]>;

/// A core operator that maps tensors to tensors and nothing else.
pub trait TensorOp {
    /// What is known of the outputs. Called with symbols when a model is loaded and with numbers when
    /// it is prepared for a request; an error means that the model is wrong. Where the outputs'
    /// shapes depend on data, it leaves them unknown.
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError>;

    /// The definition: plain loops, no speed.
    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError>;
}

/// One core operator with its attributes.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "each variant's type documents it")]
pub enum Op {
    ArgReduce(ArgReduce),
    Attention(Attention),
    Call(Call),
    Cast(Cast),
    Concat(Concat),
    Contract(Contract),
    Conv(Conv),
    Cumulative(Cumulative),
    Dequantize(Dequantize),
    Expand(Expand),
    Gather(Gather),
    GatherElements(GatherElements),
    GatherNd(GatherNd),
    If(If),
    Loop(Loop),
    Map(Map),
    Norm(Norm),
    Pad(Pad),
    Pool(Pool),
    Products(Products),
    Quantize(Quantize),
    Range(Range),
    Reduce(Reduce),
    Reshape(Reshape),
    Resize(Resize),
    Rnn(Rnn),
    Rope(Rope),
    Scan(Scan),
    ScatterElements(ScatterElements),
    ScatterNd(ScatterNd),
    ShapeOf(ShapeOf),
    Slice(Slice),
    Softmax(Softmax),
    Tile(Tile),
    TopK(TopK),
    Transpose(Transpose),
}

impl Op {
    /// What a product multiplies its operands as; `None` where as they are, and for what is no product.
    pub fn multiply(&self) -> Option<Factors> {
        match self {
            Op::Contract(op) => op.multiply,
            Op::Conv(op) => op.multiply,
            Op::Attention(op) => op.multiply,
            Op::Products(op) => op.parts.first().and_then(|part| part.product.multiply),
            _ => None,
        }
    }

    /// The same, to change it; several products that are one operation have it decided.
    pub fn multiply_mut(&mut self) -> Option<&mut Option<Factors>> {
        match self {
            Op::Contract(op) => Some(&mut op.multiply),
            Op::Conv(op) => Some(&mut op.multiply),
            Op::Attention(op) => Some(&mut op.multiply),
            _ => None,
        }
    }

    /// The operator as a function of tensors; `None` for control flow and calls, whose inputs may be
    /// sequences and whose bodies are graphs.
    pub fn tensor_op(&self) -> Option<&dyn TensorOp> {
        Some(match self {
            Op::Call(_) | Op::If(_) | Op::Loop(_) | Op::Scan(_) => return None,
            Op::ArgReduce(op) => op,
            Op::Attention(op) => op,
            Op::Cast(op) => op,
            Op::Concat(op) => op,
            Op::Contract(op) => op,
            Op::Conv(op) => op,
            Op::Cumulative(op) => op,
            Op::Dequantize(op) => op,
            Op::Expand(op) => op,
            Op::Gather(op) => op,
            Op::GatherElements(op) => op,
            Op::GatherNd(op) => op,
            Op::Map(op) => op,
            Op::Norm(op) => op,
            Op::Pad(op) => op,
            Op::Pool(op) => op,
            Op::Products(op) => op,
            Op::Quantize(op) => op,
            Op::Range(op) => op,
            Op::Reduce(op) => op,
            Op::Reshape(op) => op,
            Op::Resize(op) => op,
            Op::Rnn(op) => op,
            Op::Rope(op) => op,
            Op::ScatterElements(op) => op,
            Op::ScatterNd(op) => op,
            Op::ShapeOf(op) => op,
            Op::Slice(op) => op,
            Op::Softmax(op) => op,
            Op::Tile(op) => op,
            Op::TopK(op) => op,
            Op::Transpose(op) => op,
        })
    }

    /// The name in listings; for a call, the ONNX operator's.
    pub fn name(&self) -> &'static str {
        match self {
            Op::ArgReduce(_) => "ArgReduce",
            Op::Attention(_) => "Attention",
            Op::Call(call) => call.operator.name,
            Op::Cast(_) => "Cast",
            Op::Concat(_) => "Concat",
            Op::Contract(_) => "Contract",
            Op::Conv(_) => "Conv",
            Op::Cumulative(_) => "Cumulative",
            Op::Dequantize(_) => "Dequantize",
            Op::Expand(_) => "Expand",
            Op::Gather(_) => "Gather",
            Op::GatherElements(_) => "GatherElements",
            Op::GatherNd(_) => "GatherNd",
            Op::If(_) => "If",
            Op::Loop(_) => "Loop",
            Op::Map(_) => "Map",
            Op::Norm(_) => "Norm",
            Op::Pad(_) => "Pad",
            Op::Pool(_) => "Pool",
            Op::Products(_) => "Products",
            Op::Quantize(_) => "Quantize",
            Op::Range(_) => "Range",
            Op::Reduce(_) => "Reduce",
            Op::Reshape(_) => "Reshape",
            Op::Resize(_) => "Resize",
            Op::Rnn(_) => "Rnn",
            Op::Rope(_) => "Rope",
            Op::Scan(_) => "Scan",
            Op::ScatterElements(_) => "ScatterElements",
            Op::ScatterNd(_) => "ScatterNd",
            Op::ShapeOf(_) => "Shape",
            Op::Slice(_) => "Slice",
            Op::Softmax(_) => "Softmax",
            Op::Tile(_) => "Tile",
            Op::TopK(_) => "TopK",
            Op::Transpose(_) => "Transpose",
        }
    }
}
