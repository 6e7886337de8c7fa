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
    loop, working = asyncio.get_running_loop(), asyncio.current_task()
    assert working is not None, "a request is answered in a task"
    watching: list[asyncio.Task[None]] = []
    is_gone = False

    async def watch() -> None:
        nonlocal is_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        working.cancel()

    later = loop.call_later(LOOK_SECONDS, lambda: watching.append(loop.create_task(watch())))
    try:
        return await work
    except asyncio.CancelledError:
        if is_gone and not working.uncancel():
            raise ClientGone from None
        raise
    finally:
        later.cancel()
        for one in watching:
            one.cancel()
