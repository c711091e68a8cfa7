//! Which requests are traced, and how.

use std::sync::{Arc, Mutex, PoisonError};

use super::{
    context::Names,
    files::Destination,
    held::Held,
    otlp::Collector,
    record::Event,
    writer::{Taken, Writer},
};

/// What is kept of a request that is traced; nothing where tracing is off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Levels {
    pub timestamps: bool,
    pub tensors: bool,
}

impl Levels {
    /// A level by its name in settings; `None` for another.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "OFF" => Some(Self::default()),
            "TIMESTAMPS" => Some(Self { timestamps: true, tensors: false }),
            "TENSORS" => Some(Self { timestamps: false, tensors: true }),
            _ => None,
        }
    }

    pub fn and(self, other: Self) -> Self {
        Self { timestamps: self.timestamps || other.timestamps, tensors: self.tensors || other.tensors }
    }

    pub fn is_on(self) -> bool {
        self.timestamps || self.tensors
    }

    /// Names as settings print them.
    pub fn names(self) -> Vec<&'static str> {
        match (self.timestamps, self.tensors) {
            (false, false) => vec!["OFF"],
            (true, false) => vec!["TIMESTAMPS"],
            (false, true) => vec!["TENSORS"],
            (true, true) => vec!["TIMESTAMPS", "TENSORS"],
        }
    }
}

/// The values of all settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Values {
    pub level: Levels,
    /// One request in so many is traced.
    pub rate: u32,
    /// How many are still traced; below 0 for any number.
    pub count: i32,
    /// A file with a number of its own is written for so many traces; 0 for one file.
    pub log_frequency: u32,
    pub file: String,
    /// Where traces are sent, instead of being written to files.
    pub collector: Option<Arc<Collector>>,
}

/// A change of one value.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Change<T> {
    #[default]
    Keep,
    Clear,
    Set(T),
}

impl<T: Copy> Change<T> {
    /// The value after the change and whether it is one's own; it was with `had`.
    pub fn of(self, had: bool, old: T, fallback: T) -> (T, bool) {
        match self {
            Change::Keep if had => (old, true),
            Change::Keep | Change::Clear => (fallback, false),
            Change::Set(value) => (value, true),
        }
    }
}

/// Changes of all values.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub level: Change<Levels>,
    pub rate: Change<u32>,
    pub count: Change<i32>,
    pub log_frequency: Change<u32>,
}

/// Values in effect, with what was traced under them. A change makes new ones: requests that run keep those that they
/// began with.
#[derive(Debug)]
pub(super) struct Setting {
    values: Values,
    destination: Destination,
    counts: Mutex<Counts>,
    writer: Arc<Writer>,
}

#[derive(Debug)]
struct Counts {
    /// Traces that may still be taken; below 0 for any number.
    left: i32,
    /// Requests that came.
    requests: u64,
    /// Traces that began.
    begun: u64,
    /// Traces that ended.
    collected: u64,
}

impl Setting {
    pub fn new(values: Values, writer: Arc<Writer>) -> Self {
        let counts = Mutex::new(Counts { left: values.count, requests: 0, begun: 0, collected: 0 });
        let destination = Destination {
            setting: writer.next_setting(),
            file: values.file.clone(),
            log_frequency: values.log_frequency,
            is_counted: values.count >= 0,
        };
        Self { values, destination, counts, writer }
    }

    /// The values now: the count is what is left of it.
    pub fn values(&self) -> Values {
        Values { count: self.counts().left, ..self.values.clone() }
    }

    pub fn level(&self) -> Levels {
        self.values.level
    }

    /// Why no request can be traced.
    pub fn check(&self) -> Result<(), &'static str> {
        match &self.values {
            Values { level, .. } if !level.is_on() => Err("tracing is disabled"),
            Values { level: Levels { timestamps: false, .. }, collector: Some(_), .. } => {
                Err("a collector takes no tensors")
            }
            // With a collector those are still traced whose clients trace them.
            Values { rate: 0, collector: None, .. } => Err("sample rate must be non-zero"),
            Values { file, collector: None, .. } if file.is_empty() => Err("trace file name is not given"),
            Values { count: 0, .. } => Err(""),
            _ => Ok(()),
        }
    }

    pub fn is_valid(&self) -> bool {
        self.check().is_ok()
    }

    /// Whether the request that comes now is traced, alone for itself: the traces of clients go on whatever the rate, and
    /// are not counted.
    pub fn sample(&self) -> bool {
        if !self.is_valid() || self.values.rate == 0 {
            return false;
        }
        let mut counts = self.counts();
        if counts.left == 0 {
            return false;
        }
        counts.requests += 1;
        let is_hit = counts.requests.is_multiple_of(u64::from(self.values.rate));
        if is_hit {
            counts.begun += 1;
            counts.left -= i32::from(counts.left > 0);
        }
        is_hit
    }

    /// Whether any request may be traced.
    pub fn may_trace(&self) -> bool {
        self.is_valid() || self.continues()
    }

    /// Whether traces of clients go on here.
    pub fn continues(&self) -> bool {
        self.values.level.timestamps && self.values.collector.is_some()
    }

    /// A trace ended.
    pub fn take(&self, events: Vec<Event>, names: Names, held: Held) {
        let mut counts = self.counts();
        counts.collected += 1;
        // Triton compares with the requests that came, so that with a rate above 1 no file is written before the end.
        let is_last = counts.left == 0 && counts.collected == counts.begun;
        // Under the lock: no trace comes behind the last one.
        self.writer.take(&self.destination, Taken { events, names, held }, is_last);
    }

    /// Room for what a trace holds.
    pub fn held(&self) -> Held {
        self.writer.held()
    }

    /// Whether a number of traces was asked for and all of them are taken.
    pub fn is_used_up(&self) -> bool {
        self.counts().left == 0
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        self.writer.forget(&self.destination);
    }
}
