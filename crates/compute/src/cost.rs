//! What an operation costs, counted from its operands: the same on every unit.

use crate::{CostHint, TensorDesc};
use halimede_graph::Op;
use halimede_graph::ops::Contract;

impl CostHint {
    /// Multiplications and additions of products, convolutions and attention, which are all that counts beside moving
    /// numbers; bytes of all operands and results. `None` where what a product multiplies is not known.
    pub fn of(op: &Op, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Option<CostHint> {
        let shape = |index: usize| Some(inputs.get(index)?.as_ref()?.shape.as_slice());
        let elements = |shape: &[usize]| shape.iter().map(|&size| size as f64).product::<f64>();
        let operations = match op {
            Op::Contract(op) => 2.0 * contracted(op, shape(0)?, shape(1)?),
            Op::Products(op) => {
                let parts = op.parts.iter().zip(op.inputs_of(inputs));
                let products = parts
                    .map(|(part, inputs)| Some(contracted(&part.product, shape(0)?, &inputs.get(1)?.as_ref()?.shape)));
                2.0 * products.sum::<Option<f64>>()?
            }
            Op::Conv(op) => {
                // The first axis of the weights counts the channels of this side.
                let side = if op.transposed.is_some() { shape(0)? } else { outputs.first()?.shape.as_slice() };
                2.0 * elements(side) * elements(shape(1)?.get(1..)?)
            }
            Op::Attention(op) => {
                let (query, key, value) = (shape(0)?, shape(1)?, shape(2)?);
                let (&width, &keys, &values) = (query.last()?, key.get(op.axes(1)[2])?, value.last()?);
                let rows = elements(query.get(..query.len() - 1)?);
                let seen = if op.causal { 0.5 } else { 1.0 };
                2.0 * rows * keys as f64 * (width + values) as f64 * seen
            }
            _ => 0.0,
        };
        let written: usize = outputs.iter().map(TensorDesc::bytes).sum();
        let read = inputs.iter().enumerate().map(|(index, input)| match input {
            // What is picked from data is as much as is written.
            Some(data) if index == 0 && picks(op) => data.bytes().min(written),
            Some(input) => input.bytes(),
            None => 0,
        });
        Some(CostHint { operations, bytes: (written + read.sum::<usize>()) as f64 })
    }
}

/// Whether an operation reads parts of its data only.
fn picks(op: &Op) -> bool {
    matches!(op, Op::Gather(_) | Op::GatherElements(_) | Op::GatherNd(_) | Op::Slice(_))
}

/// Products of a contraction: the size of every label once.
fn contracted(op: &Contract, lhs: &[usize], rhs: &[usize]) -> f64 {
    let size = |label: &u8| {
        let of = |labels: &[u8], shape: &[usize]| {
            let axis = labels.iter().position(|own| own == label)?;
            shape.get(axis).copied()
        };
        of(&op.lhs, lhs).max(of(&op.rhs, rhs)).unwrap_or(1) as f64
    };
    let of_right = op.rhs.iter().filter(|label| !op.lhs.contains(label));
    op.lhs.iter().chain(of_right).map(size).product()
}

#[cfg(test)]
mod tests {
    use super::*;
    use halimede_graph::ops::{ProductPart, Products};
    use halimede_tensor::DType;

    fn desc(shape: &[usize]) -> TensorDesc {
        TensorDesc { dtype: DType::F32, shape: shape.into() }
    }

    #[test]
    fn products_are_counted() {
        let op = Op::Contract(Contract::matmul(1));
        let inputs = [Some(desc(&[3, 4, 5])), Some(desc(&[1, 5, 6]))];
        let cost = CostHint::of(&op, &inputs, &[desc(&[3, 4, 6])]);
        let bytes = (3 * 4 * 5 + 5 * 6 + 3 * 4 * 6) * 4;
        assert_eq!(cost, Some(CostHint { operations: 2.0 * 3.0 * 4.0 * 5.0 * 6.0, bytes: f64::from(bytes) }));
        assert_eq!(CostHint::of(&op, &[Some(desc(&[3, 4, 5])), None], &[desc(&[3, 4, 6])]), None);
        let part = ProductPart { name: String::new(), product: Contract::matmul(0), inputs: 1 };
        let op = Op::Products(Products { parts: vec![part.clone(), part] });
        let inputs = [&[4, 5], &[5, 6], &[5, 7]].map(|shape: &[usize; 2]| Some(desc(shape)));
        let cost = CostHint::of(&op, &inputs, &[desc(&[4, 6]), desc(&[4, 7])]).unwrap();
        let bytes = (4 * 5 + 5 * (6 + 7) + 4 * (6 + 7)) * 4;
        assert_eq!(cost, CostHint { operations: 2.0 * 4.0 * 5.0 * 13.0, bytes: f64::from(bytes) });
    }

    #[test]
    fn moving_costs_bytes_alone() {
        let cost = CostHint::of(&Op::Slice(halimede_graph::ops::Slice), &[Some(desc(&[8])), None], &[desc(&[4])]);
        assert_eq!(cost, Some(CostHint { operations: 0.0, bytes: 32.0 }));
    }
}
