//! The one list of flags.

use crate::{restricted, source::Source};

use super::{
    Flags,
    effects::{compression, control, log_format, not_empty, pair, positive, real, set},
    values::{level, milliseconds, number, pattern, port, seconds, setting, switch},
};

/// One flag.
pub(super) struct Flag {
    /// The heading under which the usage shows it.
    pub group: &'static str,
    pub name: &'static str,
    /// What the value looks like; empty for a flag that has none.
    pub value: &'static str,
    pub help: &'static str,
    /// Takes the value.
    pub set: fn(&mut Flags, &str) -> Result<(), String>,
}

/// All flags, as the usage shows them.
pub(super) const FLAGS: &[Flag] = &[
    Flag { group: "General", name: "help", value: "", help: "Print this text.", set: |_, _| Ok(()) },
    Flag {
        group: "General",
        name: "id",
        value: "string",
        help: "Name of this server in its metadata. Default: triton.",
        set: |flags, value| set(&mut flags.id, Ok(value.to_owned())),
    },
    Flag {
        group: "General",
        name: "exit-timeout-secs",
        value: "integer",
        help: "How long to wait at the end for requests in flight. Default: 30.",
        set: |flags, value| set(&mut flags.exit_timeout, seconds(value)),
    },
    Flag {
        group: "Model repository",
        name: "model-repository",
        value: "path",
        help: "Directory with one directory per model, or s3://, gs:// or as:// in a build with the feature cloud-repositories. May be given several times; a model that is in two of them is not served.",
        set: |flags, value| {
            flags.add_repository(value);
            Ok(())
        },
    },
    Flag {
        group: "Model repository",
        name: "model-store",
        value: "path",
        help: "The same as --model-repository.",
        set: |flags, value| {
            flags.add_repository(value);
            Ok(())
        },
    },
    Flag {
        group: "Model repository",
        name: "exit-on-error",
        value: "boolean",
        help: "Whether a model that fails to load ends the server. Default: true.",
        set: |flags, value| set(&mut flags.exit_on_error, switch(value)),
    },
    Flag {
        group: "Model repository",
        name: "disable-auto-complete-config",
        value: "",
        help: "Take configurations as they are: nothing is read from the model.",
        set: |flags, _| set(&mut flags.auto_complete_config, Ok(false)),
    },
    Flag {
        group: "Model repository",
        name: "strict-readiness",
        value: "boolean",
        help: "Whether the server counts as ready only while every model is. Default: true.",
        set: |flags, value| set(&mut flags.strict_readiness, switch(value)),
    },
    Flag {
        group: "Model repository",
        name: "model-control-mode",
        value: "string",
        help: "Who decides which models are loaded: none (all at the start), poll (all, and changes in the repository are followed), explicit (clients). Default: none.",
        set: |flags, value| set(&mut flags.control, control(value)),
    },
    Flag {
        group: "Model repository",
        name: "repository-poll-secs",
        value: "integer",
        help: "Time between two looks at the repository in mode poll; 0: none but the first. Default: 15.",
        set: |flags, value| set(&mut flags.poll_interval, seconds(value)),
    },
    Flag {
        group: "Model repository",
        name: "load-model",
        value: "string",
        help: "Model to load at the start in mode explicit; * alone means all. May be given several times.",
        set: |flags, value| {
            flags.startup_models.push(value.to_owned());
            Ok(())
        },
    },
    Flag {
        group: "Model repository",
        name: "model-config-name",
        value: "string",
        help: "Use configs/NAME.pbtxt of a model where it exists instead of config.pbtxt.",
        set: |flags, value| set(&mut flags.model_config_name, not_empty(value)),
    },
    Flag {
        group: "Model repository",
        name: "model-load-thread-count",
        value: "integer",
        help: "Models that may load at once. Default: 4.",
        set: |flags, value| set(&mut flags.load_threads, number::<u32>(value).map(|count| count.max(1) as usize)),
    },
    Flag {
        group: "Model repository",
        name: "model-load-retry-count",
        value: "integer",
        help: "How often a failed load is tried again. Default: 0.",
        set: |flags, value| set(&mut flags.load_retries, number(value)),
    },
    Flag {
        group: "Model repository",
        name: "model-namespacing",
        value: "boolean",
        help: "Whether models in different repositories may have the same name. Default: false.",
        set: |flags, value| set(&mut flags.model_namespacing, switch(value)),
    },
    Flag {
        group: "Model repository",
        name: "enable-peer-access",
        value: "boolean",
        help: "Accepted; there is no peer access between devices here.",
        set: |_, value| switch(value).map(drop),
    },
    Flag {
        group: "HTTP",
        name: "allow-http",
        value: "boolean",
        help: "Whether to serve HTTP. Default: true.",
        set: |flags, value| set(&mut flags.http.allow, switch(value)),
    },
    Flag {
        group: "HTTP",
        name: "allow-ui",
        value: "boolean",
        help: "Whether there is a page for people at /ui. Its data can be restricted as 'ui'. Default: true.",
        set: |flags, value| set(&mut flags.http.allow_ui, switch(value)),
    },
    Flag {
        group: "HTTP",
        name: "http-address",
        value: "string",
        help: "Address for HTTP. Default: 127.0.0.1, and 0.0.0.0 when started as tritonserver.",
        set: |flags, value| set(&mut flags.http.address, Ok(Some(value.to_owned()))),
    },
    Flag {
        group: "HTTP",
        name: "http-port",
        value: "integer",
        help: "Port for HTTP. Default: 8000.",
        set: |flags, value| set(&mut flags.http.port, port(value)),
    },
    Flag {
        group: "HTTP",
        name: "reuse-http-port",
        value: "boolean",
        help: "Whether several servers may listen on the port. Default: false.",
        set: |flags, value| set(&mut flags.http.reuse_port, switch(value)),
    },
    Flag {
        group: "HTTP",
        name: "http-header-forward-pattern",
        value: "string",
        help: "Headers whose names match this regular expression become parameters of the request.",
        set: |flags, value| set(&mut flags.http.forward_headers, pattern(value)),
    },
    Flag {
        group: "HTTP",
        name: "http-thread-count",
        value: "integer",
        help: "Most threads that serve connections, over HTTP and gRPC; there are never more than cores. Default: 8.",
        set: |flags, value| set(&mut flags.http.threads, number::<u32>(value).map(|count| count.max(1) as usize)),
    },
    Flag {
        group: "HTTP",
        name: "http-max-input-size",
        value: "integer",
        help: "Most bytes of a request, decompressed. By default 67108864, and binary tensors may take up to 2 GiB.",
        set: |flags, value| {
            flags.http.body_bytes_max = positive(value)?;
            flags.http.input_bytes_max = flags.http.body_bytes_max;
            Ok(())
        },
    },
    Flag {
        group: "HTTP",
        name: "http-restricted-api",
        value: "string:string=string",
        help: "<apis>:<header>=<value>: only requests with this header may use the APIs, which are names with commas between: health, metadata, inference, shared-memory, model-config, model-repository, statistics, trace, logging, ui. May be given several times.",
        set: |flags, value| flags.http.restrictions.add(restricted::HTTP, value),
    },
    Flag {
        group: "HTTP",
        name: "http-use-ssl",
        value: "boolean",
        help: "Whether connections are encrypted with TLS. Default: false.",
        set: |flags, value| set(&mut flags.http.tls.enabled, switch(value)),
    },
    Flag {
        group: "HTTP",
        name: "http-use-ssl-mutual",
        value: "boolean",
        help: "Whether connections are encrypted with TLS and clients have to show a certificate too. Default: false.",
        set: |flags, value| set(&mut flags.http.tls.mutual, switch(value)),
    },
    Flag {
        group: "HTTP",
        name: "http-server-cert",
        value: "path",
        help: "File in PEM format with the server's certificate, and those that lead to its root.",
        set: |flags, value| set(&mut flags.http.tls.certificate, Ok(value.to_owned())),
    },
    Flag {
        group: "HTTP",
        name: "http-server-key",
        value: "path",
        help: "File in PEM format with the private key of the server's certificate, without a passphrase.",
        set: |flags, value| set(&mut flags.http.tls.key, Ok(value.to_owned())),
    },
    Flag {
        group: "HTTP",
        name: "http-root-cert",
        value: "path",
        help: "File in PEM format with the certificates that clients' certificates have to lead to; used with --http-use-ssl-mutual.",
        set: |flags, value| set(&mut flags.http.tls.root, Ok(value.to_owned())),
    },
    Flag {
        group: "gRPC",
        name: "allow-grpc",
        value: "boolean",
        help: "Whether to serve gRPC. Default: true.",
        set: |flags, value| set(&mut flags.grpc.allow, switch(value)),
    },
    Flag {
        group: "gRPC",
        name: "grpc-address",
        value: "string",
        help: "Address for gRPC. Default: 127.0.0.1, and 0.0.0.0 when started as tritonserver.",
        set: |flags, value| set(&mut flags.grpc.address, Ok(Some(value.to_owned()))),
    },
    Flag {
        group: "gRPC",
        name: "grpc-port",
        value: "integer",
        help: "Port for gRPC. Default: 8001.",
        set: |flags, value| set(&mut flags.grpc.port, port(value)),
    },
    Flag {
        group: "gRPC",
        name: "reuse-grpc-port",
        value: "boolean",
        help: "Whether several servers may listen on the port. Default: false.",
        set: |flags, value| set(&mut flags.grpc.reuse_port, switch(value)),
    },
    Flag {
        group: "gRPC",
        name: "grpc-header-forward-pattern",
        value: "string",
        help: "Metadata whose names match this regular expression become parameters of the request.",
        set: |flags, value| set(&mut flags.grpc.forward_headers, pattern(value)),
    },
    Flag {
        group: "gRPC",
        name: "grpc-infer-thread-count",
        value: "integer",
        help: "Accepted; see --http-thread-count.",
        set: |_, value| number::<u32>(value).map(drop),
    },
    Flag {
        group: "gRPC",
        name: "grpc-infer-allocation-pool-size",
        value: "integer",
        help: "Accepted; requests are not pooled.",
        set: |_, value| number::<i32>(value).map(drop),
    },
    Flag {
        group: "gRPC",
        name: "grpc-max-response-pool-size",
        value: "integer",
        help: "Accepted; responses are not pooled.",
        set: |_, value| number::<i32>(value).map(drop),
    },
    Flag {
        group: "gRPC",
        name: "grpc-use-ssl",
        value: "boolean",
        help: "Whether connections are encrypted with TLS. Default: false.",
        set: |flags, value| set(&mut flags.grpc.tls.enabled, switch(value)),
    },
    Flag {
        group: "gRPC",
        name: "grpc-use-ssl-mutual",
        value: "boolean",
        help: "Whether connections are encrypted with TLS and clients have to show a certificate too. Default: false.",
        set: |flags, value| set(&mut flags.grpc.tls.mutual, switch(value)),
    },
    Flag {
        group: "gRPC",
        name: "grpc-server-cert",
        value: "path",
        help: "File in PEM format with the server's certificate, and those that lead to its root.",
        set: |flags, value| set(&mut flags.grpc.tls.certificate, Ok(value.to_owned())),
    },
    Flag {
        group: "gRPC",
        name: "grpc-server-key",
        value: "path",
        help: "File in PEM format with the private key of the server's certificate, without a passphrase.",
        set: |flags, value| set(&mut flags.grpc.tls.key, Ok(value.to_owned())),
    },
    Flag {
        group: "gRPC",
        name: "grpc-root-cert",
        value: "path",
        help: "File in PEM format with the certificates that clients' certificates have to lead to; used with --grpc-use-ssl-mutual.",
        set: |flags, value| set(&mut flags.grpc.tls.root, Ok(value.to_owned())),
    },
    Flag {
        group: "gRPC",
        name: "grpc-infer-response-compression-level",
        value: "string",
        help: "none, low, medium or high: whether responses are compressed for clients that accept it. Default: none.",
        set: |flags, value| set(&mut flags.grpc.compress, compression(value)),
    },
    Flag {
        group: "gRPC",
        name: "grpc-keepalive-time",
        value: "integer",
        help: "Milliseconds without traffic after which a connection is probed. Default: 7200000.",
        set: |flags, value| set(&mut flags.grpc.keepalive_time, milliseconds(value)),
    },
    Flag {
        group: "gRPC",
        name: "grpc-keepalive-timeout",
        value: "integer",
        help: "Milliseconds to wait for the answer to a probe. Default: 20000.",
        set: |flags, value| set(&mut flags.grpc.keepalive_timeout, milliseconds(value)),
    },
    Flag {
        group: "gRPC",
        name: "grpc-keepalive-permit-without-calls",
        value: "boolean",
        help: "Whether clients may probe connections without calls as often as others. Default: false.",
        set: |flags, value| set(&mut flags.grpc.ping_limits.permit_without_calls, switch(value)),
    },
    Flag {
        group: "gRPC",
        name: "grpc-http2-max-pings-without-data",
        value: "integer",
        help: "No effect: this server's own probes, one per keep-alive time, are not limited by number.",
        set: |flags, value| {
            number::<i32>(value)?;
            flags.ignored("grpc-http2-max-pings-without-data", value);
            Ok(())
        },
    },
    Flag {
        group: "gRPC",
        name: "grpc-http2-min-recv-ping-interval-without-data",
        value: "integer",
        help: "Milliseconds that a client waits between probes with nothing sent between. Default: 300000.",
        set: |flags, value| set(&mut flags.grpc.ping_limits.interval_min, milliseconds(value)),
    },
    Flag {
        group: "gRPC",
        name: "grpc-http2-max-ping-strikes",
        value: "integer",
        help: "Probes that may come too soon before the connection is ended; 0 for any number. Default: 2.",
        set: |flags, value| set(&mut flags.grpc.ping_limits.strikes_max, number::<u32>(value)),
    },
    Flag {
        group: "gRPC",
        name: "grpc-max-connection-age",
        value: "integer",
        help: "Milliseconds after which a connection is asked to end. Default: never.",
        set: |flags, value| set(&mut flags.grpc.connection_age_max, milliseconds(value).map(Some)),
    },
    Flag {
        group: "gRPC",
        name: "grpc-max-connection-age-grace",
        value: "integer",
        help: "Milliseconds that calls have to end on such a connection. Default: no limit.",
        set: |flags, value| set(&mut flags.grpc.connection_age_grace, milliseconds(value).map(Some)),
    },
    Flag {
        group: "gRPC",
        name: "grpc-restricted-protocol",
        value: "string:string=string",
        help: "<protocols>:<key>=<value>: only calls with triton-grpc-protocol-<key> in their metadata may use the protocols, which have the names of HTTP's APIs. May be given several times.",
        set: |flags, value| flags.grpc.restrictions.add(restricted::GRPC, value),
    },
    Flag {
        group: "Logging",
        name: "log-verbose",
        value: "integer",
        help: "0 for none, more for more. Default: 0.",
        set: |flags, value| set(&mut flags.log.verbose, level(value)),
    },
    Flag {
        group: "Logging",
        name: "log-info",
        value: "boolean",
        help: "Whether to log what happens. Default: true.",
        set: |flags, value| set(&mut flags.log.info, switch(value)),
    },
    Flag {
        group: "Logging",
        name: "log-warning",
        value: "boolean",
        help: "Whether to log warnings. Default: true.",
        set: |flags, value| set(&mut flags.log.warning, switch(value)),
    },
    Flag {
        group: "Logging",
        name: "log-error",
        value: "boolean",
        help: "Whether to log errors. Default: true.",
        set: |flags, value| set(&mut flags.log.error, switch(value)),
    },
    Flag {
        group: "Logging",
        name: "log-format",
        value: "string",
        help: "default (LMMDD hh:mm:ss.ssssss) or ISO8601. Default: default.",
        set: |flags, value| set(&mut flags.log.iso8601, log_format(value)),
    },
    Flag {
        group: "Logging",
        name: "log-file",
        value: "path",
        help: "Log to this file. Default: standard error.",
        set: |flags, value| set(&mut flags.log.file, Ok(value.to_owned())),
    },
    Flag {
        group: "Metrics",
        name: "allow-metrics",
        value: "boolean",
        help: "Whether to serve metrics. Default: true.",
        set: |flags, value| set(&mut flags.metrics.allow, switch(value)),
    },
    Flag {
        group: "Metrics",
        name: "allow-gpu-metrics",
        value: "boolean",
        help: "Accepted; there are no metrics of GPUs.",
        set: |_, value| switch(value).map(drop),
    },
    Flag {
        group: "Metrics",
        name: "allow-cpu-metrics",
        value: "boolean",
        help: "Whether metrics of the processor and memory are among them. Default: true.",
        set: |flags, value| set(&mut flags.metrics.allow_cpu, switch(value)),
    },
    Flag {
        group: "Metrics",
        name: "metrics-address",
        value: "string",
        help: "Address for metrics. Default: that of HTTP.",
        set: |flags, value| set(&mut flags.metrics.address, Ok(Some(value.to_owned()))),
    },
    Flag {
        group: "Metrics",
        name: "metrics-port",
        value: "integer",
        help: "Port for metrics. Default: 8002.",
        set: |flags, value| set(&mut flags.metrics.port, port(value)),
    },
    Flag {
        group: "Metrics",
        name: "metrics-interval-ms",
        value: "number",
        help: "Milliseconds between two readings of the processor's load. Default: 2000.",
        set: |flags, value| set(&mut flags.metrics.interval, milliseconds(value.split('.').next().unwrap_or(value))),
    },
    Flag {
        group: "Metrics",
        name: "metrics-config",
        value: "string=string",
        help: "counter_latencies, histogram_latencies, summary_latencies (true or false) or summary_quantiles. May be given several times.",
        set: Flags::metrics_setting,
    },
    Flag {
        group: "Tracing",
        name: "trace-config",
        value: "string,string=string",
        help: "Which requests are traced and where to: level=OFF, TIMESTAMPS or TENSORS (may be given several times), rate=<number> (one request in so many), count=<number>, mode=triton or opentelemetry, triton,file=<path>, triton,log-frequency=<number> (traces in a file), opentelemetry,url=<address>, opentelemetry,protocol=http/protobuf or grpc, opentelemetry,resource=<name>=<value>, opentelemetry,bsp_max_queue_size=<number>, opentelemetry,bsp_schedule_delay=<milliseconds>, opentelemetry,bsp_max_export_batch_size=<number>. Default: level=OFF, rate=1000, count=-1.",
        set: Flags::trace_setting,
    },
    Flag {
        group: "Response cache",
        name: "cache-config",
        value: "string,string=string",
        help: "Where responses are kept of models whose configuration says response_cache { enable: true }: local,size=<bytes>, in this process, or redis,host=<name> and redis,port=<number>, in a Redis server. May be given several times, for one of them.",
        set: Flags::cache_setting,
    },
    Flag {
        group: "Response cache",
        name: "cache-directory",
        value: "path",
        help: "Accepted; caches are built in.",
        set: |_, _| Ok(()),
    },
    Flag {
        group: "Rate limiter",
        name: "rate-limit",
        value: "string",
        help: "off, or execution_count: instances run when the resources of their rate_limiter are there, those first \
               that ran least. Default: off.",
        set: Flags::rate_limit,
    },
    Flag {
        group: "Rate limiter",
        name: "rate-limit-resource",
        value: "string:integer[:integer]",
        help: "How much there is of a resource, on one device (0 is the CPU) or on each; by default what the instance needs \
               that needs most. With --rate-limit=execution_count.",
        set: Flags::rate_limit_resource,
    },
    Flag {
        group: "Memory and devices",
        name: "allow-client-shm",
        value: "boolean",
        help: "Whether clients may register shared memory. Default: true.",
        set: |flags, value| set(&mut flags.client_shared_memory, switch(value)),
    },
    Flag {
        group: "Memory and devices",
        name: "pinned-memory-pool-byte-size",
        value: "integer",
        help: "Shown in the metrics; no memory is pinned. Default: 268435456.",
        set: |flags, value| set(&mut flags.pinned_pool_bytes, number(value)),
    },
    Flag {
        group: "Memory and devices",
        name: "cuda-memory-pool-byte-size",
        value: "integer:integer",
        help: "Accepted; there is no CUDA.",
        set: |_, value| pair(value),
    },
    Flag {
        group: "Memory and devices",
        name: "cuda-virtual-address-size",
        value: "integer:integer",
        help: "Accepted; there is no CUDA.",
        set: |_, value| pair(value),
    },
    Flag {
        group: "Memory and devices",
        name: "min-supported-compute-capability",
        value: "number",
        help: "Accepted; there is no CUDA.",
        set: |_, value| real(value),
    },
    Flag {
        group: "Memory and devices",
        name: "buffer-manager-thread-count",
        value: "integer",
        help: "Accepted; buffers are not copied by threads of their own.",
        set: |_, value| number::<u32>(value).map(drop),
    },
    Flag {
        group: "Memory and devices",
        name: "host-policy",
        value: "string,string=string",
        help: "No effect.",
        set: |flags, value| {
            setting("host-policy", value)?;
            flags.ignored("host-policy", value);
            Ok(())
        },
    },
    Flag {
        group: "Memory and devices",
        name: "model-load-gpu-limit",
        value: "integer:number",
        help: "Accepted; there is no CUDA.",
        set: |_, value| pair(value),
    },
    Flag {
        group: "Backends",
        name: "backend-directory",
        value: "path",
        help: "Where backends lie that are not built in: folders with a model.py. Default: /opt/tritonserver/backends.",
        set: |flags, value| set(&mut flags.backend_directory, not_empty(value).map(Into::into)),
    },
    Flag {
        group: "Backends",
        name: "backend-config",
        value: "string,string=string",
        help: "Setting of a backend, or of all: [backend,]setting=value. May be given several times.",
        set: Flags::backend_setting,
    },
    Flag {
        group: "Backends",
        name: "repoagent-directory",
        value: "path",
        help: "Accepted; there are no repository agents.",
        set: |_, _| Ok(()),
    },
    Flag {
        group: "Other front ends",
        name: "allow-sagemaker",
        value: "boolean",
        help: "Not supported yet. Default: false.",
        set: |flags, value| flags.front_end("allow-sagemaker", value),
    },
    Flag {
        group: "Other front ends",
        name: "sagemaker-port",
        value: "integer",
        help: "Used with --allow-sagemaker only.",
        set: |_, value| number::<u16>(value).map(drop),
    },
    Flag {
        group: "Other front ends",
        name: "sagemaker-safe-port-range",
        value: "integer-integer",
        help: "Used with --allow-sagemaker only.",
        set: |_, _| Ok(()),
    },
    Flag {
        group: "Other front ends",
        name: "sagemaker-thread-count",
        value: "integer",
        help: "Used with --allow-sagemaker only.",
        set: |_, value| number::<u32>(value).map(drop),
    },
    Flag {
        group: "Other front ends",
        name: "allow-vertex-ai",
        value: "boolean",
        help: "Not supported yet. Default: false.",
        set: |flags, value| flags.front_end("allow-vertex-ai", value),
    },
    Flag {
        group: "Other front ends",
        name: "vertex-ai-port",
        value: "integer",
        help: "Used with --allow-vertex-ai only.",
        set: |_, value| number::<u16>(value).map(drop),
    },
    Flag {
        group: "Other front ends",
        name: "vertex-ai-thread-count",
        value: "integer",
        help: "Used with --allow-vertex-ai only.",
        set: |_, value| number::<u32>(value).map(drop),
    },
    Flag {
        group: "Other front ends",
        name: "vertex-ai-default-model",
        value: "string",
        help: "Used with --allow-vertex-ai only.",
        set: |_, _| Ok(()),
    },
    Flag {
        group: "Engine",
        name: "precision",
        value: "string",
        help: "How exactly models compute whose configuration has no parameter of this name: exact (f32), balanced (products of bf16 where the machine has a fast matrix unit) or fast (products of 8-bit integers where weights are stored, else as balanced). Default: balanced, and exact under the name tritonserver.",
        set: |flags, value| {
            set(
                &mut flags.precision,
                value.parse().map(Some).map_err(|error| format!("invalid argument for --precision: {error}")),
            )
        },
    },
    Flag {
        group: "Engine",
        name: "memory-limit",
        value: "string",
        help: "Memory that the server may hold, in bytes or with K, M or G; auto: what machine and container have; off: no limit. A model that would not fit is not loaded, and new requests are refused while hardly any is left. Default: auto, and off under the name tritonserver.",
        set: |flags, value| {
            set(
                &mut flags.memory_limit,
                value.parse().map(Some).map_err(|error| format!("invalid argument for --memory-limit: {error}")),
            )
        },
    },
    Flag {
        group: "Engine",
        name: "disable-matrix",
        value: "",
        help: "Multiply without a matrix unit (AMX, SME, BF16 instructions) and without Accelerate: balanced precision then is exact, fast multiplies integers by vector instructions.",
        set: |flags, _| {
            flags.matrix = false;
            Ok(())
        },
    },
    Flag {
        group: "Engine",
        name: "tuning-database",
        value: "string",
        help: "File with the fastest configurations of kernels, as `halimede tune` writes it; off lets every kernel do what it does by itself. Default: tuning.jsonl in the user's cache.",
        set: |flags, value| set(&mut flags.tuning_database, Ok(Source::from(value))),
    },
    Flag {
        group: "Engine",
        name: "tune",
        value: "string",
        help: "background finds out, in moments without requests, with which configurations of their kernels models are fastest in the shapes that they are served in, adds them to the tuning database and serves by them; off does not. For models whose configuration has no parameter of this name. Default: off.",
        set: |flags, value| {
            let tune = value.parse().map_err(|error| format!("invalid argument for --tune: {error}"));
            set(&mut flags.tune, tune)
        },
    },
    Flag {
        group: "Engine",
        name: "tune-secs",
        value: "integer",
        help: "Seconds for which the operators of a model are measured, at most; ten times as long it may wait for moments without requests. Default: 60.",
        set: |flags, value| set(&mut flags.tune_time, seconds(value)),
    },
    Flag {
        group: "Engine",
        name: "packed-weights",
        value: "string",
        help: "Directory in which weights are kept as kernels want them, so that models load faster and several servers share their memory; off keeps none. Default: packed in the user's cache.",
        set: |flags, value| set(&mut flags.packed_weights, Ok(Source::from(value))),
    },
    Flag {
        group: "Engine",
        name: "packed-weights-byte-size",
        value: "integer",
        help: "Bytes of the packed weights that are kept, at most; those that were used longest ago go first. Default: 8589934592.",
        set: |flags, value| set(&mut flags.packed_weights_bytes_max, number(value)),
    },
    Flag {
        group: "Deprecated",
        name: "strict-model-config",
        value: "boolean",
        help: "Use --disable-auto-complete-config.",
        set: |flags, value| {
            flags.deprecated("strict-model-config", "! Please use '--disable-auto-complete-config' instead.");
            set(&mut flags.auto_complete_config, switch(value).map(|strict| !strict))
        },
    },
    Flag {
        group: "Deprecated",
        name: "response-cache-byte-size",
        value: "integer",
        help: "Use --cache-config local,size=<bytes>.",
        set: |flags, value| {
            set(&mut flags.cache_bytes, number::<i64>(value).map(Some))?;
            flags.deprecated(
                "response-cache-byte-size",
                &format!(
                    "! This will default to the 'local' cache implementation with the provided byte size for its config. \
                     Please use '--cache-config' instead. The equivalent --cache-config CLI args would be: \
                     '--cache-config=local,size={value}'"
                ),
            );
            Ok(())
        },
    },
    Flag {
        group: "Deprecated",
        name: "trace-file",
        value: "path",
        help: "Use --trace-config.",
        set: |flags, value| flags.deprecated_trace_setting("trace-file", "triton,file", "<filepath>", value),
    },
    Flag {
        group: "Deprecated",
        name: "trace-level",
        value: "string",
        help: "Use --trace-config.",
        set: |flags, value| flags.deprecated_trace_setting("trace-level", "level", "<OFF|TIMESTAMPS|TENSORS>", value),
    },
    Flag {
        group: "Deprecated",
        name: "trace-rate",
        value: "integer",
        help: "Use --trace-config.",
        set: |flags, value| flags.deprecated_trace_setting("trace-rate", "rate", "<rate value>", value),
    },
    Flag {
        group: "Deprecated",
        name: "trace-count",
        value: "integer",
        help: "Use --trace-config.",
        set: |flags, value| flags.deprecated_trace_setting("trace-count", "count", "<count value>", value),
    },
    Flag {
        group: "Deprecated",
        name: "trace-log-frequency",
        value: "integer",
        help: "Use --trace-config.",
        set: |flags, value| {
            flags.deprecated_trace_setting(
                "trace-log-frequency",
                "triton,log-frequency",
                "<log frequency value>",
                value,
            )
        },
    },
];
