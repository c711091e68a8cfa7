//! Ensembles whose members answer any number of times, or remember.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use parking_lot::Mutex;

use crate::{
    Code, CorrelationId, Options, OutputTensor, Parameter, Response, Server,
    backend::{Backend, Batch},
    error::Error,
    request::Sequence,
    testing::{Files, Scripted, ask, eventually, floats, request, values},
};

const DECOUPLED: &str = "model_transaction_policy { decoupled: true } instance_group { count: 1 } ";

fn io(kind: &str, name: &str) -> String {
    format!("{kind} {{ name: '{name}' data_type: TYPE_FP32 dims: [ 1 ] }} ")
}

/// A model of one backend with `INPUT0` and `OUTPUT0`.
fn member(backend: &str, more: &str) -> String {
    format!("backend: '{backend}' {}{}{more}", io("input", "INPUT0"), io("output", "OUTPUT0"))
}

/// An ensemble from `X` to `Y`; a step is a model, what it reads, and what it writes.
fn ensemble(steps: &[(&str, &str, &str)], more: &str) -> String {
    let step = |(model, from, to): &(&str, &str, &str)| {
        let second = match from.split_once('+') {
            Some((_, second)) => format!("input_map {{ key: 'INPUT1' value: '{second}' }}"),
            None => String::new(),
        };
        let first = from.split('+').next().unwrap();
        format!(
            "step {{ model_name: '{model}' model_version: -1 input_map {{ key: 'INPUT0' value: '{first}' }} {second} \
             output_map {{ key: 'OUTPUT0' value: '{to}' }} }} "
        )
    };
    let steps: String = steps.iter().map(step).collect();
    format!("platform: 'ensemble' {}{}ensemble_scheduling {{ {steps}{more} }}", io("input", "X"), io("output", "Y"))
}

fn output(value: f32) -> OutputTensor {
    let tensor = floats("OUTPUT0", &[1], &[value]);
    OutputTensor { name: tensor.name, dtype: tensor.dtype.unwrap(), shape: tensor.shape, data: tensor.data }
}

fn input(batch: &Batch, index: usize, name: &str) -> f32 {
    values(&batch.gather_one(index, name).unwrap().unwrap().data)[0]
}

/// Answers `n` with the responses 0 to n-1, as long as the client is there; `sent` counts them.
fn counter(sent: Arc<AtomicUsize>) -> Arc<dyn Backend> {
    Scripted::backend("counter", move |_, batch| {
        let n = input(batch, 0, "INPUT0");
        let mut sender = batch.response_sender(0);
        for i in 0..n as usize {
            if sender.is_cancelled() {
                break;
            }
            sender.send(vec![output(i as f32)], Vec::new(), false);
            sent.fetch_add(1, SeqCst);
        }
        sender.end();
    })
}

/// Gives ten times its input; fails for 2.
fn tenfold() -> Arc<dyn Backend> {
    Scripted::backend("tenfold", |_, batch| {
        for index in 0..batch.len() {
            match input(batch, index, "INPUT0") {
                2.0 => batch.fail(index, Error::internal("unlucky")),
                value => batch.push_output(index, output(value * 10.0)),
            }
        }
    })
}

fn start(files: &Files, backends: Vec<Arc<dyn Backend>>) -> Server {
    let mut options = files.options();
    options.backends.extend(backends);
    Server::start(options).unwrap()
}

fn numbers(responses: &[Response]) -> Vec<f32> {
    responses.iter().filter(|one| one.error.is_none()).map(|one| values(&one.outputs[0].data)[0]).collect()
}

fn x(value: f32) -> [crate::InputTensor; 1] {
    [floats("X", &[1], &[value])]
}

