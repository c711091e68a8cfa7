"""The suites, and what of each runs without a GPU, a C++ client or another backend.

A suite is either NVIDIA's own script (`script`), the same cut at its comments
into one part per test (`sections`: one missing framework would otherwise end
the whole script), or test modules beside a server that the harness starts
(`modules`).
"""

from dataclasses import dataclass, field

import python_backend
import repositories
import scripts

GPU = "needs a GPU"
VERSION = "2.51"


@dataclass
class Module:
    """A test module, the classes or tests of it (all if empty), and the server it needs."""

    file: str
    repository: object
    flags: tuple = ()
    tests: tuple = ()
    # Name of the row; the file if empty.
    label: str = ""
    environment: dict = field(default_factory=dict)
    # Lines of a shell before the test, beside the server.
    before: str = ""
    # Where the server tells that it is ready.
    url: str = "http://localhost:8000"


@dataclass
class Suite:
    """One folder `qa/NAME` of a checkout."""

    name: str
    # The checkout. Version 2.51.0 tests TensorFlow models where later versions test ONNX ones.
    version: str = "newest"
    script: str = ""
    sections: str = ""
    modules: list = field(default_factory=list)
    environment: dict = field(default_factory=dict)
    # Fills the folder of the suite with what the script expects besides.
    prepare: object = None
    # What took the place of a model that cannot be here.
    note: str = ""
    # Suites whose script the script runs, too: their tests count.
    beside: tuple = ()
    # Parts that do not apply and are not tried: name and why.
    left: dict = field(default_factory=dict)
    # Whether the script repeats its tests with models on a GPU.
    gpu_round: bool = False
    # Name of a test, or "*" for the whole suite: why it does not apply.
    not_applicable: dict = field(default_factory=dict)
    # Name of a test that later versions answer otherwise than 2.51.0, which we follow: the difference.
    differs: dict = field(default_factory=dict)


# Tests of L0_parameters, and the flags of the server for each, as test.sh has them.
PARAMETERS = {
    "test_params": (),
    "test_params_reserved_rejected": (),
    "test_headers": ("--grpc-header-forward-pattern MY_HEADER.*", "--http-header-forward-pattern MY_HEADER.*"),
    "test_grpc_header_forward_pattern_case_sensitive": ("--grpc-header-forward-pattern '(?-i)MY_HEADER.*'",),
    "test_headers_reserved_rejected": ("--grpc-header-forward-pattern .*", "--http-header-forward-pattern .*"),
}

# Switches of metrics in L0_metrics, and the tests that hold with them, as test.sh has them.
METRICS = [
    ("--load-model=identity_cache_off",
     "inf_counters_exist inf_histograms_missing inf_summaries_missing cache_counters_missing cache_summaries_missing"),
    ("--load-model=identity_cache_off --metrics-config histogram_latencies=true",
     "inf_counters_exist inf_histograms_exist inf_summaries_missing cache_counters_missing cache_summaries_missing"),
    ("--load-model=identity_cache_off --metrics-config summary_latencies=true",
     "inf_counters_exist inf_summaries_exist cache_counters_missing cache_summaries_missing"),
    ("--load-model=identity_cache_off --metrics-config summary_latencies=true --metrics-config counter_latencies=false",
     "inf_counters_missing inf_summaries_exist cache_counters_missing cache_summaries_missing"),
    ("--cache-config local,size=1048576 --load-model=identity_cache_on --metrics-config summary_latencies=true "
     "--metrics-config counter_latencies=true",
     "inf_counters_exist inf_summaries_exist_with_cache cache_counters_exist cache_summaries_exist"),
]  # fmt: skip

# Tests of L0_response_cache, and the size of the cache of each.
CACHED_ENSEMBLE = {
    "top_level_response_cache": 10840,
    "all_models_cache_enabled": 10840,
    "composing_model_cache_enabled": 10840,
    "cache_insertion_failure": 200,
}

# How the clients of L0_https trust the server.
HTTPS = {
    "with certificates": "--key-file client.key --cert-file client.crt --ca-certs ca.crt",
    "insecure": "--insecure",
}

