"""Recovery of a whole application whose processes are really killed."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from service.inference.engine import Engine
from service.inference.workers import Worker
from service.settings import Settings
from tests.polling import wait_until
from tests.service.conftest import png, serving
from tests.service.hostile_images import encode
from tests.service.test_errors import assert_problem
from tests.service.test_hostile import TENSOR

pytestmark = pytest.mark.slow

VIT, MIXER = "ninformer-cifar100.vit.0", "ninformer-cifar100.mlp-mixer.0"


def engine_of(client: TestClient) -> Engine:
    engine: Engine = client.app.state.claimcheck.engine  # type: ignore[attr-defined]
    return engine


def ask(client: TestClient, checkpoint: str = VIT, content: bytes = b"") -> Any:
    return client.post(f"/predict?checkpoint={checkpoint}", files={"file": content or png()})


def pids_of(client: TestClient) -> list[int]:
    return [worker.pid for worker in engine_of(client).workers if worker.pid is not None]


def restarts(client: TestClient, kind: str) -> float:
    (line,) = (
        line
        for line in client.get("/metrics").text.splitlines()
        if line.startswith(f'claimcheck_process_restarts_total{{kind="{kind}"}}')
    )
    return float(line.rsplit(" ", 1)[1])


def kill_within_passes(client: TestClient, count: int) -> None:
    """Kill the worker of each of this client's next passes after it got its batch."""
    left = iter(range(count))
    for worker in engine_of(client).workers:

        def ask_and_kill(question: object, seconds: float | None = None, *, worker: Worker = worker) -> Any:
            is_ours = isinstance(question, tuple) and question[2] == "testclient"
            if is_ours and next(left, None) is not None and worker.pid is not None:
                os.kill(worker.pid, signal.SIGKILL)
            return Worker.ask(worker, question, seconds)

        worker.ask = ask_and_kill  # type: ignore[method-assign]


@pytest.mark.parametrize("workers", [1, 2])
def test_request_of_a_killed_worker_is_answered_by_another(settings: Settings, workers: int) -> None:
    with serving(settings.model_copy(update={"workers": workers})) as client:
        before = ask(client).json()["images"]
        for kills in (1, 2, 3):
            kill_within_passes(client, 1)
            again = ask(client)
            assert again.status_code == 200 and probabilities(again.json()["images"]) == [
                pytest.approx(seen, abs=1e-5) for seen in probabilities(before)
            ]
            wait_until(lambda: restarts(client, "inference") == kills, 10)  # noqa: B023
        assert client.get("/health/ready").status_code == 200
        assert engine_of(client).batcher.disabled_models == []


def test_checkpoint_that_crashes_two_workers_is_disabled_and_named(settings: Settings) -> None:
    infer, model = "/v2/models/ninformer-cifar100.vit", {"inputs": [TENSOR]}
    with serving(settings.model_copy(update={"workers": 2})) as client:
        assert ask(client, MIXER).status_code == 200
        kill_within_passes(client, 2)
        assert_problem(ask(client), 503, "inference processes ended at the model of run ")
        named = f"{VIT}: inference processes ended at the model of run "
        assert_problem(ask(client), 503, named)
        assert "2 in a row; it is disabled for 10 minutes" in ask(client).json()["detail"]
        assert named in client.get(f"{infer}/ready").json()["detail"]
        assert named in client.post(f"{infer}/infer", json=model).json()["detail"]
        assert ask(client, MIXER).status_code == 200, "the others still answer"
        ready = client.get("/health/ready")
        assert ready.status_code == 200
        run_key = client.get(f"/api/v1/checkpoints/{VIT}").json()["run_key"]
        assert f"disabled models: runs {run_key[:12]}" in ready.json()["detail"]
        assert "claimcheck_models_set_aside 1.0" in client.get("/metrics").text


@pytest.mark.parametrize("is_asked", [False, True], ids=["idle", "within a pass"])
def test_stopped_worker_is_replaced(settings: Settings, is_asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.inference.workers.LEAST_SECONDS", 5.0)
    with serving(settings.model_copy(update={"workers": 1})) as client:
        ask(client)
        (worker,), stopped = engine_of(client).workers, pids_of(client)
        assert worker.pid is not None
        if is_asked:  # detected by its deadline
            monkeypatch.setattr("service.inference.processes._statistics", lambda _pid: [])
        os.kill(worker.pid, signal.SIGSTOP)
        before = time.monotonic()
        assert ask(client).status_code == 200
        # It may have been loading a model, for which it has LEAST_SECONDS.
        assert time.monotonic() - before < 60 and pids_of(client) != stopped


def test_killed_idle_worker_is_replaced_while_the_service_stays_ready(settings: Settings) -> None:
    with serving(settings.model_copy(update={"workers": 2})) as client:
        first, _ = pids_of(client)
        ready, asked = [], []
        os.kill(first, signal.SIGKILL)
        until = time.monotonic() + 30
        while restarts(client, "inference") < 1 and time.monotonic() < until:
            ready.append(client.get("/health/ready").status_code)
            asked.append(ask(client).status_code)
        assert set(ready) == {200}
        assert set(asked) <= {200, 503} and asked.count(503) <= 1, "one may reach it while the kernel ends it"
        wait_until(lambda: engine_of(client).batcher.serving == 2)
        wait_until(lambda: "claimcheck_workers 2.0" in client.get("/metrics").text)  # cached briefly


def test_readiness_fails_without_workers_and_recovers(settings: Settings) -> None:
    with serving(settings.model_copy(update={"workers": 2})) as client:
        replaced = threading.Event()
        for worker in engine_of(client).workers:
            start = worker.start

            def wait_and_start(start: Callable[[], None] = start) -> None:
                replaced.wait(60)
                start()

            worker.start = wait_and_start  # type: ignore[method-assign]
        for pid in pids_of(client):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: client.get("/health/ready").status_code == 503)
        assert_problem(client.get("/health/ready"), 503, "no inference process is running")
        assert client.get("/v2/health/ready").status_code == 503
        assert client.get("/health/live").status_code == 200
        assert "claimcheck_inference_alive 0.0" in client.get("/metrics").text
        replaced.set()
        wait_until(lambda: client.get("/health/ready").status_code == 200)  # without any request
        assert ask(client).status_code == 200


