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

use super::{
    context::{Names, Parent, new_id},
    held::Held,
    settings::Setting,
};
use crate::json::Writer;

/// Events that one trace keeps: a stream may go on for ever.
const EVENTS_MAX: usize = 10_000;

/// What happened, in the order in which it was told.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Begin {
        id: u64,
        parent: u64,
        model: String,
        version: i64,
        request_id: String,
    },
    Reach {
        id: u64,
        name: &'static str,
        at: Instant,
    },
    Tensor {
        id: u64,
        is_output: bool,
        name: String,
        dtype: DType,
        shape: Vec<i64>,
        data: Buffer,
    },
    /// There was no room for more.
    LeftOut {
        id: u64,
        activities: u64,
        tensors: u64,
    },
}

/// A request that is traced, and those that it sets off.
pub(crate) struct Record {
    setting: Arc<Setting>,
    ids: Arc<AtomicU64>,
    /// The number of the client's request.
    id: u64,
    kept: Mutex<Kept>,
}

/// What is kept of a trace, and how much is not.
struct Kept {
    events: Vec<Event>,
    names: Names,
    /// Room for the tensors.
    held: Held,
    activities_left_out: u64,
    tensors_left_out: u64,
}

impl Record {
    pub(super) fn new(setting: Arc<Setting>, ids: Arc<AtomicU64>, parent: Option<Parent>) -> Self {
        let id = ids.fetch_add(1, Relaxed);
        let names = Names::of(parent);
        let kept =
            Kept { events: Vec::new(), names, held: setting.held(), activities_left_out: 0, tensors_left_out: 0 };
        Self { setting, ids, id, kept: Mutex::new(kept) }
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
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(event);
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

    fn context(&self, id: u64) -> Option<String> {
        // Nobody else knows what is written to files.
        if !self.setting.continues() {
            return None;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let traceparent = kept.names.traceparent(id, &mut new_id);
        let state = kept.names.state().to_owned();
        drop(kept);
        let mut writer = Writer::default();
        writer.begin_object();
        writer.member("traceparent", &traceparent);
        if !state.is_empty() {
            writer.member("tracestate", &state);
        }
        writer.end_object();
        Some(String::from_utf8_lossy(&writer.into_bytes()).into_owned())
    }

    fn tensor(&self, id: u64, tensor: TracedTensor<'_>) {
        let TracedTensor { is_output, name, dtype, shape, data } = tensor;
        let (name, shape, data) = (name.to_owned(), shape.to_vec(), data.clone());
        self.push(Event::Tensor { id, is_output, name, dtype, shape, data });
    }
}

impl Kept {
    fn push(&mut self, event: Event) {
        let has_room = self.events.len() < EVENTS_MAX;
        match &event {
            Event::Tensor { data, .. } if !has_room || !self.held.take(data.len()) => self.tensors_left_out += 1,
            _ if !has_room => self.activities_left_out += 1,
            _ => self.events.push(event),
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let kept = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (activities, tensors) = (kept.activities_left_out, kept.tensors_left_out);
        if activities + tensors > 0 {
            kept.events.push(Event::LeftOut { id: self.id, activities, tensors });
        }
        let held = mem::replace(&mut kept.held, self.setting.held());
        self.setting.take(mem::take(&mut kept.events), mem::take(&mut kept.names), held);
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("id", &self.id).finish_non_exhaustive()
    }
}
