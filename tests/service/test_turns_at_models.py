"""Fair scheduling of clients: a full queue rejects images of the busiest client."""

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import pytest

from service.inference.batching import Batcher
from service.inference.models import Model
from service.slots import Busy, holder
from tests.polling import wait_until
from tests.service.test_batching import SLOW, Here, Touchy, image, started

pytestmark = pytest.mark.slow


async def one_and_more(batcher: Batcher, model: Model, names: Sequence[str]) -> list[asyncio.Task[float]]:
    """Start a slow request of each of these clients; the first runs and the others wait."""
    tasks = []
    for name in names:
        tasks.append(asyncio.create_task(as_client(name, batcher, model, image(SLOW))))
        if len(tasks) == 1:
            await asyncio.to_thread(wait_until, lambda: Here.networks[model.sha256].passes)
    await asyncio.sleep(0)
    return tasks


async def as_client(client: str, batcher: Batcher, model: Model, images: np.ndarray) -> float:
    """Send a request as one client; return the time of its answer."""
    holder.set(client)
    await batcher.probabilities(model, images)
    return time.monotonic()


@pytest.mark.parametrize("size", [1, 3])
def test_busy_client_does_not_delay_another(size: int) -> None:
    model = Here.model_of(Touchy())
    slow = np.concatenate([image(SLOW)] * size)

    async def scene(batcher: Batcher) -> None:
        many = [asyncio.create_task(as_client("many", batcher, model, slow)) for _ in range(6)]
        await asyncio.sleep(0.05)  # one of them is running
        lone = await as_client("lone", batcher, model, image(1))
        assert sum(task.done() for task in many) <= 1
        assert lone < min((await asyncio.gather(*many))[1:])

    with started(max_batch=1) as batcher:
        asyncio.run(asyncio.wait_for(scene(batcher), 60))


def test_requests_of_one_client_are_answered_in_order() -> None:
    model = Here.model_of(Touchy())

    async def scene(batcher: Batcher) -> None:
        calls = [asyncio.create_task(as_client("one", batcher, model, image(SLOW))) for _ in range(4)]
        times = await asyncio.gather(*calls)
        assert times == sorted(times)

    with started(max_batch=1) as batcher:
        asyncio.run(asyncio.wait_for(scene(batcher), 60))


def test_full_queue_rejects_the_busiest_clients_newest_images() -> None:
    model = Here.model_of(Touchy())

    async def scene(batcher: Batcher) -> None:
        tasks = await one_and_more(batcher, model, ["many"] * 5)
        with pytest.raises(Busy, match="too much is waiting already"):
            await as_client("many", batcher, model, image(1))
        await asyncio.gather(*(as_client(name, batcher, model, image(1)) for name in ("one", "two")))
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(answer, Busy) for answer in found] == [False, False, False, True, True], "the last two"
        even = await one_and_more(batcher, Here.model_of(Touchy()), "abcde")
        with pytest.raises(Busy):
            await as_client("f", batcher, model, image(1))
        await asyncio.gather(*even)

    with started(max_batch=1, max_waiting_seconds=0.004) as batcher:
        asyncio.run(asyncio.wait_for(scene(batcher), 60))


def test_request_too_large_for_the_queue_displaces_nothing() -> None:
    model = Here.model_of(Touchy())

    async def scene(batcher: Batcher) -> None:
        tasks = await one_and_more(batcher, model, ["many"] * 5)
        with pytest.raises(Busy):
            await as_client("other", batcher, model, np.concatenate([image(1)] * 3))
        assert len(await asyncio.gather(*tasks)) == 5

    with started(max_batch=1, max_waiting_seconds=0.004) as batcher:
        asyncio.run(asyncio.wait_for(scene(batcher), 60))


def test_one_client_leaves_a_worker_to_others() -> None:
    model = Here.model_of(Touchy())

    async def scene(batcher: Batcher) -> None:
        await as_client("lone", batcher, model, image(1))
        many = [asyncio.create_task(as_client("many", batcher, model, image(SLOW))) for _ in range(4)]
        await asyncio.sleep(0.05)
        before = time.monotonic()
        assert await as_client("lone", batcher, model, image(1)) - before < 0.15, "no slow pass was in its way"
        await asyncio.gather(*many)

    with started(Here(), Here(), max_batch=1) as batcher:
        asyncio.run(asyncio.wait_for(scene(batcher), 60))
