"""The suites, and what of each runs without a GPU, a C++ client or another backend.

A suite is either NVIDIA's own script (`script`), the same cut at its comments
into one part per test (`sections`: one missing framework would otherwise end
the whole script), or test modules beside a server that the harness starts
(`modules`).
"""

from dataclasses import dataclass, field

import repositories

PYTHON_BACKEND = "needs the Python backend"
GPU = "needs a GPU"
SEQUENCES = "needs the sequence batcher"
DECOUPLED = "needs decoupled models"


@dataclass
class Module:
    """A test module, the classes or tests of it (all if empty), and the server it needs."""

    file: str
    repository: object
    flags: tuple = ()
    tests: tuple = ()


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
    # Name of a test, or "*" for the whole suite: why it does not apply.
    not_applicable: dict = field(default_factory=dict)
    # Name of a test that later versions answer otherwise than 2.51.0, which we follow: the difference.
    differs: dict = field(default_factory=dict)


EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")

SUITES = [
    # Some tests exist for other frameworks only.
    Suite("L0_infer", script="test.sh", environment={"BACKENDS": "onnx", "EXPECTED_NUM_TESTS": "44"}),
    Suite("L0_infer", "2.51.0", script="test.sh", environment={"BACKENDS": "onnx", "EXPECTED_NUM_TESTS": "42"}),
    Suite("L0_infer_variable", script="test.sh"),
    Suite("L0_infer_reshape", script="test.sh"),
    Suite("L0_infer_zero", script="test.sh", environment={"BACKENDS": "onnx"}),
    Suite(
        "L0_http",
        modules=[
            Module("http_test.py", repositories.http, EXPLICIT),
            Module("python_http_aio_test.py", repositories.counted(7)),
        ],
        differs={"test_duplicate_output_names": "2.51.0 accepts an output requested twice"},
    ),
    Suite(
        "L0_grpc",
        modules=[
            Module("python_unit_test.py", repositories.grpc, tests=("GrpcTest",)),
            Module("python_grpc_aio_test.py", repositories.counted(8)),
        ],
        not_applicable={"test_bytes_contents_many_elements_serialization": PYTHON_BACKEND},
        differs={"test_duplicate_output_names_rejected": "2.51.0 accepts an output requested twice"},
    ),
    Suite(
        "L0_lifecycle",
        sections="LifeCycleTest",
        not_applicable={"test_load_gpu_limit": GPU, "test_shutdown_sequence": SEQUENCES},
    ),
    Suite("L0_model_queue", script="test.sh"),
    Suite("L0_parameters", script="test.sh", not_applicable={"*": PYTHON_BACKEND}),
    Suite(
        "L0_simple_ensemble",
        # Each counts the executions of a server that served nothing before.
        modules=[
            Module("ensemble_test.py", repositories.ensemble, tests=(f"EnsembleTest.test_ensemble_{test}",))
            for test in ("add_sub", "sequence_flags", "add_sub_one_output")
        ],
        not_applicable={"test_ensemble_partial_add_sub": PYTHON_BACKEND},
    ),
    Suite("L0_nan_inf", script="test.sh", not_applicable={"*": PYTHON_BACKEND}),
    Suite("L0_string_io", modules=[Module("string_client_test.py", repositories.string_identity)]),
    Suite("L0_large_payload", modules=[
        Module("large_payload_test.py", repositories.large, tests=("LargePayLoadTest.test_onnx",))]),
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
    Suite("L0_socket", script="test.sh"),
    Suite(
        "L0_model_config",
        not_applicable={
            # Texts of a server built for GPUs about the numbers of GPUs.
            "invalid_gpu": GPU,
            "negative_gpu": GPU,
            "invalid_decoupled_branching": DECOUPLED,
            "invalid_decoupled_branching_2": DECOUPLED,
        },
    ),
]  # fmt: skip
