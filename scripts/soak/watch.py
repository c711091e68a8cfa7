"""Memory and latencies over time, and what they are compared with."""

import statistics
import threading
import time


def private_bytes(pid):
    """What the process alone holds in memory and no file stands behind: pages that it wrote, in memory or swapped out."""
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        sizes = dict(line.split(":") for line in rollup if ":" in line and line[0].isupper())
    return sum(int(sizes[name].split()[0]) << 10 for name in ("Private_Dirty", "Swap"))


class Memory(threading.Thread):
    """Samples of the server's private memory, once a second: time since the start, bytes."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.start_time, self.samples = pid, time.monotonic(), []
        self.ended = threading.Event()

    def run(self):
        while not self.ended.wait(1):
            self.samples.append((time.monotonic() - self.start_time, private_bytes(self.pid)))

    def growth_per_hour(self, warm_up_s):
        """Bytes an hour after the warm-up: the median slope between the lowest values of thirty-second windows. What a
        request takes for a moment is in the values above the lowest; the median leaves single steps out."""
        windows = {}
        for at, bytes_now in self.samples:
            if at >= warm_up_s:
                window = int(at // 30)
                windows[window] = min(bytes_now, windows.get(window, bytes_now))
        points = sorted(windows.items())[:-1]
        slopes = [(b - a) / ((v - u) * 30) for i, (u, a) in enumerate(points) for v, b in points[i + 1 :]]
        return statistics.median(slopes) * 3600 if slopes else None


class Latencies:
    """Times of the rounds of some workers: when they began, and how long they took."""

    def __init__(self):
        self.lock, self.samples = threading.Lock(), []

    def add(self, at, seconds):
        with self.lock:
            self.samples.append((at, seconds))

    def p99(self, begin, end):
        """Of the rounds that began between; None where there are too few to tell."""
        with self.lock:
            times = sorted(seconds for at, seconds in self.samples if begin <= at < end)
        return times[int(len(times) * 0.99)] if len(times) >= 500 else None
