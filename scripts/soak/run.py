"""A server under everything at once: all protocols and kinds of models, clients that leave, cancel, read slowly or send
nonsense, models that come and go, processes of Python models that are killed, a full disk under the traces.

    python scripts/soak/run.py [--seconds 120] [BINARY]

Every request has to be answered, or to fail as it should; the server has to be there at the end, to end with status 0
and to leave nothing behind. From half an hour on, its private memory and what it has allocated may grow by 1 MB an hour after
the warm-up, and the 99th percentile of the last fifth may be 1.2 times that of the first. Needs Linux, root for the full disk,
and a C compiler to count what is allocated.
"""

import argparse
import collections
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import repository

from support.server import Server, binary  # noqa: I001  the folder of the tests is in the path since the line above

import harm
import watch
import workers

LONG_SECONDS = 1800
GROWTH_BYTES_MAX = 1_000_000
P99_RATIO_MAX = 1.2
# A short run sees nothing but a leak at every request.
SHORT_GROWTH_BYTES_MAX = 64 << 20


class Soak:
    """Threads that repeat what they do until the time is over; what they did is counted."""

    def __init__(self, server, seconds, only):
        self.server, self.only, self.start = server, only, time.monotonic()
        self.end = self.start + seconds
        self.done, self.clean = collections.Counter(), collections.Counter()
        self.failures, self.latencies = [], watch.Latencies()
        self.threads = []

    def repeat(self, name, make, pause, timed):
        try:
            work = make()
            while time.monotonic() < self.end and not self.failures:
                begin = time.monotonic()
                try:
                    work()
                    self.done[name] += 1
                    if timed:
                        self.latencies.add(begin - self.start, time.monotonic() - begin)
                except workers.Clean:
                    self.clean[name] += 1
                time.sleep(pause)
            getattr(work, "close", lambda: None)()
        except Exception:  # every kind of failure is one of the server
            self.failures.append(f"{name}: {traceback.format_exc()}")

    def add(self, name, make, *arguments, pause=0.01, timed=False):
        if not re.search(self.only, name):
            return
        work = (name, lambda: make(self.server, *arguments), pause, timed)
        self.threads.append(threading.Thread(target=self.repeat, args=work, name=name))

    def run(self):
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join(max(0, self.end - time.monotonic()) + 2 * workers.SECONDS_MAX)
        self.failures += [f"{thread.name}: it hangs" for thread in self.threads if thread.is_alive()]
        if not self.failures:
            self.failures += [f"{thread.name}: nothing was done" for thread in self.threads if not self.done[thread.name]]


@contextlib.contextmanager
def small_disk(folder):
    """A file system of 256 KiB at `folder`; None where it cannot be mounted."""
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder]).returncode:
        print("no full disk: only root may mount a file system", flush=True)
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def load(soak, disk):
    for protocol in ("http", "grpc"):
        for name in ("simple", "network", "twice"):
            soak.add(f"{name} over {protocol}", getattr(workers, name), protocol, timed=name == "simple")
        for name in ("text", "cached", "python", "guest", "sequences", "shared_memory"):
            soak.add(f"{name} over {protocol}", getattr(workers, name), protocol, pause=0.02)
    soak.add("stream", workers.stream, None, pause=0.1)
    for name in ("generate", "look", "reload"):
        soak.add(name, getattr(workers, name), None, pause=0.05)
    for name in ("leave", "cancel", "abandon_sequence", "slow_reader", "malformed", "kill_python"):
        soak.add(name, getattr(harm, name))
    if disk:
        soak.add("fill_disk", harm.fill_disk, disk)


def left_behind(pid, temporary):
    """What a server that ended should have taken along."""
    objects = [name for name in os.listdir("/dev/shm") if name.startswith(f"hm{pid:x}-")]
    return objects + [path.name for path in temporary.iterdir()] + [f"process {child}" for child in harm.children(pid)]


