from __future__ import annotations

from pathlib import Path

import pytest

from stages.scheduling.counting import Count, RunCounter, read_count
from stages.scheduling.engine.groups import Event


def test_a_count_says_what_is_done_and_how_long_the_rest_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six runs: one is in the store; two train as one stack, half of it; one alone is done."""
    path, now, done = tmp_path / "count.json", [100.0], [1]
    monkeypatch.setenv("CLAIMCHECK_COUNT", str(path))
    monkeypatch.setattr("stages.scheduling.counting.time.monotonic", lambda: now[0])
    assert read_count(path, "train@a") is None
    counter = RunCounter("train@a", 6, lambda: done[0])
    assert read_count(path, "train@a") == Count(stage="train@a", done=1, runs=6)
    assert read_count(path, "train@b") is None
    counter.report(Event(kind="started", label="stack", runs=2))
    now[0] += 60
    counter.report(Event(kind="progress", label="stack", progress={"step": 5, "total_steps": 10}))
    assert read_count(path, "train@a") == Count(stage="train@a", done=1, runs=6, left_seconds=pytest.approx(240))
    counter.report(Event(kind="started", label="alone"))
    done[0], now[0] = 2, 180
    counter.report(Event(kind="finished", label="alone"))
    assert read_count(path, "train@a") == Count(stage="train@a", done=2, runs=6, left_seconds=pytest.approx(120))
    path.write_text("{")
    assert read_count(path, "train@a") is None


def test_without_anybody_who_asks_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLAIMCHECK_COUNT", raising=False)
    counter = RunCounter("train@a", 6, lambda: pytest.fail("it looked"))
    counter.report(Event(kind="finished", label="alone"))
