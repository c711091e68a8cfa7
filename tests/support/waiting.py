"""Waits for what happens by itself."""

import sys
import time


def pause(seconds):
    """Lets time go on, and with it the requests of this thread's HTTP clients: they are greenlets of gevent, where somebody uses
    it, which `time.sleep` would stop. One that has not begun by then never would."""
    (sys.modules.get("gevent") or time).sleep(seconds)


def wait_until(is_so, what="what the test waits for", seconds=60):
    """Until something is so: a model with a request that was just answered ends behind the back of who unloads it, for example."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"after {seconds} s it is not so: {what}"
        pause(0.01)
