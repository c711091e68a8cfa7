//! Servers whose instances share resources.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    Code, ControlMode, CorrelationId, LoadParameters, Options, Server,
    rate_limiter::{Available, Device},
    request::Sequence,
    testing::{Files, Scripted, ask, echo, eventually, floats, identity, request, values},
};

/// What runs, by the values of the requests of a batch.
#[derive(Default)]
struct Watch {
    running: Mutex<usize>,
    most: Mutex<usize>,
    batches: Mutex<Vec<Vec<f32>>>,
    is_open: AtomicBool,
}

fn limited(share: &str, more: &str) -> String {
    identity("[ 1 ]", &format!("instance_group {{ count: 1 rate_limiter {{ {share} }} }} {more}"))
}

const R1: &str = "resources { name: 'R1' count: 1 }";

fn start(files: &Files, available: Available) -> (Server, Arc<Watch>) {
    let watch = Arc::<Watch>::default();
    let seen = watch.clone();
    let backend = Scripted::backend("identity", move |_, batch| {
        let now = {
            let mut running = seen.running.lock();
            *running += 1;
            *running
        };
        let most = &mut *seen.most.lock();
        *most = now.max(*most);
        seen.batches.lock().push(values(&batch.gather("INPUT0").unwrap().unwrap().data));
        eventually("open", || seen.is_open.load(SeqCst));
        echo(batch);
        *seen.running.lock() -= 1;
    });
    let options = Options {
        backends: vec![backend],
        rate_limit: Some(available),
        control: ControlMode::Explicit,
        startup_models: vec!["*".to_owned()],
        ..files.options()
    };
    (Server::start(options).unwrap(), watch)
}

fn one(value: f32) -> [crate::InputTensor; 1] {
    [floats("INPUT0", &[1], &[value])]
}

fn row(value: f32) -> [crate::InputTensor; 1] {
    [floats("INPUT0", &[1, 1], &[value])]
}

#[test]
fn models_that_share_a_resource_take_turns_by_priority() {
    let files = Files::new();
    files.model("often", &limited(R1, "")).model("seldom", &limited(&format!("{R1} priority: 2"), ""));
    files.model("free", &limited("", ""));
    let (server, watch) = start(&files, Available::default());
    let waiting: Vec<_> = (0..30)
        .flat_map(|_| [("often", 1.0), ("seldom", 2.0)])
        .map(|(model, value)| ask(&server, model, one(value)))
        .collect();
    eventually("one runs, and the other asks", || *watch.running.lock() == 1 && server.instances_asking() == 1);
    watch.is_open.store(true, SeqCst);
    waiting.into_iter().for_each(|waiting| assert_eq!(waiting.outputs().len(), 1));
    assert_eq!(*watch.most.lock(), 1);
    let first: Vec<f32> = watch.batches.lock()[..30].concat();
    let often = first.iter().filter(|value| **value == 1.0).count();
    // Of three runs two, whoever came first.
    assert!((19..=21).contains(&often), "{often} of 30: {first:?}");
    assert_eq!(ask(&server, "free", one(3.0)).outputs().len(), 1);
}

#[test]
fn enough_for_both_lets_both_run() {
    let files = Files::new();
    files.model("a", &limited(R1, "")).model("b", &limited(R1, ""));
    let mut available = Available::default();
    available.add("R1", 2, Device::Each);
    let (server, watch) = start(&files, available);
    let waiting = [ask(&server, "a", one(1.0)), ask(&server, "b", one(2.0))];
    eventually("both run", || *watch.running.lock() == 2);
    watch.is_open.store(true, SeqCst);
    waiting.into_iter().for_each(|waiting| assert_eq!(waiting.outputs().len(), 1));
}

#[test]
fn requests_join_a_batch_until_it_may_run() {
    let files = Files::new();
    let batching = "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 1, 2, 3, 4 ] }";
    files.model("busy", &limited(R1, "")).model("m", &limited(R1, batching));
    let (server, watch) = start(&files, Available::default());
    let busy = ask(&server, "busy", one(9.0));
    eventually("it runs", || *watch.running.lock() == 1);
    let waiting: Vec<_> = (0..4).map(|i| ask(&server, "m", row(i as f32))).collect();
    watch.is_open.store(true, SeqCst);
    assert_eq!(busy.outputs().len(), 1);
    for (i, waiting) in waiting.into_iter().enumerate() {
        assert_eq!(values(&waiting.outputs()[0].data), [i as f32]);
    }
    assert_eq!(*watch.batches.lock(), [vec![9.0], vec![0.0, 1.0, 2.0, 3.0]]);
}

