"""Cancels work whose client has disconnected."""

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
    """The outcome of `work`, which is cancelled if the client of a request whose body was received goes away."""

    async def watch(limit: asyncio.Timeout) -> None:
        await asyncio.sleep(LOOK_SECONDS)
        while (await receive())["type"] != "http.disconnect":
            pass
        limit.reschedule(0)

    limit = asyncio.timeout(None)
    watching = asyncio.create_task(watch(limit))
    try:
        async with limit:
            return await work
    except TimeoutError:
        if limit.expired():
            raise ClientGone from None
        raise
    finally:
        watching.cancel()
