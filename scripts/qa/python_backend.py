"""L0_backend_python: the scripts that need no download run as they are; of the others, the modules that need neither
PyTorch nor a GPU."""

import shutil

import scripts

VERSION = "2.51"
TORCH = "needs PyTorch"
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
        Suite("L0_backend_python", left={"test.sh": "open: its own part installs Python 3.12 and PyTorch"}),
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
            left={"test_ensemble_gpu": "needs a GPU"},
        ),
        folder(
            "model_control",
            modules=[Module("model_control_test.py", controlled, ("--model-control-mode=explicit",),
                            tests=("ExplicitModelTest",))],
            left={"ModelIDValidationTest": "version: 2.51.0 has no rules for names of models"},
        ),
        folder("io", left={"io_test.py": TORCH}),
        folder("decoupled", left={"decoupled_test.py": TORCH}),
        folder("env", left={"test.sh": f"{DOWNLOAD} (conda)"}),
        folder("examples", left={"test.sh": f"{DOWNLOAD} (PyTorch, JAX, models)"}),
        folder("variants", left={"test.sh": "builds Triton's own backend"}),
        folder("restart", left={"test.sh": "looks for the processes and the memory of Triton's own backend"}),
        folder("model_readiness", left={"test.sh": "version: later than 2.51.0, which has no `is_ready` of models"}),
    ]
