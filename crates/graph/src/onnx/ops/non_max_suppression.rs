use super::common::{integer, number, optional, required};
use crate::onnx::case::tensor;
use crate::onnx::{Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{DType, Tensor, Value};
use smallvec::smallvec;

/// The best boxes of each batch entry and class that do not overlap too much, as rows of (batch, class,
/// box) (ONNX NonMaxSuppression, opset 11).
pub static OPERATOR: Operator = Operator::new("NonMaxSuppression").evaluate(evaluate).infer(infer).cases(cases);

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let (boxes, scores) = (required(inputs, 0)?, required(inputs, 1)?);
    let limit = optional(inputs, 2)?.map_or(Ok(0), integer)?;
    let overlap = optional(inputs, 3)?.map_or(Ok(0.0), number)?;
    let lowest = optional(inputs, 4)?.map(number).transpose()?;
    let (&[batches, count, 4], &[score_batches, classes, score_count]) = (boxes.shape(), scores.shape()) else {
        return Err(OpError::invalid("boxes must be [batches, boxes, 4] and scores [batches, classes, boxes]"));
    };
    if batches != score_batches || count != score_count {
        return Err(OpError::invalid(format!("scores of shape {:?} are not those of {count} boxes", scores.shape())));
    }
    let by_centre = call.attributes.flag_or("center_point_box", false)?;
    let corners = boxes.to_f64s()?;
    let areas: Vec<Area> = corners.chunks_exact(4).map(|c| Area::new([c[0], c[1], c[2], c[3]], by_centre)).collect();
    let scores = scores.to_f64s()?;
    let limit = usize::try_from(limit).unwrap_or(0);

    let mut rows: Vec<i64> = Vec::new();
    for batch in 0..batches {
        for class in 0..classes {
            let score = |index: usize| scores[(batch * classes + class) * count + index];
            let mut left: Vec<usize> = (0..count).filter(|&i| lowest.is_none_or(|lowest| score(i) > lowest)).collect();
            left.sort_by(|&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b)));
            let mut kept: Vec<usize> = Vec::new();
            for candidate in left {
                if kept.len() >= limit {
                    break;
                }
                let area = |index: usize| &areas[batch * count + index];
                if kept.iter().all(|&other| area(candidate).overlap(area(other)) <= overlap) {
                    kept.push(candidate);
                    rows.extend([batch as i64, class as i64, candidate as i64]);
                }
            }
        }
    }
    Ok(vec![Tensor::from_slice(&[rows.len() / 3, 3], &rows)?.into()])
}

/// A box by its lower and upper ends along both axes.
struct Area {
    low: [f64; 2],
    high: [f64; 2],
}

impl Area {
    /// From two corners in any order, or from a centre and sizes.
    fn new([a, b, c, d]: [f64; 4], by_centre: bool) -> Area {
        if by_centre {
            Area { low: [a - c / 2.0, b - d / 2.0], high: [a + c / 2.0, b + d / 2.0] }
        } else {
            Area { low: [a.min(c), b.min(d)], high: [a.max(c), b.max(d)] }
        }
    }

    fn size(&self) -> f64 {
        (self.high[0] - self.low[0]) * (self.high[1] - self.low[1])
    }

    /// Intersection over union; 0 where either is empty.
    fn overlap(&self, other: &Area) -> f64 {
        let side = |axis: usize| (self.high[axis].min(other.high[axis]) - self.low[axis].max(other.low[axis])).max(0.0);
        let common = side(0) * side(1);
        let union = self.size() + other.size() - common;
        if common <= 0.0 || union <= 0.0 { 0.0 } else { common / union }
    }
}

fn infer(_call: &Call, _inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    Ok(smallvec![Fact::tensor(DType::I64, [Dim::unknown(), Dim::from(3)])])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("an overlapping box goes", &OPERATOR, 11)
            .input(tensor(&[1, 3, 4], &[0.0f32, 0.0, 1.0, 1.0, 1.0, 1.1, 0.0, 0.1, 0.0, 10.0, 1.0, 11.0]))
            .input(tensor(&[1, 1, 3], &[0.9f32, 0.75, 0.6]))
            .input(tensor(&[1], &[3i64]))
            .input(tensor(&[1], &[0.5f32]))
            .input(tensor(&[1], &[0.0f32]))
            .output(tensor(&[2, 3], &[0i64, 0, 0, 0, 0, 2])),
    ]
}
