use std::time::Duration;

use halimede_serving::rate_limiter::{Available, Device};

use super::{Control, FlagError, Flags, Port, parse, usage};

fn flags(arguments: &[&str]) -> Result<Flags, FlagError> {
    let arguments: Vec<String> = arguments.iter().map(|argument| argument.to_string()).collect();
    parse(&arguments, "127.0.0.1")
}

#[test]
fn metrics_listen_where_http_does() {
    let address = |arguments: &[&str]| flags(arguments).unwrap().metrics_address().to_owned();
    let repository = "--model-repository=.";
    assert_eq!(address(&[repository]), "127.0.0.1");
    assert_eq!(address(&[repository, "--http-address=::1"]), "::1");
    assert_eq!(address(&[repository, "--http-address=::1", "--metrics-address=127.0.0.2"]), "127.0.0.2");
    assert_eq!(address(&[repository, "--http-address", "-47", "--allow-http=0"]), "127.0.0.1");
}

#[test]
fn both_forms_switches_and_repetition() {
    let read = flags(&[
        "--model-repository=/a",
        "--model-store",
        "/b",
        "--http-port",
        "1",
        "--strict-readiness=OFF",
        "--exit-on-error=0",
        "--model-control-mode=EXPLICIT",
        "--load-model=x",
        "--load-model=y",
        "--disable-auto-complete-config",
        "--log-verbose=true",
        "--grpc-keepalive-time=100",
        "--backend-config=default-max-batch-size=8",
        "--backend-config=onnxruntime,threads=2",
        "--metrics-config=summary_quantiles=0.5:0.1,0.9:0.01",
        "--metrics-addr=1.2.3.4",
        "--cache-config=redis,host=a",
        "--cache-config=redis,password=a=,b",
    ])
    .unwrap();
    let traced = flags(&[
        "--trace-config=level=TIMESTAMPS",
        "--trace-config",
        "level=tensors",
        "--trace-config=rate=5",
        "--trace-config=triton,file=a=b,c",
        "--trace-config=triton,log-frequency=7",
        "--trace-count=9",
    ]);
    let values = traced.unwrap().trace.values();
    assert_eq!((values.level.names(), values.rate, values.count), (vec!["TIMESTAMPS", "TENSORS"], 5, 9));
    assert_eq!((values.file.as_str(), values.log_frequency), ("a=b,c", 7));
    let off = flags(&["--trace-level=OFF", "--trace-config=level=TIMESTAMPS"]).unwrap();
    assert!(!off.trace.values().level.is_on());
    assert_eq!(read.caches["redis"]["host"], "a");
    assert_eq!(read.caches["redis"]["password"], "a=,b");
    assert_eq!(flags(&["--response-cache-byte-size=5"]).unwrap().caches["local"]["size"], "5");
    assert_eq!(read.repositories, ["/a", "/b"].map(std::path::PathBuf::from));
    assert_eq!((read.http.port, read.strict_readiness, read.exit_on_error), (Port::Number(1), false, false));
    assert_eq!((read.control, read.startup_models.len()), (Control::Explicit, 2));
    assert_eq!((read.auto_complete_config, read.log.verbose), (false, 1));
    assert_eq!(read.grpc.keepalive_time, Duration::from_millis(100));
    assert_eq!(read.backend_settings["onnxruntime"]["threads"], "2");
    assert_eq!(read.backend_settings[""]["default-max-batch-size"], "8");
    assert_eq!(read.metrics.options.summary_quantiles, [(0.5, 0.1), (0.9, 0.01)]);
    assert_eq!((read.metrics_address(), read.http_address()), ("1.2.3.4", "127.0.0.1"));
}