#[test]
fn a_batch_that_waits_for_company_is_run_when_its_time_has_come() {
    let files = Files::new();
    let batching = "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 50000 }";
    files.model("m", &limited(R1, batching).replace("count: 1 rate", "count: 2 rate"));
    let (server, watch) = start(&files, Available::default());
    watch.is_open.store(true, SeqCst);
    for i in 0..3 {
        assert_eq!(values(&ask(&server, "m", row(i as f32)).outputs()[0].data), [i as f32]);
    }
}

#[test]
fn sequences_stay_on_their_instances_and_take_turns() {
    let files = Files::new();
    let group = format!("instance_group {{ count: 3 rate_limiter {{ {R1} }} }} ");
    files.model("m", &identity("[ 1 ]", &format!("{group} sequence_batching {{}}")));
    let (server, watch) = start(&files, Available::default());
    watch.is_open.store(true, SeqCst);
    let send = |id: u64, value: f32, start: bool, end: bool| {
        let (mut request, waiting) = request("m", one(value));
        request.sequence = Sequence { id: CorrelationId::Int(id), start, end };
        server.infer(request);
        waiting
    };
    let mut waiting = Vec::new();
    for step in 0..5 {
        // More than have a place.
        waiting.extend((1..=4).map(|id| send(id, step as f32, step == 0, step == 4)));
    }
    waiting.into_iter().for_each(|waiting| assert_eq!(waiting.outputs().len(), 1));
    assert_eq!((*watch.most.lock(), watch.batches.lock().len()), (1, 20));
    server.shutdown(Duration::from_secs(20)).unwrap();
}

#[test]
fn an_instance_that_is_to_go_ends_with_its_last_sequence_though_nothing_comes() {
    struct End(Arc<AtomicUsize>);
    impl Drop for End {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    thread_local! {
        static END: Cell<Option<End>> = const { Cell::new(None) };
    }
    let files = Files::new();
    let ended = Arc::new(AtomicUsize::new(0));
    let group = |count| {
        let group = format!("instance_group {{ count: {count} rate_limiter {{ {R1} }} }}");
        identity("[ 1 ]", &format!("{group} sequence_batching {{ max_sequence_idle_microseconds: 200000 }}"))
    };
    files.model("m", &group(2));
    let threads = ended.clone();
    let backend = Scripted::backend("identity", move |_, batch| {
        END.set(Some(End(threads.clone())));
        echo(batch);
    });
    let options = Options {
        backends: vec![backend],
        rate_limit: Some(Available::default()),
        control: ControlMode::Explicit,
        startup_models: vec!["*".to_owned()],
        ..files.options()
    };
    let server = Server::start(options).unwrap();
    for id in 1..=2 {
        let (mut request, waiting) = request("m", one(id as f32));
        request.sequence = Sequence { id: CorrelationId::Int(id), start: true, end: false };
        server.infer(request);
        assert_eq!(waiting.outputs().len(), 1);
    }
    // Each has run for one sequence, which nobody ends.
    files.write("m/config.pbtxt", group(1));
    server.load("m", LoadParameters::default()).unwrap();
    eventually("its thread has ended", || ended.load(SeqCst) == 1);
    server.shutdown(Duration::from_secs(20)).unwrap();
}

#[test]
fn what_can_never_run_does_not_load_and_who_leaves_makes_room() {
    let files = Files::new();
    files.model("a", &limited(R1, ""));
    let mut available = Available::default();
    available.add("R1", 1, Device::Each);
    let (server, watch) = start(&files, available);
    watch.is_open.store(true, SeqCst);
    files.model("b", &limited(&R1.replace('1', "2"), "").replace("R2", "R1"));
    let error = server.load("b", LoadParameters::default()).unwrap_err();
    let text = "Resource count for \"R1\" is limited to 1 which will prevent scheduling of one or more model instances, \
                the minimum required count is 2";
    assert!(error.message.contains(text) && error.code == Code::InvalidArgument, "{error}");
    files.model("c", &limited("resources { name: 'R1' global: true count: 1 }", ""));
    let error = server.load("c", LoadParameters::default()).unwrap_err();
    let text = "Resource \"R1\" is present as both global and device-specific resource in the model configuration.";
    assert!(error.message.contains(text), "{error}");
    // What is asked of an instance is changed with the instances, and what has gone is forgotten.
    assert_eq!(ask(&server, "a", one(1.0)).outputs().len(), 1);
    server.unload("a", false).unwrap();
    eventually("it has gone", || server.load("c", LoadParameters::default()).is_ok());
    assert_eq!(ask(&server, "c", one(1.0)).outputs().len(), 1);
    files.model("c", &limited("", ""));
    server.load("c", LoadParameters::default()).unwrap();
    // What was served before leaves when its last request is answered, a moment later.
    eventually("the old one has gone", || server.load("a", LoadParameters::default()).is_ok());
    assert_eq!(ask(&server, "a", one(1.0)).outputs().len(), 1);
    server.shutdown(Duration::from_secs(20)).unwrap();
}
