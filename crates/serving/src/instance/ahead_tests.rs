//! Batches that are handed ahead.

use std::{
    sync::{Arc, Mutex, atomic::Ordering::SeqCst, mpsc},
    thread,
    time::{Duration, Instant},
};

use super::submitted_tests::{ONE, Posted, Seen, by_hand, finish, next, posted, send, serve, warm};
use crate::{
    ControlMode, CorrelationId, LoadParameters, Options, Sequence, Server,
    backend::Submitted,
    metrics::Value,
    testing::{Files, Waiting, ask, eventually, floats, identity, request, values},
};

/// The same that takes a batch ahead.
fn ahead((posted, seen): (Posted, mpsc::Receiver<Seen>)) -> (Posted, mpsc::Receiver<Seen>) {
    (Posted { takes_ahead: true, ..posted }, seen)
}

/// A server whose instance waits for requests.
fn serve_by_hand(config: &str) -> (Posted, mpsc::Receiver<Seen>, Files, Server) {
    let (posted, seen) = ahead(by_hand());
    let (files, server) = serve(&posted, "[ -1 ]", config);
    warm(&server, &seen);
    // On a busy machine its worker may still be on the way to take it back, and nothing lies ahead until it has been.
    let lies_ahead = || {
        let waiting = [send(&server, 1.0), send(&server, 1.0)];
        let (_, _, running) = next(&seen);
        let lying = seen.recv_timeout(Duration::from_millis(500));
        finish(running);
        let is_ahead = lying.is_ok();
        finish(lying.unwrap_or_else(|_| next(&seen)).2);
        waiting.into_iter().for_each(|waiting| expect(waiting, 1.0));
        is_ahead
    };
    assert!((0..20).any(|_| lies_ahead()), "nothing ever lies ahead");
    (posted, seen, files, server)
}

fn expect(waiting: Waiting, value: f32) {
    assert_eq!(values(&waiting.outputs()[0].data), [value]);
}

fn pending(server: &Server) -> Value {
    server.metrics()[9].samples[0].value.clone()
}

#[test]
fn the_next_batch_lies_ahead_of_the_only_instance_and_counts_as_waiting() {
    let (posted, seen, _files, server) = serve_by_hand(ONE);
    let waiting: Vec<_> = [1.0, 2.0, 3.0, 4.0].map(|value| (value, send(&server, value))).into();
    let mut flying = vec![next(&seen).2, next(&seen).2];
    for left in [3.0, 2.0, 1.0, 0.0] {
        assert!(seen.try_recv().is_err(), "a third batch on one instance");
        assert_eq!(pending(&server), Value::Number(left));
        finish(flying.remove(0));
        if left > 1.0 {
            flying.push(next(&seen).2);
        }
    }
    waiting.into_iter().for_each(|(value, waiting)| expect(waiting, value));
    assert_eq!(posted.executed.load(SeqCst), 0);
}

#[test]
fn time_ahead_is_time_in_the_queue() {
    let (_posted, seen, _files, server) = serve_by_hand(ONE);
    let before = server.statistics("m", None).unwrap().remove(0).inference;
    let (first, second) = (send(&server, 1.0), send(&server, 2.0));
    let (_, _, running) = next(&seen);
    let (_, _, mut lying) = next(&seen);
    let since = Instant::now();
    // The clock has to go on, whatever it is in.
    while since.elapsed() < Duration::from_millis(5) {
        thread::yield_now();
    }
    finish(running);
    let waited = since.elapsed();
    expect(first, 1.0);
    let middle = server.statistics("m", None).unwrap().remove(0).inference;
    lying.ran_for(Duration::from_nanos(1));
    finish(lying);
    expect(second, 2.0);
    let after = server.statistics("m", None).unwrap().remove(0).inference;
    assert!(Duration::from_nanos(after.queue.ns - middle.queue.ns) >= waited, "{after:?}");
    assert!(Duration::from_nanos(middle.queue.ns - before.queue.ns) < waited, "{middle:?}");
    let parts = |of: &crate::statistics::InferenceStatistics| {
        of.queue.ns + of.compute_input.ns + of.compute_infer.ns + of.compute_output.ns
    };
    assert!(parts(&after) - parts(&middle) <= after.success.ns - middle.success.ns, "{after:?}");
}

