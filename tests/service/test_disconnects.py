import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from service.dependencies import WATCH_AFTER_SECONDS, cancel_on_disconnect
from service.http.errors import Problem
from service.http.middleware import BodyLimit
from service.slots import current_client

pytestmark = pytest.mark.anyio


class Client:
    """Disconnects after so many seconds; `was_watched` records whether it was polled."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.was_watched = seconds, False

    async def receive(self) -> Message:
        self.was_watched = True
        await asyncio.sleep(self.seconds)
        return {"type": "http.disconnect"}


async def test_work_is_cancelled_if_its_client_disconnects() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with pytest.raises(Problem, match="the client went away") as raised:
        await cancel_on_disconnect(Client(0.01).receive, work())
    assert raised.value.status_code == 503
    task = asyncio.current_task()
    assert task is not None and not task.cancelling(), "the task itself continues"
    await asyncio.sleep(0)
    assert ended == ["cancelled"]


async def test_fast_answer_is_not_watched_for_a_disconnect() -> None:
    client = Client(60)
    assert await cancel_on_disconnect(client.receive, asyncio.sleep(0, "answer")) == "answer"
    await asyncio.sleep(2 * WATCH_AFTER_SECONDS)
    assert not client.was_watched


async def test_connected_client_gets_its_answer_and_watching_ends() -> None:
    before = asyncio.all_tasks()
    assert await cancel_on_disconnect(Client(60).receive, asyncio.sleep(3 * WATCH_AFTER_SECONDS, "answer")) == "answer"
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_cancelling_the_request_cancels_its_work() -> None:
    task = asyncio.create_task(cancel_on_disconnect(Client(60).receive, asyncio.sleep(60)))
    await asyncio.sleep(2 * WATCH_AFTER_SECONDS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


SCOPE: Scope = {"type": "http", "headers": []}


class Bodies:
    """Requests that are received completely and then wait for `go`."""

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


async def test_one_client_may_use_half_of_the_body_memory() -> None:
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


async def test_all_clients_share_the_body_memory() -> None:
    here = Bodies()
    tasks = [asyncio.create_task(here.send(client, 40)) for client in ("ann", "ben")]
    await asyncio.sleep(0)
    with pytest.raises(Problem, match="too many large requests"):
        await here.send("eve", 30)
    here.go.set()
    await asyncio.gather(*tasks)
    await here.send("eve", 30)


async def test_largest_allowed_body_always_fits() -> None:
    here = Bodies()
    here.go.set()
    await here.send("ann", 60)
    with pytest.raises(Problem, match="larger than 60 bytes"):
        await here.send("ann", 30, 31)
    await here.send("ann", 60)
