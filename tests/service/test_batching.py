"""The batcher with real threads, a real event loop and small real networks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from service.batching import AnswerFailed, Batcher, InferenceStopped, QueueFull
from stages.checkpoint import InputContract, Predictor, load_predictor
from stages.run import ModelSpec

MODELS = Path(__file__).resolve().parents[2] / "data" / "models"
POISON, NOT_A_NUMBER, SLOW, DEADLY = 255, 254, 253, 252
TOLERANCE = 1e-5


class Touchy(nn.Module):
    """Mean and maximum of an image as logits, unless its first pixel says otherwise; counts images of each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.passes.append(len(images))
        first = (images[:, 0, 0, 0] * 255).round()
        if (first == SLOW).any():
            time.sleep(0.2)
        if (first == POISON).any():
            raise RuntimeError("poison")
        if (first == DEADLY).any():
            raise SystemExit
        logits = torch.stack([images.mean((1, 2, 3)), images.amax((1, 2, 3))], dim=1)
        return torch.where(first[:, None] == NOT_A_NUMBER, torch.nan, logits)


def predictor_of(network: nn.Module) -> Predictor:
    contract = InputContract(
        model=ModelSpec(path="", arguments={}),
        shape=(1, 2, 2),
        mean=(0.0,),
        std=(1.0,),
        classes=("mean", "maximum"),
        run_key="",
        dataset="",
        data_digest="",
    )
    return Predictor(network.eval(), contract, torch.device("cpu"), "")


def image(first: int) -> np.ndarray:
    return np.array([[[[first, 10], [20, 30]]]], dtype=np.uint8)


@contextmanager
def started(*, max_batch: int = 8, max_wait_seconds: float = 0.2, max_waiting: int = 64) -> Iterator[Batcher]:
    batcher = Batcher(max_batch=max_batch, max_wait_seconds=max_wait_seconds, max_waiting=max_waiting)
    batcher.start()
    try:
        yield batcher
    finally:
        batcher.stop()


async def ask(batcher: Batcher, predictor: Predictor, *firsts: int) -> list[np.ndarray | BaseException]:
    calls = [batcher.probabilities(predictor, image(first)) for first in firsts]
    return await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 30])
def test_images_of_many_requests_share_passes_of_at_most_the_maximum(count: int) -> None:
    network = Touchy()
    predictor = predictor_of(network)
    with started() as batcher, batcher.announce():
        found = asyncio.run(ask(batcher, predictor, *range(count)))
    expected = predictor.probabilities(np.concatenate([image(first) for first in range(count)]))
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=0, atol=1e-6)
    passes = network.passes[:-1]
    assert sum(passes) == count and max(passes) <= 8
    assert len(passes) <= count // 8 + 2, "nearly all passes are full"


def test_a_request_larger_than_a_pass_is_answered_in_order() -> None:
    network = Touchy()
    predictor = predictor_of(network)
    images = np.concatenate([image(first) for first in range(21)])
    with started(max_batch=8) as batcher:
        found = asyncio.run(batcher.probabilities(predictor, images))
    np.testing.assert_allclose(found, predictor.probabilities(images), rtol=0, atol=1e-6)
    assert max(network.passes[:-1]) <= 8


def test_a_lone_request_waits_for_nobody_and_an_announced_one_is_waited_for() -> None:
    predictor = predictor_of(Touchy())
    with started(max_wait_seconds=0.5) as batcher:
        asyncio.run(ask(batcher, predictor, 0))
        before = time.monotonic()
        asyncio.run(ask(batcher, predictor, 0))
        assert time.monotonic() - before < 0.3
        with batcher.announce():
            before = time.monotonic()
            asyncio.run(ask(batcher, predictor, 0))
            assert time.monotonic() - before > 0.4, "the announced request might have come along"


def test_one_poison_image_fails_alone() -> None:
    predictor = predictor_of(Touchy())
    with started() as batcher, batcher.announce():
        found = asyncio.run(ask(batcher, predictor, 1, POISON, 2, NOT_A_NUMBER, 3))
    assert [isinstance(item, AnswerFailed) for item in found] == [False, True, False, True, False]
    for item, first in zip(found, (1, POISON, 2, NOT_A_NUMBER, 3), strict=True):
        if isinstance(item, np.ndarray):
            np.testing.assert_allclose(item, predictor.probabilities(image(first)), rtol=0, atol=1e-6)


