use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::SeqCst},
};

use parking_lot::Mutex;

use super::{CacheKey, Deferral, Insertion, LocalCache, ResponseCache, Work};
use crate::{
    ControlMode, LoadParameters, Options, OutputTensor, Server,
    error::Error,
    metrics::{Family, Value},
    request::{Parameter, RequestedOutput},
    response::Reply,
    statistics::ModelStatistics,
    testing::{Files, Scripted, ask, echo, eventually, floats, request, responder, values},
};

const CACHED: &str = "response_cache { enable: true }";

fn config(backend: &str, more: &str) -> String {
    format!(
        "backend: '{backend}' max_batch_size: 8 \
         input {{ name: 'INPUT0' data_type: TYPE_FP32 dims: 1 }} \
         output {{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: 1 }} {more}"
    )
}

/// A server of the model `m`, which echoes, counts its executions and fails for negative numbers.
fn start(more: &str, cache: Arc<dyn ResponseCache>) -> (Files, Server, Arc<AtomicU32>) {
    let files = Files::new();
    files.model("m", &config("counting", more));
    let count = Arc::<AtomicU32>::default();
    let executions = count.clone();
    let backend = Scripted::backend("counting", move |_, batch| {
        executions.fetch_add(1, SeqCst);
        for index in 0..batch.len() {
            batch.push_parameter(index, "made", Parameter::Bool(true));
        }
        echo(batch);
        let input = batch.gather("INPUT0").unwrap().unwrap();
        if values(&input.data).iter().any(|value| *value < 0.0) {
            batch.fail_all(&Error::internal("negative"));
        }
    });
    let mut options = Options { cache: Some(cache), ..files.options() };
    options.backends.push(backend);
    let server = Server::start(options).unwrap();
    (files, server, count)
}

fn statistics(server: &Server, model: &str) -> ModelStatistics {
    server.statistics(model, None).unwrap().remove(0)
}

fn answer(server: &Server, value: f32) -> Vec<f32> {
    values(&ask(server, "m", [floats("INPUT0", &[1, 1], &[value])]).outputs()[0].data)
}

#[test]
fn the_same_question_is_answered_once() {
    let (_files, server, executions) = start(CACHED, Arc::new(LocalCache::new(1 << 20)));
    for _ in 0..3 {
        assert_eq!(answer(&server, 1.0), [1.0]);
        assert_eq!(answer(&server, 2.0), [2.0]);
    }
    assert_eq!(executions.load(SeqCst), 2);
    let all = statistics(&server, "m");
    assert_eq!((all.inference_count, all.execution_count), (2, 2), "what is answered from the cache is not executed");
    assert_eq!((all.inference.success.count, all.inference.queue.count), (6, 6));
    assert_eq!((all.inference.cache_hit.count, all.inference.cache_miss.count), (4, 2));
    assert!(all.inference.cache_hit.ns > 0 && all.inference.cache_miss.ns > 0);
    // Identifier and model are the request's own, parameters are not kept.
    let (mut with_id, waiting) = request("m", [floats("INPUT0", &[1, 1], &[1.0])]);
    with_id.id = "mine".to_owned();
    server.infer(with_id);
    let response = waiting.response();
    assert_eq!((response.id.as_str(), response.model.as_str(), response.version), ("mine", "m", 1));
    assert_eq!(response.parameters, []);
}

#[test]
fn other_outputs_are_another_question() {
    let (_files, server, _) = start(CACHED, Arc::new(LocalCache::new(1 << 20)));
    assert_eq!(answer(&server, 5.0), [5.0]);
    let (mut classes, waiting) = request("m", [floats("INPUT0", &[1, 1], &[5.0])]);
    classes.outputs = vec![RequestedOutput { name: "OUTPUT0".to_owned(), classification: 1 }];
    server.infer(classes);
    assert_eq!(waiting.outputs()[0].dtype, halimede_tensor::DType::String);
}

