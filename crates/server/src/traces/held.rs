//! Room for what traces hold of requests until it is written.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Bytes of tensors that all traces may hold together, from the request to the file.
const TENSOR_BYTES_MAX: usize = 256 << 20;
/// Bytes of tensors that one of them may hold: a stream without end leaves room for others.
const TENSOR_BYTES_OF_ONE_MAX: usize = 64 << 20;

/// What one trace holds. Its end gives it back.
#[derive(Debug)]
pub(crate) struct Held {
    all: Arc<AtomicUsize>,
    mine: usize,
}

impl Held {
    /// Nothing yet, of what `all` counts.
    pub fn new(all: Arc<AtomicUsize>) -> Self {
        Self { all, mine: 0 }
    }

    /// Whether there is room for a tensor of so many bytes, which is taken then.
    pub fn take(&mut self, bytes: usize) -> bool {
        let fits = |held: usize, max| held.checked_add(bytes).filter(|sum| *sum <= max);
        let Some(mine) = fits(self.mine, TENSOR_BYTES_OF_ONE_MAX) else { return false };
        let has_room = self.all.fetch_update(Relaxed, Relaxed, |all| fits(all, TENSOR_BYTES_MAX)).is_ok();
        if has_room {
            self.mine = mine;
        }
        has_room
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.mine, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_trace_and_all_of_them_hold_only_so_much() {
        let all = Arc::<AtomicUsize>::default();
        let mut traces: Vec<Held> = (0..5).map(|_| Held::new(all.clone())).collect();
        assert!(traces[0].take(TENSOR_BYTES_OF_ONE_MAX) && !traces[0].take(1) && !traces[1].take(usize::MAX));
        assert!(traces[1..4].iter_mut().all(|trace| trace.take(TENSOR_BYTES_OF_ONE_MAX)));
        assert!(!traces[4].take(1), "the others hold everything");
        traces.remove(0);
        assert!(traces[3].take(1));
        drop(traces);
        assert_eq!(all.load(Relaxed), 0);
    }
}
