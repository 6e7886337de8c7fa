import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import torch

from benchmarks.server import free_port
from service.app import create_app
from service.settings import Settings
from tests.preloaded import python
from tests.project import REPOSITORY
from tests.service.conftest import serving
from tests.service.running import Running, wait_until_ready


def test_unavailable_device_prevents_the_start_with_one_line(tmp_path: Path) -> None:
    wanted = "cuda:99"
    environment = {**os.environ, "CLAIMCHECK_DEVICE": wanted, "CLAIMCHECK_ROOT": str(tmp_path)}
    done = python("-m", "service", "--port", "0", cwd=REPOSITORY, env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith(f"service: CLAIMCHECK_DEVICE: device is '{wanted}'")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("wanted", ["auto", "cpu", "cpu,cpu", "auto,cuda:1"])
def test_first_available_device_is_used(tmp_path: Path, wanted: str) -> None:
    auto = "cuda:0" if torch.cuda.is_available() else "cpu"
    app = create_app(Settings(root=tmp_path, device=wanted))
    assert {worker.device for worker in app.state.claimcheck.engine.workers} == {
        auto if wanted.startswith("auto") else "cpu"
    }


def test_warmup_failure_is_logged_but_the_service_becomes_ready(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(*_: object) -> None:
        raise AssertionError("a row that nobody expected")

    monkeypatch.setattr("service.app.queries.list_checkpoints", break_down)
    with serving(settings) as client:
        assert client.get("/health/ready").status_code == 200
    assert "a row that nobody expected" in caplog.text


HANGING = """
import re, sys
from service.__main__ import serve
from service.app import create_app
from service.settings import Settings

settings = Settings(stall_seconds=2, drain_seconds=0)
app = create_app(settings)
app.add_api_route("/hang", lambda: re.match("(a+)+b", "a" * 60), methods=["GET"])
serve(app, settings, "127.0.0.1", int(sys.argv[1]))
"""


@pytest.mark.slow
def test_held_gil_ends_the_process_with_its_stack_in_the_log(root: Path, tmp_path: Path) -> None:
    """A regular expression that runs for years holds the GIL, so no other thread and no signal handler runs."""
    port, log = free_port(), tmp_path / "service.log"
    with log.open("wb") as file:
        environment = {**os.environ, "CLAIMCHECK_ROOT": str(root)}
        process = subprocess.Popen(
            [sys.executable, "-c", HANGING, str(port)], cwd=REPOSITORY, env=environment, stderr=file
        )
    try:
        wait_until_ready(Running("127.0.0.1", port, process, log))
        with pytest.raises((ConnectionError, URLError)):
            urlopen(f"http://127.0.0.1:{port}/hang", timeout=30).close()
        assert process.wait(30) == 1
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    text = log.read_text(encoding="utf-8")
    assert "Timeout (0:00:02)!" in text and "re/__init__.py" in text, text[-2000:]
