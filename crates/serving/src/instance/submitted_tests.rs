//! Instances that take batches without a thread that waits for them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread::{self, ThreadId},
    time::Duration,
};

use crate::{
    ControlMode, CorrelationId, LoadParameters, Options, Sequence, Server,
    backend::{Backend, Batch, Instance, LoadedModel, Model, ModelContext, Submit, Submitted},
    config::finish_without_model,
    error::Error,
    testing::{Files, Waiting, ask, echo, eventually, floats, identity, request, values},
};

/// What becomes of a batch: given the instance, the batch, and the way back.
pub(super) type Take = dyn Fn(usize, Submitted) -> Result<(), (Submitted, Error)> + Send + Sync;

/// A backend whose instances take batches with a function, and count what they execute all the same.
#[derive(Clone)]
pub(super) struct Posted {
    pub take: Arc<Take>,
    pub is_ready: Arc<AtomicBool>,
    pub takes_ahead: bool,
    pub executed: Arc<AtomicUsize>,
    /// What an instance does when it ends.
    pub end: Arc<dyn Fn() + Send + Sync>,
}

struct PostedInstance(usize, Posted);

struct PostedQueue(usize, Posted);

impl Backend for Posted {
    fn name(&self) -> &str {
        "identity"
    }

    fn load(&self, context: &ModelContext) -> Result<LoadedModel, Error> {
        let config = finish_without_model(context.config.clone(), &context.options)?;
        Ok(LoadedModel::as_configured(config, Arc::new(self.clone())))
    }
}

impl Model for Posted {
    fn instance(&self, index: usize) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(PostedInstance(index, self.clone())))
    }
}

impl Instance for PostedInstance {
    fn execute(&mut self, batch: &mut Batch) {
        self.1.executed.fetch_add(1, SeqCst);
        echo(batch);
    }

    fn queue(&self) -> Option<Arc<dyn Submit>> {
        Some(Arc::new(PostedQueue(self.0, self.1.clone())))
    }
}

impl Drop for PostedInstance {
    fn drop(&mut self) {
        (self.1.end)();
    }
}

impl Submit for PostedQueue {
    fn is_ready(&self) -> bool {
        self.1.is_ready.load(SeqCst)
    }

    fn takes_ahead(&self) -> bool {
        self.1.takes_ahead
    }

    fn submit(&self, batch: Submitted) -> Result<(), (Submitted, Error)> {
        (self.1.take)(self.0, batch)
    }
}

pub(super) fn posted(
    take: impl Fn(usize, Submitted) -> Result<(), (Submitted, Error)> + Send + Sync + 'static,
) -> Posted {
    Posted {
        take: Arc::new(take),
        is_ready: Arc::new(AtomicBool::new(true)),
        takes_ahead: false,
        executed: Arc::default(),
        end: Arc::new(|| {}),
    }
}

pub(super) fn serve(posted: &Posted, dims: &str, more: &str) -> (Files, Server) {
    let files = Files::new();
    files.model("m", &identity(dims, more));
    let server = Server::start(Options { backends: vec![Arc::new(posted.clone())], ..files.options() }).unwrap();
    (files, server)
}

pub(super) const ONE: &str = "instance_group { count: 1 }";

/// Batches that were submitted, with the instance and the thread that did it.
pub(super) type Seen = (usize, ThreadId, Submitted);

/// Batches come out of the channel, to be finished by the test.
pub(super) fn by_hand() -> (Posted, mpsc::Receiver<Seen>) {
    let (sender, seen) = mpsc::channel();
    let sender = Mutex::new(sender);
    let take = move |instance, batch| {
        sender.lock().unwrap().send((instance, thread::current().id(), batch)).unwrap();
        Ok(())
    };
    (posted(take), seen)
}

pub(super) fn next(seen: &mpsc::Receiver<Seen>) -> Seen {
    seen.recv_timeout(Duration::from_secs(20)).expect("no batch")
}

pub(super) fn finish(mut batch: Submitted) {
    echo(batch.batch());
    batch.finish();
}

pub(super) fn send(server: &Server, value: f32) -> Waiting {
    ask(server, "m", [floats("INPUT0", &[1], &[value])])
}

