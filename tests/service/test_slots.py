import asyncio
from collections.abc import Coroutine
from contextlib import suppress

import pytest

from service.slots import Busy, Request, Slots, holder


class Scene:
    """One turn at a time, which is held until `go`; `served` are the clients in the order of their turns."""

    def __init__(self, **options: float) -> None:
        self.slots = Slots("reading", 1, **{"max_waiting": 4, "seconds": 60, **options})  # type: ignore[arg-type]
        self.served: list[str] = []
        self.go = asyncio.Event()

    async def ask(self, client: str) -> str:
        holder.set(client)
        try:
            async with self.slots.turn():
                self.served.append(client)
                await self.go.wait()
        except Busy as error:
            return str(error)
        return "served"

    async def queue(self, *clients: str) -> list[asyncio.Task[str]]:
        tasks = [asyncio.create_task(self.ask(client)) for client in clients]
        await asyncio.sleep(0)
        return tasks


def play(scene: Coroutine[None, None, None]) -> None:
    asyncio.run(scene)


def test_clients_take_turns_whoever_asks_most() -> None:
    async def scene() -> None:
        here = Scene()
        tasks = await here.queue("ann", "ann", "ann", "ben", "ann")
        here.go.set()
        assert await asyncio.gather(*tasks) == ["served"] * 5
        assert here.served == ["ann", "ben", "ann", "ann", "ann"]

    play(scene())


def test_slow_client_leaves_slots_to_others() -> None:
    """It may be slow with all of them once."""

    async def scene() -> None:
        slots = Slots("decoding", 2, max_waiting=9, seconds=60)
        requests = [Request(client=client) for client in ("ann", "ann", "ann", "ann", "ben")]
        taking = [asyncio.create_task(slots.take(request, 0.1)) for request in requests[:4]]
        await asyncio.sleep(0)
        slots.give_back(requests[0], beyond=5)
        await asyncio.sleep(0)
        assert [task.done() for task in taking] == [True, True, False, False], "it still has the other one"
        await asyncio.wait_for(slots.take(requests[4], 0.1), 1)
        slots.give_back(requests[1])
        slots.give_back(requests[4])
        await asyncio.sleep(0)
        assert [task.done() for task in taking] == [True, True, True, False]
        taking[3].cancel()

    play(scene())


def test_who_has_most_waiting_makes_room_for_another_but_not_for_itself() -> None:
    async def scene() -> None:
        here = Scene()
        crowd = await here.queue(*["ann"] * 6)
        assert crowd[5].done() and "too much is waiting already" in crowd[5].result()
        others = await here.queue("ben", "ben", "ben")
        assert here.slots.waiting == 4
        here.go.set()
        answered = await asyncio.gather(*crowd, *others)
        assert [said == "served" for said in answered] == [True, True, True, False, False, False, True, True, False]

    play(scene())


def test_a_turn_that_comes_too_late_is_handed_on() -> None:
    async def scene() -> None:
        here = Scene()
        first, second, third = await here.queue("ann", "ben", "eve")
        here.go.set()
        first.cancel()
        second.cancel()  # before it knows of its turn
        with suppress(asyncio.CancelledError):
            await first
        assert await third == "served"
        assert here.slots.waiting == 0
        assert await here.ask("ann") == "served"

    play(scene())


def test_who_waits_too_long_is_refused_and_forgotten() -> None:
    async def scene() -> None:
        here = Scene(seconds=0.01)
        first, second = await here.queue("ann", "ben")
        assert await second == "reading: no turn came within 0.01 s"
        assert here.slots.waiting == 0
        here.go.set()
        assert await first == "served"

    play(scene())


def test_one_client_holds_no_more_than_its_share() -> None:
    async def scene() -> None:
        slots = Slots("sending", 4, max_waiting=0, seconds=1, most_each=2)
        holder.set("ann")
        async with slots.turn(), slots.turn():
            with pytest.raises(Busy, match="2 of one client at once are the most"):
                async with slots.turn():
                    pass
            holder.set("ben")
            async with slots.turn():
                pass
            holder.set("ann")
        async with slots.turn():
            pass

    play(scene())