def test_a_cancelled_request_leaves_the_queue() -> None:
    network = Touchy()
    predictor = predictor_of(network)

    async def scene(batcher: Batcher) -> None:
        slow = asyncio.create_task(batcher.probabilities(predictor, image(SLOW)))
        await asyncio.sleep(0.05)
        given_up = [asyncio.create_task(batcher.probabilities(predictor, image(1))) for _ in range(5)]
        kept = asyncio.create_task(batcher.probabilities(predictor, image(2)))
        await asyncio.sleep(0.05)
        assert batcher.waiting == 6
        for task in given_up:
            task.cancel()
        await asyncio.gather(*given_up, return_exceptions=True)
        assert batcher.waiting == 1
        await asyncio.gather(slow, kept)

    with started() as batcher:
        asyncio.run(scene(batcher))
    assert network.passes == [1, 1], "the slow one, then the one that was kept"


def test_a_full_queue_refuses_and_recovers() -> None:
    predictor = predictor_of(Touchy())

    async def scene(batcher: Batcher) -> None:
        slow = asyncio.create_task(batcher.probabilities(predictor, image(SLOW)))
        await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(batcher.probabilities(predictor, image(1))) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="4 images are waiting already; at most 4 may"):
            await batcher.probabilities(predictor, image(1))
        await asyncio.gather(slow, *waiting)
        await batcher.probabilities(predictor, image(1))

    with started(max_waiting=4) as batcher:
        asyncio.run(scene(batcher))


def test_models_take_turns_and_never_share_a_pass() -> None:
    one, other = Touchy(), Touchy()
    first, second = predictor_of(one), predictor_of(other)

    async def scene(batcher: Batcher) -> None:
        calls = [batcher.probabilities(predictor, image(1)) for predictor in (first, second) * 6]
        await asyncio.gather(*calls)

    with started() as batcher, batcher.announce():
        asyncio.run(scene(batcher))
    assert sum(one.passes) == sum(other.passes) == 6


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_thread_fails_what_waits_and_refuses_what_comes() -> None:
    predictor = predictor_of(Touchy())

    async def scene(batcher: Batcher) -> list[np.ndarray | BaseException]:
        slow = asyncio.create_task(batcher.probabilities(predictor, image(SLOW)))
        await asyncio.sleep(0.05)
        return [*await ask(batcher, predictor_of(Touchy()), DEADLY, 1), *await asyncio.gather(slow)]

    with started() as batcher:
        deadly, behind, _ = asyncio.run(asyncio.wait_for(scene(batcher), 10))
        assert isinstance(deadly, InferenceStopped) and isinstance(behind, InferenceStopped)
        for _ in range(100):
            if not batcher.is_alive:
                break
            time.sleep(0.05)
        assert not batcher.is_alive
        with pytest.raises(InferenceStopped):
            asyncio.run(batcher.probabilities(predictor, image(1)))


def test_stopping_answers_what_waits() -> None:
    predictor = predictor_of(Touchy())

    async def scene(batcher: Batcher) -> list[np.ndarray | BaseException]:
        call = asyncio.create_task(ask(batcher, predictor, SLOW, 1, 2))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(batcher.stop)
        return await call

    batcher = Batcher(max_batch=1, max_wait_seconds=0, max_waiting=8)
    batcher.start()
    assert all(isinstance(item, np.ndarray) for item in asyncio.run(scene(batcher)))


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.safetensors")), ids=lambda path: path.stem)
def test_a_released_model_says_the_same_of_an_image_alone_and_in_any_batch(path: Path) -> None:
    predictor = load_predictor(path)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (24, *predictor.contract.shape), dtype=np.uint8)
    alone = np.concatenate([predictor.probabilities(one[None]) for one in images])

    async def scene(batcher: Batcher, size: int) -> np.ndarray:
        order = generator.permutation(len(images))
        parts = [order[start : start + size] for start in range(0, len(order), size)]
        found = await asyncio.gather(*(batcher.probabilities(predictor, images[part]) for part in parts))
        result = np.empty_like(alone)
        result[np.concatenate(parts)] = np.concatenate(found)
        return result

    with started(max_batch=16) as batcher, batcher.announce():
        for size in (1, 3, 8):
            batched = asyncio.run(scene(batcher, size))
            assert (batched.argmax(1) == alone.argmax(1)).all()
            np.testing.assert_allclose(batched, alone, rtol=0, atol=TOLERANCE)
