//! Work on models while they serve.

use parking_lot::Mutex;
use std::{
    sync::mpsc::{self, Sender},
    thread,
};

type Job = Box<dyn FnOnce() + Send>;

/// Does jobs one after the other, on a thread that the first one starts.
#[derive(Default)]
pub(super) struct Worker {
    queue: Mutex<Option<Sender<Job>>>,
}

impl Worker {
    /// Puts a job behind those that wait.
    pub fn add(&self, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.queue.lock();
        let sender = queue.get_or_insert_with(|| {
            let (sender, jobs) = mpsc::channel::<Job>();
            let work = move || jobs.iter().for_each(|job| job());
            if let Err(error) = thread::Builder::new().name("examiner".to_owned()).spawn(work) {
                tracing::warn!("models stay as they are loaded: no thread to work on them: {error}");
            }
            sender
        });
        // Without a thread nobody receives it, which was said.
        let _ = sender.send(Box::new(job));
    }
}
