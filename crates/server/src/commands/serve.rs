//! `halimede serve`, and `tritonserver`.

use std::{
    io::{self, Write as _},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use halimede_compute::{Precision, packed::Store};
use halimede_compute_cpu::{MatrixUnits, rates};
use halimede_platform::{
    directories,
    service_manager::{self, Progress},
    signals::{SignalListener, end_with_reader, outlive_file_size_limit},
};
use halimede_python_backend::Python;
use halimede_serving::{
    Error, Server,
    backends::{Kept, Onnx, Tuning, Wish},
    config::Tune,
};
use tokio::runtime::Runtime;

use crate::{
    cache, cloud,
    event_loops::{Connections, EventLoops},
    flags::{self, FlagError, Flags, Port},
    grpc, http, idle,
    listen::{self, Endpoint},
    logging::Logging,
    memory::Limit,
    metrics::{self, Metrics},
    rooms::Rooms,
    services::Services,
    shared_memory::Regions,
    summary,
    tls::Tls,
    traces::Tracing,
    tuning::{check_writable, remember},
    ui::Ui,
    units::{self, Choice},
};

/// The service whose clients a server under Triton's name waits for.
const HTTP: &str = "HTTP";

/// Under which name the server was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    /// `halimede serve`: for a person at a desk. Listens on this machine only, and ends when requests are
    /// answered, whoever holds a connection open.
    Halimede,
    /// `tritonserver`: takes the place of another program. Listens where that does, and serves open
    /// connections on until their clients close them or the exit timeout is over.
    Tritonserver,
}

impl Name {
    /// Of models for which nobody said another. Who takes the place of another program gives its numbers.
    fn precision(self) -> Precision {
        match self {
            Name::Halimede => Precision::Balanced,
            Name::Tritonserver => Precision::Exact,
        }
    }

    /// Where nobody said another. Who takes the place of another program refuses nothing that it would not.
    fn memory_limit(self) -> Limit {
        match self {
            Name::Halimede => Limit::Auto,
            Name::Tritonserver => Limit::Off,
        }
    }
}

