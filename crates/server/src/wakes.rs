//! Futures that wake themselves.
//!
//! A connection of HTTP/1 hands the body of a request to whoever answers it, who is polled by the same task: the task
//! wakes itself while it runs, for every piece of the body. The runtime takes that for a wish to let others go first, and
//! finds the next piece out of the processor's caches. Here the future is polled again at once instead.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{
            AtomicU8,
            Ordering::{AcqRel, Acquire},
        },
    },
    task::{Context, Poll, Wake, Waker},
};

/// Polls in a row; then others go first.
const POLLS_MAX: usize = 4;

/// Runs a future, and polls it again at once where it woke itself.
pub(crate) async fn absorbed<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut inner: Option<(Arc<Inner>, Waker)> = None;
    poll_fn(|context| {
        let (state, waker) = match inner.take() {
            Some(known) if known.0.outer.will_wake(context.waker()) => known,
            _ => Inner::new(context.waker()),
        };
        let polled = state.poll(|| future.as_mut().poll(&mut Context::from_waker(&waker)));
        inner = Some((state, waker));
        polled
    })
    .await
}

/// Nobody polls; who wakes lets the runtime poll.
const IDLE: u8 = 0;
/// The future is polled.
const POLLED: u8 = 1;
/// It is to be polled again.
const WOKEN: u8 = 2;

/// What wakes the future.
struct Inner {
    /// Lets the runtime poll.
    outer: Waker,
    state: AtomicU8,
}

impl Inner {
    fn new(outer: &Waker) -> (Arc<Self>, Waker) {
        let inner = Arc::new(Self { outer: outer.clone(), state: AtomicU8::new(WOKEN) });
        (inner.clone(), Waker::from(inner))
    }

    fn poll<T>(&self, mut poll: impl FnMut() -> Poll<T>) -> Poll<T> {
        for _ in 0..POLLS_MAX {
            // What was told to wake is seen by this poll, or wakes again.
            self.state.swap(POLLED, AcqRel);
            let polled = poll();
            if polled.is_ready() || self.state.compare_exchange(POLLED, IDLE, AcqRel, Acquire).is_ok() {
                return polled;
            }
        }
        self.outer.wake_by_ref();
        Poll::Pending
    }
}

impl Wake for Inner {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, AcqRel) == IDLE {
            self.outer.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use tokio::sync::mpsc;

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    /// Polls a future once that wakes itself in its first `wakes` polls and is ready after `polls`: whether it was,
    /// how often it was polled, and how often the runtime was woken.
    fn poll_once(wakes: usize, polls: usize) -> (bool, usize, usize) {
        let count = Arc::<Count>::default();
        let mut polled = 0;
        let future = poll_fn(|context| {
            polled += 1;
            if polled <= wakes {
                context.waker().wake_by_ref();
            }
            if polled > polls { Poll::Ready(()) } else { Poll::Pending }
        });
        let is_ready = {
            let future = pin!(absorbed(future));
            future.poll(&mut Context::from_waker(&Waker::from(count.clone()))).is_ready()
        };
        (is_ready, polled, count.0.load(SeqCst))
    }

    #[test]
    fn a_future_that_woke_itself_is_polled_again_at_once() {
        assert_eq!(poll_once(0, 0), (true, 1, 0));
        assert_eq!(poll_once(0, 5), (false, 1, 0));
        assert_eq!(poll_once(1, 1), (true, 2, 0));
        assert_eq!(poll_once(2, 5), (false, 3, 0));
    }

    #[test]
    fn others_go_first_when_it_wakes_itself_again_and_again() {
        assert_eq!(poll_once(1000, 1000), (false, POLLS_MAX, 1));
    }

    #[test]
    fn it_is_woken_once_until_it_is_polled() {
        let count = Arc::<Count>::default();
        let mut waker = None;
        let mut polls = 0;
        let future = poll_fn(|context| {
            polls += 1;
            waker = Some(context.waker().clone());
            Poll::<()>::Pending
        });
        {
            let mut future = pin!(absorbed(future));
            let outer = Waker::from(count.clone());
            let mut poll = || assert!(future.as_mut().poll(&mut Context::from_waker(&outer)).is_pending());
            poll();
            poll();
        }
        let waker = waker.unwrap();
        waker.wake_by_ref();
        waker.wake();
        assert_eq!((polls, count.0.load(SeqCst)), (2, 1));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_that_others_wake_for_is_lost() {
        let (there, mut arrives) = mpsc::channel(1);
        let (back, mut returns) = mpsc::channel(1);
        let task = tokio::spawn(absorbed(async move {
            while let Some(number) = arrives.recv().await {
                back.send(number).await.unwrap();
            }
        }));
        for number in 0..20_000 {
            there.send(number).await.unwrap();
            assert_eq!(returns.recv().await, Some(number));
        }
        drop(there);
        task.await.unwrap();
    }
}
