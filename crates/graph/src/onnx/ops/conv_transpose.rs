use super::common::{Windows, check_kernel_shape, evaluate_by_lowering, groups, one, spatial_rank};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Conv, Op, Transposed};
use crate::{Builder, OpError};
use smallvec::SmallVec;

/// Transposed convolution (ONNX ConvTranspose, opset 22).
pub static OPERATOR: Operator = Operator::new("ConvTranspose").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (x, weights) = (node.input(0)?, node.input(1)?);
    let known = if b.rank(x).is_some() { x } else { weights };
    let Some(spatial) = spatial_rank(b, known)? else { return Ok(None) };
    if node.attributes.ints("kernel_shape")?.is_some() {
        check_kernel_shape(node, b, weights, spatial)?;
    }
    let Windows { strides, dilations, padding } = Windows::read(node, spatial)?;
    let transposed = Transposed {
        output_padding: not_negative(node, "output_padding", spatial)?,
        output_shape: not_negative(node, "output_shape", spatial)?,
    };
    let groups = groups(&node.attributes, "group")?;
    let op = Conv {
        strides,
        dilations,
        padding,
        groups,
        transposed: Some(transposed),
        channels_last: false,
        multiply: None,
        epilogue: None,
    };
    one(b.add_with_optional(Op::Conv(op), &[Some(x), Some(weights), node.optional(2)])?)
}

/// A list with one size per spatial axis, each 0 or more; empty where the node has none. An
/// `output_shape` may be written with batch and channels before it.
fn not_negative(node: &OnnxNode, name: &str, spatial: usize) -> Result<SmallVec<[usize; 2]>, OpError> {
    let Some(list) = node.attributes.ints(name)? else { return Ok(SmallVec::new()) };
    let list = if name == "output_shape" && list.len() == spatial + 2 { &list[2..] } else { list };
    let sizes: Option<SmallVec<[usize; 2]>> = list.iter().map(|&size| usize::try_from(size).ok()).collect();
    sizes.filter(|sizes| sizes.is_empty() || sizes.len() == spatial).ok_or_else(|| {
        OpError::invalid(format!("attribute '{name}' is {list:?}; {spatial} sizes of 0 or more are needed"))
    })
}

fn cases() -> Vec<Case> {
    let case = |name| {
        let x = tensor(&[1, 1, 2, 2], &[1f32, 2.0, 3.0, 4.0]);
        Case::new(name, &OPERATOR, 22).input(x).input(tensor(&[1, 1, 2, 2], &[1f32, 10.0, 100.0, 1000.0]))
    };
    vec![
        case("no border")
            .output(tensor(&[1, 1, 3, 3], &[1f32, 12.0, 20.0, 103.0, 1234.0, 2040.0, 300.0, 3400.0, 4000.0])),
        // Of the border to cut the larger half lies before, where nothing says otherwise.
        case("an output shape that leaves an odd border")
            .attribute("strides", Attribute::Ints(vec![2, 2]))
            .attribute("output_shape", Attribute::Ints(vec![3, 3]))
            .output(tensor(&[1, 1, 3, 3], &[1000f32, 200.0, 2000.0, 30.0, 4.0, 40.0, 3000.0, 400.0, 4000.0])),
        case("pads cut the border")
            .attribute("pads", Attribute::Ints(vec![1, 1, 0, 0]))
            .output(tensor(&[1, 1, 2, 2], &[1234f32, 2040.0, 3400.0, 4000.0])),
    ]
}
