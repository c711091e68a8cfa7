//! What the optimisers share: groups of tensors that are updated alike.

use crate::onnx::{OnnxNode, Outputs};
use crate::ops::{Expr, Op};
use crate::{Builder, OpError};

/// One tensor with its gradient and states, as input terms of formulas, beside rate and step count.
pub struct Terms {
    /// The learning rate R.
    pub rate: Expr,
    /// The number of steps so far T, as a number like the tensor.
    pub step: Expr,
    /// The tensor X.
    pub x: Expr,
    /// Its gradient G.
    pub gradient: Expr,
    /// Its states.
    pub states: Vec<Expr>,
}

/// Updates every tensor of a node whose inputs are R, T, all X, all G, then all of each of `states`
/// kinds of state. `update` gives the new X and states; outputs come kind by kind.
pub fn lower_steps(
    node: &OnnxNode,
    b: &mut Builder,
    states: usize,
    update: impl Fn(Terms) -> Vec<Expr>,
) -> Result<Option<Outputs>, OpError> {
    let kinds = 2 + states;
    let count = node.inputs.len().saturating_sub(2) / kinds;
    let mut outputs: Vec<Vec<_>> = vec![Vec::new(); 1 + states];
    for tensor in 0..count {
        let mut inputs = vec![node.input(0)?, node.input(1)?];
        for kind in 0..kinds {
            inputs.push(node.input(2 + kind * count + tensor)?);
        }
        let dtype = b.dtype(inputs[2])?;
        let terms = Terms {
            rate: Expr::input(0).cast(dtype),
            step: Expr::input(1).cast(dtype),
            x: Expr::input(2),
            gradient: Expr::input(3),
            states: (0..states).map(|state| Expr::input(4 + state)).collect(),
        };
        for (output, formula) in outputs.iter_mut().zip(update(terms)) {
            output.push(b.add(Op::Map(formula.map(dtype)), &inputs)?);
        }
    }
    Ok(Some(outputs.into_iter().flatten().collect()))
}

/// A float attribute or its default, for formulas.
pub fn number(node: &OnnxNode, name: &str, default: f32) -> Result<f64, OpError> {
    Ok(node.attributes.float_or(name, default)?.into())
}
