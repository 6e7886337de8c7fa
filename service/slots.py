"""A bounded number of requests at once; others wait for their turn on the event loop, not in a thread.

Clients take turns, whoever asks most: one that asks for a thousand things at once holds up itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TypeVar

from anyio import CancelScope, to_thread
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from stages.results import Sessions

Found = TypeVar("Found")
holder: ContextVar[str] = ContextVar("holder", default="")
"""The client whose request this is."""


class Busy(RuntimeError):
    """No turn came in time, or too many are waiting for one; a later request may be answered."""


class Slots:
    """`count` at once, of one client at most `most_each`; `max_waiting` others wait, each at most `seconds`.

    Of several clients each has the next turn after the others, its own requests in the order in which they came.  Where
    too many wait, the last request of who has most waiting is refused.
    """

    def __init__(
        self, what: str, count: int, *, max_waiting: int, seconds: float, most_each: int | None = None
    ) -> None:
        self._what, self._max_waiting, self._seconds = what, max_waiting, seconds
        self._free, self._most_each = count, most_each
        self._held: Counter[str] = Counter()
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}  # by client; whose turn is next comes first

    @property
    def waiting(self) -> int:
        return sum(map(len, self._lines.values()))

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and hold it for the block.

        Raises:
            Busy: none came in time, or too many are waiting already.
        """
        client = holder.get()
        if self._most_each is not None and self._held[client] >= self._most_each:
            raise Busy(f"{self._what}: {self._most_each} of one client at once are the most")
        if self._free:
            self._free -= 1
        else:
            await self._wait(client)
        self._held[client] += 1
        try:
            yield
        finally:
            self._held[client] -= 1
            if not self._held[client]:
                del self._held[client]
            self._hand_on()

    async def _wait(self, client: str) -> None:
        self._make_room(client)
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(client, deque()).append(mine)
        try:
            async with asyncio.timeout(self._seconds):
                await mine
        except BaseException as error:
            if mine.done() and not mine.cancelled() and mine.exception() is None:
                self._hand_on()  # the turn came too late
            self._forget(client, mine)
            if isinstance(error, TimeoutError):
                raise Busy(f"{self._what}: no turn came within {self._seconds:g} s") from None
            raise

    def _make_room(self, client: str) -> None:
        """Refuse this request, or another one in its place: of a client who has more of them waiting."""
        if self.waiting < self._max_waiting:
            return
        refusal = Busy(f"{self._what}: {self.waiting} requests are waiting already")
        longest = max(self._lines, key=lambda name: len(self._lines[name]), default=client)
        if len(self._lines.get(longest, ())) <= 1 + len(self._lines.get(client, ())):
            raise refusal
        last = self._lines[longest][-1]
        self._forget(longest, last)
        if not last.done():
            last.set_exception(refusal)

    def _forget(self, client: str, one: asyncio.Future[None]) -> None:
        line = self._lines.get(client, deque())
        if one in line:
            line.remove(one)
        if not line:
            self._lines.pop(client, None)

    def _hand_on(self) -> None:
        """Give a turn that is free to the first of the client who is next, and put its other requests behind all."""
        while self._lines:
            client, line = next(iter(self._lines.items()))
            first = line.popleft()
            del self._lines[client]
            if line:
                self._lines[client] = line
            if not first.done():
                first.set_result(None)
                return
        self._free += 1


class Turns:
    """Sessions on the results database for those who have a turn, so that no thread ever waits for a connection."""

    def __init__(self, sessions: Sessions, slots: Slots, ask_seconds: float | None = None) -> None:
        self.sessions, self.slots, self._ask_seconds = sessions, slots, ask_seconds

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
            Busy: as `Slots.turn`, or the database doesn't answer within `ask_seconds`.
        """

        def answer() -> Found:
            with self.sessions() as session:  # opened and closed by this thread, also if nobody waits for it any more
                return find(session)

        async with self.slots.turn():
            try:
                async with asyncio.timeout(self._ask_seconds):
                    return await to_thread.run_sync(answer, abandon_on_cancel=self._ask_seconds is not None)
            except TimeoutError:
                raise Busy(f"the results database doesn't answer within {self._ask_seconds:g} s") from None
