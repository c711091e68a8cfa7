"""NVIDIA's client programs: the Python examples, perf_analyzer, Model Analyzer, the Node and the Rust client.

Each is a command that runs beside a server of its own, and passes when it ends with status 0.
`prepared` brings what they need into a scratch folder: the programs from the package indices, everything
else from the checkouts.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import repositories

ROOT = Path(__file__).resolve().parent.parent.parent
GPU = "needs a GPU"
EXPLICIT = "--model-control-mode=explicit"
# perf_analyzer comes with this client library, and what it links to with this server for Python.
WHEELS = {"tritonclient": "2.48.0", "nvidia-pytriton": "0.7.0"}


@dataclass
class Program:
    """A row of the table: a command, and the server that it needs."""

    group: str
    name: str
    # Lines of bash, run in the scratch folder.
    command: str
    repository: object
    flags: str = ""
    environment: dict = field(default_factory=dict)
    # Why it is not run, or empty.
    left: str = ""


def prepared(folder, groups):
    """Fills the scratch folder with what the programs of these groups are."""
    client = Path(os.environ["QA_CLIENT"])
    steps = {
        "client examples": examples_folder, "perf_analyzer": perf_folder, "Model Analyzer": perf_folder,
        "Node client": node_folder, "Rust client": rust_folder,
    }  # fmt: skip
    for step in dict.fromkeys(steps[group] for group in groups):
        step(folder, client)


def examples_folder(folder, client):
    shutil.copytree(client / "src" / "python" / "examples", folder / "examples", dirs_exist_ok=True)
    shutil.copy(Path(os.environ["QA_SERVER"]) / "qa" / "images" / "mug.jpg", folder / "examples" / "mug.jpg")


def perf_folder(folder, client):
    """The program, and two libraries that it links to, under the names that it asks for."""
    target = folder / "perf"
    if target.exists():
        return
    wheels = [f"{name}=={version}" for name, version in WHEELS.items()]
    # The wheel is for any Linux on x86-64.
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder / "wheels", *wheels],
                   check=True)  # fmt: skip
    target.mkdir()
    for wheel in (folder / "wheels").glob("*.whl"):
        with zipfile.ZipFile(wheel) as content:
            for name in content.namelist():
                base = name.rpartition("/")[2]
                if base == "perf_analyzer" and "/bin/" in name:
                    (target / base).write_bytes(content.read(name))
                    (target / base).chmod(0o755)
                elif library := re.match(r"(libb64|libcudart)-\w+(\.so\.\w+)", base):
                    (target / (library[1] + library[2])).write_bytes(content.read(name))


def node_folder(folder, client):
    """The messages are those of this project, which a test holds against the published ones."""
    shutil.copytree(client / "src" / "grpc_generated" / "javascript", folder / "node", dirs_exist_ok=True)
    (folder / "node" / "proto").mkdir(exist_ok=True)
    for crate in ("server", "serving"):
        for proto in (ROOT / "crates" / crate / "proto").glob("*.proto"):
            shutil.copy(proto, folder / "node" / "proto")
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--silent"], cwd=folder / "node", check=True)


def rust_folder(folder, client):
    shutil.copytree(client / "src" / "rust" / "triton-client", folder / "rust", dirs_exist_ok=True)
    manifest = folder / "rust" / "Cargo.toml"
    if "[workspace]" not in manifest.read_text():
        # The folder may lie in that of another workspace: this one.
        manifest.write_text(manifest.read_text() + "\n[workspace]\n")
    for what in (("test", "--no-run"), ("build", "--examples")):
        subprocess.run(["cargo", *what, "--quiet"], cwd=folder / "rust", check=True)


# The Python examples: what differs from `python3 NAME -u ADDRESS`.
EXAMPLE_ARGUMENTS = {
    "reuse_infer_objects_client.py": ["-u localhost:8001 -i grpc"],
    "memory_growth_test.py": ["-i http", "-i grpc"],
    "image_client.py": [f"-m densenet_onnx -s {scaling} -c 3 {way} mug.jpg" for scaling in ("INCEPTION", "VGG", "NONE")
                        for way in ("-u localhost:8000", "-u localhost:8000 -a", "-u localhost:8001 -i grpc",
                                    "-u localhost:8001 -i grpc -a", "-u localhost:8001 -i grpc --streaming")],
    "grpc_image_client.py": ["-m densenet_onnx -c 3 -u localhost:8001 mug.jpg",
                             "-m densenet_onnx -c 3 -a -u localhost:8001 mug.jpg",
                             "-m densenet_onnx -c 3 --streaming -u localhost:8001 mug.jpg"],
    "ensemble_image_client.py": ["-c 3 -u localhost:8000 mug.jpg", "-c 3 -i grpc -u localhost:8001 mug.jpg"],
}  # fmt: skip
OF_IMAGES = ("grpc_client.py", "image_client.py", "grpc_image_client.py", "ensemble_image_client.py")


def examples():
    for path in sorted((Path(os.environ["QA_CLIENT"]) / "src" / "python" / "examples").glob("*.py")):
        name = path.name
        address = "localhost:8001" if "grpc" in name else "localhost:8000"
        runs = EXAMPLE_ARGUMENTS.get(name, [f"-u {address}"])
        # The examples of model control count the models.
        repository = repositories.images if name in OF_IMAGES else repositories.client_examples(8 if "grpc" in name else 7)
        yield Program(
            "client examples", name, "cd examples\n" + "\n".join(f"python3 {name} {run}" for run in runs), repository,
            EXPLICIT if "model_control" in name else "", left=GPU if "cudashm" in name else "",
        )  # fmt: skip


# perf_analyzer: the row, and its arguments.
HTTP, GRPC = "-i http -u localhost:8000", "-i grpc -u localhost:8001"
STREAM = f"{GRPC} --streaming"
CONCURRENCY, RATE = "--concurrency-range=1:4:1", "--request-rate-range=50:150:50"
MEMORY = "--shared-memory=system --output-shared-memory-size=4096"
SEQUENCE = "-m simple_sequence --sequence-length=8"
# By request rate, several requests of a sequence would be under way at a time, over HTTP on a connection each: any of them may
# arrive first. A thread of perf_analyzer that is refused for that ends, and the program may wait for it forever.
SERIAL = "--serial-sequences"
SWEEPS = {
    "HTTP, concurrency": f"-m simple {HTTP} {CONCURRENCY}",
    "HTTP, concurrency, asynchronous": f"-m simple {HTTP} {CONCURRENCY} --async",
    "HTTP, concurrency, batches of 4": f"-m simple {HTTP} {CONCURRENCY} -b 4",
    "HTTP, concurrency, JSON": f"-m simple {HTTP} {CONCURRENCY} --input-tensor-format=json --output-tensor-format=json",
    "HTTP, concurrency, strings": f"-m simple_string {HTTP} {CONCURRENCY} --string-data=7",
    "HTTP, concurrency, shared memory": f"-m simple {HTTP} {CONCURRENCY} {MEMORY}",
    "HTTP, concurrency, an ensemble": f"-m twice {HTTP} {CONCURRENCY}",
    "HTTP, request rate": f"-m simple {HTTP} {RATE}",
    "HTTP, request rate, Poisson": f"-m simple {HTTP} {RATE} --request-distribution=poisson",
    "HTTP, request rate, shared memory": f"-m simple {HTTP} {RATE} {MEMORY}",
    "HTTP, intervals of a file": f"-m simple {HTTP} --request-intervals=intervals",
    "HTTP, sequences, concurrency": f"{SEQUENCE} {HTTP} {CONCURRENCY}",
    "HTTP, sequences, request rate": f"{SEQUENCE} {HTTP} {RATE} {SERIAL} --num-of-sequences=3 --sequence-id-range=100:110",
    "HTTP, search for a latency": f"-m simple {HTTP} --concurrency-range=1:8 --binary-search -l 1000",
    "HTTP, a fixed number of requests": f"-m simple {HTTP} --concurrency-range=4 --request-count=200",
    "HTTP, metrics of the server": f"-m simple {HTTP} {CONCURRENCY} --collect-metrics --metrics-url=localhost:8002/metrics --verbose-csv -f report.csv",
    "gRPC, concurrency": f"-m simple {GRPC} {CONCURRENCY}",
    "gRPC, concurrency, asynchronous": f"-m simple {GRPC} {CONCURRENCY} --async",
    "gRPC, concurrency, batches of 4": f"-m simple {GRPC} {CONCURRENCY} -b 4",
    "gRPC, concurrency, gzip": f"-m simple {GRPC} {CONCURRENCY} --grpc-compression-algorithm=gzip",
    "gRPC, concurrency, strings": f"-m simple_string {GRPC} {CONCURRENCY} --string-data=7",
    "gRPC, concurrency, shared memory": f"-m simple {GRPC} {CONCURRENCY} {MEMORY}",
    "gRPC, concurrency, an ensemble": f"-m twice {GRPC} {CONCURRENCY}",
    "gRPC, request rate": f"-m simple {GRPC} {RATE}",
    "gRPC, request rate, shared memory": f"-m simple {GRPC} {RATE} {MEMORY}",
    "gRPC, sequences, concurrency": f"{SEQUENCE} {GRPC} {CONCURRENCY}",
    "gRPC stream, concurrency": f"-m simple {STREAM} {CONCURRENCY} --async",
    "gRPC stream, concurrency, shared memory": f"-m simple {STREAM} {CONCURRENCY} --async {MEMORY}",
    "gRPC stream, request rate": f"-m simple {STREAM} {RATE} --async",
    "gRPC stream, periodic concurrency": f"-m repeat_int32 {STREAM} --async --periodic-concurrency-range=1:4:1 "
                                         "--request-period=2 --input-data=repeat.json --profile-export-file=profile.json",
    "gRPC stream, decoupled": f"-m repeat_int32 {STREAM} {CONCURRENCY} --async --input-data=repeat.json",
    "gRPC stream, sequences, concurrency": f"{SEQUENCE} {STREAM} {CONCURRENCY} --async",
    "gRPC stream, sequences, request rate": f"{SEQUENCE} {STREAM} {RATE} --async --num-of-sequences=3",
}  # fmt: skip
# What is measured is none of this test: short windows, and any spread will do.
SHORT = "--measurement-interval=300 --stability-percentage=999 --max-trials=3"
REPEATED = '{"data": [{"IN": {"content": [4, 5, 6], "shape": [3]}, "DELAY": {"content": [0, 0, 0], "shape": [3]}, "WAIT": [0]}]}'


def perf_analyzer():
    for name, arguments in SWEEPS.items():
        periodic = "periodic" in arguments
        windows = "" if periodic or "request-count" in arguments else SHORT
        measured = "grep -q response_timestamps profile.json" if periodic else "grep -q 'Throughput: [0-9.]* infer/sec' report"
        command = f"""cd perf
