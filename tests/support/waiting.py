"""Waits for what happens by itself."""

import time


def wait_until(is_so, seconds=60):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"still not so after {seconds} s"
        time.sleep(0.02)
