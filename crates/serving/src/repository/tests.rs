//! Models come, change and go.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use halimede_tensor::Buffer;

use crate::{
    Code, ControlMode, LoadParameters, Options, Server,
    config::to_json,
    testing::{Files, Scripted, ask, echo, eventually, floats, identity, values},
};

fn explicit(files: &Files) -> Options {
    Options { control: ControlMode::Explicit, ..files.options() }
}

fn one() -> [crate::InputTensor; 1] {
    [floats("INPUT0", &[1], &[1.0])]
}

fn serves(server: &Server, model: &str) -> bool {
    ask(server, model, one()).response().error.is_none()
}

/// `name version state reason` of each entry of the index.
fn index(server: &Server) -> Vec<String> {
    let entries = server.repository_index(false).unwrap();
    let text = |entry: crate::IndexEntry| {
        let version = entry.version.map_or(String::new(), |version| format!(" {version}"));
        let state = entry.state.map_or(String::new(), |state| format!(" {}", state.name()));
        let reason = if entry.reason.is_empty() { String::new() } else { format!(" {}", entry.reason) };
        format!("{}{version}{state}{reason}", entry.name)
    };
    entries.into_iter().map(text).collect()
}

#[test]
fn a_missing_repository_makes_a_server_that_is_not_live() {
    let repositories = vec!["/no/such/directory".into()];
    let server = Server::start(Options { repositories, exit_on_error: false, ..Options::default() }).unwrap();
    assert!(!server.is_live() && !server.is_ready());
    assert_eq!(server.metadata().name, "triton");
    assert_eq!(server.statistics("", None).unwrap_err().message, "Server not ready");
    assert_eq!(ask(&server, "m", one()).error().code, Code::NotFound);
}

#[test]
fn groups_runtime_and_file_name_are_checked_before_the_model_file() {
    let files = Files::new();
    files.model("m", &identity("[ 1 ]", "instance_group { kind: KIND_GPU }"));
    files.model("r", &identity("[ 1 ]", "runtime: 'other.so'")).model("p", &identity("[ 1 ]", "runtime: 'model.py'"));
    files.model("f", &identity("[ 1 ]", "default_model_filename: '../../other/1/model.onnx'"));
    files.model("g", &identity("[ 1 ]", "default_model_filename: '/model.onnx'"));
    let backends = vec![Scripted::backend("identity", |_, _| panic!("the backend is not asked"))];
    let backend_directory = "/no/backends".into();
    let server = Server::start(Options { backends, backend_directory, ..explicit(&files) }).unwrap();
    for (model, expected) in [
        ("m", "instance group m_0 of model m has kind KIND_GPU but server does not support GPUs"),
        ("r", "unable to find backend library 'other.so' for model 'r'"),
        ("p", "library 'model.py' for model 'p', searched: '/no/backends/identity/model.py'"),
        ("f", "default_model_filename '../../other/1/model.onnx' of model 'f' is outside the model's directory"),
        ("g", "default_model_filename '/model.onnx' of model 'g' is outside the model's directory"),
    ] {
        let error = server.load(model, LoadParameters::default()).unwrap_err();
        assert!(error.message.contains(expected), "{error}");
    }
}

#[test]
fn all_models_are_loaded_and_described() {
    let files = Files::new();
    files.model("a", &identity("[ 1 ]", "")).model("b", &identity("[ -1 ]", "max_batch_size: 4"));
    files.write("b/3/.keep", "").write("not_a_model", "");
    let server = Server::start(files.options()).unwrap();
    assert!(server.is_live() && server.is_ready());
    assert_eq!(index(&server), ["a 1 READY", "b 3 READY"]);
    assert!(serves(&server, "a"));
    let metadata = server.model_metadata("b", None).unwrap();
    assert_eq!((metadata.versions, metadata.platform.as_str()), (vec![3], "identity"));
    assert_eq!((metadata.inputs[0].datatype, &metadata.inputs[0].shape[..]), ("FP32", &[-1, -1][..]));
    assert!(to_json(&server.model_config("b", None).unwrap()).contains("\"max_batch_size\":4"));
    for (model, version, code, expected) in [
        ("x", None, Code::NotFound, "Request for unknown model: 'x' is not found"),
        ("b", Some(1), Code::NotFound, "Request for unknown model: 'b' version 1 is not found"),
    ] {
        let error = server.model_ready(model, version).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (code, expected));
    }
    let error = server.statistics("x", None).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (Code::InvalidArgument, "requested model 'x' is not available"));
    let error = server.statistics("b", Some(1)).unwrap_err();
    assert_eq!(error.message, "requested model version is not available for model 'b'");
    let error = server.load("a", LoadParameters::default()).unwrap_err();
    assert_eq!(error.code, Code::Unavailable);
}

