"""How much faster one request becomes with more threads: each model with every number of threads, in turns.

    cargo build --release -p halimede-server --bin halimede
    python benches/peers/prepare.py MODELS export
    python benches/threads/run.py MODELS [WORKLOAD ...] [--threads 1 2] [--precisions balanced] [--rounds 9] [--seconds 0.2]
        [--binary FILE] [--json FILE] [--svg FILE]

A WORKLOAD is a name or a group of benches/peers/workloads.py; without any, all vision and text models are measured but for texts of mixed
length. A process for each number of threads, loaded once, bound to as many processors; they take turns, in short slices. Reported
are medians of wall time, and how many times as fast as with the first number of threads, with a 95 % interval.
"""

import argparse
import json
import statistics
import sys
import tempfile
from os import sched_getaffinity
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "peers")]
import machine  # noqa: E402
import picture  # noqa: E402
import run as peers_run  # noqa: E402
import stats  # noqa: E402
from reports import between  # noqa: E402
from workloads import WORKLOADS  # noqa: E402


def workloads(names):
    found = peers_run.chosen(names) if names else (w for w in WORKLOADS if w.group in ("vision", "text"))
    return [workload for workload in found if not workload.texts]


def measure(options, workload, precision, cpus):
    """Samples in milliseconds by number of threads."""
    with tempfile.TemporaryDirectory() as place:
        feeds = Path(place) / "feeds"
        peers_run.write_feeds(workload, feeds)
        model = options.models / workload.model / "1" / "model.onnx"
        programs = {}
        for threads in options.threads:
            command = [options.binary, "bench", model, "--interactive", "--precision", precision, "--threads", str(threads)]
            programs[threads] = peers_run.Program([*command, "--inputs", feeds / "1" / "0.npz"], set(cpus[-threads:]))
            if not programs[threads].ready:
                sys.exit(f"{model}: the binary does not run it in {precision}")
        samples = {threads: [] for threads in programs}
        for number in range(options.rounds):
            turn = number % len(programs)
            order = list(programs)
            for threads in order[turn:] + order[:turn]:
                samples[threads].append(1e3 * programs[threads].sample(options.seconds, 2, "lat"))
        for program in programs.values():
            program.close()
    return samples


def markdown(report):
    threads = report["threads"]
    against = [f"{n} against {threads[0]}" for n in threads[1:]]
    yield f"| workload | precision | {' | '.join(f'{n} thread(s), ms' for n in threads)} | {' | '.join(against)} |"
    yield "|---|---|" + "---:|" * len(threads) + "---|" * len(against)
    for row in report["rows"]:
        samples = list(row["ms"].values())
        times = [f"{statistics.median(one):.3f}" for one in samples]
        yield f"| {' | '.join([row['workload'], row['precision'], *times, *map(between, speedups(samples))])} |"


def speedups(samples):
    """Of every number of threads but the first: how many times as fast as with that."""
    return [stats.speedup(more, samples[0]) for more in samples[1:]]


def drawn(report):
    made = []
    for row in report["rows"]:
        samples = list(row["ms"].values())
        texts = [""] + [f"  ×{between(times)}" for times in speedups(samples)]
        bars = [
            (f"{threads} thread(s)", statistics.median(one), f"{statistics.median(one):.2f} ms{text}", True)
            for (threads, one), text in zip(row["ms"].items(), texts)
        ]
        made.append((f"{row['workload']}, {row['precision']}", bars))
    where = report["machine"]
    note = f"class {where['class']}, wall time, {report['date']}; shorter is faster; ×: against {report['threads'][0]} thread(s), with a 95 % interval"
    return picture.svg("More threads", note, made)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, help="the folder that prepare.py filled")
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--precisions", nargs="+", default=["balanced"], choices=("exact", "balanced", "fast"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--binary", default=str(machine.ROOT / "target/release/halimede"))
    machine.add_arguments(parser)
    options = parser.parse_intermixed_args()
    cpus = sorted(sched_getaffinity(0))
    if max(options.threads) > len(cpus):
        sys.exit(f"{max(options.threads)} threads on {len(cpus)} processors would only take turns")
    report = machine.facts(options.binary, options.build, options.note)
    report |= {"threads": options.threads, "rounds": options.rounds, "seconds": options.seconds, "rows": []}
    for workload in workloads(options.workloads):
        for precision in options.precisions:
            ms = {threads: [round(s, 5) for s in samples] for threads, samples in measure(options, workload, precision, cpus).items()}
            report["rows"].append({"workload": workload.name, "precision": precision, "ms": ms})
            print(f"{workload.name}, {precision}", file=sys.stderr, flush=True)
    print(f"# More threads\n\n{machine.heading(report)} Medians of {options.rounds} rounds of {options.seconds:g} s, in turns.\n")
    print("\n".join(markdown(report)))
    if options.json:
        options.json.write_text(json.dumps(report, separators=(",", ":")).replace("},{", "},\n{") + "\n")
    if options.svg:
        options.svg.write_text(drawn(report))


if __name__ == "__main__":
    main()
