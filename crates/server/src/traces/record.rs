//! What is kept of one request that is traced.

use std::{
    fmt, mem,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use halimede_serving::trace::{Activity, Trace, TraceRecord, TraceStart, TracedTensor};
use halimede_tensor::{Buffer, DType};

use super::settings::Setting;

/// What happened, in the order in which it was told.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Begin { id: u64, parent: u64, model: String, version: i64, request_id: String },
    Reach { id: u64, name: &'static str, at: Instant },
    Tensor { id: u64, is_output: bool, name: String, dtype: DType, shape: Vec<i64>, data: Buffer },
}

/// A request that is traced, and those that it sets off.
pub(crate) struct Record {
    setting: Arc<Setting>,
    ids: Arc<AtomicU64>,
    /// The number of the client's request.
    id: u64,
    events: Mutex<Vec<Event>>,
}

impl Record {
    pub(super) fn new(setting: Arc<Setting>, ids: Arc<AtomicU64>) -> Self {
        let id = ids.fetch_add(1, Relaxed);
        Self { setting, ids, id, events: Mutex::default() }
    }

    /// What a request takes along.
    pub fn trace(self: &Arc<Self>) -> Trace {
        Trace::new(self.clone(), self.id)
    }

    /// The protocol reached a point with the client's request.
    pub fn mark(&self, name: &'static str, at: Instant) {
        if self.setting.level().timestamps {
            self.push(Event::Reach { id: self.id, name, at });
        }
    }

    fn push(&self, event: Event) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

impl TraceRecord for Record {
    fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Relaxed)
    }

    fn wants_timestamps(&self) -> bool {
        self.setting.level().timestamps
    }

    fn wants_tensors(&self) -> bool {
        self.setting.level().tensors
    }

    fn begin(&self, start: TraceStart<'_>) {
        let TraceStart { id, parent, model, version, request_id, at } = start;
        let (model, request_id) = (model.to_owned(), request_id.to_owned());
        self.push(Event::Begin { id, parent, model, version, request_id });
        self.reach(id, Activity::RequestStart, at);
    }

    fn reach(&self, id: u64, activity: Activity, at: Instant) {
        self.push(Event::Reach { id, name: activity.name(), at });
    }

    fn tensor(&self, id: u64, tensor: TracedTensor<'_>) {
        let TracedTensor { is_output, name, dtype, shape, data } = tensor;
        let (name, shape, data) = (name.to_owned(), shape.to_vec(), data.clone());
        self.push(Event::Tensor { id, is_output, name, dtype, shape, data });
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let events = mem::take(self.events.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.setting.take(events);
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("id", &self.id).finish_non_exhaustive()
    }
}