#[test]
fn errors_are_not_kept() {
    let (_files, server, executions) = start(CACHED, Arc::new(LocalCache::new(1 << 20)));
    for _ in 0..2 {
        assert_eq!(ask(&server, "m", [floats("INPUT0", &[1, 1], &[-1.0])]).error().message, "negative");
    }
    assert_eq!(executions.load(SeqCst), 2);
    let all = statistics(&server, "m");
    assert_eq!((all.inference.cache_hit.count, all.inference.cache_miss.count), (0, 0));
}

#[test]
fn an_answer_that_does_not_fit_is_given_and_not_kept() {
    let (_files, server, executions) = start(CACHED, Arc::new(LocalCache::new(100)));
    assert_eq!([answer(&server, 1.0), answer(&server, 1.0)], [[1.0], [1.0]]);
    assert_eq!(executions.load(SeqCst), 2);
    assert_eq!(statistics(&server, "m").inference.cache_miss.count, 2);
}

#[test]
fn a_model_that_does_not_ask_for_it_has_no_cache() {
    let (_files, server, executions) = start("", Arc::new(LocalCache::new(1 << 20)));
    assert_eq!([answer(&server, 1.0), answer(&server, 1.0)], [[1.0], [1.0]]);
    assert_eq!(executions.load(SeqCst), 2);
    let names =
        |server: &Server| server.metrics().into_iter().map(|family| family.name.into_owned()).collect::<Vec<_>>();
    assert!(!names(&server).contains(&"nv_cache_num_hits_per_model".to_owned()));
    assert!(names(&server).contains(&"nv_cache_num_lookups".to_owned()));
}

#[test]
fn a_model_that_is_loaded_again_answers_anew() {
    let (files, _, _) = start(CACHED, Arc::new(LocalCache::new(1 << 20)));
    let count = Arc::<AtomicU32>::default();
    let executions = count.clone();
    let mut options = Options {
        cache: Some(Arc::new(LocalCache::new(1 << 20))),
        control: crate::ControlMode::Explicit,
        startup_models: vec!["m".to_owned()],
        ..files.options()
    };
    options.backends.push(Scripted::backend("counting", move |_, batch| {
        executions.fetch_add(1, SeqCst);
        echo(batch);
    }));
    let server = Server::start(options).unwrap();
    answer(&server, 1.0);
    files.model("m", &config("counting", &format!("{CACHED} parameters {{ key: 'a' value {{ string_value: 'b' }} }}")));
    server.load("m", crate::LoadParameters::default()).unwrap();
    answer(&server, 1.0);
    assert_eq!(count.load(SeqCst), 2);
}

#[test]
fn metrics_tell_hits_and_misses() {
    let (_files, server, _) = start(CACHED, Arc::new(LocalCache::new(1 << 20)));
    (0..3).for_each(|_| drop(answer(&server, 1.0)));
    let value = |name: &str| {
        let family = server.metrics().into_iter().find(|family| family.name == name).unwrap();
        match family.samples[0].value {
            Value::Number(value) => value,
            _ => panic!("{name} is no number"),
        }
    };
    assert_eq!((value("nv_cache_num_hits_per_model"), value("nv_cache_num_misses_per_model")), (2.0, 1.0));
    assert_eq!((value("nv_inference_request_success"), value("nv_inference_count")), (3.0, 1.0));
    assert_eq!((value("nv_cache_num_lookups"), value("nv_cache_num_entries")), (3.0, 1.0));
}

/// Hands the number of its request on.
struct Numbered(usize, Arc<Mutex<Vec<usize>>>);

impl Reply for Numbered {
    fn send(&mut self, _: crate::Response, _: bool) {
        self.1.lock().push(self.0);
    }

    fn end(&mut self) {}
}

