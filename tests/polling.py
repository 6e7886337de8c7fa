"""Wait for other processes and threads."""

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], object], seconds: float = 240.0) -> None:
    """Poll until `holds()` is true; fail after `seconds`."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"condition still false after {seconds:g} s"
        time.sleep(0.01)
