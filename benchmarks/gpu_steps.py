"""Run one step of every network with every planned optimiser and precision, and compare its loss with the CPU's.

The first part of `benchmarks.gpu_check`; on a GPU it must take less than a minute.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.attempt import Lines, attempt
from benchmarks.planned import Planned
from stages.ops.fast.dropout import with_fast_dropout
from stages.papers import build_model
from stages.training.loop import fit, measure, seeded_model

GOAL_SECONDS = 60.0
TOLERANCE = 2e-3  # relative, of the mean loss of two rows in float32: another order of sums through up to 56 layers
COMPARED = 2


def every_step(device: torch.device, planned: Sequence[Planned], *, batch: int | None = None) -> Lines:
    """Yield a row for each, then a summary; `batch` is the rows per step (None: as printed)."""
    began, compared = time.monotonic(), set[str]()
    for one in planned:
        path, optimizer, precision = one.kind_of_run
        line = {"check": "takes a step", "run": one.name, "network": path.rpartition(":")[2]}
        is_new = path not in compared
        compared.add(path)
        line |= {"optimizer": optimizer, "precision": precision}
        yield attempt(line, partial(one_step, one, device, batch, is_compared=is_new))
        if device.type == "cuda":
            torch.cuda.empty_cache()
    seconds = time.monotonic() - began
    in_time = device.type != "cuda" or seconds < GOAL_SECONDS
    yield {"check": "all steps within a minute of a GPU", "seconds": seconds, "goal": GOAL_SECONDS, "ok": in_time}


def one_step(one: Planned, device: torch.device, batch: int | None, *, is_compared: bool) -> dict[str, Any]:
    """Return the step's loss, the initial loss of a few rows here and on the CPU, and whether all are good."""
    began, spec = time.monotonic(), one.one_step(batch)
    torch.backends.cudnn.allow_tf32 = False  # as in training
    model = seeded_model(lambda: with_fast_dropout(build_model(spec.model)), spec.replicate)
    found: dict[str, Any] = {}
    if is_compared:
        places = (torch.device("cpu"), device)
        cpu, ours = (measure(model.to(place), one.task(spec, place, rows=COMPARED))["loss"] for place in places)
        found = {"cpu": cpu, "ours": ours, "ok": abs(ours - cpu) <= TOLERANCE * abs(cpu)}
    outcome = fit(model.to(device), one.task(spec, device), spec.protocol, spec.replicate)
    is_finite = outcome.divergence is None and all(bool(part.isfinite().all()) for part in model.parameters())
    loss = outcome.history[0]["train_loss"] if outcome.history else math.inf
    ok = bool(found.get("ok", True)) and is_finite and math.isfinite(loss)
    return found | {"loss": loss if math.isfinite(loss) else None, "seconds": time.monotonic() - began, "ok": ok}
