"""How much faster one request becomes with more threads: each model with every number of threads, in turns.

    cargo build --release -p halimede-server --bin halimede
    python benches/peers/prepare.py MODELS export
    python benches/threads/run.py MODELS [WORKLOAD ...] [--threads 1 2] [--precisions balanced] [--rounds 9] [--seconds 0.2]
        [--binary FILE] [--json FILE] [--svg FILE]

A WORKLOAD is a name or a group of benches/peers/workloads.py; without any, all vision and text models are measured but for texts of mixed
length. A process for each number of threads, loaded once, bound to as many processors; they take turns, in short slices. Reported
are medians of wall time, and how many times as fast as with the first number of threads, with a 95 % interval.

The cores of a virtual machine are now near each other, now far, and now two threads of one core: before and after each slice
`halimede doctor --probe` says how long a line takes from one to the other. Slices in which it took much longer or shorter than in most
are left out, counted, and made up for by up to twice as many rounds again; where no others come, these count.
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


# How many times as many rounds there are at most, where cores were far from each other.
ROUNDS_MOST = 3
# Cores are as far from each other as in most slices where a line takes no more than this many times as long, or as short.
ALIKE = 1.6


def workloads(names):
    found = peers_run.chosen(names) if names else (w for w in WORKLOADS if w.group in ("vision", "text"))
    return [workload for workload in found if not workload.texts]


def measure(options, workload, precision, cpus, distance):
    """By number of threads samples in milliseconds, each with how long a line took between cores before and after it."""
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
        for number in range(options.rounds * ROUNDS_MOST):
            if number >= options.rounds and min(map(len, alike(samples).values())) >= options.rounds:
                break
            turn = number % len(programs)
            order = list(programs)
            for threads in order[turn:] + order[:turn]:
                before = distance()
                ms = 1e3 * programs[threads].sample(options.seconds, 2, "lat")
                samples[threads].append((round(ms, 5), [before, distance()]))
        for program in programs.values():
            program.close()
    return samples


def alike(samples):
    """Those whose cores were as far from each other as in most, or all where of some number of threads there are none."""
    middle = statistics.median([ns for taken in samples.values() for _, around in taken for ns in around])

    def is_alike(around):
        return middle / ALIKE <= min(around) and max(around) <= middle * ALIKE

    kept = {threads: [(ms, around) for ms, around in taken if is_alike(around)] for threads, taken in samples.items()}
    return kept if all(kept.values()) else samples


def markdown(report):
    threads = report["threads"]
    against = [f"{n} against {threads[0]}" for n in threads[1:]]
    yield f"| workload | precision | {' | '.join(f'{n} thread(s), ms' for n in threads)} | {' | '.join(against)} | core to core, ns | samples left out |"
    yield "|---|---|" + "---:|" * len(threads) + "---|" * len(against) + "---:|---:|"
    for row in report["rows"]:
        samples, distances, left_out = kept(row)
        times = [f"{statistics.median(one):.3f}" for one in samples]
        away = [f"{statistics.median(distances):.0f}", f"{left_out} of {left_out + sum(map(len, samples))}"]
        yield f"| {' | '.join([row['workload'], row['precision'], *times, *map(between, speedups(samples)), *away])} |"


def kept(row):
    """By number of threads the samples of a row that count; how long lines took in them; and how many others there are."""
    taken = {threads: list(zip(ms, row["core_to_core_ns"][threads])) for threads, ms in row["ms"].items()}
    counted = alike(taken)
    distances = [ns for samples in counted.values() for _, around in samples for ns in around]
    samples = [[ms for ms, _ in samples] for samples in counted.values()]
    return samples, distances, sum(map(len, taken.values())) - sum(map(len, samples))


def speedups(samples):
    """Of every number of threads but the first: how many times as fast as with that."""
    return [stats.speedup(more, samples[0]) for more in samples[1:]]


def drawn(report):
    made = []
    for row in report["rows"]:
        samples, _, _ = kept(row)
        texts = [""] + [f"  ×{between(times)}" for times in speedups(samples)]
        bars = [
            (f"{threads} thread(s)", statistics.median(one), f"{statistics.median(one):.2f} ms{text}", True)
            for threads, one, text in zip(row["ms"], samples, texts)
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
    probe = peers_run.Program([options.binary, "doctor", "--probe"], set(cpus[-max(options.threads) :]))

    def distance():
        # Where the system binds no thread to a core, nothing is left out.
        return round(probe.ask("probe").get("core_to_core_ns", 0.0), 1)

    for workload in workloads(options.workloads):
        for precision in options.precisions:
            taken = measure(options, workload, precision, cpus, distance)
            ms, ns = ({str(threads): [sample[at] for sample in samples] for threads, samples in taken.items()} for at in (0, 1))
            report["rows"].append({"workload": workload.name, "precision": precision, "ms": ms, "core_to_core_ns": ns})
            print(f"{workload.name}, {precision}", file=sys.stderr, flush=True)
    probe.close()
    print(f"# More threads\n\n{machine.heading(report)} Medians of {options.rounds} rounds of {options.seconds:g} s, in turns.\n")
    print("\n".join(markdown(report)))
    if options.json:
        options.json.write_text(json.dumps(report, separators=(",", ":")).replace("},{", "},\n{") + "\n")
    if options.svg:
        options.svg.write_text(drawn(report))


if __name__ == "__main__":
    main()
