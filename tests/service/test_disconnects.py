import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from service.http.disconnects import LOOK_SECONDS, unless_gone
from service.http.errors import Problem
from service.http.middleware import BodyLimit
from service.slots import current_client


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


SCOPE: Scope = {"type": "http", "headers": []}


class Bodies:
    """Requests that are received whole and then wait for `go`."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.limited = BodyLimit(self._app, limit=60, together=100, seconds=5)

    async def _app(self, _scope: Scope, receive: Receive, _send: Send) -> None:
        while (await receive()).get("more_body", False):
            pass
        await self.go.wait()

    async def send(self, client: str, *parts: int) -> None:
        current_client.set(client)
        left = list(parts)

        async def receive() -> Message:
            size = left.pop(0)
            return {"type": "http.request", "body": bytes(size), "more_body": bool(left)}

        async def answered(_message: Message) -> None:
            raise AssertionError("errors are raised here")

        await self.limited(SCOPE, receive, answered)


def test_one_client_has_half_of_the_room_and_gives_it_back() -> None:
    async def scene() -> None:
        here = Bodies()
        asyncio.get_running_loop().call_later(0.05, here.go.set)
        first = asyncio.create_task(here.send("ann", 20, 20))
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="too many large requests") as raised:
            await here.send("ann", 10, 20)
        assert raised.value.status_code == 503 and raised.value.headers == {"retry-after": "2"}
        await here.send("ben", 30, 20)
        await first
        await here.send("ann", 30, 20)

    asyncio.run(scene())


def test_all_clients_together_have_the_room() -> None:
    async def scene() -> None:
        here = Bodies()
        tasks = [asyncio.create_task(here.send(client, 40)) for client in ("ann", "ben")]
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="too many large requests"):
            await here.send("eve", 30)
        here.go.set()
        await asyncio.gather(*tasks)
        await here.send("eve", 30)

    asyncio.run(scene())


def test_one_body_as_large_as_allowed_always_has_room() -> None:
    async def scene() -> None:
        here = Bodies()
        here.go.set()
        await here.send("ann", 60)
        with pytest.raises(Problem, match="larger than 60 bytes"):
            await here.send("ann", 30, 31)
        await here.send("ann", 60)

    asyncio.run(scene())
