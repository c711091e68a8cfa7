//! Threads for requests that wait for models or files.
//!
//! Event loops have a pool of threads that may block, and take one of it where work is done beside them
//! ([`aside`](crate::event_loops::aside)). Requests that wait for something that a loop has to hear of, such as a Python model
//! that is being loaded, must never have all of them.

use std::sync::Arc;

use halimede_serving::Error;
use tokio::{sync::Semaphore, task};

/// Who waits for what.
#[derive(Debug, Clone)]
pub(crate) struct Rooms {
    /// Loads and unloads.
    pub changes: Room,
    /// What only looks, and may wait for object storage.
    pub looks: Room,
}

impl Default for Rooms {
    fn default() -> Self {
        Self { changes: Room::new(64), looks: Room::new(16) }
    }
}

/// A number of threads.
#[derive(Debug, Clone)]
pub(crate) struct Room(Arc<Semaphore>);

impl Room {
    fn new(threads: usize) -> Self {
        Self(Arc::new(Semaphore::new(threads)))
    }

    /// Runs `work` on a thread that may block, once there is one.
    pub async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let failed =
            |error: &dyn std::fmt::Display| Error::internal(format!("the request could not be carried out: {error}"));
        let place = self.0.acquire_owned().await.map_err(|error| failed(&error))?;
        let work = move || {
            let done = work();
            drop(place);
            done
        };
        task::spawn_blocking(work).await.unwrap_or_else(|error| Err(failed(&error)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    };

    use super::*;

    #[tokio::test]
    async fn as_many_as_there_is_room_for_run_and_all_do() {
        let room = Room::new(2);
        let running = Arc::<AtomicUsize>::default();
        let (begun, has_begun) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let may_go_on = Arc::new(std::sync::Mutex::new(may_go_on));
        let work = |_| {
            let (running, begun, may_go_on) = (running.clone(), begun.clone(), may_go_on.clone());
            tokio::spawn(room.clone().run(move || {
                assert!(running.fetch_add(1, SeqCst) < 2);
                begun.send(()).unwrap();
                may_go_on.lock().unwrap().recv().unwrap();
                running.fetch_sub(1, SeqCst);
                Ok(())
            }))
        };
        let all: Vec<_> = (0..5).map(work).collect();
        (0..5).for_each(|_| go_on.send(()).unwrap());
        for one in all {
            one.await.unwrap().unwrap();
        }
        assert_eq!(has_begun.try_iter().count(), 5);
    }

    #[tokio::test]
    async fn who_panics_leaves_its_place() {
        let room = Room::new(1);
        let panicked = room.clone().run(|| -> Result<(), Error> { panic!("no") }).await;
        assert!(panicked.is_err());
        room.run(|| Ok(())).await.unwrap();
    }
}
