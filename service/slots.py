"""Fair queue for everything that clients wait for: the database, image decoders and models.

Requests wait on the event loop, not in a thread. A client that sends a thousand requests delays only itself.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Generic, TypeVar

from anyio import CancelScope, to_thread
from cachetools import TTLCache
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from stages.results import Sessions

Found = TypeVar("Found")
current_client: ContextVar[str] = ContextVar("current_client", default="")
"""Client that sent the current request."""
SLOW_SECONDS, SLOW_AGAIN_SECONDS = 1.0, 60.0
_numbers = itertools.count()


class Busy(RuntimeError):
    """The queue is full, or the request waited too long; the client may retry."""


@dataclass(eq=False, kw_only=True)
class Request:
    """Request of one client with one or more tickets; `position` is that of the next one in the queue."""

    client: str = field(default_factory=current_client.get)
    number: int = field(default_factory=lambda: next(_numbers))
    position: float = 0.0


@dataclass(eq=False, kw_only=True)
class Ticket:
    """Part of a request that waits until its `future` is done, asyncio's or a thread's; `cost` is an estimate."""

    request: Request
    cost: float
    future: Any
    position: float = 0.0


Waiting = TypeVar("Waiting", bound=Ticket)


class FairQueue(Generic[Waiting]):
    """Queue with start-time fair queueing by cost; not thread-safe.

    The next ticket belongs to the client served least and, among that client's requests, to the one served least since
    it arrived.  If the cost of all tickets would exceed `most`, the newest request of the heaviest client is rejected.
    """

    def __init__(self, what: str, most: float) -> None:
        self.what, self.most, self._full = what, most, f"{what}: the queue is full"
        self._tickets: dict[str, list[Waiting]] = {}  # by client, sorted by `position`
        self._clock = 0.0
        self._served: dict[str, float] = {}  # cost by client, if ahead of the clock

    def put(self, tickets: Sequence[Waiting], *, is_bounded: bool = True) -> None:
        """Add tickets of one request.

        Raises:
            Busy: as for `require_capacity`.
        """
        request = tickets[0].request
        if is_bounded:
            refused = self.require_capacity(request.client, sum(ticket.cost for ticket in tickets))
            refuse(refused, Busy(self._full))
        request.position = max(request.position, self._served_to(request.client))
        for ticket in tickets:
            ticket.position = request.position
            request.position += ticket.cost
        self.put_back(tickets)

    def put_back(self, tickets: Sequence[Waiting]) -> None:
        """Return tickets to the queue that were taken but not served."""
        for ticket in tickets:
            self._tickets.setdefault(ticket.request.client, []).append(ticket)
        for client in {ticket.request.client for ticket in tickets}:
            self._tickets[client].sort(key=attrgetter("position"))

    def in_order(self) -> list[Waiting]:
        """Return the waiting tickets, next one first."""
        live = {
            client: [ticket for ticket in tickets if not ticket.future.done()]
            for client, tickets in self._tickets.items()
        }
        self._tickets = {client: tickets for client, tickets in live.items() if tickets}
        return [ticket for client in sorted(self._tickets, key=self._served_to) for ticket in self._tickets[client]]

    def take(self, *tickets: Waiting) -> None:
        """Remove tickets from the queue, and charge them to their clients."""
        self._clock = min(map(self._served_to, self._tickets))
        self._served = {client: served for client, served in self._served.items() if served > self._clock}
        for ticket in tickets:
            self._tickets[ticket.request.client].remove(ticket)
            self.charge(ticket.request.client, ticket.cost)

    def charge(self, client: str, cost: float) -> None:
        self._served[client] = self._served_to(client) + cost

    def _served_to(self, client: str) -> float:
        return max(self._clock, self._served.get(client, 0.0))

    def require_capacity(self, client: str, cost: float) -> list[Waiting]:
        """Return the tickets to reject so that another `cost` of this client fits into the queue.

        Raises:
            Busy: the queue is full, and no other client has more waiting than this one would have.
        """
        waiting, held, refused = self.in_order(), defaultdict[str, float](float), set[Request]()
        for ticket in waiting:
            held[ticket.request.client] += ticket.cost
        while sum(held.values()) + cost > self.most:
            heaviest = max(held, key=held.__getitem__, default=client)
            if held[heaviest] <= held[client] + cost:
                raise Busy(self._full)
            others = {ticket.request for ticket in waiting if ticket.request.client == heaviest} - refused
            refused.add(newest := max(others, key=attrgetter("number")))
            held[heaviest] -= sum(ticket.cost for ticket in waiting if ticket.request is newest)
        return [ticket for ticket in waiting if ticket.request in refused]


def refuse(tickets: Iterable[Ticket], error: Exception) -> None:
    """Set `error` on the tickets that aren't done."""
    for ticket in tickets:
        with suppress(asyncio.InvalidStateError, concurrent.futures.InvalidStateError):
            ticket.future.set_exception(error)


