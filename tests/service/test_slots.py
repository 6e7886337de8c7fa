import asyncio
from contextlib import suppress

import pytest

from service.slots import Busy, Request, Slots, current_client

pytestmark = pytest.mark.anyio


class SingleSlot:
    """One slot, which is held until `go` is set; `served` lists the clients in the order in which they got it."""

    def __init__(self, **options: float) -> None:
        self.slots = Slots("reading", 1, **{"max_waiting": 4, "seconds": 60, **options})  # type: ignore[arg-type]
        self.served: list[str] = []
        self.go = asyncio.Event()

    async def ask(self, client: str) -> str:
        current_client.set(client)
        try:
            async with self.slots.hold():
                self.served.append(client)
                await self.go.wait()
        except Busy as error:
            return str(error)
        return "served"

    async def queue(self, *clients: str) -> list[asyncio.Task[str]]:
        tasks = [asyncio.create_task(self.ask(client)) for client in clients]
        await asyncio.sleep(0)
        return tasks


async def test_slots_alternate_between_clients_with_unequal_queues() -> None:
    slot = SingleSlot()
    tasks = await slot.queue("ann", "ann", "ann", "ben", "ann")
    slot.go.set()
    assert await asyncio.gather(*tasks) == ["served"] * 5
    assert slot.served == ["ann", "ben", "ann", "ann", "ann"]


async def test_slow_client_gets_one_slot_at_a_time() -> None:
    """A client may fill all slots until its first slow request has ended."""
    slots = Slots("decoding", 2, max_waiting=9, seconds=60)
    requests = [Request(client=client) for client in ("ann", "ann", "ann", "ann", "ben")]
    taking = [asyncio.create_task(slots.take(request, 0.1)) for request in requests[:4]]
    await asyncio.sleep(0)
    slots.release(requests[0], beyond=5)
    await asyncio.sleep(0)
    assert [task.done() for task in taking] == [True, True, False, False], "the other slot is still held"
    await asyncio.wait_for(slots.take(requests[4], 0.1), 1)
    slots.release(requests[1])
    slots.release(requests[4])
    await asyncio.sleep(0)
    assert [task.done() for task in taking] == [True, True, True, False]
    taking[3].cancel()


async def test_full_queue_rejects_newest_requests_of_heaviest_client() -> None:
    slot = SingleSlot()
    crowd = await slot.queue(*["ann"] * 6)
    assert crowd[5].done() and "the queue is full" in crowd[5].result()
    others = await slot.queue("ben", "ben", "ben")
    assert slot.slots.waiting == 4
    slot.go.set()
    outcomes = await asyncio.gather(*crowd, *others)
    assert [outcome == "served" for outcome in outcomes] == [True] * 3 + [False] * 3 + [True, True, False]


async def test_slot_granted_to_cancelled_request_passes_to_next() -> None:
    slot = SingleSlot()
    first, second, third = await slot.queue("ann", "ben", "eve")
    slot.go.set()
    first.cancel()
    second.cancel()  # it has the slot but doesn't know it yet
    with suppress(asyncio.CancelledError):
        await first
    assert await third == "served"
    assert slot.slots.waiting == 0
    assert await slot.ask("ann") == "served"


async def test_timed_out_request_is_busy_and_leaves_queue() -> None:
    slot = SingleSlot(seconds=0.01)
    first, second = await slot.queue("ann", "ben")
    assert await second == "reading: no slot became free within 0.01 s"
    assert slot.slots.waiting == 0
    slot.go.set()
    assert await first == "served"


async def test_client_at_its_slot_limit_is_busy() -> None:
    slots = Slots("sending", 4, max_waiting=0, seconds=1, most_each=2)
    current_client.set("ann")
    async with slots.hold(), slots.hold():
        with pytest.raises(Busy, match="2 at a time is the limit for one client"):
            async with slots.hold():
                pass
        current_client.set("ben")
        async with slots.hold():
            pass
        current_client.set("ann")
    async with slots.hold():
        pass
