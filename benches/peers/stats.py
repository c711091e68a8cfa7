"""Statistics of interleaved samples. Nothing here measures or reads files."""

import random
import statistics

# Rates of the machine that differ by no more than this are of the same speed.
BAND = 0.8
RESAMPLES = 1000
CONFIDENCE = 0.95


def at_speed(probe, speed):
    """Whether a probe, a list of rates, found the machine running as fast as `speed`: no slower, and no
    faster either."""
    return all(full * BAND <= rate <= full / BAND for rate, full in zip(probe, speed))


def common_speed(probes, least):
    """The highest speed at which the machine ran for at least so many samples of everybody, or None.
    `probes` has a list of probes for each."""
    for speed in sorted({tuple(probe) for taken in probes for probe in taken}, reverse=True):
        if all(sum(at_speed(probe, speed) for probe in taken) >= least for taken in probes):
            return speed
    return None


def interval(estimate, *lists):
    """The confidence interval of `estimate(*lists)` by bootstrap: each list is resampled by itself.
    The same lists always give the same interval."""
    rng = random.Random(2051)
    values = sorted(estimate(*(rng.choices(values, k=len(values)) for values in lists)) for _ in range(RESAMPLES))
    tail = int((1 - CONFIDENCE) / 2 * RESAMPLES)
    return {"estimate": estimate(*lists), "low": values[tail], "high": values[-1 - tail]}


def speedup(ours, theirs):
    """How many times as fast we are: the ratio of medians with its confidence interval."""
    return interval(lambda ours, theirs: statistics.median(theirs) / statistics.median(ours), ours, theirs)


def slowdown(before, after, peers=()):
    """How many times as long `after` takes as `before`, with its confidence interval. The two were
    measured at different times: `peers` are pairs of samples, then and now, of programs that did not
    change in between, and tell how much the machine did."""

    def estimate(before, after, *flat):
        changes = [statistics.median(b) / statistics.median(a) for a, b in zip(flat[::2], flat[1::2])]
        drift = statistics.median(changes) if changes else 1.0
        return statistics.median(after) / statistics.median(before) / drift

    return interval(estimate, before, after, *(samples for pair in peers for samples in pair))