# Limits of the size of inputs in L0_http, and the tests that hold with them, as test.sh has them.
INPUT_SIZES = [
    ("the default", (),
     "default_limit_raw_binary default_limit_json large_string_in_json default_limit_compressed "
     "json_dtype_size_expansion_exceeds_limit_error no_leak_on_invalid_inference_header_length"),
    ("128 MiB", (f"--http-max-input-size={1 << 27}",), "large_input_raw_binary large_input_json large_input_compressed"),
]  # fmt: skip

# As test.sh of L0_http starts nginx, with its file of passwords where nginx.conf says, and workers that can be here.
BASIC_AUTHENTICATION = """
pswd=/opt/tritonserver/qa/L0_http/pswd
mkdir -p $(dirname $pswd)
echo "username:$(echo password | openssl passwd -stdin -apr1)" > $pswd
nginx -c $PWD/nginx.conf -g 'user root;'
"""

EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")


def tests_of(case, names):
    """The tests of a class by what their names end with."""
    return tuple(f"{case}.test_{name}" for name in names.split())


SUITES = [
    # Some tests exist for other frameworks only.
    Suite("L0_infer", script="test.sh", environment={"BACKENDS": "onnx", "EXPECTED_NUM_TESTS": "44"}),
    Suite("L0_infer", "2.51.0", script="test.sh", environment={"BACKENDS": "onnx", "EXPECTED_NUM_TESTS": "42"}),
    Suite("L0_infer_variable", script="test.sh", gpu_round=True),
    Suite("L0_infer_reshape", script="test.sh"),
    Suite("L0_infer_zero", script="test.sh", environment={"BACKENDS": "onnx"}),
    Suite(
        "L0_http",
        modules=[
            Module("http_test.py", repositories.http, EXPLICIT),
            Module("python_http_aio_test.py", repositories.counted(7)),
            Module("http_restricted_api_test.py", repositories.simple,
                   ("--http-restricted-api=model-repository:admin-key=admin-value",
                    "--http-restricted-api=inference,metadata:infer-key=infer-value")),
            Module("generate_endpoint_test.py", repositories.generate),
            *(
                Module("http_input_size_limit_test.py", repositories.input_size, flags,
                       tests=tests_of("InferSizeLimitTest", names),
                       label=f"http_input_size_limit_test.py, {label}")
                for label, flags, names in INPUT_SIZES
            ),
            Module("http_request_many_chunks.py", repositories.simple),
            Module("http_client_plugin_test.py", repositories.simple),
            Module("http_basic_auth_test.py", repositories.simple, before=BASIC_AUTHENTICATION),
        ],
        note="`simple_identity` of the backend identity instead of Python",
        differs={"test_duplicate_output_names": "2.51.0 accepts an output requested twice"},
    ),
    Suite(
        "L0_grpc",
        modules=[
            Module("python_unit_test.py", repositories.grpc, tests=("GrpcTest",)),
            Module("python_grpc_aio_test.py", repositories.counted(8)),
        ],
        note="`string_identity` of the backend identity instead of Python",
        differs={"test_duplicate_output_names_rejected": "2.51.0 accepts an output requested twice"},
    ),
    Suite(
        "L0_lifecycle",
        sections="LifeCycleTest",
        prepare=scripts.lifecycle,
        note="ONNX models under the names of other frameworks; instances on the CPU",
        environment={"TRITON_SERVER_VERSION": "2.51.0"},
        not_applicable={
            "test_load_gpu_limit": GPU,
            "test_model_reload_fail": f"{GPU}: expects the text of a server with one",
            "test_load_same_model_different_platform": "needs TensorRT and PyTorch, whose platforms it compares",
        },
    ),
    Suite("L0_model_queue", script="test.sh"),
    Suite(
        "L0_rate_limiter",
        script="test.sh",
        prepare=repositories.rate_limiter,
        note="instances on the CPU",
    ),
    Suite("L0_logging", modules=[Module("logging_endpoint_test.py", repositories.simple)]),
    Suite(
        "L0_secure_grpc",
        script="test.sh",
        prepare=scripts.secure,
        left={"simple_grpc_infer_client": "a C++ client"},
    ),
    Suite(
        "L0_trace",
        modules=[
            Module("trace_endpoint_test.py", repositories.simple,
                   ("--trace-config triton,file=global_unittest.log", "--trace-config level=TIMESTAMPS",
                    "--trace-config rate=1")),
        ],
        left={
            "opentelemetry_unittest.py": "needs a collector that is downloaded (`otelcol`); its cases are in "
            "`tests/test_opentelemetry.py` and `tests/test_python_traces.py`",
        },
    ),
    Suite("L0_cmdline_trace", script="test.sh", prepare=scripts.traces),
    Suite(
        "L0_request_cancellation",
        script="test.sh",
        prepare=scripts.cancellation,
        left={
            "request_cancellation_test": "a C++ program",
            "grpc_cancellation_test": "a C++ client",
            "implicit_state_test.py": "needs PyTorch",
        },
    ),
    Suite(
        "L0_client_timeout",
        script="test.sh",
        prepare=scripts.timeouts,
        left={"client_timeout_test": "a C++ client"},
        not_applicable={"test_grpc_register_cuda_shared_memory": GPU},
    ),
    Suite(
        "L0_warmup",
        script="test.sh",
        prepare=scripts.warmup,
        environment={"BACKENDS": "onnx"},
        left={"bls_onnx_warmup": f"{GPU}, and a download (PyTorch)"},
    ),
    Suite(
        "L0_https",
        script="test.sh",
        prepare=scripts.secure,
        left={"simple_http_infer_client": "a C++ client"},
    ),
    # Without nginx: the server's own TLS.
    Suite(
        "L0_https",
        prepare=scripts.tls,
        modules=[
            Module(f"../clients/{client}", repositories.simple,
                   ("--http-use-ssl=true --http-server-cert=server.crt --http-server-key=server.key",),
                   tests=(f"-v -u localhost:8000 --ssl {more}",), label=f"{client}, the server's own TLS, {label}",
                   url="https://localhost:8000")
            for client in ("simple_http_infer_client.py", "simple_http_aio_infer_client.py")
            for label, more in HTTPS.items()
        ],
    ),
    # One log for all frameworks would be that of the last.
    *(
        Suite("L0_batch_input", script="test.sh", environment={"BACKENDS": backend},
              note="ONNX models under the names of other frameworks")
        for backend in ("onnx", "plan", "libtorch")
    ),
    Suite(
        "L0_batcher",
        script="test.sh",
        prepare=scripts.batcher,
        environment={"BACKENDS": "onnx plan python"},
        note="instances on the CPU; an ONNX model under the name of TensorRT's",
        left={"instance_queue_test": "a C++ program"},
    ),
    Suite("L0_optional_input", script="test.sh"),
    Suite("L0_response_statistics", script="test.sh"),
    Suite(
        "L0_model_update",
        script="test.sh",
        not_applicable=dict.fromkeys(
            ("test_gpu_instance_update", "test_gpu_cpu_instance_update", "test_instance_name_update",
             "test_instance_signature", "test_direct_scheduler_update_with_ongoing_sequences",
             "test_oldest_scheduler_update_with_ongoing_sequences"),
            GPU,
        ),
    ),
    Suite("L0_backend_config", script="test.sh"),
    Suite("L0_config_json", script="test.sh"),
    Suite(
        "L0_response_cache",
        modules=[
            Module("ensemble_cache_test.py", repositories.cached_ensemble,
                   ("--model-repository=models/ensemble_models", f"--cache-config local,size={size}",
                    "--model-control-mode=explicit"),
                   tests=(f"EnsembleCacheTest.test_ensemble_{test}",), label=f"test_ensemble_{test}")
            for test, size in CACHED_ENSEMBLE.items()
        ],
        left={"response_cache_test": "a C++ program"},
    ),
    Suite(
        "L0_metrics",
        modules=[
            Module("metrics_config_test.py", repositories.metrics, ("--model-control-mode=explicit", flags),
                   tests=tests_of("MetricsConfigTest", names), label=f"metrics_config_test.py {flags}")
            for flags, names in METRICS
        ],
    ),
    Suite(
        "L0_sequence_batcher",
        script="test.sh",
        prepare=repositories.custom,
        # Its ensembles have members on a GPU.
        environment={"BACKENDS": "onnx custom python", "ENSEMBLES": "0"},
        left={"ensembles": f"{GPU}: their members are on one"},
    ),
    Suite(
        "L0_dyna_sequence_batcher",
        script="test.sh",
        prepare=repositories.custom,
        environment={"BACKENDS": "onnx custom custom_string"},
    ),
    Suite(
        "L0_storage_S3_local",
        script="sandboxed.sh",
        prepare=repositories.object_storage,
        note="moto behind a check of signatures instead of MinIO",
    ),
    Suite("L0_sequence_corrid_batcher", script="test.sh", prepare=repositories.corrid),
    Suite(
        "L0_implicit_state",
        script="test.sh",
        beside=("L0_sequence_batcher",),
        prepare=repositories.implicit_state,
        note="a growing state without a GPU",
        environment={"BACKENDS": "onnx", "NVIDIA_TRITON_SERVER_VERSION": VERSION},
    ),
    Suite("L0_iterative_sequence", script="test.sh", prepare=repositories.iterative),
    Suite(
        "L0_parameters",
        note="backends `parameters` and `identity` instead of Python",
        modules=[
            Module("-m unittest", repositories.parameters, flags,
                   tests=(f"parameters_test.InferenceParametersTest.{test}",), label=test)
            for test, flags in PARAMETERS.items()
        ] + [
            Module("class_count_test.py", repositories.class_counts, label=f"class_count_test.py, {client}",
                   environment={"CLIENT_TYPE": client})
            for client in ("http", "grpc")
        ],
    ),
    Suite(
        "L0_simple_ensemble",
        script="test.sh",
        prepare=repositories.simple_ensemble,
    ),
    Suite("L0_nan_inf", script="test.sh", prepare=repositories.nan_inf, note="an ONNX model instead of Python"),
    Suite("L0_string_io", modules=[Module("string_client_test.py", repositories.string_identity)]),
    Suite(
        "L0_large_payload",
        note="ONNX models under the names of other frameworks",
        modules=[
            Module("large_payload_test.py", repositories.large(framework),
                   tests=(f"LargePayLoadTest.test_{framework}",), label=f"test_{framework}")
            for framework in ("onnx", "plan", "python")
        ],
        left={"test_libtorch": "needs PyTorch, whose names of tensors it uses"},
    ),
    Suite(
        "L0_data_compression",
        prepare=repositories.clients,
        modules=[
            Module(f"../clients/{client}", repositories.simple, label=f"{client}: request {request}, response {response}",
                   tests=tuple(f"--{way}-compression-algorithm {algorithm}"
                               for way, algorithm in (("request", request), ("response", response)) if algorithm != "plain"))
            for client in ("simple_http_infer_client.py", "simple_http_aio_infer_client.py")
            for request in ("deflate", "gzip", "plain")
            for response in ("deflate", "gzip", "plain")
            if request != response
        ],
        left={"data_compressor_test": "a C++ program", "simple_http_infer_client": "a C++ client"},
    ),
    Suite("L0_output_name", script="test.sh"),
    Suite("L0_scalar_io", script="test.sh"),
    Suite("L0_nullchar_string", modules=[
        Module("nullchar_string_client.py", repositories.nullchar, tests=("-m", "onnx_nobatch_zero_1_object")),
        Module("nullchar_string_client.py", repositories.nullchar,
               tests=("-m", "onnx_nobatch_zero_1_object", "-i", "grpc", "-u", "localhost:8001")),
    ]),
    Suite("L0_initializer_as_input", script="test.sh"),
    Suite("L0_client_nobatch", script="test.sh"),
    Suite("L0_custom_model_config", script="test.sh"),
    Suite("L0_socket", script="test.sh", prepare=repositories.socket),
    Suite(
        "L0_model_config",
        not_applicable={
            # Texts of a server built for GPUs about the numbers of GPUs.
            "invalid_gpu": GPU,
            "negative_gpu": GPU,
        },
    ),
]  # fmt: skip

SUITES += python_backend.suites(Suite, Module)