#[test]
fn each_response_flows_through_the_steps_behind() {
    let files = Files::new();
    files
        .model("several", &member("counter", DECOUPLED))
        .model("tenfold", &member("tenfold", "instance_group { count: 1 }"))
        .model("e", &ensemble(&[("tenfold", "between", "Y"), ("several", "X", "between")], ""))
        // An ensemble of an ensemble.
        .model("outer", &ensemble(&[("e", "X", "Y")], "").replace("INPUT0", "X").replace("OUTPUT0", "Y"));
    let server = start(&files, vec![counter(Arc::default()), tenfold()]);
    for model in ["e", "outer"] {
        assert!(server.is_decoupled(model, None).unwrap());
        let config = server.model_config(model, None).unwrap();
        assert_eq!(config.model_transaction_policy.as_ref().map(|policy| policy.decoupled), Some(true));
        let (responses, is_end) = ask(&server, model, x(2.0)).responses();
        assert_eq!((numbers(&responses), is_end || responses.len() == 2), (vec![0.0, 10.0], true));
        assert_eq!((&*responses[0].model, responses[0].version), (model, 1));
        // No response at all is an answer too.
        let (responses, is_end) = ask(&server, model, x(0.0)).responses();
        assert_eq!((responses.len(), is_end), (0, true));
    }
    eventually("all are counted", || server.in_flight() == 0);
    let count = |model: &str| server.statistics(model, None).unwrap()[0].inference.success.count;
    eventually("the ensembles are counted", || count("e") == 4 && count("outer") == 2);
    assert_eq!((count("several"), count("tenfold")), (4, 4));
    let of = |model: &str| server.statistics(model, None).unwrap().swap_remove(0);
    // What the decoupled step spent is part of it, though its execution ends after its responses.
    assert!(of("e").inference.compute_infer.ns >= of("several").inference.compute_infer.ns);
    assert!(of("outer").inference.compute_infer.ns > 0);
}

#[test]
fn branches_meet_again_in_their_own_round() {
    let files = Files::new();
    // Responses of `slow` come in any order, those of `tenfold` in another.
    let slow = Scripted::backend("slow", |instance, batch| {
        for index in 0..batch.len() {
            thread::sleep(std::time::Duration::from_millis(if instance == 0 { 5 } else { 0 }));
            batch.push_output(index, output(input(batch, index, "INPUT0")));
        }
    });
    let join = Scripted::backend("join", |_, batch| {
        for index in 0..batch.len() {
            let (a, b) = (input(batch, index, "INPUT0"), input(batch, index, "INPUT1"));
            batch.push_output(index, output(if b == a * 10.0 { a } else { -1.0 }));
        }
    });
    let two = format!("{}{}", member("join", ""), io("input", "INPUT1"));
    let steps = [("several", "X", "a"), ("slow", "a", "left"), ("tenfold", "a", "right"), ("join", "left+right", "Y")];
    files
        .model("several", &member("counter", DECOUPLED))
        .model("slow", &member("slow", "instance_group { count: 2 }"))
        .model("tenfold", &member("tenfold", "instance_group { count: 1 }"))
        .model("join", &two)
        .model("e", &ensemble(&steps, ""));
    // Nothing is unlucky here.
    let tenfold = Scripted::backend("tenfold", |_, batch| {
        for index in 0..batch.len() {
            batch.push_output(index, output(input(batch, index, "INPUT0") * 10.0));
        }
    });
    let server = start(&files, vec![counter(Arc::default()), slow, tenfold, join]);
    let (responses, _) = ask(&server, "e", x(40.0)).responses();
    let mut all = numbers(&responses);
    all.sort_by(f32::total_cmp);
    assert_eq!(all, (0..40).map(|i| i as f32).collect::<Vec<_>>());
}

#[test]
fn an_error_is_the_last_response_and_what_came_before_it_stays() {
    let files = Files::new();
    files
        .model("several", &member("counter", DECOUPLED))
        .model("tenfold", &member("tenfold", "instance_group { count: 1 }"))
        .model("e", &ensemble(&[("several", "X", "a"), ("tenfold", "a", "Y")], ""));
    let server = start(&files, vec![counter(Arc::default()), tenfold()]);
    let (responses, is_end) = ask(&server, "e", x(6.0)).responses();
    let last = responses.last().unwrap().error.clone().expect("no error");
    assert_eq!((last.code, &*last.message, is_end), (Code::Internal, "in ensemble 'e', unlucky", false));
    assert_eq!(responses.iter().filter(|one| one.error.is_some()).count(), 1);
    assert_eq!(numbers(&responses)[..2], [0.0, 10.0]);
    // Others are served.
    assert_eq!(numbers(&ask(&server, "e", x(1.0)).responses().0), [0.0]);
}