#[test]
fn a_model_that_fails_is_an_error_or_an_obstacle() {
    let files = Files::new();
    files.model("good", &identity("[ 1 ]", "")).model("bad", "backend: 'nonsense'");
    let error = Server::start(files.options()).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (Code::Internal, "failed to load all models"));

    let server = Server::start(Options { exit_on_error: false, ..files.options() }).unwrap();
    assert!(server.is_live() && !server.is_ready() && serves(&server, "good"));
    let reason = &index(&server)[0];
    assert!(
        reason.starts_with("bad 1 UNAVAILABLE Invalid argument: unable to find backend library for backend"),
        "{reason}"
    );
    let relaxed = Options { exit_on_error: false, strict_readiness: false, ..files.options() };
    assert!(Server::start(relaxed).unwrap().is_ready());

    let error = Server::start(Options::default()).unwrap_err();
    assert_eq!(error.message, "--model-repository must be specified");
    let nowhere = Options { repositories: vec![files.path().join("nowhere")], ..Options::default() };
    assert!(Server::start(nowhere).unwrap_err().message.starts_with("repository path is not a valid directory"));
}

#[test]
fn an_idle_model_has_ended_when_unload_returns() {
    let files = Files::new();
    files.model("m", &identity("[ 1 ]", ""));
    let server = Server::start(explicit(&files)).unwrap();
    for _ in 0..50 {
        server.load("m", LoadParameters::default()).unwrap();
        server.unload("m", false).unwrap();
        assert_eq!(index(&server), ["m 1 UNAVAILABLE unloaded"]);
        assert!(server.is_ready());
    }
}

#[test]
fn models_are_loaded_and_unloaded_on_request() {
    let files = Files::new();
    files.model("m", &identity("[ 1 ]", ""));
    let server = Server::start(explicit(&files)).unwrap();
    assert_eq!(index(&server), ["m"]);
    server.unload("m", false).unwrap();
    server.load("m", LoadParameters::default()).unwrap();
    assert!(serves(&server, "m"));
    server.unload("m", false).unwrap();
    let error = server.model_metadata("m", None).unwrap_err();
    assert_eq!(error.message, "Request for unknown model: 'm' has no available versions");
    eventually("unloaded", || index(&server) == ["m 1 UNAVAILABLE unloaded"]);
    assert!(server.is_ready(), "an unloaded model is no obstacle");
    server.load("m", LoadParameters::default()).unwrap();
    assert!(serves(&server, "m"));

    let error = server.load("nope", LoadParameters::default()).unwrap_err();
    assert_eq!(
        (error.code, error.message.as_str()),
        (Code::Internal, "failed to load 'nope', failed to poll from model repository")
    );
    for name in ["", "..", "a/b", "../m"] {
        assert_eq!(server.load(name, LoadParameters::default()).unwrap_err().code, Code::InvalidArgument, "{name}");
    }
}

/// An ensemble of one step.
fn ensemble_of(member: &str) -> String {
    format!(
        "platform: 'ensemble' input {{ name: 'IN' data_type: TYPE_FP32 dims: [ 1 ] }}
         output {{ name: 'OUT' data_type: TYPE_FP32 dims: [ 1 ] }}
         ensemble_scheduling {{ step {{ model_name: '{member}' model_version: -1
           input_map {{ key: 'INPUT0' value: 'IN' }} output_map {{ key: 'OUTPUT0' value: 'OUT' }} }} }}"
    )
}

