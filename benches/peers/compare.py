"""Has this engine become slower? Compares two reports of run.py from one class of machine.

    python benches/peers/compare.py BEFORE.json AFTER.json [--margin 0.03]

Per workload and mode of ours: how many times as long it takes now, with a 95 % interval. What peers of
the same version take in both reports tells how much the machine itself differed, and is divided out. A
line is flagged where the whole interval lies beyond the margin; any that did so makes the exit status 1.
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--margin", type=float, default=0.03, help="a change within it is none")
    options = parser.parse_args()
    before, after = reports.load(options.before), reports.load(options.after)
    for key in ("class", "cpu"):
        if before["machine"][key] != after["machine"][key]:
            sys.exit(f"the reports are of different machines: {before['machine'][key]} and {after['machine'][key]}")
    if before["threads"] != after["threads"]:
        sys.exit("the reports are of different numbers of threads")
    found = changes(before, after, options.margin)
    if not found:
        sys.exit("the reports have nothing of ours in common")
    for workload, mode, change, verdict in found:
        print(f"{workload:24} {mode:18} takes {reports.between(change)} times as long  {verdict}".rstrip())
    return 1 if any(verdict == "SLOWER" for *_, verdict in found) else 0


if __name__ == "__main__":
    sys.exit(main())