/// Serves until a signal asks for the end.
pub(crate) fn run(arguments: &[String], name: Name) -> ExitCode {
    let address = match name {
        Name::Halimede => "127.0.0.1",
        Name::Tritonserver => "0.0.0.0",
    };
    let flags = match flags::parse(arguments, address) {
        Ok(flags) => flags,
        Err(FlagError::Help) if name == Name::Halimede => {
            end_with_reader();
            println!("Usage: halimede serve --model-repository DIR [flags]\n{}", flags::usage());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            if let FlagError::Wrong(message) = error {
                eprintln!("{message}");
            }
            match name {
                Name::Halimede => eprintln!("`halimede serve --help` lists the flags."),
                Name::Tritonserver => eprintln!("Usage: tritonserver [options]\n{}", flags::usage()),
            }
            return ExitCode::FAILURE;
        }
    };
    match serve(&flags, name) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // Whatever becomes of it, the status says the same.
            let _ = writeln!(io::stderr(), "error: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The error that a step ended with, as Triton prints it.
fn during(step: &'static str) -> impl Fn(Error) -> String {
    move |error| format!("{step}: {} - {}", error.code.name(), error.message)
}

fn serve(flags: &Flags, name: Name) -> Result<(), String> {
    if !flags.refused.is_empty() {
        return Err(flags.refused.join("\nerror: "));
    }
    // A log, or a file of traces, that may not grow is no reason to end.
    outlive_file_size_limit();
    let logging = Logging::new(&flags.log).map_err(|error| format!("cannot write '{}': {error}", flags.log.file))?;
    let logging = Arc::new(logging);
    logging.install();
    flags.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    if std::env::var_os("AIP_MODE").is_some_and(|mode| mode == "PREDICTION") {
        // Without a flag, so that nothing is refused.
        tracing::warn!(
            "AIP_MODE=PREDICTION, by which Triton begins to serve Vertex AI, has no effect: this server answers at its own ports alone"
        );
    }
    // Every connection is a file; the default limit is made for programs without any.
    if let Err(error) = halimede_platform::limits::raise_open_files() {
        tracing::warn!("{error}");
    }

    // Requests and answers of a few mebibytes, again and again; more threads than processors are never at work.
    halimede_platform::memory::keep_freed_blocks(4 << 20, 8 << 20, halimede_platform::threads::parallelism());

    let signals = SignalListener::install().map_err(|error| error.to_string())?;
    let loops = event_loops(flags)?;
    let runtime = loops.first();
    let endpoints = runtime.block_on(Endpoints::bind(flags))?;

    let tls = Tls::new(&flags.grpc.tls, "grpc", b"h2").and_then(|grpc| {
        let http = Tls::new(&flags.http.tls, "http", b"http/1.1")?;
        Ok(PortTls { grpc, http })
    })?;

    let tracing = Tracing::new(&flags.trace)?;

    let matrix = units::matrix_units(flags.matrix);
    let python = Arc::new(Python::new(runtime.handle().clone()));
    let mut options = options(flags, flags.precision.unwrap_or(name.precision()), &matrix, python.clone())?;
    options.memory = flags.memory_limit.unwrap_or(name.memory_limit()).of_server();
    options.remote_repositories =
        cloud::open(&flags.cloud_repositories, runtime.handle()).map_err(during("creating server"))?;
    let server = until_told(&signals, &python, || Server::start_and_tell(options, summary::models));
    // Whatever has not ended in time is not waited for.
    let server = server.inspect_err(|_| python.kill_processes()).map_err(during("creating server"))?;
    summary::options(&server, flags);
    let server = Arc::new(server);
    let services = Arc::new(Services {
        server: server.clone(),
        regions: Regions::new(flags.client_shared_memory),
        logging,
        tracing,
        ui: Ui::new(flags.http.allow_ui, matrix),
        rooms: Rooms::default(),
        http_input_bytes_max: flags.http.input_bytes_max,
        http_body_bytes_max: flags.http.body_bytes_max,
        http_restrictions: flags.http.restrictions.clone(),
        http_forward_headers: flags.http.forward_headers.clone(),
        grpc_forward_headers: flags.grpc.forward_headers.clone(),
    });
    let listening = {
        let _context = runtime.enter();
        endpoints.open(flags, &services, tls, loops.connections())
    };
    let listening = listening
        .inspect_err(|_| {
            server.clone().end();
            python.kill_processes();
        })
        .map_err(during("starting services"))?;
    runtime.spawn(idle::release_memory(Arc::downgrade(&server)));
    tell(Progress::Ready("Serving"));

    let signal = signals.wait().map_err(|error| error.to_string())?;
    say(&format!("Signal ({}) received.", signal.number()));
    tell(Progress::Stopping);
    let deadline = Instant::now() + flags.exit_timeout;
    listening.close();
    for (service, count) in listening.open_connections() {
        let seconds = flags.exit_timeout.as_secs();
        tracing::info!("Timeout {seconds}: Found {count} {service} service connections and inference handlers");
    }
    if name == Name::Tritonserver {
        wait_for_clients(&signals, deadline, &python, &listening);
    }
    let ended = end(&signals, deadline, &python, &server, runtime, listening);
    services.tracing.end(deadline.saturating_duration_since(Instant::now()).max(Duration::from_secs(1)));
    ended
}

/// What a server is made with; models compute in `precision` where nobody said another, and `python` runs Python models.
pub(super) fn options(
    flags: &Flags,
    precision: Precision,
    matrix: &MatrixUnits,
    python: Arc<Python>,
) -> Result<halimede_serving::Options, String> {
    let mut options = flags.server_options();
    // No more threads than cores: they would only take turns.
    let cores = halimede_platform::threads::parallelism();
    let matrix = matrix.clone();
    let unit = move |Wish { threads, matrix: may_be_used }: Wish, choices| {
        let threads = threads.map(|count| count.min(cores));
        let matrix = if may_be_used { matrix.clone() } else { units::matrix_units(false) };
        units::find("cpu", Choice { threads, matrix, choices, ..Choice::default() }).map(Arc::from)
    };
    let kept = Kept {
        verdicts: directories::cache().map(|cache| cache.join("precision")),
        packed: flags.packed_weights.path("packed").map(|folder| Store::new(folder, flags.packed_weights_bytes_max)),
        choices: flags.tuning_database.read_or_warn(flags.matrix, &|warning| tracing::warn!("{warning}")),
    };
    options.backends.push(Arc::new(Onnx::new(precision, kept, tuning(flags)?, unit)));
    options.backends.push(python);
    options.cache = cache::from_settings(&flags.caches).map_err(during("creating server"))?;
    Ok(options)
}

/// How models are tuned, where there is a place to remember what is found.
fn tuning(flags: &Flags) -> Result<Option<Tuning>, String> {
    let by_default = flags.tune == Tune::Background;
    let file = flags.tuning_database.file();
    if by_default {
        let file = file
            .as_ref()
            .ok_or("--tune=background: no place for what is found: name one with --tuning-database FILE")?;
        check_writable(file)?;
    }
    Ok(file.map(|file| Tuning {
        by_default,
        budget: flags.tune_time,
        probe: rates::probe,
        remember: remember(file, flags.matrix),
    }))
}

/// Does what comes before anything is served. A signal meanwhile ends the process at once: models may take long to load, and
/// nobody's request is lost.
fn until_told<R>(signals: &SignalListener, python: &Python, work: impl FnOnce() -> R) -> R {
    const LOOK_INTERVAL: Duration = Duration::from_millis(50);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while !is_done.load(SeqCst) {
                if let Ok(Some(signal)) = signals.next() {
                    python.kill_processes();
                    say(&format!("Signal ({}) received. Exiting before all models are loaded.", signal.number()));
                    std::process::exit(0);
                }
                std::thread::park_timeout(LOOK_INTERVAL);
            }
        });
        // Also where the work panics: the scope waits for the thread.
        let result = catch_unwind(AssertUnwindSafe(work));
        is_done.store(true, SeqCst);
        watch.thread().unpark();
        result.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Serves open HTTP connections on until their clients close them, as Triton does.
fn wait_for_clients(signals: &SignalListener, deadline: Instant, python: &Python, listening: &listen::Services) {
    while listening.open_connections().any(|(service, _)| service == HTTP) && Instant::now() < deadline {
        if let Ok(Some(signal)) = signals.next() {
            give_up(python, &format!("Signal ({}) received again. Exiting immediately.", signal.number()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The threads that serve connections, of which the first listens to processes too.
pub(super) fn event_loops(flags: &Flags) -> Result<EventLoops, String> {
    let cores = halimede_platform::threads::parallelism();
    EventLoops::start(flags.http.threads.min(cores)).map_err(|error| format!("cannot start threads: {error}"))
}

/// What the ports are encrypted with.
struct PortTls {
    grpc: Tls,
    http: Tls,
}

/// The sockets of all services that are allowed.
struct Endpoints {
    http: Option<Endpoint>,
    grpc: Option<Endpoint>,
    metrics: Option<Endpoint>,
}

impl Endpoints {
    async fn bind(flags: &Flags) -> Result<Self, String> {
        let Flags { http, grpc, metrics, .. } = flags;
        let endpoint = async |is_allowed: bool, address: &str, port: Port, reuse_port: bool| match is_allowed {
            true => Endpoint::bind(address, port.number()?, reuse_port).await.map(Some),
            false => Ok(None),
        };
        Ok(Self {
            grpc: endpoint(grpc.allow, flags.grpc_address(), grpc.port, grpc.reuse_port)
                .await
                .map_err(during("failed to start GRPC service"))?,
            http: endpoint(http.allow, flags.http_address(), http.port, http.reuse_port)
                .await
                .map_err(during("failed to start HTTP service"))?,
            metrics: endpoint(metrics.allow, flags.metrics_address(), metrics.port, false)
                .await
                .map_err(during("failed to start Metrics service"))?,
        })
    }

    fn open(
        self,
        flags: &Flags,
        services: &Arc<Services>,
        tls: PortTls,
        places: Connections,
    ) -> Result<listen::Services, Error> {
        let mut listening = listen::Services::new(places);
        if let Some(endpoint) = self.grpc {
            let (listener, address) = endpoint.listen()?;
            let (routes, settings) = (grpc::Routes::new(services, &flags.grpc), grpc::Settings::new(&flags.grpc));
            listening.spawn("gRPC", listener, move |stream, stop| {
                let (tls, routes, settings) = (tls.grpc.clone(), routes.clone(), settings.clone());
                tls.serve(stream, stop, move |stream, stop| grpc::serve_connection(stream, routes, settings, stop))
            });
            tracing::info!("Started GRPCInferenceService at {address}");
        }
        if let Some(endpoint) = self.http {
            let (listener, address) = endpoint.listen()?;
            let services = services.clone();
            listening.spawn(HTTP, listener, move |stream, stop| {
                let (tls, services) = (tls.http.clone(), services.clone());
                tls.serve(stream, stop, move |stream, stop| http::serve_connection(stream, services, stop))
            });
            tracing::info!("Started HTTPService at {address}");
        }
        if let Some(endpoint) = self.metrics {
            let (listener, address) = endpoint.listen()?;
            let interval = flags.metrics.allow_cpu.then_some(flags.metrics.interval);
            let metrics = Arc::new(Metrics::new(services.clone(), flags.pinned_pool_bytes, interval));
            listening.spawn("metrics", listener, move |stream, stop| {
                metrics::serve_connection(stream, metrics.clone(), stop)
            });
            tracing::info!("Started Metrics Service at {address}");
        }
        Ok(listening)
    }
}

/// Tells the service manager how far the server is. One that cannot be told is no reason not to serve.
fn tell(progress: Progress<'_>) {
    if let Err(error) = service_manager::tell(progress) {
        tracing::warn!("{error}");
    }
}

/// How long connections may take to end before models refuse what comes over them.
const LINGER: Duration = Duration::from_secs(1);

/// How much longer than its time the end may take before it is given up: a model that is being loaded listens to nobody.
const OVERTIME: Duration = Duration::from_secs(1);

/// Answers what is in flight, unloads the models and ends the connections; gives up at `deadline`.
fn end(
    signals: &SignalListener,
    deadline: Instant,
    python: &Python,
    server: &Arc<Server>,
    runtime: &Runtime,
    listening: listen::Services,
) -> Result<(), String> {
    tracing::info!("Waiting for in-flight requests to complete.");
    listening.stop();
    let given_up = || {
        if let Ok(Some(signal)) = signals.next() {
            give_up(python, &format!("Signal ({}) received again. Exiting immediately.", signal.number()));
        }
    };
    // What was sent before its connection heard of the end still has its model. Connections without a request are gone at
    // once; those of streams may stay.
    let linger = deadline.min(Instant::now() + LINGER);
    while listening.open_connections().next().is_some() && Instant::now() < linger {
        given_up();
        std::thread::sleep(Duration::from_millis(2));
    }
    let timeout = deadline.saturating_duration_since(Instant::now());
    let (sender, ended) = std::sync::mpsc::channel();
    let draining = server.clone();
    let drain = move || {
        let done = draining.shutdown(timeout);
        // The process ends when it has heard: what the server has to remove must be gone by then.
        drop(draining);
        // Nobody listens any more only if a second signal ended the wait.
        let _ = sender.send(done);
    };
    std::thread::Builder::new().name("shutdown".to_owned()).spawn(drain).map_err(|error| error.to_string())?;
    loop {
        match ended.recv_timeout(Duration::from_millis(2)) {
            Ok(Ok(())) => break,
            Ok(Err(error)) => give_up(python, &error.message),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) if Instant::now() > deadline + OVERTIME => {
                give_up(python, "Exit timeout expired. Exiting immediately.");
            }
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => give_up(python, "the models could not be unloaded"),
        }
        given_up();
    }
    // Replies that are still on their way; clients that hold a connection open without a request are not
    // waited for.
    let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(5));
    let _ = runtime.block_on(async { tokio::time::timeout(left, listening.ended()).await });
    Ok(())
}

/// Ends the process although models still run: nothing could be joined. Their processes end with it, also those that do not listen.
fn give_up(python: &Python, message: &str) -> ! {
    python.kill_processes();
    say(message);
    std::process::exit(1)
}

/// Prints a line. Where the output takes no more, as a file at the limit of its size, that is no reason not to end in order.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Arguments of `halimede serve`, which are tritonserver's flags.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Flags of tritonserver, such as --model-repository DIR; --help lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
    pub flags: Vec<String>,
}

/// The name behind which `path` starts the server, if it is that of `tritonserver`.
pub(crate) fn is_tritonserver(path: &str) -> bool {
    PathBuf::from(path).file_name().is_some_and(|name| name == "tritonserver")
}