#[test]
fn what_cannot_be_read_is_in_the_index_with_its_reason() {
    let files = Files::new();
    files.model("bad", "max_batch_sise: 3").model("good", &identity("[ 1 ]", ""));
    let is_told = |server: &Server| {
        let entry = index(server).remove(0);
        entry.starts_with("bad UNAVAILABLE Internal: failed to read text proto from ")
            && entry.contains("max_batch_sise")
    };
    let server = Server::start(Options { exit_on_error: false, ..files.options() }).unwrap();
    assert!(is_told(&server), "{:?}", index(&server));
    assert_eq!(server.repository_index(true).unwrap().len(), 1);

    let server = Server::start(explicit(&files)).unwrap();
    assert_eq!(index(&server), ["bad", "good"], "nobody has looked at it");
    assert!(server.load("bad", LoadParameters::default()).is_err());
    assert!(is_told(&server), "{:?}", index(&server));
    files.model("bad", &identity("[ 1 ]", ""));
    server.load("bad", LoadParameters::default()).unwrap();
    assert_eq!(index(&server), ["bad 1 READY", "good"]);
    // What serves goes on when it cannot be read again.
    thread::sleep(Duration::from_millis(5));
    files.model("bad", "max_batch_sise: 3");
    assert!(server.load("bad", LoadParameters::default()).is_err());
    assert_eq!(index(&server), ["bad 1 READY", "good"]);

    files.write("none/config.pbtxt", identity("[ 1 ]", ""));
    assert!(server.load("none", LoadParameters::default()).is_err());
    assert!(index(&server)[2].starts_with("none UNAVAILABLE Invalid argument: at least one version must be available"));
}

#[test]
fn a_missing_member_is_named() {
    let files = Files::new();
    files.model("e", &ensemble_of("m"));
    let server = Server::start(Options { exit_on_error: false, ..files.options() }).unwrap();
    let expected = "e UNAVAILABLE Invalid argument: ensemble e contains models that are not available or ambiguous: m";
    assert_eq!(index(&server), [expected]);

    let server = Server::start(explicit(&files)).unwrap();
    let expected = "failed to poll model 'm', which ensemble 'e' uses: model not found in any model repository.";
    let load = || server.load("e", LoadParameters::default());
    assert_eq!(
        load().unwrap_err().message,
        format!("failed to load 'e', failed to poll from model repository: {expected}")
    );
    assert_eq!(index(&server), [format!("e UNAVAILABLE Not found: {expected}")]);
    files.model("m", &identity("[ 1 ]", ""));
    load().unwrap();
    assert_eq!(index(&server), ["e 1 READY", "m 1 READY"]);
    // It goes with its member, and says why when somebody wants it back.
    server.unload("m", false).unwrap();
    eventually("the ensemble ended", || index(&server)[0].starts_with("e 1 UNAVAILABLE"));
    fs::remove_dir_all(files.path().join("m")).unwrap();
    assert!(load().is_err());
    assert_eq!(index(&server), [format!("e 1 UNAVAILABLE Not found: {expected}")]);
}

#[test]
fn members_of_ensembles_are_names_and_no_paths() {
    let files = Files::new();
    files.model("m", &identity("[ 1 ]", ""));
    let server = Server::start(explicit(&files)).unwrap();
    for (member, is_loaded) in [("m", true), ("./m", false), ("e/../m", false), ("..", false)] {
        files.model("e", &ensemble_of(member));
        let loaded = server.load("e", LoadParameters::default());
        match is_loaded {
            true => loaded.unwrap(),
            false => assert!(loaded.unwrap_err().message.contains("failed to poll from model repository"), "{member}"),
        }
        server.unload("e", true).unwrap();
    }
}

#[test]
fn startup_models_are_those_named() {
    let files = Files::new();
    files.model("a", &identity("[ 1 ]", "")).model("b", &identity("[ 1 ]", ""));
    let start = |names: &[&str]| {
        let startup_models = names.iter().map(|name| name.to_string()).collect();
        Server::start(Options { startup_models, ..explicit(&files) })
    };
    assert_eq!(index(&start(&["b"]).unwrap()), ["a", "b 1 READY"]);
    assert_eq!(index(&start(&["*"]).unwrap()), ["a 1 READY", "b 1 READY"]);
    assert!(start(&["*", "a"]).unwrap_err().message.contains("must be the ONLY startup model"));
    assert_eq!(start(&["x"]).unwrap_err().message, "failed to load all models");
}

