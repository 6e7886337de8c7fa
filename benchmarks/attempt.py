"""Measurements that may fail without stopping the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

Lines = Iterator[dict[str, Any]]


def attempt(line: dict[str, Any], measured: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return `line` with the measurement or its failure.

    A compiler that fails on this device counts as ok, but eager PyTorch has to work, unless `line` has its own `ok`.
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
    """Yield the lines of a part, and one more if it fails outside its attempts."""
    try:
        yield from part()
    except Exception as error:  # noqa: BLE001  (the other parts are wanted, whatever this one raised)
        yield {"check": f"{name}: goes through", "failed": in_words(error), "ok": False}
