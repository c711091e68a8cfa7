//! Models are tuned while they serve: on one thread for all of them, that waits while the server has anything to do.

use std::{
    fmt,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::Duration,
};

use halimede_compute::{
    QualityOfService, set_quality_of_service,
    tuning::{Config, Found, Operator, Probe},
};
use parking_lot::Mutex;

/// From one look for shapes that came up to the next.
const INTERVAL: Duration = Duration::from_secs(5);

/// How models are tuned while they serve.
pub struct Tuning {
    /// Whether those are whose configuration says nothing of it.
    pub by_default: bool,
    /// How long the operators of a model are measured, at most; waiting for moments without requests comes on top.
    pub budget: Duration,
    /// How fast one thread of the machine is now.
    pub probe: fn() -> Probe,
    /// Remembers what was found out about an operator.
    pub remember: Box<Remember>,
}

/// Takes what a search found, what was known of the operator before, and how fast the machine was. Gives what counts from
/// now on; `None` where nothing is beyond doubt.
pub type Remember = dyn Fn(&Operator, &Found, Option<Config>, Probe) -> Result<Option<Config>, String> + Send + Sync;

impl fmt::Debug for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tuning { by_default, budget, .. } = self;
        f.debug_struct("Tuning").field("by_default", by_default).field("budget", budget).finish_non_exhaustive()
    }
}

/// What the thread works on.
pub(super) trait Subject: Send {
    /// Whether the model still serves.
    fn is_alive(&self) -> bool;

    /// Tunes what has come up since the last call. Says whether anything was won.
    fn tune(&mut self) -> bool;

    /// Serves the model with all that was won for any, unless it does already.
    fn renew(&mut self);
}

/// The thread, which the first model starts.
#[derive(Default)]
pub(super) struct Tuner {
    queue: Mutex<Option<Sender<Box<dyn Subject>>>>,
}

impl Tuner {
    /// Puts a model behind those that wait.
    pub fn add(&self, subject: Box<dyn Subject>) {
        let mut queue = self.queue.lock();
        let sender = queue.get_or_insert_with(|| {
            let (sender, subjects) = mpsc::channel();
            let run = move || {
                // Not lower: what macOS runs in the background runs on its efficiency cores, and would be measured there.
                if let Err(error) = set_quality_of_service(QualityOfService::Utility) {
                    tracing::debug!("models are tuned as urgently as anything else: {error}");
                }
                work(&subjects, INTERVAL);
            };
            if let Err(error) = thread::Builder::new().name("tuner".to_owned()).spawn(run) {
                tracing::warn!("models are not tuned: no thread for that: {error}");
            }
            sender
        });
        // Without a thread nobody receives it, which was said.
        let _ = sender.send(subject);
    }
}

/// Tunes one model after the other, until nobody can bring more.
fn work(queue: &Receiver<Box<dyn Subject>>, interval: Duration) {
    let mut subjects: Vec<Box<dyn Subject>> = Vec::new();
    let (mut is_open, mut has_won) = (true, false);
    while is_open {
        // Without a model there is nothing to look for.
        let next = match subjects.is_empty() {
            true => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => queue.recv_timeout(interval),
        };
        is_open = !matches!(next, Err(RecvTimeoutError::Disconnected));
        let first_new = subjects.len();
        subjects.extend(next);
        subjects.extend(queue.try_iter());
        let new = subjects.len() - first_new;
        // Those that wait come before those that were tuned.
        subjects.rotate_left(first_new);
        let mut won = false;
        for (index, subject) in subjects.iter_mut().enumerate().filter(|(_, subject)| subject.is_alive()) {
            let wins = subject.tune();
            (won, has_won) = (won || wins, has_won || wins);
            // One that comes late may have been compiled before others won.
            if wins || index < new && has_won {
                subject.renew();
            }
        }
        subjects.retain(|subject| subject.is_alive());
        if won {
            // What was won for one may be good for another, and a start finds what is kept of all of them by the same key.
            subjects.iter_mut().for_each(|subject| subject.renew());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering::SeqCst};

    use super::*;

    /// A model that tells what is done with it.
    struct Told {
        name: &'static str,
        log: Arc<Mutex<Vec<String>>>,
        /// What it wins when it is tuned, call by call, from the last one on.
        wins: Vec<bool>,
        is_alive: Arc<AtomicBool>,
    }

    impl Subject for Told {
        fn is_alive(&self) -> bool {
            self.is_alive.load(SeqCst)
        }

        fn tune(&mut self) -> bool {
            let Some(won) = self.wins.pop() else { return false };
            self.log.lock().push(format!("tune {}", self.name));
            won
        }

        fn renew(&mut self) {
            self.log.lock().push(format!("renew {}", self.name));
        }
    }

    #[derive(Default)]
    struct Models {
        log: Arc<Mutex<Vec<String>>>,
    }

    impl Models {
        fn model(&self, name: &'static str, wins: &[bool], is_alive: &Arc<AtomicBool>) -> Box<dyn Subject> {
            let wins = wins.iter().rev().copied().collect();
            Box::new(Told { name, log: self.log.clone(), wins, is_alive: is_alive.clone() })
        }

        /// What is done with models that come at once, after which nobody comes.
        fn work(&self, models: Vec<Box<dyn Subject>>) -> Vec<String> {
            let (sender, queue) = mpsc::channel();
            models.into_iter().for_each(|model| sender.send(model).unwrap());
            drop(sender);
            work(&queue, Duration::from_millis(1));
            std::mem::take(&mut *self.log.lock())
        }
    }

    fn alive() -> Arc<AtomicBool> {
        Arc::new(AtomicBool::new(true))
    }

    #[test]
    fn what_one_model_won_all_are_served_by() {
        let models = Models::default();
        let all = ["first", "second", "third"].map(|name| models.model(name, &[name == "second"], &alive()));
        let first = ["tune first", "tune second", "renew second", "tune third", "renew third"];
        let expected = [&first[..], &["renew first", "renew second", "renew third"]].concat();
        assert_eq!(models.work(all.into()), expected);
    }

    #[test]
    fn where_nothing_is_won_nothing_changes() {
        let models = Models::default();
        let all = ["first", "second"].map(|name| models.model(name, &[false], &alive()));
        assert_eq!(models.work(all.into()), ["tune first", "tune second"]);
    }

    #[test]
    fn models_that_are_gone_are_left_alone() {
        let models = Models::default();
        let gone = Arc::new(AtomicBool::new(false));
        let all = vec![models.model("gone", &[true], &gone), models.model("there", &[true], &alive())];
        assert_eq!(models.work(all), ["tune there", "renew there", "renew there"]);
    }

    #[test]
    fn what_comes_up_later_is_tuned_and_what_comes_new_goes_first() {
        let models = Models::default();
        let (sender, queue) = mpsc::channel();
        let (log, is_alive) = (models.log.clone(), alive());
        sender.send(models.model("old", &[false, false], &is_alive)).unwrap();
        let thread = thread::spawn(move || work(&queue, Duration::from_millis(1)));
        while log.lock().len() < 2 {
            thread::sleep(Duration::from_millis(1));
        }
        // With nothing more to tune it waits, and is still there.
        sender.send(models.model("new", &[true], &alive())).unwrap();
        drop(sender);
        thread.join().unwrap();
        assert_eq!(*log.lock(), ["tune old", "tune old", "tune new", "renew new", "renew new", "renew old"]);
    }
}
