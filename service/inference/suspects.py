"""Models at which inference processes end: counted, and set aside for a while."""

from __future__ import annotations

import logging
import math
import time

from service.inference.models import Model

DEATHS = 2  # of workers, at which a model is set aside
ASIDE_SECONDS = 600.0  # then it is asked again, and set aside at the next death
logger = logging.getLogger("claimcheck")


class SetAside(RuntimeError):
    """Workers end at this model, so it isn't asked for `ASIDE_SECONDS`."""

    @classmethod
    def at(cls, model: Model) -> SetAside:
        return cls(
            f"inference processes ended at the model of run {model.contract.run_key[:12]}, {DEATHS} in a row; "
            f"it is set aside for {ASIDE_SECONDS / 60:g} minutes"
        )


class Suspects:
    """Counts the deaths of workers by model; `blame` by one thread at a time."""

    def __init__(self) -> None:
        self._deaths: dict[str, tuple[int, float]] = {}  # of a model: how many in a row, when the last one was
        self._set_aside: dict[str, tuple[Model, float]] = {}  # until when

    @property
    def set_aside(self) -> list[Model]:
        """The models that aren't asked for now."""
        return [model for model, until in list(self._set_aside.values()) if time.monotonic() < until]

    def require_fit(self, model: Model) -> None:
        """Raises:
        SetAside: workers end at this model.
        """
        _, until = self._set_aside.get(model.sha256, (None, 0.0))
        if time.monotonic() < until:
            raise SetAside.at(model)

    def clear(self, model: Model) -> None:
        """It has answered."""
        self._deaths.pop(model.sha256, None)

    def blame(self, model: Model, started: float) -> bool:
        """Count the death of a worker in a pass that `started` then, once for passes that ran at the same time; True
        where the model is set aside by it.
        """
        deaths, last = self._deaths.get(model.sha256, (0, -math.inf))
        if started < last:
            return False
        self._deaths[model.sha256] = deaths + 1, time.monotonic()
        if deaths + 1 < DEATHS:
            return False
        logger.error("%s (run %s) is set aside", model.path, model.contract.run_key)
        self._set_aside[model.sha256] = model, time.monotonic() + ASIDE_SECONDS
        return True
