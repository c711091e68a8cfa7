//! Models that answer any number of times: `repeat`, `square`, and a scripted one.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use halimede_tensor::{Buffer, DType};
use parking_lot::Mutex;

use crate::{
    Code, InputTensor, Options, Server,
    testing::{Files, Scripted, ask, eventually, floats, identity, request},
};

const REPEAT: &str = "backend: 'repeat' max_batch_size: 0 model_transaction_policy { decoupled: true } \
    input [ { name: 'IN' data_type: TYPE_INT32 dims: [ -1 ] }, { name: 'DELAY' data_type: TYPE_UINT32 dims: [ -1 ] }, \
            { name: 'WAIT' data_type: TYPE_UINT32 dims: [ 1 ] } ] \
    output [ { name: 'OUT' data_type: TYPE_INT32 dims: [ 1 ] }, { name: 'IDX' data_type: TYPE_UINT32 dims: [ 1 ] } ] \
    instance_group { count: 1 }";

const SQUARE: &str = "backend: 'square' max_batch_size: 4 model_transaction_policy { decoupled: true } \
    input { name: 'IN' data_type: TYPE_INT32 dims: [ 1 ] } output { name: 'OUT' data_type: TYPE_INT32 dims: [ 1 ] } ";

fn words(name: &str, dtype: DType, shape: &[i64], values: &[i32]) -> InputTensor {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    InputTensor { name: name.into(), dtype: Some(dtype), shape: shape.to_vec(), data: Buffer::copied(&bytes).unwrap() }
}

fn repeat_inputs(values: &[i32], delays: &[i32], wait: i32) -> [InputTensor; 3] {
    let (values_len, delays_len) = (values.len() as i64, delays.len() as i64);
    [
        words("IN", DType::I32, &[values_len], values),
        words("DELAY", DType::U32, &[delays_len], delays),
        words("WAIT", DType::U32, &[1], &[wait]),
    ]
}

fn word(data: &[u8]) -> i32 {
    i32::from_le_bytes(data.try_into().unwrap())
}

fn server(files: &Files) -> Server {
    Server::start(files.options()).unwrap()
}

#[test]
fn repeat_answers_each_element_and_then_ends() {
    let files = Files::new();
    files.model("m", REPEAT);
    let server = server(&files);
    assert!(server.is_decoupled("m", None).unwrap());
    let (responses, is_end) = ask(&server, "m", repeat_inputs(&[4, -5], &[1, 0], 0)).responses();
    assert!(is_end);
    let pairs: Vec<_> =
        responses.iter().map(|response| (word(&response.outputs[0].data), word(&response.outputs[1].data))).collect();
    assert_eq!(pairs, [(4, 0), (-5, 1)]);
    assert_eq!((&*responses[0].model, responses[0].version), ("m", 1));
    // None at all.
    let (responses, is_end) = ask(&server, "m", repeat_inputs(&[], &[], 0)).responses();
    assert_eq!((responses.len(), is_end), (0, true));
    let error = ask(&server, "m", repeat_inputs(&[1, 2], &[0], 0)).error();
    assert_eq!(error.message, "expected IN and DELAY shape to match, got [2] and [1]");
    eventually("all are counted", || server.in_flight() == 0);
    let statistics = &server.statistics("m", None).unwrap()[0];
    assert_eq!((statistics.inference.success.count, statistics.inference.fail.count), (2, 1));
    assert_eq!(statistics.responses["1"].success.count, 1);
}

#[test]
fn responses_come_after_the_execution_and_before_it_ends() {
    let files = Files::new();
    files.model("m", REPEAT);
    let server = server(&files);
    // The execution takes long: the responses do not wait for it, and the next request does.
    let start = Instant::now();
    let (responses, _) = ask(&server, "m", repeat_inputs(&[1], &[0], 2000)).responses();
    assert!(responses.len() == 1 && start.elapsed() < Duration::from_millis(1500));
    // The execution takes no time: the instance is free while responses are awaited.
    let slow = ask(&server, "m", repeat_inputs(&[1], &[2000], 0));
    let (responses, _) = ask(&server, "m", repeat_inputs(&[2], &[0], 0)).responses();
    assert_eq!(word(&responses[0].outputs[0].data), 2);
    assert!(slow.is_answered().is_none());
    eventually("the quick one is counted", || server.in_flight() == 1);
    // The end of the server waits for it.
    server.shutdown(Duration::from_secs(20)).unwrap();
    assert_eq!(slow.responses().0.len(), 1);
}

