"""Everything from a checkout to tables and pictures: build, packages, models, measurements.

    python3 benches/peers/all.py MODELS --name peers-m-27 [WORKLOAD ...] [--peers NAME,NAME] [--rounds 7]
        [--seconds 0.1] [--threads 1] [--note TEXT] [--into docs/benchmarks] [--binary FILE] [--python FILE]
        [--dry-run]

Packages are installed into target/peers, unless `--python` names an interpreter that has them; the server
is built, unless `--binary` names one. Models that MODELS has already stay. INTO/NAME.json, .md and .svg are
written; workloads that NAME.json has of an earlier run and that are not measured again stay in it. `--dry-run`
prints the commands, which may be run one by one, too. A step that fails ends it.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENVIRONMENT = ROOT / "target" / "peers"


def commands(options):
    """What is run, one after the other, in the root of the project."""
    python = options.python
    if not options.binary:
        yield ["cargo", "build", "--release", "-p", "halimede-server", "--bin", "halimede"]
    if not python:
        python = ENVIRONMENT / "bin" / "python"
        if not python.exists():
            yield [sys.executable, "-m", "venv", ENVIRONMENT]
        yield [python, "-m", "pip", "install", "--quiet", "--requirement", HERE / "requirements.txt"]
    # Those that read models of 8 bits made for them.
    made_for = {"quantize-openvino": "openvino int8", "quantize-onnx": "onnxruntime int8"}
    asked = options.peers and [name.strip() for name in options.peers.split(",")]
    for step in ["export"] + [step for step, peer in made_for.items() if not asked or peer in asked]:
        yield [python, HERE / "prepare.py", options.models, step, *options.workloads]
    report = options.into / f"{options.name}.json"
    given = {"--peers": options.peers, "--binary": options.binary, "--note": options.note}
    measured = ["--threads", options.threads, "--rounds", options.rounds, "--seconds", options.seconds]
    measured += [word for option, value in given.items() if value for word in (option, value)]
    yield [python, HERE / "run.py", options.models, *options.workloads, *measured, "--json", report]
    yield [python, HERE / "draw.py", report, "--svg", options.into, "--markdown", report.with_suffix(".md")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=lambda path: Path(path).absolute(), help="a folder for models; it need not be there")
    parser.add_argument("workloads", nargs="*", help="names or groups of workloads.py; all when left out")
    parser.add_argument("--name", required=True, help="of the report's files, without an ending")
    parser.add_argument("--peers", help="as run.py takes them; all when left out")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--note", help="what a reader of the report should know: what else ran")
    parser.add_argument("--into", type=lambda path: Path(path).absolute(), default=ROOT / "docs" / "benchmarks")
    parser.add_argument("--binary", type=lambda path: Path(path).absolute(), help="a server that is built already")
    parser.add_argument("--python", help="an interpreter that has the packages already")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    options = parser.parse_intermixed_args()
    for command in commands(options):
        words = [str(word) for word in command]
        print(shlex.join(words), flush=True)
        if not options.dry_run:
            status = subprocess.run(words, cwd=ROOT).returncode
            if status:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
