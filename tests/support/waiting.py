"""Waits for what happens by itself."""

import sys
import time


def pause(seconds):
    """Lets time go on, and with it the requests of this thread's HTTP clients: they are greenlets of gevent, where somebody uses
    it, which `time.sleep` would stop. One that has not begun by then never would."""
    (sys.modules.get("gevent") or time).sleep(seconds)


def wait_until(is_so, seconds=60):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"still not so after {seconds} s"
        pause(0.02)
