//! Offsets for values that live and die in a known order.

use std::cmp::Reverse;

/// A value's size and the steps between which it lives, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lifetime {
    pub bytes: usize,
    pub first: usize,
    pub last: usize,
}

impl Lifetime {
    fn meets(&self, other: &Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Every value starts on a cache line.
pub(crate) const ALIGNMENT: usize = 64;

/// An offset for each value, so that values that live at the same time do not overlap, and the size of
/// the whole. Greedy by size (Pisarchyk and Lee, 2020, "Efficient Memory Management for Deep Neural
/// Net Inference", §5.2): the largest first, each into the lowest gap that holds it.
pub(crate) fn layout(values: &[Lifetime]) -> Option<(Vec<usize>, usize)> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by_key(|&index| (Reverse(values[index].bytes), values[index].first, index));
    let mut offsets = vec![0; values.len()];
    let mut total = 0usize;
    // Placed values by offset, to walk the gaps from below.
    let mut placed: Vec<usize> = Vec::with_capacity(values.len());
    for index in order {
        let value = values[index];
        if value.bytes == 0 {
            continue;
        }
        let bytes = value.bytes.checked_next_multiple_of(ALIGNMENT)?;
        let mut offset = 0usize;
        for &other in placed.iter().filter(|&&other| values[other].meets(&value)) {
            if offset.checked_add(bytes)? <= offsets[other] {
                break;
            }
            offset = offset.max(offsets[other] + values[other].bytes.next_multiple_of(ALIGNMENT));
        }
        offsets[index] = offset;
        total = total.max(offset.checked_add(bytes)?);
        let position = placed.partition_point(|&other| offsets[other] <= offset);
        placed.insert(position, index);
    }
    Some((offsets, total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_chain_needs_two_buffers() {
        let chain: Vec<_> = (0..10).map(|i| Lifetime { bytes: 100, first: i, last: i + 1 }).collect();
        let (_, total) = layout(&chain).unwrap();
        assert_eq!(total, 256);
    }

    proptest! {
        #[test]
        fn values_that_meet_never_overlap(
            values in prop::collection::vec((0usize..1000, 0usize..20, 0usize..10), 0..40)
        ) {
            let values: Vec<_> =
                values.into_iter().map(|(bytes, first, length)| Lifetime { bytes, first, last: first + length }).collect();
            let (offsets, total) = layout(&values).unwrap();
            for (i, a) in values.iter().enumerate() {
                prop_assert!(offsets[i] % ALIGNMENT == 0 && offsets[i] + a.bytes <= total);
                for (j, b) in values.iter().enumerate().take(i) {
                    let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                    prop_assert!(!a.meets(b) || apart || a.bytes == 0 || b.bytes == 0);
                }
            }
        }
    }
}
