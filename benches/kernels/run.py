"""The engine's kernels by themselves, each beside what this machine can do: `halimede bench --suite`, precisions in turns.

    cargo build --release -p halimede-server --bin halimede
    python benches/kernels/run.py [KERNEL ...] [--precisions exact balanced fast] [--threads 1] [--rounds 3] [--seconds 0.2]
        [--binary FILE] [--json FILE] [--svg FILE]

A KERNEL is a part of the names of `halimede bench --suite`; without any, all are measured. Reported are medians of the rounds.
A share is of the roof that is named beside it: multiplications and additions, or bytes read, of one thread at best, measured in the
same run. `bench` leaves out samples of a slow machine and says how many those were.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import machine  # noqa: E402
import picture  # noqa: E402

PRECISIONS = ("exact", "balanced", "fast")
MEASURED = ("ms", "gflops", "gbps", "share")


def suite(options, precision):
    command = [options.binary, "bench", "--suite", *options.kernels, "--json", "--precision", precision]
    command += ["--threads", str(options.threads), "--seconds", str(options.seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def summary(rounds):
    """The kernels of several runs in one precision: medians, slow samples added up."""
    rows = []
    for kernel in rounds[0]["kernels"]:
        same = [next(k for k in one["kernels"] if k["name"] == kernel["name"]) for one in rounds]
        row = {"kernel": kernel["name"], "precision": rounds[0]["precision"], "roof": kernel.get("roof")}
        for key in MEASURED:
            if all(k.get(key) is not None for k in same):
                row[key] = statistics.median(k[key] for k in same)
        row["slow"] = sum(k.get("slow", 0) for k in same)
        rows.append(row)
    return rows


def markdown(rows):
    yield "| kernel | precision | µs | GFLOP/s | GB/s | share | of | slow samples left out |"
    yield "|---|---|---:|---:|---:|---:|---|---:|"
    for row in rows:
        amount = lambda key, digits: f"{row[key]:.{digits}f}" if key in row else ""
        cells = [row["kernel"], row["precision"], f"{1e3 * row['ms']:.1f}", amount("gflops", 1), amount("gbps", 1)]
        yield f"| {' | '.join([*cells, amount('share', 2), row['roof'] or '', str(row['slow'])])} |"


def drawn(report):
    kernels = {}
    for row in report["rows"]:
        if "share" in row:
            text = f"{row['share']:.2f} of {row['roof']}"
            kernels.setdefault(row["kernel"], []).append((row["precision"], min(row["share"], 1), text, True))
    where = report["machine"]
    note = f"class {where['class']}, {report['threads']} thread(s), {report['date']}; longer is better, all of the width is the roof"
    return picture.svg("Kernels: share of what the machine does at best", note, list(kernels.items()), 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL")
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.2, help="for each kernel")
    parser.add_argument("--binary", default=str(machine.ROOT / "target/release/halimede"))
    machine.add_arguments(parser)
    options = parser.parse_args()
    taken = {precision: [] for precision in options.precisions}
    for _ in range(options.rounds):
        for precision, rounds in taken.items():
            rounds.append(suite(options, precision))
    report = machine.facts(options.binary, options.build, options.note) | {
        "threads": options.threads, "rounds": options.rounds, "seconds": options.seconds,
        "peaks": {precision: {key: value for key, value in rounds[0].items() if key != "kernels"} for precision, rounds in taken.items()},
        "rows": [row for rounds in taken.values() for row in summary(rounds)],
    }  # fmt: skip
    print(f"# Kernels\n\n{machine.heading(report)} {options.threads} thread(s), medians of {options.rounds} rounds of {options.seconds:g} s for each kernel.\n")
    print("\n".join(markdown(report["rows"])))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(drawn(report))


if __name__ == "__main__":
    main()