#[test]
fn a_failed_reload_keeps_the_old_model_and_a_good_one_replaces_it() {
    let files = Files::new();
    files.model("m", &identity("[ 1 ]", ""));
    let backend = Scripted::backend("identity", |_, batch| echo(batch));
    let server = Server::start(Options { backends: vec![backend], ..explicit(&files) }).unwrap();
    server.load("m", LoadParameters::default()).unwrap();
    thread::sleep(Duration::from_millis(5));
    files.write("m/1/fail", "no weights");
    let error = server.load("m", LoadParameters::default()).unwrap_err();
    assert_eq!(
        (error.code, error.message.as_str()),
        (
            Code::InvalidArgument,
            "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: no weights;\n"
        )
    );
    assert!(serves(&server, "m") && index(&server) == ["m 1 READY"]);
    fs::remove_file(files.path().join("m/1/fail")).unwrap();
    files.write("m/config.pbtxt", identity("[ 2 ]", ""));
    server.load("m", LoadParameters::default()).unwrap();
    assert_eq!(server.model_metadata("m", None).unwrap().inputs[0].shape, [2]);

    // A model that never served shows why.
    files.model("new", &identity("[ 1 ]", "")).write("new/1/fail", "broken");
    assert!(server.load("new", LoadParameters::default()).is_err());
    assert_eq!(index(&server)[1], "new 1 UNAVAILABLE Internal: broken");
    assert!(!server.is_ready());
    fs::remove_file(files.path().join("new/1/fail")).unwrap();
    server.load("new", LoadParameters::default()).unwrap();
    assert!(server.is_ready());
}

#[test]
fn no_request_is_lost_while_models_are_replaced() {
    let files = Files::new();
    files.model("m", &identity("[ 1 ]", "parameters { key: 'execute_delay_ms' value { string_value: '1' } }"));
    let server = Server::start(explicit(&files)).unwrap();
    server.load("m", LoadParameters::default()).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut answered = 0;
                    while !over.load(SeqCst) {
                        assert!(serves(&server, "m"));
                        answered += 1;
                    }
                    answered
                })
            })
            .collect();
        for i in 0..20 {
            files.write("m/1/weights", format!("{i}"));
            thread::sleep(Duration::from_millis(3));
            server.load("m", LoadParameters::default()).unwrap();
        }
        over.store(true, SeqCst);
        assert!(clients.into_iter().all(|client| client.join().unwrap() > 0));
    });
}

#[test]
fn a_new_version_takes_over() {
    let files = Files::new();
    files.model("m", &identity("[ 1 ]", "version_policy { latest { num_versions: 1 } }"));
    let server = Server::start(explicit(&files)).unwrap();
    server.load("m", LoadParameters::default()).unwrap();
    thread::sleep(Duration::from_millis(5));
    files.write("m/2/.keep", "");
    server.load("m", LoadParameters::default()).unwrap();
    eventually("version 1 ended", || index(&server) == ["m 1 UNAVAILABLE unloaded", "m 2 READY"]);
    let error = server.model_ready("m", Some(1)).unwrap_err();
    assert_eq!(
        (error.code, error.message.as_str()),
        (Code::Unavailable, "Request for unknown model: 'm' version 1 is not at ready state")
    );

    files.write("none/config.pbtxt", identity("[ 1 ]", ""));
    let error = server.load("none", LoadParameters::default()).unwrap_err();
    assert_eq!(
        error.message,
        "load failed for model 'none': at least one version must be available under the version policy of model 'none'\n"
    );
    assert!(!server.is_ready());
}