#[test]
fn what_is_given_back_runs_as_the_next() {
    let (posted, seen, _files, server) = serve_by_hand(ONE);
    let waiting: Vec<_> = [1.0, 2.0, 3.0].map(|value| (value, send(&server, value))).into();
    let ((_, _, running), (_, _, lying)) = (next(&seen), next(&seen));
    // As when a process dies: it is started again by the thread of the instance.
    posted.is_ready.store(false, SeqCst);
    lying.give_back();
    assert_eq!(pending(&server), Value::Number(2.0));
    assert_eq!(posted.executed.load(SeqCst), 0, "the instance is not free");
    finish(running);
    waiting.into_iter().for_each(|(value, waiting)| expect(waiting, value));
    assert_eq!(posted.executed.load(SeqCst), 2);
    eventually("nothing waits", || pending(&server) == Value::Number(0.0));
    assert_eq!(server.statistics("m", None).unwrap()[0].inference.fail.count, 0);
    posted.is_ready.store(true, SeqCst);
    warm(&server, &seen);
}

#[test]
fn what_cannot_be_submitted_waits_for_the_instance_in_its_place() {
    let (posted, seen, _files, server) = serve_by_hand(ONE);
    let first = send(&server, 1.0);
    let (_, _, running) = next(&seen);
    let many = vec![1.0; super::submitted::BYTES_MAX];
    let large = ask(&server, "m", [floats("INPUT0", &[many.len() as i64], &many)]);
    let last = send(&server, 2.0);
    assert!(seen.try_recv().is_err(), "the last overtakes the large one");
    finish(running);
    expect(first, 1.0);
    large.outputs();
    assert_eq!(posted.executed.load(SeqCst), 1);
    finish(next(&seen).2);
    expect(last, 2.0);
}

#[test]
fn behind_large_inputs_nothing_is_handed_ahead() {
    let (_posted, seen, _files, server) = serve_by_hand(ONE);
    let many = vec![1.0; crate::backend::LED_BYTES_MAX / 4 + 1];
    let large = ask(&server, "m", [floats("INPUT0", &[many.len() as i64], &many)]);
    let (_, _, running) = next(&seen);
    let waiting = [send(&server, 2.0), send(&server, 3.0)];
    assert!(seen.recv_timeout(Duration::from_millis(50)).is_err(), "the next lies behind a large one");
    finish(running);
    large.outputs();
    // Behind a small one it does.
    let (_, _, running) = next(&seen);
    let (_, _, ahead) = next(&seen);
    finish(running);
    finish(ahead);
    waiting.into_iter().zip([2.0, 3.0]).for_each(|(waiting, value)| expect(waiting, value));
}

#[test]
fn nothing_is_handed_ahead_where_waiting_changes_what_runs() {
    let batching = "max_batch_size: 4 instance_group { count: 1 } dynamic_batching { }";
    for config in ["instance_group { count: 2 }", batching] {
        let (posted, seen) = ahead(by_hand());
        let (_files, server) = serve(&posted, if config == batching { "[ 1 ]" } else { "[ -1 ]" }, config);
        let shape: &[i64] = if config == batching { &[1, 1] } else { &[1] };
        let waiting: Vec<_> =
            (0..6).map(|value| ask(&server, "m", [floats("INPUT0", shape, &[value as f32])])).collect();
        let mut flying: Vec<Seen> = Vec::new();
        let mut answered = 0;
        while answered < 6 && posted.executed.load(SeqCst) == 0 {
            if let Ok(batch) = seen.recv_timeout(Duration::from_millis(if flying.is_empty() { 1000 } else { 20 })) {
                assert!(flying.iter().all(|(instance, ..)| *instance != batch.0), "{config}: two on one instance");
                flying.push(batch);
            } else if let Some((_, _, mut batch)) = flying.pop() {
                answered += batch.batch().len();
                finish(batch);
            }
        }
        waiting.into_iter().for_each(|waiting| drop(waiting.outputs()));
    }
}

#[test]
fn sequences_are_not_handed_ahead() {
    let (posted, seen) = ahead(by_hand());
    let (_files, server) = serve(&posted, "[ 1 ]", "sequence_batching { } instance_group { count: 1 }");
    let waiting: Vec<_> = (0..4)
        .map(|step| {
            let (mut request, waiting) = request("m", [floats("INPUT0", &[1], &[step as f32])]);
            request.sequence = Sequence { id: CorrelationId::Int(1), start: step == 0, end: step == 3 };
            server.infer(request);
            waiting
        })
        .collect();
    for _ in 0..4 {
        let (_, _, batch) = next(&seen);
        assert!(seen.recv_timeout(Duration::from_millis(10)).is_err());
        finish(batch);
    }
    waiting.into_iter().for_each(|waiting| drop(waiting.outputs()));
}

