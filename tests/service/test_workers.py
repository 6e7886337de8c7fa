"""Real worker processes that are killed or asked to end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import psutil
import pytest

from service.inference.processes import Process, ProcessSlow
from service.inference.workers import Model, Models, NeverBegan, Worker
from stages.checkpoint.predictor import load_predictor
from tests.polling import wait_until

pytestmark = pytest.mark.slow

MODELS = Path(__file__).resolve().parents[2] / "data" / "models"
PATH = min(MODELS.glob("*.safetensors"))
ORPHAN = """
import sys, time
from service.inference.workers import NeverBegan, Worker

if __name__ == "__main__":
    worker = Worker(device="cpu", budget_bytes=1, threads=1)
    worker.start()
    print(worker.pid, flush=True)
    {end}
"""


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(device="cpu", budget_bytes=1 << 30, threads=1)
    worker.start()
    yield worker
    worker.stop()


@pytest.fixture(scope="module")
def model() -> Model:
    return Models(MODELS).get(PATH.name, load_predictor(PATH).weights_sha256)


def images(model: Model, count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *model.contract.shape), dtype=np.uint8)


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_workers_ignore_signals_for_the_server(worker: Worker, model: Model) -> None:
    worker.predict(model, images(model, 1))
    assert worker.pid is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(worker.pid, number)
    assert worker.predict(model, images(model, 1)).shape == (1, len(model.contract.classes))


def test_worker_that_dies_before_its_first_pass_is_reported_as_never_begun(model: Model) -> None:
    worker = Worker(device="no such device", budget_bytes=1 << 30, threads=0)
    worker.start()
    with pytest.raises(NeverBegan):
        worker.predict(model, images(model, 1))
    worker.stop()


def never_read(connection: Connection) -> None:
    time.sleep(600)


def test_process_that_reads_nothing_times_out_and_is_stopped() -> None:
    """The request exceeds the pipe's buffer, so sending blocks."""
    process = Process("reading", never_read, seconds=0.5)
    process.start()
    with pytest.raises(ProcessSlow, match=r"hasn't answered for 0\.5 s"):
        process.ask(bytes(50_000_000))
    process.stop()
    assert not process.is_alive
    process.start()
    assert not process.is_alive


def test_moved_file_is_found_by_its_new_name(tmp_path: Path, model: Model) -> None:
    models = Models(tmp_path)
    for name in ("here.safetensors", "there.safetensors"):
        (tmp_path / name).write_bytes(PATH.read_bytes())
        assert models.known(name, model.sha256) is None
        assert models.get(name, model.sha256).path == tmp_path / name


@pytest.mark.parametrize("end", ["time.sleep(600)", "sys.exit(3)"], ids=["killed", "exits"])
def test_no_worker_outlives_its_server(tmp_path: Path, end: str) -> None:
    script = tmp_path / "server.py"
    script.write_text(ORPHAN.format(end=end), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    server = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment)
    assert server.stdout is not None
    pid = int(server.stdout.readline())
    if "sleep" in end:
        assert is_running(pid)
        server.kill()
    server.wait(30)
    server.stdout.close()
    wait_until(lambda: not is_running(pid))
