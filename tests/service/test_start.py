from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from service.app import create_app
from service.settings import Settings
from tests.preloaded import python
from tests.project import REPOSITORY
from tests.service.conftest import serving


@pytest.mark.parametrize("wanted", ["cuda:99", "gpu"])
def test_an_impossible_device_ends_the_start_with_one_line(tmp_path: Path, wanted: str) -> None:
    environment = {**os.environ, "CLAIMCHECK_DEVICE": wanted, "CLAIMCHECK_ROOT": str(tmp_path)}
    done = python("-m", "service", "--port", "0", cwd=REPOSITORY, env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith(f"service: CLAIMCHECK_DEVICE: device is '{wanted}'")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("wanted", ["auto", "cpu", "cpu,cpu", "auto,cuda:1"])
def test_the_first_device_answers(tmp_path: Path, wanted: str) -> None:
    auto = "cuda:0" if torch.cuda.is_available() else "cpu"
    app = create_app(Settings(root=tmp_path, device=wanted))
    assert {worker.device for worker in app.state.claimcheck.engine.workers} == {
        auto if wanted.startswith("auto") else "cpu"
    }


def test_a_fault_in_warming_up_is_logged_and_keeps_no_service_from_being_ready(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(*_: object) -> None:
        raise AssertionError("a row that nobody expected")

    monkeypatch.setattr("service.app._first_served_checkpoint", break_down)
    with serving(settings) as client:
        assert client.get("/health/ready").status_code == 200
    assert "a row that nobody expected" in caplog.text