#[test]
fn settings_of_backends_are_checked_and_those_that_nobody_reads_are_told() {
    for (value, min) in [
        ("default-max-batch-size=-1", 0),
        ("onnxruntime,default-max-batch-size=-1", 0),
        ("python,shm-default-byte-size=1048575", 1 << 20),
        ("python,shm-growth-byte-size=0", 1),
        ("python,thread-pool-size=0", 1),
        ("python,stub-timeout-seconds=0", 1),
    ] {
        let (name, number) = value.rsplit_once('=').unwrap();
        let expected = format!(
            "Bad option: \"--backend-config\".\n--backend-config {name} can't be smaller than {min}. Got {number}"
        );
        let with = |value: &str| flags(&[&format!("--backend-config={value}")]);
        assert_eq!(with(value).unwrap_err(), FlagError::Wrong(expected));
        assert!(matches!(with(&format!("{name}=x")), Err(FlagError::Wrong(text)) if text.contains(name)), "{name}");
        with(&format!("{name}={min}")).unwrap();
    }
    let warnings = |value: &str| flags(&[&format!("--backend-config={value}")]).unwrap().warnings;
    for value in ["python,shm-growth-byte-size=1", "python,interpretr=x", "onnxruntime,threads=2", "no-such=1"] {
        let told = warnings(value).remove(0);
        assert!(told.starts_with(&format!("--backend-config={value} has no effect: ")), "{told}");
    }
    for value in ["python,interpreter=x", "python,prints=stderr", "default-max-batch-size=8", "mine,whatever=1"] {
        assert!(warnings(value).is_empty(), "{value}");
    }
}

#[test]
fn wrong_flags_say_what_is_wrong() {
    for (arguments, expected) in [
        (&["--nope"][..], "unrecognized option '--nope'"),
        (&["--grpc"], "option '--grpc' is ambiguous"),
        (&["stray"], "Unexpected argument: stray"),
        (&["--http-port"], "option '--http-port' requires an argument"),
        (&["--http-port=abc"], "Bad option: \"--http-port\".\nInvalid option value. Got abc"),
        (
            &["--http-port=3000000000"],
            "Bad option: \"--http-port\".\nProvided option value is out of bound. Got 3000000000",
        ),
        (&["--allow-http=yes"], "Bad option: \"--allow-http\".\ninvalid value for bool option: yes"),
        (
            &["--model-control-mode=x"],
            "Bad option: \"--model-control-mode\".\ninvalid argument for --model-control-mode",
        ),
        (&["--load-model=a"], "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."),
        (&["--http-restricted-api=nope:k=v"], "Bad option: \"--http-restricted-api\".\nunknown restricted api 'nope' "),
        (
            &["--grpc-restricted-protocol=trace:k=v", "--grpc-restricted-protocol=trace:k=w"],
            "Bad option: \"--grpc-restricted-protocol\".\nrestricted protocol 'trace' can not be specified in multiple \
             config groups",
        ),
        (
            &["--cache-config=size=1"],
            "Bad option: \"--cache-config\".\nNo cache specified. --cache-config option format is <cache \
             name>,<setting>=<value>. Got size=1\n",
        ),
        (
            &["--cache-config=local,size"],
            "Bad option: \"--cache-config\".\n--cache-config option format is '<cache name>,<setting>=<value>'. Got \
             local,size\n",
        ),
        (
            &["--cache-config=local,size=1", "--response-cache-byte-size=1"],
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one \
             or the other.",
        ),
        (&["--trace-config=level=NOPE"], "Bad option: \"--trace-config\".\ninvalid value for trace level option: nope"),
        (
            &["--trace-config=count=-2"],
            "Bad option: \"--trace-config\".\nthe count of traces is 0 or more, or -1 for any number. Got -2",
        ),
        (&["--trace-config=rate=x"], "Bad option: \"--trace-config\".\nInvalid option value. Got x"),
        (
            &["--rate-limit-resource=:1"],
            "Bad option: \"--rate-limit-resource\".\n--rate-limit-resource needs the name of a resource. Got :1",
        ),
        (
            &["--rate-limit-resource=R:1:-2"],
            "Bad option: \"--rate-limit-resource\".\n--rate-limit-resource R must have a device of 0 or more, or -1 for \
             each. Got R:1:-2",
        ),
        (
            &["--backend-config=python,shm-default-byte-size=abc"],
            "Bad option: \"--backend-config\".\n--backend-config python,shm-default-byte-size: Invalid option value. Got \
             abc",
        ),
    ] {
        assert_eq!(flags(arguments).unwrap_err(), FlagError::Wrong(expected.to_owned()));
    }
    assert_eq!(flags(&["--help"]).unwrap_err(), FlagError::Help);
}

