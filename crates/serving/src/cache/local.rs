//! Responses in the memory of this process, bounded in bytes; what was used longest ago goes first.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    time::{Duration, Instant},
};

use halimede_tensor::Buffer;
use parking_lot::Mutex;

use super::{CacheKey, Insertion, ResponseCache};
use crate::{
    error::Error,
    metrics::{Family, Kind, Sample, Value},
    response::OutputTensor,
};

/// What an entry takes beside its outputs: its places in the map and in the order.
const ENTRY_BYTES: u64 = 128;
/// What an output takes beside its name, shape and elements.
const OUTPUT_BYTES: u64 = 96;

/// Responses in the memory of this process.
pub struct LocalCache {
    bytes_max: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<CacheKey, Entry>,
    /// Keys by the time of their last use, counted in uses.
    order: BTreeMap<u64, CacheKey>,
    uses: u64,
    bytes: u64,
    counts: Counts,
}

struct Entry {
    outputs: Vec<OutputTensor>,
    bytes: u64,
    used: u64,
}

/// What happened so far.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    lookups: u64,
    hits: u64,
    evictions: u64,
    lookup_time: Duration,
    insertion_time: Duration,
}

impl LocalCache {
    /// A cache that takes `bytes_max` at most.
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, state: Mutex::default() }
    }
}

/// The bytes that outputs take.
fn size(outputs: &[OutputTensor]) -> u64 {
    let one = |output: &OutputTensor| {
        let shape = size_of_val(output.shape.as_slice());
        OUTPUT_BYTES + (output.name.len() + shape + output.data.len()) as u64
    };
    ENTRY_BYTES + outputs.iter().map(one).sum::<u64>()
}

/// A copy that keeps nothing else alive: outputs may be views of a whole batch.
fn copy(output: &OutputTensor) -> Result<OutputTensor, Error> {
    Ok(OutputTensor {
        name: output.name.clone(),
        dtype: output.dtype,
        shape: output.shape.clone(),
        data: Buffer::copied(&output.data)?,
    })
}

impl ResponseCache for LocalCache {
    fn look_up(&self, key: &CacheKey) -> Result<Option<Vec<OutputTensor>>, Error> {
        let start = Instant::now();
        let mut state = self.state.lock();
        let found = state.use_entry(key);
        state.counts.lookups += 1;
        state.counts.hits += u64::from(found.is_some());
        state.counts.lookup_time += start.elapsed();
        Ok(found)
    }

    fn insert(&self, key: &CacheKey, outputs: &[OutputTensor]) -> Result<Insertion, Error> {
        let start = Instant::now();
        let bytes = size(outputs);
        if bytes > self.bytes_max {
            let max = self.bytes_max;
            return Err(Error::internal(format!(
                "Requested byte_size: {bytes} is greater than total cache size: {max}"
            )));
        }
        if self.state.lock().entries.contains_key(key) {
            return Ok(Insertion::AlreadyThere);
        }
        // Copied without the lock: others look things up meanwhile.
        let outputs = outputs.iter().map(copy).collect::<Result<Vec<_>, _>>()?;
        let mut state = self.state.lock();
        if state.entries.contains_key(key) {
            return Ok(Insertion::AlreadyThere);
        }
        while state.bytes + bytes > self.bytes_max {
            state.evict();
        }
        state.uses += 1;
        let used = state.uses;
        state.bytes += bytes;
        state.order.insert(used, *key);
        state.entries.insert(*key, Entry { outputs, bytes, used });
        state.counts.insertion_time += start.elapsed();
        Ok(Insertion::Done)
    }

    fn metrics(&self) -> Vec<Family> {
        let state = self.state.lock();
        let counts = state.counts;
        let us = |duration: Duration| duration.as_micros() as f64;
        [
            ("nv_cache_util", "Cache utilization [0.0 - 1.0]", state.bytes as f64 / self.bytes_max.max(1) as f64),
            ("nv_cache_num_entries", "Number of responses stored in response cache", state.entries.len() as f64),
            ("nv_cache_num_hits", "Number of cache hits in response cache", counts.hits as f64),
            ("nv_cache_num_misses", "Number of cache misses in response cache", (counts.lookups - counts.hits) as f64),
            ("nv_cache_num_lookups", "Number of cache lookups in response cache", counts.lookups as f64),
            ("nv_cache_num_evictions", "Number of cache evictions in response cache", counts.evictions as f64),
            (
                "nv_cache_lookup_duration",
                "Total cache lookup duration (hit and miss), in microseconds",
                us(counts.lookup_time),
            ),
            (
                "nv_cache_insertion_duration",
                "Total cache insertion duration, in microseconds",
                us(counts.insertion_time),
            ),
        ]
        .map(|(name, help, value)| {
            let sample = Sample { labels: Vec::new(), value: Value::Number(value) };
            Family { name: name.into(), help: help.into(), kind: Kind::Gauge, samples: vec![sample] }
        })
        .into()
    }
}

