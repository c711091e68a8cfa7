//! Instances under a real scheduler and real threads.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use super::{Runner, RunnerSettings, WarmUp, runner::ExpirySleep};
use crate::{
    Code, Options, Server,
    backend::{Batch, ModelContext},
    config,
    model::{SequenceSpec, Signature},
    request::{CorrelationId, Sequence},
    scheduler::Scheduler,
    testing::{Files, Scripted, ask, echo, eventually, floats, identity, request, strings, values},
};

/// A server with a scripted backend called `identity`.
fn serve(config: &str, execute: impl Fn(usize, &mut Batch) + Send + Sync + 'static) -> (Files, Server) {
    let files = Files::new();
    files.model("m", config);
    let server =
        Server::start(Options { backends: vec![Scripted::backend("identity", execute)], ..files.options() }).unwrap();
    (files, server)
}

/// A gate that a scripted backend waits at, so that a test can build a queue.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    changed: std::sync::Condvar,
}

impl Gate {
    fn pass(&self) {
        drop(self.changed.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap());
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

/// A runner of a model `m` with one instance.
fn runner(files: &Files, execute: impl Fn(usize, &mut Batch) + Send + Sync + 'static) -> (Runner, Arc<Signature>) {
    runner_of(files, "instance_group { count: 1 }", execute)
}

/// A runner of a model `m` with more in its configuration.
fn runner_of(
    files: &Files,
    more: &str,
    execute: impl Fn(usize, &mut Batch) + Send + Sync + 'static,
) -> (Runner, Arc<Signature>) {
    let config = identity("[ 1 ]", more);
    files.model("m", &config);
    let directory = files.path().join("m");
    let options = config::Options::default();
    let config = config::parse(&config, &directory).unwrap();
    let config = config::prepare(config, "m", &config::VersionFiles::default(), &options).unwrap();
    let config = config::prepare_instance_groups(config, &options).unwrap();
    let mut signature = Signature::new(&config).unwrap();
    signature.sequence = SequenceSpec::read(&config, &directory).unwrap();
    let signature = Arc::new(signature);
    let context = ModelContext {
        config: config.clone(),
        options,
        directory: directory.clone(),
        version: 1,
        settings: BTreeMap::new(),
        backend_directory: None,
        peers: Default::default(),
        metrics: Default::default(),
        admission: None,
    };
    let settings = RunnerSettings {
        model: Scripted::backend("identity", execute).load(&context).unwrap().model,
        signature: signature.clone(),
        version: 1,
        recorder: Arc::default(),
        scheduler: Scheduler::from_config(&config),
        preserve_ordering: false,
        warm_up: WarmUp::read(&config, &directory).unwrap(),
        rate_limiter: None,
    };
    (Runner::start(settings, &config.instance_group).unwrap(), signature)
}

#[test]
fn quick_models_run_on_the_thread_of_the_request() {
    let files = Files::new();
    let threads = Arc::new(Mutex::new(Vec::new()));
    let ran_on = threads.clone();
    let (runner, signature) = runner(&files, move |_, batch| {
        ran_on.lock().unwrap().push(thread::current().id());
        match values(&batch.gather("INPUT0").unwrap().unwrap().data)[0] {
            13.0 => panic!("thirteen"),
            _ => echo(batch),
        }
    });
    let ask = |value: f32, is_quick: bool| {
        // Once it waits, it has recorded how long the run before took.
        eventually("the instance waits", || runner.shared.state.lock().parked.len() == 1);
        runner.shared.pace.set(if is_quick { Duration::ZERO } else { Duration::from_secs(1) });
        let (mut request, waiting) = request("m", [floats("INPUT0", &[1], &[value])]);
        let batch_size = signature.prepare(&mut request).unwrap();
        runner.infer(request, batch_size);
        waiting.response()
    };
    // A quick model, one that panics, one that is slow again.
    for (value, is_quick) in [(1.0, false), (2.0, true), (13.0, true), (3.0, true), (4.0, false)] {
        let response = ask(value, is_quick);
        assert_eq!((response.error.is_some(), response.is_refusal), (value == 13.0, false), "{value}");
        let ran_here = *threads.lock().unwrap().last().unwrap() == thread::current().id();
        assert_eq!(ran_here, is_quick, "{value}");
    }
    // The last one ran on another thread, which counts it after its answer.
    eventually("all are counted", || runner.in_flight() == 0);
}

#[test]
fn sequences_of_quick_models_run_on_the_thread_of_the_request_and_on_their_instance() {
    sequences_of_quick_models_run_here("");
    sequences_of_quick_models_run_here("oldest { max_candidate_sequences: 4 }");
}

fn sequences_of_quick_models_run_here(strategy: &str) {
    let files = Files::new();
    let runs = Arc::new(Mutex::new(Vec::new()));
    let ran = runs.clone();
    let config = format!("sequence_batching {{ {strategy} }} instance_group {{ count: 2 }}");
    let (runner, signature) = runner_of(&files, &config, move |instance, batch| {
        ran.lock().unwrap().push((instance, thread::current().id()));
        echo(batch);
    });
    let ask = |id: u64, start: bool, is_quick: bool| {
        eventually("the instances wait", || runner.shared.state.lock().parked.len() == 2);
        runner.shared.pace.set(if is_quick { Duration::ZERO } else { Duration::from_secs(1) });
        let (mut request, waiting) = request("m", [floats("INPUT0", &[1], &[id as f32])]);
        request.sequence = Sequence { id: CorrelationId::Int(id), start, end: false };
        let batch_size = signature.prepare(&mut request).unwrap();
        runner.infer(request, batch_size);
        assert_eq!(values(&waiting.outputs()[0].data), [id as f32]);
        *runs.lock().unwrap().last().unwrap()
    };
    let places = [ask(1, true, false).0, ask(2, true, true).0];
    assert_ne!(places[0], places[1]);
    for (id, is_quick) in [(1, true), (2, true), (2, false), (1, true)] {
        let mine = || {
            let (instance, thread) = ask(id, false, is_quick);
            assert_eq!(instance, places[id as usize - 1]);
            thread == thread::current().id()
        };
        match is_quick {
            // A thread that was woken for nothing may have its instance back for a moment, and then runs the request.
            true => eventually("it runs here", mine),
            false => assert!(!mine()),
        }
    }
}

#[test]
fn many_clients_of_a_quick_model_share_its_instances() {
    let files = Files::new();
    let busy = AtomicUsize::new(0);
    let (runner, signature) = runner(&files, move |_, batch| {
        assert_eq!(busy.fetch_add(1, SeqCst), 0, "two requests on one instance");
        echo(batch);
        busy.fetch_sub(1, SeqCst);
    });
    thread::scope(|scope| {
        for client in 0..4 {
            let (runner, signature) = (&runner, &signature);
            scope.spawn(move || {
                for i in 0..500 {
                    // Now quick, now slow: requests change between threads.
                    runner.shared.pace.set(Duration::from_micros((i * 7 + client) % 3 * 20));
                    let value = (client * 1000 + i) as f32;
                    let (mut request, waiting) = request("m", [floats("INPUT0", &[1], &[value])]);
                    let batch_size = signature.prepare(&mut request).unwrap();
                    runner.infer(request, batch_size);
                    assert_eq!(values(&waiting.outputs()[0].data), [value]);
                }
            });
        }
    });
    eventually("all are counted", || runner.in_flight() == 0);
}

const DYNAMIC: &str = "max_batch_size: 8 instance_group { count: 1 } dynamic_batching { }";

#[test]
fn waiting_requests_run_in_one_batch_and_get_their_own_rows() {
    let gate = Arc::new(Gate::default());
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let (at_gate, all) = (gate.clone(), sizes.clone());
    let (_files, server) = serve(&identity("[ -1 ]", DYNAMIC), move |_, batch| {
        at_gate.pass();
        all.lock().unwrap().push(batch.size());
        echo(batch);
    });
    let first = ask(&server, "m", [floats("INPUT0", &[1, 1], &[0.0])]);
    eventually("the instance took the first", || {
        server.metrics()[9].samples[0].value == crate::metrics::Value::Number(0.0)
    });
    let waiting: Vec<_> = [(1, 10.0), (2, 20.0), (3, 30.0)]
        .map(|(rows, base)| {
            let data: Vec<f32> = (0..rows * 2).map(|i| base + i as f32).collect();
            (ask(&server, "m", [floats("INPUT0", &[rows, 2], &data)]), rows, data)
        })
        .into();
    gate.open();
    first.outputs();
    for (waiting, rows, data) in waiting {
        let outputs = waiting.outputs();
        assert_eq!((&outputs[0].shape[..], values(&outputs[0].data)), (&[rows, 2][..], data));
    }
    assert_eq!(*sizes.lock().unwrap(), [1, 6]);
    let statistics = server.statistics("m", None).unwrap().remove(0);
    assert_eq!((statistics.inference_count, statistics.execution_count), (7, 2));
    assert_eq!(statistics.batches.iter().map(|batch| batch.batch_size).collect::<Vec<_>>(), [1, 6]);
}

#[test]
fn strings_are_split_by_row() {
    let gate = Arc::new(Gate::default());
    let at_gate = gate.clone();
    let config = identity("[ 1 ]", DYNAMIC).replace("FP32", "STRING");
    let (_files, server) = serve(&config, move |_, batch| {
        at_gate.pass();
        echo(batch);
    });
    let texts = [vec!["", "a longer one"], vec!["b"], vec!["c", "d"]];
    let waiting: Vec<_> =
        texts.iter().map(|texts| ask(&server, "m", [strings("INPUT0", &[texts.len() as i64, 1], texts)])).collect();
    gate.open();
    for (waiting, texts) in waiting.into_iter().zip(&texts) {
        let expected = strings("", &[texts.len() as i64, 1], texts);
        let outputs = waiting.outputs();
        assert_eq!((&outputs[0].shape, &*outputs[0].data), (&expected.shape, &*expected.data));
    }
}

#[test]
fn one_request_is_neither_copied_in_nor_out() {
    let (_files, server) = serve(&identity("[ -1 ]", DYNAMIC), |_, batch| echo(batch));
    let input = floats("INPUT0", &[1, 64], &[1.0; 64]);
    let address = input.data.as_ptr();
    assert_eq!(ask(&server, "m", [input]).outputs()[0].data.as_ptr(), address);
}

#[test]
fn a_panic_is_answered_and_the_instance_made_anew() {
    let (_files, server) = serve(&identity("[ 1 ]", "instance_group { count: 1 }"), |_, batch| {
        let input = batch.gather("INPUT0").unwrap().unwrap();
        assert!(values(&input.data)[0] != 13.0, "unlucky");
        echo(batch);
    });
    for value in [1.0, 13.0, 2.0] {
        let response = ask(&server, "m", [floats("INPUT0", &[1], &[value])]).response();
        match response.error {
            None => assert_ne!(value, 13.0),
            Some(error) => {
                assert_eq!((value, error.code), (13.0, Code::Internal));
                assert!(error.message.contains("'m'") && error.message.contains("unlucky"), "{error}");
            }
        }
    }
    let statistics = server.statistics("m", None).unwrap().remove(0);
    assert_eq!((statistics.inference.success.count, statistics.inference.fail.count), (2, 1));
}

#[test]
fn instances_run_at_the_same_time_and_order_is_kept_where_asked() {
    let (entered, all_entered) = mpsc::channel();
    let entered = Mutex::new(entered);
    let gates: Arc<Vec<Gate>> = Arc::new((0..3).map(|_| Gate::default()).collect());
    let at_gates = gates.clone();
    let config = "max_batch_size: 1 instance_group { count: 3 } dynamic_batching { preserve_ordering: true }";
    let (_files, server) = serve(&identity("[ 1 ]", config), move |_, batch| {
        let input = batch.gather("INPUT0").unwrap().unwrap();
        let index = values(&input.data)[0] as usize;
        entered.lock().unwrap().send(index).unwrap();
        at_gates[index].pass();
        echo(batch);
    });
    let mut waiting = Vec::new();
    for index in 0..3 {
        waiting.push(ask(&server, "m", [floats("INPUT0", &[1, 1], &[index as f32])]));
        assert_eq!(all_entered.recv_timeout(Duration::from_secs(20)), Ok(index), "all three run at once");
    }
    gates[2].open();
    gates[1].open();
    thread::sleep(Duration::from_millis(30));
    assert!(waiting.iter().all(|waiting| waiting.is_answered().is_none()), "the first is not done");
    gates[0].open();
    for (index, waiting) in waiting.into_iter().enumerate() {
        assert_eq!(values(&waiting.outputs()[0].data), [index as f32]);
    }
}

#[test]
fn requests_of_clients_that_left_are_dropped() {
    let gate = Arc::new(Gate::default());
    let (runs, at_gate) = (Arc::new(AtomicUsize::new(0)), gate.clone());
    let count = runs.clone();
    let (_files, server) = serve(&identity("[ 1 ]", "instance_group { count: 1 }"), move |_, batch| {
        count.fetch_add(1, SeqCst);
        at_gate.pass();
        echo(batch);
    });
    let first = ask(&server, "m", [floats("INPUT0", &[1], &[0.0])]);
    let gone = ask(&server, "m", [floats("INPUT0", &[1], &[1.0])]);
    let last = ask(&server, "m", [floats("INPUT0", &[1], &[2.0])]);
    gone.leave();
    gate.open();
    first.outputs();
    last.outputs();
    assert_eq!(gone.error().code, Code::Cancelled);
    assert_eq!(runs.load(SeqCst), 2);
    let failures = &server.metrics()[1];
    let reasons: Vec<_> = failures.samples.iter().map(|sample| (sample.labels[1].1.as_str(), &sample.value)).collect();
    let number = crate::metrics::Value::Number;
    assert_eq!(
        reasons,
        [("REJECTED", &number(0.0)), ("CANCELED", &number(1.0)), ("BACKEND", &number(0.0)), ("OTHER", &number(0.0))]
    );
}

#[test]
fn queues_refuse_what_is_too_much_or_too_late() {
    let gate = Arc::new(Gate::default());
    let at_gate = gate.clone();
    let config = "max_batch_size: 1 instance_group { count: 1 } \
                  dynamic_batching { default_queue_policy { max_queue_size: 1 default_timeout_microseconds: 500000 } }";
    let (_files, server) = serve(&identity("[ 1 ]", config), move |_, batch| {
        at_gate.pass();
        echo(batch);
    });
    let input = || [floats("INPUT0", &[1, 1], &[0.0])];
    let running = ask(&server, "m", input());
    eventually("the instance took the first", || {
        server.metrics()[9].samples[0].value == crate::metrics::Value::Number(0.0)
    });
    let late = ask(&server, "m", input());
    let error = ask(&server, "m", input()).error();
    assert_eq!(
        (error.code, error.message.as_str()),
        (Code::Unavailable, "[request id: <id_unknown>] Exceeds maximum queue size")
    );
    // The instance is busy all the time.
    let error = late.error();
    assert_eq!((error.code, error.message.as_str()), (Code::Unavailable, "Request timeout expired"));
    gate.open();
    running.outputs();
}

#[test]
fn who_refuses_late_requests_sleeps_until_the_next_is_late() {
    let files = Files::new();
    let gate = Arc::new(Gate::default());
    let at_gate = gate.clone();
    let config = "max_batch_size: 1 instance_group { count: 1 } dynamic_batching { default_queue_policy { \
                  default_timeout_microseconds: 3600000000 allow_timeout_override: true } }";
    let (runner, signature) = runner_of(&files, config, move |_, batch| {
        at_gate.pass();
        echo(batch);
    });
    let ask = |timeout_us: u64| {
        let (mut request, waiting) = request("m", [floats("INPUT0", &[1, 1], &[0.0])]);
        request.timeout_us = timeout_us;
        let batch_size = signature.prepare(&mut request).unwrap();
        runner.infer(request, batch_size);
        waiting
    };
    let sleeps_long = || {
        let soon = Instant::now() + Duration::from_secs(600);
        matches!(runner.shared.state.lock().expiry_sleep, ExpirySleep::Until(until) if until > soon)
    };
    let running = ask(0);
    eventually("the instance took the first", || runner.shared.state.lock().scheduler.len() == 0);
    let patient = ask(0);
    eventually("it sleeps as long as the patient one waits", sleeps_long);
    // One that waits for less is not late by that time.
    assert_eq!(ask(20_000).error().message, "Request timeout expired");
    eventually("it sleeps again", sleeps_long);
    gate.open();
    running.outputs();
    patient.outputs();
}

#[test]
fn a_delayed_batch_runs_without_another_request() {
    let config = "max_batch_size: 8 dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 500000 }";
    let (_files, server) = serve(&identity("[ 1 ]", config), |_, batch| echo(batch));
    let waiting: Vec<_> = (0..3).map(|i| ask(&server, "m", [floats("INPUT0", &[1, 1], &[i as f32])])).collect();
    for (i, waiting) in waiting.into_iter().enumerate() {
        assert_eq!(values(&waiting.outputs()[0].data), [i as f32]);
    }
    let full: Vec<_> = (0..8).map(|i| ask(&server, "m", [floats("INPUT0", &[1, 1], &[i as f32])])).collect();
    full.into_iter().for_each(|waiting| drop(waiting.outputs()));
    let batches = server.statistics("m", None).unwrap().remove(0).batches;
    assert_eq!(batches.last().unwrap().batch_size, 8, "a preferred batch does not wait");
}

#[test]
fn many_threads_lose_nothing() {
    let config = "max_batch_size: 4 instance_group { count: 2 } dynamic_batching { preserve_ordering: true }";
    let (_files, server) = serve(&identity("[ -1 ]", config), |_, batch| echo(batch));
    thread::scope(|scope| {
        for client in 0..8 {
            let server = &server;
            scope.spawn(move || {
                for i in 0..200 {
                    let width = 1 + (i + client) % 3;
                    let data: Vec<f32> = (0..width).map(|j| (client * 1000 + i * 10 + j) as f32).collect();
                    let outputs = ask(server, "m", [floats("INPUT0", &[1, width], &data)]).outputs();
                    assert_eq!(values(&outputs[0].data), data);
                }
            });
        }
    });
    let statistics = server.statistics("m", None).unwrap().remove(0);
    assert_eq!((statistics.inference.success.count, statistics.inference_count), (1600, 1600));
    eventually("all are counted", || server.in_flight() == 0);
}

#[test]
fn warm_up_runs_on_every_instance_and_its_failure_is_the_models() {
    let runs = Arc::new(Mutex::new(Vec::new()));
    let all = runs.clone();
    let warm_up = |kind: &str| {
        format!(
            "max_batch_size: 4 instance_group {{ count: 2 }} model_warmup {{ name: 'w' batch_size: 3 count: 2 \
             inputs {{ key: 'INPUT0' value {{ data_type: TYPE_FP32 dims: 2 {kind} }} }} }}"
        )
    };
    let (_files, server) = serve(&identity("[ 2 ]", &warm_up("zero_data: true")), move |index, batch| {
        all.lock().unwrap().push((index, batch.size()));
        echo(batch);
    });
    let mut runs = runs.lock().unwrap().clone();
    runs.sort();
    assert_eq!(runs, [(0, 3), (0, 3), (1, 3), (1, 3)]);
    assert_eq!(server.statistics("m", None).unwrap()[0].execution_count, 0);

    let files = Files::new();
    files.model("m", &identity("[ 2 ]", &warm_up("input_data_file: 'data'"))).write("m/warmup/data", [0; 7]);
    let options = || Options { exit_on_error: false, ..files.options() };
    let reason = |server: &Server| server.repository_index(false).unwrap()[0].reason.clone();
    let short = reason(&Server::start(options()).unwrap());
    assert!(
        short.contains("warmup setting expects 8 bytes, but the data provided from data only has 7 bytes"),
        "{short}"
    );
    files.model("m", &identity("[ 2 ]", &warm_up("input_data_file: '../config.pbtxt'")));
    assert!(reason(&Server::start(options()).unwrap()).contains("outside the model's directory"));
}

#[test]
fn instances_are_made_and_warmed_up_at_once() {
    let begun = Arc::new(AtomicUsize::new(0));
    let all = begun.clone();
    let more = "max_batch_size: 4 instance_group { count: 3 } model_warmup { name: 'w' batch_size: 1 inputs { key: \
                'INPUT0' value { data_type: TYPE_FP32 dims: 2 zero_data: true } } }";
    let (_files, server) = serve(&identity("[ 2 ]", more), move |_, batch| {
        all.fetch_add(1, SeqCst);
        eventually("all warm up", || all.load(SeqCst) >= 3);
        echo(batch);
    });
    assert!(server.is_ready());
    assert_eq!(begun.load(SeqCst), 3);
}

#[test]
fn instances_that_came_and_went_leave_no_threads() {
    let files = Files::new();
    let (runner, _) = runner_of(&files, "sequence_batching { } instance_group { count: 2 }", |_, batch| echo(batch));
    let groups = |count| {
        let text = format!("instance_group {{ name: 'g' count: {count} kind: KIND_CPU }}");
        config::parse(&text, files.path()).unwrap().instance_group
    };
    for _ in 0..5 {
        for count in [2, 1] {
            runner.resize(&groups(count), false).unwrap();
        }
        eventually("it has ended", || runner.leaving.lock().iter().all(|thread| thread.is_finished()));
        // One of the round, or none that took longer than the call; in the first, those of the model as it began.
        assert!(runner.leaving.lock().len() <= 3, "{}", runner.leaving.lock().len());
    }
}

#[test]
fn a_request_that_is_never_run_is_answered() {
    let (request, waiting) = request("m", []);
    drop(request);
    assert_eq!(waiting.error().code, Code::Internal);
}
