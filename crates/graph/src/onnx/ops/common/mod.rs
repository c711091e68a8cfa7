//! What families of operators share.

mod attention_mask;
mod attributes;
mod axes;
mod broadcast;
mod cumulative;
mod facts;
mod fourier;
mod inputs;
mod int_list;
mod late;
mod loss;
mod order;
mod pooling;
mod products;
mod quantization;
mod random;
mod random_state;
mod recurrent;
mod reduce;
mod resize;
mod rows;
mod scatter;
mod sequence;
mod size;
mod take;
mod window;
mod windows;

pub use attention_mask::{AttentionMask, Places, join_heads, split_heads};
pub use attributes::{block_size, dtype_attribute};
pub use axes::{axis_or, iota, position, resolve_axis};
pub use broadcast::{broadcast_dims, broadcast_index};
pub use cumulative::lower_cumulative;
pub use facts::{infer_like, same_dtype};
pub use fourier::{Complex, Transform, fft};
pub use inputs::{integer, number, optional, required, room, text};
pub use int_list::IntList;
pub use late::{evaluate_by_lowering, infer_by_lowering, lower_call};
pub use loss::negative_log_likelihood;
pub use order::element_order;
pub use pooling::lower_pool;
pub use products::{
    centred, check_kernel_shape, conv, conv_op, groups, integer_matmul, integer_operand, matmul, per_channel,
};
pub use quantization::quantization_axis;
pub use random::{Random, dtype_or, normal_numbers, shape_attribute, uniform_numbers};
pub use random_state::RandomState;
pub use recurrent::lower_recurrent;
pub use reduce::lower_reduce;
pub use resize::{coordinate_transform, early_rounding, nearest_rounding, resize_mode};
pub use rows::lower_rows;
pub use scatter::scatter_reduction;
pub use sequence::{first_dtype, given, position as sequence_position, scalar as count, sequence, sequence_fact};
pub use size::{Size, expand, reshape, shape};
pub use take::take;
pub use window::lower_cosine_window;
pub use windows::{Windows, sizes, spatial_rank};

use crate::onnx::{OnnxNode, Outputs};
use crate::ops::{Binary, Expr};
use crate::{OpError, ValueId};
use smallvec::smallvec;

/// The answer of a lowering with one output.
pub fn one(output: ValueId) -> Result<Option<Outputs>, OpError> {
    Ok(Some(smallvec![output]))
}

/// A function of two joined over all inputs of a node, with those inputs.
pub fn fold(node: &OnnxNode, function: Binary) -> Result<(Expr, Vec<ValueId>), OpError> {
    let inputs: Vec<ValueId> = (0..node.inputs.len()).map(|i| node.input(i)).collect::<Result<_, _>>()?;
    let formula = (1..inputs.len()).fold(Expr::input(0), |joined, i| joined.with(function, Expr::input(i)));
    Ok((formula, inputs))
}
