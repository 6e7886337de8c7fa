"""A slot whose parent was killed records it and exits."""

import multiprocessing
import os
from pathlib import Path

import pytest

from stages.params.experiment import load_params
from stages.runs.store import RunStore
from stages.scheduling import local
from stages.scheduling.leases import Leases
from stages.scheduling.runner import compare, find_experiment
from tests.project import EXPERIMENT, make_project


def test_slot_with_a_closed_pipe_records_that_its_parent_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Only the closed pipe reveals it, because the watched process is alive."""
    monkeypatch.chdir(make_project(tmp_path / "project"))
    params, store = load_params(), RunStore(Path("data/store").absolute())
    groups = compare(find_experiment(params, EXPERIMENT), params, Path("data"), store).groups
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    ended = context.RawArray("b", len(groups))
    slot = context.Process(target=local._slot_process, args=(groups, store, "cpu", 1, writer, os.getpid(), ended, True))
    slot.start()
    reader.close()
    writer.close()
    slot.join(100)
    assert slot.exitcode == os.EX_TEMPFAIL
    assert "the process that started this training is gone" in capfd.readouterr().err
    leases = Leases(store)
    first, *others = ([(one.end, one.reason) for one in leases.attempts(key)] for key in groups[0].run_keys)
    assert first == [("lost", "the process that started its slot was killed")] and not any(others)
    assert leases.claim(*groups[0].run_keys) is not None, "it has given the run back"
