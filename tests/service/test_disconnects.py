import asyncio

import pytest
from starlette.types import Message

from service.http.disconnects import LOOK_SECONDS, unless_gone
from service.http.errors import Problem


class Client:
    """Goes away after so many seconds; `was_watched` says whether anyone looked."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.was_watched = seconds, False

    async def receive(self) -> Message:
        self.was_watched = True
        await asyncio.sleep(self.seconds)
        return {"type": "http.disconnect"}


def test_work_whose_client_goes_away_is_cancelled() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def scene() -> None:
        with pytest.raises(Problem, match="the client went away") as raised:
            await unless_gone(Client(0.01).receive, work())
        assert raised.value.status_code == 503
        task = asyncio.current_task()
        assert task is not None and not task.cancelling(), "the task itself goes on"
        await asyncio.sleep(0)

    asyncio.run(scene())
    assert ended == ["cancelled"]


def test_an_answer_that_is_soon_there_has_nobody_watch_for_its_client() -> None:
    async def scene() -> None:
        client = Client(60)
        assert await unless_gone(client.receive, asyncio.sleep(0, "answer")) == "answer"
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert not client.was_watched

    asyncio.run(scene())


def test_a_client_that_stays_gets_its_answer_and_nothing_watches_afterwards() -> None:
    async def scene() -> None:
        assert await unless_gone(Client(60).receive, asyncio.sleep(3 * LOOK_SECONDS, "answer")) == "answer"
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scene())


def test_who_cancels_the_request_cancels_it() -> None:
    async def scene() -> None:
        task = asyncio.create_task(unless_gone(Client(60).receive, asyncio.sleep(60)))
        await asyncio.sleep(2 * LOOK_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())


def test_a_fault_of_the_work_is_its_own() -> None:
    async def work() -> None:
        raise LookupError("no such model")

    with pytest.raises(LookupError, match="no such model"):
        asyncio.run(unless_gone(Client(60).receive, work()))
