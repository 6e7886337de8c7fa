from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from service.app import create_app
from service.settings import Settings
from tests.preloaded import python
from tests.project import REPOSITORY


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
