"""Memory and latencies over time, and what they are compared with."""

import shutil
import statistics
import subprocess
import threading
import time
from pathlib import Path


def private_bytes(pid):
    """What the process alone holds in memory and no file stands behind: pages that it wrote, in memory or swapped out."""
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        sizes = dict(line.split(":") for line in rollup if ":" in line and line[0].isupper())
    return sum(int(sizes[name].split()[0]) << 10 for name in ("Private_Dirty", "Swap"))


class Allocated:
    """What the process has allocated, as its allocator counts it: unlike its private memory, that has no free pages in it
    which were touched once. None where there is no C compiler for `allocated.c`, or no glibc."""

    def __init__(self, folder):
        self.file, library = folder / "allocated", folder / "allocated.so"
        source = Path(__file__).resolve().parent / "allocated.c"
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-lpthread"]
        is_there = shutil.which("cc") and subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0
        self.environment = {"LD_PRELOAD": str(library), "SOAK_ALLOCATED": str(self.file)} if is_there else {}

    def read(self):
        """Bytes that are allocated, and bytes that the allocator has taken."""
        try:
            allocated, taken = self.file.read_text().split()
        except (OSError, ValueError):
            return None
        return int(allocated), int(taken)


class Samples(list):
    """Time since the start, and bytes."""

    def growth_per_hour(self, warm_up_s):
        """Bytes an hour after the warm-up: the median slope between the lowest values of thirty-second windows. What a
        request takes for a moment is in the values above the lowest; the median leaves single steps out."""
        windows = {}
        for at, bytes_now in self:
            if at >= warm_up_s:
                window = int(at // 30)
                windows[window] = min(bytes_now, windows.get(window, bytes_now))
        points = sorted(windows.items())[:-1]
        slopes = [(b - a) / ((v - u) * 30) for i, (u, a) in enumerate(points) for v, b in points[i + 1 :]]
        return statistics.median(slopes) * 3600 if slopes else None


class Memory(threading.Thread):
    """Samples of the server's memory, once a second."""

    def __init__(self, pid, allocated):
        super().__init__(daemon=True)
        self.pid, self.source, self.start_time = pid, allocated, time.monotonic()
        self.private, self.allocated, self.taken = Samples(), Samples(), Samples()
        self.ended = threading.Event()

    def run(self):
        while not self.ended.wait(1):
            at = time.monotonic() - self.start_time
            self.private.append((at, private_bytes(self.pid)))
            if found := self.source.read():
                self.allocated.append((at, found[0]))
                self.taken.append((at, found[1]))


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