/// Waits until the instance waits for requests: its thread has to start, and may be on its way to sleep.
pub(super) fn warm(server: &Server, seen: &mpsc::Receiver<Seen>) {
    eventually("a request is submitted here", || {
        let waiting = send(server, 0.0);
        let (_, thread, batch) = next(seen);
        finish(batch);
        waiting.outputs();
        thread == thread::current().id()
    });
}

#[test]
fn who_brings_a_request_submits_it_and_who_finishes_one_submits_the_next() {
    let (posted, seen) = by_hand();
    let (_files, server) = serve(&posted, "[ 1 ]", ONE);
    let here = thread::current().id();
    let submitters = || {
        let waiting = [1.0, 2.0, 3.0].map(|value| (value, send(&server, value)));
        let (_, first, batch) = next(&seen);
        assert!(seen.try_recv().is_err(), "two batches on one instance");
        let elsewhere = thread::spawn(move || finish(batch));
        let finisher = elsewhere.thread().id();
        let (_, second, batch) = next(&seen);
        elsewhere.join().unwrap();
        assert!(waiting[1].1.is_answered().is_none());
        finish(batch);
        let (_, third, batch) = next(&seen);
        finish(batch);
        for (value, waiting) in waiting {
            assert_eq!(values(&waiting.outputs()[0].data), [value]);
        }
        [first, second, third] == [here, finisher, here]
    };
    // The thread of the instance may take one while it is on its way to sleep.
    eventually("no thread is woken for a batch", submitters);
    assert_eq!(posted.executed.load(SeqCst), 0);
}

#[test]
fn batches_that_are_refused_dropped_or_panic_are_errors_and_the_next_goes_on() {
    let posted = posted(|_, mut batch| match values(&batch.batch().request(0).inputs[0].data)[0] {
        1.0 => Err((batch, Error::internal("no room"))),
        2.0 => {
            drop(batch);
            Ok(())
        }
        3.0 => panic!("three"),
        _ => {
            finish(batch);
            Ok(())
        }
    });
    let (_files, server) = serve(&posted, "[ 1 ]", ONE);
    for (value, text) in [(0.0, ""), (1.0, "no room"), (2.0, "gave up"), (3.0, "gave up"), (4.0, "")] {
        let response = send(&server, value).response();
        match response.error {
            None => assert_eq!((text, &*values(&response.outputs[0].data)), ("", &[value][..])),
            Some(error) => assert!(!text.is_empty() && error.message.contains(text), "{value}: {error}"),
        }
    }
    let statistics = server.statistics("m", None).unwrap().remove(0);
    assert_eq!((statistics.inference.success.count, statistics.inference.fail.count), (2, 3));
}

#[test]
fn a_long_queue_of_refusals_takes_no_stack() {
    let held: Arc<Mutex<Option<Submitted>>> = Arc::default();
    let keep = held.clone();
    let posted = posted(move |_, mut batch| match values(&batch.batch().request(0).inputs[0].data)[0] {
        0.0 => {
            *keep.lock().unwrap() = Some(batch);
            Ok(())
        }
        1.0 => Err((batch, Error::internal("no room"))),
        _ => {
            finish(batch);
            Ok(())
        }
    });
    let (_files, server) = serve(&posted, "[ 1 ]", ONE);
    let first = send(&server, 0.0);
    eventually("the first is submitted", || held.lock().unwrap().is_some());
    let refused: Vec<_> = (0..20_000).map(|_| send(&server, 1.0)).collect();
    let batch = held.lock().unwrap().take().unwrap();
    finish(batch);
    first.outputs();
    refused.into_iter().for_each(|waiting| assert_eq!(waiting.error().message, "no room"));
    send(&server, 2.0).outputs();
}

#[test]
fn what_cannot_be_submitted_is_executed() {
    let (posted, seen) = by_hand();
    let (_files, server) = serve(&posted, "[ -1 ]", ONE);
    warm(&server, &seen);
    // Bytes that would hold up who reads requests.
    let many = vec![1.0; super::submitted::BYTES_MAX];
    ask(&server, "m", [floats("INPUT0", &[many.len() as i64], &many)]).outputs();
    assert_eq!(posted.executed.load(SeqCst), 1);
    posted.is_ready.store(false, SeqCst);
    send(&server, 1.0).outputs();
    assert_eq!(posted.executed.load(SeqCst), 2);
    posted.is_ready.store(true, SeqCst);
    eventually("it is submitted again", || {
        let waiting = send(&server, 2.0);
        let is_submitted = seen.recv_timeout(Duration::from_millis(100)).map(|(_, _, batch)| finish(batch)).is_ok();
        waiting.outputs();
        is_submitted
    });
}

