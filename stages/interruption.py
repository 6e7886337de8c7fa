"""What a signal does while something runs, and what it did before, again afterwards."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def on_signal(number: signal.Signals, act: Callable[[], Any]) -> Iterator[None]:
    """Within, the signal calls `act` in the main thread; only the main thread may enter."""
    before = signal.signal(number, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set: what runs saves its state and ends by itself."""
    stop = threading.Event()
    with on_signal(signal.SIGTERM, stop.set), on_signal(signal.SIGINT, stop.set):
        yield stop