impl State {
    /// The outputs under a key, which are then the ones used last.
    fn use_entry(&mut self, key: &CacheKey) -> Option<Vec<OutputTensor>> {
        let entry = self.entries.get_mut(key)?;
        self.uses += 1;
        self.order.remove(&entry.used);
        entry.used = self.uses;
        self.order.insert(entry.used, *key);
        Some(entry.outputs.clone())
    }

    /// Gives up the entry that was used longest ago.
    fn evict(&mut self) {
        let Some((_, key)) = self.order.pop_first() else { return self.bytes = 0 };
        if let Some(entry) = self.entries.remove(&key) {
            self.bytes -= entry.bytes;
            self.counts.evictions += 1;
        }
    }
}

impl fmt::Debug for LocalCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalCache").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use halimede_tensor::DType;
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{floats, request};

    fn key(number: u32) -> CacheKey {
        let (request, _waiting) = request("m", [floats("A", &[1], &[number as f32])]);
        CacheKey::new("", 1, &request)
    }

    fn outputs(bytes: usize) -> Vec<OutputTensor> {
        let data = Buffer::zeroed(bytes).unwrap();
        vec![OutputTensor { name: "O".to_owned(), dtype: DType::U8, shape: vec![bytes as i64], data }]
    }

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let cache = LocalCache::new(2 * size(&outputs(100)));
        for number in [1, 2] {
            assert_eq!(cache.insert(&key(number), &outputs(100)), Ok(Insertion::Done));
        }
        assert_eq!(cache.insert(&key(1), &outputs(100)), Ok(Insertion::AlreadyThere));
        assert!(cache.look_up(&key(1)).unwrap().is_some());
        cache.insert(&key(3), &outputs(100)).unwrap();
        let there = [1, 2, 3].map(|number| cache.look_up(&key(number)).unwrap().is_some());
        assert_eq!(there, [true, false, true]);
        let metric = |name: &str| {
            let family = cache.metrics().into_iter().find(|family| family.name == name).unwrap();
            family.samples[0].value.clone()
        };
        for (name, value) in [
            ("nv_cache_util", 1.0),
            ("nv_cache_num_entries", 2.0),
            ("nv_cache_num_hits", 3.0),
            ("nv_cache_num_misses", 1.0),
            ("nv_cache_num_lookups", 4.0),
            ("nv_cache_num_evictions", 1.0),
        ] {
            assert_eq!(metric(name), Value::Number(value), "{name}");
        }
    }

    #[test]
    fn what_does_not_fit_at_all_is_refused_and_evicts_nothing() {
        let cache = LocalCache::new(1000);
        cache.insert(&key(1), &outputs(10)).unwrap();
        let error = cache.insert(&key(2), &outputs(1000)).unwrap_err();
        assert!(error.message.ends_with("is greater than total cache size: 1000"), "{error}");
        assert!(cache.look_up(&key(1)).unwrap().is_some());
    }

    #[test]
    fn an_entry_keeps_no_batch_alive() {
        let cache = LocalCache::new(10_000);
        let batch = outputs(4096).remove(0);
        let part = OutputTensor { data: batch.data.part(0, 16).unwrap(), ..batch };
        let start = part.data.as_ptr();
        cache.insert(&key(1), &[part]).unwrap();
        assert_ne!(cache.look_up(&key(1)).unwrap().unwrap()[0].data.as_ptr(), start);
    }

    proptest! {
        /// Against a list in the order of use.
        #[test]
        fn it_is_a_bounded_list_in_the_order_of_use(
            steps in prop::collection::vec((any::<bool>(), 0u32..12, 1usize..400), 1..200),
        ) {
            let cache = LocalCache::new(2000);
            let mut model: VecDeque<(u32, u64)> = VecDeque::new();
            for (insert, number, bytes) in steps {
                let place = model.iter().position(|(known, _)| *known == number);
                if !insert {
                    prop_assert_eq!(cache.look_up(&key(number)).unwrap().is_some(), place.is_some());
                    if let Some(entry) = place.and_then(|place| model.remove(place)) {
                        model.push_back(entry);
                    }
                } else if place.is_some() {
                    prop_assert_eq!(cache.insert(&key(number), &outputs(bytes)), Ok(Insertion::AlreadyThere));
                } else {
                    prop_assert_eq!(cache.insert(&key(number), &outputs(bytes)), Ok(Insertion::Done));
                    model.push_back((number, size(&outputs(bytes))));
                    while model.iter().map(|(_, bytes)| bytes).sum::<u64>() > 2000 {
                        model.pop_front();
                    }
                }
                let state = cache.state.lock();
                prop_assert_eq!(state.bytes, model.iter().map(|(_, bytes)| bytes).sum::<u64>());
                prop_assert_eq!((state.entries.len(), state.order.len()), (model.len(), model.len()));
            }
        }
    }
}
