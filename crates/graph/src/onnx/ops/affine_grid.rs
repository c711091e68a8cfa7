use super::common::{Size, evaluate_by_lowering, expand, one, reshape, same_dtype};
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, OnnxNode, Operator, Outputs};
use crate::ops::{Concat, Contract, Expr, Gather, Labels, Op};
use crate::{Builder, OpError, ValueId};
use halimede_tensor::DType;
use smallvec::smallvec;

/// The sampling grid of affine maps of the plane or of space, for GridSample (ONNX AffineGrid, opset 20).
pub static OPERATOR: Operator =
    Operator::new("AffineGrid").lower(lower).evaluate(evaluate_by_lowering).infer(same_dtype).cases(cases);

fn lower(node: &OnnxNode, b: &mut Builder) -> Result<Option<Outputs>, OpError> {
    let (theta, size) = (node.input(0)?, node.input(1)?);
    let align = node.attributes.flag_or("align_corners", false)?;
    let length = b.fact(size).shape.as_ref().and_then(|shape| shape.first()?.size());
    let spatial = match length {
        None => return Ok(None),
        Some(length @ (4 | 5)) => length - 2,
        Some(length) => return Err(OpError::invalid(format!("the size has {length} entries instead of 4 or 5"))),
    };
    let sizes = (0..spatial).map(|axis| entry(b, size, 2 + axis)).collect::<Result<Vec<_>, _>>()?;
    let dtype = b.dtype(theta)?;
    // Homogeneous coordinates of every place, innermost axis first.
    let whole: Vec<Size> = sizes.iter().copied().chain([Size::Known(1)]).collect();
    let mut coordinates = Vec::with_capacity(spatial + 1);
    for axis in (0..spatial).rev() {
        let along = along(b, sizes[axis], align, dtype)?;
        let mut shape = vec![Size::Known(1); spatial + 1];
        shape[axis] = Size::Known(-1);
        let along = reshape(b, along, &shape)?;
        coordinates.push(expand(b, along, &whole)?);
    }
    let one_everywhere = b.scalar(1.0, dtype)?;
    coordinates.push(expand(b, one_everywhere, &whole)?);
    let base = b.add(Op::Concat(Concat { axis: spatial }), &coordinates)?;
    let (batch, row, column) = (10u8, 11u8, 12u8);
    let places = 0..spatial as u8;
    let lhs: Labels = smallvec![batch, row, column];
    let rhs = places.clone().chain([column]).collect();
    let out = std::iter::once(batch).chain(places).chain([row]).collect();
    one(b.add(Op::Contract(Contract::new(lhs, rhs, out)), &[theta, base])?)
}

fn entry(b: &mut Builder, list: ValueId, index: usize) -> Result<Size, OpError> {
    if let Some(list) = b.fact(list).ints() {
        let size = list.get(index).copied();
        return size.map(Size::Known).ok_or_else(|| OpError::invalid("the size has to be a list of 4 or 5 entries"));
    }
    let index = b.ints(&[index as i64]);
    Ok(Size::Value(b.add(Op::Gather(Gather { axis: 0 }), &[list, index])?))
}

/// From -1 to 1: the centres of that many cells, or with `align` their outermost ones on the ends.
fn along(b: &mut Builder, size: Size, align: bool, dtype: DType) -> Result<ValueId, OpError> {
    let positions = size.positions(b)?;
    let positions = b.cast(positions, dtype)?;
    let size = size.scalar(b)?;
    let size = b.cast(size, dtype)?;
    let (position, size_number) = (Expr::input(0), Expr::input(1));
    let formula = if align {
        position * 2.0 / (size_number - 1.0).max(1.0) - 1.0
    } else {
        (position * 2.0 + 1.0) / size_number - 1.0
    };
    b.map(&formula, &[positions, size])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("identity, corners aligned", &OPERATOR, 20)
            .attribute("align_corners", Attribute::Int(1))
            .input(tensor(&[1, 2, 3], &[1.0f32, 0.0, 0.0, 0.0, 1.0, 0.0]))
            .input(tensor(&[4], &[1i64, 1, 1, 3]))
            .output(tensor(&[1, 1, 3, 2], &[-1.0f32, -1.0, 0.0, -1.0, 1.0, -1.0])),
    ]
}