#[test]
fn clients_may_send_configuration_and_files() {
    let files = Files::new();
    files.model("m", &identity("[ 1 ]", ""));
    let server = Server::start(explicit(&files)).unwrap();
    let config = |dims: &str| {
        format!(
            "{{\"backend\":\"identity\",\"input\":[{{\"name\":\"INPUT0\",\"data_type\":\"TYPE_FP32\",\"dims\":{dims}}}],\
             \"output\":[{{\"name\":\"OUTPUT0\",\"data_type\":\"TYPE_FP32\",\"dims\":{dims}}}]}}"
        )
    };
    let shape = || server.model_metadata("m", None).unwrap().inputs[0].shape.clone();
    let load = |config: Option<String>, files: &[(&str, &str)]| {
        let files = files.iter().map(|(name, data)| (name.to_string(), Buffer::copied(data.as_bytes()).unwrap()));
        server.load("m", LoadParameters { config, files: files.collect() })
    };
    load(Some(config("[3]")), &[]).unwrap();
    assert_eq!(shape(), [3]);
    load(None, &[]).unwrap();
    assert_eq!(shape(), [3], "it stays until the repository changes");
    load(Some(config("[4]")), &[("7/model", "x")]).unwrap();
    assert_eq!((shape(), server.model_metadata("m", None).unwrap().versions), (vec![4], vec![7]));
    load(None, &[]).unwrap();
    assert_eq!(server.model_metadata("m", None).unwrap().versions, [1]);
    for (config, files, expected) in [
        (None, &[("1/model", "x")][..], "Load parameter 'config' must be specified for model file override"),
        (Some(config("[1]")), &[("../../evil", "x")], "must stay within model directory"),
        (Some(config("[1]")), &[("/evil", "x")], "must stay within model directory"),
        (Some(config("[1]")), &[("1", "x"), ("1/model", "x")], "directory has been created as a file"),
        (Some("{".into()), &[], "Invalid config override"),
    ] {
        let error = load(config, files).unwrap_err();
        assert!(error.message.starts_with("failed to load 'm', failed to poll from model repository: "), "{error}");
        assert!(error.message.contains(expected), "{error}");
        assert_eq!(shape(), [1]);
    }
}

#[test]
fn a_change_of_instances_alone_keeps_the_model() {
    let files = Files::new();
    let config = |count: u32| identity("[ 1 ]", &format!("instance_group {{ count: {count} kind: KIND_CPU }}"));
    files.model("m", &config(1));
    let server = Server::start(explicit(&files)).unwrap();
    server.load("m", LoadParameters::default()).unwrap();
    assert!(serves(&server, "m"));
    for count in [3, 1, 2] {
        thread::sleep(Duration::from_millis(5));
        files.write("m/config.pbtxt", config(count));
        server.load("m", LoadParameters::default()).unwrap();
        assert!(serves(&server, "m"));
        assert_eq!(server.model_config("m", None).unwrap().instance_group[0].count, count as i32);
    }
    let successes = server.statistics("m", None).unwrap()[0].inference.success.count;
    assert_eq!(successes, 4, "a model loaded anew would count from 0");
}

#[test]
fn polling_finds_what_came_changed_and_went() {
    let files = Files::new();
    files.model("a", &identity("[ 1 ]", ""));
    let interval = Duration::from_millis(10);
    let server = Server::start(Options { control: ControlMode::Poll(interval), ..files.options() }).unwrap();
    files.model("b", &identity("[ 1 ]", ""));
    eventually("b came", || server.model_ready("b", None).is_ok());
    files.write("a/config.pbtxt", identity("[ 2 ]", ""));
    eventually("a changed", || server.model_metadata("a", None).unwrap().inputs[0].shape == [2]);
    files.write("a/config.pbtxt", "nonsense: 1");
    thread::sleep(interval * 5);
    assert_eq!(server.model_metadata("a", None).unwrap().inputs[0].shape, [2], "what cannot be read changes nothing");
    fs::remove_dir_all(files.path().join("b")).unwrap();
    eventually("b went", || server.model_ready("b", None).is_err());
}

#[test]
fn a_model_in_two_repositories_is_served_from_neither_unless_told_apart() {
    let (first, second) = (Files::new(), Files::new());
    first.model("m", &identity("[ 1 ]", "")).model("only", &identity("[ 1 ]", ""));
    second.model("m", &identity("[ 2 ]", ""));
    let options = || Options {
        repositories: vec![first.path().into(), second.path().into()],
        exit_on_error: false,
        ..Options::default()
    };
    let server = Server::start(options()).unwrap();
    assert_eq!(index(&server), ["m UNAVAILABLE model appears in two or more repositories", "only 1 READY"]);
    assert!(!serves(&server, "m") && serves(&server, "only"));

    let server = Server::start(Options { model_namespacing: true, ..options() }).unwrap();
    assert_eq!(server.repository_index(true).unwrap().len(), 3);
    assert!(serves(&server, "only"));
    let error = ask(&server, "m", one()).error();
    assert!(error.message.starts_with("There are 2 identifiers of model 'm'"), "{error}");
}

