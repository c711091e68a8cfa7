"""Every table of the engine from a checkout: build, packages, models, measurements, tables and pictures.

    python3 benches/all.py MODELS --name z-7 [WORKLOAD ...] [--parts PART,PART] [--served-peer COMMAND] [--peers NAME,NAME]
        [--rounds 7] [--seconds 0.1] [--threads 1] [--note TEXT] [--into docs/benchmarks] [--binary FILE] [--build COMMIT]
        [--python FILE] [--dry-run]

The parts, in this order, all of them when left out:

- peers: the workloads beside other engines, on `--threads` threads;
- kernels: the engine's kernels by themselves, of what the machine does at best;
- threads: models with two threads against one;
- first-answer, memory: ResNet-50 and BERT-base from the start to the first answer, and what they take;
- served: the same over HTTP beside a real tritonserver, which `--served-peer` starts (benches/served/README.md); left out without it.

Packages are installed into target/peers, unless `--python` names an interpreter that has them; the server
is built, unless `--binary` names one. Models that MODELS has already stay. Of each part INTO/PART-NAME.json, .md and .svg are
written; workloads that peers-NAME.json has of an earlier run and that are not measured again stay in it. WORKLOADs, `--rounds` and
`--seconds` are meant for the first part. `--dry-run` prints the commands, which may be run one by one, too. A step that fails ends it.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "benches"
ENVIRONMENT = ROOT / "target" / "peers"
PARTS = ("peers", "kernels", "threads", "first-answer", "memory", "served")


def commands(options):
    """What is run, one after the other, in the root of the project, and the file that what it prints goes to, if it does."""
    python = options.python
    if not options.binary:
        yield ["cargo", "build", "--release", "-p", "halimede-server", "--bin", "halimede"], None
    if "served" in options.parts:
        yield ["cargo", "build", "--release", "-p", "halimede-server", "--example", "load"], None
    if not python:
        python = ENVIRONMENT / "bin" / "python"
        if not python.exists():
            yield [sys.executable, "-m", "venv", ENVIRONMENT], None
        yield [python, "-m", "pip", "install", "--quiet", "--requirement", HERE / "peers" / "requirements.txt"], None
    yield from prepared(options, python)
    given = {"--binary": options.binary, "--build": options.build, "--note": options.note}
    given = [word for option, value in given.items() if value for word in (option, value)]
    for part in options.parts:
        stem = options.into / f"{part}-{options.name}"
        report, table, picture = (stem.with_name(f"{stem.name}.{ending}") for ending in ("json", "md", "svg"))
        if part == "peers":
            measured = ["--threads", options.threads, "--rounds", options.rounds, "--seconds", options.seconds]
            measured += ["--peers", options.peers] if options.peers else []
            yield [python, HERE / "peers/run.py", options.models, *options.workloads, *measured, *given, "--json", report], None
            yield [python, HERE / "peers/draw.py", report, "--svg", options.into, "--markdown", table], None
            continue
        script, arguments = {
            "kernels": ("kernels/run.py", []),
            "threads": ("threads/run.py", [options.models]),
            "first-answer": ("footprint/first_answer.py", ["--models", options.models]),
            "memory": ("footprint/memory.py", ["--models", options.models]),
            "served": ("served/run.py", [options.models, "--peer", options.served_peer]),
        }[part]
        yield [python, HERE / script, *arguments, *given, "--json", report, "--svg", picture], table


def prepared(options, python):
    """Models: all where a part needs its own, otherwise those of the workloads; those of 8 bits where a peer reads them."""
    prepare = HERE / "peers" / "prepare.py"
    needs_all = set(options.parts) - {"peers", "kernels"}
    if "peers" in options.parts or needs_all:
        yield [python, prepare, options.models, "export", *([] if needs_all else options.workloads)], None
    made_for = {"quantize-openvino": "openvino int8", "quantize-onnx": "onnxruntime int8"}
    asked = options.peers and [name.strip() for name in options.peers.split(",")]
    for step, peer in made_for.items():
        if "peers" in options.parts and (not asked or peer in asked):
            yield [python, prepare, options.models, step, *options.workloads], None


def parts(text):
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"{name} is no part: {', '.join(PARTS)}")
    return [part for part in PARTS if part in chosen]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    path = lambda text: Path(text).absolute()
    parser.add_argument("models", type=path, help="a folder for models; it need not be there")
    parser.add_argument("workloads", nargs="*", help="names or groups of benches/peers/workloads.py; all when left out")
    parser.add_argument("--name", required=True, help="of the reports, behind that of their part: a class and a number")
    parser.add_argument("--parts", type=parts, default=list(PARTS), help="separated by commas")
    parser.add_argument("--served-peer", help="the command that starts a tritonserver whose Python has OpenVINO")
    parser.add_argument("--peers", help="as benches/peers/run.py takes them; all when left out")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--note", help="what a reader of the reports should know: what else ran")
    parser.add_argument("--into", type=path, default=ROOT / "docs" / "benchmarks")
    parser.add_argument("--binary", type=path, help="a server that is built already")
    parser.add_argument("--build", help="the commit that it was built of, where that is not the checkout's")
    parser.add_argument("--python", help="an interpreter that has the packages already")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    options = parser.parse_intermixed_args()
    # Shells look names without a slash up, and so does what starts the steps.
    if options.python and "/" in options.python:
        options.python = Path(options.python).absolute()
    if "served" in options.parts and not options.served_peer:
        print("left out: served, for --served-peer names no tritonserver", file=sys.stderr)
        options.parts.remove("served")
    if not options.dry_run:
        options.into.mkdir(parents=True, exist_ok=True)
    for command, table in commands(options):
        words = [str(word) for word in command]
        print(shlex.join(words) + (f" > {shlex.quote(str(table))}" if table else ""), flush=True)
        if options.dry_run:
            continue
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE if table else None, text=True)
        if done.returncode:
            return done.returncode
        if table:
            table.write_text(done.stdout.rstrip() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
