"""Waiting for what other processes and threads do."""

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    """Ask until `holds()` is true; fails if it isn't within so many seconds."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"it doesn't come within {seconds:g} s"
        time.sleep(0.01)
