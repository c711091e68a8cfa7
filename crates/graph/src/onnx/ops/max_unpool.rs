use super::common::{Windows, evaluate_by_lowering, one, sizes, spatial_rank};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Expand, Op, Pad, PadMode, Padding, ScatterElements, ScatterReduction};
use crate::{Builder, OpError};
use halimede_tensor::element_count;

/// Puts pooled elements back where MaxPool took them, zeros elsewhere (ONNX MaxUnpool, opset 22).
pub static OPERATOR: Operator = Operator::new("MaxUnpool").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (x, indices) = (node.input(0)?, node.input(1)?);
    let Some(spatial) = spatial_rank(b, x)? else { return Ok(None) };
    let Some(pooled) = b.fact(x).known_shape() else { return Ok(None) };
    let kernel = sizes(node, "kernel_shape", spatial)?;
    let Windows { strides, padding, .. } = Windows::read(node, spatial)?;
    let Padding::Explicit(pads) = padding else {
        return Err(OpError::invalid("MaxUnpool has no auto_pad"));
    };
    // The shape that was pooled, where the windows covered all of it.
    let mut shape: Vec<i64> = pooled.iter().map(|&size| size as i64).collect();
    for axis in 0..spatial {
        let steps = (shape[axis + 2] - 1).saturating_mul(strides[axis] as i64);
        let border = pads[axis].saturating_add(pads[axis + spatial]);
        shape[axis + 2] = steps.saturating_add(kernel[axis] as i64).saturating_sub(border).max(0);
    }
    let sizes: Vec<usize> = shape.iter().map(|&size| size as usize).collect();
    let count = element_count(&sizes)? as i64;

    let dtype = b.dtype(x)?;
    let zero = b.scalar(0.0, dtype)?;
    let flat_shape = b.ints(&[count]);
    let zeros = b.add(Op::Expand(Expand), &[zero, flat_shape])?;
    let (x, indices) = (b.reshape(x, &[-1])?, b.reshape(indices, &[-1])?);
    let scatter = ScatterElements { axis: 0, reduction: ScatterReduction::None };
    let flat = b.add(Op::ScatterElements(scatter), &[zeros, indices, x])?;
    let y = b.reshape(flat, &shape)?;

    let Some(wanted) = node.optional(2) else { return one(y) };
    let Some(wanted) = b.fact(wanted).ints() else { return Ok(None) };
    if wanted.len() != shape.len() {
        return Err(OpError::invalid(format!("output_shape {wanted:?} has not the rank of the input")));
    }
    let mut border = vec![0i64; shape.len()];
    border.extend(wanted.iter().zip(&shape).map(|(wanted, size)| wanted.saturating_sub(*size)));
    let border = b.ints(&border);
    one(b.add(Op::Pad(Pad { mode: PadMode::Constant }), &[y, border])?)
}

fn cases() -> Vec<Case> {
    let case = |name| {
        let (x, at) = (tensor(&[1, 1, 1, 2], &[5f32, 6.0]), tensor(&[1, 1, 1, 2], &[1i64, 7]));
        Case::new(name, &OPERATOR, 22)
            .attribute("kernel_shape", Attribute::Ints(vec![2, 2]))
            .attribute("strides", Attribute::Ints(vec![2, 2]))
            .input(x)
            .input(at)
    };
    vec![
        case("inferred shape").output(tensor(&[1, 1, 2, 4], &[0f32, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 6.0])),
        case("a given shape is wider")
            .input(tensor(&[4], &[1i64, 1, 2, 5]))
            .output(tensor(&[1, 1, 2, 5], &[0f32, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 6.0, 0.0])),
    ]
}