#[test]
fn a_model_that_ends_answers_what_lies_ahead_too() {
    let (posted, seen, _files, server) = serve_by_hand(ONE);
    let waiting: Vec<_> = [1.0, 2.0, 3.0].map(|value| (value, send(&server, value))).into();
    let ((_, _, running), (_, _, lying)) = (next(&seen), next(&seen));
    let ending = thread::spawn(move || drop(server));
    finish(running);
    finish(lying);
    // The last runs wherever it comes first.
    if let Ok((_, _, batch)) = seen.recv_timeout(Duration::from_millis(200)) {
        finish(batch);
    }
    waiting.into_iter().for_each(|(value, waiting)| expect(waiting, value));
    ending.join().unwrap();
    drop(posted);
}

#[test]
fn another_instance_takes_what_would_lie_ahead() {
    let (posted, seen) = ahead(by_hand());
    let files = Files::new();
    let config = |count: u32| identity("[ -1 ]", &format!("instance_group {{ count: {count} kind: KIND_CPU }}"));
    files.model("m", &config(1));
    let control = ControlMode::Explicit;
    let server = Server::start(Options { backends: vec![Arc::new(posted)], control, ..files.options() }).unwrap();
    server.load("m", LoadParameters::default()).unwrap();
    warm(&server, &seen);
    let first = send(&server, 1.0);
    let (instance, _, running) = next(&seen);
    files.write("m/config.pbtxt", config(2));
    server.load("m", LoadParameters::default()).unwrap();
    let second = send(&server, 2.0);
    let (other, _, batch) = next(&seen);
    assert_ne!(other, instance);
    let third = send(&server, 3.0);
    assert!(seen.recv_timeout(Duration::from_millis(50)).is_err(), "ahead of one of two");
    finish(batch);
    finish(next(&seen).2);
    finish(running);
    [(first, 1.0), (second, 2.0), (third, 3.0)].into_iter().for_each(|(waiting, value)| expect(waiting, value));
}

#[test]
fn many_clients_are_answered_in_order_whatever_becomes_of_batches() {
    let (sender, batches) = mpsc::channel();
    let sender = Mutex::new(sender);
    let order: Arc<Mutex<Vec<f32>>> = Arc::default();
    let posted = Posted {
        takes_ahead: true,
        ..posted(move |_, batch| {
            sender.lock().unwrap().send(batch).unwrap();
            Ok(())
        })
    };
    let seen = order.clone();
    let ends = thread::spawn(move || {
        let see = |batch: &mut Submitted| {
            seen.lock().unwrap().push(values(&batch.batch().request(0).inputs[0].data)[0]);
        };
        let mut number = 0;
        while let Ok(mut batch) = batches.recv() {
            see(&mut batch);
            number += 1;
            // Now and then one that lies ahead is given back, and comes again.
            if number % 3 == 0
                && let Ok(lying) = batches.recv_timeout(Duration::from_millis(5))
            {
                lying.give_back();
            }
            finish(batch);
        }
    });
    let (_files, server) = serve(&posted, "[ 1 ]", ONE);
    thread::scope(|scope| {
        for client in 0..4 {
            let server = &server;
            scope.spawn(move || {
                for burst in 0..100 {
                    let values = [0, 1, 2].map(|place| (client * 1000 + burst * 3 + place) as f32);
                    let waiting = values.map(|value| (value, send(server, value)));
                    waiting.into_iter().for_each(|(value, waiting)| expect(waiting, value));
                }
            });
        }
    });
    eventually("all are counted", || server.statistics("m", None).unwrap()[0].inference_count == 1200);
    eventually("nothing waits", || pending(&server) == Value::Number(0.0));
    for client in 0..4 {
        let order = order.lock().unwrap();
        let mine: Vec<_> = order.iter().filter(|value| **value as usize / 1000 == client).collect();
        assert!(mine.is_sorted(), "{mine:?}");
    }
    drop(server);
    drop(posted);
    ends.join().unwrap();
}