#[test]
fn old_flags_say_what_to_use_in_tritons_words() {
    let traces = " and will be removed in future releases. Please use '--trace-config";
    for (flag, expected) in [
        ("--strict-model-config=true", "! Please use '--disable-auto-complete-config' instead.".to_owned()),
        ("--trace-file=t.json", format!("{traces} triton,file=<filepath> instead.")),
        ("--trace-level=OFF", format!("{traces} level=<OFF|TIMESTAMPS|TENSORS> instead.")),
        ("--trace-rate=2", format!("{traces} rate=<rate value> instead.")),
        ("--trace-count=2", format!("{traces} count=<count value> instead.")),
        ("--trace-log-frequency=2", format!("{traces} triton,log-frequency=<log frequency value> instead.")),
    ] {
        let name = flag.split('=').next().unwrap();
        assert_eq!(flags(&[flag]).unwrap().warnings, [format!("Warning: '{name}' has been deprecated{expected}")]);
    }
    let cache = flags(&["--response-cache-byte-size=5"]).unwrap().warnings.remove(0);
    assert!(cache.ends_with("'--cache-config=local,size=5'"), "{cache}");
}

#[test]
fn what_protects_is_refused_and_what_is_harmless_is_not() {
    for flag in ["--model-repository=hdfs://bucket/models", "--allow-sagemaker=true", "--allow-vertex-ai=1"] {
        assert_eq!(flags(&[flag]).unwrap().refused.len(), 1, "{flag}");
    }
    let read = flags(&["--trace-config=opentelemetry,nothing=1"]).unwrap();
    assert_eq!((read.refused.len(), read.warnings.len()), (0, 1));
    assert!(flags(&["--allow-sagemaker=false"]).unwrap().refused.is_empty());
}

#[test]
fn resources_of_the_rate_limiter() {
    let limit = |arguments: &[&str]| flags(arguments).map(|flags| flags.server_options().rate_limit);
    assert_eq!(limit(&["--rate-limit=off", "--rate-limit-resource=R1:1"]), Ok(None));
    let mut available = Available::default();
    available.add("R1", 4, Device::Each);
    available.add("R1", 9, Device::Number(0));
    let all = ["--rate-limit=Execution_Count", "--rate-limit-resource=R1:4", "--rate-limit-resource=R1:9:0"];
    assert_eq!(limit(&all), Ok(Some(available)));
    for (wrong, why) in [
        (
            "R1",
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. Got R1",
        ),
        ("R1:-1", "--rate-limit-resource R1 must have a count of 0 or more. Got R1:-1"),
    ] {
        let expected = format!("Bad option: \"--rate-limit-resource\".\n{why}");
        assert_eq!(limit(&[&format!("--rate-limit-resource={wrong}")]), Err(FlagError::Wrong(expected)));
    }
    let expected = "Bad option: \"--rate-limit\".\ninvalid argument for --rate-limit";
    assert_eq!(limit(&["--rate-limit=sometimes"]), Err(FlagError::Wrong(expected.to_owned())));
}

#[test]
fn usage_names_every_flag_once() {
    let text = usage();
    for flag in super::table::FLAGS {
        let count = text.lines().filter(|line| line.split_whitespace().next() == Some(&format!("--{}", flag.name)));
        assert_eq!(count.count(), 1, "{}", flag.name);
    }
}
