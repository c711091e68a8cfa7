//! The form of a model that requests run on: it may be replaced while they come.

use halimede_compute::{Model, Session};
use parking_lot::RwLock;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// A compiled model that may be replaced by another form of itself.
pub(super) struct Served {
    model: RwLock<Arc<Model>>,
    /// How often it was replaced.
    generation: AtomicUsize,
}

impl Served {
    pub fn new(model: Model) -> Self {
        Self { model: RwLock::new(Arc::new(model)), generation: AtomicUsize::new(0) }
    }

    /// The form that new runs take.
    pub fn model(&self) -> Arc<Model> {
        self.model.read().clone()
    }

    /// Lets runs that begin from now on take another form.
    pub fn replace(&self, model: Model) {
        let mut current = self.model.write();
        *current = Arc::new(model);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// A place to run in.
    pub fn seat(self: &Arc<Self>) -> Seat {
        let model = self.model.read();
        Seat { served: self.clone(), generation: self.generation.load(Ordering::Acquire), session: model.session() }
    }
}

/// A session of the form that is current.
pub(super) struct Seat {
    served: Arc<Served>,
    generation: usize,
    session: Session,
}

impl Seat {
    /// The session for the next run.
    pub fn session(&mut self) -> &mut Session {
        if self.generation != self.served.generation.load(Ordering::Acquire) {
            *self = self.served.seat();
        }
        &mut self.session
    }
}
