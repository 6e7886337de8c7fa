"""A bounded number of requests at once; others wait for their turn on the event loop, not in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from anyio import CancelScope
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from stages.results import Sessions

Found = TypeVar("Found")


class Busy(RuntimeError):
    """No turn came in time, or too many are waiting for one; a later request may be answered."""


class Slots:
    """`count` at once; `max_waiting` others wait, each at most `seconds`, in the order in which they came."""

    def __init__(self, what: str, count: int, *, max_waiting: int, seconds: float) -> None:
        self._what, self._max_waiting, self._seconds = what, max_waiting, seconds
        self._free = asyncio.Semaphore(count)
        self.waiting = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and hold it for the block.

        Raises:
            Busy: none came in time, or too many are waiting already.
        """
        if self._free.locked() and self.waiting >= self._max_waiting:
            raise Busy(f"{self._what}: {self.waiting} requests are waiting already")
        self.waiting += 1
        try:
            async with asyncio.timeout(self._seconds):
                await self._free.acquire()
        except TimeoutError:
            raise Busy(f"{self._what}: no turn came within {self._seconds:g} s") from None
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self._free.release()


class Turns:
    """Sessions on the results database for those who have a turn, so that no thread ever waits for a connection."""

    def __init__(self, sessions: Sessions, slots: Slots) -> None:
        self.sessions, self.slots = sessions, slots

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A session, which connects at its first use; that is never on the event loop.

        Raises:
            Busy: as `Slots.turn`.
        """
        async with self.slots.turn():
            session = self.sessions()
            try:
                yield session
            finally:
                if session.in_transaction():
                    with CancelScope(shield=True):  # a connection goes back whatever becomes of its request
                        await run_in_threadpool(session.close)

    def dispose(self) -> None:
        """Close the connections that are kept for later."""
        self.sessions.kw["bind"].dispose()

    async def ask(self, find: Callable[[Session], Found]) -> Found:
        """What `find`, in a thread, finds in a session.

        Raises:
            Busy: as `Slots.turn`.
        """

        def answer() -> Found:
            with self.sessions() as session:  # opened and closed by this thread, also if nobody waits for it any more
                return find(session)

        async with self.slots.turn():
            return await run_in_threadpool(answer)