def report(soak, memory, seconds):
    """Prints what was seen, and returns what is wrong with it."""
    wrong = list(soak.failures)
    print(f"{sum(soak.done.values())} rounds in {seconds:g} s, {sum(soak.clean.values())} failed as they should")
    for name, count in sorted(soak.done.items()):
        print(f"  {name:24} {count:8}" + (f"   {soak.clean[name]} failed as they should" if soak.clean[name] else ""))
    warm_up = min(300, seconds / 4)
    is_long = seconds >= LONG_SECONDS
    for name, samples in (("private memory", memory.private), ("what is allocated", memory.allocated)):
        warm = [bytes_now for at, bytes_now in samples if at >= warm_up]
        if not warm:
            continue
        print(f"{name}: {warm[0] / 1e6:.1f} MB after the warm-up, {warm[-1] / 1e6:.1f} MB at the end, "
              f"at most {max(warm) / 1e6:.1f} MB")  # fmt: skip
        if warm[-1] - warm[0] > SHORT_GROWTH_BYTES_MAX:
            wrong.append(f"{name} grew by {(warm[-1] - warm[0]) / 1e6:.1f} MB")
        growth = samples.growth_per_hour(warm_up)
        if growth is not None:
            print(f"{name} grows by {growth / 1e6:.2f} MB an hour")
            if is_long and growth > GROWTH_BYTES_MAX:
                wrong.append(f"{name} grows by {growth / 1e6:.2f} MB an hour")
    if memory.taken:
        print(f"the allocator has taken {memory.taken[-1][1] / 1e6:.1f} MB")
    fifth = (seconds - warm_up) / 5
    first, last = soak.latencies.p99(warm_up, warm_up + fifth), soak.latencies.p99(seconds - fifth, seconds)
    if first and last:
        print(f"p99: {first * 1e3:.1f} ms in the first fifth after the warm-up, {last * 1e3:.1f} ms in the last: {last / first:.2f}")
        if is_long and last > P99_RATIO_MAX * first:
            wrong.append(f"p99 of the last fifth is {last / first:.2f} of the first")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--only", default="", help="a pattern for the names of what is done, to find where something comes from")
    parser.add_argument("--samples", type=Path, help="a file for the memory of every second: seconds and bytes, as JSON")
    parser.add_argument("--log", type=Path, help="where the server's log is kept")
    parser.add_argument("binary", type=Path, nargs="?", help="$HALIMEDE_BIN, or target/debug/halimede")
    options = parser.parse_args()
    if options.binary:
        os.environ["HALIMEDE_BIN"] = str(options.binary)
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch, small_disk(Path(scratch) / "traces") as disk:
        scratch = Path(scratch)
        temporary = scratch / "tmp"
        temporary.mkdir()
        loaded = repository.make(scratch / "models")
        flags = [
            "--model-control-mode=explicit", *(f"--load-model={name}" for name in loaded),
            f"--backend-config=python,interpreter={sys.executable}", "--cache-config=local,size=1048576",
            f"--trace-config=triton,file={scratch / 'traces' / 'trace.json'}", "--trace-config=triton,log-frequency=50",
            "--trace-config=rate=20", "--trace-config=level=TIMESTAMPS",
        ]  # fmt: skip
        allocated = watch.Allocated(scratch)
        environment = {"TMPDIR": str(temporary), "XDG_CACHE_HOME": str(scratch / "cache"), **allocated.environment}
        server = Server([scratch / "models"], *flags, env=environment)
        print(f"{binary()} for {options.seconds:g} s", flush=True)
        soak, memory = Soak(server, options.seconds, options.only), watch.Memory(server.process.pid, allocated)
        load(soak, disk)
        memory.start()
        soak.run()
        memory.ended.set()
        memory.join()
        wrong = report(soak, memory, options.seconds)
        if options.samples:
            kinds = {"private": memory.private, "allocated": memory.allocated, "taken": memory.taken}
            options.samples.write_text(json.dumps(kinds))
        status = server.stop()
        text = server.log_text()
        if options.log:
            shutil.copy(server.log.name, options.log)
        os.unlink(server.log.name)
        if status != 0:
            wrong.append(f"the server ended with {status}:\n{text[-4000:]}")
        if "panicked" in text:
            wrong.append("the log holds a panic:\n" + text[text.index("panicked") - 500 :][:2000])
        wrong += [f"left behind: {one}" for one in left_behind(server.process.pid, temporary)]
    print("\n".join(wrong) or "passed", flush=True)
    # A thread that hangs must not keep the program.
    os._exit(bool(wrong))


if __name__ == "__main__":
    main()
