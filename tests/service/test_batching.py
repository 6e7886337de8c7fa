"""The batcher with real threads, a real event loop and small real networks; real workers answer for released models."""

import asyncio
import itertools
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from service.inference.batching import (
    DISABLED_SECONDS,
    AnswerFailed,
    Batcher,
    InferenceStopped,
    ModelUnavailable,
)
from service.inference.processes import ProcessGone
from service.inference.workers import Model, Models, PassFailed, Worker
from service.slots import Busy, current_client
from stages.checkpoint.contract import InputContract
from stages.checkpoint.predictor import Predictor, load_predictor
from stages.run import ModelSpec
from tests.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

MODELS = Path(__file__).resolve().parents[2] / "data" / "models"
POISON, NOT_A_NUMBER, SLOW, DEADLY, MEETING = 255, 254, 253, 252, 251
TOLERANCE = 1e-5


class Touchy(nn.Module):
    """Gives an image's mean and maximum as logits unless its first pixel triggers a fault; counts images per pass."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[int] = []
        self.meeting = threading.Barrier(2)
        self.deaths_left = math.inf

    def forward(self, images: Tensor) -> Tensor:
        self.passes.append(len(images))
        first = (images[:, 0, 0, 0] * 255).round()
        if (first == SLOW).any():
            time.sleep(0.2)
        if (first == MEETING).any():
            self.meeting.wait(60)
        if (first == POISON).any():
            raise RuntimeError("poison")
        if (first == DEADLY).any() and self.deaths_left:
            self.deaths_left -= 1
            raise SystemExit
        logits = torch.stack([images.mean((1, 2, 3)), images.amax((1, 2, 3))], dim=1)
        return torch.where(first[:, None] == NOT_A_NUMBER, torch.nan, logits)


CONTRACT = InputContract(
    model=ModelSpec(path="", arguments={}),
    shape=(1, 2, 2),
    mean=(0.0,),
    std=(1.0,),
    classes=("mean", "maximum"),
    run_key="",
    dataset="",
    data_digest="",
)


class InProcessWorker:
    """A worker without a process, so that a test can inspect its networks; a deadly image ends it."""

    networks: ClassVar[dict[str, Touchy]] = {}
    numbers = itertools.count()

    def __init__(self, *, can_restart: bool = True) -> None:
        self.is_alive, self.can_restart, self.restarts = True, can_restart, 0
        self.unloaded: set[str] = set()

    @classmethod
    def model_of(cls, network: Touchy, seconds: float = 0.001) -> Model:
        digest = str(next(cls.numbers))
        cls.networks[digest] = network
        return Model(Path(), digest, CONTRACT, seconds)

    def has_loaded(self, model: Model) -> bool:
        return model.sha256 not in self.unloaded

    def predict(self, model: Model, images: np.ndarray, client: str = "") -> np.ndarray:
        self.unloaded.discard(model.sha256)
        try:
            return expected_of(model, images)
        except RuntimeError as error:
            raise PassFailed(str(error)) from None
        except SystemExit:
            self.is_alive = False
            raise ProcessGone("the worker ended") from None

    def restart(self) -> None:
        self.restarts += 1
        if not self.can_restart:
            raise OSError("no processes left")
        self.is_alive = True


def expected_of(model: Model, images: np.ndarray) -> np.ndarray:
    network = InProcessWorker.networks[model.sha256].eval()
    return Predictor(network, CONTRACT, torch.device("cpu"), "").probabilities(images)


def image(first: int) -> np.ndarray:
    return np.array([[[[first, 10], [20, 30]]]], dtype=np.uint8)


@contextmanager
def started(
    *workers: Any, max_batch: int = 8, max_wait_seconds: float = 0.2, max_waiting_seconds: float = 1.0
) -> Iterator[Batcher]:
    """Run a batcher, by default with one worker."""
    batcher = Batcher(
        workers or [InProcessWorker()],
        max_batch=max_batch,
        max_wait_seconds=max_wait_seconds,
        max_waiting_seconds=max_waiting_seconds,
    )
    batcher.start()
    try:
        yield batcher
    finally:
        batcher.stop()


async def ask(batcher: Batcher, model: Model, *firsts: int) -> list[np.ndarray | BaseException]:
    calls = [batcher.predict(model, image(first)) for first in firsts]
    return await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 30])
def test_requests_share_passes_up_to_max_batch(count: int) -> None:
    network = Touchy()
    model = InProcessWorker.model_of(network)
    with started() as batcher, batcher.announce():
        answers = asyncio.run(ask(batcher, model, *range(count)))
    expected = expected_of(model, np.concatenate([image(first) for first in range(count)]))
    np.testing.assert_allclose(np.concatenate(answers), expected, rtol=0, atol=1e-6)
    passes = network.passes[:-1]
    assert sum(passes) == count and max(passes) <= 8
    assert len(passes) <= count // 8 + 2, "nearly all passes are full"


def test_pass_waits_only_for_announced_requests() -> None:
    model = InProcessWorker.model_of(Touchy())
    with started(max_wait_seconds=600) as batcher:
        asyncio.run(asyncio.wait_for(ask(batcher, model, 0), 60))
    with started(max_wait_seconds=0.5) as batcher, batcher.announce():
        before = time.monotonic()
        asyncio.run(ask(batcher, model, 0))
        assert time.monotonic() - before > 0.4, "the announced request could still have joined"


def test_bad_image_does_not_fail_others_in_its_pass() -> None:
    model = InProcessWorker.model_of(Touchy())
    with started() as batcher, batcher.announce():
        answers = asyncio.run(ask(batcher, model, 1, POISON, 2, NOT_A_NUMBER, 3))
    assert [isinstance(item, AnswerFailed) for item in answers] == [False, True, False, True, False]
    for item, first in zip(answers, (1, POISON, 2, NOT_A_NUMBER, 3), strict=True):
        if isinstance(item, np.ndarray):
            np.testing.assert_allclose(item, expected_of(model, image(first)), rtol=0, atol=1e-6)


async def test_cancelled_request_leaves_the_queue() -> None:
    network = Touchy()
    model = InProcessWorker.model_of(network)
    with started() as batcher:
        slow = asyncio.create_task(batcher.predict(model, image(SLOW)))
        await asyncio.sleep(0.05)
        given_up = [asyncio.create_task(batcher.predict(model, image(1))) for _ in range(5)]
        kept = asyncio.create_task(batcher.predict(model, image(2)))
        await asyncio.sleep(0.05)
        assert batcher.waiting == 6
        for task in given_up:
            task.cancel()
        await asyncio.gather(*given_up, return_exceptions=True)
        assert batcher.waiting == 1
        await asyncio.gather(slow, kept)
    assert network.passes == [1, 1], "the slow request, then the one that was not cancelled"


async def test_models_never_share_a_pass() -> None:
    one, other = Touchy(), Touchy()
    first, second = InProcessWorker.model_of(one), InProcessWorker.model_of(other)
    with started() as batcher, batcher.announce():
        calls = [batcher.predict(model, image(1)) for model in (first, second) * 6]
        await asyncio.gather(*calls)
    assert sum(one.passes) == sum(other.passes) == 6


async def test_small_request_overtakes_large_one() -> None:
    model, other = InProcessWorker.model_of(Touchy()), InProcessWorker.model_of(Touchy())
    done: list[str] = []

    async def call(batcher: Batcher, name: str, asked: Model, images: np.ndarray) -> None:
        await batcher.predict(asked, images)
        done.append(name)

    with started(max_batch=1) as batcher:
        slow = np.concatenate([image(SLOW)] * 6)
        calls = [call(batcher, f"six of model {place}", (model, other)[place], slow) for place in range(2)]
        large = asyncio.gather(*calls)
        await asyncio.sleep(0.05)
        await asyncio.gather(call(batcher, "one", other, image(1)), call(batcher, "two", model, slow[:2]), large)
    assert done == ["one", "two", "six of model 0", "six of model 1"]


def test_requests_fail_at_once_until_a_worker_can_start() -> None:
    model, worker = InProcessWorker.model_of(Touchy()), InProcessWorker(can_restart=False)

    async def scenario(batcher: Batcher) -> list[np.ndarray | BaseException]:
        slow = asyncio.create_task(batcher.predict(model, image(SLOW)))
        await asyncio.sleep(0.05)
        return [*await ask(batcher, model, DEADLY, 1), await slow]

    with started(worker, max_batch=1) as batcher:
        deadly, behind, _ = asyncio.run(asyncio.wait_for(scenario(batcher), 10))
        assert isinstance(deadly, InferenceStopped) and isinstance(behind, InferenceStopped)
        with pytest.raises(InferenceStopped, match="inference isn't running"):
            asyncio.run(batcher.predict(model, image(1)))
        assert not batcher.is_alive
        worker.can_restart = True
        wait_until(lambda: batcher.is_alive)
        (answer,) = asyncio.run(asyncio.wait_for(ask(batcher, model, 1), 10))
        assert isinstance(answer, np.ndarray)


def test_model_that_crashes_two_workers_is_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    deadly, other = InProcessWorker.model_of(Touchy()), InProcessWorker.model_of(Touchy())

    def answers_to(model: Model, *firsts: int) -> list[type]:
        return [type(answer) for answer in asyncio.run(asyncio.wait_for(ask(batcher, model, *firsts), 20))]

    with started(worker := InProcessWorker()) as batcher:
        with batcher.announce():
            assert answers_to(deadly, DEADLY, 1) == [ModelUnavailable, ModelUnavailable]
        assert answers_to(deadly, 1) == [ModelUnavailable] and batcher.disabled_models == [deadly]
        assert answers_to(other, 1) == [np.ndarray] and worker.restarts == 2
        monkeypatch.setattr(time, "monotonic", lambda real=time.monotonic: real() + DISABLED_SECONDS)
        assert batcher.disabled_models == [] and answers_to(deadly, 1) == [np.ndarray]


def test_workers_split_the_queue_and_run_in_parallel() -> None:
    network = Touchy()
    model = InProcessWorker.model_of(network)
    with started(InProcessWorker(), InProcessWorker(), max_batch=8, max_wait_seconds=1) as batcher:
        with batcher.announce():
            answers = asyncio.run(ask(batcher, model, *range(6)))
        assert network.passes[0] == 3 == max(network.passes), "each worker gets half"
    with started(InProcessWorker(), InProcessWorker(), max_batch=1) as batcher:
        answered = asyncio.run(ask(batcher, model, MEETING, MEETING))
        assert all(isinstance(item, np.ndarray) for item in answered), "the passes did not overlap"
    expected = expected_of(model, np.concatenate([image(first) for first in range(6)]))
    np.testing.assert_allclose(np.concatenate(answers), expected, rtol=0, atol=1e-6)


def test_request_goes_to_idle_worker_that_has_loaded_its_model() -> None:
    model, workers = InProcessWorker.model_of(Touchy()), [InProcessWorker(), InProcessWorker()]
    workers[0].unloaded = {model.sha256}
    with started(*workers) as batcher:
        for _ in range(5):
            wait_until(lambda: batcher._idle >= set(workers), 10)
            asyncio.run(asyncio.wait_for(ask(batcher, model, 1), 10))
        assert workers[0].unloaded == {model.sha256}
        asyncio.run(asyncio.wait_for(ask(batcher, model, MEETING, MEETING), 10))
        assert not workers[0].unloaded, "the worker with the model was busy"


async def start_slow_requests(batcher: Batcher, model: Model, names: Sequence[str]) -> list[asyncio.Task[float]]:
    """Start a slow request for each of these clients; the first one runs and the others wait."""
    tasks = []
    for name in names:
        tasks.append(asyncio.create_task(as_client(name, batcher, model, image(SLOW))))
        if len(tasks) == 1:
            await asyncio.to_thread(wait_until, lambda: InProcessWorker.networks[model.sha256].passes)
    await asyncio.sleep(0)
    return tasks


async def as_client(client: str, batcher: Batcher, model: Model, images: np.ndarray) -> float:
    """Send a request as one client; return the time of its answer."""
    current_client.set(client)
    await batcher.predict(model, images)
    return time.monotonic()


@pytest.mark.parametrize("size", [1, 3])
async def test_busy_client_does_not_delay_another(size: int) -> None:
    model = InProcessWorker.model_of(Touchy())
    slow = np.concatenate([image(SLOW)] * size)
    with started(max_batch=1) as batcher:
        many = [asyncio.create_task(as_client("many", batcher, model, slow)) for _ in range(6)]
        await asyncio.sleep(0.05)  # one of them is running
        lone = await as_client("lone", batcher, model, image(1))
        assert sum(task.done() for task in many) <= 1
        assert lone < min((await asyncio.gather(*many))[1:])


async def test_full_queue_rejects_the_busiest_clients_newest_images() -> None:
    model = InProcessWorker.model_of(Touchy())
    with started(max_batch=1, max_waiting_seconds=0.004) as batcher:
        tasks = await start_slow_requests(batcher, model, ["many"] * 5)
        with pytest.raises(Busy, match="the queue is full"):
            await as_client("many", batcher, model, image(1))
        await asyncio.gather(*(as_client(name, batcher, model, image(1)) for name in ("one", "two")))
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(answer, Busy) for answer in answers] == [False, False, False, True, True], "the last two"
        even = await start_slow_requests(batcher, InProcessWorker.model_of(Touchy()), "abcde")
        with pytest.raises(Busy):
            await as_client("f", batcher, model, image(1))
        await asyncio.gather(*even)


async def test_one_client_leaves_a_worker_to_others() -> None:
    model = InProcessWorker.model_of(Touchy())
    with started(InProcessWorker(), InProcessWorker(), max_batch=1) as batcher:
        await as_client("lone", batcher, model, image(1))
        many = [asyncio.create_task(as_client("many", batcher, model, image(SLOW))) for _ in range(4)]
        await asyncio.sleep(0.05)
        before = time.monotonic()
        assert await as_client("lone", batcher, model, image(1)) - before < 0.15, "it waited for no slow pass"
        await asyncio.gather(*many)


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Worker]]:
    started_workers = [Worker(device="cpu", budget_bytes=1 << 30, threads=1) for _ in range(2)]
    for worker in started_workers:
        worker.start()
    yield started_workers
    for worker in started_workers:
        worker.stop()


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.safetensors")), ids=lambda path: path.stem)
def test_released_model_predicts_the_same_alone_and_in_any_batch(path: Path, workers: list[Worker]) -> None:
    predictor = load_predictor(path)
    model = Models(path.parent).get(path.name, predictor.weights_sha256)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (24, *predictor.contract.shape), dtype=np.uint8)
    alone = np.concatenate([predictor.probabilities(one[None]) for one in images])

    async def scenario(batcher: Batcher, size: int) -> np.ndarray:
        order = generator.permutation(len(images))
        parts = [order[start : start + size] for start in range(0, len(order), size)]
        answers = await asyncio.gather(*(batcher.predict(model, images[part]) for part in parts))
        result = np.empty_like(alone)
        result[np.concatenate(parts)] = np.concatenate(answers)
        return result

    with started(*workers, max_batch=16) as batcher, batcher.announce():
        for size in (1, 3, 8):
            batched = asyncio.run(scenario(batcher, size))
            assert (batched.argmax(1) == alone.argmax(1)).all()
            np.testing.assert_allclose(batched, alone, rtol=0, atol=TOLERANCE)