#[test]
fn square_fails_and_skips_as_its_parameters_say() {
    let files = Files::new();
    let parameters = "parameters { key: 'CUSTOM_FAIL_COUNT' value { string_value: '2' } } \
                      parameters { key: 'CUSTOM_EMPTY_COUNT' value { string_value: '1' } } \
                      parameters { key: 'CUSTOM_OUTPUT_DELAY_NS' value { string_value: '1000000' } }";
    files.model("m", &format!("{SQUARE} {parameters}"));
    let server = server(&files);
    for _ in 0..2 {
        let (responses, is_end) = ask(&server, "m", [words("IN", DType::I32, &[1, 1], &[5])]).responses();
        assert!(is_end);
        assert_eq!(responses.len(), 4);
        assert_eq!((word(&responses[0].outputs[0].data), &responses[0].outputs[0].shape[..]), (5, &[1, 1][..]));
        let errors: Vec<_> = responses
            .iter()
            .map(|response| response.error.as_ref().map(|error| (error.code, &*error.message)))
            .collect();
        let failure = Some((Code::Unknown, "simulated failure"));
        assert_eq!(errors, [None, None, failure, failure]);
    }
    eventually("all are counted", || server.in_flight() == 0);
    let all = &server.statistics("m", None).unwrap()[0].responses;
    let counts = |index: &str| {
        let one = all[index];
        let (infer, output) = (one.compute_infer.count, one.compute_output.count);
        (infer, output, one.success.count, one.fail.count, one.empty_response.count, one.cancel.count)
    };
    assert_eq!(counts("1"), (2, 2, 2, 0, 0, 0));
    assert_eq!(counts("3"), (2, 2, 0, 2, 0, 0));
    assert_eq!(counts("4"), (2, 0, 0, 0, 2, 0));
    assert!(all["0"].compute_output.ns >= 2_000_000);
}

#[test]
fn a_client_that_leaves_ends_its_responses() {
    let files = Files::new();
    let delay = "parameters { key: 'CUSTOM_INFER_DELAY_NS' value { string_value: '5000000' } }";
    files.model("m", &format!("{SQUARE} {delay}"));
    let server = server(&files);
    let waiting = ask(&server, "m", [words("IN", DType::I32, &[1, 1], &[i32::MAX])]);
    eventually("a response", || waiting.is_answered().is_some());
    waiting.leave();
    eventually("it ends", || server.in_flight() == 0);
    let all = &server.statistics("m", None).unwrap()[0].responses;
    assert_eq!(all.values().map(|one| one.cancel.count).sum::<u64>(), 1);
}

#[test]
fn a_wrong_configuration_of_a_test_backend_says_what_is_wrong() {
    for (from, to, error) in [
        ("max_batch_size: 0", "max_batch_size: 2", "repeat backend only supports models with max_batch_size == 0"),
        ("name: 'DELAY'", "name: 'LATER'", "expected second input tensor name to be DELAY, got LATER"),
        (
            "'IDX' data_type: TYPE_UINT32",
            "'IDX' data_type: TYPE_INT32",
            "expected IDX datatype to be UINT32, got TYPE_INT32",
        ),
        (
            "'WAIT' data_type: TYPE_UINT32 dims: [ 1 ]",
            "'WAIT' data_type: TYPE_UINT32 dims: [ 2 ]",
            "expected WAIT shape to be [1], got [2]",
        ),
    ] {
        let files = Files::new();
        assert!(REPEAT.contains(from));
        files.model("m", &REPEAT.replace(from, to));
        let server = Server::start(Options { exit_on_error: false, ..files.options() }).unwrap();
        let reason = &server.repository_index(false).unwrap()[0].reason;
        assert!(reason.contains(error), "{reason}");
    }
}

#[test]
fn a_sender_that_is_dropped_answers_with_an_error() {
    let files = Files::new();
    files.model("m", &identity("[ 1 ]", "model_transaction_policy { decoupled: true }"));
    let backend = Scripted::backend("identity", |_, batch| {
        let mut sender = batch.response_sender(0);
        thread::spawn(move || {
            sender.send(Vec::new(), Vec::new(), false);
            panic!("on its own thread");
        });
    });
    let server = Server::start(Options { backends: vec![backend], ..files.options() }).unwrap();
    let (request, waiting) = request("m", [floats("INPUT0", &[1], &[1.0])]);
    server.infer(request);
    let (responses, is_end) = waiting.responses();
    assert_eq!((responses.len(), is_end), (2, false));
    let error = responses[1].error.as_ref().unwrap();
    assert_eq!(error.message, "the model ended the request without a last response");
    eventually("all are counted", || server.in_flight() == 0);
}

#[test]
fn a_request_is_in_flight_once_until_its_batch_and_its_sender_have_ended() {
    let files = Files::new();
    files.model("m", &identity("[ 1 ]", "model_transaction_policy { decoupled: true } instance_group { count: 1 }"));
    let (senders, given) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let (senders, ends) = (Mutex::new(senders), Mutex::new(ends));
    let backend = Scripted::backend("identity", move |_, batch| {
        senders.lock().send(batch.response_sender(0)).unwrap();
        ends.lock().recv().unwrap();
    });
    let server = Arc::new(Server::start(Options { backends: vec![backend], ..files.options() }).unwrap());
    let begin = || {
        let (request, waiting) = request("m", [floats("INPUT0", &[1], &[1.0])]);
        // A model that was quick runs on the thread that asks.
        let asked = server.clone();
        thread::spawn(move || asked.infer(request));
        (waiting, given.recv().unwrap())
    };
    let (_waiting, sender) = begin();
    assert_eq!(server.in_flight(), 1);
    // The batch ends first, and the sender,
    end.send(()).unwrap();
    let (_waiting_too, other) = begin();
    assert_eq!(server.in_flight(), 2);
    drop(sender);
    assert_eq!(server.in_flight(), 1);
    // or the other way round.
    drop(other);
    assert_eq!(server.in_flight(), 1);
    end.send(()).unwrap();
    eventually("the batch ends", || server.in_flight() == 0);
}