/// A consumer that waits until it may go on, and knows how many of its executions ran at once.
fn gate(is_open: &Arc<AtomicBool>, at_once: &Arc<Mutex<(usize, usize)>>) -> Arc<dyn Backend> {
    let (is_open, at_once) = (is_open.clone(), at_once.clone());
    Scripted::backend("gate", move |_, batch| {
        {
            let mut all = at_once.lock();
            all.0 += 1;
            all.1 = all.1.max(all.0);
        }
        eventually("open", || is_open.load(SeqCst));
        at_once.lock().0 -= 1;
        let value = input(batch, 0, "INPUT0");
        batch.push_output(0, output(value));
    })
}

#[test]
fn a_limit_stops_the_step_that_gives_more_than_those_behind_take() {
    let (sent, is_open, at_once) = <(Arc<AtomicUsize>, Arc<AtomicBool>, Arc<Mutex<(usize, usize)>>)>::default();
    let files = Files::new();
    let steps = [("several", "X", "a"), ("gate", "a", "Y")];
    files
        .model("several", &member("counter", DECOUPLED))
        .model("gate", &member("gate", "instance_group { count: 8 }"))
        .model("limited", &ensemble(&steps, "max_inflight_requests: 2"))
        .model("free", &ensemble(&steps, ""));
    let server = start(&files, vec![counter(sent.clone()), gate(&is_open, &at_once)]);
    let waiting = ask(&server, "limited", x(50.0));
    // Two are under way, and the third waits with the producer, which has not counted it.
    eventually("two are under way", || at_once.lock().0 == 2 && sent.load(SeqCst) == 2);
    thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!((sent.load(SeqCst), at_once.lock().1), (2, 2));
    is_open.store(true, SeqCst);
    let (responses, _) = waiting.responses();
    assert_eq!(responses.len(), 50);
    assert!(at_once.lock().1 <= 2);
    // Without a limit nothing stops it.
    is_open.store(false, SeqCst);
    let before = sent.load(SeqCst);
    let waiting = ask(&server, "free", x(50.0));
    eventually("all are sent", || sent.load(SeqCst) == before + 50);
    is_open.store(true, SeqCst);
    assert_eq!(waiting.responses().0.len(), 50);
}

#[test]
fn requests_share_the_limit_and_wait_for_it_on_no_thread() {
    let (is_open, at_once) = <(Arc<AtomicBool>, Arc<Mutex<(usize, usize)>>)>::default();
    let files = Files::new();
    files
        .model("gate", &member("gate", "instance_group { count: 4 }"))
        .model("e", &ensemble(&[("gate", "X", "Y")], "max_inflight_requests: 1"));
    let server = start(&files, vec![gate(&is_open, &at_once)]);
    let waiting: Vec<_> = (0..20).map(|i| ask(&server, "e", x(i as f32))).collect();
    is_open.store(true, SeqCst);
    for (i, waiting) in waiting.into_iter().enumerate() {
        assert_eq!(values(&waiting.outputs()[0].data), [i as f32]);
    }
    assert_eq!(at_once.lock().1, 1);
}

#[test]
fn a_client_that_leaves_stops_what_waits_for_room() {
    let (sent, is_open, at_once) = <(Arc<AtomicUsize>, Arc<AtomicBool>, Arc<Mutex<(usize, usize)>>)>::default();
    let files = Files::new();
    files
        .model("several", &member("counter", DECOUPLED))
        .model("gate", &member("gate", "instance_group { count: 1 }"))
        .model("e", &ensemble(&[("several", "X", "a"), ("gate", "a", "Y")], "max_inflight_requests: 1"));
    let server = start(&files, vec![counter(sent.clone()), gate(&is_open, &at_once)]);
    let waiting = ask(&server, "e", x(100_000.0));
    eventually("it waits for room", || at_once.lock().0 == 1);
    waiting.leave();
    eventually("the step that gives ends", || {
        server.statistics("several", None).unwrap()[0].inference.success.count == 1
    });
    is_open.store(true, SeqCst);
    eventually("all has ended", || server.in_flight() == 0);
    assert!(sent.load(SeqCst) < 5);
    assert_eq!(server.statistics("e", None).unwrap()[0].inference.success.count, 0);
}

