use super::{Size, iota, reshape};
use crate::onnx::OnnxNode;
use crate::ops::{Binary, Expr, ReduceKind, Unary};
use crate::{Builder, OpError, ValueId};

/// The negative log likelihood of `log_probabilities [N, C, ...]` under `target [N, ...]`: weighted per
/// class, with one target value left out, reduced as the node says. `None` where the rank is not known.
///
/// Each target is compared with every class, which selects without reading outside: an ignored target
/// may lie anywhere.
pub fn negative_log_likelihood(
    node: &OnnxNode,
    b: &mut Builder,
    log_probabilities: ValueId,
    target: ValueId,
    class_weights: Option<ValueId>,
) -> Result<Option<ValueId>, OpError> {
    let Some(rank) = b.rank(log_probabilities) else { return Ok(None) };
    if rank < 2 {
        return Err(OpError::invalid("a loss needs scores with batch and classes"));
    }
    let dtype = b.dtype(log_probabilities)?;
    let ignored = node.attributes.int("ignore_index")?;

    // All axes after the classes are one: scores [N, C, rest], targets [N, 1, rest].
    let batch = Size::of(b, target, 0)?;
    let flat_target = reshape(b, target, &[batch, Size::Known(1), Size::Known(-1)])?;
    let flat_scores = b.reshape(log_probabilities, &[0, 0, -1])?;
    let classes = iota(b, flat_scores, 1, 3)?;
    let target_type = b.dtype(target)?;
    let classes = b.cast(classes, target_type)?;
    let selected = b.binary(Binary::Equal, flat_target, classes)?;

    // The weight of each sample: its class's, and 0 where its target is left out.
    let mut weights = match class_weights {
        Some(weights) => {
            let weights = b.reshape(weights, &[1, -1, 1])?;
            let picked = b.map(&Expr::input(1).select(Expr::input(0), 0.0), &[weights, selected])?;
            Some(b.reduce(ReduceKind::Sum, picked, [1], false)?)
        }
        None => None,
    };
    if let Some(ignored) = ignored {
        let samples = reshape(b, target, &[batch, Size::Known(-1)])?;
        let ignored = b.scalar(ignored as f64, target_type)?;
        let left_out = b.binary(Binary::Equal, samples, ignored)?;
        weights = Some(match weights {
            Some(weights) => b.map(&Expr::input(1).select(0.0, Expr::input(0)), &[weights, left_out])?,
            None => {
                let counted = b.unary(Unary::Not, left_out)?;
                b.cast(counted, dtype)?
            }
        });
    }

    let picked = b.map(&Expr::input(1).select(Expr::number(0.0) - Expr::input(0), 0.0), &[flat_scores, selected])?;
    let mut loss = b.reduce(ReduceKind::Sum, picked, [1], false)?;
    if let Some(weights) = weights {
        loss = b.binary(Binary::Mul, loss, weights)?;
    }
    let loss = match node.attributes.text_or("reduction", "mean")? {
        "none" => {
            let shape = b.shape_of(target)?;
            b.reshape_to(loss, shape)?
        }
        "sum" => b.reduce(ReduceKind::Sum, loss, [0, 1], false)?,
        "mean" => match weights {
            Some(weights) => {
                let (total, weight) = (
                    b.reduce(ReduceKind::Sum, loss, [0, 1], false)?,
                    b.reduce(ReduceKind::Sum, weights, [0, 1], false)?,
                );
                b.binary(Binary::Div, total, weight)?
            }
            None => b.reduce(ReduceKind::Mean, loss, [0, 1], false)?,
        },
        other => return Err(OpError::invalid(format!("reduction is '{other}'; it must be none, sum or mean"))),
    };
    b.cast(loss, dtype).map(Some)
}
