"""The learning rate over a run's steps."""

from __future__ import annotations

import math

from stages.run import ScheduleSpec


def learning_rate(spec: ScheduleSpec, base: float, step: int, total_steps: int) -> float:
    """Return the rate of step `step` (0-based) of `total_steps`.

    All schedules rise linearly over the first `warmup_steps`, if any.  After these: `constant` stays; `cosine` falls to
    `floor` times the base at the end; `steps` multiplies by `factor` at each of `milestones`, which are fractions of
    the run in (0, 1).
    """
    warmup = spec.warmup_steps or 0
    if step < warmup:
        return base * (step + 1) / warmup
    if spec.name == "cosine":
        floor = spec.floor or 0.0
        progress = (step - warmup) / max(total_steps - warmup, 1)
        return base * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))
    if spec.name == "steps":
        assert spec.milestones is not None and spec.factor is not None, "checked when the params are read"
        return base * spec.factor ** sum(step >= part * total_steps for part in spec.milestones)
    return base