echo '{REPEATED}' >repeat.json
printf '%s\\n' 2000 5000 1000 >intervals
LD_LIBRARY_PATH=$PWD ./perf_analyzer {arguments} {windows} | tee report
{measured} || {{ echo 'it measured nothing'; exit 90; }}
! grep -E 'Failed|rror' report"""
        yield Program("perf_analyzer", name, command, repositories.perf)


def model_analyzer():
    yield Program("Model Analyzer", "profile in remote mode", """mkdir -p analyzer && cd analyzer && rm -rf *
cat >profile.yaml <<'END'
profile_models:
  simple:
    parameters:
      batch_sizes: [1, 4]
      concurrency: [1, 2]
perf_analyzer_flags:
  measurement-interval: 500
  stability-percentage: 999
END
export LD_LIBRARY_PATH=$PWD/../perf PATH=$PWD/../perf:$PATH
model-analyzer profile --triton-launch-mode=remote --triton-http-endpoint=localhost:8000 \\
  --triton-grpc-endpoint=localhost:8001 --triton-metrics-url=http://localhost:8002/metrics \\
  --run-config-search-disable --config-file=profile.yaml --export-path=.
grep -q simple results/metrics-model-inference.csv && cat results/metrics-model-inference.csv""",
                  repositories.perf, EXPLICIT)  # fmt: skip


def others():
    yield Program("Node client", "client.js", "cd node && node client.js localhost 8001", repositories.simple)
    yield Program("Rust client", "simple_grpc_infer",
                  "cd rust && cargo run --offline --quiet --example simple_grpc_infer -- http://localhost:8001",
                  repositories.rust)  # fmt: skip
    yield Program("Rust client", "its tests", "cd rust && cargo test --offline --quiet", repositories.rust,
                  environment={"TRITON_TEST_URL": "http://localhost:8001"})  # fmt: skip


def programs():
    yield from examples()
    yield from perf_analyzer()
    yield from model_analyzer()
    yield from others()


def run(harness, groups):
    """The rows of the groups, as the harness has them: group, name, ran, bad, left."""
    folder = harness.out / "clients"
    folder.mkdir(exist_ok=True)
    logs = harness.out / "logs" / "clients"
    logs.mkdir(parents=True, exist_ok=True)
    prepared(folder, groups)
    for program in programs():
        if program.group not in groups:
            continue
        if program.left:
            yield program.group, program.name, 0, [], {program.name: program.left}
            continue
        models = folder / "models"
        shutil.rmtree(models, ignore_errors=True)
        models.mkdir()
        program.repository(models, harness.data["newest"], harness.checkouts["newest"])
        log = logs / (re.sub(r"\W+", "_", f"{program.group} {program.name}") + ".log")
        command = f"(set -eo pipefail\n{program.command}\n)"
        status = harness.beside_server(folder, "newest", models, program.flags, command, program.environment, log)
        yield program.group, program.name, 1, [] if status == 0 else [f"status {status}"], {}
