"""Bodies of many requests at once: each client has half of the room, and what is given back is there again."""

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from service.http.errors import Problem
from service.http.middleware import BodyLimit
from service.slots import holder

SCOPE: Scope = {"type": "http", "headers": []}


class Here:
    """Requests that are received whole and then wait for `go`."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.limited = BodyLimit(self._app, limit=60, together=100, seconds=5)

    async def _app(self, _scope: Scope, receive: Receive, _send: Send) -> None:
        while (await receive()).get("more_body", False):
            pass
        await self.go.wait()

    async def send(self, client: str, *parts: int) -> None:
        holder.set(client)
        left = list(parts)

        async def receive() -> Message:
            size = left.pop(0)
            return {"type": "http.request", "body": bytes(size), "more_body": bool(left)}

        async def answered(_message: Message) -> None:
            raise AssertionError("errors are raised here")

        await self.limited(SCOPE, receive, answered)


def test_one_client_has_half_of_the_room_and_gives_it_back() -> None:
    async def scene() -> None:
        here = Here()
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
        here = Here()
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
        here = Here()
        here.go.set()
        await here.send("ann", 60)
        with pytest.raises(Problem, match="larger than 60 bytes"):
            await here.send("ann", 30, 31)
        await here.send("ann", 60)

    asyncio.run(scene())
