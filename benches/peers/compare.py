"""Has this engine become slower? Compares two reports of run.py from one class of machine.

    python benches/peers/compare.py BEFORE.json AFTER.json [--margin 0.03] [--allow-missing]

Per workload and mode of ours: how many times as long it takes now, with a 95 % interval. What peers of
the same version take in both reports tells how much the machine itself differed, and is divided out. A
line is flagged where the whole interval lies beyond the margin; any that did so makes the exit status 1.
So does a row, ours or a peer's, that BEFORE has and AFTER has not, unless `--allow-missing` is given, as for
a report of some of the workloads. The status is 2 where the files cannot be compared.
"""

import argparse
import sys

import reports
import stats


def changes(before, after, margin):
    """[(workload, mode, slowdown, verdict)] of what both reports have of ours."""
    found = []
    earlier, later = reports.figures(before), reports.figures(after)
    for workload, peers in later.items():
        then = earlier.get(workload, {})
        both = [(then[name], figure) for name, figure in peers.items() if name in then]
        unchanged = [
            (old.samples, new.samples) for old, new in both if not new.ours and old.row["version"] == new.row["version"]
        ]
        for old, new in both:
            if new.ours:
                change = stats.slowdown(old.samples, new.samples, unchanged)
                slower, faster = change["low"] > 1 + margin, change["high"] < 1 - margin
                found.append((workload, new.row["peer"], change, "SLOWER" if slower else "faster" if faster else ""))
    return found


def absent(report, other):
    """{workload: [peer]} of the rows that `report` has and `other` has not."""
    there = {(row["workload"], row["peer"]) for row in other["rows"]}
    found = {}
    for row in report["rows"]:
        if (row["workload"], row["peer"]) not in there:
            found.setdefault(row["workload"], []).append(row["peer"])
    return found


class Incomparable(Exception):
    """Two reports of which no comparison says anything."""


def read(options):
    """Both reports, of one machine."""
    before, after = reports.load(options.before), reports.load(options.after)
    for key in ("class", "cpu"):
        if before["machine"][key] != after["machine"][key]:
            raise Incomparable(f"the reports are of different machines: {before['machine'][key]} and {after['machine'][key]}")
    if before["threads"] != after["threads"]:
        raise Incomparable("the reports are of different numbers of threads")
    return before, after


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--margin", type=float, default=0.03, help="a change within it is none")
    parser.add_argument("--allow-missing", action="store_true", help="rows that are gone are listed and no failure")
    options = parser.parse_args()
    try:
        before, after = read(options)
        found = changes(before, after, options.margin)
        if not found:
            raise Incomparable("the reports have nothing of ours in common")
    except (reports.Unreadable, Incomparable) as error:
        parser.exit(2, f"{error}\n")
    for workload, mode, change, verdict in found:
        print(f"{workload:24} {mode:18} takes {reports.between(change)} times as long  {verdict}".rstrip())
    reasons = {(entry["workload"], entry["peer"]): f" ({entry['reason']})" for entry in after["not_run"]}
    gone, new = absent(before, after), absent(after, before)
    for workload, peers in gone.items():
        print(f"{workload:24} MISSING: {', '.join(peer + reasons.get((workload, peer), '') for peer in peers)}")
    for workload, peers in new.items():
        print(f"{workload:24} new: {', '.join(peers)}")
    slower = any(verdict == "SLOWER" for *_, verdict in found)
    return 1 if slower or (gone and not options.allow_missing) else 0


if __name__ == "__main__":
    sys.exit(main())
