"""Draw the tables of a report of run.py, and write them down.

    python benches/peers/draw.py REPORT.json [--svg FOLDER] [--markdown FILE.md]

An SVG per group of workloads and precision: bars of how long a run takes, each workload on a scale of its
own, ours first and in colour. Colours follow the reader's light or dark scheme.
"""

import argparse
import sys
from pathlib import Path

import reports

sys.path.append(str(Path(__file__).resolve().parent.parent))
from picture import svg  # noqa: E402

UNGUARDED = (
    "`halimede balanced` and `halimede fast` run without the guard of a server, which leaves operations exact until a cosine is at "
    "least 0.999 (`balanced`) or 0.99 (`fast`): of rows below that, a server serves something else."
)


def bars(peers, compared, precision):
    """The bars of one workload in one precision, ours first."""
    chosen = [(name, figure) for name, figure in peers.items() if figure.precision == precision]
    made = []
    for name, figure in sorted(chosen, key=lambda entry: (not entry[1].ours, entry[1].ms)):
        text = f"{figure.ms:.2f} ms" if figure.ms >= 1 else f"{1e3 * figure.ms:.1f} µs"
        if name in compared:
            text += f"  ×{reports.between(compared[name])}"
        made.append((name.removesuffix(f" {precision}"), figure.ms, text, figure.ours))
    return made


def pictures(report):
    """{name: SVG} of every group and precision that there are figures of."""
    found = {}
    groups = dict.fromkeys(row["group"] for row in report["rows"])
    machine = report["machine"]
    note = (f"class {machine['class']}, {report['threads']} thread(s), {report['clock']}, {report['date']}; shorter is "
            "faster; ×: how many times as fast halimede is, with a 95 % interval")  # fmt: skip
    measured = {name: (peers, reports.speedups(peers)) for name, peers in reports.figures(report).items()}
    for group in groups:
        for precision in reports.PRECISIONS:
            workloads = [
                (name, bars(peers, compared, precision))
                for name, (peers, compared) in measured.items()
                if next(iter(peers.values())).row["group"] == group
            ]
            workloads = [(name, made) for name, made in workloads if made]
            if workloads:
                found[f"{group}-{precision}"] = svg(f"{group.capitalize()}, products in {precision}", note, workloads)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--svg", type=Path, help="files named as the report, with the group and the precision")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    try:
        report = reports.load(options.report)
    except reports.Unreadable as error:
        parser.exit(2, f"{error}\n")
    names = []
    if options.svg:
        for name, picture in pictures(report).items():
            names.append(f"{options.report.stem}-{name}.svg")
            (options.svg / names[-1]).write_text(picture)
    if options.markdown or not options.svg:
        images = [f"![{name.removesuffix('.svg')}]({name})" for name in names]
        text = "\n\n".join(["# Beside other engines", reports.heading(report), UNGUARDED, *images, reports.markdown(report)])
        options.markdown.write_text(text + "\n") if options.markdown else print(text)


if __name__ == "__main__":
    main()
