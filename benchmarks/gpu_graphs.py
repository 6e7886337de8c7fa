"""Compare steps recorded as CUDA graphs (`stages.ops.fast.replay`) with eager ones, network by network.

Part of `benchmarks.gpu_check`. Runs a few training steps, with a smaller last batch, once with graphs and twice
without. Training with graphs must end at the same weights, bit for bit or as close as the two eager ones. A row of
passes that stayed eager has the reason and isn't a failure. Set `CLAIMCHECK_CUDA_GRAPHS=1` on this kind of device only
if all rows pass.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.attempt import Lines, attempt
from benchmarks.planned import Planned
from stages.ops.fast.dropout import with_fast_dropout
from stages.ops.fast.replay import SETTING
from stages.papers import build_model
from stages.training.loop import fit, seeded_model

FULL, BATCHES, EPOCHS = 32, 3, 2


def recorded_steps(device: torch.device, planned: Sequence[Planned], *, batch: int | None = None) -> Lines:
    """Yield a row per network, with its first planned optimiser and precision."""
    seen: set[str] = set()
    for one in planned:
        path, _, precision = one.kind_of_run
        if path not in seen:
            seen.add(path)
            line = {"check": "a recorded step is the eager one", "run": one.name, "precision": precision}
            yield attempt(line, partial(compare_with_eager, one, device, batch or FULL))
            if device.type == "cuda":
                torch.cuda.empty_cache()


def compare_with_eager(one: Planned, device: torch.device, batch: int) -> dict[str, Any]:
    """Compare weights trained with and without graphs, and twice without; time the last epoch."""
    ours, seconds, said = train(one, device, batch, is_recorded=True)
    first, eager_seconds, _ = train(one, device, batch, is_recorded=False)
    again, _, _ = train(one, device, batch, is_recorded=False)
    apart, repeats = distance(ours, first), distance(first, again)
    found: dict[str, Any] = {"stayed_eager": said} if said else {}
    found |= {"apart": apart, "eager_repeats_itself_within": repeats}
    return found | {"seconds": seconds, "eager_seconds": eager_seconds, "ok": apart <= repeats}


def train(one: Planned, device: torch.device, batch: int, *, is_recorded: bool) -> tuple[list[Tensor], float, str]:
    """Return weights and buffers after some steps, seconds of the last epoch, and the reason if passes stayed eager."""
    spec = one.one_step(batch)
    protocol = dataclasses.replace(spec.protocol, epochs=EPOCHS, steps_per_epoch=None)
    model = seeded_model(lambda: with_fast_dropout(build_model(spec.model)), spec.replicate).to(device)
    task = one.task(spec, device, rows=batch * BATCHES + max(2, batch // 2))
    said = io.StringIO()
    with setting(is_recorded), contextlib.redirect_stderr(said):
        outcome = fit(model, task, protocol, spec.replicate)
    return [value.detach().cpu() for value in model.state_dict().values()], outcome.epoch_seconds[-1], said.getvalue()


@contextlib.contextmanager
def setting(is_recorded: bool) -> Iterator[None]:
    before = os.environ.get(SETTING)
    os.environ[SETTING] = "1" if is_recorded else "0"
    try:
        yield
    finally:
        os.environ.pop(SETTING) if before is None else os.environ.update({SETTING: before})


def distance(one: list[Tensor], other: list[Tensor]) -> float:
    """Return the largest difference of any value."""
    return max(float((a.double() - b.double()).abs().max()) for a, b in zip(one, other, strict=True) if a.numel())
