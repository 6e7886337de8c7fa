"""A simulation of our scheduler on many preemptible devices, in SimPy: what it does, not what it computes.

A device takes the first group that nobody holds, in the order of the list, and trains it until it is done or the
device is taken away.  A group is leased as one.  What was saved last survives a preemption; the lease expires, and then
any device may go on from there (`stages.scheduling.engine`).  Every start costs time, and so does a device's return.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field

import simpy

Draw = Callable[[], float]
"""Seconds until a device that has just appeared is taken away; infinite: never."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A group of runs: its seconds on a device, and how far two of its saved states are apart at most."""

    label: str
    seconds: float
    save_seconds: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Site:
    """`devices` of one kind; seconds to start a group, until a dead owner's lease expires, until a device is back."""

    devices: int
    start_seconds: float = 0.0
    lease_seconds: float = 0.0
    away_seconds: float = 0.0


@dataclass(kw_only=True)
class Simulated:
    """Seconds from the start to the last group's end, and what devices spent them on; attempts by job's label."""

    makespan: float = 0.0
    trained: float = 0.0
    lost: float = 0.0
    starting: float = 0.0
    preemptions: int = 0
    attempts: dict[str, int] = field(default_factory=dict)


def bound(jobs: Sequence[Job], devices: int) -> float:
    """No schedule of `jobs` ends sooner on `devices`: the longest job's seconds, or an equal share of all."""
    return max(max(job.seconds for job in jobs), sum(job.seconds for job in jobs) / devices)


def longest_first(jobs: Iterable[Job]) -> list[Job]:
    """The order in which all missing trainings are submitted at once; equals stay as they are."""
    return sorted(jobs, key=lambda job: -job.seconds)


def simulate(jobs: Sequence[Job], site: Site, until_preempted: Draw = lambda: math.inf) -> Simulated:
    """Train `jobs`, in the order of the list, on the devices of `site`."""
    return _Simulation(jobs, site, until_preempted).run()


class _Simulation:
    """One call of `simulate`: the queue of groups without an owner, and what is left to do of each."""

    def __init__(self, jobs: Sequence[Job], site: Site, until_preempted: Draw) -> None:
        self.jobs, self.site, self.until_preempted = jobs, site, until_preempted
        self.environment = simpy.Environment()
        self.queue = simpy.PriorityStore(self.environment)
        self.left = [job.seconds for job in jobs]
        self.unfinished = len(jobs)
        self.done = self.environment.event()
        self.found = Simulated(attempts={job.label: 0 for job in jobs})

    def run(self) -> Simulated:
        for place in range(len(self.jobs)):
            self.queue.put(place)
        for _ in range(self.site.devices):
            self.environment.process(self._device())
        if self.jobs:
            self.environment.run(until=self.done)
        self.found.makespan = self.environment.now
        return self.found

    def _device(self) -> Generator[simpy.Event, object, None]:
        while True:
            yield from self._until(self.environment.now + self.until_preempted())
            yield self.environment.timeout(self.site.away_seconds)

    def _until(self, end: float) -> Generator[simpy.Event, object, None]:
        """Train groups until the device is taken away at `end`."""
        while self.environment.now < end:
            claim = self.queue.get()
            yield claim | self.environment.timeout(end - self.environment.now)
            if not claim.triggered:
                claim.cancel()
                return
            place = claim.value
            began = self.environment.now
            needed = self.site.start_seconds + self.left[place]
            self.found.attempts[self.jobs[place].label] += 1
            yield self.environment.timeout(min(needed, end - began))
            self._count(place, self.environment.now - began, is_finished=began + needed <= end)

    def _count(self, place: int, seconds: float, *, is_finished: bool) -> None:
        """Note what an attempt of `seconds` was spent on, and whether its group waits again once the lease is over."""
        starting = min(seconds, self.site.start_seconds)
        self.found.starting += starting
        if is_finished:
            kept = self.left[place]
            self.unfinished -= 1
            if self.unfinished == 0:
                self.done.succeed()
        else:
            apart = self.jobs[place].save_seconds
            kept = 0.0 if math.isinf(apart) else (seconds - starting) // apart * apart
            self.found.lost += seconds - starting - kept
            self.found.preemptions += 1
            self.environment.process(self._release(place))
        self.found.trained += kept
        self.left[place] -= kept

    def _release(self, place: int) -> Generator[simpy.Event, object, None]:
        yield self.environment.timeout(self.site.lease_seconds)
        yield self.queue.put(place)
