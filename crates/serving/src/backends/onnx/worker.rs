//! Work on models while they serve.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{self, Sender},
    },
    thread,
};

use parking_lot::Mutex;

use super::activity::Activity;

type Job = Box<dyn FnOnce() + Send>;

/// Does jobs one after the other, on a thread that the first one starts.
pub(super) struct Worker {
    activity: Arc<Activity>,
    queue: Mutex<Option<Sender<Job>>>,
}

impl Worker {
    /// Its jobs count as work of the server.
    pub fn new(activity: Arc<Activity>) -> Self {
        Self { activity, queue: Mutex::default() }
    }

    /// Puts a job behind those that wait.
    pub fn add(&self, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.queue.lock();
        let sender = queue.get_or_insert_with(|| {
            let (sender, jobs) = mpsc::channel::<Job>();
            let activity = self.activity.clone();
            let work = move || {
                for job in jobs {
                    let _work = activity.begin();
                    // The panic is told on standard error; those that wait have to be done all the same.
                    if catch_unwind(AssertUnwindSafe(job)).is_err() {
                        tracing::error!("work on a model panicked; the model stays as it is");
                    }
                }
            };
            if let Err(error) = thread::Builder::new().name("examiner".to_owned()).spawn(work) {
                tracing::warn!("models stay as they are loaded: no thread to work on them: {error}");
            }
            sender
        });
        // Without a thread nobody receives it, which was said.
        let _ = sender.send(Box::new(job));
    }
}
