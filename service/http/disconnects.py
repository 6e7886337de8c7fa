"""Cancel work whose client has disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

from service.http.errors import Problem

LOOK_SECONDS = 0.05
"""Most answers are faster, and watching a client costs as much as reading its form."""
Done = TypeVar("Done")


class ClientGone(Problem):
    """The client has disconnected, so no answer is needed."""

    def __init__(self) -> None:
        super().__init__(503, "the client went away before the answer")


async def unless_gone(receive: Receive, work: Awaitable[Done]) -> Done:
    """Return the result of `work`, or cancel it if the client disconnects after its body was received."""

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