#[test]
fn a_model_that_ends_answers_what_is_on_its_way_and_what_waits() {
    let (posted, seen) = by_hand();
    let (_files, server) = serve(&posted, "[ 1 ]", ONE);
    warm(&server, &seen);
    let waiting = [send(&server, 1.0), send(&server, 2.0)];
    let (_, _, first) = next(&seen);
    let ending = thread::spawn(move || drop(server));
    finish(first);
    finish(next(&seen).2);
    ending.join().unwrap();
    for (waiting, value) in waiting.into_iter().zip([1.0, 2.0]) {
        assert_eq!(values(&waiting.outputs()[0].data), [value]);
    }
    // The thread of the instance has ended, and with it the last that has a way to submit.
    eventually("the instance is gone", || Arc::strong_count(&posted.take) == 1);
}

/// Work that somebody hands out once: what an instance waits for when it ends, and whether that came to an end.
#[derive(Clone, Default)]
struct Chore {
    work: Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>,
    is_done: Arc<Mutex<Option<bool>>>,
}

impl Chore {
    fn set(&self, work: impl FnOnce() + Send + 'static) {
        *self.work.lock().unwrap() = Some(Box::new(work));
    }

    /// Waits for another thread to do it, as a Python model's instance waits for its process.
    fn wait(&self) {
        let Some(work) = self.work.lock().unwrap().take() else { return };
        let (sender, done) = mpsc::channel();
        thread::spawn(move || {
            work();
            let _ = sender.send(());
        });
        *self.is_done.lock().unwrap() = Some(done.recv_timeout(Duration::from_secs(10)).is_ok());
    }

    fn assert_done(&self) {
        let is_done = || *self.is_done.lock().unwrap();
        eventually("an instance has ended", || is_done().is_some());
        assert_eq!(is_done(), Some(true));
    }
}

#[test]
fn an_instance_of_a_model_that_ends_may_wait_for_a_thread_that_needs_the_queue() {
    let ((mut posted, seen), chore) = (by_hand(), Chore::default());
    let at_end = chore.clone();
    posted.end = Arc::new(move || at_end.wait());
    let (_files, server) = serve(&posted, "[ 1 ]", "instance_group { count: 2 }");
    warm(&server, &seen);
    let waiting = send(&server, 1.0);
    let (_, _, batch) = next(&seen);
    // The other instance ends while this one is busy.
    chore.set(move || finish(batch));
    drop(server);
    chore.assert_done();
    assert_eq!(values(&waiting.outputs()[0].data), [1.0]);
}

#[test]
fn an_instance_that_is_one_too_many_may_wait_for_a_thread_that_needs_the_queue() {
    let finish_at_once = |_, batch| {
        finish(batch);
        Ok(())
    };
    let (mut posted, chore) = (posted(finish_at_once), Chore::default());
    let at_end = chore.clone();
    posted.end = Arc::new(move || at_end.wait());
    let files = Files::new();
    files.model("m", &identity("[ 1 ]", "instance_group { count: 2 }"));
    let backends: Vec<Arc<dyn Backend>> = vec![Arc::new(posted)];
    let server = Server::start(Options { backends, control: ControlMode::Explicit, ..files.options() });
    let server = Arc::new(server.unwrap());
    server.load("m", LoadParameters::default()).unwrap();
    let client = server.clone();
    chore.set(move || drop(send(&client, 1.0).outputs()));
    // Without a change of its version, so that it is not loaded again.
    files.write("m/config.pbtxt", identity("[ 1 ]", ONE));
    server.load("m", LoadParameters::default()).unwrap();
    chore.assert_done();
}

