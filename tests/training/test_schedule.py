"""Learning rates by hand."""

from __future__ import annotations

import pytest

from stages.run import ScheduleSpec
from stages.training.schedule import learning_rate


def rates(spec: ScheduleSpec, steps: int) -> list[float]:
    return [learning_rate(spec, 1.0, step, steps) for step in range(steps)]


def test_constant_stays() -> None:
    assert rates(ScheduleSpec(), 3) == [1.0, 1.0, 1.0]


def test_cosine_falls_from_the_base_to_its_floor() -> None:
    assert rates(ScheduleSpec(name="cosine"), 4) == pytest.approx([1, 0.5 + 0.5 * 2**-0.5, 0.5, 0.5 - 0.5 * 2**-0.5])
    assert learning_rate(ScheduleSpec(name="cosine", floor=0.1), 1.0, 4, 4) == pytest.approx(0.1)


def test_steps_multiply_at_each_part_of_the_run() -> None:
    spec = ScheduleSpec(name="steps", milestones=(0.4, 0.6, 0.8), factor=0.1)
    assert rates(spec, 10) == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_warmup_rises_linearly_and_the_schedule_follows_it() -> None:
    assert rates(ScheduleSpec(name="cosine", warmup_steps=2), 4) == pytest.approx([0.5, 1.0, 1.0, 0.5])