#[test]
fn a_sequence_goes_on_from_request_to_request() {
    let files = Files::new();
    // What came in the sequence so far, by the server's memory of it.
    let sequences = "sequence_batching { state { input_name: 'PAST' output_name: 'OUTPUT0' data_type: TYPE_FP32 \
                     dims: 1 initial_state { name: 'zero' data_type: TYPE_FP32 dims: 1 zero_data: true } } } \
                     instance_group { count: 2 }";
    files
        .model("sum", &member("sum", sequences))
        .model("e", &ensemble(&[("tenfold", "X", "a"), ("sum", "a", "Y")], ""))
        .model("tenfold", &member("tenfold", ""));
    let sum = Scripted::backend("sum", |_, batch| {
        let total = input(batch, 0, "INPUT0") + input(batch, 0, "PAST");
        batch.push_output(0, output(total));
    });
    let server = start(&files, vec![sum, tenfold()]);
    let step = |id: CorrelationId, value: f32, start: bool, end: bool| {
        let (mut request, waiting) = request("e", x(value));
        request.sequence = Sequence { id, start, end };
        server.infer(request);
        waiting.response()
    };
    let int = CorrelationId::Int;
    let total = |response: &Response| values(&response.outputs[0].data)[0];
    let first = step(int(1), 1.0, true, false);
    assert_eq!(total(&first), 10.0);
    let told = [
        ("sequence_id".to_owned(), Parameter::Int(1)),
        ("sequence_start".to_owned(), Parameter::Bool(true)),
        ("sequence_end".to_owned(), Parameter::Bool(false)),
    ];
    assert_eq!(first.parameters, told);
    let other = CorrelationId::String("other".into());
    assert_eq!(total(&step(other.clone(), 3.0, true, false)), 30.0);
    assert_eq!(total(&step(int(1), 4.0, false, false)), 50.0);
    assert_eq!(total(&step(other, 1.0, false, true)), 40.0);
    assert_eq!(total(&step(int(1), 1.0, false, true)), 60.0);
    // What is wrong with a sequence is the step's to say.
    let text = "must specify the START flag on the first request of the sequence";
    let error = step(int(9), 1.0, false, false).error.unwrap();
    assert!(error.message.starts_with("in ensemble 'e', ") && error.message.contains(text), "{error}");
}

#[test]
fn a_step_may_begin_another_sequence() {
    let files = Files::new();
    // Each response is a sequence of its own, whatever the request says.
    let begin = Scripted::backend("begin", |_, batch| {
        let mut sender = batch.response_sender(0);
        for i in 1..=2 {
            let parameters =
                vec![("sequence_id".to_owned(), Parameter::Int(i)), ("sequence_end".to_owned(), Parameter::Bool(true))];
            sender.send(vec![output(i as f32)], parameters, false);
        }
        sender.end();
    });
    let seen = Arc::<Mutex<Vec<Sequence>>>::default();
    let sequences = seen.clone();
    let look = Scripted::backend("look", move |_, batch| {
        sequences.lock().push(batch.request(0).sequence.clone());
        let value = input(batch, 0, "INPUT0");
        batch.push_output(0, output(value));
    });
    files
        .model("begin", &member("begin", DECOUPLED))
        .model("look", &member("look", "instance_group { count: 1 }"))
        .model("e", &ensemble(&[("begin", "X", "a"), ("look", "a", "Y")], ""));
    let server = Server::start(Options { backends: vec![begin, look], ..files.options() }).unwrap();
    let (mut request, waiting) = request("e", x(1.0));
    request.sequence = Sequence { id: CorrelationId::Int(5), start: true, end: false };
    server.infer(request);
    let (responses, _) = waiting.responses();
    let ids: Vec<_> = responses.iter().map(|response| response.parameters[0].1.clone()).collect();
    assert_eq!(ids, [Parameter::Int(1), Parameter::Int(2)]);
    let expected = |id| Sequence { id: CorrelationId::Int(id), start: false, end: true };
    assert_eq!(*seen.lock(), [expected(1), expected(2)]);
}
