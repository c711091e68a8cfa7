"""Run NVIDIA's QA suites and client programs, unmodified, against the server.

    QA_SERVER=<checkout of triton-inference-server/server> \\
    QA_SERVER_2_51=<the same at tag v2.51.0> \\
    QA_CLIENT=<checkout of triton-inference-server/client> \\
    python scripts/qa/run.py [--out FOLDER] [--server BINARY] [SUITE ...]

Nothing of NVIDIA's is part of this project: the checkouts are copied to a
scratch folder, models are generated there, and the suites run in namespaces of
their own (see sandbox.sh). Needs Linux, the packages of tests/requirements.txt
and `requests`. Prints a table, and writes it and all logs to the scratch folder.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import aliases
import clients
import model_config
import repositories
from suites import GPU, SUITES, VERSION

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SUITE_SECONDS_MAX = 1500

# Of unittest and of pytest.
RAN = re.compile(r"^(?:Ran (\d+) tests?|=+ .*?(\d+) passed)", re.M)
BAD = re.compile(r"^(?:FAIL|ERROR): (\w+)|^(?:FAILED|ERROR) \S+::(\w+)", re.M)
SKIPPED = re.compile(r"skipped=(\d+)")
FOREIGN = re.compile(r"unknown model: '((?:libtorch|plan|python|openvino|graphdef|savedmodel)\w*)'")

CLIENTS = {
    "client-examples": "client examples", "perf-analyzer": "perf_analyzer", "model-analyzer": "Model Analyzer",
    "node": "Node client", "rust": "Rust client",
}  # fmt: skip


class Harness:
    """A scratch folder with copies of the checkouts and their models."""

    def __init__(self, out, server):
        self.out, self.server = out, server
        self.checkouts = {"newest": Path(os.environ["QA_SERVER"])}
        self.checkouts["2.51.0"] = Path(os.environ.get("QA_SERVER_2_51", self.checkouts["newest"]))
        # The suites are written for NumPy 1.
        (out / "python").mkdir(exist_ok=True)
        (out / "python" / "sitecustomize.py").write_text("import numpy\n\nnumpy.NINF = -numpy.inf\n")
        # Looks into the memory of Triton's own Python backend, which is not here.
        (out / "python" / "triton_shm_monitor.py").write_text("")
        self.data = {version: self.generated(version) for version in self.checkouts}

    def generated(self, version):
        data = self.out / f"models-{version}"
        if not data.exists():
            subprocess.run([HERE / "models.sh", self.checkouts[version], data, sys.executable], check=True)
            aliases.main(data)
        return data

    def sandbox(self, folder, version, command, environment, log):
        """Status of `command` where the scripts find server and models; all it printed goes to `log`."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        everything = {
            **os.environ, "PATH": path, "PYTHONPATH": f"../common:{self.out}/python", "TRITON_SERVER_CPU_ONLY": "1",
            "TRITONSERVER_IPADDR": "localhost", "QA_FOLDER": self.out / f"qa-{version}", **environment,
        }  # fmt: skip
        with open(log, "w") as sink:
            try:
                done = subprocess.run(
                    [HERE / "sandbox.sh", self.server, self.data[version], VERSION, *command],
                    cwd=folder, env=everything, stdout=sink, stderr=subprocess.STDOUT, timeout=SUITE_SECONDS_MAX,
                )  # fmt: skip
                return done.returncode
            except subprocess.TimeoutExpired:
                sink.write(f"\nended after {SUITE_SECONDS_MAX} s\n")
                return 124

    def folder(self, suite):
        """A fresh copy of the suite beside the rest of its qa folder."""
        qa = self.out / f"qa-{suite.version}"
        if not qa.exists():
            shutil.copytree(self.checkouts[suite.version] / "qa", qa)
            shutil.copytree(self.checkouts[suite.version] / "docs", self.out / "docs", dirs_exist_ok=True)
        folder = qa / suite.name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.checkouts[suite.version] / "qa" / suite.name, folder)
        if suite.prepare:
            client = Path(os.environ["QA_CLIENT"])
            suite.prepare(folder, self.data[suite.version], self.checkouts[suite.version], client)
        return folder

    def logs(self, suite):
        logs = self.out / "logs" / f"{suite.name}-{suite.version}"
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)
        return logs

    # One method per kind of suite; each yields (name, status, text of the logs).

    def run_script(self, suite, folder, logs):
        status = self.sandbox(folder, suite.version, ["bash", "-e", suite.script, VERSION], suite.environment,
                              logs / "script.log")  # fmt: skip
        # The script repeats the log of a failed client in its own output: count only the clients'.
        text = ""
        folders = [folder, *(folder.parent / other for other in suite.beside)]
        found = {log for one in folders for pattern in ("*client*.log*", "*test*.log*") for log in one.glob(pattern)}
        for log in sorted(found):
            shutil.copy(log, logs)
            text += log.read_text(errors="replace")
        yield suite.script, status, text or (logs / "script.log").read_text(errors="replace")

    def run_sections(self, suite, folder, logs):
        marker = re.compile(rf"^# {suite.sections}\.(\w+)", re.M)
        script = (folder / "test.sh").read_text()
        cuts = list(marker.finditer(script))
        head = script[: cuts[0].start()]
        ends = [cut.start() for cut in cuts[1:]] + [len(script)]
        for number, (cut, end) in enumerate(zip(cuts, ends)):
            name = cut[1]
            if name in suite.not_applicable:
                yield name, None, suite.not_applicable[name]
                continue
            part = folder / f"section_{number}.sh"
            body = script[cut.start() : end]
            if end == len(script):
                body = body[: body.rindex("if [ $RET -eq 0 ]")]
            part.write_text(head + body + "\nexit $RET\n")
            log = logs / f"{number:02}-{name}.log"
            status = self.sandbox(folder, suite.version, ["bash", "-e", part.name, VERSION], suite.environment, log)
            yield f"{name}", status, log.read_text(errors="replace")

    def run_modules(self, suite, folder, logs):
        for number, module in enumerate(suite.modules):
            models = folder / f"models_{number}"
            models.mkdir()
            module.repository(models, self.data[suite.version], self.checkouts[suite.version])
            flags = " ".join(module.flags)
            test = f"{module.before}\npython3 {module.file} " + " ".join(module.tests)
            log = logs / (f"{number}-" + re.sub(r"\W+", "_", module.label or Path(module.file).stem) + ".log")
            environment = {**suite.environment, **module.environment}
            status = self.beside_server(folder, suite.version, models, flags, test, environment, log, module.url)
            yield module.label or module.file, status, log.read_text(errors="replace")

    def run_model_config(self, suite, folder, logs):
        for number, (name, script) in enumerate(model_config.cases(folder, self.data[suite.version])):
            (folder / "case.sh").write_text(script)
            log = logs / f"{number:03}.log"
            status = self.sandbox(folder, suite.version, ["bash", "case.sh"], {}, log)
            yield name, status, ""

    def beside_server(self, folder, version, models, flags, command, environment, log, url="http://localhost:8000"):
        """`command` while a server serves `models`; its status, or 100 when the server fails."""
        script = folder / "beside.sh"
        script.write_text(f"""
/opt/tritonserver/bin/tritonserver --model-repository={models} {flags} >{log}.server 2>&1 &
server=$!
export SERVER_PID=$server
for _ in $(seq 1200); do
  curl -sfk {url}/v2/health/ready && break
  kill -0 $server || {{ cat {log}.server; exit 100; }}
  sleep 0.1
done
{command}
status=$?
kill $server
wait $server || {{ echo "the server ended with $?"; exit 101; }}
exit $status
""")
        return self.sandbox(folder, version, ["bash", script.name], environment, log)

    def run(self, suite):
        """The rows of one suite: name, ran, bad tests, not applicable with reasons."""
        if "*" in suite.not_applicable:
            yield suite.name, 0, [], {"all": suite.not_applicable["*"]}
            return
        for name, why in suite.left.items():
            yield name, 0, [], {name: why}
        folder, logs = self.folder(suite), self.logs(suite)
        kind = self.run_script if suite.script else self.run_sections if suite.sections else self.run_modules
        if suite.name == "L0_model_config":
            kind = self.run_model_config
        for name, status, text in kind(suite, folder, logs):
            if status is None:
                yield name, 0, [], {name: text}
                continue
            ran = sum(int(one or other) for one, other in RAN.findall(text)) - sum(int(n) for n in SKIPPED.findall(text))
            bad = sorted({one or other for one, other in BAD.findall(text)})
            # What fails in several runs of a script counts once, and is missing in each.
            runs = [{one or other for one, other in BAD.findall(part)} for part in re.split(r"^Ran \d+ tests?", text, flags=re.M)]
            ran -= sum(map(len, runs)) - len(bad)
            # Pytest counts what failed apart.
            ran += len({other for _, other in BAD.findall(text) if other})
            left = {test: suite.not_applicable[test] for test in bad if test in suite.not_applicable}
            left |= {test: f"version: {suite.differs[test]}" for test in bad if test in suite.differs}
            bad = [test for test in bad if test not in left]
            if foreign := FOREIGN.search(text):
                left |= {test: f"needs another framework ({foreign[1]})" for test in bad}
                bad = []
            if status != 0 and not bad and suite.gpu_round and ran:
                left["its second round, with models on a GPU"] = GPU
                ran += 1
            if status != 0 and not bad and not left:
                # A case whose name, without flags and folders, stands in the list.
                case = name.split()[-1] if name.startswith("special ") else name.split()[0].rpartition("/")[2]
                if case in suite.not_applicable:
                    left = {case: suite.not_applicable[case]}
                else:
                    bad = [f"status {status}"]
            yield name, max(ran, 1), bad, left


