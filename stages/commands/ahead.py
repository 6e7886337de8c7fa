"""Evaluates what is trained while dvc trains the rest: its stages run one by one, and one keeps no two cores busy.

`evaluate@…` then finds its measurements kept (`stages.evaluation.kept`), or waits for those that are being taken.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress

from stages.params.experiment import Profile
from stages.preloaded import ask


class Ahead:
    """Context manager.  One evaluation at a time, in a fork of the process at `address`; it ends with this one.

    What it says goes nowhere: the stage, which lists every run, says it again.  On stand-ins alone: elsewhere a network
    is timed while nothing trains beside it.
    """

    def __init__(self, address: str, environment: Mapping[str, str], profile: Profile) -> None:
        self._address, self._environment = address, environment
        self._is_wanted = profile.data == "embedded"
        self._begun: set[str] = set()
        self._call: socket.socket | None = None

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def look(self, stage: str, ended: Sequence[str]) -> None:
        """Begin the next evaluation if none is under way; dvc is at `stage`, and those that `ended` did so well.

        While dvc trains, in the order in which it did; then from the last on, to meet it halfway.
        """
        verb, _, experiment = stage.partition("@")
        if verb == "evaluate":
            self._begun.add(experiment)
        trained = [name.partition("@")[2] for name in ended if name.startswith("train@")]
        waiting = [name for name in trained if name not in self._begun]
        if self._is_wanted and waiting and not self._is_busy():
            self._begin(waiting[0 if verb == "train" else -1])

    def _begin(self, experiment: str) -> None:
        self._begun.add(experiment)
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
                self._end()
        return False

    def _end(self) -> None:
        if self._call is not None:
            self._call.close()
        self._call = None
