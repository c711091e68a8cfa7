"""Halimede beside its peers on this machine, interleaved round by round.

    cargo build --release -p halimede-server --bin halimede
    python -m venv ENV && ENV/bin/pip install -r benches/peers/requirements.txt
    ENV/bin/python benches/peers/prepare.py MODELS export          (and quantize-onnx, quantize-openvino)
    ENV/bin/python benches/peers/run.py MODELS [WORKLOAD ...] [--peers NAME,NAME] [--threads 1]
        [--rounds 11] [--seconds 0.25] [--binary FILE] [--json FILE]

A WORKLOAD is a name or a group of workloads.py, or FILE.onnx@input=1x3x224x224,other=i64:1x128. Each peer
has a process of its own, loaded once; in each round every one of them runs for the given seconds, the
order rotating. All are bound to the same processors. A sample is the median of a round's runs: processor
time on one thread, wall time on more. Before and after each sample a probe multiplies and reads the
first-level cache on those processors: samples taken while the machine ran slower, or faster, than for the
other programs are dropped and counted. Reported are medians over the rounds, and per peer how many times as fast we are in the same precision, with a 95 % interval.
"""

import argparse
import contextlib
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import reports
import stats
from peers import BY_NAME as PEERS_BY_NAME
from peers import PEERS
from workloads import BY_NAME, GROUPS, GROUPS_OF_WORKLOADS, WORKLOADS, adhoc, texts

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from machine import ROOT, machine, version  # noqa: E402

# At most so many rounds for each that was asked for, where a slow mode spoiled some.
ROUNDS_MOST = 2


class Ended(Exception):
    """A program ended while it was being measured."""


class Program:
    """A process that speaks the line protocol."""

    def __init__(self, command, cpus, environment=None):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        line = self.process.stdout.readline()
        word, _, rest = line.partition(" ")
        self.facts = json.loads(rest) if rest else {}
        self.ready = word == "READY"
        if self.ready:
            for task in os.listdir(f"/proc/{self.process.pid}/task"):
                os.sched_setaffinity(int(task), cpus)

    def ask(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError) as error:
            raise Ended from error

    def sample(self, seconds, runs, clock):
        return statistics.median(self.ask(f"run {seconds} {runs}")[clock])

    def close(self):
        # A pipe that nobody reads any more cannot be flushed.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


class Bench:
    """What one invocation measures with."""

    def __init__(self, options):
        self.options = options
        self.cpus = set(sorted(os.sched_getaffinity(0))[-options.threads :])
        self.clock = "cpu" if options.threads == 1 else "lat"
        # One probe per processor: the slow mode is one of each by itself.
        self.probes = [Program([options.binary, "doctor", "--probe"], {cpu}) for cpu in self.cpus]

    def probe(self):
        """What the slowest of the processors can do right now."""
        return worst(list(probe.ask("probe").values()) for probe in self.probes)

    def model(self, workload):
        named = self.options.models / workload.model / "1" / "model.onnx"
        return named if workload.group != "files" else Path(workload.model)

    def start(self, peer, workload, folder):
        """The peer's program, loaded; or why it is not."""
        if peer.runtime == "halimede":
            return self.start_ours(peer, workload, folder)
        in_torch = peer.runtime in ("torch", "onednn")
        python = self.options.torch_python if in_torch else sys.executable
        command = [python, HERE / "worker.py", peer.name, self.model(workload), folder]
        command += ["--threads", str(self.options.threads), "--case", workload.model]
        program = Program(command, self.cpus, dict(os.environ, HF_HUB_OFFLINE="1"))
        return program if program.ready else program.facts.get("reason", "it ended while it loaded")

    def start_ours(self, peer, workload, folder):
        """As a worker does, the fastest of several groupings."""
        best = None
        for place in sorted(folder.iterdir(), key=lambda place: int(place.name)):
            command = [self.options.binary, "bench", self.model(workload), "--interactive", "--precision", peer.options["mode"]]
            command += ["--threads", str(self.options.threads)]
            for file in sorted(place.iterdir(), key=lambda file: int(file.stem)):
                command += ["--inputs", file]
            program = Program(command, self.cpus)
            if not program.ready:
                return "the binary does not run it in this mode"
            program.facts["group"] = int(place.name)
            program.facts["version"] = version(self.options.binary, self.options.build)
            seconds = min(program.ask("run 0.3 3")["lat"])
            if best and best[0] <= seconds:
                program.close()
            else:
                if best:
                    best[1].close()
                best = (seconds, program)
        return best[1]

    def outputs(self, peer, program, workload, folder, scratch):
        """The first output of the first feed."""
        if peer.runtime != "halimede":
            file = scratch / "outputs.npz"
            program.ask(f"save {file}")
            return np.load(file)["arr_0"]
        command = [self.options.binary, "run", self.model(workload), "--precision", peer.options["mode"]]
        command += ["--inputs", folder / "1" / "0.npz", "--output", scratch / "outputs"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return np.load(re.match(r"(.*\.npy) ", printed).group(1))

    def answers(self, programs, workload, folder, scratch):
        """What each program answers, and what it is compared with: an answer in f32, whoever is measured."""
        def ask(name, program):
            return self.outputs(PEERS_BY_NAME[name], program, workload, folder, scratch)

        answers = {name: ask(name, program) for name, program in programs.items()}
        for name in ("onnxruntime f32", "halimede exact"):
            if name in answers:
                return answers, answers[name]
        return answers, ask("halimede exact", None)

    def measure(self, workload):
        """A row per peer, and why others have none."""
        with tempfile.TemporaryDirectory() as place:
            place = Path(place)
            write_feeds(workload, place / "feeds")
            programs, missing = {}, []
            for peer in self.options.peers:
                if not peer.runs(workload):
                    continue
                program = self.start(peer, workload, place / "feeds")
                if isinstance(program, str):
                    missing.append({"workload": workload.name, "peer": peer.name, "reason": program})
                    print(f"  not run: {peer.name}: {program}", flush=True)
                else:
                    programs[peer.name] = program
            samples = self.rounds(programs) if programs else {}
            for name in programs.keys() - samples.keys():
                missing.append({"workload": workload.name, "peer": name, "reason": "it ended while it was measured"})
                programs.pop(name).close()
            answers, reference = {}, None
            if len(programs) > 1 and not workload.texts:
                answers, reference = self.answers(programs, workload, place / "feeds", place)
            for program in programs.values():
                program.close()
        rows = []
        for name, taken in samples.items():
            peer, facts = PEERS_BY_NAME[name], programs[name].facts
            rows.append({
                "workload": workload.name, "group": workload.group, "batch": workload.batch, "peer": name,
                "precision": peer.precision, "version": facts["version"], "together": facts["group"],
                "ms": [round(1e3 * sample, 5) for sample, _ in taken],
                "probes": [[round(rate, 1) for rate in probe] for _, probe in taken],
                **(closeness(answers[name], reference) if name in answers and peer.group == "" else {}),
            })  # fmt: skip
        return rows, missing

    def rounds(self, programs):
        """Per program its samples with the probe around each. Rounds are added where a slow mode spoiled some."""
        samples = {name: [] for name in programs}
        names = list(programs)
        rounds = self.options.rounds
        for number in range(rounds * ROUNDS_MOST):
            if number >= rounds and not self.spoiled(samples):
                break
            start = number % len(names)
            for name in names[start:] + names[:start]:
                if name in samples:
                    self.sample(programs[name], samples, name)
        return samples

    def sample(self, program, samples, name):
        before = self.probe()
        try:
            sample = program.sample(self.options.seconds, self.options.runs, self.clock)
        except Ended:
            del samples[name]
            return
        samples[name].append((sample, worst([before, self.probe()])))

    def spoiled(self, samples):
        """Whether there is no speed of the machine that all programs have enough samples of."""
        probes = [[probe for _, probe in taken] for taken in samples.values()]
        return stats.common_speed(probes, self.options.rounds) is None


def worst(probes):
    """[GFLOP/s in f32, GB/s from the first-level cache], each the lowest."""
    return [min(rates) for rates in zip(*probes)]


def write_feeds(workload, folder):
    groupings = {g: texts(workload.texts, g) for g in GROUPS} if workload.texts else {1: workload.feeds()}
    for group, feeds in groupings.items():
        (folder / str(group)).mkdir(parents=True)
        for number, feed in enumerate(feeds):
            np.savez(folder / str(group) / f"{number}.npz", **feed)


def closeness(found, reference):
    """How near an answer is to the reference in f32."""
    if found.shape != reference.shape:
        return {}
    a, b = found.astype(np.float64).ravel(), reference.astype(np.float64).ravel()
    cosine = float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-300))
    return {"cosine": round(cosine, 7), "largest_difference": float(f"{abs(a - b).max() / max(abs(b).max(), 1e-300):.2g}")}


