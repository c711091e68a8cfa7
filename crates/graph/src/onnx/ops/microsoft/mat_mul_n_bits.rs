use super::blocks::{centred, middle, unpack};
use crate::onnx::case::tensor;
use crate::onnx::ops::common::{evaluate_by_lowering, one};
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Binary, Contract, Dequantize, Expr, Labels, Op, Slice};
use crate::{Builder, OpError, ValueId};
use halimede_tensor::{DType, Tensor};
use smallvec::smallvec;

/// Product with a matrix whose columns are stored in blocks of 2, 4 or 8 bits (ONNX Runtime
/// MatMulNBits).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "MatMulNBits").lower(lower).evaluate(evaluate_by_lowering).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let attributes = &node.attributes;
    let positive = |name: &str| -> Result<i64, OpError> {
        let value = attributes.required(name, attributes.int(name)?)?;
        if value > 0 { Ok(value) } else { Err(OpError::invalid(format!("{name} is {value}; it must be positive"))) }
    };
    let (depth, columns, block) = (positive("K")?, positive("N")?, positive("block_size")?);
    let bits = attributes.int_or("bits", 4)?;
    if node.optional(4).is_some() {
        return Err(OpError::unsupported("MatMulNBits with g_idx"));
    }
    let x = node.input(0)?;
    let Some(rank) = b.rank(x).filter(|&rank| rank > 0) else { return Ok(None) };
    let blocks = (depth + block - 1) / block;
    let leading: Labels = (0..rank as u8 - 1).collect();
    let (n, k) = (rank as u8, rank as u8 + 1);
    let lhs: Labels = leading.iter().copied().chain([k]).collect();
    let out: Labels = leading.iter().copied().chain([n]).collect();
    let contract = Contract::new(lhs, smallvec![n, k], out);
    let with_bias = |b: &mut Builder, product| match node.optional(5) {
        Some(bias) => one(b.binary(Binary::Add, product, bias)?),
        None => one(product),
    };
    if let Some(constants) = constants(node, b, [columns, blocks, depth], bits)? {
        let dequantize = Some(Dequantize { to: None, axis: 1, block: block as usize });
        let inputs = [&[Some(x)], &constants.map(|tensor| tensor.map(|tensor| b.constant(tensor)))[..]].concat();
        let product = b.add_with_optional(Op::Contract(Contract { dequantize, ..contract }), &inputs)?;
        return with_bias(b, product);
    }

    // [N, blocks, bytes] as [N, blocks · block]: one row per column of the product.
    let packed = b.reshape(node.input(1)?, &[columns, blocks, -1])?;
    let elements = unpack(b, packed, bits, 3)?;
    let elements = b.reshape(elements, &[columns, blocks.saturating_mul(block)])?;
    let scales = b.reshape(node.input(2)?, &[columns, blocks])?;
    let weights = dequantize(node, b, elements, scales, [columns, blocks, block], bits)?;
    let weights = if blocks * block == depth { weights } else { first_columns(b, weights, depth)? };

    let dtype = b.dtype(x)?;
    let weights = b.cast(weights, dtype)?;
    let product = b.add(Op::Contract(contract), &[x, weights])?;
    with_bias(b, product)
}

/// Elements `[N, K]`, scales and zero points `[N, blocks]`, where they are stored with the model and their zero points
/// are as they are: then they need not be unpacked at every run.
fn constants(
    node: &OnnxNode,
    b: &Builder,
    [columns, blocks, depth]: [i64; 3],
    bits: i64,
) -> Result<Option<[Option<Tensor>; 3]>, OpError> {
    let constant = |at: usize| Some(b.fact(node.optional(at)?).constant.clone());
    let (Some(Some(elements)), Some(Some(scales))) = (constant(1), constant(2)) else { return Ok(None) };
    let x = b.dtype(node.input(0)?)?;
    if !matches!(bits, 2 | 4 | 8) || [x, scales.dtype()] != [DType::F32; 2] {
        return Ok(None);
    }
    let (columns, blocks, depth) = (columns as usize, blocks as usize, depth as usize);
    let zeros = match constant(3) {
        None => None,
        Some(Some(zeros)) if zeros.dtype() == DType::U8 => match centred(&zeros, bits, columns, blocks) {
            Some(zeros) => Some(zeros),
            None => return Ok(None),
        },
        Some(_) => return Ok(None),
    };
    let scales = scales.reshaped(&[columns, blocks])?;
    Ok(centred(&elements, bits, columns, depth).map(|elements| [Some(elements), Some(scales), zeros]))
}

