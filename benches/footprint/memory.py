"""Where a server's memory goes: what it says of itself, beside what the system counts for its process.

    cargo build --release -p halimede-server --bin halimede
    python benches/footprint/memory.py --models DIR [--precisions exact balanced] [--binary FILE] [--json FILE] [--svg FILE]

DIR has a folder per model with 1/model.onnx, as `benches/peers/prepare.py` makes them, and may have a config.pbtxt in it. Each model is served
in each precision, by one and by two instances, with packed weights mapped from files and without. What is known of a model
(whether it may compute so) and its packed weights come from a start before. Once every instance has run, and nobody has asked for some seconds,

- the metrics `halimede_model_memory_bytes`, `halimede_model_weights_bytes` and `halimede_instance_memory_bytes` are read;
- the process's memory is read from /proc (Linux only): `written` is what no file stands behind, `private` counts pages of
  files too that no other process has mapped at that moment.

`times` is (private - arenas) / weights: the aim is at most 1.6. It counts the server itself, which without models takes what
the first line says. `untold` is what is written and neither told by the metrics nor taken by a server without models.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from first_answer import WAIT_SECONDS_MAX, Started, answer, repository_of, request, tensors
from run import RELEASE, memory_mib

sys.path.append(str(Path(__file__).resolve().parent.parent))
import machine  # noqa: E402
import picture  # noqa: E402

MIB = 2**20
# Until what requests took has gone back to the system.
REST_SECONDS = 8


def metrics(port):
    """Sums of the engine's metrics of memory, in bytes: by name, those of the model by part and backing."""
    sums = {}
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as reply:
        for line in reply.read().decode().splitlines():
            if not line.startswith(("halimede_model_", "halimede_instance_memory")):
                continue
            name, value = line.rsplit(" ", 1)
            name, _, labels = name.partition("{")
            pairs = dict(pair.split("=") for pair in labels.strip("}").split(","))
            key = " ".join([name, *(pairs[kind].strip('"') for kind in ("part", "backing") if kind in pairs)])
            sums[key] = sums.get(key, 0) + float(value)
            if name == "halimede_instance_memory_bytes":
                sums["instances"] = sums.get("instances", 0) + 1
    return sums


class Settled(Started):
    """A server whose model has its final form."""

    def until_all_ran(self, name, sent, instances):
        """Waits until nothing changes any more, and every instance has run."""
        end = time.perf_counter() + WAIT_SECONDS_MAX
        before = None
        while True:
            threads = [threading.Thread(target=answer, args=(self.ports[0], name, sent)) for _ in range(2 * instances)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            found = metrics(self.ports[2])
            now = (found, Path(self.log.name).read_text())
            if found.get("instances") == instances and now == before:
                return found
            if time.perf_counter() > end:
                sys.exit(f"{found.get('instances')} of {instances} instances ran: {now[1]}")
            before = now
            time.sleep(1)


def measure(binary, source, precision, idle_mib):
    """A row for each number of instances, with packed weights in files and without."""
    name, sent = source.name, request(tensors(source.name))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        repositories = {instances: repository_of(source, folder, instances) for instances in (1, 2)}
        start = lambda instances, *flags: Settled(
            binary, repositories[instances], folder / "known", [f"--precision={precision}", *flags])  # fmt: skip
        # What is found out and packed here is known from the next start on.
        for _ in range(2):
            with start(1) as server:
                server.first_answer(name, sent)
                if precision != "exact":
                    server.until_settled(name, sent, 1)
                server.until_all_ran(name, sent, 1)
        for state, flags in {"off": ["--packed-weights=off"], "mapped": []}.items():
            for instances, _ in repositories.items():
                with start(instances, *flags) as server:
                    server.first_answer(name, sent)
                    told = server.until_all_ran(name, sent, instances)
                    time.sleep(REST_SECONDS)
                    _, private, written = memory_mib(server.process.pid)
                row = {"model": name, "precision": precision, "packed weights": state, "instances": instances}
                row |= {key.removeprefix("halimede_"): value / MIB for key, value in told.items() if key != "instances"}
                arenas, weights = row["instance_memory_bytes"], row["model_weights_bytes"]
                own = sum(value for key, value in row.items() if str(key).endswith(" private"))
                row |= {"private": private, "written": written, "times": (private - arenas) / weights}
                row["untold"] = written - own - arenas - idle_mib
                rows.append(row)
    return rows


def idle(binary):
    """What a server without models writes."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "empty").mkdir()
        with Settled(binary, Path(folder) / "empty", Path(folder) / "cache", []) as server:
            while True:
                try:
                    metrics(server.ports[2])
                    break
                except OSError:
                    time.sleep(0.05)
            time.sleep(1)
            return memory_mib(server.process.pid)


COLUMNS = {
    "weights": "model_weights_bytes",
    "packed": ("model_memory_bytes packed private", "model_memory_bytes packed mapped"),
    "constants": ("model_memory_bytes constants private", "model_memory_bytes constants mapped"),
    "sources": "model_memory_bytes sources private",
    "plans": "model_memory_bytes plans private",
    "arenas": "instance_memory_bytes",
    "written": "written",
    "untold": "untold",
    "private": "private",
}


def drawn(report, rows):
    made = {}
    for row in rows:
        program = f"{row['packed weights']}, {row['instances']} instance(s)"
        made.setdefault(f"{row['model']}, {row['precision']}", []).append((program, row["times"], f"{row['times']:.2f}", True))
    note = f"class {report['machine']['class']}, {report['date']}; (private - arenas) / weights, by where packed weights are; shorter is less"
    return picture.svg("Private memory beside the weights", note, list(made.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--names", nargs="+", default=["resnet50_torchscript", "bert_base_torchscript"])
    parser.add_argument("--precisions", nargs="+", default=["exact", "balanced"])
    parser.add_argument("--binary", type=Path, default=RELEASE / "halimede")
    machine.add_arguments(parser)
    options = parser.parse_args()
    report = machine.facts(options.binary, options.build, options.note)
    print(f"# Where memory goes\n\n{machine.heading(report)} Amounts in MiB.\n")
    # Pages of a binary that was just built count as written until they are on the disk.
    os.sync()
    _, private, written = idle(options.binary)
    print(f"without models: private {private:.1f} MiB, of that written {written:.1f} MiB\n")
    print(f"| model | precision | packed weights | instances | {' | '.join(COLUMNS)} | times |")
    print("|---" * (len(COLUMNS) + 5) + "|")
    rows = []
    for name in options.names:
        for precision in options.precisions:
            for row in measure(options.binary, options.models / name, precision, written):
                rows.append(row)
                amount = lambda keys: " + ".join(f"{row[key]:.1f}" for key in ([keys] if isinstance(keys, str) else keys))
                print(f"| {name} | {precision} | {row['packed weights']} | {row['instances']} "
                      f"| {' | '.join(amount(keys) for keys in COLUMNS.values())} | {row['times']:.2f} |", flush=True)  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(report | {"rows": rows}, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(drawn(report, rows))


if __name__ == "__main__":
    main()