def probabilities(images: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return the probabilities of each answer, by class."""
    return [{item["name"]: item["probability"] for item in own["top"]} for image in images for own in image["answers"]]


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP, None], ids=["killed", "stopped", "parent stopped"])
def test_losing_all_processes_gives_retryable_errors(settings: Settings, fate: signal.Signals | None) -> None:
    """Kill also the process that the others are forked from, or stop it alone, so that it reports no end."""
    large = encode("PNG", Image.new("RGB", (2000, 2000), (200, 30, 60)))
    with serving(settings.model_copy(update={"workers": 2})) as client:
        expected = ask(client, content=large).json()["images"]
        lost = {psutil.Process(one.pid) for one in (*engine_of(client).workers, *engine_of(client).decoder.processes)}
        parents = {process.parent() for process in lost} - {psutil.Process(), None}
        if fate is None:
            psutil.Process(next(parent.pid for parent in parents if parent)).suspend()
        for process in lost | (parents if fate == signal.SIGKILL else set()):
            process.send_signal(fate or signal.SIGKILL)
        answers = [ask(client, content=large)]
        until = time.monotonic() + 60
        while answers[-1].status_code != 200 and time.monotonic() < until:
            answers.append(ask(client, content=large))
        assert {answer.status_code for answer in answers} <= {200, 503}, "no client is to blame"
        assert answers[-1].json()["images"] == expected and restarts(client, "decoding") >= 1
        assert client.get("/health/ready").status_code == 200 and engine_of(client).batcher.disabled_models == []


def test_model_is_ready_only_with_its_recorded_weights(root: Path, tmp_path: Path) -> None:
    own = shutil.copytree(root, tmp_path / "root")
    address = "/v2/models/ninformer-cifar100.vit"
    with serving(Settings(root=own)) as client:
        assert client.get(f"{address}/ready").status_code == 200
        assert client.post(f"{address}/infer", json={"inputs": [TENSOR]}).status_code == 200
        run_key = client.get(f"/api/v1/checkpoints/{VIT}").json()["run_key"]
        weights = own / "data" / "runs" / "ninformer-cifar100" / run_key / "weights.safetensors"
        content = weights.read_bytes()
        for fate in (None, content[:-1], content[:-1] + bytes([content[-1] ^ 1])):  # missing, truncated, damaged
            if fate is None:
                weights.unlink()
            else:
                weights.write_bytes(fate)
            for path in ("ready", "versions/0/ready"):
                assert client.get(f"{address}/{path}").status_code == 503
            assert client.post(f"{address}/infer", json={"inputs": [TENSOR]}).status_code == 503
            assert_problem(ask(client), 503, "the checkpoint's weights can't be read at the moment")
            weights.write_bytes(content)
            assert client.get(f"{address}/ready").status_code == 200
            assert client.post(f"{address}/infer", json={"inputs": [TENSOR]}).status_code == 200


def test_request_larger_than_the_queue_is_413(settings: Settings) -> None:
    with serving(settings.model_copy(update={"max_waiting_seconds": 0.1})) as client:
        files = [("file", ("a.png", png(number))) for number in range(3)]
        address = f"/predict?checkpoint={VIT}&checkpoint={MIXER}"
        assert client.post(address, files=files).status_code == 200
        words = r"one request takes at most 0.1 s (CLAIMCHECK_MAX_WAITING_SECONDS)"
        many = "".join(f"&checkpoint=ninformer-mnist.{arm}.{n}" for arm in ("vit", "local-vit") for n in range(3))
        assert words in client.post(address + many, files=files).json()["detail"]
        assert_problem(client.post(address + many, files=files), 413, "3 images by 8 checkpoints take some 0.2 s")
        pixels = np.zeros((20, 3, 32, 32), np.uint8)
        body = {"inputs": [TENSOR | {"shape": list(pixels.shape), "data": pixels.ravel().tolist()}]}
        response = client.post("/v2/models/ninformer-cifar100.vit/infer", json=body)
        assert (response.status_code, response.json()["detail"]) == (400, "20 images; one request takes at most 16")
