"""Evaluates what is trained while dvc trains the rest: its stages run one by one, and one keeps no two cores busy.

`evaluate@…` then finds its measurements kept (`stages.evaluation.kept`), or waits for those that are being taken.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

from stages.preloaded import ask


class Ahead:
    """One evaluation at a time, in a fork of the process at `address`; it ends with this one.

    What it says goes nowhere: the stage, which lists every run, says it again.
    """

    def __init__(self, address: str, environment: Mapping[str, str]) -> None:
        self._address, self._environment = address, environment
        self._waiting: list[str] = []
        self._call: socket.socket | None = None

    def ended(self, stage: str) -> None:
        """A stage has ended well."""
        verb, _, experiment = stage.partition("@")
        if verb == "train":
            self._waiting.append(experiment)

    def look(self, stage: str) -> None:
        """Begin the next evaluation if none is under way; dvc is at `stage`.

        While dvc trains, in the order in which it did; then from the last on, to meet it halfway.
        """
        verb, _, experiment = stage.partition("@")
        if verb == "evaluate" and experiment in self._waiting:
            self._waiting.remove(experiment)
        if self._waiting and not self._is_busy():
            self._begin(self._waiting.pop(0 if verb == "train" else -1))

    def close(self) -> None:
        """End what is under way."""
        if self._call is not None:
            self._call.close()
        self._call = None

    def _begin(self, experiment: str) -> None:
        with open(os.devnull, "r+b") as nothing, suppress(OSError):  # nobody is there: dvc's stage does it
            files = [nothing.fileno()] * 3
            self._call = ask(self._address, "stages.evaluate", [experiment, "--ahead"], self._environment, files)
            self._call.setblocking(False)

    def _is_busy(self) -> bool:
        while self._call is not None:
            try:
                answer = self._call.recv(64)
            except BlockingIOError:
                return True
            except OSError:
                answer = b""
            if not answer:
                self.close()
        return False
