"""L0_backend_python: the scripts that need no download run as they are, its own without what it installs; of the others,
the modules that need neither PyTorch nor a GPU."""

import shutil

import scripts

VERSION = "2.51"
GPU = "needs a GPU"
TORCH = f"{GPU}, for tensors of PyTorch's in its memory"
DOWNLOAD = "needs a download"

# What the suite's own script exports for those in its folders.
HERE = {
    "SERVER": "/opt/tritonserver/bin/tritonserver", "BACKEND_DIR": "/opt/tritonserver/backends", "MODELDIR": "..",
    "TEST_JETSON": "0", "TEST_WINDOWS": "0",
}  # fmt: skip

SCRIPTS = (
    "argument_validation", "async_execute", "custom_metrics", "lifecycle", "logging", "parameters",
    "request_rescheduling", "response_sender",
)  # fmt: skip


def copies(*names, settings=""):
    """NVIDIA's Python models of these names."""

    def repository(models, data, checkout):
        for name in names:
            source, target = checkout / "qa" / "python_models" / name, models / name
            (target / "1").mkdir(parents=True)
            for file in source.glob("*.py"):
                shutil.copy(file, target / "1")
            if (source / "config.pbtxt").exists():
                (target / "config.pbtxt").write_text((source / "config.pbtxt").read_text() + settings)

    return repository


def decoupled(models, data, checkout):
    """As the script has it, without the model of `test_decoupled_bls`; an example of Triton's Python backend is the backend
    `square`."""
    copies("identity_fp32", "response_sender_until_cancelled")(models, data, checkout)
    copies("execute_cancel", settings="model_transaction_policy { decoupled: True }\n")(models, data, checkout)
    own = checkout / "qa" / "L0_backend_python" / "decoupled" / "models"
    shutil.copytree(own, models, ignore=shutil.ignore_patterns("decoupled_bls"), dirs_exist_ok=True)
    (models / "square_int32" / "1").mkdir(parents=True)
    (models / "square_int32" / "config.pbtxt").write_text("""backend: "square"
model_transaction_policy { decoupled: true }
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
""")


def requested_output(models, data, checkout):
    copies("add_sub")(models, data, checkout)
    own = checkout / "qa" / "L0_backend_python" / "io" / "requested_output_model"
    (models / "llm" / "1").mkdir(parents=True)
    shutil.copy(own / "config.pbtxt", models / "llm")
    shutil.copy(own / "model.py", models / "llm" / "1")


# Of DecoupledTest; the other needs PyTorch with a GPU.
DECOUPLED = (
    "execute_error bls_stream return_response_error send_after_close_error execute_cancel bls_cancel bls_ignore_cancel "
    "bls_cancel_after_cancellation bls_cancel_after_completion raise_exception"
)


# Of PythonTest.
ON_GPU = ("test_gpu_tensor_error", "test_dlpack_tensor_error")


def controlled(models, data, checkout):
    copies("identity_fp32", "simple_identity_fp32")(models, data, checkout)


def ensemble(models, data, checkout):
    """An ensemble of two Python models."""
    copies("add_sub")(models, data, checkout)
    for number in (1, 2):
        shutil.copytree(models / "add_sub", models / f"add_sub_{number}")
        config = models / f"add_sub_{number}" / "config.pbtxt"
        config.write_text(config.read_text().replace('name: "add_sub"', f'name: "add_sub_{number}"'))
    (models / "ensemble" / "1").mkdir(parents=True)
    shutil.copy(checkout / "qa" / "python_models" / "ensemble" / "config.pbtxt", models / "ensemble")


def suites(Suite, Module):
    def folder(name, data=False, **how):
        environment = {**HERE, "DATADIR": f"/data/inferenceserver/{VERSION}"} if data else HERE
        return Suite(f"L0_backend_python/{name}", environment=environment, **how)

    leaks = "../test_infer_shm_leak.py"

    def unit(name, repository, kind):
        """A model that runs its own tests."""
        environment = {"MODEL_NAME": name, "BLS_KIND": kind}
        return Module(f"-m pytest {leaks}", repository, environment=environment, label=f"{name}, {kind}")

    return [
        Suite(
            "L0_backend_python",
            script="test.sh",
            prepare=scripts.python_backend,
            # As much shared memory as the script says that there is.
            environment={"SHM_SIZE": "1g", "PYTEST_ADDOPTS": f"-k 'not ({' or '.join(ON_GPU)})'"},
            note="Python and PyTorch of other versions",
            left=dict.fromkeys((*ON_GPU, "KIND_GPU"), GPU),
        ),
        *(folder(name, script="test.sh") for name in SCRIPTS),
        folder(
            "bls",
            modules=[
                *(unit(name, copies(name, "identity_fp32"), kind)
                  for name in ("bls_memory", "bls_memory_async") for kind in ("non_decoupled", "decoupled")),
            ],
            left={"bls": TORCH, "bls_async": TORCH},
        ),
        # The rest of the script.
        folder("bls", script="test.sh", prepare=scripts.bls, data=True),
        folder(
            "ensemble",
            modules=[Module("ensemble_test.py", ensemble, tests=("EnsembleTest.test_ensemble",))],
            left={"test_ensemble_gpu": GPU},
        ),
        folder(
            "model_control",
            modules=[Module("model_control_test.py", controlled, ("--model-control-mode=explicit",),
                            tests=("ExplicitModelTest",))],
            left={"ModelIDValidationTest": "version: 2.51.0 has no rules for names of models"},
        ),
        folder(
            "io",
            modules=[Module("io_test.py", requested_output,
                            tests=tuple(f"IOTest.test_requested_output_{test}" for test in ("default", "decoupled_prior_crash")))],
            left=dict.fromkeys(("test_ensemble_io", "test_empty_gpu_output", "test_variable_gpu_output",
                                "test_requested_output_decoupled"), TORCH),
        ),
        folder(
            "decoupled",
            # One of the tests reads the server's log by the name that the script gives it.
            modules=[Module("decoupled_test.py", decoupled, before="ln -sf $(readlink /proc/$SERVER_PID/fd/1) decoupled_server.log",
                            tests=tuple(f"DecoupledTest.test_decoupled_{test}" for test in DECOUPLED.split()))],
            note="a model of the backend `square` instead of an example of Triton's Python backend",
            left={"test_decoupled_bls": TORCH},
        ),
        folder("env", left={"test.sh": f"{DOWNLOAD} (conda)"}),
        folder("examples", left={"test.sh": f"{DOWNLOAD} (PyTorch, JAX, models)"}),
        folder("variants", left={"test.sh": "builds Triton's own backend"}),
        folder("restart", left={"test.sh": "looks for the processes and the memory of Triton's own backend"}),
        folder("model_readiness", left={"test.sh": "version: later than 2.51.0, which has no `is_ready` of models"}),
    ]
