from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stages.training.energy import EnergyMeter, energy_joules
from stages.training.loop import TrainingState
from stages.worker import _ResumeFile


def resume_file(folder: Path, *, joules: list | None = None, is_stopping: bool = False) -> _ResumeFile:
    counter = iter(joules or [])
    return _ResumeFile(
        path=folder / "resume.pt",
        kind=TrainingState,
        run_key="k",
        environment="e",
        epochs=3,
        energy=EnergyMeter(lambda: next(counter, None)),
        should_stop=lambda: is_stopping,
    )


def test_a_training_that_is_over_leaves_no_state(tmp_path: Path) -> None:
    resume = resume_file(tmp_path)
    resume.save(TrainingState(epoch=3))
    assert not resume.path.exists()
    resume.save(TrainingState(epoch=2))
    assert resume.load().epoch == 2


@pytest.mark.parametrize(("is_stopping", "epoch"), [(False, 1), (True, 2)])
def test_states_that_take_long_are_written_seldom_and_when_it_stops(
    tmp_path: Path, is_stopping: bool, epoch: int
) -> None:
    resume = resume_file(tmp_path, is_stopping=is_stopping)
    resume.save(TrainingState(epoch=1))
    resume.took = 60.0
    resume.save(TrainingState(epoch=2))
    assert resume.load().epoch == epoch


def test_energy_is_that_of_all_attempts(tmp_path: Path) -> None:
    first = resume_file(tmp_path, joules=[100.0, 130.0])
    first.save(TrainingState(epoch=1))
    second = resume_file(tmp_path, joules=[500.0, 504.0])
    second.load()
    assert second.energy.used() == 34.0


@pytest.mark.parametrize("counts", [[None], [100.0, None], [None, 100.0]])
def test_energy_of_a_device_that_was_silent_once_is_unknown(counts: list) -> None:
    counter = iter(counts)
    assert EnergyMeter(lambda: next(counter, None)).used() is None


def test_an_attempt_whose_energy_is_unknown_makes_the_sum_unknown(tmp_path: Path) -> None:
    resume_file(tmp_path).save(TrainingState(epoch=1))
    second = resume_file(tmp_path, joules=[500.0, 504.0])
    second.load()
    assert second.energy.used() is None


def test_a_processor_reports_no_energy() -> None:
    assert energy_joules(torch.device("cpu")) is None