/// The numbers that `[N, blocks · block]` elements stand for.
fn dequantize(
    node: &OnnxNode,
    b: &mut Builder,
    elements: ValueId,
    scales: ValueId,
    [columns, blocks, block]: [i64; 3],
    bits: i64,
) -> Result<ValueId, OpError> {
    let block = block as usize;
    let zero_points = match node.optional(3) {
        None => middle(b, scales, bits)?,
        Some(zero_points) if b.dtype(zero_points)?.is_float() => {
            // Zero points that are numbers of their own are subtracted block by block.
            let zero_points = b.reshape(zero_points, &[columns, blocks, 1])?;
            let scales = b.reshape(scales, &[columns, blocks, 1])?;
            let elements = b.reshape(elements, &[columns, blocks, block as i64])?;
            let dtype = b.dtype(scales)?;
            let number = (Expr::input(0).cast(dtype) - Expr::input(1)) * Expr::input(2);
            let numbers = b.map(&number, &[elements, zero_points, scales])?;
            return b.reshape(numbers, &[columns, blocks * block as i64]);
        }
        Some(zero_points) => {
            // Each row of zero points is packed by itself, up to a whole byte.
            let packed = b.reshape(zero_points, &[columns, -1])?;
            let unpacked = unpack(b, packed, bits, 2)?;
            if bits == 8 { unpacked } else { first_columns(b, unpacked, blocks)? }
        }
    };
    b.add(Op::Dequantize(Dequantize { to: None, axis: 1, block }), &[elements, scales, zero_points])
}

fn first_columns(b: &mut Builder, x: ValueId, count: i64) -> Result<ValueId, OpError> {
    let (start, end, axis) = (b.ints(&[0]), b.ints(&[count]), b.ints(&[1]));
    b.add(Op::Slice(Slice), &[x, start, end, axis])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("4 bits, half a block over", &OPERATOR, 1)
            .attribute("K", Attribute::Int(20))
            .attribute("N", Attribute::Int(3))
            .attribute("block_size", Attribute::Int(16))
            .attribute("bits", Attribute::Int(4))
            .input(tensor(
                &[2, 20],
                &[
                    -0.39f32, -0.34, -1.3, -1.44, 0.79, -0.19, 0.22, 1.0, -1.73, -0.78, 0.18, 0.39, -0.38, 1.03, 0.21,
                    -1.21, -0.93, 0.81, 0.46, -1.9, 1.35, 0.6, 1.34, -0.38, -0.3, -1.13, 2.54, -0.18, 1.59, -0.65,
                    0.16, -1.67, -0.38, 0.98, -1.25, 1.07, 0.34, -1.04, -0.5, -0.46,
                ],
            ))
            .input(tensor(
                &[3, 2, 8],
                &[
                    60u8, 183, 240, 79, 78, 174, 3, 182, 131, 97, 240, 216, 33, 146, 157, 247, 34, 218, 68, 200, 212,
                    184, 122, 248, 246, 44, 109, 66, 82, 129, 255, 63, 163, 223, 179, 120, 135, 206, 192, 85, 249, 129,
                    227, 215, 30, 204, 253, 220,
                ],
            ))
            .input(tensor(&[6], &[0.18f32, 0.146, 0.157, 0.07, 0.044, 0.161]))
            .output(tensor(&[2, 3], &[-4.41682f32, -0.09882988, -0.020160006, 4.4363203, -2.8260303, -0.5357999]))
            .within(1e-3, 1e-4),
        Case::new("4 bits, zero points", &OPERATOR, 1)
            .attribute("K", Attribute::Int(20))
            .attribute("N", Attribute::Int(3))
            .attribute("block_size", Attribute::Int(16))
            .attribute("bits", Attribute::Int(4))
            .input(tensor(
                &[1, 20],
                &[
                    -0.05f32, -0.54, -0.83, -0.3, -1.03, -1.29, -0.05, 0.88, -1.53, 0.0, -0.65, -0.98, 0.85, -0.52,
                    1.5, -0.78, 0.39, -0.23, -0.75, 0.59,
                ],
            ))
            .input(tensor(
                &[3, 2, 8],
                &[
                    60u8, 183, 240, 79, 78, 174, 3, 182, 131, 97, 240, 216, 33, 146, 157, 247, 34, 218, 68, 200, 212,
                    184, 122, 248, 246, 44, 109, 66, 82, 129, 255, 63, 163, 223, 179, 120, 135, 206, 192, 85, 249, 129,
                    227, 215, 30, 204, 253, 220,
                ],
            ))
            .input(tensor(&[6], &[0.18f32, 0.146, 0.157, 0.07, 0.044, 0.161]))
            .input(tensor(&[3], &[135u8, 73, 22]))
            .output(tensor(&[1, 3], &[-4.7340803f32, 2.2699802, -0.92241]))
            .within(1e-3, 1e-4),
        Case::new("8 bits", &OPERATOR, 1)
            .attribute("K", Attribute::Int(16))
            .attribute("N", Attribute::Int(2))
            .attribute("block_size", Attribute::Int(16))
            .attribute("bits", Attribute::Int(8))
            .input(tensor(
                &[1, 16],
                &[
                    -0.15f32, 0.6, -0.05, -1.09, -0.1, 0.05, 0.96, -0.91, -0.04, -1.72, 0.65, -1.08, -1.81, -0.06,
                    1.11, -1.52,
                ],
            ))
            .input(tensor(
                &[2, 1, 16],
                &[
                    180u8, 125, 142, 212, 169, 192, 172, 63, 148, 96, 107, 28, 46, 87, 74, 162, 74, 63, 109, 144, 254,
                    130, 89, 82, 114, 236, 94, 62, 148, 197, 241, 71,
                ],
            ))
            .input(tensor(&[2], &[0.01f32, 0.02]))
            .input(tensor(&[2], &[120u8, 130]))
            .output(tensor(&[1, 2], &[1.452f32, -0.18879992]))
            .within(1e-3, 1e-4),
    ]
}
