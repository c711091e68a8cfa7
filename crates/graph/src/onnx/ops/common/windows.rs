use crate::Builder;
use crate::onnx::OnnxNode;
use crate::ops::Padding;
use crate::{OpError, ValueId};
use smallvec::SmallVec;

/// What convolutions and poolings say of their windows: steps, distances and border per spatial axis.
#[derive(Debug, Clone)]
pub struct Windows {
    /// Step of the window per spatial axis.
    pub strides: SmallVec<[usize; 2]>,
    /// Distance between taps per spatial axis.
    pub dilations: SmallVec<[usize; 2]>,
    /// Border.
    pub padding: Padding,
}

impl Windows {
    /// Reads `strides`, `dilations`, `pads` and `auto_pad` for `spatial` axes.
    pub fn read(node: &OnnxNode, spatial: usize) -> Result<Windows, OpError> {
        let padding = match node.attributes.text_or("auto_pad", "NOTSET")? {
            "SAME_UPPER" => Padding::SameUpper,
            "SAME_LOWER" => Padding::SameLower,
            "VALID" => Padding::Explicit(SmallVec::from_elem(0, 2 * spatial)),
            "NOTSET" | "" => match node.attributes.ints("pads")? {
                Some(pads) if pads.len() == 2 * spatial => Padding::Explicit(pads.into()),
                Some(pads) => return Err(wrong_length("pads", pads.len(), 2 * spatial)),
                None => Padding::Explicit(SmallVec::from_elem(0, 2 * spatial)),
            },
            other => {
                return Err(OpError::invalid(format!(
                    "auto_pad is '{other}'; ONNX knows NOTSET, SAME_UPPER, SAME_LOWER and VALID"
                )));
            }
        };
        Ok(Windows {
            strides: sizes(node, "strides", spatial)?,
            dilations: sizes(node, "dilations", spatial)?,
            padding,
        })
    }
}

/// A list of positive sizes, one per spatial axis; ones where the node has none.
pub fn sizes(node: &OnnxNode, name: &str, spatial: usize) -> Result<SmallVec<[usize; 2]>, OpError> {
    let Some(list) = node.attributes.ints(name)? else { return Ok(SmallVec::from_elem(1, spatial)) };
    if list.len() != spatial {
        return Err(wrong_length(name, list.len(), spatial));
    }
    let positive = |&size: &i64| usize::try_from(size).ok().filter(|&size| size > 0);
    list.iter()
        .map(|size| {
            positive(size)
                .ok_or_else(|| OpError::invalid(format!("attribute '{name}' has {size}; each must be positive")))
        })
        .collect()
}

/// Number of spatial axes of `x [N, C, ...]`, where its rank is known.
pub fn spatial_rank(b: &Builder, x: ValueId) -> Result<Option<usize>, OpError> {
    match b.rank(x) {
        None => Ok(None),
        Some(rank) if rank >= 3 => Ok(Some(rank - 2)),
        Some(rank) => Err(OpError::invalid(format!(
            "the input has {rank} dimensions; batch, channels and at least one spatial axis are needed"
        ))),
    }
}

fn wrong_length(name: &str, actual: usize, expected: usize) -> OpError {
    OpError::invalid(format!("attribute '{name}' has {actual} entries; the input needs {expected}"))
}