#[test]
fn hits_keep_the_order_of_requests() {
    let batching = "dynamic_batching { preserve_ordering: true max_queue_delay_microseconds: 20000 \
                    preferred_batch_size: 8 } instance_group { count: 3 kind: KIND_CPU }";
    let (_files, server, _) = start(&format!("{CACHED} {batching}"), Arc::new(LocalCache::new(1 << 20)));
    assert_eq!(answer(&server, 0.0), [0.0]);
    let heard = Arc::<Mutex<Vec<usize>>>::default();
    for number in 0..60 {
        let (mut request, _waiting) = request("m", [floats("INPUT0", &[1, 1], &[(number % 3) as f32 * number as f32])]);
        request.responder = crate::Responder::new(Numbered(number, heard.clone()));
        server.infer(request);
    }
    eventually("all are answered", || heard.lock().len() == 60);
    assert_eq!(*heard.lock(), (0..60).collect::<Vec<_>>());
}

/// A cache whose work is done when a test says so.
#[derive(Default)]
struct Remote {
    local: Option<LocalCache>,
    works: Mutex<Vec<Work>>,
    is_full: std::sync::atomic::AtomicBool,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Remote")
    }
}

impl Remote {
    fn work(&self) {
        let works = std::mem::take(&mut *self.works.lock());
        works.into_iter().for_each(|work| work());
    }
}

impl ResponseCache for Remote {
    fn look_up(&self, key: &CacheKey) -> Result<Option<Vec<OutputTensor>>, Error> {
        self.local.as_ref().map_or(Err(Error::unavailable("gone")), |local| local.look_up(key))
    }

    fn insert(&self, key: &CacheKey, outputs: &[OutputTensor]) -> Result<Insertion, Error> {
        self.local.as_ref().map_or(Err(Error::unavailable("gone")), |local| local.insert(key, outputs))
    }

    fn metrics(&self) -> Vec<Family> {
        Vec::new()
    }

    fn defer(&self, work: Work) -> Deferral {
        if self.is_full.load(SeqCst) {
            return Deferral::Full;
        }
        self.works.lock().push(work);
        Deferral::Later
    }
}

#[test]
fn a_cache_elsewhere_is_asked_and_told_on_another_thread() {
    let remote = Arc::new(Remote { local: Some(LocalCache::new(1 << 20)), ..Remote::default() });
    let (_files, server, executions) = start(CACHED, remote.clone());
    let first = ask(&server, "m", [floats("INPUT0", &[1, 1], &[1.0])]);
    assert_eq!((server.in_flight(), executions.load(SeqCst)), (1, 0), "it is being looked up");
    remote.work();
    assert_eq!(values(&first.outputs()[0].data), [1.0]);
    // What is to be kept waits.
    eventually("it is to be kept", || remote.works.lock().len() == 1);
    remote.work();
    eventually("nothing is in flight", || server.in_flight() == 0);
    let second = ask(&server, "m", [floats("INPUT0", &[1, 1], &[1.0])]);
    remote.work();
    assert_eq!(values(&second.outputs()[0].data), [1.0]);
    assert_eq!(executions.load(SeqCst), 1);
    // Without room the model answers.
    remote.is_full.store(true, SeqCst);
    assert_eq!(answer(&server, 1.0), [1.0]);
    assert_eq!(executions.load(SeqCst), 2);
    let all = statistics(&server, "m").inference;
    assert_eq!((all.cache_hit.count, all.cache_miss.count), (1, 2));
}

#[test]
fn a_cache_that_fails_costs_no_answer() {
    let remote = Arc::new(Remote::default());
    let (_files, server, _) = start(CACHED, remote.clone());
    let waiting = ask(&server, "m", [floats("INPUT0", &[1, 1], &[1.0])]);
    remote.work();
    assert_eq!(values(&waiting.outputs()[0].data), [1.0]);
}

