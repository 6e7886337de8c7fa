"""Work that is given up where the client goes away: nobody would read the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

from service.http.errors import Problem

LOOK_SECONDS = 0.05
"""Most answers are there sooner, and to watch for a client costs as much as to read its form."""
Done = TypeVar("Done")


class ClientGone(Problem):
    """Nobody would read the answer."""

    def __init__(self) -> None:
        super().__init__(503, "the client went away before the answer")


async def unless_gone(receive: Receive, work: Awaitable[Done]) -> Done:
    """The outcome of `work`, which is cancelled where the client of a request whose body was received goes away."""
    watch = _Watch(receive)
    later = asyncio.get_running_loop().call_later(LOOK_SECONDS, watch.begin)
    try:
        return await work
    except asyncio.CancelledError:
        if watch.is_client_gone and not watch.working.uncancel():
            raise ClientGone from None
        raise
    finally:
        later.cancel()
        watch.end()


class _Watch:
    """Cancels the task that made it once the client is gone."""

    def __init__(self, receive: Receive) -> None:
        task = asyncio.current_task()
        assert task is not None, "a request is answered in a task"
        self.working, self.is_client_gone = task, False
        self._receive = receive
        self._watching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._watching = asyncio.create_task(self._until_gone())

    def end(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_client_gone = True
        self.working.cancel()
