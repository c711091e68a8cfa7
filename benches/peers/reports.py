"""What run.py writes, as its readers want it."""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

import stats

PRECISIONS = ("f32", "bf16", "int8")
OURS = "halimede"
# Of so many samples of each program the machine's speed has to have been the same.
SAMPLES_LEAST = 3


@dataclass(frozen=True)
class Figure:
    """A program's samples on a workload, in milliseconds: those taken while the machine ran at the highest
    speed that every program of the workload saw; all of them where there is none."""

    row: dict
    samples: list
    # [GFLOP/s in f32, GB/s from the first-level cache], or None.
    speed: tuple

    @property
    def dropped(self):
        return len(self.row["ms"]) - len(self.samples)

    @property
    def ms(self):
        return statistics.median(self.samples)

    @property
    def precision(self):
        return self.row["precision"]

    @property
    def ours(self):
        return self.row["peer"].split()[0] == OURS


class Unreadable(Exception):
    """A file that is no report of run.py. The text names it, and says what is wrong."""


def load(path):
    try:
        report = json.loads(Path(path).read_text())
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise Unreadable(f"{path}: not JSON: {error}") from error
    if isinstance(report, dict) and "chip" in report:
        raise Unreadable(f"{path}: holds no samples, only what `halimede bench --json` makes of them; compare reports of run.py")
    if not isinstance(report, dict) or report.get("format") != 1:
        raise Unreadable(f"{path}: not a report of run.py")
    try:
        check(report)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise Unreadable(f"{path}: a damaged report of run.py: {type(error).__name__}: {error}") from error
    return report


def check(report):
    """Asks for everything once that readers ask for."""
    heading(report)
    for entry in report["not_run"]:
        entry["workload"], entry["peer"], entry["reason"]
    for workload, peers in figures(report).items():
        for name, figure in peers.items():
            if not figure.ms > 0 or len(figure.row["ms"]) != len(figure.row["probes"]):
                raise ValueError(f"{workload}, {name}: each sample has a time and a probe")


def figures(report):
    """{workload: {peer: Figure}}, in the report's order; precisions from exact to coarse."""
    rows = {}
    for row in sorted(report["rows"], key=lambda row: PRECISIONS.index(row["precision"])):
        rows.setdefault(row["workload"], []).append(row)
    found = {}
    for workload in dict.fromkeys(row["workload"] for row in report["rows"]):
        speed = stats.common_speed([row["probes"] for row in rows[workload]], SAMPLES_LEAST)
        found[workload] = {row["peer"]: figure(row, speed) for row in rows[workload]}
    return found


def figure(row, speed):
    samples = [ms for ms, probe in zip(row["ms"], row["probes"]) if speed is None or stats.at_speed(probe, speed)]
    return Figure(row, samples, speed)


def speedups(peers):
    """{peer: how many times as fast we are in its precision}, where we have a mode of that precision."""
    ours = {figure.precision: figure for figure in peers.values() if figure.ours}
    return {
        name: stats.speedup(ours[figure.precision].samples, figure.samples)
        for name, figure in peers.items()
        if not figure.ours and figure.precision in ours
    }


def between(interval):
    return f"{interval['estimate']:.2f} ({interval['low']:.2f} to {interval['high']:.2f})"


def heading(report):
    """Where, when and how, in a sentence or two."""
    machine = report["machine"]
    versions = {}
    for row in report["rows"]:
        versions.setdefault(row["peer"].split()[0], {})[row["version"].split("-")[0]] = None
    programs = ", ".join(f"{name} {' and '.join(found)}" for name, found in versions.items())
    return (
        f"Class {machine['class']}: {machine['cpu']}, {machine['cores']} cores, {report['threads']} thread(s), "
        f"{report['clock']}, {report['date']}. {programs}. Medians of {report['rounds']} interleaved rounds "
        f"of {report['seconds']} s, at the highest speed of the machine that all programs of a workload saw: beside its "
        f"name what one thread multiplied and added then at best. {report['note']}".rstrip()
    )


def markdown(report):
    """A table per group of workloads."""
    groups = {}
    for workload, peers in figures(report).items():
        group = next(iter(peers.values())).row["group"]
        groups.setdefault(group, []).append((workload, peers))
    lines = []
    for group, workloads in groups.items():
        lines += [f"## {group.capitalize()}", ""]
        lines += ["| workload | products in | program | ms | halimede is as fast, times | samples left out | cosine | largest difference |"]
        lines += ["|---|---|---|---:|---|---:|---|---|"]
        for workload, peers in workloads:
            compared = speedups(peers)
            speed = next(iter(peers.values())).speed
            label = f"{workload} (f32 peak {speed[0]:.0f} GFLOP/s)" if speed else f"{workload} (unsteady)"
            for name, figure in peers.items():
                row = figure.row
                together = f", {row['together']} together" if row["together"] != 1 else ""
                times = between(compared[name]) if name in compared else ""
                left = f"{figure.dropped} of {len(row['ms'])}"
                near = [row.get("cosine", ""), row.get("largest_difference", "")]
                cells = [label, figure.precision, name + together, f"{figure.ms:.3f}", times, left, *near]
                lines.append(f"| {' | '.join(map(str, cells))} |")
        lines.append("")
    if report["not_run"]:
        lines += ["Not run:", ""]
        lines += [f"- {entry['workload']}, {entry['peer']}: {entry['reason']}" for entry in report["not_run"]]
    return "\n".join(lines).rstrip()
