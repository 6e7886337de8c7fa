from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stages.runs.store import FolderScratch
from stages.training.loop import TrainingState
from stages.training.resuming import EnergyMeter, ResumeState, energy_joules


def resume_state(folder: Path, *, joules: list | None = None, is_stopping: bool = False) -> ResumeState:
    counter = iter(joules or [])
    return ResumeState(
        scratch=FolderScratch(folder),
        work="k",
        kind=TrainingState,
        environment="e",
        epochs=3,
        energy=EnergyMeter(lambda: next(counter, None)),
        should_stop=lambda: is_stopping,
    )


def test_a_training_that_is_over_leaves_no_state(tmp_path: Path) -> None:
    resume = resume_state(tmp_path)
    resume.save(TrainingState(epoch=3))
    assert resume.load() is None
    resume.save(TrainingState(epoch=2))
    assert resume.load().epoch == 2


@pytest.mark.parametrize(("is_stopping", "epoch"), [(False, 1), (True, 2)])
def test_states_that_take_long_are_written_seldom_and_when_it_stops(
    tmp_path: Path, is_stopping: bool, epoch: int
) -> None:
    resume = resume_state(tmp_path, is_stopping=is_stopping)
    resume.save(TrainingState(epoch=1))
    resume.took = 60.0
    resume.save(TrainingState(epoch=2))
    assert resume.load().epoch == epoch


def test_energy_is_that_of_all_attempts(tmp_path: Path) -> None:
    first = resume_state(tmp_path, joules=[100.0, 130.0])
    first.save(TrainingState(epoch=1))
    second = resume_state(tmp_path, joules=[500.0, 504.0])
    second.load()
    assert second.energy.used() == 34.0


@pytest.mark.parametrize("counts", [[None], [100.0, None], [None, 100.0]])
def test_energy_of_a_device_that_was_silent_once_is_unknown(counts: list) -> None:
    counter = iter(counts)
    assert EnergyMeter(lambda: next(counter, None)).used() is None


def test_an_attempt_whose_energy_is_unknown_makes_the_sum_unknown(tmp_path: Path) -> None:
    resume_state(tmp_path).save(TrainingState(epoch=1))
    second = resume_state(tmp_path, joules=[500.0, 504.0])
    second.load()
    assert second.energy.used() is None


def test_a_processor_reports_no_energy() -> None:
    assert energy_joules(torch.device("cpu")) is None


def flip(content: bytes) -> bytes:
    """The same with one bit of a tensor's bytes changed, which `torch.load` alone doesn't see."""
    return content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 1]) + content[len(content) // 2 + 1 :]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (flip, "damaged"),
        (lambda content: content[:-9], "damaged"),
        (lambda content: content[32:], "of an older version"),
        (lambda content: b"", "damaged"),
    ],
    ids=["bit-flipped", "truncated", "older", "empty"],
)
def test_a_damaged_or_older_state_is_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes], why: str
) -> None:
    resume = resume_state(tmp_path)
    resume.save(TrainingState(epoch=2, model={"w": torch.ones(100_000)}))
    path = tmp_path / "k" / "resume.pt"
    path.write_bytes(damage(path.read_bytes()))
    assert resume.load() is None
    assert "run k: resume state can't be used" in (said := capsys.readouterr().err) and why in said


def test_a_foreign_state_is_named_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resume_state(tmp_path).save(TrainingState(epoch=2))
    (tmp_path / "k").rename(tmp_path / "other")
    foreign = dataclasses.replace(resume_state(tmp_path), work="other")
    assert foreign.load() is None
    assert "it belongs to another run); starting over" in capsys.readouterr().err