def table(rows):
    """The rows, those without anything to say about counted in one."""
    text = "| suite | part | passed | failed | left out, and why |\n|---|---|---|---|---|\n"
    quiet = {}
    for suite, name, ran, bad, left in rows:
        passed = max(0, ran - len(bad) - len(left)) if ran else 0
        if not bad and not left:
            count = quiet.setdefault(suite, [0, 0])
            count[0], count[1] = count[0] + 1, count[1] + passed
        else:
            reasons = "; ".join(why if test == name else f"{test}: {why}" for test, why in left.items())
            text += f"| {suite} | {name} | {passed} | {', '.join(bad) or 0} | {reasons or 0} |\n"
    notes = {f"{suite.name} {suite.version}": suite.note for suite in SUITES}
    for suite, (parts, passed) in quiet.items():
        note = f", with {notes[suite]}" if notes.get(suite) else ""
        what = "its only part" if len([row for row in rows if row[0] == suite]) == 1 else f"{parts} parts"
        text += f"| {suite} | {what}{note} | {passed} | 0 | 0 |\n"
    return "".join(text.splitlines(True)[:2] + sorted(text.splitlines(True)[2:]))


def document(text):
    lines = text.splitlines()[2:]
    passed = sum(int(line.split("|")[3]) for line in lines)
    failed = sum(0 if line.split("|")[4].strip() == "0" else line.split("|")[4].count(",") + 1 for line in lines)
    return f"""# NVIDIA's QA suites and client programs against this server

Written by `scripts/qa/run.py --document docs/qa.md` ({time.strftime("%Y-%m-%d")}): {passed} passed, {failed} failed.
The suites run unmodified, of the newest version unless the first column says 2.51.0; nothing of them is
part of this project. A row counts tests, or the parts of a shell script; parts that passed are counted in one row.
Models of other frameworks are ONNX models under their names: what such a test checks about the server does
not depend on the framework.
What fails is a difference that `status.md` names. What is left out needs a GPU, another framework, a C++ program or a
download. Suites that measure times want a machine with nothing else to do,
and the one of large payloads 16 GB of memory.

The client programs are of the newest version, but for perf_analyzer, which comes with `tritonclient` 2.48.0. Each runs beside
a server of its own and passes when it ends with status 0. For the examples with images, a network with DenseNet's
signature that computes means of rows stands in for DenseNet, and a Python model for the ensemble's preprocessing. A row of
perf_analyzer is a sweep of concurrency or of request rates, over HTTP, gRPC or a stream, with system shared memory,
sequences, JSON, compression, decoupled responses, an ensemble (`SWEEPS` in `scripts/qa/clients.py`): it has to measure
something without an error, whatever that is. Model Analyzer profiles one model in remote mode.

{text}"""


