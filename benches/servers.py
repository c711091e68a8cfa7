"""Servers that benchmarks start, and the time that they take on processors (Linux)."""

import atexit
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELEASE = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
READY_SECONDS_MAX = 120


def cores():
    """How many processors this process, and what it starts, may run on: `taskset` may leave it fewer than the machine has."""
    return len(os.sched_getaffinity(0))


def free_ports(count):
    """Ports nobody listens on; all are held until the last is found, so they differ."""
    held = [socket.socket() for _ in range(count)]
    for s in held:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def processes(root):
    """`root` and all its descendants."""
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


class RunningServer:
    """A server that is ready, until it is stopped or the benchmark ends, however that ends."""

    def __init__(self, name, command, http_port, environment=None):
        self.name, self.http_port = name, http_port
        self.log = tempfile.NamedTemporaryFile("w", prefix=f"{name}-", suffix=".log")
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=subprocess.STDOUT, env=os.environ | (environment or {})
        )
        atexit.register(self.stop)
        end = time.monotonic() + READY_SECONDS_MAX
        while not self.is_ready():
            if self.process.poll() is not None:
                sys.exit(f"{name} ended with {self.process.returncode}:\n{self.log_end()}")
            if time.monotonic() > end:
                sys.exit(f"{name} is not ready after {READY_SECONDS_MAX} s:\n{self.log_end()}")
            time.sleep(0.1)

    def is_ready(self):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/v2/health/ready", timeout=1)
            return True
        except OSError:
            return False

    def log_end(self):
        return Path(self.log.name).read_text(errors="replace")[-2000:]

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        self.log.close()