#[test]
fn different_models_load_at_the_same_time() {
    let files = Files::new();
    for name in ["a", "b", "c"] {
        files.model(name, &identity("[ 1 ]", "parameters { key: 'creation_delay_sec' value { string_value: '1' } }"));
    }
    // One after the other they would take three seconds.
    let start = Instant::now();
    let server = Server::start(files.options()).unwrap();
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert_eq!(index(&server), ["a 1 READY", "b 1 READY", "c 1 READY"]);

    let server = Server::start(explicit(&files)).unwrap();
    let start = Instant::now();
    thread::scope(|scope| {
        for name in ["a", "b", "c", "a"] {
            let server = &server;
            scope.spawn(move || server.load(name, LoadParameters::default()).unwrap());
        }
    });
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[test]
fn a_load_is_tried_again_as_often_as_told() {
    let files = Files::new();
    files.model("m", &identity("[ 1 ]", "")).write("m/1/fail", "not yet");
    let backend = Scripted::backend("identity", |_, batch| echo(batch));
    let options = Options { backends: vec![backend], exit_on_error: false, load_retries: 1_000_000, ..files.options() };
    let fail = files.path().join("m/1/fail");
    let helper = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        fs::remove_file(fail).unwrap();
    });
    assert!(serves(&Server::start(options).unwrap(), "m"));
    helper.join().unwrap();
}

#[test]
fn what_is_not_built_yet_refuses_to_load_and_says_what() {
    let files = Files::new();
    files.model("m", &identity("[ 1 ]", "model_repository_agents { agents { name: 'checksum' } }"));
    let server = Server::start(Options { exit_on_error: false, ..files.options() }).unwrap();
    assert!(index(&server)[0].contains("m 1 UNAVAILABLE Unsupported: model 'm' asks for"), "{:?}", index(&server));
    assert!(index(&server)[0].contains("model_repository_agents"));
}

#[test]
fn a_named_configuration_is_used_where_it_exists() {
    let files = Files::new();
    files.model("a", &identity("[ 1 ]", "")).write("a/configs/wide.pbtxt", identity("[ 5 ]", ""));
    files.model("b", &identity("[ 1 ]", ""));
    let server = Server::start(Options { model_config_name: "wide".into(), ..files.options() }).unwrap();
    let shape = |model: &str| server.model_metadata(model, None).unwrap().inputs[0].shape.clone();
    assert_eq!((shape("a"), shape("b")), (vec![5], vec![1]));
}

#[test]
fn shutting_down_waits_for_requests_and_refuses_new_ones() {
    let files = Files::new();
    files.model("m", &identity("[ 1 ]", "parameters { key: 'execute_delay_ms' value { string_value: '100' } }"));
    let server = Arc::new(Server::start(files.options()).unwrap());
    let running = ask(&server, "m", one());
    let stopping = {
        let server = server.clone();
        thread::spawn(move || server.shutdown(Duration::from_secs(20)))
    };
    eventually("exiting", || !server.is_live());
    assert!(!server.is_ready());
    eventually("refused", || {
        let error = ask(&server, "m", one()).response().error;
        error.is_some_and(|error| error.code == Code::Unavailable || error.code == Code::NotFound)
    });
    assert_eq!(values(&running.outputs()[0].data), [1.0]);
    assert_eq!(stopping.join().unwrap(), Ok(()));
    assert!(server.model_config("m", None).is_err(), "unloaded");
}

#[test]
fn shutting_down_gives_up_after_a_while() {
    let files = Files::new();
    files.model("m", &identity("[ 1 ]", "parameters { key: 'execute_delay_ms' value { string_value: '1500' } }"));
    let server = Server::start(files.options()).unwrap();
    let running = ask(&server, "m", one());
    let error = server.shutdown(Duration::from_millis(10)).unwrap_err();
    assert_eq!(error.message, "Exit timeout expired. Exiting immediately.");
    running.outputs();
}