def merged(text, known):
    """The document `known` with the rows of the suites in `text` instead of its own."""
    new = text.splitlines()[2:]
    suites = {line.split("|")[1] for line in new}
    lines = known.splitlines()
    rows = [line for line in lines if line.startswith("|")]
    kept = [row for row in rows[2:] if row.split("|")[1] not in suites]
    head = [line for line in lines if not line.startswith("|")]
    whole = "\n".join([*rows[:2], *sorted(kept + new)]) + "\n"
    written = document(whole).splitlines()[2]
    place = next(number for number, line in enumerate(head) if line.startswith("Written by"))
    head[place] = written
    return "\n".join(head).rstrip() + "\n\n" + whole


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "target" / "qa")
    parser.add_argument("--server", type=Path, default=ROOT / "target" / "release" / "halimede")
    parser.add_argument("--document", type=Path, help="write the table with what it means to this file; of suites that are named, only the rows")
    parser.add_argument("suites", nargs="*", help=f"names, or {', '.join(CLIENTS)}; all if none")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    harness = Harness(options.out.resolve(), options.server.resolve())
    rows = []
    for suite in SUITES:
        if not options.suites or suite.name in options.suites:
            start = time.monotonic()
            for name, ran, bad, left in harness.run(suite):
                rows.append([f"{suite.name} {suite.version}", name, ran, bad, left])
                print(f"{suite.name}: {name}: {ran} ran, bad {bad}, left {left}", file=sys.stderr, flush=True)
            print(f"{suite.name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    if groups := [group for name, group in CLIENTS.items() if not options.suites or name in options.suites]:
        for row in clients.run(harness, groups):
            rows.append(list(row))
            print(f"{row[0]}: {row[1]}: bad {row[3]}, left {row[4]}", file=sys.stderr, flush=True)
    text = table(rows)
    print(text)
    (options.out / "table.md").write_text(text)
    if options.document:
        known = options.document.read_text() if options.suites and options.document.exists() else None
        options.document.write_text(merged(text, known) if known else document(text))
    (options.out / "table.json").write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(any(bad for _, _, _, bad, _ in rows))


if __name__ == "__main__":
    main()