def chosen(names):
    for name in names or [workload.name for workload in WORKLOADS]:
        if name in GROUPS_OF_WORKLOADS:
            yield from (workload for workload in WORKLOADS if workload.group == name)
        else:
            yield BY_NAME[name] if name in BY_NAME else adhoc(name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, help="the folder that prepare.py filled")
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--peers", default=",".join(peer.name for peer in PEERS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=0.25)
    parser.add_argument("--runs", type=int, default=2, help="at least so many a round")
    parser.add_argument("--binary", default=str(ROOT / "target/release/halimede"))
    parser.add_argument("--build", default="", help="the commit that the binary was built of, where it came from another machine")
    parser.add_argument("--torch-python", default=sys.executable, help="where torch lives in an environment of its own")
    parser.add_argument("--note", default="", help="what a reader of the report should know: the build, what else ran")
    parser.add_argument("--json", type=Path, help="workloads that it has already are replaced")
    options = parser.parse_args()
    options.peers = [PEERS_BY_NAME[name.strip()] for name in options.peers.split(",")]
    bench = Bench(options)
    report = {
        "format": 1, "date": datetime.date.today().isoformat(), "machine": machine(), "threads": options.threads,
        "clock": "processor time" if bench.clock == "cpu" else "wall time", "rounds": options.rounds,
        "seconds": options.seconds, "note": options.note, "rows": [], "not_run": [],
    }  # fmt: skip
    if options.json and options.json.exists():
        earlier = json.loads(options.json.read_text())
        if any(earlier[key] != report[key] for key in ("machine", "threads", "clock")):
            sys.exit(f"{options.json}: it holds another machine's figures, or other threads'")
        report |= {key: earlier[key] for key in ("rows", "not_run")}
    order = {workload.name: place for place, workload in enumerate(WORKLOADS)}
    for workload in chosen(options.workloads):
        print(f"{workload.name}, load {os.getloadavg()[0]:.1f}", flush=True)
        rows, missing = bench.measure(workload)
        for key, made in (("rows", rows), ("not_run", missing)):
            kept = [row for row in report[key] if row["workload"] != workload.name]
            report[key] = sorted(kept + made, key=lambda row: order.get(row["workload"], len(order)))
        print(reports.markdown(report | {"rows": rows, "not_run": []}), flush=True)
        if options.json:
            options.json.write_text(json.dumps(report, separators=(",", ":")).replace("},{", "},\n{") + "\n")


if __name__ == "__main__":
    main()