/// Runs `m` two times.
fn ensemble(more: &str) -> String {
    format!(
        "platform: 'ensemble' max_batch_size: 8 {more} \
         input {{ name: 'INPUT0' data_type: TYPE_FP32 dims: 1 }} \
         output {{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: 1 }} \
         ensemble_scheduling {{ \
           step {{ model_name: 'm' model_version: -1 input_map {{ key: 'INPUT0' value: 'INPUT0' }} \
                   output_map {{ key: 'OUTPUT0' value: 'between' }} }} \
           step {{ model_name: 'm' model_version: -1 input_map {{ key: 'INPUT0' value: 'between' }} \
                   output_map {{ key: 'OUTPUT0' value: 'OUTPUT0' }} }} }}"
    )
}

#[test]
fn an_ensemble_is_answered_as_a_whole_or_by_its_members() {
    for (of_ensemble, of_member, executions) in [(CACHED, "", 2), ("", CACHED, 1), (CACHED, CACHED, 1), ("", "", 6)] {
        let (files, _, _) = start(of_member, Arc::new(LocalCache::new(1 << 20)));
        files.model("e", &ensemble(of_ensemble));
        let count = Arc::<AtomicU32>::default();
        let counted = count.clone();
        let mut options = Options { cache: Some(Arc::new(LocalCache::new(1 << 20))), ..files.options() };
        options.backends.push(Scripted::backend("counting", move |_, batch| {
            counted.fetch_add(1, SeqCst);
            echo(batch);
        }));
        let server = Server::start(options).unwrap();
        for _ in 0..3 {
            let outputs = ask(&server, "e", [floats("INPUT0", &[1, 1], &[7.0])]).outputs();
            assert_eq!(values(&outputs[0].data), [7.0]);
        }
        assert_eq!(count.load(SeqCst), executions, "{of_ensemble}, {of_member}");
        let hits = statistics(&server, "e").inference.cache_hit.count;
        assert_eq!(hits, if of_ensemble.is_empty() { 0 } else { 2 });
    }
}

#[test]
fn an_ensemble_whose_answers_differ_for_equal_requests_has_no_cache() {
    for (member, why) in [
        (
            "sequence_batching {}",
            "Response Cache does not currently support model outer with sequence batching scheduler (of its member m). \
             Please disable the response cache.",
        ),
        (
            "model_transaction_policy { decoupled: true }",
            "Response Cache does not currently support model outer with 'decoupled' transaction policy. Please disable \
             the response cache.",
        ),
    ] {
        let files = Files::new();
        // The member is one of a member.
        let outer = ensemble(CACHED).replace("'m'", "'inner'");
        files.model("m", &config("identity", member)).model("inner", &ensemble("")).model("outer", &outer);
        let server = Server::start(Options { control: ControlMode::Explicit, ..files.options() }).unwrap();
        server.load("inner", LoadParameters::default()).unwrap();
        let error = server.load("outer", LoadParameters::default()).unwrap_err();
        assert!(error.message.contains(why), "{error}");
    }
}

#[test]
fn a_client_that_goes_away_cancels_what_is_not_in_the_cache() {
    let (_files, server, _) = start(
        &format!("{CACHED} dynamic_batching {{ max_queue_delay_microseconds: 100000000 preferred_batch_size: 8 }}"),
        Arc::new(LocalCache::new(1 << 20)),
    );
    let (responder, waiting) = responder();
    let (mut request, _waiting) = request("m", [floats("INPUT0", &[1, 1], &[1.0])]);
    request.responder = responder;
    server.infer(request);
    waiting.leave();
    // Eight others fill the batch; the one that left is not run with them.
    let others: Vec<_> = (0..8).map(|n| ask(&server, "m", [floats("INPUT0", &[1, 1], &[n as f32 + 2.0])])).collect();
    others.into_iter().for_each(|other| drop(other.outputs()));
    eventually("it was cancelled", || {
        waiting.is_answered().is_some_and(|response| response.error.is_some_and(|e| e.code == crate::Code::Cancelled))
    });
}