class Slots:
    """Fair semaphore: `count` slots, at most `most_each` for one client; requests wait at most `seconds`.

    The queue holds at most `max_waiting`, by cost.  A client that held a slot for `SLOW_SECONDS` more than its cost
    gets only one slot at a time for the next `SLOW_AGAIN_SECONDS`.
    """

    def __init__(
        self, what: str, count: int, *, max_waiting: float, seconds: float, most_each: int | None = None
    ) -> None:
        self._queue = FairQueue[Ticket](what, max_waiting)
        self._free, self._seconds, self._most_each = count, seconds, most_each
        self._held: Counter[str] = Counter()
        self._slow: TTLCache[str, None] = TTLCache(1000, SLOW_AGAIN_SECONDS)  # clients

    @property
    def waiting(self) -> int:
        return len(self._queue.in_order())

    @asynccontextmanager
    async def hold(self, cost: float = 1.0) -> AsyncIterator[None]:
        """Wait for a slot, and hold it during the block.  Raises `Busy` as `take` does."""
        request = Request()
        await self.take(request, cost)
        try:
            yield
        finally:
            self.release(request)

    async def take(self, request: Request, cost: float) -> None:
        """Wait for a slot; release it with `release`.

        Raises:
            Busy: no slot became free in time, the queue is full, or this client already holds `most_each`.
        """
        what = self._queue.what
        if self._most_each is not None and self._held[request.client] >= self._most_each:
            raise Busy(f"{what}: {self._most_each} at a time is the limit for one client")
        ticket = Ticket(request=request, cost=cost, future=asyncio.get_running_loop().create_future())
        self._queue.put([ticket], is_bounded=not self._free and self._queue.most < math.inf)
        self._serve()
        try:
            async with asyncio.timeout(self._seconds):
                await ticket.future
        except BaseException as error:
            if not ticket.future.cancelled() and ticket.future.exception() is None:
                self.release(request)  # it was granted just as the wait ended
            if isinstance(error, TimeoutError):
                raise Busy(f"{what}: no slot became free within {self._seconds:g} s") from None
            raise

    def release(self, request: Request, beyond: float = 0.0) -> None:
        """Release a slot that was held for `beyond` seconds more than its cost."""
        if beyond > SLOW_SECONDS:
            self._slow[request.client] = None
        self._queue.charge(request.client, max(0.0, beyond))
        self._held[request.client] -= 1
        if not self._held[request.client]:
            del self._held[request.client]
        self._free += 1
        self._serve()

    def _serve(self) -> None:
        for ticket in self._queue.in_order() if self._free else ():
            if not self._free or (self._held[ticket.request.client] and ticket.request.client in self._slow):
                continue
            self._queue.take(ticket)
            self._free -= 1
            self._held[ticket.request.client] += 1
            ticket.future.set_result(None)


class SessionPool:
    """Sessions of the results database, limited by `slots` so that no thread ever waits for a connection."""

    def __init__(self, sessions: Sessions, slots: Slots, ask_seconds: float | None = None) -> None:
        self.sessions, self.slots, self._ask_seconds = sessions, slots, ask_seconds

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Provide a session, which connects at its first use, never on the event loop.

        Raises:
            Busy: as for `Slots.take`.
        """
        async with self.slots.hold():
            session = self.sessions()
            try:
                yield session
            finally:
                if session.in_transaction():
                    with CancelScope(shield=True):  # return the connection even if the request is cancelled
                        await run_in_threadpool(session.close)

    def dispose(self) -> None:
        """Close the pooled connections."""
        self.sessions.kw["bind"].dispose()

    async def ask(self, find: Callable[[Session], Found]) -> Found:
        """Run `find` in a thread with a session, and return its result.

        Raises:
            Busy: as for `Slots.take`, or the database doesn't answer within `ask_seconds`.
        """

        def answer() -> Found:
            with self.sessions() as session:  # opened and closed by this thread, even if its caller has given up
                return find(session)

        async with self.slots.hold():
            try:
                async with asyncio.timeout(self._ask_seconds):
                    return await to_thread.run_sync(answer, abandon_on_cancel=self._ask_seconds is not None)
            except TimeoutError:
                raise Busy(f"the results database doesn't answer within {self._ask_seconds:g} s") from None
