//! The names of the models in repositories elsewhere, as they were seen last.

use std::{
    collections::BTreeSet,
    mem,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{error::Error, remote::RemoteRepository};

/// For so long what was seen is shown to those who look again and again: each look is a request that may cost money.
const FRESH: Duration = Duration::from_secs(30);

/// A repository and what was seen of it last.
#[derive(Debug)]
pub(super) struct Seen {
    pub repository: Arc<dyn RemoteRepository>,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    names: BTreeSet<String>,
    /// When that was, or failed.
    at: Option<Instant>,
    /// Whether somebody looks now, for all others.
    is_looking: bool,
}

impl Seen {
    pub fn new(repository: Arc<dyn RemoteRepository>) -> Arc<Self> {
        Arc::new(Self { repository, last: Mutex::default() })
    }

    /// These are all there are.
    pub fn saw_all(&self, names: BTreeSet<String>) {
        let mut last = self.last.lock();
        (last.names, last.at) = (names, Some(Instant::now()));
    }

    /// There is this one.
    pub fn saw(&self, name: &str) {
        self.last.lock().names.insert(name.to_owned());
    }

    /// The names as the repository tells them; where it does not, those that were seen last. Waits for it.
    pub fn look(&self) -> BTreeSet<String> {
        match self.repository.names() {
            Ok(names) => {
                self.saw_all(names.clone());
                names
            }
            Err(error) => {
                tracing::warn!("failed to read model repository '{}': {}", self.repository.address(), error.message);
                // What is known of it is better than nothing: its models serve on.
                self.last.lock().names.clone()
            }
        }
    }

    /// The names that were seen last. Waits for nobody: where they are old, others are looked for meanwhile.
    pub fn last(self: &Arc<Self>) -> BTreeSet<String> {
        let mut last = self.last.lock();
        let is_old = last.at.is_none_or(|at| at.elapsed() > FRESH);
        if is_old && !mem::replace(&mut last.is_looking, true) {
            let seen = self.clone();
            let work = move || {
                seen.look();
                let mut last = seen.last.lock();
                // One that does not answer is left alone for as long.
                (last.at, last.is_looking) = (Some(Instant::now()), false);
            };
            if let Err(error) = thread::Builder::new().name("look".to_owned()).spawn(work) {
                last.is_looking = false;
                let error = Error::internal(format!("cannot start a thread: {error}"));
                tracing::warn!("failed to read model repository '{}': {}", self.repository.address(), error.message);
            }
        }
        last.names.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::mpsc};

    use super::*;
    use crate::remote::{LocalCopy, RemoteFile};

    /// Tells its names when it is told them.
    #[derive(Debug)]
    struct Slow {
        asked: mpsc::Sender<()>,
        told: Mutex<mpsc::Receiver<Option<&'static str>>>,
    }

    impl RemoteRepository for Slow {
        fn address(&self) -> &str {
            "slow://"
        }

        fn exists(&self) -> Result<bool, Error> {
            Ok(true)
        }

        fn names(&self) -> Result<BTreeSet<String>, Error> {
            self.asked.send(()).unwrap();
            let name = self.told.lock().recv().unwrap();
            name.map(|name| BTreeSet::from([name.to_owned()])).ok_or_else(|| Error::internal("silent"))
        }

        fn list(&self, _: Option<&str>) -> Result<BTreeMap<String, Result<Vec<RemoteFile>, Error>>, Error> {
            unreachable!("nobody lists it")
        }

        fn read(&self, _: &str, _: &RemoteFile) -> Result<Vec<u8>, Error> {
            unreachable!("nobody reads it")
        }

        fn fetch(&self, _: &str, _: &[RemoteFile]) -> Result<LocalCopy, Error> {
            unreachable!("nobody fetches it")
        }

        fn close(&self) {}
    }

    fn slow() -> (Arc<Seen>, mpsc::Receiver<()>, mpsc::Sender<Option<&'static str>>) {
        let ((asked, was_asked), (tell, told)) = (mpsc::channel(), mpsc::channel());
        (Seen::new(Arc::new(Slow { asked, told: Mutex::new(told) })), was_asked, tell)
    }

    fn wait_until(condition: impl Fn() -> bool) {
        while !condition() {
            thread::yield_now();
        }
    }

    #[test]
    fn who_looks_again_and_again_waits_for_nobody_and_asks_once() {
        let (seen, was_asked, tell) = slow();
        seen.saw("a");
        for _ in 0..10 {
            assert_eq!(seen.last(), BTreeSet::from(["a".to_owned()]));
        }
        was_asked.recv().unwrap();
        tell.send(Some("b")).unwrap();
        wait_until(|| seen.last() == BTreeSet::from(["b".to_owned()]));
        wait_until(|| !seen.last.lock().is_looking);
        // What was seen a moment ago is new enough, also where nobody answered.
        seen.last();
        assert!(!seen.last.lock().is_looking && was_asked.try_recv().is_err());
    }

    #[test]
    fn one_that_does_not_answer_is_known_as_it_was() {
        let (seen, was_asked, tell) = slow();
        seen.saw_all(BTreeSet::from(["a".to_owned()]));
        tell.send(None).unwrap();
        assert_eq!(seen.look(), BTreeSet::from(["a".to_owned()]));
        tell.send(Some("b")).unwrap();
        assert_eq!(seen.look(), BTreeSet::from(["b".to_owned()]));
        assert_eq!(was_asked.try_iter().count(), 2);
    }
}
