"""Start a server, wait until it is ready, stop it and look at how it ended."""

import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from support.http import Http
from support.waiting import pause

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 40


def peer_command():
    """The command of a real tritonserver to test instead, or None (see tests/README.md)."""
    return os.environ.get("TRITONSERVER")


def binary():
    """The `halimede` under test."""
    path = Path(os.environ.get("HALIMEDE_BIN", ROOT / "target" / "debug" / "halimede"))
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: build it with `cargo build`, or set HALIMEDE_BIN")
    return path


def free_ports(count):
    """Ports nobody listens on; all are held until the last is found, so they differ."""
    held = []
    for _ in range(count):
        s = socket.socket()
        s.bind(("127.0.0.1", 0))
        held.append(s)
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


class Server:
    """A running server process. `flags` are tritonserver's. It computes in exact precision unless the
    default is asked for, so that answers can be compared with those of others."""

    # Where logs are; in the folder for temporary files if None.
    logs = None

    def __init__(self, repositories, *flags, env=None, wait=True, default_precision=False, ports=None):
        self.http_port, self.grpc_port, self.metrics_port = ports or free_ports(3)
        self.http_address = f"127.0.0.1:{self.http_port}"
        self.grpc_address = f"127.0.0.1:{self.grpc_port}"
        self.metrics_address = f"127.0.0.1:{self.metrics_port}"
        self.http = Http(self.http_address)
        command = [peer_command()] if peer_command() else [str(binary()), "serve"]
        for repository in repositories:
            command += ["--model-repository", str(repository)]
        command += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
        command += [f"--http-port={self.http_port}", f"--grpc-port={self.grpc_port}"]
        command += [f"--metrics-port={self.metrics_port}", *flags]
        if not peer_command() and not default_precision:
            command.append("--precision=exact")
        self.log = tempfile.NamedTemporaryFile("w+", prefix="server-", suffix=".log", dir=self.logs, delete=False)
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
        )
        if wait:
            self.wait_ready()

    def log_text(self):
        return Path(self.log.name).read_text(errors="replace")

    def wait_log(self, pattern, seconds=60):
        """The match of a pattern, once the log has it."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.log_text())):
            assert time.monotonic() < end, f"the log has no '{pattern}':\n{self.log_text()[-4000:]}"
            time.sleep(0.02)
        return found

    def wait_ready(self, path="/v2/health/ready"):
        end = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log_text()[-4000:]}")
            try:
                if self.http.get(path).status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.02)
        self.process.kill()
        raise AssertionError(f"not ready after {START_SECONDS_MAX} s:\n{self.log_text()[-4000:]}")

    def metrics_text(self):
        return Http(self.metrics_address).get("/metrics").body.decode()

    def metric(self, name, model):
        """The sum of a metric over all samples of a model."""
        lines = self.metrics_text().splitlines()
        samples = [line for line in lines if line.startswith(name + "{") and f'model="{model}"' in line]
        return sum(float(line.rpartition(" ")[2]) for line in samples)

    def wait_pending(self, model, count, or_else=lambda: False):
        """Until so many requests wait in the queue of a model, or something else is so. Seen twice in a row: one that is just
        taken from the queue waits there for a moment, too."""
        end, seen = time.monotonic() + 60, 0
        while seen < 2 and not or_else():
            assert time.monotonic() < end, f"there are not {count} requests waiting for '{model}'"
            seen = seen + 1 if self.metric("nv_inference_pending_request_count", model) == count else 0
            pause(0.01)

    def wait_answered(self, model, count):
        """Until so many requests of a model succeeded or failed."""
        names = ("nv_inference_request_success", "nv_inference_request_failure")
        end = time.monotonic() + 60
        while sum(self.metric(name, model) for name in names) < count:
            assert time.monotonic() < end, f"there are not {count} requests of '{model}' answered"
            pause(0.02)

    def wait_exit(self, seconds=STOP_SECONDS_MAX):
        """The exit status of a server that ends by itself."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"still running after {seconds} s:\n{self.log_text()[-4000:]}") from None

    def stop(self, sig=signal.SIGTERM):
        """Ask the server to end; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        return self.wait_exit()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        status = self.stop()
        self.log.close()
        if kind is None:
            assert status == 0, f"the server ended with {status}:\n{self.log_text()[-4000:]}"
            os.unlink(self.log.name)
