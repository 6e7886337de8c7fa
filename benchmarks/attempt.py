"""A measurement that may fail: its line says so, and the next one is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

Lines = Iterator[dict[str, Any]]


def attempt(line: dict[str, Any], measured: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """`line` with the measurement.  A compiler that fails on this device is a finding, but eager PyTorch has to work.

    Unless `line` already says how to judge a failure (`ok`).
    """
    try:
        return line | measured()
    except Exception as error:  # noqa: BLE001  (whatever a compiler or a device may raise)
        return {"ok": line.get("way", "eager") != "eager"} | line | {"failed": in_words(error)}
    finally:
        torch.compiler.reset()


def in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


def guarded(name: str, part: Callable[[], Lines]) -> Lines:
    """The lines of a part, and one more if it ends by an error outside its attempts."""
    try:
        yield from part()
    except Exception as error:  # noqa: BLE001  (the other parts are wanted, whatever this one raised)
        yield {"check": f"{name}: goes through", "failed": in_words(error), "ok": False}
