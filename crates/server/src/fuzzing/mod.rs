//! What the fuzz targets run: one function for each kind of bytes that come from outside.
//!
//! `fuzz/` gives these functions bytes that libFuzzer makes; the test `fuzz_inputs` gives them the seeds
//! and all inputs that once failed. See `docs/testing.md`.

mod grpc;
mod http;
mod model;
mod shared_memory;

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use halimede_compute::ComputeUnit;
use halimede_compute_cpu::{CpuOptions, CpuUnit};
use halimede_serving::{Options, Server, config};
use tokio::runtime::Runtime;

use crate::{
    flags::Flags, logging::Logging, restricted::Restrictions, rooms::Rooms, services::Services, shared_memory::Regions,
    traces::Tracing,
};

/// What runs on bytes from outside, made once.
pub struct Fuzzing {
    services: Arc<Services>,
    runtime: Runtime,
    unit: Box<dyn ComputeUnit>,
    memory: shared_memory::Object,
    repository: PathBuf,
}

/// Memory that a model may take.
const MODEL_BYTES_MAX: usize = 16 << 20;

/// The models that requests can ask for: of the backend that gives back what it is given.
const MODELS: [(&str, &str, &str); 3] =
    [("floats", "TYPE_FP32", "max_batch_size: 8"), ("strings", "TYPE_STRING", ""), ("ints", "TYPE_INT64", "")];

impl Fuzzing {
    /// Names of the targets.
    pub const TARGETS: [&'static str; 5] = ["onnx", "config", "http", "grpc", "shared_memory"];

    /// A server with a few models, in a folder of its own.
    ///
    /// # Errors
    /// The folder or the server could not be made.
    pub fn new() -> Result<Self, Box<dyn std::error::Error>> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("halimede-fuzz-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let repository = std::env::temp_dir().join(&name);
        for (model, datatype, more) in MODELS {
            fs::create_dir_all(repository.join(model).join("1"))?;
            let io = format!("{{ name: 'X' data_type: {datatype} dims: [ -1 ] }}");
            let text = format!("backend: 'identity' input {io} output {} {more}", io.replace("'X'", "'Y'"));
            fs::write(
                repository.join(model).join("config.pbtxt"),
                text.replace("'X'", "'INPUT0'").replace("'Y'", "'OUTPUT0'"),
            )?;
        }
        let flags = Flags::new("127.0.0.1");
        let server = Server::start(Options { repositories: vec![repository.clone()], ..flags.server_options() })
            .map_err(|error| error.message)?;
        let regions = Regions::new(true);
        let memory = shared_memory::Object::new(&name)?;
        regions.register("region", memory.key(), 16, 1000).map_err(|error| error.message)?;
        let services = Services {
            rooms: Rooms::default(),
            server: Arc::new(server),
            regions,
            logging: Arc::new(Logging::new(&flags.log)?),
            ui: crate::ui::Ui::default(),
            tracing: Tracing::new(&flags.trace)?,
            http_input_bytes_max: 1 << 20,
            http_body_bytes_max: 1 << 20,
            http_restrictions: Restrictions::default(),
            http_forward_headers: Some(regex::Regex::new("^x-")?),
            grpc_forward_headers: None,
        };
        let options = CpuOptions { threads: Some(1), bytes_max: Some(MODEL_BYTES_MAX), ..CpuOptions::default() };
        Ok(Self {
            services: Arc::new(services),
            runtime: tokio::runtime::Builder::new_current_thread().build()?,
            unit: Box::new(CpuUnit::new(&options)),
            memory,
            repository,
        })
    }

    /// Gives `bytes` to the target `name`; whether they were taken, not refused. A panic is a finding.
    ///
    /// # Panics
    /// There is no such target, or `bytes` show a fault.
    pub fn run(&self, name: &str, bytes: &[u8]) -> bool {
        match name {
            "onnx" => model::run(&*self.unit, bytes),
            "config" => configuration(bytes),
            "http" => self.runtime.block_on(http::run(&self.services, bytes)),
            "grpc" => self.runtime.block_on(grpc::run(&self.services, bytes)),
            "shared_memory" => self.memory.run(bytes),
            other => panic!("no fuzz target '{other}'; there are: {}", Self::TARGETS.join(", ")),
        }
    }
}

impl Drop for Fuzzing {
    fn drop(&mut self) {
        // A folder that stays is in nobody's way.
        let _ = fs::remove_dir_all(&self.repository);
    }
}

/// Reads a configuration as text and as JSON; what was read survives being printed and read again.
fn configuration(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let mut is_taken = false;
    let parsed = config::parse(text, "config.pbtxt".as_ref());
    for config in [parsed, config::parse_json(text)].into_iter().flatten() {
        let printed = config::to_json(&config);
        let again = config::parse_json(&printed).expect("what is printed can be read");
        assert_eq!(config::to_json(&again), printed);
        let options = config::Options::default();
        // Either answer is right.
        let _ = config::finish_without_model(config.clone(), &options);
        let _ = config::validate(&config);
        is_taken = true;
    }
    is_taken
}
