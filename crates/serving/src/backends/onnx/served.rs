//! The form of a model that requests run on: it may be replaced while they come.

use super::sampler::Sampler;
use halimede_compute::{Model, Session};
use parking_lot::{Mutex, RwLock};
use std::{
    mem,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

/// A compiled model that may be replaced by another form of itself.
pub(super) struct Served {
    model: RwLock<Arc<Model>>,
    /// How often it was replaced.
    generation: AtomicUsize,
    sampler: Sampler,
    /// By instance the bytes that it holds, as long as it lives.
    instances: Mutex<Vec<(usize, Weak<AtomicUsize>)>>,
}

impl Served {
    pub fn new(model: Model) -> Self {
        Self {
            model: RwLock::new(Arc::new(model)),
            generation: AtomicUsize::new(0),
            sampler: Sampler::new(),
            instances: Mutex::default(),
        }
    }

    /// What is known of the speed of its operators.
    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// The form that new runs take.
    pub fn model(&self) -> Arc<Model> {
        self.model.read().clone()
    }

    /// Lets runs that begin from now on take another form.
    pub fn replace(&self, model: impl Into<Arc<Model>>) {
        let mut model = model.into();
        let mut current = self.model.write();
        mem::swap(&mut *current, &mut model);
        self.generation.fetch_add(1, Ordering::Release);
        // Nobody waits while the memory of the former one is given back.
        drop(current);
    }

    /// A session of the current form, with its generation.
    fn session(&self) -> (usize, Session) {
        let model = self.model.read();
        (self.generation.load(Ordering::Acquire), model.session())
    }

    /// A place to run in, for the instance of this index.
    pub fn seat(self: &Arc<Self>, instance: usize) -> Seat {
        let bytes = Arc::new(AtomicUsize::new(0));
        let mut instances = self.instances.lock();
        instances.retain(|(_, bytes)| bytes.strong_count() > 0);
        instances.push((instance, Arc::downgrade(&bytes)));
        Seat { served: self.clone(), session: None, bytes }
    }

    /// What instances hold for themselves by their index, of those that have run.
    pub fn instance_bytes(&self) -> Vec<(usize, usize)> {
        let instances = self.instances.lock();
        let bytes =
            instances.iter().filter_map(|(index, bytes)| Some((*index, bytes.upgrade()?.load(Ordering::Relaxed))));
        bytes.filter(|(_, bytes)| *bytes > 0).collect()
    }
}

/// A session of the form that is current. It is made when it is needed: an instance that has not run yet holds no
/// form that was replaced meanwhile, with all its weights.
pub(super) struct Seat {
    served: Arc<Served>,
    /// With the generation of its form.
    session: Option<(usize, Session)>,
    /// Of the session, after its last run.
    bytes: Arc<AtomicUsize>,
}

impl Seat {
    /// The session for the next run, and what may measure it.
    pub fn session(&mut self) -> (&mut Session, &Sampler) {
        let generation = self.served.generation.load(Ordering::Acquire);
        let current = self.session.take().filter(|(own, _)| *own == generation);
        let (_, session) = self.session.insert(current.unwrap_or_else(|| self.served.session()));
        (session, &self.served.sampler)
    }

    /// Remembers how much memory the session holds, after a run.
    pub fn count_memory(&self) {
        let bytes = self.session.as_ref().map_or(0, |(_, session)| session.memory_bytes());
        self.bytes.store(bytes, Ordering::Relaxed);
    }
}