#[test]
fn requests_that_wait_for_company_are_submitted_together() {
    let (posted, seen) = by_hand();
    let config = "max_batch_size: 4 instance_group { count: 1 } dynamic_batching { max_queue_delay_microseconds: 50000 \
                  preferred_batch_size: 4 }";
    let (_files, server) = serve(&posted, "[ 1 ]", config);
    let send = |value: f32| ask(&server, "m", [floats("INPUT0", &[1, 1], &[value])]);
    for count in [4, 1, 4, 3] {
        // All that a batch can have, or the delay is over.
        let waiting: Vec<_> = (0..count).map(|value| send(value as f32)).collect();
        let mut rows = 0;
        while rows < count {
            let (_, _, mut batch) = next(&seen);
            rows += batch.batch().size();
            finish(batch);
        }
        for (value, waiting) in waiting.into_iter().enumerate() {
            assert_eq!(values(&waiting.outputs()[0].data), [value as f32]);
        }
    }
    assert_eq!(posted.executed.load(SeqCst), 0);
}

#[test]
fn sequences_keep_their_instance_and_their_order() {
    for strategy in ["direct { }", "oldest { max_candidate_sequences: 4 }"] {
        let seen: Arc<Mutex<Vec<(usize, f32)>>> = Arc::default();
        let all = seen.clone();
        let posted = posted(move |instance, mut batch| {
            let all = all.clone();
            thread::spawn(move || {
                let inputs = &batch.batch().request(0).inputs;
                all.lock().unwrap().push((instance, values(&inputs[0].data)[0]));
                finish(batch);
            });
            Ok(())
        });
        let config = format!("sequence_batching {{ {strategy} }} instance_group {{ count: 2 }}");
        let (_files, server) = serve(&posted, "[ 1 ]", &config);
        let waiting: Vec<_> = (0..40)
            .map(|number| {
                let (id, step) = (number % 4 + 1, number / 4);
                let (mut request, waiting) = request("m", [floats("INPUT0", &[1], &[(id * 100 + step) as f32])]);
                request.sequence = Sequence { id: CorrelationId::Int(id), start: step == 0, end: step == 9 };
                server.infer(request);
                waiting
            })
            .collect();
        waiting.into_iter().for_each(|waiting| drop(waiting.outputs()));
        let seen = seen.lock().unwrap();
        for id in 1..=4 {
            let mine: Vec<_> = seen.iter().filter(|(_, value)| *value as usize / 100 == id).collect();
            assert!(mine.iter().all(|(instance, _)| *instance == mine[0].0), "{strategy}: {mine:?}");
            let steps: Vec<_> = mine.iter().map(|(_, value)| *value as usize % 100).collect();
            assert_eq!(steps, (0..10).collect::<Vec<_>>(), "{strategy}");
        }
        assert_eq!(posted.executed.load(SeqCst), 0, "{strategy}");
    }
}

#[test]
fn many_clients_share_instances_that_answer_from_other_threads() {
    let busy: Arc<[AtomicUsize; 2]> = Arc::default();
    let posted = posted(move |instance, batch| {
        assert_eq!(busy[instance].fetch_add(1, SeqCst), 0, "two batches on one instance");
        let busy = busy.clone();
        thread::spawn(move || {
            busy[instance].fetch_sub(1, SeqCst);
            finish(batch);
        });
        Ok(())
    });
    let (_files, server) = serve(&posted, "[ 1 ]", "instance_group { count: 2 }");
    thread::scope(|scope| {
        for client in 0..4 {
            let (server, posted) = (&server, &posted);
            scope.spawn(move || {
                for number in 0..300 {
                    // Now and then there is none to submit to.
                    posted.is_ready.store((number * 7 + client) % 5 != 0, SeqCst);
                    let value = (client * 1000 + number) as f32;
                    assert_eq!(values(&send(server, value).outputs()[0].data), [value]);
                }
            });
        }
    });
    eventually("all are counted", || server.statistics("m", None).unwrap()[0].inference_count == 1200);
}

#[test]
fn no_request_waits_for_company_longer_than_it_may() {
    let posted = posted(|_, batch| {
        thread::spawn(move || finish(batch));
        Ok(())
    });
    let config = "max_batch_size: 4 instance_group { count: 2 } dynamic_batching { max_queue_delay_microseconds: 100 }";
    let (_files, server) = serve(&posted, "[ 1 ]", config);
    thread::scope(|scope| {
        for client in 0..6 {
            let server = &server;
            scope.spawn(move || {
                for number in 0..2000 {
                    let value = (client * 10_000 + number) as f32;
                    // Nobody brings another when all clients wait.
                    let answer = ask(server, "m", [floats("INPUT0", &[1, 1], &[value])]).outputs();
                    assert_eq!(values(&answer[0].data), [value]);
                }
            });
        }
    });
}
